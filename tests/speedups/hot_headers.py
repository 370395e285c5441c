"""The requests that compiled code reads: their layouts and readers, and what the plain path makes of them."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path

import pytest

from pyromq.errors import ProtocolError
from pyromq.remoting.command import Call, FrameSplitter, decode_request
from pyromq.remoting.header import wire_layout
from pyromq.remoting.headers import (
    PopMessage,
    PullMessage,
    SendBatchMessage,
    SendMessage,
    SendMessageV2,
    UpdateConsumerOffset,
)

codec = pytest.importorskip("pyromq.speedups.codec", reason="the compiled parts are not built")

HOT = {
    int(h.code): h
    for h in (SendMessage, SendMessageV2, SendBatchMessage, PullMessage, PopMessage, UpdateConsumerOffset)
}
FRAMES = Path(__file__).parent.parent / "golden" / "frames"
READERS = {
    code: codec.HeaderReader(code, [(f.wire_name, f.kind.__name__, f.required) for f in wire_layout(header)])
    for code, header in HOT.items()
}

Values = tuple[int, int, int, list[int | bool | str | None]]  # opaque, flag, version, fields


def plainly(code: int, serialization: int, header: bytes) -> Values | None:
    """Return what the plain path reads in a header, None where it does not answer it as the request of this code."""
    try:
        call = decode_request(serialization, header, b"")
    except ProtocolError:
        return None
    if not isinstance(call, Call) or call.code != code or call.header is None:
        return None
    fields = [getattr(call.header, f.attribute) for f in wire_layout(HOT[code])]
    return call.opaque, call.flag, call.version, fields


def read(code: int, serialization: int, header: bytes) -> Values | None:
    """Return what compiled code reads in a header, None where it leaves that. Fails where the plain path differs."""
    values: Values | None = READERS[code].values(serialization, header)
    if values is not None:
        plain = plainly(code, serialization, header)
        assert plain is not None, f"read, but refused by the plain path: {serialization} {header.hex()}"
        assert _typed(values) == _typed(plain), f"read differently: {serialization} {header.hex()}"
    return values


def _typed(values: Values) -> object:
    """Return values so that True and 1 differ."""
    *numbers, fields = values
    return numbers, [(type(field), field) for field in fields]


@cache
def golden() -> list[tuple[str, int, int, bytes]]:
    """Return the hot requests that genuine clients sent: who sent it, code, serialization, header."""
    found = []
    for path in sorted(FRAMES.iterdir()):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in map(json.loads, lines):
                if line["role"] == "request" and line["code"] in HOT:
                    ((serialization, header, _),) = FrameSplitter().split(bytes.fromhex(line["hex"]))
                    found.append((f"{path.name} {line['file']}", line["code"], serialization, header))
    assert len(found) > 100
    return found
