"""What compiled code makes of requests and answers is what plain Python makes of them: bytes, values and errors."""

import json
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyromq import speedups
from pyromq.client.client_config import ProducerConfig
from pyromq.client.producer.pending_send import prepare
from pyromq.clock import SystemClock
from pyromq.errors import MQError, ProtocolError
from pyromq.message import RESERVED_PROPERTIES, Message
from pyromq.message_id import UniqueIds
from pyromq.remoting.command import Call, FrameSplitter, Reply, decode_response, encode_request, write_reply
from pyromq.remoting.header import Filled, HeaderTemplate, json_text
from pyromq.remoting.headers import PullMessageResponse, SendMessageResponse, SendMessageV2

if not speedups.is_active:
    pytest.skip(speedups.reason, allow_module_level=True)

from pyromq.remoting.remoting_session import deliver_answers
from pyromq.speedups.requests import PropertyWriter

TEXTS = st.text(max_size=12)
# With what JSON escapes, what separates properties, and blanks of several kinds.
ODD_TEXTS = st.text(st.sampled_from('ab "\\/\x00\x01\x02\x1f\x7f\t\n\u2028\u3000é€😀|%'), max_size=6)
NUMBERS = st.integers(-(1 << 70), 1 << 70) | st.integers(-5, 1 << 31)
INTS = st.integers(-(1 << 31), (1 << 31) - 1)
CONFIG = ProducerConfig(max_message_bytes=64, compress_from_bytes=40)
IDS = UniqueIds("127.0.0.1", SystemClock())


# -- requests


@given(TEXTS, st.lists(NUMBERS, min_size=4, max_size=4), ODD_TEXTS, st.binary(max_size=50), INTS, INTS)
@example("100%d%%", [0, 0, 0, 0], "%b", b"", 0, 0)
def test_a_filled_template_is_written_as_by_formatting(topic, numbers, text, body, opaque, flag):
    variables = ("queue_id", "sys_flag", "born_ms", "flag", "properties")
    template = _template(topic.encode(errors="ignore").decode(), variables)
    values = (*numbers, json_text(text.encode(errors="ignore").decode()))
    written = encode_request(Filled(template, values), body, opaque=opaque, flag=flag)
    header = template.request_line % (*values, flag, opaque)
    if all(abs(number) < 1 << 62 for number in numbers):
        assert template.request_writer.frame(values, flag, opaque, body) == written
    assert written == struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


def test_values_that_fit_no_hole_fail_as_in_formatting():
    template = _template("t", ("queue_id", "sys_flag", "born_ms", "flag", "properties"))
    for values in [(0, 0, 0, 0), (0, 0, 0, 0, 0), (0, 0, 0, b"", b""), (0, 0, 0, "0", b"")]:
        with pytest.raises(TypeError):
            encode_request(Filled(template, values), b"", opaque=1, flag=0)


def _template(topic, variables):
    return HeaderTemplate(
        SendMessageV2,
        variables,
        formats={"properties": "%b"},
        producer_group="g",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_count=4,
        reconsume_times=0,
        unit_mode=False,
        batch=False,
    )


# -- answers


@st.composite
def replies(draw):
    """Answers as brokers write them."""
    header = draw(
        st.none()
        | st.builds(SendMessageResponse, TEXTS, INTS, INTS, transaction_id=st.none() | TEXTS)
        | st.builds(PullMessageResponse, INTS, INTS, INTS, INTS)
    )
    remark = draw(st.none() | ODD_TEXTS)
    reply = Reply(header, draw(st.binary(max_size=20)), draw(st.integers(0, 300)), remark)
    output = []
    write_reply(reply, Call(0, draw(INTS)), output)
    return b"".join(output)


@st.composite
def odd_frames(draw):
    """Frames whose header is some JSON with the names of an answer, or looks like it."""
    values = INTS | st.booleans() | st.none() | ODD_TEXTS | st.lists(INTS, max_size=2) | st.floats()
    fields = st.dictionaries(st.sampled_from(["msgId", "queueId", "\x01", "é", "code", ""]), values | ODD_TEXTS)
    names = ("code", "flag", "opaque", "version", "language", "remark", "serializeTypeCurrentRPC", "other")
    pairs = draw(st.lists(st.tuples(st.sampled_from(names), values), max_size=8))
    pairs += [("extFields", draw(fields | values)), ("flag", 1)]
    spaced = draw(st.sampled_from([",", " , ", ",\n\t", ",,"]))
    text = spaced.join(f"{json.dumps(n)}:{json.dumps(v, ensure_ascii=draw(st.booleans()))}" for n, v in pairs)
    header = ("{" + text + draw(st.sampled_from(["}", "} ", "}}", ""]))).encode(errors="replace")
    return _framed(header, draw(st.binary(max_size=5)), serialization=draw(st.sampled_from([0, 0, 0, 1, 2])))


def _framed(header, body=b"", *, serialization=0):
    return struct.pack(">II", 4 + len(header) + len(body), serialization << 24 | len(header)) + header + body


@pytest.mark.slow  # lists of frames are drawn slowly
@given(st.lists(replies(), max_size=4))
def test_answers_as_brokers_write_them_are_read_whole(frames):
    data = b"".join(frames)
    answers = []
    position = deliver_answers(data, {}, answers.append)
    assert (answers, position) == ([decode_response(*frame) for frame in FrameSplitter().split(data)], len(data))


@given(st.lists(replies() | odd_frames() | st.binary(max_size=12), max_size=4), st.data())
def test_any_bytes_are_read_as_in_plain_python(frames, data):
    received = bytearray(b"".join(frames))
    for _ in range(data.draw(st.integers(0, 3)) if received else 0):
        received[data.draw(st.integers(0, len(received) - 1))] = data.draw(st.integers(0, 255))
    answers = []
    position = deliver_answers(bytes(received), {}, answers.append)
    rest, failure = _plainly(bytes(received[position:]))
    assert repr((answers + rest, failure)) == repr(_plainly(bytes(received)))  # by text: not-a-number is equal to none


def _plainly(data):
    splitter, commands = FrameSplitter(), []
    try:
        commands.extend(decode_response(*frame) for frame in splitter.split(data))  # those before an error, too
        if splitter.broken:
            splitter.split(b"")
    except ProtocolError as error:
        return commands, str(error)
    return commands, (splitter.incomplete_bytes, data[len(data) - splitter.incomplete_bytes :])


# -- messages


@st.composite
def messages(draw):
    texts = TEXTS | ODD_TEXTS
    names = ODD_TEXTS | st.sampled_from(["color", "TAGS", "UNIQ_KEY"])
    anything = st.none() | st.integers(0, 2) | st.booleans() | texts
    message = Message(
        "t",
        draw(st.binary(min_size=1, max_size=30) | st.binary(max_size=70)),
        tags=draw(st.none() | texts),
        keys=draw(texts | st.lists(texts, max_size=3).map(tuple)),
        properties=draw(st.dictionaries(names, texts, max_size=3)),
        message_id=draw(st.none() | texts),
    )
    for name in draw(st.lists(st.sampled_from(Message.__slots__), max_size=1)):
        setattr(message, name, draw(anything | st.dictionaries(texts, anything, max_size=1)))
    return message


@given(messages())
@example(Message("t", b"b", keys="k", properties={"größe": "\u3000x"}))
@example(Message("t", b"b", properties={"blank": "\u3000"}))
@example(Message("t", b"b", properties={"half": "\ud800"}))
@example(Message("t", b"b", keys=("", ""), tags="ü"))
@example(Message("t", b"b", properties={f"name {n}": "v" * 100 for n in range(60)}))
@example(Message("t", b"b", properties={"long": '"' * 40_000}))
@example(Message("t", b"b" * 40))
def test_a_message_is_prepared_as_in_plain_python(message):
    same = Message(**{name: getattr(message, name) for name in Message.__slots__})
    same.keys = message.keys
    compiled = _prepared(message, more=None)
    if message.message_id is not None and same.message_id is None:
        same.message_id = message.message_id
    assert compiled == _prepared(same, more={})  # with further properties, be they none, the plain way
    assert message == same


def test_a_plain_message_needs_no_plain_python():
    message = Message("t", b"b", tags="ü", keys=("a", '"'), properties={"x": "\\"}, wait_stored=False)
    text = PropertyWriter(Message, RESERVED_PROPERTIES).text(message, lambda: "id", 4096, 4096)
    properties = 'x\x01\\\x02KEYS\x01a "\x02UNIQ_KEY\x01id\x02WAIT\x01false\x02TAGS\x01ü'
    assert text == json_text(properties)


def _prepared(message, *, more):
    try:
        return prepare(message, CONFIG, IDS, more=more)
    except (MQError, TypeError, AttributeError) as error:
        return type(error), str(error)
