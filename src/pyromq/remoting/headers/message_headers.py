"""Headers of sending, pulling, sending back, replies, and scheduled messages.

Source of scheduled messages: RocketMQ 5.3.3; the header that lists them exists only in pyromq.
"""

from __future__ import annotations

from pyromq.remoting import bodies
from pyromq.remoting.codes import RequestCode
from pyromq.remoting.header import Header, field, respell


class SendMessageResponse(Header):
    """Response: where the message was stored.

    For a batch, the ids joined by commas and the first message's queue offset.
    """

    message_id: str = field(name="msgId")
    queue_id: int
    queue_offset: int
    recall_handle: str | None = None  # from RocketMQ 5: handle with which the scheduled message can be cancelled
    transaction_id: str | None = None
    region: str | None = field(name="MSG_REGION", default=None)
    trace_on: str | None = field(name="TRACE_ON", default=None)


class SendRefusal(Header):
    """The header fields of a response that refuses a send."""

    region: str | None = field(name="MSG_REGION", default=None)
    trace_on: str | None = field(name="TRACE_ON", default=None)


class _SendHeader(Header):
    """The fields of every request whose body is a message to send, in the order of their one-letter names."""

    reply_header = SendMessageResponse
    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_count: int = field(name="defaultTopicQueueNums")
    queue_id: int
    sys_flag: int
    born_ms: int = field(name="bornTimestamp")
    flag: int
    properties: str | None = None
    reconsume_times: int | None = None
    unit_mode: bool | None = None
    max_reconsume_times: int | None = None
    batch: bool | None = None
    broker_name: str | None = field(name="bname", default=None)


class SendMessage(_SendHeader):
    """Request to a broker: store the message in the body."""

    code = RequestCode.SEND_MESSAGE


SendMessageV2 = respell(SendMessage, RequestCode.SEND_MESSAGE_V2, "SendMessageV2", letters=True)
SendBatchMessage = respell(SendMessage, RequestCode.SEND_BATCH_MESSAGE, "SendBatchMessage", letters=True)


class SendReplyMessage(_SendHeader):
    """Request to a broker: pass a reply message on to the client that sent the request message."""

    code = RequestCode.SEND_REPLY_MESSAGE


SendReplyMessageV2 = respell(SendReplyMessage, RequestCode.SEND_REPLY_MESSAGE_V2, "SendReplyMessageV2", letters=True)


class PushReplyMessage(Header):
    """Request from a broker to a client: the reply message to a request message of this client."""

    code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_count: int = field(name="defaultTopicQueueNums")
    queue_id: int
    sys_flag: int
    born_ms: int = field(name="bornTimestamp")
    flag: int
    born_host: str
    store_host: str
    store_ms: int = field(name="storeTimestamp")
    properties: str | None = None
    reconsume_times: int | None = None
    unit_mode: bool | None = None


class SendMessageBack(Header):
    """Request: redeliver later the message at log offset `offset`, whose processing failed."""

    code = RequestCode.CONSUMER_SEND_MSG_BACK
    offset: int
    group: str
    delay_level: int
    origin_message_id: str | None = field(name="originMsgId", default=None)
    origin_topic: str | None = None
    unit_mode: bool | None = None
    max_reconsume_times: int | None = None
    broker_name: str | None = field(name="bname", default=None)
    # Only in pyromq: stored with the message as property RETRY_REASON. Java brokers ignore this field.
    reason: str | None = None


class PullMessageResponse(Header):
    """Response to a pull: the next offset to pull and the queue's bounds.

    The body has the records, one after another.
    """

    next_offset: int = field(name="nextBeginOffset")
    min_offset: int
    max_offset: int
    suggested_broker_id: int = field(name="suggestWhichBrokerId", default=0)


class PullMessage(Header):
    """Request: pull messages of one queue from an offset on."""

    code = RequestCode.PULL_MESSAGE
    reply_header = PullMessageResponse
    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    max_count: int = field(name="maxMsgNums")
    sys_flag: int
    commit_offset: int
    suspend_ms: int = field(name="suspendTimeoutMillis")
    subscription_version: int = field(name="subVersion")
    subscription: str | None = None
    expression_type: str | None = None
    max_bytes: int | None = field(name="maxMsgBytes", default=None)  # RocketMQ 5
    broker_name: str | None = field(name="bname", default=None)


LitePullMessage = respell(PullMessage, RequestCode.LITE_PULL_MESSAGE, "LitePullMessage")


class RecallMessageResponse(Header):
    """Response with the unique id of the cancelled message."""

    message_id: str = field(name="msgId")


class RecallMessage(Header):
    """Request: cancel a scheduled message by the handle in its send result."""

    code = RequestCode.RECALL_MESSAGE
    reply_header = RecallMessageResponse
    topic: str
    recall_handle: str
    producer_group: str | None = None
    broker_name: str | None = field(name="bname", default=None)


class CountTimers(Header):
    """Request for the number of scheduled messages by topic."""

    code = RequestCode.GET_TIMER_METRICS
    reply_body = bodies.TimerCounts


class ListTimers(Header):
    """Request for the scheduled messages of a topic, in order of delivery time.

    The page begins at delivery time `begin_ms`, after the index entry `after` of that time.
    """

    code = RequestCode.LIST_TIMERS
    reply_body = bodies.TimerList
    topic: str
    count: int
    begin_ms: int = 0
    after: int = -1
