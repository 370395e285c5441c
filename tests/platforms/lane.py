"""Runs pyromq on Linux with the standard library of another system, for tests; `scripts/names-of` starts a process so.

Modules of pyromq that import `os`, `socket` and the others of `availability.MODULES` get only the names that the other
system has, and cannot import what is missing there. The standard library itself, tests and other packages keep Linux.
What only the other system has (F_FULLFSYNC, its layout of a lock) is acted by Linux here. This does not show how the
other system behaves: that event queues, file systems or signals of macOS and Windows do as documented.
"""

from __future__ import annotations

import builtins
import ctypes
import fcntl
import os
import struct
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from tests.platforms.availability import MISSING, MODULES, names

PLATFORM, LOOP, SERVERS_TOO = "PYROMQ_TEST_PLATFORM", "PYROMQ_TEST_LOOP", "PYROMQ_TEST_SERVERS"
# Windows runs clients, command line and console. With `SERVERS_TOO`, servers run in their process as on Linux.
SERVERS = (
    *("broker", "nameserver", "store", "net.server", "net.listening", "net.tls", "metrics.endpoint", "testing"),
    *("proxy", "cli.run_servers"),
)
OF_LINUX = ("pyromq.platforms.linux", "pyromq.platforms.posix")  # loaded on Windows for servers only
F_FULLFSYNC, F_PREALLOCATE = 51, 42
calls: list[int] = []  # fcntl commands of macOS that were acted


class Restricted(ModuleType):
    """A module with the names of another system. `more` replaces or adds some."""

    def __init__(self, real: ModuleType, platform: str, more: dict[str, Any]) -> None:
        super().__init__(real.__name__)
        self._real, self._platform, self._more = real, platform, more
        self._names = names(real.__name__, platform)

    def __getattr__(self, name: str) -> Any:
        if name not in self._names and not name.startswith("__"):
            raise AttributeError(f"{self._real.__name__}.{name} is not there on {self._platform}")
        return self._more[name] if name in self._more else getattr(self._real, name)


def install(platform: str, *, proactor: bool = False) -> None:
    """Give pyromq the standard library of `platform`, darwin or win32, from now on. Spark is not there.

    `proactor`: event loops have no readers, as Windows's usual one.
    """
    assert not any(name.startswith("pyromq.") for name in sys.modules), "pyromq is loaded already"
    more: dict[str, dict[str, Any]] = {"fcntl": {"fcntl": _fcntl_of_macos}} if platform == "darwin" else {}
    modules: dict[str, Any] = {
        name: Restricted(import_module(name), platform, more.get(name, {}))
        for name in MODULES
        if name not in MISSING[platform]
    }
    genuine = builtins.__import__

    def restricted(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        if name.partition(".")[0] == "pyspark":
            raise ModuleNotFoundError("no Spark in this lane", name=name)
        importer = str((globals or {}).get("__name__", ""))
        if importer == "pyromq.platforms" and name == "sys":
            return SimpleNamespace(platform=platform)
        servers = platform == "win32" and not is_restricted(importer, platform)
        if servers and name == "pyromq.platforms" and "platform" in (fromlist or ()):
            return SimpleNamespace(platform=import_module("pyromq.platforms.linux"))
        if level == 0 and is_restricted(importer, platform):
            if name.partition(".")[0] in MISSING[platform]:
                raise ModuleNotFoundError(f"No module named {name!r} on {platform}", name=name)
            if name in modules:
                return modules[name]
        found = genuine(name, globals, locals, fromlist, level)
        if importer == name == "pyromq.platforms" and "macos" in (fromlist or ()):
            _act_macos(found.macos)
        return found

    builtins.__import__ = restricted
    if platform == "win32":
        _use_loops_of_windows(proactor=proactor)


def is_restricted(importer: str, platform: str) -> bool:
    if not importer.startswith("pyromq.") or (platform == "win32" and importer in OF_LINUX):
        return False
    inner = importer.removeprefix("pyromq.")
    servers = platform == "win32" and os.environ.get(SERVERS_TOO)
    return not servers or not any(inner == each or inner.startswith(f"{each}.") for each in SERVERS)


def _use_loops_of_windows(*, proactor: bool) -> None:
    """Make usual event loops refuse pyromq what those of Windows do not have."""
    import asyncio

    missing = {"add_signal_handler", "remove_signal_handler"}
    if proactor:
        missing |= {"add_reader", "remove_reader", "add_writer", "remove_writer"}

    def refusing(name: str) -> Any:
        genuine = getattr(asyncio.SelectorEventLoop, name)

        def method(loop: Any, *given: Any) -> Any:
            if is_restricted(sys._getframe(1).f_globals.get("__name__", ""), "win32"):
                raise NotImplementedError(name)
            return genuine(loop, *given)

        return method

    class LoopOfWindows(asyncio.SelectorEventLoop):
        pass

    for name in missing:
        setattr(LoopOfWindows, name, refusing(name))
    setattr(type(asyncio.get_event_loop_policy()), "_loop_factory", LoopOfWindows)  # noqa: B010


def _act_macos(macos: Any) -> None:
    """Give the module of macOS what it takes of Apple's C library."""
    flush, boot_id = macos._flush_pages, Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()

    def flush_pages(address: int, size: int, flags: int) -> int:
        assert flags == 0x10  # MS_SYNC there
        return int(flush(address, size, 4))  # MS_SYNC here

    def sysctlbyname(name: bytes, content: Any, size: Any, *_: object) -> int:
        assert name == b"kern.bootsessionuuid"
        ctypes.memmove(content, boot_id + b"\0", len(boot_id) + 1)
        return 0

    macos._flush_pages = flush_pages
    macos.libc = SimpleNamespace(sysctlbyname=sysctlbyname)


def _fcntl_of_macos(descriptor: int, command: int, argument: Any = 0) -> Any:
    if command == F_FULLFSYNC:
        calls.append(command)
        os.fsync(descriptor)
        return 0
    if command == F_PREALLOCATE:
        calls.append(command)
        flags, mode, offset, length, _ = struct.unpack("Iiqqq", argument)
        assert (flags, mode, offset) == (4, 3, 0)
        assert length > 0
        return argument
    if command == fcntl.F_GETLK:
        start, length, pid, kind, whence = struct.unpack("qqihh", argument)
        found = fcntl.fcntl(descriptor, command, struct.pack("hhqqi4x", kind, whence, start, length, pid))
        kind, whence, start, length, pid = struct.unpack("hhqqi4x", found)
        return struct.pack("qqihh", start, length, pid, kind, whence)
    return fcntl.fcntl(descriptor, command, argument)
