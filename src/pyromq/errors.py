"""Everything that can go wrong, as one tree; each error a peer can see carries its response code.

The broker raises an error, its code and text travel on the wire, and the client raises the same class again.
The first level says who is at fault: our caller (`UsageError`), the peer (`ProtocolError`), the broker's answer
(`BrokerError`), the network (`Unavailable`), the disk (`StoreError`).
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


class ResponseCode(IntEnum):
    """Codes of answers. Source: RocketMQ 4.9.8, ResponseCode and RemotingSysResponseCode."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    FILTER_DATA_NOT_EXIST = 27
    FILTER_DATA_NOT_LATEST = 28
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    FLOW_CONTROL = 215
    ILLEGAL_OPERATION = 604  # RocketMQ 5
    BATCH_DECIDED = 100_330  # ours, as the next
    BATCH_INCOMPLETE = 100_331


class MQError(Exception):
    """Root of the tree. `retriable` says whether the same call may succeed later or elsewhere."""

    code: int = ResponseCode.SYSTEM_ERROR
    retriable: ClassVar[bool] = False


class UsageError(MQError):
    """Our caller asked for something that cannot be: a name, an option, a state."""


class IllegalName(UsageError):
    """A topic or group name that RocketMQ does not allow."""


class IllegalMessage(UsageError):
    """A message without body, too large, or with properties that cannot be stored."""

    code = ResponseCode.MESSAGE_ILLEGAL


class AlreadyExists(UsageError):
    """A topic or group that was to be created is there."""


class NotRunning(UsageError):
    """The client or server was not started, or was stopped."""


class ProtocolError(MQError):
    """The peer sent bytes that are no frame, or a header that does not fit its code."""


class FrameTooLarge(ProtocolError):
    """A frame's length word is above the limit (16 MiB) or below what a frame needs."""


class MissingField(ProtocolError):
    """A required header field is absent. The text is Java's: `the custom field <x> is null`."""


class Unavailable(MQError):
    """The network: nothing listens, the connection broke, or no answer came in time."""

    retriable = True


class ConnectionLost(Unavailable):
    """The connection closed while a call was waiting for its answer."""


class AnotherServer(ConnectionLost):
    """Something listens there, but it does not speak RocketMQ's protocol."""


class DeadlineExceeded(Unavailable):
    """No answer within the time the caller gave."""


class NoReply(DeadlineExceeded):
    """A request was stored, but no reply came in time; somebody may be working on it."""

    code = 10006  # Java's ClientErrorCode.REQUEST_TIMEOUT_EXCEPTION
    retriable = False


class NoNameServer(Unavailable):
    """None of the configured name servers answers."""


class StoreError(MQError):
    """The store cannot do its work."""

    code = ResponseCode.SERVICE_NOT_AVAILABLE


class StoreLocked(StoreError):
    """Another process has this data folder open."""


class StoreCorrupt(StoreError):
    """A file of the store is not what its format says; the text names the file and the way out."""


class StoreNotWritable(StoreError):
    """The folder cannot be written, the disk is full, or the store is closed."""


class BrokerError(MQError):
    """An answer that says no. `code` is the response code; the text is the answer's remark."""

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        if code is not None:
            self.code = code


class SystemBusy(BrokerError):
    """The server sheds load; try again later."""

    code = ResponseCode.SYSTEM_BUSY
    retriable = True


class CodeNotSupported(BrokerError):
    """The server has no answer for this request code."""

    code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED


class MessageRefused(BrokerError):
    """The broker found the message illegal: body, properties or topic too large."""

    code = ResponseCode.MESSAGE_ILLEGAL


class ServiceNotAvailable(BrokerError):
    """The broker is closing, its disk is full, or it is a slave."""

    code = ResponseCode.SERVICE_NOT_AVAILABLE
    retriable = True


class NoPermission(BrokerError):
    """Broker, topic or group does not allow this."""

    code = ResponseCode.NO_PERMISSION


class TopicNotFound(BrokerError):
    """No such topic at the broker, or no route for it at the name server."""

    code = ResponseCode.TOPIC_NOT_EXIST


class QueryNotFound(BrokerError):
    """No stored offset, no message for the key, no such configuration entry."""

    code = ResponseCode.QUERY_NOT_FOUND


class SubscriptionParseFailed(BrokerError):
    """The subscription expression cannot be understood."""

    code = ResponseCode.SUBSCRIPTION_PARSE_FAILED


class SubscriptionNotFound(BrokerError):
    """The group has not told the broker what it subscribes to."""

    code = ResponseCode.SUBSCRIPTION_NOT_EXIST
    retriable = True


class SubscriptionNotLatest(BrokerError):
    """The broker knows an older subscription of the group; a heartbeat will mend it."""

    code = ResponseCode.SUBSCRIPTION_NOT_LATEST
    retriable = True


class GroupNotFound(BrokerError):
    """No such consumer group, and it is not created automatically."""

    code = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


class FilterNotFound(BrokerError):
    """The broker has no compiled filter for this group and topic."""

    code = ResponseCode.FILTER_DATA_NOT_EXIST
    retriable = True


class FilterNotLatest(BrokerError):
    """The broker's compiled filter is older than the request's."""

    code = ResponseCode.FILTER_DATA_NOT_LATEST
    retriable = True


class ConsumerNotOnline(BrokerError):
    """No member of the group is connected to this broker."""

    code = ResponseCode.CONSUMER_NOT_ONLINE


class ConsumeTimeout(BrokerError):
    """A request relayed to a consumer was not answered in time."""

    code = ResponseCode.CONSUME_MSG_TIMEOUT


class FlowControl(BrokerError):
    """The broker asks the client to slow down."""

    code = ResponseCode.FLOW_CONTROL
    retriable = True


class RecallRefused(BrokerError):
    """A delayed message cannot be cancelled: the handle is not one, or the message no longer waits."""

    code = ResponseCode.ILLEGAL_OPERATION


class BatchDecided(BrokerError):
    """The batch transaction of this name has its decision already; what comes late belongs to an attempt that lost."""

    code = ResponseCode.BATCH_DECIDED


class BatchIncomplete(BrokerError):
    """A batch cannot be committed: the broker does not hold all messages of an attempt (any more)."""

    code = ResponseCode.BATCH_INCOMPLETE


_BY_CODE: dict[int, type[BrokerError]] = {
    int(error.code): error for error in BrokerError.__subclasses__() if error.code != ResponseCode.SYSTEM_ERROR
}


def from_response(code: int, remark: str | None) -> BrokerError:
    """Return the error that a response of this code stands for; unknown codes give a plain `BrokerError`."""
    text = remark or f"answered with code {code} and no text"
    error = _BY_CODE.get(code)
    return error(text) if error is not None else BrokerError(text, code)
