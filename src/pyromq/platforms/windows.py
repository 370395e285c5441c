"""Windows: what clients, the command line and the console need; no mapped files, no locks, no forks.

Functions that only brokers and name servers use raise `OSError`.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

MISSING_FOR_SERVERS = (
    "brokers and name servers need Linux or macOS, and this is Windows: run them in WSL, in a container or on another "
    "machine; clients, command line and console work here"
)
LONGEST_SELECT: float | None = 0.2  # seconds after which `select` must return, as Ctrl-C does not interrupt it

_MAX_DESCRIPTORS = 512  # sockets in one `select`
_READER_CHECK_SECONDS = 1.0

HAS_COMPILED_PARTS = False
O_BINARY = 0x8000  # as `os.O_BINARY`: no change of line ends
sync = os.fsync
close = os.close


def _refuse(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSYS, MISSING_FOR_SERVERS)


# Only servers and the check of a stopped store use these.
allocate = map_file = populate = drop_pages = is_resident = read_now = load = next_data = next_hole = _refuse
lock = lock_holder = boot_id = memory_bytes = may_still_send = _refuse


def sync_folder(folder: Path) -> None:
    """Do nothing: Windows cannot flush a folder."""


def read(descriptor: int, size: int, position: int) -> bytes:
    """Return bytes from a file position on. One thread only: moves the position of the open file."""
    os.lseek(descriptor, position, os.SEEK_SET)
    return os.read(descriptor, size)


def write(descriptor: int, content: bytes | bytearray | memoryview, position: int) -> int:
    """Write bytes at a file position; return how many. One thread only: moves the position of the open file."""
    os.lseek(descriptor, position, os.SEEK_SET)
    return os.write(descriptor, content)


def file_name(text: str) -> str:
    """Return a string as the name of a file or folder. Characters that Windows forbids are escaped: ":" is "%3A"."""
    return re.sub(r'[<>:"|?*\\]|[. ]$', lambda found: f"%{ord(found[0]):02X}", text)


def after_fork(*, after_in_child: Callable[[], object]) -> None:
    """Do nothing: processes are not forked."""


def boot_seconds() -> float:
    return time.monotonic()


def process_age() -> float | None:
    return None


def resident_bytes() -> int | None:
    return None


def open_descriptors() -> int | None:
    return None


def descriptor_limit() -> int:
    """Return how many sockets an event loop can serve."""
    return _MAX_DESCRIPTORS


def mapping_limit() -> int:
    """Return a number above the needs of any client."""
    return 65_530


def raise_descriptor_limit() -> None:
    pass


def port_owner(port: int) -> str | None:
    return None


def on_stop_signals(act: Callable[[], object]) -> Callable[[], None]:
    """Let Ctrl-C and SIGTERM call `act` in the running event loop, soon. Return a function that ends this."""
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)

    def handle(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(act)

    before: list[Any] = [signal.signal(number, handle) for number in numbers]
    waking = _wake_for_signals(loop)

    def end() -> None:
        waking.cancel()
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)

    return end


def _wake_for_signals(loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
    """Let the event loop wake up often: a signal's handler runs only between two steps of the loop."""

    async def wake() -> None:
        while True:
            await asyncio.sleep(LONGEST_SELECT or 0.0)

    return loop.create_task(wake(), name="wake up for signals")


def wait_for_reader_gone(descriptor: int, is_over: Callable[[], bool]) -> bool:
    """Block until `is_over` returns True, and return False: only the next write shows that the reader is closed."""
    while not is_over():
        time.sleep(_READER_CHECK_SECONDS)
    return False
