"""Outside `pyromq.platforms`, the sources use only what every system has: read from the syntax trees.

Methods of objects, such as `socket.sendmsg`, have no module's name before them: `make check` has mypy look at these.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest
from tests.platforms.availability import MISSING, MODULES, names

from pyromq.platforms import linux, macos, posix, windows

ROOT = Path(__file__).parents[2]
OWN = {"darwin": "macos.py", "win32": "windows.py", "linux": "linux.py"}
FOLDERS_OF_LINUX = ("/proc", "/sys/", "/dev/shm")


def sources(folder: str = "src/pyromq", *, beside: str = "") -> list[Path]:
    """Return the modules that all systems share, and the one of a system."""
    paths = sorted((ROOT / folder).rglob("*.py"))
    return [path for path in paths if path.parent.name != "platforms" or path.name == beside]


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


def wrong_names(path: Path, platform: str) -> list[str]:
    nodes = nodes_of(path)
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    used = [
        (node.value.id, node.attr)
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in imported
    ]
    used += [
        (node.module or "", alias.name) for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names
    ]
    wrong = [f"{module}.{name}" for module, name in used if module in MODULES and name not in names(module, platform)]
    modules = imported | {module for module, _ in used}
    return [f"{path.name}: {name}" for name in wrong + sorted(modules & MISSING[platform])]


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_the_shared_sources_use_only_names_of_a_platform(platform):
    wrong = [name for path in sources(beside=OWN[platform]) for name in wrong_names(path, platform)]
    assert wrong == []


@pytest.mark.parametrize("module", [macos, windows])
def test_each_system_has_the_names_of_linux(module):
    shared = {name for name in vars(linux) if not name.startswith("_") and _is_ours(getattr(linux, name))}
    assert shared >= {"sync", "port_owner", "on_stop_signals"}
    assert {name for name in {*shared, *posix.__all__} if not hasattr(module, name)} == set()


def _is_ours(thing: object) -> bool:
    return callable(thing) and str(thing.__module__).startswith("pyromq")


def test_macos_and_linux_share_only_names_of_both():
    shared = ROOT / "src/pyromq/platforms/posix.py"
    assert wrong_names(shared, "darwin") == wrong_names(shared, "linux") == []


def test_examples_and_the_demo_run_on_macos_too():
    paths = [*sources("examples"), *sources("demo")]
    assert paths
    assert [name for path in paths for name in wrong_names(path, "darwin")] == []


@pytest.mark.parametrize(
    ("line", "platform"),
    [
        ("import fcntl, os; fcntl.fcntl(1, fcntl.F_OFD_SETLK, b'')", "darwin"),
        ("import os; os.preadv(1, [], 0, os.RWF_NOWAIT)", "darwin"),
        ("import os; os.posix_fadvise(1, 0, 0, 0)", "darwin"),
        ("import os; os.posix_fallocate(1, 0, 0)", "darwin"),
        ("import os; os.fdatasync(1)", "darwin"),
        ("import os; os.eventfd(1)", "darwin"),
        ("import os; os.sched_setaffinity(0, [1])", "darwin"),
        ("from os import memfd_create", "darwin"),
        ("import select; select.epoll()", "darwin"),
        ("from selectors import EpollSelector", "darwin"),
        ("import socket; socket.SO_INCOMING_CPU", "darwin"),
        ("import socket; socket.TCP_INFO", "darwin"),
        ("import socket; socket.TCP_QUICKACK", "darwin"),
        ("import time; time.clock_gettime(time.CLOCK_BOOTTIME)", "darwin"),
        ("import mmap; mmap.MADV_HUGEPAGE", "darwin"),
        ("import resource; resource.prlimit(0, 1)", "darwin"),
        ("import signal; signal.pidfd_send_signal(1, 2)", "darwin"),
        ("import os; os.fork()", "win32"),
        ("import os; os.register_at_fork()", "win32"),
        ("import os; os.pread(1, 2, 3)", "win32"),
        ("import os; os.sysconf('SC_PAGE_SIZE')", "win32"),
        ("import select; select.poll()", "win32"),
        ("import signal; signal.SIGHUP", "win32"),
        ("import time; time.clock_gettime(1)", "win32"),
        ("import fcntl", "win32"),
        ("import resource", "win32"),
        ("def late():\n    from resource import getrlimit", "win32"),
        ("import termios", "win32"),
    ],
)
def test_a_name_that_a_platform_has_not_is_found(line, platform, tmp_path):
    path = tmp_path / "module.py"
    path.write_text(line)
    assert wrong_names(path, platform)


def test_files_of_the_kernel_are_named_in_the_module_of_linux_only():
    wrong = [
        f"{path.name}: {node.value}"
        for path in sources()
        for node in nodes_of(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(FOLDERS_OF_LINUX)
    ]
    assert wrong == []


def test_only_the_package_of_platforms_asks_which_system_this_is():
    asked = {"sys.platform", "os.name", "platform.system()", "os.uname()"}
    wrong = [
        f"{path.name}: {found}"
        for path in sources()
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute | ast.Call) and (found := ast.unparse(node)) in asked
    ]
    assert wrong == []


def lines_without_encoding(path: Path) -> list[str]:
    """Return the calls that read or write text in the encoding of the system, which is not UTF-8 everywhere."""
    calls = [node for node in nodes_of(path) if isinstance(node, ast.Call)]
    return [f"{path.name}:{call.lineno}: {ast.unparse(call)}" for call in calls if _is_without_encoding(call)]


def _is_without_encoding(call: ast.Call) -> bool:
    named = {each.arg for each in call.keywords}
    match call.func:
        case ast.Attribute(attr="read_text"):
            return "encoding" not in named and not call.args
        case ast.Attribute(attr="write_text", value=owner) if ast.unparse(owner) != "super()":
            return "encoding" not in named and len(call.args) < 2
        case ast.Name(id="open") | ast.Attribute(attr="open" | "fdopen"):
            modes = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            return "encoding" not in named and any(mode and set(mode) <= set("rwax+t") for mode in modes)
        case ast.Attribute(attr="run" | "Popen" | "check_output"):
            return bool(named & {"text", "universal_newlines"}) and "encoding" not in named
    return False


def test_text_files_have_the_same_encoding_on_every_system():
    assert [line for path in sources() for line in lines_without_encoding(path)] == []


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ("path.read_text()", True),
        ("path.read_text('utf-8')", False),
        ("Path(name).write_text(text)", True),
        ("path.write_text(text, encoding='utf-8')", False),
        ("super().write_text(text)", False),
        ("open(name, 'w')", True),
        ("path.open('a', newline='')", True),
        ("path.open('rb')", False),
        ("store.open()", False),
        ("os.open(name, flags)", False),
        ("subprocess.run(['ls'], text=True)", True),
        ("subprocess.run(['ls'])", False),
    ],
)
def test_text_without_an_encoding_is_found(line, is_found, tmp_path):
    path = tmp_path / "module.py"
    path.write_text(line)
    assert bool(lines_without_encoding(path)) == is_found
