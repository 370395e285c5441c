"""The server's side of one HTTP/2 connection: frames in, calls to the handler, frames out with one write a burst.

Limits: calls, header fields, kept bytes, and frames that carry no call. A peer that breaks the protocol gets GOAWAY
with a string. Work is done in slices, so that connections with much to do take turns. Source: RFC 9113.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from pyromq.message import join_address
from pyromq.net.tls.transport import limit_reads, release_transport
from pyromq.proxy.http2 import frames
from pyromq.proxy.http2.frames import FRAME, FRAME_SIZE, MAX_WINDOW, Frame, Http2Code, Http2Error, SettingId
from pyromq.proxy.http2.grpc_status import GrpcCode, refusal_block
from pyromq.proxy.http2.grpc_stream import STREAM_WINDOW, GrpcStream
from pyromq.proxy.http2.header_blocks import MAX_HEADER_BYTES, HeaderBlocks
from pyromq.proxy.http2.shared_by_connections import MIN_SLICE_BYTES, SLICE_BYTES, SharedByConnections

MAX_STREAMS = 1000  # limit of a connection's open calls: more than a client's topics, each with a waiting receive
CONNECTION_WINDOW = 4 << 20
FRAME_COST = 256  # part of a slice that a frame takes beside its bytes
HEADER_COST = 4  # part of a slice that a byte of a header block takes: Python decodes it
FIELD_BYTES = 150  # memory of a header field beside its bytes
CALL_BYTES = 2500  # memory of a call without its fields
MAX_NOISE = 2000  # limit of the count of frames without a call: pings, resets, settings. Calls and time lower the count
NOISE_OF_EXPIRY = 100  # each call of `expire` lowers the count by this number
FIRST_SECONDS = 10.0  # longest wait for the preface
IDLE_SECONDS = 120.0  # a connection without calls for so long is closed. Source: the genuine proxy
# Numbers of calls of `expire`, every 5 s, without a byte of a peer with open calls:
PING_ROUNDS = 12  # then the peer gets a PING
DEAD_ROUNDS = 24  # then its machine counts as gone. A Telemetry stream is silent for days, so TCP notices nothing

_PAIR = struct.Struct(">HI")
_SETTING_RANGES = {
    SettingId.ENABLE_PUSH: (0, 1, Http2Code.PROTOCOL_ERROR),
    SettingId.INITIAL_WINDOW_SIZE: (0, MAX_WINDOW, Http2Code.FLOW_CONTROL_ERROR),
    SettingId.MAX_FRAME_SIZE: (frames.MAX_FRAME, (1 << 24) - 1, Http2Code.PROTOCOL_ERROR),
}
_GREETING = frames.settings(
    {
        SettingId.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
        SettingId.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
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
        self._silent_rounds = 0
        self._blocks = HeaderBlocks()
        self._rest = b""  # received bytes that are not handled yet
        self._out: list[bytes | memoryview] = []
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
        self._transport: asyncio.Transport = transport
        peer: Any = transport.get_extra_info("peername") or ("unknown", 0)
        self.peer = join_address(*peer[:2])
        self.shared.connections.add(self)
        transport.write(_GREETING)

    def data_received(self, data: bytes) -> None:
        self._rest += data
        self._silent_rounds = 0
        shared = self.shared
        shared.received_bytes += len(data)
        if self in shared.late:
            return
        if shared.late and len(self._rest) > MIN_SLICE_BYTES:
            shared.add_late(self)  # short calls of others come first
            self._read_or_pause()
        else:
            self.go_on(shared.slice_bytes)

    def go_on(self, budget: int) -> int:
        """Handle a slice of the received bytes; return the unused part of the budget, negative if it did not suffice.

        If bytes are left, the connection is late: it handles more of them in a later turn."""
        used = 0
        try:
            used, budget = self._take(self._rest, budget)
        except Http2Error as error:
            self._close(str(error), frames.goaway(self._last, error.code, str(error)))
        self._rest = b"" if self._transport.is_closing() else self._rest[used:]
        self._read_or_pause()
        self.flush()
        return budget

    def connection_lost(self, error: Exception | None) -> None:
        self._rest = b""
        self._out.clear()
        self.shared.connections.discard(self)
        self.shared.late.pop(self, None)
        for stream in list(self.streams.values()):
            stream.abandon()
        release_transport(self._transport)

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
        if self._transport.is_closing():
            return
        is_full = self._in_work > 0 and self.kept > self.shared.share_of(self)
        is_wanted = not self.is_choked and not is_full and self not in self.shared.late
        if is_wanted != self._transport.is_reading():
            (self._transport.resume_reading if is_wanted else self._transport.pause_reading)()

    # -- what the server of the port calls

    def leave(self) -> None:
        """Tell the peer to open no more calls, and close when the open calls have ended."""
        if not self._is_leaving:
            self._is_leaving = True
            self.write(frames.goaway(self._last, Http2Code.NO_ERROR))
            self._close_if_done()

    def abort(self) -> None:
        """Close the connection now; open calls end."""
        self._transport.abort()

    def expire(self, now: float) -> None:
        """End calls whose message does not arrive, and the connection if its peer is gone or has no calls."""
        self.hear_noise(-NOISE_OF_EXPIRY)
        if not self._has_settings:
            if now - self._used_at > FIRST_SECONDS:
                self.abort()
            return
        for stream in list(self.streams.values()):
            stream.expire(now)
        if not self.streams:
            if now - self._used_at > IDLE_SECONDS:
                self.leave()
        elif self._transport.is_reading():
            self._silent_rounds += 1
            if self._silent_rounds == PING_ROUNDS:
                self.write(frames.frame(Frame.PING, 0, 0, bytes(8)))
            elif self._silent_rounds == DEAD_ROUNDS:
                self.abort()

    # -- what streams call

    def write(self, *parts: bytes | memoryview) -> None:
        """Write frames at the end of this turn of the event loop."""
        if not self._out:
            asyncio.get_running_loop().call_soon(self.flush)
        self._out += parts

    def block(self, stream: GrpcStream, *, by_connection: bool) -> None:
        """Count a stream's unsent bytes, and remember a stream that waits for the connection's window."""
        self._blocked.pop(stream.id, None)
        if by_connection:
            self._blocked[stream.id] = stream  # last: streams take turns
        self.keep(stream, stream.unsent - stream.kept_unsent)
        stream.kept_unsent = stream.unsent

    @property
    def is_over_share(self) -> bool:
        """Whether the connection keeps so much that its new calls are refused; reading pauses at half of it."""
        return self.kept > STREAM_WINDOW and self.kept > 2 * self.shared.share_of(self)

    def keep(self, stream: GrpcStream, size: int, *, in_work: bool = False) -> None:
        """Count `size` more bytes of a call; too many messages in work pause reading."""
        stream.kept += size
        self.kept += size
        self.shared.kept += size
        if in_work:
            stream.in_work += size
            self._in_work += size
            if self.kept > STREAM_WINDOW:
                self._read_or_pause()

    def remove(self, stream: GrpcStream) -> None:
        """Remove a call that has ended, and release its memory."""
        self.streams.pop(stream.id, None)
        self._blocked.pop(stream.id, None)
        self._in_work -= stream.in_work
        stream.in_work = 0
        self.keep(stream, -stream.kept)
        if stream.reserved or stream.need > STREAM_WINDOW:
            self.shared.release(stream)
        if not self._transport.is_reading():
            self._read_or_pause()
        self._close_if_done()

    def hear_noise(self, count: int = 1) -> None:
        """Count frames that carry no call. Raises `Http2Error` if there are too many."""
        self._noise = max(0, self._noise + count)
        if self._noise > MAX_NOISE:
            text = f"more than {MAX_NOISE} frames without a completed call: pings, resets, settings"
            raise Http2Error(text, Http2Code.ENHANCE_YOUR_CALM)

    # -- frames that arrive

    def _take(self, data: bytes, budget: int) -> tuple[int, int]:
        """Handle complete frames in `data`, as the budget allows; return the bytes used, and the rest of the budget."""
        at = 0
        if not self._is_greeted:
            if not self._greet(data):
                return 0, budget
            at = len(frames.PREFACE)
        while len(data) - at >= FRAME_SIZE and not self._transport.is_closing():
            high, low, kind, flags, number = FRAME.unpack_from(data, at)
            size = high << 8 | low
            if size > frames.MAX_FRAME:
                text = f"frame of {size} bytes; the limit is {frames.MAX_FRAME}"
                raise Http2Error(text, Http2Code.FRAME_SIZE_ERROR)
            begin, stop = at + FRAME_SIZE, at + FRAME_SIZE + size
            if stop > len(data):
                break
            if budget <= 0:
                self.shared.add_late(self)
                break
            at = stop
            rule = _RULES.get(kind, _UNKNOWN_FRAME)
            budget -= FRAME_COST + size * rule.byte_cost
            self._check(kind, rule, number & MAX_WINDOW, size)
            rule.handle(self, flags, number & MAX_WINDOW, data[begin:stop])
        return at, budget

    def _greet(self, data: bytes) -> bool:
        """Return whether the preface has arrived; close the connection of a peer that sends something else."""
        if not frames.PREFACE.startswith(data[: len(frames.PREFACE)]):
            text = "this port speaks gRPC over HTTP/2 only: connect with a client of RocketMQ 5"
            self._close("no HTTP/2", frames.other_protocol_answer(data, text))
        self._is_greeted = data.startswith(frames.PREFACE)
        return self._is_greeted

    def _check(self, kind: int, rule: FrameRule, number: int, size: int) -> None:
        """Raise `Http2Error` if a frame is not allowed here."""
        if (number if kind == Frame.CONTINUATION else 0) != self._blocks.stream:
            raise Http2Error("a header block is continued by another frame, or CONTINUATION continues none")
        if not self._has_settings and kind != Frame.SETTINGS:
            raise Http2Error("the first frame is not SETTINGS")
        if rule.size is not None and size != rule.size:
            raise Http2Error(f"{Frame(kind).name} of {size} bytes", Http2Code.FRAME_SIZE_ERROR)
        if not rule.least <= number <= (self._last if rule.most is None else rule.most):
            raise Http2Error(f"{Frame(kind).name} is not allowed for stream {number}")
        if rule.is_noise:
            self.hear_noise()

    def _ignore(self, flags: int, number: int, payload: bytes) -> None:
        """Take a frame that changes nothing."""

    def _headers(self, flags: int, number: int, payload: bytes) -> None:
        """Open a call, or take the trailers of an open one, when the header block is complete."""
        if (opening := self._blocks.take(flags, number, payload)) is None:
            return
        flags, fields = opening
        if (stream := self.streams.get(number)) is not None:
            if not flags & frames.END_STREAM:
                raise Http2Error(f"stream {number} is opened twice")
            stream.half_close()
            return
        if number % 2 == 0:
            raise Http2Error(f"a client cannot open stream {number}")
        if number <= self._last:
            self.hear_noise()  # the trailers of a call that we have ended
            return
        self._last = number
        self._used_at = self.clock.monotonic()
        if len(self.streams) >= MAX_STREAMS or self._is_leaving:
            self.hear_noise()
            self.write(frames.reset(number, Http2Code.REFUSED_STREAM))
        elif (block := refusal_block(fields)) is not None:
            self.hear_noise()
            self.write(frames.frame(Frame.HEADERS, frames.END_HEADERS | frames.END_STREAM, number, block))
            self.write(frames.reset(number, Http2Code.NO_ERROR))
        else:
            stream = self.streams[number] = GrpcStream(self, number, fields, self._used_at)
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
            raise Http2Error("more DATA than the connection's window", Http2Code.FLOW_CONTROL_ERROR)
        if self._window_in < CONNECTION_WINDOW // 2:
            self.write(frames.window_update(0, CONNECTION_WINDOW - self._window_in))
            self._window_in = CONNECTION_WINDOW
        payload = frames.unpadded(flags, payload)
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

    def _reset(self, flags: int, number: int, payload: bytes) -> None:
        if (stream := self.streams.get(number)) is not None:
            stream.abandon()

    def _settings(self, flags: int, number: int, payload: bytes) -> None:
        if len(payload) % _PAIR.size or (flags & frames.ACK and payload):
            raise Http2Error(f"SETTINGS of {len(payload)} bytes", Http2Code.FRAME_SIZE_ERROR)
        self._has_settings = True
        if flags & frames.ACK:
            return
        values = dict(_PAIR.iter_unpack(payload))
        for name, (least, most, code) in _SETTING_RANGES.items():
            if not least <= values.get(name, least) <= most:
                raise Http2Error(f"{name.name} is {values[name]}", code)
        self.write(frames.frame(Frame.SETTINGS, frames.ACK, 0))
        self.max_frame = min(values.get(SettingId.MAX_FRAME_SIZE, self.max_frame), 4 * frames.MAX_FRAME)
        before = self.initial_window
        self.initial_window = values.get(SettingId.INITIAL_WINDOW_SIZE, before)
        for stream in list(self.streams.values()) if self.initial_window > before else ():
            if stream.unsent:
                stream.pump()

    def _ping(self, flags: int, number: int, payload: bytes) -> None:
        if not flags & frames.ACK:
            self.write(frames.frame(Frame.PING, frames.ACK, 0, payload))

    def _window_update(self, flags: int, number: int, payload: bytes) -> None:
        size = int.from_bytes(payload, "big") & MAX_WINDOW
        if size == 0:
            raise Http2Error(f"WINDOW_UPDATE of 0 for stream {number}")
        if number:
            if (stream := self.streams.get(number)) is not None:
                stream.allow(size)
            return
        self.window_out += size
        if self.window_out > MAX_WINDOW:
            raise Http2Error("the connection's window is too large", Http2Code.FLOW_CONTROL_ERROR)
        self._pump_blocked()

    def _pump_blocked(self) -> None:
        for stream in list(self._blocked.values()):
            if self.window_out <= 0 or self.is_choked:
                return
            stream.pump()

    # -- ends, and what is written

    def _close_if_done(self) -> None:
        if self._is_leaving and not self.streams:
            self.flush()
            self._transport.close()

    def _close(self, reason: str, last_words: bytes) -> None:
        self.shared.refusals.note("http2", self.peer, "connection of %s is closed: %s", self.peer, reason)
        self._out.append(last_words)
        self.flush()
        self._transport.close()

    def flush(self) -> None:
        """Write all frames of this turn."""
        data = b"".join(self._out)
        self._out.clear()
        if data and not self._transport.is_closing():
            self._used_at = self.clock.monotonic()
            self.shared.sent_bytes += len(data)
            self._transport.write(data)


class FrameRule(NamedTuple):
    """What holds for all frames of a type: how they are handled, and where they are allowed."""

    handle: Callable[[Http2Connection, int, int, bytes], None]  # with flags, stream and payload
    size: int | None = None  # of the payload, if all have the same
    least: int = 1  # lowest stream; 0 is the connection
    most: int | None = None  # highest stream; None: the last one that the peer has opened
    byte_cost: int = 1  # part of a slice that a byte of the payload takes
    is_noise: bool = True  # the frame carries no call


_RULES = {
    Frame.DATA: FrameRule(Http2Connection._data, is_noise=False),
    Frame.HEADERS: FrameRule(Http2Connection._headers, most=MAX_WINDOW, byte_cost=HEADER_COST, is_noise=False),
    Frame.PRIORITY: FrameRule(Http2Connection._ignore, size=5, most=MAX_WINDOW),
    Frame.RST_STREAM: FrameRule(Http2Connection._reset, size=4),
    # A setting may change all streams, so the slice ends.
    Frame.SETTINGS: FrameRule(Http2Connection._settings, least=0, most=0, byte_cost=SLICE_BYTES),
    Frame.PUSH_PROMISE: FrameRule(Http2Connection._ignore, most=0),  # a client cannot push: no stream is allowed
    Frame.PING: FrameRule(Http2Connection._ping, size=8, least=0, most=0),
    Frame.GOAWAY: FrameRule(Http2Connection._ignore, least=0, most=0),
    Frame.WINDOW_UPDATE: FrameRule(Http2Connection._window_update, size=4, least=0, is_noise=False),
    Frame.CONTINUATION: FrameRule(Http2Connection._headers, most=MAX_WINDOW, byte_cost=HEADER_COST),
}
_UNKNOWN_FRAME = FrameRule(Http2Connection._ignore, least=0, most=MAX_WINDOW)
