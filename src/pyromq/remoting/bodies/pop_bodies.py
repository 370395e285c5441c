"""JSON bodies of pop consumption.

Source: RocketMQ 5.3.3, BatchAckMessageRequestBody, BatchAck, QueryAssignmentRequestBody, QueryAssignmentResponseBody,
SetMessageRequestModeRequestBody.
"""

from __future__ import annotations

from msgspec import field

from pyromq.remoting.bodies.body import Body
from pyromq.remoting.bodies.queue_bodies import WireQueue


class BatchAck(Body):
    """Acknowledged messages of one pop in one queue.

    `bits` is Base64 of a bit set in little-endian bytes: the acknowledged offsets relative to `start`;
    `receipt_handle.encode_bits`, `decode_bits` convert it. `topic` is the popped topic, even if `retry` says that
    the messages come from the retry topic.
    """

    group: str = field(name="c")
    topic: str = field(name="t")
    retry: str = field(name="r")
    start: int = field(name="so")
    queue_id: int = field(name="q")
    revive_queue: int = field(name="rq")
    pop_ms: int = field(name="pt")
    invisible_ms: int = field(name="it")
    bits: str = field(name="b")


class BatchAcks(Body):
    """Body of a request: messages to acknowledge."""

    broker_name: str | None = None
    acks: list[BatchAck] = field(default_factory=list)


class AssignmentQuery(Body):
    """Body of a request for a member's queues."""

    topic: str
    group: str = field(name="consumerGroup")
    client_id: str
    strategy: str = field(name="strategyName", default="")
    message_model: str = "CLUSTERING"


class QueueAssignment(Body):
    """One assigned queue; queue -1 stands for all queues of the broker. `mode` is PULL or POP."""

    queue: WireQueue = field(name="messageQueue")
    mode: str = "PULL"
    attachments: dict[str, str] | None = None


class Assignments(Body):
    """Body of a response: a member's queues."""

    queues: list[QueueAssignment] = field(name="messageQueueAssignments", default_factory=list)


class MessageRequestMode(Body):
    """Body of a request: how the members of a group get a topic's messages. `mode` is PULL or POP.

    `share_queues` limits the members that pop one queue (0: no limit).
    """

    topic: str
    group: str = field(name="consumerGroup")
    mode: str = "PULL"
    share_queues: int = field(name="popShareQueueNum", default=0)


class MessageRequestModes(Body):
    """The modes that administrators have set, by topic and group, as in the broker's file."""

    by_topic: dict[str, dict[str, MessageRequestMode]] = field(name="messageRequestModeMap", default_factory=dict)
