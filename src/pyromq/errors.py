"""All errors, as one tree; an error that a peer can receive carries its response code.

When the broker raises an error, its code and text travel on the wire, and the client raises the same class. The first
level of the tree names the side at fault: the caller (`UsageError`), the peer (`ProtocolError`), the broker's answer
(`BrokerError`), the network (`Unavailable`), the disk (`StoreError`).
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import ClassVar

from pyromq.excerpt import excerpt

# A hint that RocketMQ's servers add to their error texts.
_FAQ = re.compile(r"[\s,]*See https?://\S+ for further details\.?")
_MAX_REMARK = 2000  # limit of characters kept of a server's error text: twice as many as pyromq's brokers send


class ResponseCode(IntEnum):
    """Codes of responses. Source: RocketMQ 4.9.8, ResponseCode and RemotingSysResponseCode."""

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
    INVALID_PARAMETER = 29  # RocketMQ 5
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    NO_MESSAGE = 208  # RocketMQ 5
    ACL_UPDATE_FAILED = 209
    POLLING_FULL = 209  # RocketMQ 5, in responses to a pop, like the next but one
    ACL_DELETE_FAILED = 210
    POLLING_TIMEOUT = 210
    ACL_WHITE_LIST_FAILED = 211
    FLOW_CONTROL = 215
    ILLEGAL_OPERATION = 604  # RocketMQ 5
    BATCH_DECIDED = 100_330  # only in pyromq, like the next code
    BATCH_INCOMPLETE = 100_331


class MQError(Exception):
    """Root of all errors of pyromq.

    `retriable`: the same call may succeed later or elsewhere. `cure`: what the user can do.
    """

    code: int = ResponseCode.SYSTEM_ERROR
    retriable: ClassVar[bool] = False
    cure: ClassVar[str] = "Read the error text: it names the object, its value and, where possible, what to do."


class UsageError(MQError):
    """The caller passed an invalid name or option, or called in the wrong state."""

    cure = "Correct the call; it cannot succeed as it is."


class IllegalName(UsageError):
    """A topic or group name that RocketMQ does not allow."""

    cure = "Use letters, digits, `_`, `-`, `%` and `|`, at most 127 of them for a topic, 255 for a group."


class IllegalMessage(UsageError):
    """A message without body, too large, or with properties that cannot be stored."""

    code = ResponseCode.MESSAGE_ILLEGAL
    cure = "Give the message a body, make it smaller, or rename the property that the text names."


class UndecodableBody(IllegalMessage):
    """The compressed body of a received message cannot be decompressed, or is too large to be decompressed."""

    cure = "Raise `max_body_bytes` if large bodies are expected, or install the package that the text names."


class UnfitBody(IllegalMessage):
    """The body of a received message is not JSON, or does not have the wanted type."""

    cure = "Correct the sender or the type, then resend the dead letter: `pyromq dlq redrive`."


class AlreadyExists(UsageError):
    """A topic or group cannot be created, because it exists."""

    cure = "Use the existing topic or group, or change its settings: `alter_topic`, `alter_group`."


class NotRunning(UsageError):
    """The client or server was not started, or was stopped."""

    cure = "Use the client inside its `with` block, or call `start` first. A closed client cannot be started again."


class ProtocolError(MQError):
    """The peer sent bytes that are not a frame, or a header that does not fit the request's or response's code."""

    cure = "Check which server listens at the address: `pyromq doctor`. If it is a broker, report the error text."


class FrameTooLarge(ProtocolError):
    """A frame's length is above the limit (16 MiB), or below the least size of a frame."""

    cure = "Send less in one request. If the length is absurd, the peer does not speak RocketMQ's protocol."


class MissingField(ProtocolError):
    """A required header field is absent. The error's text is Java's: `the custom field <x> is null`."""

    cure = "Correct the client that sent the request: the protocol requires the field."


class Unavailable(MQError):
    """The peer cannot be reached: nothing listens, the connection broke, or no response came in time."""

    retriable = True
    cure = "Try again. If the error persists, `pyromq doctor` shows which server does not respond."


class ConnectionLost(Unavailable):
    """The connection closed while a call was waiting for its response."""

    cure = "Send the message again. The broker may have stored it already, so consumers must tolerate duplicates."


class AnotherServer(ConnectionLost):
    """A server listens at the address, but does not speak RocketMQ's protocol."""

    cure = "Correct host and port. By default name servers listen on 9876, brokers on 10911."


class TlsRefused(Unavailable):
    """The TLS handshake failed: one side does not speak TLS, or does not trust the other side's certificate."""

    cure = "Enable TLS on both sides, and give the client the authority that signed the server's certificate."


class HostNotFound(Unavailable):
    """The name of a host cannot be resolved to an address."""

    cure = "Correct the host name. If the name is right, check DNS and `/etc/hosts`."


class DeadlineExceeded(Unavailable):
    """No response came within the time that the caller gave."""

    cure = "Try again, or raise `timeout`. The broker may have stored the message."


class SilentServer(Unavailable):
    """The server did not answer earlier requests or connections, so this request fails without waiting."""

    retriable = False
    cure = "Check the server's process and host, then try again."


class NoReply(DeadlineExceeded):
    """A request message was stored, but no reply message came in time; a consumer may still work on the request."""

    code = 10006  # Java's ClientErrorCode.REQUEST_TIMEOUT_EXCEPTION
    retriable = False
    cure = (
        "Repeat the request only if its consumer tolerates duplicates, as a consumer may still process it. "
        "Or raise `timeout`."
    )


class NoNameServer(Unavailable):
    """None of the configured name servers responds."""

    cure = "Start a name server (`pyromq serve`), or correct the address or `NAMESRV_ADDR`."


class RegistryUnavailable(Unavailable):
    """No endpoint of the registry of replica sets (etcd) answered."""

    cure = "Start etcd, or correct `--etcd`. A replica set works without etcd as long as all its replicas run."


class RegistryRefused(UsageError):
    """The registry of replica sets (etcd) refused this broker: account, certificate, or the request itself."""

    cure = "Correct the account, certificate or address of etcd; the error text has etcd's reason."


class LeaseGone(RegistryRefused):
    """The registry does not know the lease: it ended, and its keys were deleted."""

    cure = "Nothing: the broker takes a new lease automatically."


class StoreError(MQError):
    """The message store cannot do its work."""

    code = ResponseCode.SERVICE_NOT_AVAILABLE
    cure = "Read the broker's log. On a stopped broker, `pyromq store check FOLDER` shows what is damaged."


class StoreLocked(StoreError):
    """Another process has this data folder open."""

    cure = "Stop the other process, or use another data folder (`--data`)."


class StoreCorrupt(StoreError):
    """A file of the store does not have the content that its format requires.

    The text names the file and the remedy.
    """

    cure = "Copy the folder, then run `pyromq store check` and `pyromq store repair`."


class StoreTooNew(StoreError):
    """A newer version wrote the data folder, in a format that this version cannot read."""

    cure = "Start the newer version, or restore the copy of the folder that was made before the upgrade."


class StoreNotWritable(StoreError):
    """The folder cannot be written, the disk is full, or the store is closed."""

    cure = "Free space or repair the disk, then start the broker again."


class BrokerError(MQError):
    """The broker refused the request. `code` is the response code; the text is the response's remark."""

    cure = "Read the error text: the broker wrote it."

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        if code is not None:
            self.code = code


class SystemBusy(BrokerError):
    """The server is overloaded and refused the request; the same request may succeed later."""

    code = ResponseCode.SYSTEM_BUSY
    retriable = True
    cure = "Try again later. Producers retry automatically."


class LimitReached(SystemBusy):
    """A limit of the server, or the share of the limit that one connection may use, is used up.

    `setting` is the name of the limit.
    """

    cure = "Use less of the limited resource, or raise the setting that the text names."

    def __init__(self, setting: str, limit: int, text: str) -> None:
        super().__init__(f"{text}, or raise {setting} (now {limit})")
        self.setting = setting


class PopsInFlight(LimitReached):
    """A group has popped so often without acknowledging, that the broker hands out no more messages.

    RocketMQ 5's clients pause after this code.
    """

    code = ResponseCode.POLLING_FULL
    cure = "Acknowledge messages, pop more messages per request, or raise the broker's `maxPopsInFlight`."


class CodeNotSupported(BrokerError):
    """The server does not support this request code."""

    code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    cure = "Send the request to a server that supports it: docs/compatibility.md lists every request."


class MessageRefused(BrokerError):
    """The broker refused the message: its body, properties or topic are too large or illegal."""

    code = ResponseCode.MESSAGE_ILLEGAL
    cure = "Make the message smaller, or raise the broker's `maxMessageSize`."


class ServiceNotAvailable(BrokerError):
    """The broker is closing, its disk is full, or the broker is a slave."""

    code = ResponseCode.SERVICE_NOT_AVAILABLE
    retriable = True
    cure = "Try again, or use another broker. The text says whether the disk is full."


class NotTheMaster(ServiceNotAvailable):
    """The broker is a replica and refuses what only its master does.

    `master` is the master's address; None if the broker knows none. A replica refuses decisions on half messages with
    code 11, all else with 14.
    """

    cure = (
        "Send the request to the master that the text names; pyromq's clients do so automatically. Without a "
        "master: wait."
    )

    def __init__(self, master: str | None, code: int = ResponseCode.SERVICE_NOT_AVAILABLE) -> None:
        super().__init__(_NOT_THE_MASTER + (master or _NO_MASTER), code)
        self.master = master


class NoPermission(BrokerError):
    """The permission of the broker, topic or group does not allow the operation."""

    code = ResponseCode.NO_PERMISSION
    cure = "Use another topic, or change the `perm` of this topic or the broker's `brokerPermission`."


class AccessDenied(BrokerError):
    """The broker's access control refused the request: no account, a wrong signature, or a missing right."""

    cure = "Give the client the keys of an account, or give the account the right: `pyromq acl check`."


class TopicNotFound(BrokerError):
    """No such topic at the broker, or no route for it at the name server."""

    code = ResponseCode.TOPIC_NOT_EXIST
    cure = "Create the topic (`pyromq topic create`), or correct its name: `pyromq topic list` shows all topics."


class QueryNotFound(BrokerError):
    """The broker found nothing: no stored offset, no message with the key, or no such configuration entry."""

    code = ResponseCode.QUERY_NOT_FOUND
    cure = "If an entry should exist, correct the key, the queue or the group. Otherwise nothing is wrong."


class SubscriptionParseFailed(BrokerError):
    """The subscription expression cannot be understood."""

    code = ResponseCode.SUBSCRIPTION_PARSE_FAILED
    cure = "Write tags as `a || b`, and SQL92 expressions as docs/filters.md describes."


class SubscriptionNotFound(BrokerError):
    """The broker knows no subscription of the group."""

    code = ResponseCode.SUBSCRIPTION_NOT_EXIST
    retriable = True
    cure = "Wait for the consumer's next heartbeat, or start a consumer of the group."


class SubscriptionNotLatest(BrokerError):
    """The broker knows an older subscription of the group; the client's next heartbeat renews the subscription."""

    code = ResponseCode.SUBSCRIPTION_NOT_LATEST
    retriable = True
    cure = "Wait for the consumer's next heartbeat. Consumers retry automatically."


class GroupNotFound(BrokerError):
    """The consumer group does not exist, and the broker does not create groups automatically."""

    code = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    cure = "Create the group: `pyromq group create`. This broker has `autoCreateSubscriptionGroup` off."


class FilterNotFound(BrokerError):
    """The broker has no compiled filter for this group and topic."""

    code = ResponseCode.FILTER_DATA_NOT_EXIST
    retriable = True
    cure = "Wait for the consumer's next heartbeat, which has the expression."


class FilterNotLatest(BrokerError):
    """The broker's compiled filter is older than the request's."""

    code = ResponseCode.FILTER_DATA_NOT_LATEST
    retriable = True
    cure = "Wait for the consumer's next heartbeat, which has the expression."


class ConsumerNotOnline(BrokerError):
    """No member of the consumer group is connected to this broker."""

    code = ResponseCode.CONSUMER_NOT_ONLINE
    cure = "Start a member of the group, or send the request to the broker that the member is connected to."


class ConsumeTimeout(BrokerError):
    """A request that the broker relayed to a consumer was not answered in time."""

    code = ResponseCode.CONSUME_MSG_TIMEOUT
    cure = "Check what the listener does: `pyromq member show GROUP CLIENT --stacks`."


class FlowControl(BrokerError):
    """The broker asks the client to send more slowly."""

    code = ResponseCode.FLOW_CONTROL
    retriable = True
    cure = "Wait and try again. Consumers retry automatically."


class RecallRefused(BrokerError):
    """A scheduled message cannot be cancelled: the handle is invalid, or the message is delivered or cancelled."""

    code = ResponseCode.ILLEGAL_OPERATION
    cure = "Correct the handle. If the message was delivered or cancelled before, nothing is left to do."


class InvalidReceiptHandle(BrokerError):
    """A receipt handle cannot be read, or belongs to another topic or queue."""

    code = ResponseCode.INVALID_PARAMETER
    cure = (
        "Use the handle that came with the message, unchanged. After a change of the invisible time use the new handle."
    )


class ReceiptHandleExpired(BrokerError):
    """A receipt handle can neither acknowledge its message nor change its invisible time any more.

    The message was handed out again, or its invisible time has been changed.
    """

    code = ResponseCode.NO_MESSAGE
    cure = (
        "Expect the message again. Process messages faster, pop them with a longer invisible time, or extend "
        "the time earlier."
    )


class BatchDecided(BrokerError):
    """The batch transaction of this name is committed or rolled back.

    Messages that arrive later belong to an attempt that lost.
    """

    code = ResponseCode.BATCH_DECIDED
    cure = "Call `lookup(name)` for the decision. Use a new name for new messages."


class BatchIncomplete(BrokerError):
    """A batch transaction cannot be committed: the broker lacks messages of one of its attempts."""

    code = ResponseCode.BATCH_INCOMPLETE
    cure = "Send the missing messages in a new attempt, then commit that attempt."


# Response codes of `NotTheMaster`.
REFUSALS_OF_REPLICAS = frozenset({int(ResponseCode.SERVICE_NOT_AVAILABLE), int(ResponseCode.SLAVE_NOT_AVAILABLE)})
_NOT_THE_MASTER = "not the master: "  # followed by the master's address, `host:port`
_NO_MASTER = "no master is known"

DENIED = "AclException: "  # begins the texts of refusals by access control: other errors have code 1, too, as in Java
_LONGEST_PACKAGE = 60  # limit of characters in a Java class's name before `AclException: `

_BY_CODE: dict[int, type[BrokerError]] = {
    int(error.code): error for error in BrokerError.__subclasses__() if error.code != ResponseCode.SYSTEM_ERROR
}


def from_response(code: int, remark: str | None) -> BrokerError:
    """Return the error that a response with this code stands for; an unknown code gives a plain `BrokerError`.

    The error text is the remark on one line, printable and of bounded length, because the peer chose the remark.
    """
    text = _one_line(remark) if remark else f"answered with code {code} and no text"
    before, is_denied, reason = text.partition(DENIED)
    if is_denied and code == ResponseCode.SYSTEM_ERROR and len(before) < _LONGEST_PACKAGE:
        return AccessDenied(reason)
    if code in REFUSALS_OF_REPLICAS and text.startswith(_NOT_THE_MASTER.strip()):
        return NotTheMaster(_address_in(text.removeprefix(_NOT_THE_MASTER)), code)
    error = _BY_CODE.get(code)
    return error(text) if error is not None else BrokerError(text, code)


def _address_in(text: str) -> str | None:
    """Return `text` if it is an address `host:port`, else None."""
    host, _, port = text.rpartition(":")
    is_address = host and " " not in text and port.isdecimal() and len(port) <= 5 and 0 < int(port) <= 65535
    return text if is_address else None


def _one_line(remark: str) -> str:
    text = _FAQ.sub("", " ".join(line.strip() for line in remark.splitlines()))
    return excerpt(text, _MAX_REMARK)
