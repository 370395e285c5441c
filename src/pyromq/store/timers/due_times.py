"""Due times in memory, smallest first; those of equal time in order of their numbers.

Times are kept unsorted in slots of 128 ms, eight bytes each; only the slot that comes next is put in order.
"""

from __future__ import annotations

from array import array
from heapq import heapify, heappop, heappush
from typing import NamedTuple

_SLOT_BITS = 7
_NUMBER_BITS = 32
_SLOT_MASK = (1 << _SLOT_BITS) - 1
_NUMBER_MASK = (1 << _NUMBER_BITS) - 1


class DueTime(NamedTuple):
    """When a message is due (ms), and its number, below 2^32."""

    due_ms: int
    number: int


class DueTimes:
    """A queue of due times."""

    def __init__(self) -> None:
        self._next: list[int] = []  # a heap: all of the slots up to `_opened`, time and number in one integer
        self._opened = -1
        self._slots: dict[int, array[int]] = {}
        self._order: list[int] = []  # a heap of the slots' keys
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, due_ms: int, number: int) -> None:
        self._length += 1
        slot = due_ms >> _SLOT_BITS
        if slot <= self._opened:
            heappush(self._next, due_ms << _NUMBER_BITS | number)
            return
        times = self._slots.get(slot)
        if times is None:
            times = self._slots[slot] = array("Q")
            heappush(self._order, slot)
        times.append((due_ms & _SLOT_MASK) << _NUMBER_BITS | number)

    def first(self) -> DueTime | None:
        """Return the smallest; None if there is none."""
        if not self._next:
            if not self._order:
                return None
            self._open_slot()
        return DueTime(self._next[0] >> _NUMBER_BITS, self._next[0] & _NUMBER_MASK)

    def pop(self) -> None:
        """Remove the one that `first` returned."""
        heappop(self._next)
        self._length -= 1

    def _open_slot(self) -> None:
        slot = self._opened = heappop(self._order)
        base = slot << _SLOT_BITS + _NUMBER_BITS
        self._next = [base + time for time in self._slots.pop(slot)]
        heapify(self._next)
