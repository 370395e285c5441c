"""The codec of the stream between replicas, for any way in which the network cuts the bytes."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.broker.replication.replica_stream import (
    MAX_PAYLOAD_BYTES,
    PREAMBLE,
    Frame,
    FrameRequest,
    Hello,
    RecordMark,
    Refusal,
    Report,
    StreamDecoder,
    TablePiece,
    TableStored,
    encode_message,
    frame_head,
)
from pyromq.broker.replication.set_record import SetSettings
from pyromq.errors import ProtocolError
from pyromq.store.epoch_file import EpochStart

SETTINGS = SetSettings(file_bytes=1 << 30, min_in_sync=2, unclean=False)
HELLO = Hello(1, "c", "orders", 2, 77, 5, True, (EpochStart(1, 0), EpochStart(5, 900)), 0, 1200, False, SETTINGS)

numbers = st.integers(0, (1 << 63) - 1)
names = st.text(max_size=30)
marks = st.none() | st.builds(RecordMark, numbers, numbers, numbers)
lines = st.lists(st.builds(EpochStart, numbers, numbers), max_size=4).map(tuple)
settings = st.builds(SetSettings, numbers, numbers, st.booleans())
messages = st.one_of(
    st.builds(
        Hello, st.just(1), names, names, numbers, numbers, numbers, st.booleans(), lines, numbers, numbers,
        st.booleans(), settings, st.booleans(), names, names,
    ),
    st.builds(FrameRequest, numbers, numbers, marks),
    st.builds(Frame, numbers, numbers, numbers, st.binary(max_size=100)),
    st.builds(Report, numbers, numbers, numbers),
    st.builds(TablePiece, names, numbers, numbers, st.booleans(), st.binary(max_size=100)),
    st.builds(TableStored, names, numbers),
    st.builds(Refusal, names),
)  # fmt: skip


@given(st.lists(messages, max_size=8), st.data())
def test_messages_are_read_however_the_bytes_are_cut(sent, data):
    stream = PREAMBLE + b"".join(map(encode_message, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    decoder = StreamDecoder()
    read = []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        read += decoder.feed(stream[begin:end])
    assert read == sent


@given(st.binary(max_size=200))
def test_strange_bytes_raise_no_other_error(data):
    decoder = StreamDecoder()
    decoder.feed(PREAMBLE)
    try:
        decoder.feed(data)
    except ProtocolError:
        pass


def test_the_preamble_is_a_negative_number_for_a_slave_of_4_9():
    assert int.from_bytes(PREAMBLE, "big", signed=True) < 0


def test_a_slave_of_4_9_is_refused_at_its_first_byte():
    with pytest.raises(ProtocolError, match=r"begins with 00 .* slave of RocketMQ 4\.9"):
        StreamDecoder().feed(b"\0" * 8)


def test_a_hello_of_another_version_is_refused_by_both_versions():
    newer = msgspec.structs.replace(HELLO, version=3)
    with pytest.raises(ProtocolError, match=r"speaks version 3 .* reads 1: upgrade this replica first"):
        StreamDecoder().feed(PREAMBLE + encode_message(newer))


def test_a_newer_hello_may_have_other_fields():
    payload = msgspec.json.encode({"version": 9, "strange": True})
    with pytest.raises(ProtocolError, match="version 9"):
        StreamDecoder().feed(PREAMBLE + b"\x01" + len(payload).to_bytes(4, "big") + payload)


def test_a_message_above_the_limit_is_refused_by_its_head():
    head = b"\x03" + (MAX_PAYLOAD_BYTES + 1).to_bytes(4, "big")
    with pytest.raises(ProtocolError, match=str(MAX_PAYLOAD_BYTES)):
        StreamDecoder().feed(PREAMBLE + head)


@pytest.mark.parametrize("message", [b"\x09\0\0\0\0", b"\x04\0\0\0\x01x", b"\x01\0\0\0\x02{}", b"\x02\0\0\0\x01{"])
def test_a_message_that_no_replica_sends_is_refused(message):
    with pytest.raises(ProtocolError, match=f"kind {message[0]}"):
        StreamDecoder().feed(PREAMBLE + message)


def test_the_head_of_a_frame_goes_before_views_of_the_log():
    frame = Frame(5, 900, 800, b"bytes")
    assert frame_head(frame, 5) + b"bytes" == encode_message(frame)
