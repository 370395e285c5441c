"""Where views of mapped files lie in memory, for system calls that take addresses. It reads none of them."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence

_STRETCH_BYTES = 1 << 20  # of memory that is loaded in one go, what lies between records included


class _Buffer(ctypes.Structure):
    """The begin of CPython's `Py_buffer`, which tells an address that is for reading only, and room for the rest."""

    _fields_ = (("address", ctypes.c_void_p), ("rest", ctypes.c_void_p * 15))


_take_buffer = ctypes.pythonapi.PyObject_GetBuffer
_take_buffer.argtypes = (ctypes.py_object, ctypes.c_void_p, ctypes.c_int)
_give_back_buffer = ctypes.pythonapi.PyBuffer_Release
_give_back_buffer.argtypes = (ctypes.c_void_p,)
_give_back_buffer.restype = None


def stretches(views: Sequence[memoryview]) -> list[tuple[int, int]]:
    """Return address and size of the pages that hold these views: in one piece those of a file that are neighbours.

    Between two mapped files there may be what is no memory at all.
    """
    found: list[tuple[int, int]] = []  # where each piece begins and ends
    before: object = None
    for view in views:
        start = address_of(view)
        end = start + len(view)
        if found and view.obj is before:
            first, last = min(found[-1][0], start), max(found[-1][1], end)
            if last - first <= _STRETCH_BYTES:
                found[-1] = first, last
                continue
        found.append((start, end))
        before = view.obj
    return [_pages(start, end - start) for start, end in found]


def address_of(view: memoryview) -> int:
    if not view.readonly:
        return ctypes.addressof(ctypes.c_char.from_buffer(view))
    buffer = _Buffer()
    _take_buffer(view, ctypes.byref(buffer), 0)
    _give_back_buffer(ctypes.byref(buffer))  # the view keeps the memory
    return buffer.address or 0


def _pages(start: int, size: int) -> tuple[int, int]:
    before = start % mmap.PAGESIZE
    return start - before, size + before
