"""How full a disk is; it knows nothing of what lies there."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple


class DiskUse(NamedTuple):
    """The disk that holds `path`, in bytes. `free` is what processes of ordinary users can have."""

    path: Path
    used: int
    free: int

    @property
    def percent(self) -> int:
        """As `df` says it: rounded up. Source: RocketMQ 4.9.8, UtilAll.getDiskPartitionSpaceUsedPercent."""
        return -(-self.used * 100 // max(self.used + self.free, 1))


def measured(path: Path) -> DiskUse:
    """Ask the file system; one short system call. Raises `OSError`."""
    usage = shutil.disk_usage(path)
    return DiskUse(path, usage.used, usage.free)


def around(folder: Path) -> tuple[int, int, int]:
    """Return bytes in all, used and free of the disk where a folder is; or was: then of the folder above."""
    return shutil.disk_usage(next(each for each in (folder, *folder.absolute().parents) if each.is_dir()))
