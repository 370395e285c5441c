"""Receipt handles and the infos of a response to a pop. The texts were written by RocketMQ 5.3.3's ExtraInfoUtil."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.errors import InvalidReceiptHandle, ProtocolError
from pyromq.message import Property, StoredMessage, encode_properties
from pyromq.remoting.headers import PopMessageResponse
from pyromq.remoting.receipt_handle import (
    PopInfos,
    ReceiptHandle,
    bits_of,
    decode_bits,
    encode_bits,
    join_counts,
    join_offsets,
    join_starts,
    offsets_in,
    parse_receipt_handle,
)

POP_MS = 1_700_000_000_000
TEXT = f"3 {POP_MS} 60000 0 0 broker-a 2 17"
HANDLE = ReceiptHandle(3, POP_MS, 60_000, 0, "0", "broker-a", 2, 17)
NUMBERS = st.integers(0, (1 << 63) - 1)


def test_a_handle_has_javas_text():
    assert HANDLE.encode() == TEXT
    assert parse_receipt_handle(TEXT) == HANDLE
    assert HANDLE.expires_ms == POP_MS + 60_000
    assert not HANDLE.is_orderly


@pytest.mark.parametrize(
    ("text", "orderly", "topic"),
    [
        (TEXT, False, "orders"),
        (f"3 {POP_MS} 60000 999 1 broker-a 2 17", True, "%RETRY%g_orders"),
        (f"3 {POP_MS} 60000 1 2 broker-a 2 17", False, "%RETRY%g+orders"),
    ],
)
def test_a_handle_names_the_topic_of_its_message(text, orderly, topic):
    handle = parse_receipt_handle(text)
    assert handle.encode() == text
    assert handle.is_orderly == orderly
    assert handle.topic("g", "orders") == topic


@given(
    st.builds(
        ReceiptHandle,
        *(NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.sampled_from("012"), st.from_regex(r"[\w-]{1,20}", fullmatch=True)),
        *(NUMBERS, NUMBERS, st.integers(-1, (1 << 63) - 1)),
    )
)
def test_a_handle_survives_writing_and_reading(handle):
    assert parse_receipt_handle(handle.encode()) == handle


def test_words_behind_the_log_offset_are_ignored():
    assert parse_receipt_handle(f"{TEXT} 4711 more words") == HANDLE._replace(log_offset=4711)
    assert parse_receipt_handle(f"{TEXT} x") == HANDLE


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " ",
            "x",
            "1 2 3 0 0 b 2",
            "1 2 3 0 3 b 2 17",
            "-1 2 3 0 0 b 2 17",
            "1 2 3 0 0  2 17",
            "1 2 3 0 0 b x 17",
        ),
        *("1 2 3 0 0 b 2 9223372036854775808", "1 2 3 0 0 b 2 ５", "1 2 3 0 0 b 2 " + "9" * 5000, "\ud800 " * 9),
    ],
)
def test_other_texts_are_refused(text):
    with pytest.raises(InvalidReceiptHandle, match="receipt handle is invalid") as refused:
        parse_receipt_handle(text)
    assert len(str(refused.value)) < 400


def test_infos_have_javas_text():
    assert join_starts({("0", 2): 17, ("1", 0): 4}) == "0 2 17;1 0 4"
    assert join_offsets({("0", 2): [17, 19], ("1", 0): [4]}) == "0 2 17,19;1 0 4"
    assert join_counts({("0", 2): {17: 3, 19: 1}}) == "0 2 3;0 qo2%17 3;0 qo2%19 1"


def popped(topic: str, queue_id: int, offset: int, times: int = 0, **properties: str) -> StoredMessage:
    return StoredMessage(
        *(topic, b"body", encode_properties(properties), queue_id),
        queue_offset=offset, log_offset=4711, reconsume_times=times,
    )  # fmt: skip


def response(**infos: str) -> PopMessageResponse:
    return PopMessageResponse(pop_ms=POP_MS, invisible_ms=60_000, revive_queue=0, rest=0, **infos)


def test_each_message_gets_its_handle_from_the_infos():
    infos = PopInfos(response(start_offset_info="0 2 3;1 0 4"), "broker-a")
    assert infos.handle(popped("orders", 2, 17)).encode() == f"{TEXT} 4711"
    check_point = f"4 {POP_MS} 60000 0 1 broker-a 0"
    for text in (check_point, f"{check_point} 5"):
        retried = popped("orders", 0, 5, times=2, **{Property.POP_CHECK_POINT: text})
        assert infos.handle(retried).encode() == f"{check_point} 5 4711"
        assert infos.attempts(retried) == 2


def test_without_infos_a_message_is_a_pop_of_its_own():
    assert PopInfos(response(), "broker-a").handle(popped("orders", 2, 17)).start == 17


def test_orderly_messages_say_how_often_they_were_handed_out():
    infos = PopInfos(response(order_count_info="0 2 3;0 qo2%17 3;0 qo2%19 1"), "broker-a")
    assert [infos.attempts(popped("orders", 2, offset)) for offset in (17, 19, 20)] == [3, 1, 3]
    assert infos.attempts(popped("orders", 1, 17)) == 0


@pytest.mark.parametrize("text", ["0 2", "0 2 x", "0 2 3 4", "0 2 -3", "x" * 9999])
def test_infos_that_cannot_be_read_are_refused(text):
    with pytest.raises(ProtocolError, match="startOffsetInfo of a response to a pop"):
        PopInfos(response(start_offset_info=text), "broker-a")


@given(st.integers(0, 1 << 60), st.sets(st.integers(0, 4095), max_size=40))
def test_offsets_survive_as_a_bit_set(start, distances):
    offsets = sorted(start + distance for distance in distances)
    assert offsets_in(decode_bits(encode_bits(bits_of(offsets, start))), start) == offsets


def test_a_bit_set_has_javas_text():
    assert encode_bits(bits_of([3, 12, 73], 3)) == "AQIAAAAAAABA"


@pytest.mark.parametrize("bits", ["%", "AQ", "ü", "A" * 1000 + "ff=="])
def test_a_bit_set_that_cannot_be_read_is_refused(bits):
    with pytest.raises(InvalidReceiptHandle, match=r"^b"):
        decode_bits(bits)
