"""Bodies that nobody honest sends: refused before they are read, or read in steps that their bounds limit."""

import json
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.errors import ProtocolError
from pyromq.remoting.bodies import HeartbeatBody, TopicConfigTable
from pyromq.remoting.command import JSON, MAX_HEADER_BYTES, decode_request, decode_response
from pyromq.remoting.json_quirks import ANSWER, FILE, REQUEST, Bounds, decode_body, parse

FEW = Bounds(plain_bytes=1 << 20, odd_bytes=1 << 16, odd_values=200)


def heartbeat(consumers):
    return b'{"clientID":"c","consumerDataSet":[%b],"x":{1:2}}' % consumers


def references(holders, per_holder):
    """Subscriptions that are lists of references to lists of references."""
    subscription = b'{"topic":"t","tagsSet":[%b]}' % b",".join([b'"a"'] * 50)
    first = b'{"groupName":"g","subscriptionDataSet":[%b]}' % b",".join([subscription] * 3)
    again = b'{"$ref":"$.consumerDataSet[0]"}'
    return heartbeat(first + (b"," + again) * holders * per_holder)


HOSTILE = {
    "references that multiply": references(10, 3),
    "many values": heartbeat(b"") + b" " + b"[" + b"1," * 5000 + b"1]",
    "many values inside": heartbeat(b"1," * 5000 + b"1"),
    "many members": b"{" + b",".join(b"%d:1" % number for number in range(5000)) + b"}",
    "a reference of many steps": b'{"clientID":{"$ref":"$%b"},"x":{1:2}}' % (b"[0]" * 5000),
    "references of many steps": b'{"a":[%b]}' % b",".join([b'{"$ref":"$%b"}' % (b".a" * 100)] * 100),
    "deep": b"[" * 5000,
    "deep and closed": b'{"x":%b%b,1:2}' % (b"[" * 5000, b"]" * 5000),
    "a key in a key": b"{" * 5000,
}


def steps_of(action):
    """Return how many functions were called, those of C included."""
    steps = 0

    def count(frame, event, argument):
        nonlocal steps
        steps += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(None)
    return steps


@pytest.fixture(scope="module", autouse=True)
def loaded():
    """What the first body that is not plain JSON makes once is no step of a later one."""
    decode_body(HeartbeatBody, heartbeat(b""), FEW)


@pytest.mark.parametrize("raw", HOSTILE.values(), ids=HOSTILE)
def test_the_bounds_limit_the_steps(raw):
    def read():
        with pytest.raises(ProtocolError):
            decode_body(HeartbeatBody, raw, FEW)

    assert steps_of(read) < 40 * FEW.odd_values


def test_what_is_within_its_bounds_is_read():
    body = decode_body(HeartbeatBody, references(2, 1), replace(FEW, odd_values=600))
    assert [len(consumer.subscriptions) for consumer in body.consumers] == [3, 3, 3]
    assert body.consumers[2] == body.consumers[0]


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        (replace(FEW, plain_bytes=99), "HeartbeatBody: [0-9]+ bytes; the limit is 99"),
        (replace(FEW, odd_bytes=99), "not plain JSON; the limit of such is 99"),
        (replace(FEW, odd_values=20), "more than 20 values"),
        (replace(FEW, odd_values=250), "more than 250 values, as its references"),
    ],
)
def test_a_refusal_names_the_bound(bounds, said):
    with pytest.raises(ProtocolError, match=said):
        decode_body(HeartbeatBody, references(1, 1), bounds)


def test_references_are_shared_not_copied():
    root = parse(b'{"a":[1,2],"b":[%b]}' % b",".join([b'{"$ref":"$.a"}'] * 1000))
    assert all(each is root["a"] for each in root["b"])


@pytest.mark.parametrize("digits", ["1" * 21, "-" + "1" * 20, "1." + "1" * 5000, "1e" + "1" * 5000])
def test_numbers_of_absurd_length_are_refused(digits):
    with pytest.raises(ProtocolError, match=r"a number of (more than 64 bits|\d+ characters)"):
        parse(f"[{digits}]".encode())


def test_a_long_text_is_read_as_one():
    text = 'x\\"y' * 300_000
    raw = json.dumps({"clientID": text}).encode()[:-1] + b',"x":{1:2}}'
    assert steps_of(lambda: decode_body(HeartbeatBody, raw, ANSWER)) < 200
    assert decode_body(HeartbeatBody, raw, ANSWER).client_id == text


def test_a_refusal_does_not_repeat_the_text():
    with pytest.raises(ProtocolError) as refused:
        decode_body(HeartbeatBody, b'{"clientID":["%b"],1:2}' % (b"x" * 200_000), REQUEST)
    assert len(str(refused.value)) < 300


def test_tables_of_our_own_may_be_large():
    topics = ",".join(f'"t{number}":{{"topicName":"t{number}"}}' for number in range(5000))
    raw = f'{{"topicConfigTable":{{{topics}}},"dataVersion":{{1:2}}}}'.encode()
    assert len(decode_body(TopicConfigTable, raw, FILE).topics) == 5000
    with pytest.raises(ProtocolError, match="more than 4096 values"):
        decode_body(TopicConfigTable, raw, REQUEST)


@given(st.text('{}[]",:$ref.0@\\ 1-e tn', max_size=300).map(str.encode))
def test_no_text_takes_more_steps_than_it_has_characters(raw):
    def read():
        try:
            decode_body(HeartbeatBody, raw, FEW)
        except ProtocolError:
            pass

    assert steps_of(read) < 100 + 20 * len(raw)


@pytest.mark.parametrize("decode", [decode_request, decode_response])
@pytest.mark.parametrize("code", [30, 34, 77777])
def test_a_header_has_a_bound_too(decode, code):
    fields = {"topic": "t", "queueId": "0", "x": "x" * MAX_HEADER_BYTES}
    header = json.dumps({"code": code, "extFields": fields}, separators=(",", ":")).encode()
    with pytest.raises(ProtocolError, match=r"header of [0-9]+ bytes; the limit is 262144"):
        decode(JSON, header, b"")
