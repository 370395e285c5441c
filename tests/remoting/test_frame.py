"""Frames: any bytes in any pieces come out as they went in, and no piece is kept longer than needed."""

import struct
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.errors import FrameTooLarge, ProtocolError
from pyromq.remoting.command import (
    BINARY,
    JSON,
    MAX_FRAME_BYTES,
    FrameSplitter,
    frame_words,
)

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
    assert splitter.incomplete_bytes == 0


@given(st.lists(st.integers(1, 30_000), max_size=20), st.sampled_from([0, 7, 5000]))
def test_large_frames_come_back_from_small_and_large_pieces(sizes, header_size):
    """They are kept in different ways."""
    frames = [(JSON, bytes(range(256)) * 30, b"body" * 10_000), (BINARY, b"h" * header_size, b"x" * 50_000)]
    stream = joined(frames)
    cuts = [cut for cut in accumulate(sizes) if cut < len(stream)]
    splitter = FrameSplitter()
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += splitter.split(stream[start:end])
        assert splitter.incomplete_bytes == end - len(joined(found))
    assert found == frames


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
    assert splitter.incomplete_bytes == 3
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


# -- frames that are not taken


@given(FRAMES, st.integers(0, 40), st.data())
def test_frames_that_are_not_admitted_are_passed_over_in_any_pieces(frames, header_bytes, data):
    def admit(serialization, header, size):
        asked.append((serialization, header, size))
        return serialization % 2 == 0

    frames = [frame for frame in frames if len(frame[1]) <= header_bytes]
    stream = joined(frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    asked, found = [], []
    splitter = FrameSplitter(header_bytes=header_bytes, admit=admit)
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += splitter.split(stream[start:end])
    sizes = [8 + len(header) + len(body) for _, header, body in frames]
    large = [size > header_bytes for size in sizes]
    assert asked == [(*frame[:2], size) for frame, size, is_large in zip(frames, sizes, large, strict=True) if is_large]
    assert found == [frame for frame, is_large in zip(frames, large, strict=True) if not is_large or frame[0] % 2 == 0]
    assert not splitter.is_within_frame


def test_nothing_is_kept_of_a_frame_that_is_not_admitted():
    splitter = FrameSplitter(header_bytes=100, admit=lambda *_: False)
    stream = joined([(JSON, b"head", bytes(50_000)), (JSON, b"next", b"")])
    found = []
    for start in range(0, len(stream), 1000):
        assert splitter.incomplete_bytes == 0
        assert splitter.is_within_frame == (0 < start < 50_012)
        found += splitter.split(stream[start : start + 1000])
    assert found == [(JSON, b"next", b"")]


def test_a_header_beyond_its_limit_is_refused_by_the_words_alone():
    splitter = FrameSplitter(header_bytes=100, admit=lambda *_: True)
    with pytest.raises(FrameTooLarge, match="header of 101 bytes; the limit is 100"):
        splitter.split(frame_words(JSON, 101, 0))
