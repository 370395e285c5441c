"""Batch transactions: messages sent in runs, one decision for all of them. Ours: RocketMQ has no such requests."""

from __future__ import annotations

from pyromq.remoting import bodies
from pyromq.remoting.codes import RequestCode
from pyromq.remoting.header import Header, field


class HalfRunStored(Header):
    """The queue that the messages are meant for, and how many there are."""

    queue_id: int
    messages: int


class SendHalfRun(Header):
    """Store a run of half messages for one queue. The body is that of a batch (see `record`).

    `number` counts the runs of one attempt, so that one sent again is stored once. `ledger` names the broker that
    decides, where it is another one than the receiver.
    """

    code = RequestCode.SEND_HALF_RUN
    reply_header = HalfRunStored
    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_count: int = field(name="defaultTopicQueueNums")
    queue_id: int
    transaction: str
    token: str
    number: int
    born_ms: int = field(name="bornTimestamp")
    ledger: str | None = None
    unit_mode: bool | None = None


class CommitBatch(Header):
    """Decide that these attempts win, unless the transaction is decided; the answer is what is decided.

    `content` says what the transaction holds, in the caller's own words. The ledger keeps it with the decision.
    """

    code = RequestCode.COMMIT_BATCH
    request_body = bodies.BatchAttempts
    reply_body = bodies.BatchDecision
    transaction: str
    content: str | None = None


class RollBackBatch(Header):
    """Forget what these attempts have sent; those of a decided transaction stay as decided."""

    code = RequestCode.ROLL_BACK_BATCH
    request_body = bodies.BatchAttempts
    transaction: str


class FindBatch(Header):
    """Ask what is decided on a transaction."""

    code = RequestCode.FIND_BATCH
    reply_body = bodies.BatchDecision
    transaction: str


class ListBatches(Header):
    """The transactions that nobody has decided on, at most 200; or one, if it is among them."""

    code = RequestCode.LIST_BATCHES
    reply_body = bodies.UndecidedBatches
    transaction: str | None = None
