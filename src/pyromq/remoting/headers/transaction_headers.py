"""Headers of RocketMQ's transactions, and of batch transactions (ours): many messages sent in runs, with one decision.

A run is the messages of one request, for one queue.
"""

from __future__ import annotations

from pyromq.remoting import bodies
from pyromq.remoting.codes import RequestCode
from pyromq.remoting.header import Header, field


class EndTransaction(Header):
    """Request: commit (8), roll back (12) or leave open (0) a half message."""

    code = RequestCode.END_TRANSACTION
    producer_group: str
    half_queue_offset: int = field(name="tranStateTableOffset")
    log_offset: int = field(name="commitLogOffset")
    decision: int = field(name="commitOrRollback")
    message_id: str = field(name="msgId")
    from_check: bool = field(name="fromTransactionCheck", default=False)
    transaction_id: str | None = None
    topic: str | None = None  # sent by clients of RocketMQ 5, perhaps without the namespace
    broker_name: str | None = field(name="bname", default=None)


class CheckTransaction(Header):
    """Request from a broker to a producer: decide on the half message in the body."""

    code = RequestCode.CHECK_TRANSACTION_STATE
    half_queue_offset: int = field(name="tranStateTableOffset")
    log_offset: int = field(name="commitLogOffset")
    message_id: str | None = field(name="msgId", default=None)
    transaction_id: str | None = None
    offset_message_id: str | None = field(name="offsetMsgId", default=None)


class ResumeHalfMessage(Header):
    """Request: resume the checks of a half message whose number of checks reached the limit."""

    code = RequestCode.RESUME_CHECK_HALF_MESSAGE
    message_id: str | None = field(name="msgId", default=None)


class ListHalfMessages(Header):
    """Request for undecided half messages after a queue offset, oldest first, of one group or of all groups.

    Only in pyromq.
    """

    code = RequestCode.LIST_HALF_MESSAGES
    reply_body = bodies.HalfMessageList
    count: int
    after: int = -1
    producer_group: str | None = None


class HalfRunStored(Header):
    """Response: the destination queue of the stored half messages, and their number."""

    queue_id: int
    messages: int


class SendHalfRun(Header):
    """Request: store a run of half messages (messages of one request, for one queue).

    The body is a batch message (see `record`). `number` counts the runs of one attempt, so that a retry is stored once.
    `ledger` is the deciding broker, unless the receiver decides.
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
    """Request: commit these attempts unless the batch transaction is decided already. The response is the decision.

    `content` is the caller's description of the transaction; the broker stores `content` with the decision.
    """

    code = RequestCode.COMMIT_BATCH
    request_body = bodies.BatchAttempts
    reply_body = bodies.BatchDecision
    transaction: str
    content: str | None = None


class RollBackBatch(Header):
    """Request: roll back the messages of these attempts.

    Attempts of a decided batch transaction stay as decided.
    """

    code = RequestCode.ROLL_BACK_BATCH
    request_body = bodies.BatchAttempts
    transaction: str


class FindBatch(Header):
    """Request for the decision on a batch transaction."""

    code = RequestCode.FIND_BATCH
    reply_body = bodies.BatchDecision
    transaction: str


class ListBatches(Header):
    """Request for at most 200 undecided batch transactions, or for one of them."""

    code = RequestCode.LIST_BATCHES
    reply_body = bodies.UndecidedBatches
    transaction: str | None = None
