"""Optional packages: the command that installs the packages of an extra, for example `console`."""

from __future__ import annotations

import re
import shlex
import sys


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
