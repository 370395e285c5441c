"""Decisions on batch transactions, on the wire and in the broker's ledger. Ours: RocketMQ has no such requests."""

from __future__ import annotations

from msgspec import field

from pyromq.remoting.bodies.body import Body


class BatchAttempt(Body):
    """One attempt, and how many messages of it the broker must hold; `elsewhere` says so of other brokers, by name."""

    token: str
    messages: int = 0
    elsewhere: dict[str, int] = field(default_factory=dict)


class BatchAttempts(Body):
    """The attempts that a request speaks of."""

    attempts: list[BatchAttempt] = field(default_factory=list)


class BatchDecision(Body):
    """What is decided; `by_this` says whether the answered request did it. Times in ms."""

    transaction: str
    attempts: list[BatchAttempt]
    decided_ms: int
    visible: bool = False  # consumers can see all messages that this broker holds
    by_this: bool = False
    content: str | None = None  # as the request that decided had it


class UndecidedBatch(Body):
    """A transaction that nobody has decided on; `silent_ms` since the last run of an attempt.

    `ledger` is the broker that decides, where it is not the one that answers.
    """

    transaction: str
    attempts: list[BatchAttempt]
    silent_ms: int
    ledger: str | None = None


class UndecidedBatches(Body):
    """The undecided transactions of one broker, oldest first, and how many there are."""

    batches: list[UndecidedBatch] = field(default_factory=list)
    count: int = 0


class LedgerEntry(Body):
    """The commit point: a record in queue 0 of the ledger's topic."""

    transaction: str
    attempts: list[BatchAttempt]
    content: str | None = None


class LedgerNote(Body):
    """What was done about a decision since it was taken, in queue 1 of the ledger's topic.

    With `tokens`: their runs before `half_queue_offset` are rolled back. Without: the winning runs before it are
    visible, and of the run there the first `messages` messages.
    """

    transaction: str
    half_queue_offset: int
    messages: int = 0
    tokens: list[str] | None = None


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
