"""Who listens on a port: read from /proc, best effort, so that an error can name the program in the way."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_LISTEN = "0A"  # state column of /proc/net/tcp


def port_owner(port: int) -> str | None:
    """Return `name (pid N)` of the process that listens on the port; None if unknown or not ours to see."""
    try:
        inodes = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
        for process in Path("/proc").iterdir():
            if process.name.isdigit() and inodes & _open_files(process):
                name = (process / "comm").read_text().strip()
                return f"{name} (pid {process.name})"
    except OSError:
        return None
    return None


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        path = Path(table)
        if not path.exists():
            continue
        for line in path.read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == _LISTEN and int(columns[1].rpartition(":")[2], 16) == port:
                yield columns[9]


def _open_files(process: Path) -> set[str]:
    try:
        links = list((process / "fd").iterdir())
    except OSError:  # another user's process, or one that just ended
        return set()
    return {target for link in links if (target := _target(link)) is not None}


def _target(link: Path) -> str | None:
    try:
        return os.readlink(link)  # noqa: PTH115  Path.readlink builds a Path
    except OSError:  # closed meanwhile, as the one that has just read this very folder
        return None
