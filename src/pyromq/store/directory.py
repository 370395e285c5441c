"""The store's folder: where things lie in it, who holds it, and whether its last user left in order.

    lock    byte 0 exclusively locked while a store is open; content `lock`
    abort   exists while a store is open; found at the start = the last user crashed. Ours holds process id and boot id.

Source: RocketMQ 4.9.8, DefaultMessageStore.start and isTempFileExist.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import struct
from pathlib import Path

from pyromq.errors import StoreLocked, StoreNotWritable
from pyromq.store.json_file import sync_folder

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_FLOCK = struct.Struct("hhqqi4x")  # struct flock: type, whence, start, length, pid


class Directory:
    """Paths of one store folder; `crashed` and `same_boot` tell about its last user once it is locked.

    `same_boot`: the last user crashed, but the machine did not, so everything it had written is there.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.consume_queues = root / "consumequeue"
        self.index = root / "index"
        self.config = root / "config"
        self.checkpoint = root / "checkpoint"
        self.crashed = False
        self.same_boot = False
        self._abort = root / "abort"
        self._lock_file = root / "lock"
        self._descriptor: int | None = None

    def lock(self) -> None:
        """Take the folder, making it if absent. Raises `StoreLocked` naming the holder, `StoreNotWritable`."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._lock_file, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StoreNotWritable(
                f"cannot write to data folder {self.root}: {error.strerror}; choose another folder or its permissions"
            ) from error
        try:
            # Bound to this open file, not to the process: two stores in one process exclude each other as well.
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
        except OSError as error:
            holder = self._holder(descriptor)
            os.close(descriptor)
            raise StoreLocked(
                f"data folder {self.root} is in use{holder}; stop that broker or choose another folder"
            ) from error
        os.pwrite(descriptor, b"lock", 0)
        self._descriptor = descriptor
        self._look_back()

    def _holder(self, descriptor: int) -> str:
        """A Java broker's lock tells its process; ours is written into the abort marker."""
        query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, query))[4]
        if pid <= 0:
            with contextlib.suppress(OSError, ValueError, IndexError):
                pid = int(self._abort.read_text().split()[0])
        return f" by process {pid}" if pid > 0 else ""

    def _look_back(self) -> None:
        try:
            words = self._abort.read_text().split()
        except FileNotFoundError:
            return
        self.crashed = True
        self.same_boot = len(words) > 1 and words[1] == _boot_id()

    def mark_open(self) -> None:
        """From here on a crash will be noticed."""
        self._abort.write_text(f"{os.getpid()} {_boot_id()}\n")
        sync_folder(self.root)

    def mark_closed(self) -> None:
        """Everything is on disk: the next start is a clean one."""
        self._abort.unlink(missing_ok=True)
        sync_folder(self.root)

    def unlock(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def remove_folder(folder: Path) -> None:
    """Delete a folder with all its files; views of mapped ones stay valid."""
    shutil.rmtree(folder, ignore_errors=True)


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return "unknown"
