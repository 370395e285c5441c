"""Answers written by compiled code: the bytes that the plain path writes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyromq.remoting.command import BINARY, JSON, Call, ReplyTemplate, write_reply
from pyromq.remoting.headers import PullMessageResponse, SendMessageResponse

codec = pytest.importorskip("pyromq.speedups.codec", reason="the compiled parts are not built")

SEND = ReplyTemplate(
    SendMessageResponse,
    ("message_id", "queue_id", "queue_offset"),
    formats={"message_id": "7F00000100002A9F%016X"},
    region='100% "é"',
    trace_on="true",
)
SEND_WITH_HANDLE = ReplyTemplate(
    SendMessageResponse,
    ("message_id", "queue_id", "queue_offset", "recall_handle"),
    formats={"message_id": "7F00000100002A9F%016X", "recall_handle": "%b"},
    region="r",
)
BOUNDS = ("next_offset", "min_offset", "max_offset")
TEMPLATES = {
    "send": SEND,
    "pull": ReplyTemplate(PullMessageResponse, BOUNDS, remark="FOUND", suggested_broker_id=0),
    "moved pull": ReplyTemplate(PullMessageResponse, BOUNDS, code=21, remark="OFFSET_TOO_SMALL", suggested_broker_id=1),
    "odd": ReplyTemplate(PullMessageResponse, BOUNDS, code=19, remark='50%d %% "é" \n', suggested_broker_id=7),
}

longs = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-2, 20))
log_offsets = st.integers(0, (1 << 63) - 1)
opaques = st.one_of(st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-1, 10))


def plainly(template, values, opaque, body=(), serialization=JSON):
    output = []
    call = Call(0, opaque, serialization=serialization)
    write_reply(template.reply(values, list(body)), call, output)
    return b"".join(output)


def writer_of(template):
    return codec.ReplyWriter(template.line, template.binary())


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=20)
@given(log_offsets, longs, longs, opaques, st.sampled_from([0, 1, 300, 1 << 20]), st.sampled_from([JSON, BINARY]))
def test_reply_is_that_of_the_plain_path(name, first, second, third, opaque, body_size, serialization):
    template = TEMPLATES[name]
    values = (first, second, third)
    plain = plainly(template, values, opaque, [memoryview(bytes(body_size))], serialization)
    assert writer_of(template).frame(values, opaque, body_size, serialization) == plain[: len(plain) - body_size]


@given(st.text("azAZ09-_=", max_size=300), log_offsets, st.sampled_from([JSON, BINARY]))
def test_text_is_written_as_it_is(handle, log_offset, serialization):
    values = (log_offset, 1, 2, handle.encode())
    plain = plainly(SEND_WITH_HANDLE, values, 7, serialization=serialization)
    assert writer_of(SEND_WITH_HANDLE).frame(values, 7, 0, serialization) == plain


@pytest.mark.parametrize("number", [0, 9, 10, 99, 100, (1 << 63) - 1, -(1 << 63), -1, -10, 10**18, 10**18 - 1])
def test_number_at_a_border_is_written_in_full(number):
    values = (0, number, number)
    assert writer_of(SEND).frame(values, 7) == plainly(SEND, values, 7)


@pytest.mark.parametrize("line", [b"%s", b"%", b"%x %d", b"%016x"])
def test_line_with_other_holes_is_refused(line):
    with pytest.raises(ValueError, match="not a template of a reply"):
        codec.ReplyWriter(line, (b"", []))


def test_line_without_holes_is_written_as_it_is():
    assert codec.ReplyWriter(b"{}%%", (b"", [])).frame((), 7) == b"\0\0\0\x07\0\0\0\x03{}%"
