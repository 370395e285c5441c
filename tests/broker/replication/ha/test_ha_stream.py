"""The codec of the HA stream, for any way in which the network cuts the bytes."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.broker.replication.ha.ha_stream import (
    FrameReader,
    Piece,
    ReportReader,
    encode_frame_header,
    encode_report,
)
from pyromq.errors import ProtocolError

SEGMENT = 1 << 20
LARGE = 1 << 62


@st.composite
def streams(draw):
    """Return frames (log offset, bytes) as a master sends them, and their bytes cut at random places."""
    frames = draw(
        st.lists(st.tuples(st.integers(0, 1 << 40).map(lambda number: number * SEGMENT), st.binary(max_size=60)))
    )
    data = b"".join(encode_frame_header(offset, len(content)) + content for offset, content in frames)
    return frames, cut(draw, data)


def cut(draw, data):
    ends = sorted({*draw(st.lists(st.integers(0, len(data)), max_size=20)), 0, len(data)})
    return [data[start:end] for start, end in pairwise(ends)]


@given(streams())
def test_pieces_together_are_the_frames(stream):
    frames, received = stream
    reader = FrameReader(SEGMENT)
    pieces = [(offset, bytes(data)) for part in received for offset, data in reader.read(memoryview(part))]
    joined = []
    for offset, data in pieces:
        if joined and data and joined[-1][1] and offset == joined[-1][0] + len(joined[-1][1]):
            joined[-1] = joined[-1][0], joined[-1][1] + data
        else:
            joined.append((offset, data))
    assert joined == frames


@given(st.lists(st.integers(0, LARGE), min_size=1), st.data())
def test_the_last_report_is_read_however_the_bytes_are_cut(reports, data):
    reader = ReportReader()
    received = [reader.read(part) for part in cut(data.draw, b"".join(map(encode_report, reports)))]
    assert received[-1] == reports[-1]
    assert {report for report in received if report is not None} <= set(reports)


def test_reports_that_came_together_count_as_the_last_one():
    assert ReportReader().read(encode_report(5) + encode_report(9) + b"\0\0") == 9


def test_a_heartbeat_is_a_piece_without_bytes():
    assert list(FrameReader(SEGMENT).read(memoryview(encode_frame_header(77, 0)))) == [Piece(77, memoryview(b""))]


def test_bytes_on_the_wire_are_big_endian():
    assert encode_report(0x0102030405060708) == bytes(range(1, 9))
    assert encode_frame_header(1, 2) == bytes([0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2])


@pytest.mark.parametrize(("offset", "size"), [(-1, 10), (0, -1), (LARGE, -(1 << 31))])
def test_a_frame_that_no_master_sends_is_refused(offset, size):
    with pytest.raises(ProtocolError, match=str(size)):
        list(FrameReader(SEGMENT).read(memoryview(encode_frame_header(offset, size))))


def test_a_frame_ends_at_the_end_of_a_file_at_the_latest():
    fits = FrameReader(SEGMENT)
    assert list(fits.read(memoryview(encode_frame_header(SEGMENT - 10, 10)))) == []
    with pytest.raises(ProtocolError, match="mappedFileSizeCommitLog"):
        list(FrameReader(SEGMENT).read(memoryview(encode_frame_header(SEGMENT - 10, 11))))
