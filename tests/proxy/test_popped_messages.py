"""Popped records become the same messages of a client's call in the compiled way as by protobuf."""

from __future__ import annotations

import gzip
import struct
import zlib

from hypothesis import given
from hypothesis import strategies as st

from pyromq.errors import MQError
from pyromq.message import NAME_VALUE, PAIRS, Property, StoredMessage, SysFlag
from pyromq.proxy.popped_messages import PoppedMessages
from pyromq.proxy.proto import service_pb2 as service
from pyromq.proxy.received_messages import HIDDEN, fill_message
from pyromq.proxy.sent_messages import BORN_HOST, TRACE_CONTEXT
from pyromq.record import decode, encode, mark_addresses
from pyromq.remoting.command import Response
from pyromq.remoting.headers import PopMessageResponse
from pyromq.remoting.receipt_handle import PopInfos

MAX_ATTEMPTS = 17
PREFIX = struct.Struct(">BI")
KNOWN = [*vars(Property).values(), BORN_HOST, TRACE_CONTEXT, *HIDDEN]
VALUES = ["true", "a b", " a\u2003b\n", "1700000000123", "1" * 15, "1" * 16, "-1", "٣", "0", "", "%RETRY%g_orders"]

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
name = st.sampled_from([each for each in KNOWN if isinstance(each, str)]) | text
pair = st.tuples(
    name, st.sampled_from([NAME_VALUE, NAME_VALUE, NAME_VALUE, "", NAME_VALUE * 2]), st.sampled_from(VALUES) | text
)
# Nearly always with the id without which a record is left to Python.
properties = st.tuples(
    st.lists(pair, max_size=8), st.sampled_from([[("UNIQ_KEY", NAME_VALUE, "0100AB")]] * 5 + [[]])
).map(lambda pairs: PAIRS.join(map("".join, pairs[0] + pairs[1])))
number = st.sampled_from([0, 1, 127, 128, 1_700_000_000_123, (1 << 63) - 1, -1, -(1 << 63)]) | st.integers(
    -(1 << 63), (1 << 63) - 1
)
address = st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20)
body = st.binary(max_size=300)
stored = st.one_of(
    st.tuples(body, st.just(0)),
    st.tuples(body.map(gzip.compress), st.just(SysFlag.COMPRESSED)),
    st.tuples(body | body.map(gzip.compress) | body.map(zlib.compress), st.just(SysFlag.COMPRESSED)),
)


ORDINARY = {"queue_offset": 7, "log_offset": 123_456, "born_ms": 1_700_000_000_123, "store_ms": 1_700_000_000_200}
odd_fields = st.fixed_dictionaries(
    {},
    optional={
        "topic": st.sampled_from(["%RETRY%g_orders", "others"]),
        "queue_id": st.sampled_from([-1, 4, 1 << 30]),
        "reconsume_times": st.sampled_from([1, MAX_ATTEMPTS, -1]),
        "flag": st.just(7),
        **dict.fromkeys(ORDINARY, number),
    },
)


@st.composite
def messages(draw: st.DrawFn) -> StoredMessage:
    stored_body, flags = draw(stored)
    fields = {"topic": "orders", "queue_id": draw(st.integers(0, 2)), **ORDINARY}
    if draw(st.sampled_from([False, False, True])):
        fields |= draw(odd_fields)
    message = StoredMessage(
        stored_body=stored_body,
        property_text=draw(properties),
        sys_flag=flags,
        born_address=draw(address),
        store_address=draw(address),
        **fields,
    )
    mark_addresses(message)
    return message


@st.composite
def responses(draw: st.DrawFn) -> Response:
    records = bytearray(b"".join(map(encode, draw(st.lists(messages(), min_size=1, max_size=5)))))
    if draw(st.integers(0, 9)) == 9:  # damaged
        records[draw(st.integers(0, len(records) - 1))] = draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    starts = draw(st.sampled_from(["0 0 0;0 1 7;0 2 1700000000000;1 3 9", "0 0 0;0 1 7;0 2 0", "1 0 5", ""]))
    counts = draw(st.sampled_from([None, None, None, None, "0 1 2;0 qo1%7 3"]))
    fields = {"popTime": "1700000000300", "reviveQid": "0", "restNum": "0", "startOffsetInfo": starts}
    fields["invisibleTime"] = str(draw(st.just(60_000) | st.integers(0, 1 << 40)))
    return Response(0, 1, fields=fields | ({"orderCountInfo": counts} if counts else {}), body=bytes(records))


def by_protobuf(response: Response) -> tuple[list[object], list[object]] | str:
    """Return the messages of the client, and the handles and ids of dead letters; or the text of what is raised."""
    infos = PopInfos(response.header(PopMessageResponse), "broker-a")
    found: list[object] = []
    dead: list[object] = []
    at = 0
    try:
        while at < len(response.body):
            message = decode(response.body, at)
            at += message.size
            handle, attempts = infos.handle(message), infos.attempts(message)
            if attempts >= MAX_ATTEMPTS:
                dead.append((handle, message.message_id))
                continue
            answer = service.ReceiveMessageResponse()
            fill_message(answer.message, message, "orders", handle=handle, attempt=attempts + 1)
            found.append(answer)
    except MQError as error:
        return str(error)
    return found, dead


def parsed(data: bytes) -> list[object]:
    answers: list[object] = []
    while data:
        compressed, size = PREFIX.unpack_from(data)
        assert compressed == 0
        answers.append(service.ReceiveMessageResponse.FromString(data[PREFIX.size : PREFIX.size + size]))
        data = data[PREFIX.size + size :]
    return answers


def encoded(response: Response) -> tuple[list[object], list[object]] | str:
    dead: list[object] = []
    try:
        popped = PoppedMessages(response, "orders", "broker-a")
        parts = list(popped.encoded(MAX_ATTEMPTS, lambda *one: dead.append(one)))
    except MQError as error:
        return str(error)
    return parsed(b"".join(parts)), dead


@given(responses())
def test_messages_are_those_of_protobuf(response):
    assert encoded(response) == by_protobuf(response)
