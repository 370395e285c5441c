"""Values and slices of pulled bytes, gathered in bulk as numpy and Arrow arrays. No Spark and no client here."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_INLINE = 12  # limit of bytes that an Arrow view holds inline


def blocks(data: Bytes, at: Ints, form: str | np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the values at byte positions `at` of `data`, read as the fixed-width numpy type `form`.

    A value takes some ns: a numpy view has an item at every byte position, and indexing it copies the wanted items.
    """
    kind = np.dtype(form)
    if not at.size:
        return np.empty(0, kind)
    opaque: npt.NDArray[Any] = np.ndarray(data.size - kind.itemsize + 1, f"V{kind.itemsize}", data, strides=(1,))
    return opaque[at].view(kind)


def slices(data: Bytes, at: Ints, sizes: Ints) -> pa.Array:
    """Return slices of `data`, of different sizes, as a binary array, by way of Arrow's view layout.

    view (16 bytes)  size 4 | up to 12 bytes inline, or: first 4 bytes (unused here), buffer number 4, offset 4
    """
    views = np.zeros((at.size, 4), "<i4")
    views[:, 0] = sizes
    views[:, 3] = at
    short = np.flatnonzero(sizes <= _INLINE)
    if short.size:
        views.view(np.uint8).reshape(-1, 16)[short, 4:] = _begins(data, at[short])
    array = pa.Array.from_buffers(pa.binary_view(), at.size, [None, pa.py_buffer(views), pa.py_buffer(data)])
    return array.cast(pa.binary())


def _begins(data: Bytes, at: Ints) -> Bytes:
    """Return 12 bytes from each position, even if the slice there is shorter.

    Bytes past the end of `data` are arbitrary.
    """
    found: Bytes
    if at.max() + _INLINE <= data.size:
        found = blocks(data, at, f"V{_INLINE}").view(np.uint8).reshape(-1, _INLINE)
    else:
        found = data[np.minimum(at[:, None] + np.arange(_INLINE), data.size - 1)]
    return found


def strings(data: Bytes, at: Ints, sizes: Ints) -> pa.Array:
    """Return slices of `data` as an Arrow array of strings.

    Bytes that are not UTF-8 become replacement characters, as in Java.
    """
    found = slices(data, at, sizes)
    try:
        return found.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([each.decode(errors="replace") for each in found.to_pylist()], pa.string())


def list_offsets(rows: Ints, count: int) -> pa.Array:
    """Return the Arrow offsets of `count` lists. `rows` has the list number of each item, in ascending order."""
    ends = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(rows, minlength=count), out=ends[1:])
    return pa.array(ends)
