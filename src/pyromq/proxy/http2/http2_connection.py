"""The server's side of one HTTP/2 connection: frames in, calls to the handler, frames out with one write a burst.

Limits: calls, header fields, kept bytes, and frames that carry no call. A peer that breaks the protocol gets GOAWAY
with a text. Work is done in slices, so that connections with much to do take turns. Source: RFC 9113.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any

from pyromq.message import join_address
from pyromq.net.tls.transport import limit_reads
from pyromq.proxy.http2 import frames
from pyromq.proxy.http2.frames import FRAME, FRAME_SIZE, Frame, GrpcCode, Http2Code, Http2Error, SettingId
from pyromq.proxy.http2.grpc_stream import GrpcStream
from pyromq.proxy.http2.header_blocks import MAX_HEADER_BYTES, Fields, HeaderBlocks, not_grpc, unpadded
from pyromq.proxy.http2.shared_by_connections import MIN_SLICE_BYTES, SLICE_BYTES, SharedByConnections

MAX_STREAMS = 1000  # limit of a connection's open calls: more than a client's topics, each with a waiting receive
CONNECTION_WINDOW = 4 << 20
FRAME_COST = 256  # part of a slice that a frame takes beside its bytes
HEADER_COST = 4  # part of a slice that a byte of a header block takes: Python decodes it
FIELD_BYTES = 150  # memory of a header field beside its bytes
CALL_BYTES = 2500  # memory of a call without its fields
MAX_NOISE = 2000  # limit of the count of frames without a call: pings, resets, settings. Calls and time lower the count
NOISE_OF_CALL = 10  # a completed call lowers the count of such frames by this number
FIRST_SECONDS = 10.0  # longest wait for the preface
IDLE_SECONDS = 120.0  # a connection without calls for so long is closed. Source: the genuine proxy

_PAIR = struct.Struct(">HI")
_SIZES = {Frame.PRIORITY: 5, Frame.RST_STREAM: 4, Frame.PING: 8, Frame.WINDOW_UPDATE: 4}
_OF_CONNECTION = frozenset({Frame.SETTINGS, Frame.PING, Frame.GOAWAY})
_USEFUL = frozenset({Frame.DATA, Frame.HEADERS, Frame.WINDOW_UPDATE})
_GREETING = frames.settings(
    {
        SettingId.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
        SettingId.INITIAL_WINDOW_SIZE: frames.STREAM_WINDOW,
        SettingId.MAX_HEADER_LIST_SIZE: MAX_HEADER_BYTES,
    }
) + frames.window_update(0, CONNECTION_WINDOW - frames.DEFAULT_WINDOW)


class Http2Connection(asyncio.Protocol):
    """The server's side of one HTTP/2 connection: reads frames, opens calls, and writes frames."""

    def __init__(self, shared: SharedByConnections) -> None:
        self.shared = shared
        self.clock = shared.clock
        self.peer = ""
        self.streams: dict[int, GrpcStream] = {}
        self.is_choked = False  # the peer does not read: its socket takes no more bytes
        self.window_out = frames.DEFAULT_WINDOW
        self.initial_window = frames.DEFAULT_WINDOW  # of the peer's streams
        self.max_frame = frames.MAX_FRAME
        self.kept = 0  # bytes of open calls, of their messages in work and of unsent answers
        self._in_work = 0  # part of `kept` that is released without an action of the peer
        self._used_at = shared.clock.monotonic()
        self._transport: asyncio.Transport | None = None
        self._blocks = HeaderBlocks()
        self._rest = b""  # received bytes that are not handled yet
        self._out: list[bytes | memoryview] = []
        self._is_flushing = False
        self._is_greeted = False  # the preface has arrived
        self._has_settings = False
        self._is_leaving = False
        self._last = 0  # highest stream that the peer has opened
        self._window_in = CONNECTION_WINDOW
        self._blocked: dict[int, GrpcStream] = {}  # streams whose messages wait for the connection
        self._noise = 0

    # -- the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        limit_reads(transport, SLICE_BYTES)
        self._transport = transport
        peer: Any = transport.get_extra_info("peername") or ("unknown", 0)
        self.peer = join_address(*peer[:2])
        self.shared.connections.add(self)
        transport.write(_GREETING)

    def data_received(self, data: bytes) -> None:
        self._rest += data
        self.shared.received_bytes += len(data)
        shared = self.shared
        if self in shared.late:
            return
        if shared.late and len(self._rest) > MIN_SLICE_BYTES:
            shared.add_late(self)  # short calls of others come first
            self._read_or_pause()
        else:
            self.go_on(shared.first_slice)

    def go_on(self, budget: int) -> int:
        """Handle a slice of the received bytes; return the unused part of the budget.

        If bytes are left, the connection is late: it handles more of them in a later turn."""
        if self._transport is None or self._transport.is_closing():
            self._rest = b""
            return budget
        try:
            used, budget = self._take(self._rest, budget)
        except Http2Error as error:
            self._fail(error.code, str(error))
            used = len(self._rest)
        self._rest = self._rest[used:]
        self._read_or_pause()
        self.flush()
        return budget

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._rest = b""
        self._out.clear()
        self.shared.connections.discard(self)
        self.shared.late.pop(self, None)
        for stream in list(self.streams.values()):
            stream.abandon()

    def pause_writing(self) -> None:
        self.is_choked = True
        self._read_or_pause()

    def resume_writing(self) -> None:
        self.is_choked = False
        self._read_or_pause()
        self._pump_blocked()
        for stream in list(self.streams.values()):
            if not stream.unsent:
                stream.wake()

    def _read_or_pause(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        is_full = self._in_work > 0 and self.kept > self.shared.share_of(self)
        is_wanted = not self.is_choked and not is_full and self not in self.shared.late
        if is_wanted != self._transport.is_reading():
            (self._transport.resume_reading if is_wanted else self._transport.pause_reading)()

    # -- what the server of the port calls

    def leave(self) -> None:
        """Tell the peer to open no more calls, and close when the open calls have ended."""
        if self._transport is not None and not self._is_leaving:
            self._is_leaving = True
            self.write(frames.goaway(self._last, Http2Code.NO_ERROR))
            self._close_if_done()

    def abort(self) -> None:
        """Close the connection now; open calls end."""
        if self._transport is not None:
            self._transport.abort()

    def expire(self, now: float) -> None:
        """End calls whose message does not arrive, and the connection if it is silent or without calls."""
        self._noise = max(0, self._noise - 100)
        if not self._has_settings:
            if now - self._used_at > FIRST_SECONDS:
                self.abort()
            return
        for stream in list(self.streams.values()):
            stream.expire(now)
        if not self.streams and now - self._used_at > IDLE_SECONDS:
            self.leave()

    # -- what streams call

    def write(self, *parts: bytes | memoryview) -> None:
        """Write frames at the end of this turn of the event loop."""
        self._out += parts
        if not self._is_flushing:
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self.flush)

    def block(self, stream: GrpcStream, *, by_connection: bool) -> None:
        """Remember a stream whose messages wait for the connection's window; others wait for their own window."""
        self._blocked.pop(stream.id, None)
        if by_connection:
            self._blocked[stream.id] = stream  # last: streams take turns
        self.keep(stream, stream.unsent - stream.kept_unsent)
        stream.kept_unsent = stream.unsent

    @property
    def is_over_share(self) -> bool:
        """Whether the connection keeps so much that its new calls are refused; reading pauses at half of it."""
        return self.kept > frames.STREAM_WINDOW and self.kept > 2 * self.shared.share_of(self)

    def keep(self, stream: GrpcStream, size: int, *, in_work: bool = False) -> None:
        """Count `size` more bytes of a call; too many messages in work pause reading."""
        stream.kept += size
        self.kept += size
        self.shared.kept += size
        if in_work:
            stream.in_work += size
            self._in_work += size
            if self.kept > frames.STREAM_WINDOW:
                self._read_or_pause()

    def remove(self, stream: GrpcStream) -> None:
        """Remove a call that has ended, and release its memory."""
        self.streams.pop(stream.id, None)
        self._blocked.pop(stream.id, None)
        self._in_work -= stream.in_work
        stream.in_work = 0
        self.keep(stream, -stream.kept)
        if stream.need > frames.STREAM_WINDOW or stream.reserved:
            self.shared.release(stream)
        stream.drop()
        if self._transport is not None and not self._transport.is_reading():
            self._read_or_pause()

    def close_call(self, stream: GrpcStream) -> None:
        """End a call whose trailers are written."""
        self._noise = max(0, self._noise - NOISE_OF_CALL)
        self.remove(stream)
        self._close_if_done()

    def hear_noise(self) -> None:
        """Count a frame that carries no call. Raises `Http2Error` if there are too many."""
        self._noise += 1
        if self._noise > MAX_NOISE:
            text = f"more than {MAX_NOISE} frames without a completed call: pings, resets, settings"
            raise Http2Error(Http2Code.ENHANCE_YOUR_CALM, text)

    # -- frames that arrive

    def _take(self, data: bytes, budget: int) -> tuple[int, int]:
        """Handle complete frames in `data`, as the budget allows; return the bytes used, and the rest of the budget."""
        at, end = 0, len(data)
        if not self._is_greeted and (at := self._greet(data)) == 0:
            return 0, budget
        while end - at >= FRAME_SIZE and self._transport is not None:
            high, low, kind, flags, number = FRAME.unpack_from(data, at)
            size = high << 8 | low
            if size > frames.MAX_FRAME:
                raise Http2Error(Http2Code.FRAME_SIZE_ERROR, f"frame of {size} bytes; the limit is {frames.MAX_FRAME}")
            begin, stop = at + FRAME_SIZE, at + FRAME_SIZE + size
            if stop > end:
                break
            if budget <= 0:
                self.shared.add_late(self)
                break
            at = stop
            is_header = kind in (Frame.HEADERS, Frame.CONTINUATION)
            budget -= FRAME_COST + (size * HEADER_COST if is_header else size)
            self._handle(kind, flags, number & frames.MAX_WINDOW, data[begin:stop])
            if kind == Frame.SETTINGS:  # it may have changed all streams
                budget = 0
        return (at if self._transport is not None else end), budget

    def _greet(self, data: bytes) -> int:
        """Return the size of the preface if it has arrived, else 0."""
        preface = frames.PREFACE
        if data[: len(preface)] != preface[: len(data)]:
            text = "this port speaks gRPC over HTTP/2 only: connect with a client of RocketMQ 5"
            self._out = [frames.other_protocol_answer(data, text)]
            self._close("no HTTP/2")
            return len(data)
        self._is_greeted = len(data) >= len(preface)
        return len(preface) if self._is_greeted else 0

    def _handle(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if self._blocks.is_open and kind != Frame.CONTINUATION:
            raise frames.broken("a header block is continued by another frame")
        if not self._has_settings and kind != Frame.SETTINGS:
            raise frames.broken("the first frame is not SETTINGS")
        if len(payload) != _SIZES.get(kind, len(payload)):  # type: ignore[call-overload]
            raise Http2Error(Http2Code.FRAME_SIZE_ERROR, f"{Frame(kind).name} of {len(payload)} bytes")
        if kind not in _USEFUL:
            self.hear_noise()
        if number and kind in _OF_CONNECTION:
            raise frames.broken(f"{Frame(kind).name} for stream {number}")
        match kind:
            case Frame.DATA:
                self._data(flags, number, payload)
            case Frame.HEADERS | Frame.CONTINUATION:
                add = self._blocks.begin if kind == Frame.HEADERS else self._blocks.go_on
                if (opening := add(flags, number, payload)) is not None:
                    self._open(*opening)
            case Frame.RST_STREAM:
                self._check_opened(number, "RST_STREAM")
                if (stream := self.streams.get(number)) is not None:
                    stream.abandon()
                    self._close_if_done()
            case Frame.SETTINGS:
                self._settings(flags, payload)
            case Frame.PUSH_PROMISE:
                raise frames.broken("a client cannot push")
            case Frame.PING:
                if not flags & frames.ACK:
                    self.write(frames.frame(Frame.PING, frames.ACK, 0, payload))
            case Frame.WINDOW_UPDATE:
                self._window_update(number, int.from_bytes(payload, "big") & frames.MAX_WINDOW)

    def _open(self, number: int, flags: int, fields: Fields) -> None:
        """Open a call, or take the trailers of an open one."""
        if (stream := self.streams.get(number)) is not None:
            if not flags & frames.END_STREAM:
                raise frames.broken(f"stream {number} is opened twice")
            stream.half_close()
            return
        if number % 2 == 0:
            raise frames.broken(f"a client cannot open stream {number}")
        if number <= self._last:
            self.hear_noise()  # the trailers of a call that we have ended
            return
        self._last = number
        self._used_at = self.clock.monotonic()
        if len(self.streams) >= MAX_STREAMS or self._is_leaving:
            self.hear_noise()
            self.write(frames.reset(number, Http2Code.REFUSED_STREAM))
        elif problem := not_grpc(fields):
            self.hear_noise()
            block = frames.refusal_block(*problem)
            self.write(frames.frame(Frame.HEADERS, frames.END_HEADERS | frames.END_STREAM, number, block))
            self.write(frames.reset(number, Http2Code.NO_ERROR))
        else:
            stream = self.streams[number] = GrpcStream(self, number, fields)
            self.keep(stream, sum(map(len, fields.values())) + FIELD_BYTES * len(fields) + CALL_BYTES)
            if self.is_over_share:
                stream.finish(GrpcCode.RESOURCE_EXHAUSTED, "too many calls are open, or their answers are not read")
                return
            self.shared.handler.opened(stream)
            if flags & frames.END_STREAM:
                stream.half_close()

    def _data(self, flags: int, number: int, payload: bytes) -> None:
        size = len(payload)
        self._window_in -= size
        if self._window_in < 0:
            raise Http2Error(Http2Code.FLOW_CONTROL_ERROR, "more DATA than the connection's window")
        if self._window_in < CONNECTION_WINDOW // 2:
            self.write(frames.window_update(0, CONNECTION_WINDOW - self._window_in))
            self._window_in = CONNECTION_WINDOW
        self._check_opened(number, "DATA")
        payload = unpadded(flags, payload)
        if not payload and not flags & frames.END_STREAM:
            self.hear_noise()
        stream = self.streams.get(number)
        if stream is None or stream.is_half_closed:
            self.hear_noise()  # the rest of a call that we have ended
            return
        if payload:
            stream.take(size, payload)
        if flags & frames.END_STREAM:
            stream.half_close()

    def _settings(self, flags: int, payload: bytes) -> None:
        if len(payload) % _PAIR.size or (flags & frames.ACK and payload):
            raise Http2Error(Http2Code.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
        self._has_settings = True
        if flags & frames.ACK:
            return
        values = dict(_PAIR.iter_unpack(payload))
        if (push := values.get(SettingId.ENABLE_PUSH, 0)) > 1:
            raise frames.broken(f"ENABLE_PUSH is {push}")
        if not frames.MAX_FRAME <= (size := values.get(SettingId.MAX_FRAME_SIZE, self.max_frame)) < 1 << 24:
            raise frames.broken(f"MAX_FRAME_SIZE is {size}")
        if (window := values.get(SettingId.INITIAL_WINDOW_SIZE, self.initial_window)) > frames.MAX_WINDOW:
            raise Http2Error(Http2Code.FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE is {window}")
        self.max_frame = min(size, 4 * frames.MAX_FRAME)
        is_larger, self.initial_window = window > self.initial_window, window
        self.write(frames.frame(Frame.SETTINGS, frames.ACK, 0))
        for stream in list(self.streams.values()) if is_larger else ():
            if stream.unsent:
                stream.pump()

    def _window_update(self, number: int, size: int) -> None:
        if size == 0:
            raise frames.broken(f"WINDOW_UPDATE of 0 for stream {number}")
        if number:
            self._check_opened(number, "WINDOW_UPDATE")
            if (stream := self.streams.get(number)) is not None:
                stream.allow(size)
            return
        self.window_out += size
        if self.window_out > frames.MAX_WINDOW:
            raise Http2Error(Http2Code.FLOW_CONTROL_ERROR, "the connection's window is too large")
        self._pump_blocked()

    def _check_opened(self, number: int, kind: str) -> None:
        if not 0 < number <= self._last:
            raise frames.broken(f"{kind} for stream {number}, which is not open")

    def _pump_blocked(self) -> None:
        for stream in list(self._blocked.values()):
            if self.window_out <= 0 or self.is_choked:
                return
            stream.pump()

    # -- ends, and what is written

    def _close_if_done(self) -> None:
        if self._is_leaving and not self.streams and self._transport is not None:
            self.flush()
            self._transport.close()

    def _fail(self, code: Http2Code, text: str) -> None:
        self._out.append(frames.goaway(self._last, code, text))
        self._close(text)

    def _close(self, reason: str) -> None:
        self.shared.refusals.note("http2", self.peer, "connection of %s is closed: %s", self.peer, reason)
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def flush(self) -> None:
        """Write all frames of this turn."""
        self._is_flushing = False
        if self._out and self._transport is not None:
            self._used_at = self.clock.monotonic()
            out, self._out = self._out, []
            data = b"".join(out)
            self.shared.sent_bytes += len(data)
            self._transport.write(data)
