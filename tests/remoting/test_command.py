"""Commands: every declared request and any answer survive writing and reading, as JSON and as binary headers."""

import json
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.errors import (
    BrokerError,
    MissingField,
    NotTheMaster,
    ProtocolError,
    ServiceNotAvailable,
    TopicNotFound,
    from_response,
)
from pyromq.remoting.codes import ONE_WAY, RESPONSE, VERSION, Language
from pyromq.remoting.command import (
    BINARY,
    JSON,
    Call,
    FrameSplitter,
    Reply,
    ReplyTemplate,
    Response,
    decode_request,
    decode_response,
    encode_request,
    write_reply,
)
from pyromq.remoting.header import Filled, HeaderTemplate, json_text, request_headers
from pyromq.remoting.headers import (
    Heartbeat,
    MaxOffset,
    OffsetResponse,
    PullMessageResponse,
    SendMessage,
    SendMessageResponse,
    SendMessageV2,
)

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
# A binary header cannot tell a text of no bytes from an absent one.
SOME_TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
OPAQUES = st.integers(0, 0x7FFFFFFF)
BODIES = st.binary(max_size=50)
SERIALIZATIONS = st.sampled_from([JSON, BINARY])
each_serialization = pytest.mark.parametrize("serialization", [JSON, BINARY], ids=["JSON", "binary"])


@st.composite
def headers(draw, declared=None):
    """Any values of any declared request."""
    declared = declared or draw(st.sampled_from(list(request_headers().values())))
    values = {}
    for field in msgspec.structs.fields(declared):
        kind = str(field.type)
        value = draw(
            st.integers(-(1 << 63), (1 << 63) - 1) if "int" in kind else st.booleans() if "bool" in kind else SOME_TEXTS
        )
        values[field.name] = value
    return declared(**values)


def only_frame(raw):
    (frame,) = FrameSplitter().split(raw)
    return frame


def written(reply, *, serialization=JSON, opaque=7):
    """Return the answer as the one who asked reads it."""
    output = []
    write_reply(reply, Call(0, opaque, serialization=serialization), output)
    return decode_response(*only_frame(b"".join(output)))


@given(headers(), BODIES, OPAQUES, st.sampled_from([0, ONE_WAY]), SERIALIZATIONS)
def test_requests_survive_writing_and_reading(header, body, opaque, flag, serialization):
    raw = encode_request(header, body, opaque=opaque, flag=flag, serialization=serialization)
    call = decode_request(*only_frame(raw))
    assert type(call.header) is type(header)
    assert call.header == header
    assert (call.code, call.opaque, call.flag, call.body) == (header.code, opaque, flag, body)
    assert (call.language, call.version) == ("PYTHON", VERSION)
    assert call.serialization == (serialization if header.code < 1 << 15 else JSON)  # 16 bits in a binary header
    assert call.fault is None


@given(headers(), OPAQUES)
def test_both_sides_read_the_same_request(header, opaque):
    frame = only_frame(encode_request(header, b"", opaque=opaque, flag=0))
    assert decode_response(*frame).header == decode_request(*frame).header == header


@given(st.integers(0, 32767), TEXTS, headers(), BODIES, OPAQUES, SERIALIZATIONS)
def test_answers_survive_writing_and_reading(code, remark, header, body, opaque, serialization):
    response = written(Reply(header, body, code, remark), serialization=serialization, opaque=opaque)
    assert (response.code, response.opaque, response.flag, response.body) == (code, opaque, RESPONSE, body)
    assert response.remark == (remark if serialization == JSON else remark or None)
    assert response.header(type(header)) == header


@each_serialization
def test_views_of_a_body_are_joined(serialization):
    views = [memoryview(b"one"), memoryview(b"two")]
    assert written(Reply(body=views), serialization=serialization).body == b"onetwo"


@each_serialization
def test_an_answer_of_nothing_is_success(serialization):
    response = written(Reply(), serialization=serialization)
    assert (response.code, response.remark, response.fields, response.body) == (0, None, {}, b"")


# -- templates: the short way writes what the long way writes


@given(st.integers(0, 15), st.integers(0, 1 << 62), TEXTS, BODIES, SERIALIZATIONS)
def test_a_filled_request_reads_like_the_plain_one(queue_id, born_ms, properties, body, serialization):
    constants = {
        "producer_group": 'g"%d', "topic": "t", "default_topic": "TBW102", "default_topic_queue_count": 4,
        "sys_flag": 0, "flag": 0, "reconsume_times": 0, "max_reconsume_times": 0, "unit_mode": "false",
        "batch": "false",
    }  # fmt: skip
    template = HeaderTemplate(
        SendMessageV2, ("queue_id", "born_ms", "properties"), formats={"properties": "%b"}, **constants
    )
    filled = Filled(template, (queue_id, born_ms, json_text(properties)))
    raw = encode_request(filled, body, opaque=9, flag=0, serialization=serialization)
    call = decode_request(*only_frame(raw))
    assert filled.code == call.code == SendMessageV2.code
    assert (call.opaque, call.body) == (9, body)
    header = call.header
    assert (header.queue_id, header.born_ms, header.producer_group) == (queue_id, born_ms, 'g"%d')
    if properties or serialization == JSON:
        assert header.properties == properties
    assert isinstance(header, SendMessage)


@given(st.integers(0, 15), st.integers(0, 1 << 62), st.sampled_from([None, "", "100%", 'say "no"']), SERIALIZATIONS)
def test_a_filled_answer_reads_like_the_plain_one(queue_id, queue_offset, remark, serialization):
    template = ReplyTemplate(
        SendMessageResponse,
        ("message_id", "queue_id", "queue_offset"),
        code=10,
        remark=remark,
        formats={"message_id": "%032X"},
        region="100% r",
    )
    plain = SendMessageResponse(
        message_id=f"{0xAB:032X}", queue_id=queue_id, queue_offset=queue_offset, region="100% r"
    )
    short = written(template.reply((0xAB, queue_id, queue_offset)), serialization=serialization)
    long = written(Reply(plain, code=10, remark=remark), serialization=serialization)
    assert short == long


@each_serialization
def test_a_filled_answer_carries_views(serialization):
    template = ReplyTemplate(PullMessageResponse, ("next_offset",), suggested_broker_id=0, min_offset=0, max_offset=9)
    views = [memoryview(b"one"), memoryview(b"two")]
    response = written(template.reply((3,), views), serialization=serialization)
    assert response.body == b"onetwo"
    assert response.header(PullMessageResponse).next_offset == 3


# -- what others write


def test_a_json_header_is_written_as_java_writes_it():
    _, header, _ = only_frame(encode_request(MaxOffset(topic="t", queue_id=1), b"", opaque=2, flag=0))
    assert json.loads(header) == {
        "code": 30,
        "extFields": {"topic": "t", "queueId": "1"},
        "flag": 0,
        "language": "PYTHON",
        "opaque": 2,
        "serializeTypeCurrentRPC": "JSON",
        "version": VERSION,
    }


def test_a_binary_header_is_drawn_by_the_module():
    _, header, _ = only_frame(
        encode_request(MaxOffset(topic="t", queue_id=1), b"", opaque=2, flag=0, serialization=BINARY)
    )
    head = struct.pack(">hBhii", 30, Language.PYTHON, VERSION, 2, 0)
    fields = b"\0\x05topic\0\0\0\x01t\0\x07queueId\0\0\0\x011"
    assert header == head + struct.pack(">ii", 0, len(fields)) + fields  # 0: no remark


@pytest.mark.parametrize(
    "text",
    [
        '{"code":30,"extFields":{"topic":"t","queueId":"1"},"flag":0,"language":"GO","opaque":5,"version":0}',
        '{"extFields":{"queueId":"1","topic":"t"},"opaque":5,"code":30,"language":"GO"}',
        ' { "code" : 30 , "language":"GO","opaque":5,"extFields":{"topic":"t","queueId":1,"more":null} }',
        '{"code":"30","language":"GO","opaque":"5","extFields":{"topic":"t","queueId":"+1"},"remark":null,"new":[]}',
    ],
    ids=["as Java", "other order", "blanks and numbers", "texts"],
)
def test_json_headers_are_read_however_they_are_written(text):
    call = decode_request(JSON, text.encode(), b"body")
    assert call.header == MaxOffset(topic="t", queue_id=1)
    assert (call.code, call.opaque, call.language, call.body) == (30, 5, "GO", b"body")


@pytest.mark.parametrize("text", ['{"code":34}', '{"code":34,"flag":0}', '{"code":34,"extFields":null}'])
def test_a_request_without_fields_may_leave_them_out(text):
    call = decode_request(JSON, text.encode(), b"")
    assert call.header == Heartbeat()
    assert call.fault is None


def test_a_request_that_does_not_fit_says_why_and_can_be_answered():
    call = decode_request(JSON, b'{"code":30,"extFields":{"topic":"t"},"opaque":5}', b"")
    assert call.header is None
    assert call.opaque == 5
    assert isinstance(call.fault, MissingField)


def test_an_answer_is_told_from_a_request_by_its_flag_at_either_side():
    answer = b'{"code":30,"flag":1,"opaque":5,"extFields":{"topic":"t","queueId":"1"}}'
    request = answer.replace(b'"flag":1', b'"flag":0')
    for decode in (decode_request, decode_response):
        assert isinstance(decode(JSON, answer, b""), Response)
        assert isinstance(decode(JSON, request, b""), Call)


def test_reading_an_answer_leaves_no_trace_in_the_next():
    first = decode_response(JSON, b'{"code":0,"flag":1,"opaque":1}', b"")
    first.fields["offset"] = "1"
    assert decode_response(JSON, b'{"code":0,"flag":1,"opaque":2}', b"").fields == {}


# -- what a caller makes of an answer


def test_success_and_expected_codes_pass_the_check():
    for code in (0, 19, 20):
        response = Response(code, 1)
        assert response.check(19, 20) is response


@pytest.mark.parametrize(("code", "error"), [(17, TopicNotFound), (14, ServiceNotAvailable), (4711, BrokerError)])
def test_other_codes_raise_the_error_they_stand_for(code, error):
    with pytest.raises(error, match="what was wrong") as raised:
        Response(code, 1, remark="what was wrong").check(19)
    assert raised.value.code == code


@pytest.mark.parametrize("master", ["10.0.0.1:10911", "[::1]:10911", "broker-a.example:1", None])
def test_a_replicas_refusal_names_the_master(master):
    error = NotTheMaster(master)
    assert str(error) == f"not the master: {master or 'no master is known'}"
    with pytest.raises(NotTheMaster) as raised:
        Response(error.code, 1, remark=str(error)).check()
    assert (raised.value.master, raised.value.code, str(raised.value)) == (master, 14, str(error))
    decision = from_response(11, str(error))
    assert (decision.master, decision.code) == (master, 11)
    assert not isinstance(from_response(11, "no slave"), NotTheMaster)


@pytest.mark.parametrize("text", ["", "10.0.0.1", "10.0.0.1:", ":1", "a:0", "a:65536", "a:-1", "a b:1", "a:1234567"])
def test_a_refusal_that_names_no_address_names_no_master(text):
    with pytest.raises(NotTheMaster) as raised:
        Response(14, 1, remark=f"not the master: {text}").check()
    assert raised.value.master is None
    assert not isinstance(from_response(1, "not the master: 10.0.0.1:10911"), NotTheMaster)


def test_an_answer_is_read_tolerantly_and_refused_by_name():
    assert Response(0, 1, fields={"offset": 7}).header(OffsetResponse) == OffsetResponse(offset=7)
    assert Response(0, 1, fields={"offset": "7", "new": "x"}).header(OffsetResponse) == OffsetResponse(offset=7)
    with pytest.raises(MissingField, match="offset"):
        Response(0, 1).header(OffsetResponse)
    with pytest.raises(ProtocolError, match="offset"):
        Response(0, 1, fields={"offset": "many"}).header(OffsetResponse)
