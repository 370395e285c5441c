"""Half messages that nobody has decided on, as a broker lists them. Ours: RocketMQ has no such request."""

from __future__ import annotations

from msgspec import field

from pyromq.remoting.bodies.body import Body


class HalfMessageEntry(Body):
    """An undecided half message: what it is, where it is meant for, and where its latest copy lies. Times in ms."""

    half_queue_offset: int
    log_offset: int
    offset_message_id: str = field(name="offsetMsgId")
    producer_group: str
    born_ms: int
    checks: int
    size: int
    topic: str | None = None  # None: damaged, there is nowhere to commit it to
    queue_id: int | None = None
    message_id: str | None = field(name="msgId", default=None)
    keys: str | None = None
    tags: str | None = None


class HalfMessageList(Body):
    """One page, and behind which queue offset the next begins; the last page says nothing of that."""

    half_messages: list[HalfMessageEntry] = field(default_factory=list)
    next_after: int | None = None
