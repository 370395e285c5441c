"""Translates errors to the statuses of RocketMQ 5: a code and a text in each answer."""

from __future__ import annotations

from pyromq.errors import (
    AccessDenied,
    CodeNotSupported,
    DeadlineExceeded,
    FlowControl,
    GroupNotFound,
    IllegalMessage,
    IllegalName,
    InvalidReceiptHandle,
    LimitReached,
    MessageRefused,
    MQError,
    NoPermission,
    RecallRefused,
    ReceiptHandleExpired,
    SubscriptionParseFailed,
    SystemBusy,
    TopicNotFound,
    Unavailable,
)
from pyromq.proxy.proto import definition_pb2 as proto


class GrpcRefusal(MQError):
    """The proxy refuses a request with a status of RocketMQ 5."""

    cure = "Read the text: it names the field, its value and what to do."

    def __init__(self, code: proto.Code, text: str) -> None:
        super().__init__(text)
        self.status = code


# An error has the status of the first class in this order that matches. Source: RocketMQ 5.3.3, ResponseBuilder.
_STATUSES: tuple[tuple[type[MQError], proto.Code], ...] = (
    (AccessDenied, proto.FORBIDDEN),
    (NoPermission, proto.FORBIDDEN),
    (TopicNotFound, proto.TOPIC_NOT_FOUND),
    (GroupNotFound, proto.CONSUMER_GROUP_NOT_FOUND),
    (InvalidReceiptHandle, proto.INVALID_RECEIPT_HANDLE),
    (ReceiptHandleExpired, proto.INVALID_RECEIPT_HANDLE),
    (RecallRefused, proto.BAD_REQUEST),
    (SubscriptionParseFailed, proto.ILLEGAL_FILTER_EXPRESSION),
    (LimitReached, proto.TOO_MANY_REQUESTS),
    (SystemBusy, proto.TOO_MANY_REQUESTS),
    (FlowControl, proto.TOO_MANY_REQUESTS),
    (CodeNotSupported, proto.UNSUPPORTED),
    (MessageRefused, proto.BAD_REQUEST),
    (IllegalName, proto.ILLEGAL_TOPIC),
    (IllegalMessage, proto.BAD_REQUEST),
    (DeadlineExceeded, proto.PROXY_TIMEOUT),
    (Unavailable, proto.HA_NOT_AVAILABLE),
)


def status_of(error: MQError) -> proto.Status:
    """Return the status that stands for an error, with the error's text."""
    if isinstance(error, GrpcRefusal):
        return proto.Status(code=error.status, message=str(error))
    code = next((code for kind, code in _STATUSES if isinstance(error, kind)), proto.INTERNAL_SERVER_ERROR)
    return proto.Status(code=code, message=str(error))


def ok() -> proto.Status:
    return proto.Status(code=proto.OK, message="OK")
