"""Messages that have just been parked, until many are filed in one go; and what decides whether more may be.

The compiled parts park by the same object, without a call of Python.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING
from zlib import crc32

from pyromq import speedups

if TYPE_CHECKING or speedups.is_active:
    from pyromq.speedups.timed import TimerIntake
else:
    from pyromq.broker.delays.timer_records import LATEST_MS, Ticket
    from pyromq.store.timers.timer_bucket import HOUR_MS
    from pyromq.store.timers.timer_files import TimerFiles

    FILED_AT_ONCE = 256  # messages: doing the same for many at a time takes two thirds as long

    class TimerIntake:
        """Holds some messages, in order of arrival; whoever adds the last that it has room for lets them be filed.

        `refusal` says why no more can be filed, None while they can. Who delivers is told of a message that is due
        before `urgent_ms`.
        """

        def __init__(self) -> None:
            self.refusal: str | None = None
            self.urgent_ms = LATEST_MS
            self._parked: list[tuple[int, int, int, Ticket]] = []

        def __len__(self) -> int:
            return len(self._parked)

        def add(self, queue_offset: int, log_offset: int, size: int, ticket: Ticket) -> bool:
            """Take a message that is in the timer topic now; False if there is no room for another."""
            self._parked.append((queue_offset, log_offset, size, ticket))
            return len(self._parked) < FILED_AT_ONCE

        def goes_on(self, queue_offset: int) -> bool:
            """Whether the messages follow each other in the timer topic, from that queue offset on."""
            parked = self._parked
            return parked[0][0] == queue_offset and parked[-1][0] == queue_offset + len(parked) - 1

        def clear(self) -> None:
            self._parked = []

        def file(self, files: TimerFiles, *, near: int, unread: set[int]) -> None:
            """Put all into the buckets of their hours; add those up to hour `near` to `unread`."""
            parked, self._parked = self._parked, []
            find_bucket, topic_hash = files.buckets.get, _topic_hash
            for queue_offset, log_offset, size, (_, due_ms, key_hash, topic) in parked:
                hour = due_ms // HOUR_MS
                bucket = find_bucket(hour) or files.make(hour, queue_offset)
                bucket.add(due_ms, key_hash, topic_hash(topic), log_offset, size)
                files.changed[bucket] = None
                if hour <= near:
                    unread.add(hour)
            files.count(Counter([ticket[3] for _, _, _, ticket in parked]))

    @lru_cache(maxsize=8192)
    def _topic_hash(topic: str) -> int:
        return crc32(topic.encode())


__all__ = ["TimerIntake"]
