"""Checks, before a large request is parsed, that nearly all of it is bodies of messages.

Parsed, a request may take forty times its bytes: two bytes are a message without fields. Only bodies stay as they are.
No network here.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from pyromq.proxy.proto.definition_pb2 import Message
from pyromq.proxy.proto.service_pb2 import SendMessageRequest

MAX_FIELDS = 10_000  # limit of the fields that are looked at: some ms
_MESSAGES = SendMessageRequest.DESCRIPTOR.fields_by_name["messages"].number
_BODY = Message.DESCRIPTOR.fields_by_name["body"].number
_BYTES = 2  # wire type of bytes, texts and messages
_FIXED = {1: 8, 5: 4}  # sizes by wire type


def check_bodies(request: bytes, most: int) -> None:
    """Raise `DecodeError` if a SendMessageRequest has more than `most` bytes beside its bodies, or is damaged."""
    beside, left = len(request), MAX_FIELDS
    ends = [len(request)]  # of the request and, inside, of a message
    at = 0
    try:
        while at < len(request):
            number, kind, at = _key(request, at)
            if (left := left - 1) < 0:
                raise DecodeError("too many fields")
            if kind == _BYTES:
                size, at = _varint(request, at)
                if len(ends) == 1 and number == _MESSAGES and size:
                    ends.append(at + size)
                    continue
                if len(ends) == 2 and number == _BODY:
                    beside -= size
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
    if beside > most:
        raise DecodeError(f"more than {most} bytes beside bodies")


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
