"""Undecided half messages, batch transactions (ours), and scheduled messages.

Source of the numbers of scheduled messages: RocketMQ 5.3.3, TimerMetrics; their list is ours.
"""

from __future__ import annotations

from msgspec import field

from pyromq.remoting.bodies.body import Body, DataVersion


class BatchAttempt(Body):
    """One attempt and its number of messages at this broker; `elsewhere` has those at other brokers by name."""

    token: str
    messages: int = 0
    elsewhere: dict[str, int] = field(default_factory=dict)


class BatchAttempts(Body):
    """The attempts of a request."""

    attempts: list[BatchAttempt] = field(default_factory=list)


class BatchDecision(Body):
    """A decision; `by_this`: made by the answered request. Times in ms."""

    transaction: str
    attempts: list[BatchAttempt]
    decided_ms: int
    visible: bool = False  # consumers can see all its messages at this broker
    by_this: bool = False
    content: str | None = None  # of the deciding request


class UndecidedBatch(Body):
    """An undecided transaction; `silent_ms` is the time since the last run of an attempt.

    `ledger` is the deciding broker if it is not the answering one.
    """

    transaction: str
    attempts: list[BatchAttempt]
    silent_ms: int
    ledger: str | None = None


class UndecidedBatches(Body):
    """The undecided transactions of one broker, oldest first, and their total number."""

    batches: list[UndecidedBatch] = field(default_factory=list)
    count: int = 0


class LedgerEntry(Body):
    """The commit point of a transaction: a record in queue 0 of the ledger's topic."""

    transaction: str
    attempts: list[BatchAttempt]
    content: str | None = None


class LedgerNote(Body):
    """The progress of carrying out a decision: a record in queue 1 of the ledger's topic.

    With `tokens`: their runs before `half_queue_offset` are rolled back. Without: the committed runs before it are
    visible, and the first `messages` messages of the run at it.
    """

    transaction: str
    half_queue_offset: int
    messages: int = 0
    tokens: list[str] | None = None


class HalfMessageEntry(Body):
    """An undecided half message, its destination, and the position of its latest copy. Times in ms."""

    half_queue_offset: int
    log_offset: int
    offset_message_id: str = field(name="offsetMsgId")
    producer_group: str
    born_ms: int
    checks: int
    size: int
    topic: str | None = None  # None: damaged, it cannot be committed
    queue_id: int | None = None
    message_id: str | None = field(name="msgId", default=None)
    keys: str | None = None
    tags: str | None = None


class HalfMessageList(Body):
    """One page, and the queue offset after which the next page begins; None on the last page."""

    half_messages: list[HalfMessageEntry] = field(default_factory=list)
    next_after: int | None = None


class TimerCount(Body):
    """The number of scheduled messages of one topic, and when it was counted, in ms."""

    count: int = 0
    counted_ms: int = field(name="timeStamp", default=0)


class TimerCounts(Body):
    """The numbers of scheduled messages by topic."""

    counts: dict[str, TimerCount] = field(name="timingCount", default_factory=dict)
    data_version: DataVersion | None = None


class ListedTimer(Body):
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

    timers: list[ListedTimer] = field(default_factory=list)
    next_ms: int | None = None
    next_after: int = -1
