"""Queues as objects of their own: locks, and the event of a moved offset."""

from __future__ import annotations

from msgspec import field

from pyromq.message import MessageQueue
from pyromq.remoting.bodies.body import Body


class WireQueue(Body):
    """A queue as an object of its own."""

    topic: str
    broker_name: str
    queue_id: int

    @classmethod
    def of(cls, queue: MessageQueue) -> WireQueue:
        return cls(topic=queue.topic, broker_name=queue.broker_name, queue_id=queue.queue_id)

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker_name, self.queue_id)


class QueueLock(Body):
    """Queues that a client of a group wants to lock or gives back."""

    group: str = field(name="consumerGroup")
    client_id: str
    queues: list[WireQueue] = field(name="mqSet", default_factory=list)
    tied_to_connection: bool = False  # ours: the locks end with the connection they came by; Java brokers ignore it


class LockHolder(Body):
    """Who has the lock of a queue, and for how long."""

    queue: WireQueue
    client_id: str
    age_ms: int


class LockedQueues(Body):
    """The queues that are locked now; for our own clients also who has the others."""

    queues: list[WireQueue] = field(name="lockOKMQSet", default_factory=list)
    refused: list[LockHolder] | None = None  # ours; Java clients are not sent it


class OffsetMoved(Body):
    """The body of a message in topic OFFSET_MOVED_EVENT."""

    group: str = field(name="consumerGroup")
    queue: WireQueue = field(name="messageQueue")
    asked_offset: int = field(name="offsetRequest", default=0)
    new_offset: int = field(name="offsetNew", default=0)


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
