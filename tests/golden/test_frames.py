"""Frames recorded from genuine clients and servers: our declarations read all of them and write the same.

`frames/<who>.jsonl.gz` holds one frame a line, a request before its answer: `file` (the exchange), `role`, `from`,
`code`, `serializer`, `header` (as the recorder decoded it), `hex` (the bytes).
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyromq.errors import ProtocolError
from pyromq.remoting.bodies import (
    BrokerRegistration,
    compress_registration,
    decode_body,
    decompress_registration,
    encode_body,
)
from pyromq.remoting.codes import RequestCode
from pyromq.remoting.command import JSON, Call, Frame, FrameSplitter, Response, decode_request, decode_response
from pyromq.remoting.header import Header, parse_header, request_headers, wire_fields
from pyromq.remoting.json_quirks import parse

FOLDER = Path(__file__).parent / "frames"
HEADERS = request_headers()

# What hooks add to any request, and what RocketMQ 5 added: read over.
IGNORED_FIELDS = {"ReqT", "AccessKey", "Signature", "bname", "lo", "ns", "nsd", "oway", "brokerName"} | {
    "attributes", "boundaryType", "committed", "force", "maxMsgBytes", "offset", "queueId", "requestSource",
    "setZeroIfNotFound", "topic", "topicList",
}  # fmt: skip
IGNORED_MEMBERS = {
    "attributes", "consumeMessageOrderly", "consumeTimeoutMinute", "enableActingMaster", "forbiddenTable",
    "groupRetryPolicy", "groupSysFlag", "heartbeatFingerprint", "mqPopTable", "onlyThisBroker", "stateVersion",
    "userConsumerInfo", "withoutSub", "zoneName",
}  # fmt: skip
PULL_ANSWERS = {0, 19, 20, 21}


@dataclass(frozen=True)
class Recorded:
    """One frame, and the code that was asked (the request's own, or that of the request it answers)."""

    exchange: str
    asked: int
    code: int
    header: dict[str, Any]
    raw: bytes
    is_request: bool

    @property
    def frame(self) -> Frame:
        (frame,) = FrameSplitter().split(self.raw)
        return frame

    @property
    def body(self) -> bytes:
        return self.frame[2]

    @property
    def fields(self) -> dict[str, str]:
        fields = self.header.get("extFields") or {}
        # A binary header cannot tell an empty text from none.
        return {name: text for name, text in fields.items() if text != "" or self.frame[0] == JSON}

    def declared_header(self) -> type[Header] | None:
        request = HEADERS.get(self.asked)
        if request is None or self.is_request:
            return request
        answered = self.code in PULL_ANSWERS if self.asked in (11, 361) else self.code == 0
        return request.reply_header if answered else None

    def declared_body(self) -> type[Any] | None:
        request = HEADERS.get(self.asked)
        if request is None or not self.body or (self.code and not self.is_request):
            return None
        return request.request_body if self.is_request else request.reply_body


def recorded(folder: str) -> list[Recorded]:
    frames = []
    asked = 0
    with gzip.open(FOLDER / f"{folder}.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            is_request = line["role"] == "request"
            asked = line["code"] if is_request else asked
            raw = bytes.fromhex(line["hex"])
            frames.append(Recorded(line["file"], asked, line["code"], line["header"], raw, is_request))
    return frames


FOLDERS = sorted(path.name.removesuffix(".jsonl.gz") for path in FOLDER.iterdir())
each_folder = pytest.mark.parametrize("folder", FOLDERS)


@each_folder
def test_every_recorded_request_has_a_declaration(folder):
    assert {frame.asked for frame in recorded(folder)} <= set(HEADERS)


@each_folder
def test_command_carries_what_the_recorder_saw(folder):
    for frame in recorded(folder):
        command = (decode_request if frame.is_request else decode_response)(*frame.frame)
        expected = frame.header
        assert isinstance(command, Call if frame.is_request else Response), frame.exchange
        assert command.code == expected["code"], frame.exchange
        assert (command.opaque, command.flag) == (expected["opaque"], expected["flag"]), frame.exchange
        assert command.version == expected["version"], frame.exchange
        if isinstance(command, Response):
            assert (command.remark or None) == (expected.get("remark") or None), frame.exchange
            assert command.fields == frame.fields, frame.exchange


@each_folder
def test_typed_request_header_is_read_at_once(folder):
    for frame in recorded(folder):
        if frame.is_request:
            call = decode_request(*frame.frame)
            assert isinstance(call, Call)
            assert call.fault is None, (frame.exchange, call.fault)
            assert call.header == parse_header(HEADERS[frame.asked], frame.fields), frame.exchange


@each_folder
def test_headers_are_written_back_with_the_same_fields(folder):
    for frame in recorded(folder):
        declared = frame.declared_header()
        if declared is None:
            continue
        ours = wire_fields(parse_header(declared, frame.fields))
        assert {name: ours.get(name) for name in frame.fields.keys() & ours.keys()} == {
            name: value for name, value in frame.fields.items() if name in ours
        }, frame.exchange
        assert frame.fields.keys() - ours.keys() <= IGNORED_FIELDS, frame.exchange


@each_folder
def test_bodies_survive_reading_and_writing(folder):
    for frame in recorded(folder):
        declared = frame.declared_body()
        if declared is None:
            continue
        body = _read_body(frame, declared, frame.body)
        again = encode_body(body)
        assert decode_body(declared, again) == body, frame.exchange
        if not _is_compressed(frame):
            lost = _lost(parse(frame.body), parse(again))
            assert not lost, (frame.exchange, lost)


def test_compressed_registration_survives_reading_and_writing():
    frames = [frame for frame in recorded("broker-pair") if _is_compressed(frame)]
    assert frames
    for frame in frames:
        registration = decompress_registration(frame.body)
        assert registration.topics.topics
        assert decompress_registration(compress_registration(registration)) == registration


ALL = [frame for folder in FOLDERS for frame in recorded(folder)]


@settings(max_examples=300)
@given(st.sampled_from(ALL), st.data())
def test_a_changed_byte_is_at_worst_a_protocol_error(frame, data):
    changed = bytearray(frame.raw)
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    declared = frame.declared_body()
    try:
        for serialization, header, body in FrameSplitter().split(bytes(changed)):
            (decode_request if frame.is_request else decode_response)(serialization, header, body)
            if declared is not None:
                _read_body(frame, declared, body)
    except ProtocolError:
        pass


def _is_compressed(frame: Recorded) -> bool:
    return frame.asked == RequestCode.REGISTER_BROKER and frame.fields.get("compressed") == "true"


def _read_body(frame: Recorded, declared: type[Any], raw: bytes) -> Any:
    if _is_compressed(frame):
        assert declared is BrokerRegistration
        return decompress_registration(raw)
    return decode_body(declared, raw)


def _lost(theirs: Any, ours: Any, path: str = "$") -> list[str]:
    """Return the paths of what we did not write back as it was, but for members that are read over."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        return [
            lost
            for name, value in theirs.items()
            if name not in IGNORED_MEMBERS
            for lost in (_lost(value, ours[name], f"{path}.{name}") if name in ours else [f"{path}.{name}"])
        ]
    if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        return [lost for i, (a, b) in enumerate(zip(theirs, ours, strict=True)) for lost in _lost(a, b, f"{path}[{i}]")]
    return [] if theirs == ours else [f"{path}: {theirs!r} != {ours!r}"]
