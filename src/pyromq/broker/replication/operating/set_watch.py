"""The history of one replica: past ends of the log, and changes of the in-sync list."""

from __future__ import annotations

from collections import deque

from pyromq.broker.replication.replica import Replica
from pyromq.broker.replication.set_record import SetRecord
from pyromq.clock import Clock

_SAMPLE_SECONDS = 0.25  # time between two noted ends: the precision of a lag in seconds
_SAMPLES = 2_400  # limit of noted ends, ten minutes of a growing log; a longer lag is shown as ten minutes


class SetWatch:
    """Records the history of one replica since its process started. Restarts of the broker keep the history."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends: deque[tuple[float, int]] = deque(maxlen=_SAMPLES)
        self._record: SetRecord | None = None
        self._since_ms: dict[int, int] = {}

    def update(self, now: float, replica: Replica) -> None:
        """Record the log's end, and changes of the in-sync list. Called several times a second."""
        self._note_end(now, longest_end(replica))
        record = replica.view.record
        if record is not self._record:
            if self._record is not None and record is not None:
                before = {member.number for member in self._record.in_sync}
                changed = before ^ {member.number for member in record.in_sync}
                self._since_ms.update(dict.fromkeys(changed, self._clock.now_ms()))
            self._record = record

    def lag_seconds(self, now: float, end: int) -> float:
        """Return the seconds since the longest known log passed `end`; 0 if it has not, ten minutes at most."""
        first = next((at for at, longest in self._ends if longest > end), None)
        return 0.0 if first is None else max(0.0, now - first)

    def since_ms(self, number: int) -> int | None:
        """Return when a replica entered or left the in-sync list; None if it did neither since the process started."""
        return self._since_ms.get(number)

    def _note_end(self, now: float, end: int) -> None:
        ends = self._ends
        while ends and ends[-1][1] > end:  # a log was cut
            ends.pop()
        if not ends or (end > ends[-1][1] and now - ends[-1][0] >= _SAMPLE_SECONDS):
            ends.append((now, end))


def longest_end(replica: Replica) -> int:
    """Return the end of the longest log of this replica and the connected ones."""
    return max(replica.log.end, *(peer.end for peer in replica.peers.all() if peer.is_connected), 0)
