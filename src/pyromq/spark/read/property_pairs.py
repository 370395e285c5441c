"""The properties of many records at once, without a dict for each record. No Spark and no client here.

The property texts of all records are searched together; their form is name 01 value 02 name 01 value 02 … (see
`pyromq.message`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyromq.message import NAME_VALUE, PAIRS
from pyromq.spark.read.byte_slices import Bytes, Ints, blocks, slices, strings

_MIDDLE, _END = ord(NAME_VALUE), ord(PAIRS)
_MARGIN = 16  # bytes after the last property text, so that `slices` never reads past the end
_FEW = 32  # limit of property names that are searched one by one; Arrow numbers further names

# Positions of the separators before a pair, between name and value, and after the pair.
_Bounds = tuple[Ints, Ints, Ints]


class PropertyPairs:
    """The properties of many records as pairs of name and value, in order of the records.

    `rows` has the record number of each pair, `codes` the index of its name in `names`. Pairs without name or value are
    left out.
    """

    def __init__(self, data: Bytes, at: Ints, sizes: Ints) -> None:
        """Parse the property texts at positions `at` of `data`; `sizes` are their lengths in bytes."""
        self.count = at.size
        # The byte before each text becomes a separator, so that every pair has a separator on either side.
        text = slices(data, at - 1, sizes + 1)
        starts = np.frombuffer(text.buffers()[1], np.int32)[: at.size + 1].astype(np.int64)
        self._text = np.zeros(starts[-1] + _MARGIN, np.uint8)
        self._text[: starts[-1]] = np.frombuffer(text.buffers()[2] or b"", np.uint8)[: starts[-1]]
        self._text[starts] = _END
        pattern = self._pattern(starts)
        if pattern is not None:
            begins, middles, ends = ((starts[:-1, None] + places).ravel() for places in pattern)
            self.rows = np.repeat(np.arange(self.count), pattern[0].size)
        else:
            begins, middles, ends = _whole_pairs(self._text)
            self.rows = np.searchsorted(starts, begins, side="right") - 1
        self._name_at, self._name_sizes = begins + 1, middles - begins - 1
        self._value_at, self._value_sizes = middles + 1, ends - middles - 1
        self.names: list[str] = []
        self.codes = self._number_names(self.rows.size if pattern is None else pattern[0].size)

    def _pattern(self, starts: Ints) -> _Bounds | None:
        """Return the pairs of the first text if all texts have the same names at the same positions, else None.

        Most batches have such texts; one comparison of all bytes then replaces the search in each text.
        """
        if not self.count or (np.diff(starts) != starts[1]).any():
            return None
        each = self._text[: starts[-1]].reshape(self.count, -1)
        marks = np.flatnonzero(each[0] <= _END)
        begins, middles, ends = _whole_pairs(self._text[: starts[1] + 1])
        names = [np.arange(begin, middle) for begin, middle in zip(begins, middles, strict=True)]
        equal = np.concatenate([marks, *names])
        if np.count_nonzero(each <= _END) != marks.size * self.count or (each[:, equal] != each[0, equal]).any():
            return None
        return begins, middles, ends

    def _number_names(self, count: int) -> Ints:
        """Return a number per pair, equal for equal names.

        The names of the first `count` pairs repeat in all further pairs. Most batches have few names, so each name is
        searched in all pairs.
        """
        codes = np.full(count, -1, np.int64)
        left = np.arange(codes.size)
        while left.size and len(self.names) < _FEW:
            size = int(self._name_sizes[left[0]])
            alike = left[self._name_sizes[left] == size]
            found = blocks(self._text, self._name_at[alike], f"S{size}")
            same = alike[found == found[0]]
            codes[same] = len(self.names)
            self.names.append(self._text[self._name_at[left[0]] :][:size].tobytes().decode(errors="replace"))
            left = left[codes[left] < 0]
        if left.size:
            others = strings(self._text, self._name_at[left], self._name_sizes[left]).dictionary_encode()
            codes[left] = others.indices.to_numpy() + len(self.names)
            self.names += others.dictionary.to_pylist()
        return np.tile(codes, self.rows.size // count) if count else codes

    def value_of(self, name: str) -> pa.Array:
        """Return the value of property `name` in each record, null for a record without it.

        Of equal names in a record, the last pair counts.
        """
        if name not in self.names:
            return pa.nulls(self.count, pa.string())
        found = np.flatnonzero(self.codes == self.names.index(name))
        if found.size == self.count and (self.rows[found] == np.arange(self.count)).all():
            return self._values(found)
        places = np.full(self.count, -1, np.int64)
        places[self.rows[found]] = np.arange(found.size)
        return self._values(found).take(pa.array(places, mask=places < 0))

    def without(self, names: frozenset[str]) -> tuple[Ints, pa.Array, pa.Array]:
        """Return record numbers, names and values of the pairs whose name is not in `names`.

        Of equal names in a record, the last pair counts.
        """
        wanted = np.array([name not in names for name in self.names], np.bool_)
        pairs = np.flatnonzero(wanted[self.codes]) if wanted.size else np.empty(0, np.int64)
        pairs = self._last_of_equal(pairs)
        codes = pa.array(self.codes[pairs])
        return self.rows[pairs], pa.array(self.names, pa.string()).take(codes), self._values(pairs)

    def _last_of_equal(self, pairs: Ints) -> Ints:
        identity = self.rows[pairs] * len(self.names) + self.codes[pairs]
        different, last = np.unique(identity[::-1], return_index=True)
        if different.size == pairs.size:
            return pairs
        kept: npt.NDArray[np.int64] = np.sort(pairs.size - 1 - last)
        return pairs[kept]

    def _values(self, pairs: Ints) -> pa.Array:
        return strings(self._text, self._value_at[pairs], self._value_sizes[pairs])


def _whole_pairs(text: Bytes) -> _Bounds:
    """Return the positions of the separators before, inside and after each pair that has a name and a value."""
    marks = np.flatnonzero((text == _MIDDLE) | (text == _END))
    separators = np.flatnonzero(text[marks] == _END)
    begins, ends = marks[separators[:-1]], marks[separators[1:]]
    middles = marks[separators[:-1] + 1]  # the next separator: inside the pair, or after a pair without a value
    whole = (middles > begins + 1) & (ends > middles + 1)
    if whole.all():
        return begins, middles, ends
    return begins[whole], middles[whole], ends[whole]
