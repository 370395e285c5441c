"""Scheduled messages. Source: RocketMQ 5.3.3, TimerMetrics; the list is ours."""

from __future__ import annotations

from msgspec import field

from pyromq.remoting.bodies.body import Body, DataVersion


class TimerCount(Body):
    """The number of scheduled messages of one topic, and when it was counted, in ms."""

    count: int = 0
    counted_ms: int = field(name="timeStamp", default=0)


class TimerCounts(Body):
    """The numbers of scheduled messages by topic."""

    counts: dict[str, TimerCount] = field(name="timingCount", default_factory=dict)
    data_version: DataVersion | None = None


class TimerEntry(Body):
    """A scheduled message; times in ms."""

    topic: str
    queue_id: int
    due_ms: int
    sent_ms: int
    size: int
    message_id: str | None = None
    recall_handle: str | None = None
    keys: str | None = None
    tags: str | None = None
    offset_message_id: str | None = None


class TimerList(Body):
    """One page, and the beginning of the next page; `next_ms` is None on the last page."""

    timers: list[TimerEntry] = field(default_factory=list)
    next_ms: int | None = None
    next_after: int = -1
