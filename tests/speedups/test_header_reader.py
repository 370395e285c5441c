"""Headers read by compiled code: the same values as the plain path reads, or none."""

from __future__ import annotations

import struct
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.seed import seed_of_the_day
from tests.speedups.header_forms import binary_form, changed_form, cut_form, json_form
from tests.speedups.hot_headers import HOT, golden, plainly, read

from pyromq.remoting.codes import ONE_WAY
from pyromq.remoting.command import BINARY, JSON, MAX_HEADER_BYTES, FrameSplitter, encode_request
from pyromq.remoting.header import Header, wire_layout

ROUNDS = 2_000

codes = st.sampled_from(sorted(HOT))
serializations = st.sampled_from([JSON, BINARY])
texts = st.one_of(st.text(max_size=20), st.text('abcßé中😀\x01\x02"\\/\b\f\n\r\t&<>\x7f%', max_size=30))
numbers = st.one_of(st.integers(-3, 10), st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(10**18) + 1, 10**18 - 1))


@st.composite
def requests(draw: st.DrawFn) -> Header:
    """Any hot request with values that a client may give it."""
    header = HOT[draw(codes)]
    values: dict[str, object] = {}
    for f in wire_layout(header):
        if f.required or draw(st.booleans()):
            some = st.text(min_size=1) if f.required else texts  # none at all counts as absent in a binary header
            values[f.attribute] = draw({int: numbers, bool: st.booleans(), str: some}[f.kind])
    return header(**values)


# --- what genuine clients and ours write is read


@pytest.mark.parametrize(("code", "serialization", "header"), [pytest.param(*rest, id=who) for who, *rest in golden()])
def test_golden_header_is_read(code, serialization, header):
    assert read(code, serialization, header) is not None


CPP_SEND = (  # as its source writes it: members sorted, numbers as numbers, an empty remark, a line end
    b'{"code":310,"extFields":{"AccessKey":"","OnsChannel":"","Signature":"","a":"p","b":"t","c":"TBW102","d":4,"e":2,'
    b'"f":0,"g":"1795235867181","h":0,"i":"TAGS\\u0001a\\u0002","j":"0","k":"false","m":"false"},"flag":0,'
    b'"language":"CPP","opaque":7,"remark":"","version":273}\n'
)
CPP_PULL = (
    b'{"code":11,"extFields":{"AccessKey":"","OnsChannel":"","Signature":"","commitOffset":"0","consumerGroup":"c",'
    b'"maxMsgNums":32,"queueId":0,"queueOffset":"12","subVersion":"0","subscription":"*","suspendTimeoutMillis":"15000",'
    b'"sysFlag":6,"topic":"t"},"flag":0,"language":"CPP","opaque":8,"remark":"","version":273}\n'
)


def test_header_that_is_too_large_is_left():
    header = next(raw for _, code, serialization, raw in golden() if (code, serialization) == (10, JSON))
    fits = header + b" " * (MAX_HEADER_BYTES - len(header))
    assert read(10, JSON, fits) is not None
    assert read(10, JSON, fits + b" ") is None


@pytest.mark.parametrize(("code", "header"), [(310, CPP_SEND), (11, CPP_PULL)])
def test_header_of_the_cpp_client_is_read(code, header):
    assert read(code, JSON, header) is not None


@settings(max_examples=50)
@given(requests(), serializations, st.sampled_from([0, ONE_WAY]), st.integers(0, 0x7FFFFFFF))
def test_header_that_our_clients_write_is_read(request, serialization, flag, opaque):
    frame = encode_request(request, b"x", opaque=opaque, flag=flag, serialization=serialization)
    ((serialization, header, _),) = FrameSplitter().split(frame)
    values = read(request.code, serialization, header)
    assert values is not None
    assert values[:2] == (opaque, flag)


# --- all else is read as the plain path reads it, or left to that


@pytest.mark.parametrize("form", [json_form, binary_form, changed_form, cut_form])
def test_header_is_read_as_plainly_or_left(form):
    random = Random(seed_of_the_day())
    read_headers = sum(read(*form(random)) is not None for _ in range(ROUNDS))
    assert form is cut_form or ROUNDS / 20 < read_headers < ROUNDS * 0.95  # not all of one kind


@settings(max_examples=50)
@given(codes, serializations, st.binary(max_size=200))
@example(310, JSON, b'"')
@example(310, JSON, b'"a":"\\')
@example(310, BINARY, struct.pack(">hBhiiii", 310, 0, 0, 0, 0, 0, 0))
@example(310, BINARY, struct.pack(">hBhiiiiB", 310, 0, 0, 0, 0, 0, 1, 1))
def test_any_bytes_are_read_as_plainly_or_left(code, serialization, raw):
    begin = b'{"code":%d,' % code if serialization == JSON else struct.pack(">H", code & 0xFFFF)
    read(code, serialization, raw)
    read(code, serialization, begin + raw)


@pytest.mark.parametrize("code", [b"010", b"-10", b"10.0", b"1e1", b"+10", b'"10"', b"00010", b"65546"])
def test_code_in_odd_digits_is_left(code):
    header = next(raw for _, code, serialization, raw in golden() if (code, serialization) == (10, JSON))
    assert read(10, JSON, header.replace(b'"code":10', b'"code":' + code)) is None


def test_binary_name_longer_than_java_can_say_is_left():
    """Its size is a signed short: what is longer reads as negative, and is refused."""
    raw = next(raw for _, code, serialization, raw in golden() if (code, serialization) == (310, BINARY))
    more = struct.pack(">H", 40_000) + b"n" * 40_000 + struct.pack(">i", 1) + b"v"
    size = struct.unpack_from(">i", raw, 17)[0] + len(more)
    longer = raw[:17] + struct.pack(">i", size) + raw[21:] + more
    assert plainly(310, BINARY, longer) is None
    assert read(310, BINARY, longer) is None
