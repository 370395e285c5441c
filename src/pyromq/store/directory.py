"""The store's data folder: its paths, its lock, and whether the last broker stopped cleanly.

    lock    byte 0 is exclusively locked while a store is open; content `lock`
    abort   exists while a store is open: if a start finds the file, the last broker crashed
    format  a checked file (see `checked_file`): the number `FORMAT` of the version that wrote the folder, and a newline

RocketMQ has no `format`, and ignores the file. Different from RocketMQ, `abort` holds process id and boot id.
Source: RocketMQ 4.9.8, DefaultMessageStore.start and isTempFileExist.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from pyromq.errors import StoreCorrupt, StoreLocked, StoreNotWritable, StoreTooNew, UsageError
from pyromq.logs import logger_of
from pyromq.platforms import platform
from pyromq.store.checked_file import read_checked, replace_checked
from pyromq.store.disk import (
    LOCAL_DISK,
    Disk,
    is_full,
    make_durable_folder,
    read_file,
    remove_file,
    start_advice,
    write_file,
)

logger = logger_of(__name__)

# Raised only if earlier versions would misread files that are not RocketMQ's: timers, pops, queues, epochs, batches.
FORMAT = 1
_UNFLUSHED = "unflushed"


def read_format(disk: Disk, root: Path) -> int:
    """Return the format of a folder's own files; 0 for a folder of Java's brokers. Raises `StoreTooNew`."""
    path = root / "format"
    try:
        number = int((read_checked(disk, path) or b"0").split()[0])
    except StoreCorrupt as error:
        logger.warning("%s; the folder is taken for one of this version", error)
        return 0
    if number > FORMAT:
        raise StoreTooNew(
            f"data folder {root} was written by a newer pyromq: {path} says format {number}, and this version reads up"
            f" to {FORMAT}; start a newer version, or restore the copy that was made before the upgrade"
        )
    return number


def read_abort(disk: Disk, path: Path) -> tuple[bool, bool]:
    """Return `Directory.crashed` and `Directory.same_boot` from the file `abort`."""
    content = read_file(disk, path)
    words = (content or b"").split()
    known = len(words) > 1 and words[1] == disk.boot_id().encode() != b"unknown"
    return content is not None, known and _UNFLUSHED.encode() not in words


def check_platform() -> None:
    """Raise `UsageError` on a system that has no stores, and so no servers."""
    if platform.MISSING_FOR_SERVERS:
        raise UsageError(platform.MISSING_FOR_SERVERS)


class Directory:
    """The paths of one data folder. `lock` sets `crashed` and `same_boot`.

    `crashed`: the last broker did not stop cleanly. `same_boot`: the machine has not restarted since, and no flush had
    failed, so everything that broker had written exists.
    """

    def __init__(self, root: Path, disk: Disk = LOCAL_DISK) -> None:
        self.root = root
        self._disk = disk
        self.consume_queues = root / "consumequeue"
        self.index = root / "index"
        self.config = root / "config"
        self.timers = root / "timers"
        self.checkpoint = root / "checkpoint"
        self.crashed = False
        self.same_boot = False
        self._format = 0
        self._abort = root / "abort"
        self.lock_file = root / "lock"
        self._descriptor: int | None = None

    def lock(self) -> None:
        """Lock the folder, unless it is locked; create the folder if necessary.

        Raises `StoreLocked` with the process that holds the lock, `StoreTooNew` and `StoreNotWritable`.
        """
        if self._descriptor is not None:
            return
        check_platform()
        try:
            make_durable_folder(self._disk, self.root)
            descriptor = self._disk.open(self.lock_file, create=True)
        except OSError as error:
            raise StoreNotWritable(
                f"cannot write to data folder {self.root}: {error.strerror}; {start_advice(error)}"
            ) from error
        try:
            self._disk.lock(descriptor)
        except OSError as error:
            holder = self._holder(descriptor)
            self._disk.close(descriptor)
            raise StoreLocked(
                f"data folder {self.root} is in use{holder}; stop that broker or choose another folder"
            ) from error
        self._descriptor = descriptor
        self._disk.write(descriptor, b"lock", 0)
        self._format = read_format(self._disk, self.root)
        self.crashed, self.same_boot = read_abort(self._disk, self._abort)

    def _holder(self, descriptor: int) -> str:
        """Return " by process N" for the process that holds the lock; "" if unknown.

        The system knows the process of a Java broker's lock. The file `abort` names the process of a pyromq broker.
        """
        pid = self._disk.lock_holder(descriptor)
        if not pid:
            with contextlib.suppress(OSError, ValueError, IndexError):
                pid = int((read_file(self._disk, self._abort) or b"").split()[0])
        return f" by process {pid}" if pid > 0 else ""

    def mark_open(self) -> None:
        """Create the file `abort`, so that the next start detects a crash, and note the format.

        On a full disk `abort` stays empty: after a crash the next start then trusts only flushed data.
        """
        if self._format < FORMAT:
            replace_checked(self._disk, self.root / "format", b"%d\n" % FORMAT)
        try:
            self._write_abort("")
        except OSError as error:
            if not is_full(error) or self._disk.size(self._abort) is None:
                raise
        self._disk.sync_folder(self.root)

    def mark_unflushed(self) -> None:
        """Write into the file `abort` that a flush failed. The next start must not trust unflushed data.

        Does nothing if another folder has replaced this folder.
        """
        with contextlib.suppress(OSError):
            if self._descriptor is not None and self._disk.is_at(self._descriptor, self.lock_file):
                self._write_abort(_UNFLUSHED)

    def _write_abort(self, word: str) -> None:
        write_file(self._disk, self._abort, f"{os.getpid()} {self._disk.boot_id()} {word}\n".encode())

    def mark_closed(self) -> None:
        """Delete the file `abort`, so that the next start is clean. All data must be on disk before."""
        remove_file(self._disk, self._abort)
        self._disk.sync_folder(self.root)

    def unlock(self) -> None:
        if self._descriptor is not None:
            self._disk.close(self._descriptor)
            self._descriptor = None
