"""Requests as they arrive, signed by whom a test says."""

from dataclasses import dataclass

from pyromq.remoting.command import JSON, Call, FrameSplitter, decode_request_with_fields, encode_request
from pyromq.remoting.signer import AccessKeySigner


@dataclass(frozen=True)
class Peer:
    """As much of a connection as a guard looks at."""

    address: str = "10.1.2.3:5000"


def secret_of(name):
    return f"secret-of-{name}"


def signer(name, secret=None):
    return AccessKeySigner(name, secret or secret_of(name))


def asked(header, body=b"", *, by=None, secret=None, peer="10.1.2.3:5000", serialization=JSON) -> Call:
    """Return the request as a server has it; signed by the account `by`, if one is given."""
    sign = signer(by, secret) if by is not None else None
    frame = encode_request(header, body, opaque=1, flag=0, serialization=serialization, signer=sign)
    return received(frame, peer)


def received(frame, peer="10.1.2.3:5000") -> Call:
    (split,) = FrameSplitter().split(frame)
    call = decode_request_with_fields(*split)
    call.peer = Peer(peer)
    return call
