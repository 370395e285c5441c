"""Batch transactions: messages sent in runs, one decision for all of them. Ours: RocketMQ has no such requests."""

from __future__ import annotations

from pyromq.remoting import bodies
from pyromq.remoting.codes import RequestCode
from pyromq.remoting.header import Header, field


class EndTransaction(Header):
    """Commit (8), roll back (12) or leave open (0) a half message."""

    code = RequestCode.END_TRANSACTION
    producer_group: str
    half_queue_offset: int = field(name="tranStateTableOffset")
    log_offset: int = field(name="commitLogOffset")
    decision: int = field(name="commitOrRollback")
    message_id: str = field(name="msgId")
    from_check: bool = field(name="fromTransactionCheck", default=False)
    transaction_id: str | None = None
    topic: str | None = None  # clients of RocketMQ 5 name it, perhaps without its namespace
    broker_name: str | None = field(name="bname", default=None)


class CheckTransaction(Header):
    """The broker asks a producer what became of a half message, the body."""

    code = RequestCode.CHECK_TRANSACTION_STATE
    half_queue_offset: int = field(name="tranStateTableOffset")
    log_offset: int = field(name="commitLogOffset")
    message_id: str | None = field(name="msgId", default=None)
    transaction_id: str | None = None
    offset_message_id: str | None = field(name="offsetMsgId", default=None)


class ResumeHalfMessage(Header):
    """Check a given-up half message again."""

    code = RequestCode.RESUME_CHECK_HALF_MESSAGE
    message_id: str | None = field(name="msgId", default=None)


class ListHalfMessages(Header):
    """Half messages nobody has decided on, oldest first, behind a queue offset; of one group or of all. Ours."""

    code = RequestCode.LIST_HALF_MESSAGES
    reply_body = bodies.HalfMessageList
    count: int
    after: int = -1
    producer_group: str | None = None


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
