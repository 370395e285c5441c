"""Unique message ids of very many rows at once, as an Arrow array. Knows no Spark."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pyromq.message_id import UniqueIds

_DIGITS = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_PLACES = np.array([12, 8, 4, 0])


def fresh_ids(unique: UniqueIds, count: int) -> pa.StringArray:
    """Return ids that nobody else has: for a tenth of what it costs to make texts of Python and an array of these."""
    parts = [_block(head.encode(), numbers) for head, numbers in unique.blocks(count)]
    return pa.concat_arrays(parts or [pa.array([], pa.string())])


def _block(head: bytes, numbers: range) -> pa.StringArray:
    width = len(head) + len(_PLACES)
    ids = np.empty((len(numbers), width), np.uint8)
    ids[:, : len(head)] = np.frombuffer(head, np.uint8)
    ids[:, len(head) :] = _DIGITS[np.arange(numbers.start, numbers.stop)[:, None] >> _PLACES & 15]
    ends = np.arange(len(numbers) + 1, dtype=np.int32) * np.int32(width)
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(ends), pa.py_buffer(ids))
