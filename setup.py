"""Builds the compiled parts where there is a C compiler; without one, everything works in plain Python.

What is said of the project itself is in pyproject.toml. `PYROMQ_PURE=1` builds nothing. An installation goes on without
what cannot be compiled; `setup.py build_ext --inplace`, which scripts/build-speedups runs, fails.
"""

import os
import platform
import runpy
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FOLDER = Path("src/pyromq/speedups")
# For any processor of the platform: a wheel goes elsewhere, so never -march=native.
# `char` is signed on x86-64 and unsigned on arm64; -fsigned-char makes one of it.
FLAGS = "-O2 -g0 -fno-strict-aliasing -fsigned-char"


class BuildExtensions(build_ext):
    """Notes what was compiled in a checkout, so that a start notices compiled parts of older sources."""

    def run(self):
        super().run()
        if self.inplace and self.extensions:
            runpy.run_path(str(FOLDER / "compiled_from.py"))["note"]()


def extensions():
    if os.environ.get("PYROMQ_PURE", "0") not in ("", "0") or platform.python_implementation() != "CPython":
        return []
    if sys.platform != "linux":  # epoll, sync_file_range and MADV_POPULATE_WRITE: elsewhere everything is plain Python
        return []
    try:
        from Cython.Build import cythonize
        from Cython.Compiler.Errors import CompileError
    except ImportError:  # an installation without build isolation, and without Cython
        return []
    name_a_compiler()
    flags = os.environ.get("PYROMQ_CFLAGS", FLAGS).split()
    in_place = "--inplace" in sys.argv
    units = [
        Extension(
            f"pyromq.speedups.{source.stem}",
            [str(source)],
            depends=[str(header) for header in FOLDER.glob("c/*.h")],
            include_dirs=[str(FOLDER / "c")],
            extra_compile_args=flags,
            extra_link_args=[flag for flag in flags if flag.startswith("-fsanitize")],
        )
        for source in sorted(FOLDER.glob("*.pyx"))
    ]
    try:
        units = cythonize(units, build_dir="build", include_path=["src"], compiler_directives={"language_level": 3})
    except CompileError:  # Cython has printed it; a later Cython may refuse what this one takes
        if in_place:
            raise
        return []
    for unit in units:  # Cython makes others than it is given, and forgets this
        unit.optional = not in_place
    return units


def drop_outdated():
    """Delete what an earlier installation compiled of older sources: if compiling fails now, it would be installed."""
    newest = max(path.stat().st_mtime for path in FOLDER.rglob("*") if path.suffix in (".pyx", ".pxd", ".h"))
    for compiled in Path("build").glob("lib*/pyromq/speedups/*.so"):
        if compiled.stat().st_mtime < newest:
            compiled.unlink()


def name_a_compiler():
    """Take `cc` where the compiler that made this Python is not there, as with Pythons that were built elsewhere."""
    own = (sysconfig.get_config_var("CC") or "").split()
    if own and not shutil.which(own[0]) and shutil.which("cc"):
        os.environ.setdefault("CC", "cc")


drop_outdated()
setup(ext_modules=extensions(), cmdclass={"build_ext": BuildExtensions})
