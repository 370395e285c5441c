"""Large requests are parsed only if they consist nearly only of message bodies."""

import pytest
from google.protobuf.message import DecodeError

from pyromq.proxy.body_check import check_bodies
from pyromq.proxy.proto import definition_pb2 as proto
from pyromq.proxy.proto.service_pb2 import SendMessageRequest

MAX_OTHER_BYTES = 1 << 10


def request_of(*messages: proto.Message) -> bytes:
    data: bytes = SendMessageRequest(messages=messages).SerializeToString()
    return data


def varint(number: int) -> bytes:
    data = b""
    while number > 127:
        data += bytes([number & 127 | 128])
        number >>= 7
    return data + bytes([number])


def field(number: int, size: int) -> bytes:
    """The beginning of a field of bytes with this size."""
    return varint(number << 3 | 2) + varint(size)


MANY_KEYS = proto.Message(system_properties=proto.SystemProperties(keys=[""] * MAX_OTHER_BYTES))
LARGE_BODY = proto.Message(body=bytes(64 << 10))
BODY = proto.Message.DESCRIPTOR.fields_by_name["body"].number
HUGE = 1 << 30
LYING = {
    "a body beyond the request": field(1, 8) + field(BODY, HUGE),
    "a message beyond the request": field(1, HUGE) + field(BODY, HUGE - 8),
    "a body beyond its message": field(1, 4) + field(BODY, 4096) + bytes(4096),
}


def test_bodies_do_not_count():
    check_bodies(request_of(LARGE_BODY, LARGE_BODY), MAX_OTHER_BYTES)


@pytest.mark.parametrize("lie", ["", *LYING])
def test_other_bytes_are_limited_whatever_sizes_a_client_claims(lie):
    with pytest.raises(DecodeError):
        check_bodies(request_of(LARGE_BODY, MANY_KEYS) + LYING.get(lie, b""), MAX_OTHER_BYTES)
