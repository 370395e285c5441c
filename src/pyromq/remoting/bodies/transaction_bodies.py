"""JSON bodies with undecided half messages, batch transactions (ours), and scheduled messages.

Source of the numbers of scheduled messages: RocketMQ 5.3.3, TimerMetrics; their list exists only in pyromq.
"""

from __future__ import annotations

from msgspec import field

from pyromq.remoting.bodies.body import Body, DataVersion


class BatchAttempt(Body):
    """One attempt at a batch transaction and its number of messages at this broker.

    `elsewhere` has the numbers at other brokers by name.
    """

    token: str
    messages: int = 0
    elsewhere: dict[str, int] = field(default_factory=dict)


class BatchAttempts(Body):
    """Body of a request: the attempts at a batch transaction that the request is about."""

    attempts: list[BatchAttempt] = field(default_factory=list)


class BatchDecision(Body):
    """Body of a response: the decision on a batch transaction.

    `by_this`: the answered request made the decision. Times in ms.
    """

    transaction: str
    attempts: list[BatchAttempt]
    decided_ms: int
    visible: bool = False  # consumers can see all messages of the transaction at this broker
    by_this: bool = False
    content: str | None = None  # description that the deciding request gave of the transaction


class UndecidedBatch(Body):
    """An undecided batch transaction. `silent_ms` is the time since the last messages of an attempt arrived.

    `ledger` is the broker that decides, unless the responding broker does.
    """

    transaction: str
    attempts: list[BatchAttempt]
    silent_ms: int
    ledger: str | None = None


class UndecidedBatches(Body):
    """Body of a response: the undecided batch transactions of one broker, oldest first, and their total number."""

    batches: list[UndecidedBatch] = field(default_factory=list)
    count: int = 0


class LedgerEntry(Body):
    """The commit of a batch transaction: a record in queue 0 of the ledger topic of the deciding broker."""

    transaction: str
    attempts: list[BatchAttempt]
    content: str | None = None


class LedgerNote(Body):
    """The progress of carrying out the decision on a batch transaction: a record in queue 1 of the ledger topic.

    A run is a request with messages of one queue. With `tokens`: the runs of these attempts before `half_queue_offset`
    are rolled back. Without `tokens`: consumers see the committed runs before that offset, and the first
    `messages` messages of the run at that offset.
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
    topic: str | None = None  # None: the message is damaged and cannot be committed
    queue_id: int | None = None
    message_id: str | None = field(name="msgId", default=None)
    keys: str | None = None
    tags: str | None = None


class HalfMessageList(Body):
    """Body of a response: one page of half messages.

    `next_after` is the queue offset after which the next page begins; None on the last page.
    """

    half_messages: list[HalfMessageEntry] = field(default_factory=list)
    next_after: int | None = None


class TimerCount(Body):
    """The number of scheduled messages of one topic, and when the broker counted them, in ms."""

    count: int = 0
    counted_ms: int = field(name="timeStamp", default=0)


class TimerCounts(Body):
    """Body of a response: the numbers of scheduled messages by topic."""

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
    """Body of a response: one page of scheduled messages, and where the next page begins.

    `next_ms` is None on the last page.
    """

    timers: list[ListedTimer] = field(default_factory=list)
    next_ms: int | None = None
    next_after: int = -1
