"""Optional packages: whether they are installed, and the command that installs an extra, for example `console`."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec


@contextmanager
def packages_of(extra: str, needed_by: str) -> Iterator[None]:
    """Name the install command in the `ModuleNotFoundError` of imports inside this context."""
    try:
        yield
    except ModuleNotFoundError as missing:
        package = (missing.name or "pyromq").partition(".")[0]
        if package == "pyromq":
            raise
        command = install_command(extra)
        text = f"{needed_by} needs package {package}, which is not installed; to install it: {command}"
        raise ModuleNotFoundError(text, name=missing.name) from missing


def is_installed(*modules: str) -> bool:
    """Return whether all these modules can be imported, without importing them."""
    try:
        return all(find_spec(name) is not None for name in modules)
    except ModuleNotFoundError:  # the package of a module is missing
        return False


def install_command(extra: str) -> str:
    """Return a command that installs the packages of an extra into this Python.

    The command names the packages, not pyromq itself, and so works wherever pyromq was installed from.
    """
    from importlib.metadata import PackageNotFoundError, requires  # a tenth of a command's start, for errors only

    try:
        needed = [text for text in requires("pyromq") or () if re.search(rf"extra == ['\"]{extra}['\"]", text)]
    except PackageNotFoundError:  # an unpacked source, or a zip that Spark's workers import
        needed = []
    packages = [text.partition(";")[0].strip() for text in needed] or [f"pyromq[{extra}]"]
    return shlex.join([sys.executable, "-m", "pip", "install", *packages])
