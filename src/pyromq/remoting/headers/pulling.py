"""Pulling messages from a queue."""

from __future__ import annotations

from pyromq.remoting.codes import RequestCode
from pyromq.remoting.header import Header, field, respell


class PullMessageResponse(Header):
    """Where to go on, and the queue's bounds; the body holds the records back to back."""

    next_offset: int = field(name="nextBeginOffset")
    min_offset: int
    max_offset: int
    suggested_broker_id: int = field(name="suggestWhichBrokerId", default=0)


class PullMessage(Header):
    """Ask one queue for messages from an offset on."""

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
