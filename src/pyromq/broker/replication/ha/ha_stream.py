"""Codec of the HA stream: a master sends the bytes of its commit log, a slave reports its log offset. No sockets.

    slave to master     bytes   type   meaning
                        8       long   log offset after the last byte that the slave has stored

    master to slave     bytes   type   meaning
                        8       long   log offset of the first byte
                        4       int    size; 0: a heartbeat
                        size           bytes of the commit log, blank records included

The first report says where the master must begin. A frame may end within a record; no frame crosses the end of a log
file. Source: RocketMQ 4.9.7, HAConnection and HAService.HAClient.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from pyromq.errors import ProtocolError

_REPORT = struct.Struct(">q")
_FRAME = struct.Struct(">qi")

REPORT_BYTES = _REPORT.size
FRAME_HEADER_BYTES = _FRAME.size

encode_report = _REPORT.pack
encode_frame_header = _FRAME.pack


class ReportReader:
    """Decodes the reports of one slave."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def read(self, received: bytes) -> int | None:
        """Return the last complete report of the bytes received so far; None if none is complete.

        As upstream, a master ignores all reports of one read but the last: each report covers the earlier ones.
        """
        data = self._rest + received if self._rest else received
        whole = len(data) - len(data) % REPORT_BYTES
        self._rest = data[whole:]
        if not whole:
            return None
        report: int = _REPORT.unpack_from(data, whole - REPORT_BYTES)[0]
        return report


class Piece(NamedTuple):
    """Consecutive bytes of the master's log within one frame."""

    log_offset: int
    data: memoryview  # empty: the frame is a heartbeat, and the next bytes begin at `log_offset`


class FrameReader:
    """Decodes the frames of one master.

    A frame is returned in pieces, as its bytes arrive: a frame of any size takes no memory. `segment_bytes` is the size
    of a log file.
    """

    __slots__ = ("_header", "_left", "_log_offset", "_segment_bytes")

    def __init__(self, segment_bytes: int) -> None:
        self._segment_bytes = segment_bytes
        self._header = bytearray()
        self._log_offset = 0
        self._left = 0  # bytes of the current frame that have not arrived

    def read(self, received: memoryview) -> Iterator[Piece]:
        """Yield the pieces of the received bytes, as views of them. All pieces must be taken.

        Raises `ProtocolError` for a frame that no master sends, or that crosses the end of a log file.
        """
        position, end = 0, len(received)
        while position < end:
            if not self._left:
                taken = received[position : position + FRAME_HEADER_BYTES - len(self._header)]
                self._header += taken
                position += len(taken)
                if len(self._header) < FRAME_HEADER_BYTES:
                    return
                self._begin()
                if not self._left:
                    yield Piece(self._log_offset, received[:0])
                continue
            data = received[position : position + self._left]
            yield Piece(self._log_offset, data)
            position += len(data)
            self._log_offset += len(data)
            self._left -= len(data)

    def _begin(self) -> None:
        log_offset, size = _FRAME.unpack(self._header)
        self._header.clear()
        if log_offset < 0 or size < 0:
            raise ProtocolError(f"frame of log offset {log_offset} and size {size}: the peer is no 4.9 master")
        left_in_file = self._segment_bytes - log_offset % self._segment_bytes
        if size > left_in_file:
            raise ProtocolError(
                f"frame of {size} bytes at log offset {log_offset} crosses the end of a log file of"
                f" {self._segment_bytes} bytes: mappedFileSizeCommitLog must be equal on master and slave"
            )
        self._log_offset, self._left = log_offset, size
