"""What of files is in memory, and having it there: the system's calls that tell, and that hold nobody up.

They release the interpreter's lock. Where a system does not have them, everything counts as being in memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
from collections.abc import Sequence

from pyromq.store.addresses import stretches
from pyromq.store.looking import FilePiece

_MADV_POPULATE_READ = 22  # Linux 5.14; others answer EINVAL
_PIECE = 1 << 20  # bytes of a file read at once
_libc = ctypes.CDLL(None, use_errno=True)
_advise = _libc.madvise
_advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_compare = _libc.memcmp
_compare.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_in_core = _libc.mincore
_in_core.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


def is_loaded(views: Sequence[memoryview]) -> bool:
    """Whether all pages of these views of mapped files are in memory."""
    return all(_is_resident(start, size) for start, size in stretches(views))


def read_now(descriptor: int, size: int, position: int) -> bytes | None:
    """Read so many bytes of a file if they are in memory; None where they are not, or the file ends before."""
    content = bytearray(size)
    try:
        found = os.preadv(descriptor, [content], position, os.RWF_NOWAIT)
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:  # what some file systems say, those in memory among them
            raise
        found = os.preadv(descriptor, [content], position)
    return bytes(content) if found == size else None


def load(unread: Sequence[memoryview | FilePiece]) -> None:
    """Have views of mapped files, and pieces of others, in memory."""
    for piece in unread:
        if isinstance(piece, FilePiece):
            with contextlib.suppress(OSError):  # who reads it next is told
                _read_through(piece)
    for start, size in stretches([each for each in unread if isinstance(each, memoryview)]):
        if _advise(start, size, _MADV_POPULATE_READ) != 0 and ctypes.get_errno() == errno.EINVAL:
            _compare(start, start, size)  # which touches all of it


def _is_resident(start: int, size: int) -> bool:
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    return bool(_in_core(start, size, pages) != 0 or 0 not in bytes(pages))


def _read_through(piece: FilePiece) -> None:
    descriptor = os.open(piece.path, os.O_RDONLY)
    try:
        end = piece.position + piece.size
        for position in range(piece.position, end, _PIECE):
            os.pread(descriptor, min(_PIECE, end - position), position)
    finally:
        os.close(descriptor)
