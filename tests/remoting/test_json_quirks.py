"""Reading fastjson's dialect, refusing what is not JSON at all, and writing what every client reads."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.errors import ProtocolError
from pyromq.message import MessageQueue
from pyromq.remoting.bodies.body import Body
from pyromq.remoting.json_quirks import body_pieces, decode_body, encode_body, parse


class Sample(msgspec.Struct, rename="camel"):
    a_text: str = "default"
    number: int = 0
    rate: float = 0.0
    flag: bool = False
    absent: str | None = None
    texts: list[str] = []
    by_number: dict[int, str] = {}
    by_text: dict[str, str] = {}
    by_queue: dict[MessageQueue, int] = {}
    either: dict[MessageQueue, int] | list[str] = {}


QUEUE = MessageQueue("t", "b", 1)
MANY = 1_000_000  # more than the stack of any Python holds; from 3.14 on that is some 100,000

READS = [
    ('{"number":7}', Sample(number=7)),
    ('{"number":"7"}', Sample(number=7)),
    ('{"number":7.0}', Sample(number=7)),
    ('{"number":null}', Sample()),
    ('{"flag":"true"}', Sample(flag=True)),
    ('{"aText":7}', Sample(a_text="7")),
    ('{"aText":1.5}', Sample(a_text="1.5")),
    ('{"aText":true}', Sample(a_text="true")),
    ('{"aText":null}', Sample()),
    ('{"absent":7}', Sample(absent="7")),
    ('{"texts":[1,"x"]}', Sample(texts=["1", "x"])),
    ('{"byText":{"a":1}}', Sample(by_text={"a": "1"})),
    ('{"byNumber":{0:"x",-1:"y"}}', Sample(by_number={0: "x", -1: "y"})),
    ('{"byNumber":{"0":"x"}}', Sample(by_number={0: "x"})),
    ('{"byQueue":{{"brokerName":"b","queueId":1,"topic":"t"}:7}}', Sample(by_queue={QUEUE: 7})),
    ('{"byQueue":{"{\\"brokerName\\":\\"b\\",\\"queueId\\":1,\\"topic\\":\\"t\\"}":7}}', Sample(by_queue={QUEUE: 7})),
    ('{"either":["x"]}', Sample(either=["x"])),
    ('{"either":{{"topic":"t","queueId":"1","brokerName":"b"}:7}}', Sample(either={QUEUE: 7})),
    ('{"unknown":{"a":[{}]},"@type":"x","number":7}', Sample(number=7)),
    ('{\n\t"byNumber" : { 0 : "x" } ,\r\n\t"number":7\n}\n', Sample(by_number={0: "x"}, number=7)),
    ('{"aText":"\\u4e2d \\"q\\" \\\\","byNumber":{0:"中"}}', Sample(a_text='中 "q" \\', by_number={0: "中"})),
    ('{"rate":1e2,"byNumber":{0:"x"}}', Sample(rate=100.0, by_number={0: "x"})),
    ('{"byText":{"x":"1"},"unknown":{"$ref":"$.byText"}}', Sample(by_text={"x": "1"})),
]


@pytest.mark.parametrize(("text", "sample"), READS)
def test_reads_what_java_writes_or_accepts(text, sample):
    assert decode_body(Sample, text.encode()) == sample


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ('{"a":{"x":1},"b":{"$ref":"$.a"}}', {"x": 1}),
        ('{"a":[0,{"x":1}],"b":{"$ref":"$.a[1]"}}', {"x": 1}),
        ('{"a":{"c":{"x":1}},"d":{"e":{"$ref":"$.a.c"}},"b":{"$ref":"$.d"}}', {"e": {"x": 1}}),
        ('{"a":{"x":1},"b":{"$ref":"$.a"},"b":{"x":2}}', {"x": 2}),
    ],
)
def test_references_become_what_they_refer_to(text, meaning):
    assert parse(text.encode())["b"] == meaning


@pytest.mark.parametrize("reference", ["@", "$", ".."])
def test_an_object_may_hold_itself(reference):
    root = parse(b'{"x":1,"b":{"$ref":"%b"}}' % reference.encode())
    assert root["b"] is root


def test_reference_to_the_parent_means_what_holds_the_holder():
    assert parse(b'{"x":1,"c":{"b":{"$ref":".."}}}')["c"]["b"]["x"] == 1


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", "{", '{"number"', '{"number":', '{"number":}', '{"number":x}', '{"number":1}}', '{"number" 1}',
     '{"number":0e}', '{"rate":-1.5e+}', '{"number":1.2.3}', '{"number":--1}', '{"number":-}',
     '{"aText":"x}', '{"number":"seven"}', '{"number":1.5}', '{"number":123456789012345678901}', '{"texts":{}}',
     '{"byQueue":{{"topic":"t"}:7}}', '{"byQueue":{"x":7}}', '{[1]:2}', '{null:2}', '{"texts":{"$ref":"$.nowhere"}}',
     '{"aText":"\\ud800"}', '{"rate":NaN}'],
)  # fmt: skip
def test_refuses_what_does_not_fit_and_names_the_body(text):
    if text.endswith("678901}"):
        text = text.replace('"number"', '"byNumber":{0:"x"},"number"')  # through the tolerant reader
    with pytest.raises(ProtocolError, match="Sample"):
        decode_body(Sample, text.encode())


def test_refusal_names_the_position():
    with pytest.raises(ProtocolError, match=r"character 10 \('oops"):
        decode_body(Sample, b'{"number":oops}')


@pytest.mark.parametrize(
    "raw", [b"\xff", b'{"aText":"\xff"}', b"[" * MANY, b'{"x":' + b"[" * MANY + b"]" * MANY + b"}"]
)
def test_refuses_bad_text_and_endless_nesting(raw):
    with pytest.raises(ProtocolError):
        decode_body(Sample, raw)


def test_writes_sorted_keys_without_blanks_nulls_or_lost_lists():
    assert encode_body(Sample()) == (
        b'{"aText":"default","byNumber":{},"byQueue":{},"byText":{},'
        b'"either":{},"flag":false,"number":0,"rate":0.0,"texts":[]}'
    )


def test_writes_queues_as_object_keys():
    written = encode_body(Sample(by_queue={QUEUE: 7, MessageQueue("t", "b", 2): 8}))
    assert b'{{"brokerName":"b","queueId":1,"topic":"t"}:7,{"brokerName":"b","queueId":2,"topic":"t"}:8}' in written


def test_writes_number_keys_with_quotes_so_that_any_reader_takes_them():
    assert json.loads(encode_body(Sample(by_number={0: "x"})))["byNumber"] == {"0": "x"}


numbers = st.integers(-(1 << 63), (1 << 63) - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]))
queues = st.builds(MessageQueue, texts, texts, numbers)
samples = st.builds(
    Sample, a_text=texts, number=numbers, rate=st.floats(allow_nan=False, allow_infinity=False), flag=st.booleans(),
    absent=st.none() | texts, texts=st.lists(texts), by_number=st.dictionaries(numbers, texts),
    by_text=st.dictionaries(texts.filter(lambda name: name != "$ref"), texts),
    by_queue=st.dictionaries(queues, numbers),
    either=st.lists(texts, min_size=1) | st.dictionaries(queues, numbers),
)  # fmt: skip


@given(samples)
def test_what_we_write_we_read(sample):
    assert decode_body(Sample, encode_body(sample)) == sample


def _plainly(value):
    """The same text, member by member: what msgspec writes at once must be no other."""
    if isinstance(value, msgspec.Struct):
        members = sorted((f.encode_name, getattr(value, f.name)) for f in msgspec.structs.fields(value))
        value = {name: member for name, member in members if member is not None}
    if isinstance(value, MessageQueue):
        return _plainly({"brokerName": value.broker_name, "queueId": value.queue_id, "topic": value.topic})
    if isinstance(value, dict):
        keys = [_plainly(key) if isinstance(key, MessageQueue) else _plainly(str(key)) for key in value]
        members = zip(keys, value.values(), strict=True)
        return "{" + ",".join(f"{key}:{_plainly(member)}" for key, member in members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_plainly, value)) + "]"
    return msgspec.json.encode(value).decode()


class Flat(Body):
    """Nothing here may be absent, and the names are in no order."""

    zeta: str = ""
    a_number: int = 0
    rate: float = 0.0
    flags: list[bool] = msgspec.field(default_factory=list)


class Nested(Body):
    """What is written at once, beside and within what is not."""

    flats: dict[str, Flat]
    numbers: dict[str, dict[int, int]]
    sample: Sample


flats = st.builds(
    Flat,
    zeta=texts,
    a_number=numbers,
    rate=st.floats(allow_nan=False, allow_infinity=False),
    flags=st.lists(st.booleans()),
)
nested = st.builds(
    Nested,
    flats=st.dictionaries(texts, flats),
    numbers=st.dictionaries(texts, st.dictionaries(numbers, numbers)),
    sample=samples,
)


@given(nested)
def test_what_is_written_at_once_is_what_is_written_bit_by_bit(body):
    assert encode_body(body).decode() == _plainly(body)
    assert encode_body(body.sample).decode() == _plainly(body.sample)


def test_no_piece_of_a_large_body_is_large():
    body = Nested(
        flats={str(number): Flat() for number in range(1000)},
        numbers={},
        sample=Sample(by_queue={MessageQueue("t", "b", number): 0 for number in range(1000)}),
    )
    assert max(map(len, body_pieces(body))) < 100


@given(samples, st.data())
def test_a_changed_byte_gives_a_value_or_a_protocol_error(sample, data):
    raw = bytearray(encode_body(sample))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        decode_body(Sample, bytes(raw))
    except ProtocolError:
        pass


@given(st.binary(max_size=60) | st.text('{}[]",:$ref.0@\\u1-e tn').map(str.encode))
def test_any_bytes_give_a_value_or_a_protocol_error(raw):
    try:
        decode_body(Sample, raw)
    except ProtocolError:
        pass
