"""Small files that are always replaced as a whole. A checksum precedes the content.

checked file   CRC-32 of the content as 8 hexadecimal digits, a newline, then the content
"""

from __future__ import annotations

import zlib
from pathlib import Path

from pyromq.errors import StoreCorrupt
from pyromq.store.disk import Disk, path_beside, read_file, write_file

_CRC_BYTES = 9  # the checksum and its newline


def read_checked(disk: Disk, path: Path) -> bytes | None:
    """Return the content of a checked file; None if the file does not exist.

    Raises `StoreCorrupt` if checksum and content do not match.
    """
    stored = read_file(disk, path)
    if stored is None:
        return None
    crc, content = stored[:_CRC_BYTES], stored[_CRC_BYTES:]
    if crc != _crc(content):
        raise StoreCorrupt(f"{path} is damaged (wrong checksum)")
    return content


def replace_checked(disk: Disk, path: Path, content: bytes) -> None:
    """Replace a checked file durably: a crash leaves the earlier content or this content. Raises `OSError`."""
    beside = path_beside(path, ".tmp")
    write_file(disk, beside, _crc(content) + content)
    disk.replace(beside, path)
    disk.sync_folder(path.parent)


def _crc(content: bytes) -> bytes:
    return b"%08x\n" % zlib.crc32(content)
