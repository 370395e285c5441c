"""Messages as Arrow columns, encoded as members of a batch message (see `pyromq.record`). No Spark here."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyromq import speedups
from pyromq.record import MEMBER_BYTES

if TYPE_CHECKING or speedups.is_active:
    from pyromq.speedups.batches import write_members

Ints = npt.NDArray[np.int64]


class BatchMembers:
    """Messages encoded as members of a batch message.

    `bodies` and `properties` have no null, and no properties exceed a record's limit.
    """

    def __init__(self, flags: Ints, bodies: pa.BinaryArray, properties: pa.BinaryArray) -> None:
        self._flags = flags.astype(np.int32)
        self._bodies = bodies
        self._properties = properties

    def __len__(self) -> int:
        return len(self._bodies)

    @cached_property
    def ends(self) -> Ints:
        """Positions of the members in the joined bytes: 0, then the end of each member."""
        ends = np.zeros(len(self) + 1, np.int64)
        np.cumsum(self._sizes(self._bodies) + self._sizes(self._properties) + MEMBER_BYTES, out=ends[1:])
        return ends

    def between(self, first: int, last: int) -> bytes | memoryview:
        """Return the joined bytes of members `first` to `last` (exclusive): the body of a batch message."""
        if speedups.is_active:
            return write_members(self._flags, self._body_buffers, self._property_buffers, first, last)
        return self._content[self.ends[first] : self.ends[last]]

    def take(self, numbers: Ints) -> BatchMembers:
        """Return the members with these numbers."""
        chosen = pa.array(numbers)
        return BatchMembers(
            self._flags[numbers].astype(np.int64), self._bodies.take(chosen), self._properties.take(chosen)
        )

    @cached_property
    def _body_buffers(self) -> tuple[Any, Any]:
        return _buffers(self._bodies)

    @cached_property
    def _property_buffers(self) -> tuple[Any, Any]:
        return _buffers(self._properties)

    @cached_property
    def _content(self) -> memoryview:
        """The bytes of all members, joined by Arrow's functions. Used if the compiled `write_members` is missing."""
        count = len(self)
        body_sizes, property_sizes = self._sizes(self._bodies), self._sizes(self._properties)
        heads = np.zeros((count, 5), ">i4")
        heads[:, 0] = body_sizes + property_sizes + MEMBER_BYTES
        heads[:, 3] = self._flags
        heads[:, 4] = body_sizes
        joined = pc.binary_join_element_wise(
            _fixed(heads.tobytes(), count, 20),
            self._bodies,
            _fixed(property_sizes.astype(">i2").tobytes(), count, 2),
            self._properties,
            b"",
        )
        content = joined.buffers()[2]
        return memoryview(b"" if content is None else content)

    @staticmethod
    def _sizes(values: pa.BinaryArray) -> Ints:
        return np.diff(np.frombuffer(_buffers(values)[0], np.int32)).astype(np.int64)


def _buffers(values: pa.BinaryArray) -> tuple[Any, Any]:
    """Return two buffers: the offsets and the bytes of an Arrow array's values."""
    _, ends, content = values.buffers()
    begin, count = 4 * values.offset, 4 * (len(values) + 1)
    if ends is None:  # the array is empty
        return bytes(count), b""
    return ends.slice(begin, count), b"" if content is None else content


def _fixed(raw: bytes, count: int, width: int) -> pa.Array:
    """Return `raw` as an Arrow array of `count` binary values, each `width` bytes long."""
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), count, [None, pa.py_buffer(raw)]).cast(pa.binary())
