"""Frames: any bytes in any pieces come out as they went in, and no piece is kept longer than needed."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.errors import FrameTooLarge, ProtocolError
from pyromq.remoting.frame import BINARY, JSON, MAX_FRAME_BYTES, FrameSplitter, frame_words

FRAMES = st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=40), st.binary(max_size=40)), max_size=8)


def joined(frames):
    return b"".join(frame_words(mark, len(header), len(body)) + header + body for mark, header, body in frames)


def test_words_are_length_of_the_rest_and_serialization_with_header_length():
    assert frame_words(JSON, 5, 3) == bytes.fromhex("0000000c 00000005")
    assert frame_words(BINARY, 0x012345, 0) == bytes.fromhex("00012349 01012345")


@given(FRAMES, st.data())
def test_frames_come_back_from_any_pieces_in_order(frames, data):
    stream = joined(frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    splitter = FrameSplitter()
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += splitter.split(stream[start:end])
    assert found == frames
    assert splitter.unfinished == 0


@given(FRAMES)
def test_frames_come_back_byte_by_byte(frames):
    splitter = FrameSplitter()
    assert [frame for byte in joined(frames) for frame in splitter.split(bytes([byte]))] == frames


def test_a_frame_is_given_at_its_last_byte():
    stream = joined([(JSON, b"head", b"body")])
    splitter = FrameSplitter()
    assert splitter.split(stream[:-1]) == []
    assert splitter.split(stream[-1:]) == [(JSON, b"head", b"body")]


def test_what_follows_a_frame_stays_for_the_next_piece():
    first, second = joined([(JSON, b"a", b"")]), joined([(BINARY, b"b", b"c")])
    splitter = FrameSplitter()
    assert splitter.split(first + second[:3]) == [(JSON, b"a", b"")]
    assert splitter.unfinished == 3
    assert splitter.split(second[3:]) == [(BINARY, b"b", b"c")]


def test_a_frame_of_nothing_is_a_frame():
    assert FrameSplitter().split(struct.pack(">II", 4, 0)) == [(JSON, b"", b"")]


def test_the_limit_counts_the_length_word():
    raw = joined([(JSON, b"head", bytes(88))])
    assert len(raw) == 100
    assert len(FrameSplitter(max_frame_bytes=100).split(raw)) == 1
    with pytest.raises(FrameTooLarge, match="frame of 96 bytes; the limit is 95"):
        FrameSplitter(max_frame_bytes=99).split(raw)


def test_a_large_frame_is_refused_by_its_length_word_alone():
    with pytest.raises(FrameTooLarge):
        FrameSplitter().split(struct.pack(">I", MAX_FRAME_BYTES))


def test_a_header_longer_than_its_frame_is_refused():
    with pytest.raises(ProtocolError, match="frame of 8 bytes claims a header of 5"):
        FrameSplitter().split(struct.pack(">II", 8, 5) + bytes(4))


def test_frames_before_a_broken_one_are_given_then_the_splitter_is_broken():
    good = (JSON, b"head", b"body")
    splitter = FrameSplitter()
    assert splitter.split(joined([good, good]) + struct.pack(">II", 1, 9)) == [good, good]
    assert splitter.broken
    with pytest.raises(ProtocolError):
        splitter.split(b"")
