"""Scheduled messages: cancel, count, list. Source: RocketMQ 5.3.3; the list is ours."""

from __future__ import annotations

from pyromq.remoting import bodies
from pyromq.remoting.codes import RequestCode
from pyromq.remoting.header import Header, field


class RecallMessageResponse(Header):
    """The unique id of the cancelled message."""

    message_id: str = field(name="msgId")


class RecallMessage(Header):
    """Cancel a message by the handle of its send result."""

    code = RequestCode.RECALL_MESSAGE
    reply_header = RecallMessageResponse
    topic: str
    recall_handle: str
    producer_group: str | None = None
    broker_name: str | None = field(name="bname", default=None)


class CountTimers(Header):
    """The number of scheduled messages by topic."""

    code = RequestCode.GET_TIMER_METRICS
    reply_body = bodies.TimerCounts


class ListTimers(Header):
    """Scheduled messages of a topic in order of delivery time, from a time (ms) and an entry at that time on."""

    code = RequestCode.LIST_TIMERS
    reply_body = bodies.TimerList
    topic: str
    count: int
    begin_ms: int = 0
    after: int = -1
