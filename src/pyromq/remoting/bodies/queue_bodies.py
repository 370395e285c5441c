"""JSON bodies with queues, their locks and offsets."""

from __future__ import annotations

from msgspec import field

from pyromq.message import MessageQueue
from pyromq.remoting.bodies.body import Body


class WireQueue(Body):
    """A queue as a JSON object: topic, broker name and queue id."""

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
    """Body of a request: queues to lock or unlock for a client of a group."""

    group: str = field(name="consumerGroup")
    client_id: str
    queues: list[WireQueue] = field(name="mqSet", default_factory=list)
    tied_to_connection: bool = False  # only in pyromq: the locks end with the connection; Java brokers ignore it


class LockHolder(Body):
    """The owner of the lock on a queue, and the age of the lock."""

    queue: WireQueue
    client_id: str
    age_ms: int


class LockedQueues(Body):
    """Body of a response: the queues now locked for the client.

    Our clients also get the owners of queues not locked.
    """

    queues: list[WireQueue] = field(name="lockOKMQSet", default_factory=list)
    # Only in pyromq: owners of the queues that were not locked. Not sent to Java clients.
    refused: list[LockHolder] | None = None


class OffsetMoved(Body):
    """The body of a message in topic OFFSET_MOVED_EVENT."""

    group: str = field(name="consumerGroup")
    queue: WireQueue = field(name="messageQueue")
    asked_offset: int = field(name="offsetRequest", default=0)
    new_offset: int = field(name="offsetNew", default=0)


class ConsumerOffsetTable(Body):
    """Committed queue offsets by `topic@group` and queue id."""

    offsets: dict[str, dict[int, int]] = field(name="offsetTable", default_factory=dict)


class DelayOffsetTable(Body):
    """Delivered queue offsets by delay level.

    `log_end` (only in pyromq, only on disk) is the end of the commit log at that time.
    """

    offsets: dict[int, int] = field(name="offsetTable", default_factory=dict)
    log_end: int | None = None


class QueueOffset(Body):
    """A queue and an offset, in the list form of `ResetOffsets`."""

    topic: str
    broker_name: str
    queue_id: int
    offset: int


class ResetOffsets(Body):
    """Body of a request: offsets to which a member resets its queues. The list form is for C++ clients."""

    offsets: dict[MessageQueue, int] | list[QueueOffset] = field(name="offsetTable", default_factory=dict)


class ConsumerStatus(Body):
    """Body of a response: offsets of a group's members. A broker fills the first table, a member the second."""

    clients: dict[str, dict[MessageQueue, int]] = field(name="consumerTable", default_factory=dict)
    queues: dict[MessageQueue, int] = field(name="messageQueueTable", default_factory=dict)


class CorrectionOffsetTable(Body):
    """Body of a response: queue offsets by queue id."""

    offsets: dict[int, int] = field(name="correctionOffsets", default_factory=dict)
