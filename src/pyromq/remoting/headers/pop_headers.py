"""Headers of pop consumption: receive, acknowledge, change the invisible time, and the assignment of queues.

Source: RocketMQ 5.3.3, PopMessageRequestHeader and related headers.
"""

from __future__ import annotations

from pyromq.errors import ResponseCode
from pyromq.remoting import bodies
from pyromq.remoting.codes import RequestCode
from pyromq.remoting.header import Header, field

MAX_POPPED = 32  # limit of messages per pop. Source: PopMessageProcessor
MIN_INVISIBLE_SECONDS = 1.0  # least invisible time of receives of RocketMQ 5's clients
MAX_INVISIBLE_SECONDS = 12 * 3600.0  # limit of the invisible time: far less than retention keeps messages
NOTHING_POPPED = (ResponseCode.PULL_NOT_FOUND, ResponseCode.NO_MESSAGE, ResponseCode.POLLING_TIMEOUT)  # empty pops


class PopMessageResponse(Header):
    """Response to a pop: the parts of the receipt handles. The body has the records, one after another.

    `rest` is the number of messages that the group can still pop. `receipt_handle` reads the three infos.
    """

    pop_ms: int = field(name="popTime")
    invisible_ms: int = field(name="invisibleTime")
    revive_queue: int = field(name="reviveQid")
    rest: int = field(name="restNum")
    start_offset_info: str | None = None
    message_offset_info: str | None = field(name="msgOffsetInfo", default=None)
    order_count_info: str | None = None
    is_renewed: bool | None = field(name="renewed", default=None)  # only in pyromq: the answer to `renewed_for`


class PopMessage(Header):
    """Request: hand out messages of a topic for `invisible_ms`; queue -1 means all queues of the broker.

    `init_mode` 0 lets a new group begin at the first message, 1 at the end. `born_ms` and `poll_ms` give the deadline
    of a long poll. An orderly pop with the `attempt_id` of an earlier one returns the same messages again.
    """

    code = RequestCode.POP_MESSAGE
    reply_header = PopMessageResponse
    consumer_group: str
    topic: str
    queue_id: int
    max_count: int = field(name="maxMsgNums")
    invisible_ms: int = field(name="invisibleTime")
    poll_ms: int = field(name="pollTime")
    born_ms: int = field(name="bornTime")
    init_mode: int
    expression_type: str | None = field(name="expType", default=None)
    expression: str | None = field(name="exp", default=None)
    order: bool | None = None
    attempt_id: str | None = None
    broker_name: str | None = field(name="bname", default=None)
    # Only in pyromq: messages stay invisible as long as the member with this client id sends heartbeats.
    renewed_for: str | None = None


class AckMessage(Header):
    """Request: acknowledge the message at a queue offset. The topic is the retry topic for a message out of it."""

    code = RequestCode.ACK_MESSAGE
    consumer_group: str
    topic: str
    queue_id: int
    receipt_handle: str = field(name="extraInfo")
    offset: int
    broker_name: str | None = field(name="bname", default=None)


class BatchAckMessage(Header):
    """Request: acknowledge the messages in the body."""

    code = RequestCode.BATCH_ACK_MESSAGE
    request_body = bodies.BatchAcks


class ChangeInvisibleTimeResponse(Header):
    """Response: the parts of the new receipt handle. The old handle is invalid from then on."""

    pop_ms: int = field(name="popTime")
    invisible_ms: int = field(name="invisibleTime")
    revive_queue: int = field(name="reviveQid")


class ChangeInvisibleTime(Header):
    """Request: make a popped message visible again `invisible_ms` from now; this replaces the earlier time."""

    code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
    reply_header = ChangeInvisibleTimeResponse
    consumer_group: str
    topic: str
    queue_id: int
    receipt_handle: str = field(name="extraInfo")
    offset: int
    invisible_ms: int = field(name="invisibleTime")
    broker_name: str | None = field(name="bname", default=None)


class NotificationResponse(Header):
    """Response: whether there is a message to pop."""

    has_message: bool = field(name="hasMsg")
    polling_full: bool = False


class Notification(Header):
    """Request: respond, without a message, as soon as there is a message to pop."""

    code = RequestCode.NOTIFICATION
    reply_header = NotificationResponse
    consumer_group: str
    topic: str
    queue_id: int
    poll_ms: int = field(name="pollTime")
    born_ms: int = field(name="bornTime")
    order: bool | None = None
    attempt_id: str | None = None
    broker_name: str | None = field(name="bname", default=None)


class PollingInfoResponse(Header):
    """Response with the number of waiting pops."""

    waiting: int = field(name="pollingNum")


class PollingInfo(Header):
    """Request for the number of pops of a group that wait for messages of a queue (-1: of any queue)."""

    code = RequestCode.POLLING_INFO
    reply_header = PollingInfoResponse
    consumer_group: str
    topic: str
    queue_id: int
    broker_name: str | None = field(name="bname", default=None)


class PeekMessage(Header):
    """Request for messages that a pop would hand out, without handing them out."""

    code = RequestCode.PEEK_MESSAGE
    reply_header = PopMessageResponse
    topic: str
    queue_id: int
    max_count: int = field(name="maxMsgNums")
    consumer_group: str
    broker_name: str | None = field(name="bname", default=None)


class QueryAssignment(Header):
    """Request of a push consumer for its queues, and whether it pulls or pops them."""

    code = RequestCode.QUERY_ASSIGNMENT
    request_body = bodies.AssignmentQuery
    reply_body = bodies.Assignments


class SetMessageRequestMode(Header):
    """Request of an administrator: let the members of a group pull, or pop, a topic."""

    code = RequestCode.SET_MESSAGE_REQUEST_MODE
    request_body = bodies.MessageRequestMode
