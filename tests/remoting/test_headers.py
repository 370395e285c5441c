"""What the declared headers promise: one per code, defaults where Java is lenient, Java's text where it is not."""

import inspect
from string import ascii_lowercase

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.errors import MissingField, ProtocolError
from pyromq.remoting import headers
from pyromq.remoting.bodies.body import Body
from pyromq.remoting.codes import RequestCode
from pyromq.remoting.header import Header, parse_header, request_headers, wire_fields
from pyromq.remoting.headers import (
    ConsumeDirectly,
    LitePullMessage,
    PullMessage,
    PullMessageResponse,
    QueryMessage,
    SendBatchMessage,
    SendMessage,
    SendMessageResponse,
    SendMessageV2,
    SendReplyMessage,
    SendReplyMessageV2,
)

REQUESTS = request_headers()
each_request = pytest.mark.parametrize("header", REQUESTS.values(), ids=lambda header: header.__name__)


def example(header: type[Header]) -> Header:
    """Fill every field, each with a value of its own."""
    values = {}
    for number, f in enumerate(msgspec.structs.fields(header), 1):
        kind = str(f.type)
        values[f.name] = number if "int" in kind else number % 2 == 1 if "bool" in kind else f"text {number}"
    return header(**values)


def test_every_request_code_has_exactly_one_header():
    assert set(REQUESTS) == {int(code) for code in RequestCode}


def test_declarations_contain_no_functions():
    for module in vars(headers).values():
        if inspect.ismodule(module) and module.__name__.startswith(headers.__name__):
            assert "def " not in inspect.getsource(module), module.__name__


@each_request
def test_bodies_and_answers_are_declared_classes(header):
    for body in (header.request_body, header.reply_body):
        assert body is None or issubclass(body, Body)
    assert header.reply_header is None or issubclass(header.reply_header, Header)


@each_request
def test_header_survives_writing_and_reading(header):
    for declared in filter(None, (header, header.reply_header)):
        filled = example(declared)
        assert parse_header(declared, wire_fields(filled)) == filled


@each_request
def test_wire_values_are_texts_and_wire_names_differ(header):
    written = wire_fields(example(header))
    assert all(isinstance(value, str) for value in written.values())
    assert len(written) == len(msgspec.structs.fields(header))


@pytest.mark.parametrize("name", list("abcdefgh"))
def test_short_send_refuses_a_missing_field_as_java_does(name):
    fields = wire_fields(example(SendMessageV2))
    del fields[name]
    with pytest.raises(MissingField, match=f"the custom field <{name}> is null"):
        parse_header(SendMessageV2, fields)


@pytest.mark.parametrize("short", [SendMessageV2, SendBatchMessage, SendReplyMessageV2])
def test_short_names_carry_the_same_values(short):
    assert wire_fields(example(short)).keys() == set(ascii_lowercase[: len(msgspec.structs.fields(SendMessage))])
    filled = example(short)
    for name in (f.name for f in msgspec.structs.fields(SendMessage)):
        assert getattr(filled, name) == getattr(parse_header(short, wire_fields(filled)), name)


def test_short_names_are_in_upstreams_order():
    sent = SendMessageV2(
        producer_group="group", topic="topic", default_topic="TBW102", default_topic_queue_count=4, queue_id=3,
        sys_flag=1, born_ms=1700000000000, flag=7, properties="p", reconsume_times=2, unit_mode=True,
        max_reconsume_times=16, batch=False, broker_name="broker-a",
    )  # fmt: skip
    fields = wire_fields(sent)
    assert [fields[name] for name in "abcdefghijklmn"] == [
        "group", "topic", "TBW102", "4", "3", "1", "1700000000000", "7", "p", "2", "true", "16", "false", "broker-a",
    ]  # fmt: skip


def test_reply_is_sent_with_the_fields_of_a_send():
    assert wire_fields(example(SendReplyMessage)).keys() == wire_fields(example(SendMessage)).keys()


def test_lite_pull_is_a_pull_under_another_code():
    fields = wire_fields(example(PullMessage))
    assert wire_fields(parse_header(LitePullMessage, fields)) == fields
    assert issubclass(LitePullMessage, PullMessage)
    assert LitePullMessage.reply_header is PullMessageResponse


def test_hook_fields_have_their_own_spelling():
    sent = SendMessageResponse(message_id="A", queue_id=0, queue_offset=1, region="r", trace_on="true")
    assert wire_fields(sent) == {
        "msgId": "A",
        "queueId": "0",
        "queueOffset": "1",
        "MSG_REGION": "r",
        "TRACE_ON": "true",
    }
    asked = QueryMessage(topic="t", key="k", max_count=32, begin_ms=0, end_ms=9, by_unique_key=True)
    assert wire_fields(asked)["_UNIQUE_KEY_QUERY"] == "true"


def test_relayed_request_needs_no_more_than_the_group():
    assert parse_header(ConsumeDirectly, {"consumerGroup": "g"}) == ConsumeDirectly(consumer_group="g")


def test_unknown_fields_are_read_over():
    fields = wire_fields(example(PullMessage)) | {"lo": "false", "ns": "x", "requestSource": "0"}
    assert parse_header(PullMessage, fields) == example(PullMessage)


@given(st.sampled_from(sorted(REQUESTS)), st.dictionaries(st.text(max_size=4), st.text() | st.integers() | st.none()))
def test_reading_any_fields_fails_only_as_a_protocol_error(code, noise):
    header = REQUESTS[code]
    names = [f.encode_name for f in msgspec.structs.fields(header)]
    fields = noise | dict(zip(names, noise.values(), strict=False))
    try:
        parse_header(header, fields)
    except ProtocolError:
        pass
