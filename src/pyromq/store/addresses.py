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
    """Return address and size of the pages that hold these views: in one piece if they are neighbours."""
    start = address_of(views[0])
    size = address_of(views[-1]) + len(views[-1]) - start
    if 0 < size <= _STRETCH_BYTES:
        return [_pages(start, size)]
    return [_pages(address_of(view), len(view)) for view in views]


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
