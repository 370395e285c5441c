"""Building the compiled parts: with a compiler and without; what `make` and an archive of the sources know of them."""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from pyromq import speedups

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src/pyromq/speedups/c").glob("*.*[xdh]"))

pytestmark = pytest.mark.skipif(not (ROOT / ".venv").exists(), reason="builds as `make install` does")


def run(*command, cwd=ROOT, **environment):
    kept = {name: value for name, value in os.environ.items() if name != "PYROMQ_PURE"}
    return subprocess.run(
        [str(part) for part in command], cwd=cwd, env=kept | environment, capture_output=True, text=True
    )


@pytest.fixture
def build(tmp_path):
    """Build as an installation does, into the test's folder; gives the outcome and the units that were built."""

    def begin(*options, **environment):
        places = ("--build-lib", tmp_path / "lib", "--build-temp", tmp_path / "temp")
        done = run(sys.executable, "setup.py", "build_ext", "--force", *places, *options, **environment)
        return done.returncode, [path.name for path in (tmp_path / "lib").rglob("*.so")]

    return begin


def can_compile():
    return run("scripts/missing-compiler", sys.executable).stdout == ""


def test_where_there_is_a_compiler_the_compiled_form_runs():
    assert speedups.is_active or os.environ.get("PYROMQ_PURE") or not can_compile()


def test_an_installation_goes_on_without_what_cannot_be_compiled(build):
    assert build(CC="false") == (0, [])


def test_building_in_place_tells_what_cannot_be_compiled(build):
    code, _ = build("--inplace", CC="false")
    assert code != 0


def test_an_installation_goes_on_without_cython(build, tmp_path):
    (tmp_path / "Cython").mkdir()
    (tmp_path / "Cython" / "__init__.py").write_text("raise ImportError")
    assert build(PYTHONPATH=str(tmp_path)) == (0, [])


def test_plain_python_can_be_chosen_when_it_is_installed(build):
    assert build(PYROMQ_PURE="1") == (0, [])


def test_the_archive_of_the_sources_has_what_is_compiled_and_nothing_that_was(tmp_path):
    code = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    run(sys.executable, "-c", code, tmp_path).check_returncode()
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert {str(path.relative_to(ROOT)) for path in SOURCES} <= names
    assert [name for name in names if name.endswith((".c", ".so"))] == []


@pytest.fixture
def checkout(tmp_path):
    """A folder with the scripts, a virtual environment and a PATH on which there is next to nothing."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    shutil.copy(ROOT / "Makefile", tmp_path)
    for folder in (".venv/bin", "bin", "src/pyromq/speedups/c"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    for tool in ("dirname", "grep", "id", "make", "rm", "sh"):
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))
    return tmp_path


def test_without_a_compiler_make_says_what_to_install_and_goes_on(checkout):
    stale = checkout / "src/pyromq/speedups/codec.cpython-311-x86_64-linux-gnu.so"
    stale.write_text("")
    done = run("/bin/sh", "scripts/build-speedups", cwd=checkout, PATH=str(checkout / "bin"))
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "",
        "pyromq runs in plain Python, slower; to compile the hot path, install gcc libc6-dev and run: make install\n",
    )
    assert (checkout / ".venv/built").read_text() == "plain\n"
    assert not stale.exists()


def test_where_plain_python_is_chosen_make_builds_nothing_and_is_silent(checkout):
    done = run("/bin/sh", "scripts/build-speedups", cwd=checkout, PATH=str(checkout / "bin"), PYROMQ_PURE="1")
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    assert not (checkout / ".venv/built").exists()


@pytest.fixture
def made(checkout):
    """The checkout after `make install`: of files that were written one after the other."""
    sources = ("codec.pyx", "codec.pxd", "c/kernels.h")
    files = ("pyproject.toml", "constraints.txt", "setup.py", *(f"src/pyromq/speedups/{name}" for name in sources))
    for second, name in enumerate(
        (*files, "scripts/make-venv", ".venv/installed", "scripts/build-speedups", ".venv/built")
    ):
        (checkout / name).touch()
        os.utime(checkout / name, (second, second))
    (checkout / ".venv/built").write_text("compiled\n")
    return checkout


@pytest.mark.parametrize("changed", ["codec.pyx", "codec.pxd", "c/kernels.h"])
def test_make_builds_again_what_has_changed(made, changed):
    assert run("make", "-n", "test", cwd=made).stdout.count("scripts/build-speedups") == 0
    later = (made / ".venv/built").stat().st_mtime + 1
    os.utime(made / "src/pyromq/speedups" / changed, (later, later))
    assert run("make", "-n", "test", cwd=made).stdout.count("scripts/build-speedups") == 1


def test_make_install_looks_for_a_compiler_again_where_there_was_none(made):
    command = (shutil.which("make"), "install")
    assert run(*command, cwd=made, PATH=str(made / "bin")).stderr == ""
    (made / ".venv/built").write_text("plain\n")
    assert "install gcc libc6-dev and run: make install" in run(*command, cwd=made, PATH=str(made / "bin")).stderr
