"""The file `epochs` of a replica: where the epochs of its log begin, and the highest epoch that the replica promised.

Each master of a replica set has its own epoch, a number that rises. Only the master of an epoch writes records in this
epoch. So two logs that both have an epoch are equal up to the point where the epoch ends in one of them.

    epochs         a checked file (see `checked_file`) of these lines, each ended by a newline
    promised N     the replica refuses everything of an epoch below N
    EPOCH START    the epoch's records begin at log offset START; epochs and log offsets ascend

RocketMQ has no such file, and ignores it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pyromq.errors import StoreCorrupt, StoreNotWritable, UsageError
from pyromq.store.checked_file import read_checked, replace_checked
from pyromq.store.disk import LOCAL_DISK, Disk, disk_advice

_PROMISED = "promised"


class EpochStart(NamedTuple):
    """The log offset where an epoch's records begin."""

    epoch: int
    start: int


class CommonPoint(NamedTuple):
    """The log offset up to which two logs are equal, and the epoch of the last equal records."""

    epoch: int
    end: int


Lines = Sequence[EpochStart]


class EpochFile:
    """The epochs of one data folder. Call `load` before everything else.

    `lines` may have epochs that begin after the log's end: epochs of the master without a record in this log yet.
    All methods that write are durable when they return, block, and raise `StoreNotWritable`.
    """

    def __init__(self, root: Path, disk: Disk = LOCAL_DISK) -> None:
        self.promised = 0
        self.lines: list[EpochStart] = []
        self._path = root / "epochs"
        self._disk = disk

    def load(self) -> None:
        """Read the file. A folder without the file knows no epochs. Raises `StoreCorrupt`."""
        try:
            content = read_checked(self._disk, self._path)
            self.promised, self.lines = (0, []) if content is None else _decoded(content)
        except (StoreCorrupt, ValueError) as error:
            raise StoreCorrupt(
                f"{self._path} is damaged ({error}): restore it from a copy, or empty the data folder; the replica then"
                " copies everything from its master"
            ) from error

    def promise(self, epoch: int) -> None:
        """Promise to refuse everything of an epoch below `epoch`. Raises `UsageError` if a higher one was promised."""
        if epoch < self.promised:
            raise UsageError(f"epoch {epoch} is refused: epoch {self.promised} was promised")
        if epoch > self.promised:
            self._save(epoch, self.lines)

    def begin(self, epoch: int, start: int, *, log_begin: int = 0) -> None:
        """Add an epoch whose records this replica writes, from log offset `start` on, the end of its log.

        Drops epochs that ended before `log_begin`, the log's first byte. The first epoch of a folder includes all
        earlier records. Raises `UsageError` for an epoch that is not higher than all others.
        """
        known = self.known(start)
        last = known[-1].epoch if known else 0
        if epoch < self.promised or epoch <= last:
            raise UsageError(f"epoch {epoch} cannot begin: {max(self.promised, last)} was promised or has begun")
        line = EpochStart(epoch, start if known else min(log_begin, start))
        self._save(max(epoch, self.promised), _since(log_begin, [*known, line]))

    def adopt(self, lines: Lines, common: CommonPoint | None) -> None:
        """Replace the epochs after the common point by the epochs of the master that this replica will follow.

        `common` is the result of `common_point`. The log must already be cut at this point.
        """
        kept = [] if common is None else [line for line in self.lines if line.epoch < common.epoch]
        taken = [EpochStart(*line) for line in lines if common is None or line[0] >= common.epoch]
        if kept + taken != self.lines:
            self._save(self.promised, kept + taken)

    def cut(self, to: int) -> None:
        """Drop the epochs that begin at log offset `to` or later."""
        kept = [line for line in self.lines if line.start < to]
        if kept != self.lines:
            self._save(self.promised, kept)

    def known(self, end: int) -> list[EpochStart]:
        """Return the epochs that begin at or before log offset `end`, the end of a log."""
        return [line for line in self.lines if line.start <= end]

    def last_epoch(self, end: int) -> int:
        """Return the last epoch that begins at or before log offset `end`, the end of a log; 0 if there is none."""
        known = self.known(end)
        return known[-1].epoch if known else 0

    def _save(self, promised: int, lines: list[EpochStart]) -> None:
        texts = (f"{_PROMISED} {promised}", *(f"{epoch} {start}" for epoch, start in lines))
        try:
            replace_checked(self._disk, self._path, "".join(text + "\n" for text in texts).encode())
        except OSError as error:
            advice = disk_advice(error, "the replica continues")
            raise StoreNotWritable(f"cannot write {self._path}: {advice}") from error
        self.promised, self.lines = promised, lines


def common_point(own: Lines, other: Lines, own_end: int, other_end: int) -> CommonPoint | None:
    """Return the point up to which two logs with these epochs and ends are equal; None if nothing is equal.

    Both logs are equal up to the smaller end of the last epoch that both have. If a log that is cut there would have
    another last epoch, the search is repeated with the cut log. Source: Apache Kafka, KIP-101 and KIP-279.
    """
    own = [line for line in own if line.start <= own_end]
    other = [line for line in other if line.start <= other_end]
    while shared := set(own) & set(other):
        common = max(shared)
        end = min(_end_of(common, own, own_end), _end_of(common, other, other_end))
        if own[-1] == common:
            return CommonPoint(common.epoch, end)
        own = [line for line in own if line.start < end]
        own_end = end
    return None


def _end_of(line: EpochStart, lines: Lines, end: int) -> int:
    return next((later.start for later in lines if later.epoch > line.epoch), end)


def _since(log_begin: int, lines: list[EpochStart]) -> list[EpochStart]:
    """Return the lines without epochs that ended before the log's first byte."""
    return [
        line for number, line in enumerate(lines) if number + 1 == len(lines) or lines[number + 1].start > log_begin
    ]


def _decoded(content: bytes) -> tuple[int, list[EpochStart]]:
    first, *rest = content.decode("ascii").splitlines()
    word, promised = first.split(" ")
    lines = [EpochStart(*map(int, text.split(" "))) for text in rest]
    if word != _PROMISED or lines != sorted(lines):
        raise ValueError("its lines are not in order")
    return int(promised), lines
