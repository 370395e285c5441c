"""Bytes that are no frames, headers that are no headers, fields that do not fit: refused by name, nothing else."""

import json
import logging
import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyromq.errors import FrameTooLarge, ProtocolError
from pyromq.remoting.command import (
    BINARY,
    JSON,
    MAX_FRAME_BYTES,
    Call,
    FrameSplitter,
    Reply,
    decode_request,
    decode_response,
    frame_words,
)
from pyromq.remoting.dispatch import Dispatcher, answers
from pyromq.remoting.header import request_headers, wire_layout
from pyromq.remoting.headers import MaxOffset, MinOffset, OffsetResponse
from pyromq.remoting.remoting_session import RemotingSession
from pyromq.testing import FakeClock


class Answers:
    """Says back the queue id; fails for the least offset."""

    @answers(MaxOffset)
    def back(self, header, call):
        return Reply(OffsetResponse(offset=header.queue_id))

    @answers(MinOffset)
    def fail(self, header, call):
        raise ZeroDivisionError("a bug")


@pytest.fixture
def session():
    return new_session()


def new_session():
    return RemotingSession(
        Dispatcher(Answers()), FakeClock(), address=("127.0.0.1", 7), wake=lambda: None, run_soon=lambda f, *a: f(*a)
    )


def framed(header, body=b"", serialization=JSON):
    return frame_words(serialization, len(header), len(body)) + header + body


def json_header(code=30, opaque=1, **changes):
    fields = {"topic": "t", "queueId": "5"}
    header = {"code": code, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": opaque, "version": 409}
    return json.dumps(header | changes).encode()


def binary_header(code=30, *, language=0, opaque=1, fields=(("topic", "t"), ("queueId", "5"))):
    ext = b"".join(
        struct.pack(">h", len(name)) + name.encode() + struct.pack(">i", len(value)) + value.encode()
        for name, value in fields
    )
    return struct.pack(">hBhiiii", code, language, 409, opaque, 0, 0, len(ext)) + ext


def answered(session):
    """Return opaque, code, remark and fields of what the session answered, in order."""
    output = b"".join(map(bytes, session.take_output()))
    responses = [decode_response(*frame) for frame in FrameSplitter().split(output)]
    return [(each.opaque, each.code, each.remark, each.fields) for each in responses]


GOOD = framed(json_header(opaque=77))
GOOD_ANSWER = (77, 0, None, {"offset": "5"})


# -- frames

NO_FRAMES = {
    "text": b"GET / HTTP/1.1\r\n\r\n",
    "TLS": bytes.fromhex("16030100c8010000c40303"),
    "nothing in it": struct.pack(">I", 0) + bytes(4),
    "shorter than its own words": struct.pack(">II", 3, 0),
    "header longer than the frame": struct.pack(">II", 10, 7) + bytes(6),
    "larger than allowed": struct.pack(">I", MAX_FRAME_BYTES - 3),
    "negative length": struct.pack(">i", -1),
    "no header": struct.pack(">II", 4, 0),
    "unknown serialization": framed(json_header(), serialization=7),
    "no JSON": framed(b"{"),
    "no object": framed(b"[1]"),
    "no UTF-8": framed(b'{"code":30,"remark":"\xff"}'),
    "half a character": framed(b'{"code":30,"remark":"\\ud800"}'),
    "endless nesting": framed(b'{"code":30,"x":' + b"[" * 200_000),
    "code that is not a number": framed(json_header(code="many")),
    "fields that are a list": framed(json_header(extFields=[])),
    "flag that is an object": framed(json_header(flag={})),
    "binary header too short": framed(b"\0" * 20, serialization=BINARY),
    "binary fields cut": framed(binary_header()[:-1], serialization=BINARY),
    "binary fields longer than the header": framed(binary_header()[:17] + b"\x7f" + bytes(3), serialization=BINARY),
    "binary remark of negative length": framed(binary_header()[:13] + b"\xff" * 4 + bytes(4), serialization=BINARY),
    "binary field of negative length": framed(
        struct.pack(">hBhiiii", 30, 0, 0, 1, 0, 0, 8) + b"\xff\xff" + bytes(6), serialization=BINARY
    ),
}
each_no_frame = pytest.mark.parametrize("raw", NO_FRAMES.values(), ids=NO_FRAMES)


@each_no_frame
def test_what_is_no_frame_is_an_error_and_answered_by_nothing(session, raw):
    with pytest.raises(ProtocolError) as raised:
        session.receive(raw)
    assert str(raised.value)
    assert session.take_output() == []


@each_no_frame
def test_what_came_before_it_in_the_same_packet_is_answered(session, raw):
    with pytest.raises(ProtocolError):
        session.receive(GOOD + GOOD + raw + bytes(8))
    assert answered(session) == [GOOD_ANSWER, GOOD_ANSWER]


@each_no_frame
def test_it_is_seen_in_whatever_pieces_it_comes(session, raw):
    step = max(1, len(raw) // 100)
    with pytest.raises(ProtocolError):
        for start in range(0, len(raw), step):
            session.receive(raw[start : start + step])
        session.receive(bytes(8))


def test_a_frame_of_the_greatest_size_is_taken(session):
    header = json_header(opaque=77)
    raw = framed(header, bytes(MAX_FRAME_BYTES - 8 - len(header)))
    session.receive(raw[:1000])
    session.receive(raw[1000:])
    assert answered(session) == [GOOD_ANSWER]
    with pytest.raises(FrameTooLarge, match="frame of 16777213 bytes; the limit is 16777212"):
        session.receive(framed(header, bytes(MAX_FRAME_BYTES - 7 - len(header)))[:4])


def test_a_frame_that_is_cut_waits_for_the_rest(session):
    for end in (1, 7, 8, len(GOOD) - 1):
        session.receive(GOOD[:end])
        assert session.splitter.incomplete_bytes == end
        session.receive(GOOD[end:])
        assert answered(session) == [GOOD_ANSWER]
        assert session.splitter.incomplete_bytes == 0


# -- requests that are answered with what is wrong


@pytest.mark.parametrize(
    "raw",
    [framed(json_header(code=9_999)), framed(binary_header(code=9_999), serialization=BINARY)],
    ids=["JSON", "binary"],
)
def test_an_unknown_code_is_answered_so(session, raw):
    session.receive(raw)
    assert answered(session) == [(1, 3, " request type 9999 not supported", {})]


@pytest.mark.parametrize(
    "raw",
    [
        framed(json_header(opaque=77, language="KLINGON")),
        framed(json_header(opaque=77, language=99)),
        framed(json_header(opaque=77, language=None)),
        framed(json_header(opaque=77, language=[])),
        framed(binary_header(opaque=77, language=99), serialization=BINARY),
    ],
    ids=["unknown name", "number", "null", "list", "binary"],
)
def test_an_unknown_language_is_no_reason_to_refuse(session, raw):
    session.receive(raw)
    assert answered(session) == [GOOD_ANSWER]


@pytest.mark.parametrize("value", ["x", "", "1.0", " 5", "1_0", "0x1", "٣", "9" * 30, 1.5, True, [1], {"a": 1}])
def test_a_value_that_is_no_number_is_named(session, value):
    session.receive(framed(json_header(extFields={"topic": "t", "queueId": value})) + GOOD)
    (_, code, remark, _), following = answered(session)
    assert code == 1
    assert remark.startswith("header field queueId: For input string: ")
    assert following == GOOD_ANSWER


@pytest.mark.parametrize("fields", [None, {}, {"topic": "t"}, {"topic": "t", "queueId": None}])
def test_a_missing_field_is_named_as_java_does(session, fields):
    session.receive(framed(json_header(extFields=fields)) + GOOD)
    (_, code, remark, _), following = answered(session)
    assert code == 1
    assert remark == f"the custom field <{'queueId' if fields and 'topic' in fields else 'topic'}> is null"
    assert following == GOOD_ANSWER


def test_a_bug_of_ours_is_answered_and_the_next_request_too(session, caplog):
    session.receive(framed(json_header(code=31)) + GOOD)
    assert answered(session) == [(1, 1, "ZeroDivisionError: a bug", {}), GOOD_ANSWER]
    assert [record.getMessage() for record in caplog.records] == ["request 31 from 127.0.0.1:7 failed"]


@pytest.mark.parametrize(
    ("header", "line"),
    [
        (json_header(code=9_999), "request 9999 of 127.0.0.1:7 is not supported"),
        (json_header(extFields={}), "request 30 of 127.0.0.1:7 cannot be read: the custom field <topic> is null"),
    ],
)
def test_what_cannot_be_answered_is_one_line_in_the_log(session, caplog, header, line):
    caplog.set_level(logging.INFO)
    session.receive(framed(header))
    assert [record.getMessage() for record in caplog.records] == [line]


@pytest.mark.parametrize("opaque", [0, -1, 2_147_483_647, -2_147_483_648, 1 << 62])
def test_any_opaque_comes_back(session, opaque):
    session.receive(framed(json_header(opaque=opaque)))
    if abs(opaque) <= 1 << 31:
        session.receive(framed(binary_header(opaque=opaque), serialization=BINARY))
    assert {each[0] for each in answered(session)} == {opaque}


def test_answers_nobody_waits_for_change_nothing(session):
    session.receive(framed(json_header(code=0, flag=1, opaque=5, extFields={"a": [1]})) + GOOD)
    assert answered(session) == [GOOD_ANSWER]


STRANGE = [None, True, 1.5, -0.0, [], {}, [1], {"a": 1}, "", "x", "٣", "9" * 30, 10**30, -(10**30), "\u0000", "é"]


@pytest.mark.parametrize("declared", request_headers().values(), ids=lambda header: header.__name__)
def test_no_value_of_any_field_breaks_reading_a_header(declared):
    layout = wire_layout(declared)
    good = {field.wire_name: "1" for field in layout}
    for field in layout:
        for value in STRANGE:
            call = decode_request(JSON, json_header(code=declared.code, extFields=good | {field.wire_name: value}), b"")
            assert isinstance(call, Call)
            assert call.header is not None or field.wire_name in str(call.fault)


# -- anything at all


def receive_anything(raw):
    """Feed the bytes; they are at worst a protocol error, and every answer to them is a whole frame."""
    session = new_session()
    try:
        session.receive(raw)
    except ProtocolError:
        pass
    return answered(session)


@settings(max_examples=300)
@given(st.binary(max_size=200))
@example(b"")
def test_any_bytes_are_at_worst_a_protocol_error(raw):
    receive_anything(raw)
    receive_anything(GOOD + raw)


@settings(max_examples=300)
@given(st.binary(max_size=100), st.binary(max_size=20), st.sampled_from([JSON, BINARY]))
def test_any_header_is_at_worst_a_protocol_error(header, body, serialization):
    receive_anything(framed(header, body, serialization))


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from(["code", "flag", "language", "opaque", "version", "remark", "extFields", "other"])


@pytest.mark.slow
@settings(max_examples=300)
@given(st.dictionaries(NAMES, JSON_VALUES), st.dictionaries(st.sampled_from(["topic", "queueId", "x"]), JSON_VALUES))
def test_any_json_header_is_answered_or_a_protocol_error(changes, fields):
    receive_anything(framed(json_header(**({"extFields": fields} | changes))))


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, 1_000), st.integers(1, 255)), min_size=1, max_size=3))
def test_any_changed_bytes_of_a_binary_header_are_at_worst_a_protocol_error(flips):
    raw = bytearray(framed(binary_header(), serialization=BINARY))
    for position, change in flips:
        raw[position % len(raw)] ^= change
    receive_anything(bytes(raw))
