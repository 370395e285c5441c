"""Checks that a large request consists nearly only of message bodies, before protobuf parses the request.

A parsed request may take forty times its bytes, because a message without fields is encoded in two bytes. A body takes
the same memory before and after parsing. No network here.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from pyromq.proxy.proto.definition_pb2 import Message
from pyromq.proxy.proto.service_pb2 import SendMessageRequest

MAX_FIELDS = 10_000  # limit of the fields in a request: the check takes some ms
_MESSAGES = SendMessageRequest.DESCRIPTOR.fields_by_name["messages"].number
_BODY = Message.DESCRIPTOR.fields_by_name["body"].number
_BYTES = 2  # wire type of bytes, texts and messages
_FIXED = {1: 8, 5: 4}  # sizes by wire type


def check_bodies(request: bytes, max_other_bytes: int) -> None:
    """Raise `DecodeError` if a SendMessageRequest has more than `max_other_bytes` without bodies, or is damaged."""
    other_bytes, fields_left = len(request), MAX_FIELDS
    ends = [len(request)]  # the end of the request, and the end of the message at `at`
    at = 0
    try:
        while at < len(request):
            number, kind, at = _key(request, at)
            if (fields_left := fields_left - 1) < 0:
                raise DecodeError("too many fields")
            if kind == _BYTES:
                size, at = _varint(request, at)
                if size > ends[-1] - at:  # a claimed size could hide other bytes, which are parsed before this field
                    raise DecodeError("a field is longer than its message")
                if len(ends) == 1 and number == _MESSAGES and size:
                    ends.append(at + size)
                    continue
                if len(ends) == 2 and number == _BODY:
                    other_bytes -= size
                at += size
            elif kind in _FIXED:
                at += _FIXED[kind]
            elif kind == 0:
                _, at = _varint(request, at)
            else:
                raise DecodeError("a group")
            if at >= ends[-1] and len(ends) == 2:
                at = ends.pop()
    except IndexError as error:
        raise DecodeError("incomplete") from error
    if other_bytes > max_other_bytes:
        raise DecodeError(f"more than {max_other_bytes} bytes that are not bodies")


def _key(data: bytes, at: int) -> tuple[int, int, int]:
    key, at = _varint(data, at)
    return key >> 3, key & 7, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
        if shift > 63:
            raise DecodeError("a number of more than 64 bits")
