"""Translates errors to the statuses of RocketMQ 5: a code and a string in each answer."""

from __future__ import annotations

from pyromq import errors
from pyromq.proxy.proto import definition_pb2 as proto


class GrpcRefusal(errors.MQError):
    """The proxy refuses a request with a status of RocketMQ 5."""

    cure = "Read the text: it names the field, its value and what to do."

    def __init__(self, code: proto.Code, text: str) -> None:
        super().__init__(text)
        self.status = code


# An error has the status of the first class in this order that matches. Source: RocketMQ 5.3.3, ResponseBuilder.
_STATUSES: tuple[tuple[type[errors.MQError], proto.Code], ...] = (
    (errors.AccessDenied, proto.FORBIDDEN),
    (errors.NoPermission, proto.FORBIDDEN),
    (errors.TopicNotFound, proto.TOPIC_NOT_FOUND),
    (errors.GroupNotFound, proto.CONSUMER_GROUP_NOT_FOUND),
    (errors.InvalidReceiptHandle, proto.INVALID_RECEIPT_HANDLE),
    (errors.ReceiptHandleExpired, proto.INVALID_RECEIPT_HANDLE),
    (errors.RecallRefused, proto.BAD_REQUEST),
    (errors.SubscriptionParseFailed, proto.ILLEGAL_FILTER_EXPRESSION),
    (errors.LimitReached, proto.TOO_MANY_REQUESTS),
    (errors.SystemBusy, proto.TOO_MANY_REQUESTS),
    (errors.FlowControl, proto.TOO_MANY_REQUESTS),
    (errors.CodeNotSupported, proto.UNSUPPORTED),
    (errors.MessageRefused, proto.BAD_REQUEST),
    (errors.IllegalName, proto.ILLEGAL_TOPIC),
    (errors.IllegalMessage, proto.BAD_REQUEST),
    (errors.DeadlineExceeded, proto.PROXY_TIMEOUT),
    (errors.Unavailable, proto.HA_NOT_AVAILABLE),
)


def status_of(error: errors.MQError) -> proto.Status:
    """Return the status that stands for an error, with the error's text."""
    if isinstance(error, GrpcRefusal):
        return proto.Status(code=error.status, message=str(error))
    code = next((code for kind, code in _STATUSES if isinstance(error, kind)), proto.INTERNAL_SERVER_ERROR)
    return proto.Status(code=code, message=str(error))


def ok() -> proto.Status:
    return proto.Status(code=proto.OK, message="OK")
