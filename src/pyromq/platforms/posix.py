"""Code for Linux and macOS, but not Windows: mapped files, descriptors, signals of the event loop.

Mapping uses system calls that release Python's interpreter lock (GIL). Each `mmap` object of Python keeps a file
descriptor, which a store with thousands of queues would exhaust.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import mmap
import os
import resource
import select
import signal
import sys
import weakref
from collections.abc import Callable

# Names that the modules of both systems export unchanged. These modules wrap the other functions of this module.
__all__ = [
    "LONGEST_SELECT",
    "MISSING_FOR_SERVERS",
    "O_BINARY",
    "after_fork",
    "descriptor_limit",
    "file_name",
    "memory_bytes",
    "next_data",
    "next_hole",
    "on_stop_signals",
    "read",
    "wait_for_reader_gone",
    "write",
]

MISSING_FOR_SERVERS = ""  # reason why servers do not run on this system
O_BINARY = 0
LONGEST_SELECT: float | None = None  # seconds after which `select` must return; here signals interrupt it

_FAILED = ctypes.c_void_p(-1).value  # address that a failed mmap returns
_WATCH_MS = 1000  # longest delay until `wait_for_reader_gone` ends; a closed pipe wakes it immediately

libc = ctypes.CDLL(None, use_errno=True)
_map = libc.mmap
_map.restype = ctypes.c_void_p
_map.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_unmap = libc.munmap
_unmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)

read = os.pread
write = os.pwrite
after_fork = os.register_at_fork


def map_file(descriptor: int, size: int, *, write: bool) -> memoryview:
    """Map a file into memory until the last view of the mapping is deleted. Raises `OSError`."""
    protection = mmap.PROT_READ | mmap.PROT_WRITE if write else mmap.PROT_READ
    address = _map(None, size, protection, mmap.MAP_SHARED, descriptor, 0)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    content = (ctypes.c_ubyte * size).from_address(address)
    # No unmapping at the interpreter's exit: a thread may still write, and the end of the process unmaps.
    weakref.finalize(content, _unmap, address, size).atexit = False
    memory = memoryview(content).cast("B")  # `memory.obj` is `content`, which knows the address
    return memory if write else memory.toreadonly()


def pages(memory: memoryview, position: int, size: int) -> tuple[int, int]:
    """Return memory address and size of a range of a mapped file, extended to the beginning of the first page."""
    before = position % mmap.PAGESIZE
    return ctypes.addressof(memory.obj) + position - before, size + before  # type: ignore[arg-type]  # made by `map_file`


def next_data(descriptor: int, position: int) -> int:
    """Return the first position from `position` on that is not in a hole; 1 << 62 if only holes follow."""
    try:
        return os.lseek(descriptor, position, os.SEEK_DATA)
    except OSError as error:
        return 1 << 62 if error.errno == errno.ENXIO else position  # other errors: the file system knows no holes


def next_hole(descriptor: int, position: int) -> int | None:
    """Return where the first hole from `position` on begins; without one, the file's end. None after the end."""
    try:
        return os.lseek(descriptor, position, os.SEEK_HOLE)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        end = os.fstat(descriptor).st_size  # other errors: the file system knows no holes
        return end if position < end else None


def file_name(text: str) -> str:
    """Return a string as the name of a file or folder. The string must not contain "/"."""
    return text


def memory_bytes() -> int:
    """Return the size of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def descriptor_limit() -> int:
    """Return how many descriptors this process may open; `sys.maxsize` without a limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def on_stop_signals(act: Callable[[], object]) -> Callable[[], None]:
    """Let SIGINT and SIGTERM call `act` in the running event loop. Return a function that ends this."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, act)

    def end() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):  # a further signal has its default effect, and ends the process
            loop.remove_signal_handler(number)

    return end


def wait_for_reader_gone(descriptor: int, is_over: Callable[[], bool]) -> bool:
    """Block until the reader of a pipe has closed it; then return True. Return False once `is_over` returns True."""
    poll = select.poll()
    poll.register(descriptor, 0)  # poll always reports errors and hang-ups
    while not is_over():
        if poll.poll(_WATCH_MS):
            return True
    return False
