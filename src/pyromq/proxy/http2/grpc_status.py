"""The statuses of gRPC, and the header blocks of its answers."""

from __future__ import annotations

from enum import IntEnum
from urllib.parse import quote

from pyromq.proxy.http2.frames import Http2Error
from pyromq.proxy.http2.header_blocks import Fields, header_block

MAX_STATUS_TEXT = 1024  # limit of a status text, whose percent-encoding is up to three times as long


class GrpcCode(IntEnum):
    """Statuses of gRPC. RocketMQ's refusals have `OK` and a status in the answer."""

    OK = 0
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13


RESPONSE_BLOCK = header_block((":status", "200"), ("content-type", "application/grpc"))
OK_BLOCK = header_block(("grpc-status", "0"))


def trailers_block(code: GrpcCode, text: str) -> bytes:
    """Return the header block that ends a stream; the text is percent-encoded."""
    if code is GrpcCode.OK:
        return OK_BLOCK
    message = quote(text[:MAX_STATUS_TEXT], safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~")
    return header_block(("grpc-status", str(int(code))), ("grpc-message", message))


def refusal_block(fields: Fields) -> bytes | None:
    """Return the header block that refuses a request; None for a gRPC call. Raises `Http2Error`."""
    if b":path" not in fields:
        raise Http2Error("a request without :path")
    if fields.get(b":method") != b"POST":
        status, reason = "405", "gRPC calls are POST requests"
    elif not fields.get(b"content-type", b"").startswith(b"application/grpc"):
        status, reason = "415", "content-type must be application/grpc"
    else:
        return None
    return header_block((":status", status), ("content-type", "text/plain"), ("x-reason", reason))
