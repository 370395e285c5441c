"""Tables of queue offsets."""

from __future__ import annotations

from msgspec import field

from pyromq.message import MessageQueue
from pyromq.remoting.bodies.body import Body


class ConsumerOffsetTable(Body):
    """Queue offsets by `topic@group` and queue id."""

    offsets: dict[str, dict[int, int]] = field(name="offsetTable", default_factory=dict)


class DelayOffsetTable(Body):
    """Queue offsets by delay level. `log_end`, ours, on disk only: where the log ended when they were like this."""

    offsets: dict[int, int] = field(name="offsetTable", default_factory=dict)
    log_end: int | None = None


class QueueOffset(Body):
    """An offset in the list form of `ResetOffsets`."""

    topic: str
    broker_name: str
    queue_id: int
    offset: int


class ResetOffsets(Body):
    """Offsets to go on with; the list form is for C++."""

    offsets: dict[MessageQueue, int] | list[QueueOffset] = field(name="offsetTable", default_factory=dict)


class ConsumerStatus(Body):
    """Members' offsets: a broker fills the first table, a member the second."""

    clients: dict[str, dict[MessageQueue, int]] = field(name="consumerTable", default_factory=dict)
    queues: dict[MessageQueue, int] = field(name="messageQueueTable", default_factory=dict)


class CorrectionOffsetTable(Body):
    """Offsets by queue id."""

    offsets: dict[int, int] = field(name="correctionOffsets", default_factory=dict)
