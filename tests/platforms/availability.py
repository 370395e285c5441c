"""Which names of the standard library an operating system has.

The table is that of typeshed, whose stubs mypy brings along: a stub says by `sys.platform` where a name exists. Where
CPython's documentation (3.14, the lines "Availability") grants less than typeshed, the documentation counts: `DENIED`.
"""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import mypy

STUBS = Path(mypy.__file__).parent / "typeshed" / "stdlib"
# Modules that differ between systems. The others of the standard library have the same names everywhere.
MODULES = ("os", "fcntl", "mmap", "select", "selectors", "socket", "time", "signal", "resource")
MISSING = {
    "darwin": {"winreg", "msvcrt", "winsound", "_winapi"},
    "win32": {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog"},
    "linux": {"winreg", "msvcrt", "winsound", "_winapi"},
}
DENIED = {
    "darwin": {"os.preadv", "os.pwritev", "fcntl.F_OFD_GETLK", "fcntl.F_OFD_SETLK", "fcntl.F_OFD_SETLKW"},
    "win32": {"socket.AF_LINK"},
    "linux": set(),
}


@cache
def names(module: str, platform: str) -> frozenset[str]:
    """Return the names that a module has on a platform; methods of its classes as `Class.method`."""
    fake = SimpleNamespace(platform=platform, version_info=sys.version_info, maxsize=sys.maxsize)
    found: set[str] = set()
    for file in (f"{module}/__init__.pyi", f"{module}.pyi", f"_{module}.pyi"):  # `_socket` has the methods of sockets
        if (STUBS / file).exists():
            found.update(_names(ast.parse((STUBS / file).read_text()).body, fake, ""))
    return frozenset(found - {name.removeprefix(f"{module}.") for name in DENIED[platform]})


def _names(body, fake, prefix):
    for node in body:
        if isinstance(node, ast.If):
            holds = eval(compile(ast.Expression(node.test), "stub", "eval"), {"sys": fake})
            yield from _names(node.body if holds else node.orelse, fake, prefix)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name
        elif isinstance(node, ast.ClassDef):
            yield prefix + node.name
            yield from _names(node.body, fake, f"{prefix}{node.name}.")
        elif isinstance(node, ast.ImportFrom | ast.Import):
            yield from (prefix + (alias.asname or alias.name) for alias in node.names)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield prefix + node.target.id
        elif isinstance(node, ast.Assign):
            yield from (prefix + target.id for target in node.targets if isinstance(target, ast.Name))
