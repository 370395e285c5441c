"""The names of files that a power loss may bring back, take away, or lead to an earlier file: Linux only.

A name is on disk after a sync of its folder. The content of files is not looked at.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

only_on_linux = pytest.mark.skipif(sys.platform != "linux", reason="names of open folders are read from /proc")


class SyncedNames:
    """Watches the syncs of folders, and remembers which names each folder had then."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root = root
        self._synced = {folder: _names(folder) for folder in _folders(root)}
        sync = os.fsync

        def synced(descriptor: int) -> None:
            sync(descriptor)
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                folder = Path(f"/proc/self/fd/{descriptor}").readlink()
                self._synced[folder] = _names(folder)

        monkeypatch.setattr(os, "fsync", synced)

    def missing(self) -> set[str]:
        """Return the paths below the root that were created, deleted or replaced since their folder's last sync."""
        changed = set()
        for folder in _folders(self._root):
            found, synced = _names(folder), self._synced.get(folder, {})
            changed |= {folder / name for name in found.keys() | synced.keys() if found.get(name) != synced.get(name)}
        return {str(path.relative_to(self._root)) for path in changed}


def _folders(root: Path) -> list[Path]:
    return [root, *(path for path in root.rglob("*") if path.is_dir())]


def _names(folder: Path) -> dict[str, int]:
    return {path.name: path.lstat().st_ino for path in folder.iterdir()}
