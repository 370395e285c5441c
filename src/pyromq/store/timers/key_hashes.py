"""The messages of an hour in order of the hashes of their keys: eight bytes each, in memory. It reads no files."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator

LONGEST_RUN = 16_384  # runs are put together up to that length, in two milliseconds
_NUMBER_BITS = 32
_NUMBER = (1 << _NUMBER_BITS) - 1


class KeyHashes:
    """Its length is the number of the first message that is not in it yet.

    A run has hashes with their messages' numbers behind them, ascending. A run is put together with one before it
    that is no longer, so there are few, and each message is moved a few times at most.
    """

    __slots__ = ("_count", "_runs")

    def __init__(self) -> None:
        self._count = 0
        self._runs: list[array[int]] = []

    def __len__(self) -> int:
        return self._count

    def add(self, hashes: Iterable[int]) -> None:
        """Add the hashes of the next messages."""
        run = sorted([key_hash << _NUMBER_BITS | number for number, key_hash in enumerate(hashes, self._count)])
        self._count += len(run)
        while self._runs and len(self._runs[-1]) <= len(run) <= LONGEST_RUN - len(self._runs[-1]):
            run = sorted([*self._runs.pop(), *run])
        self._runs.append(array("Q", run))

    def numbers(self, key_hash: int) -> Iterator[int]:
        """Yield the numbers of the messages with that hash; of those that are added meanwhile none."""
        for run in tuple(self._runs):
            place = bisect_left(run, key_hash << _NUMBER_BITS)
            while place < len(run) and run[place] >> _NUMBER_BITS == key_hash:
                yield run[place] & _NUMBER
                place += 1
