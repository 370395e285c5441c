"""The server's side of one HTTP/2 connection: frames in, calls to the handler, frames out with one write a burst.

Limits: streams, header fields, incomplete messages, unsent bytes, and frames that carry no call. A peer that breaks the
protocol gets GOAWAY with a text. Source: RFC 9113.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

from pyromq.errors import LimitReached
from pyromq.message import join_address
from pyromq.proxy.http2 import frames
from pyromq.proxy.http2.frames import (
    FRAME,
    FRAME_SIZE,
    STREAM_WINDOW,
    Frame,
    GrpcCode,
    Http2Code,
    Http2Error,
    SettingId,
    broken,
    frame_header,
)
from pyromq.proxy.http2.grpc_stream import PREFIX, GrpcStream
from pyromq.proxy.http2.header_blocks import MAX_HEADER_BYTES, HeaderBlocks, Opening, not_grpc, unpadded
from pyromq.proxy.http2.shared_by_connections import SharedByConnections

MAX_STREAMS = 1000  # limit of a connection's open calls: more than a client's topics, each with a waiting receive
CONNECTION_WINDOW = 4 << 20
MAX_WAITING = 256  # limit of large messages that wait for memory: each has sent up to `STREAM_WINDOW` already
SLICE_BYTES = 32 << 10  # bytes handled in a turn of the event loop: some ms for calls without messages
MAX_HELD_BYTES = 1 << 20  # bytes of messages in work above which a connection is not read
MAX_NOISE = 2000  # limit of frames without a call (pings, resets, settings), which calls and time reduce
NOISE_OF_CALL = 10  # noise that a completed call takes back
FIRST_SECONDS = 10.0  # longest wait for the preface
REQUEST_SECONDS = 30.0  # longest wait for the rest of a call's message
IDLE_SECONDS = 120.0  # a connection without calls for so long is closed. Source: the genuine proxy

_PAIR = struct.Struct(">HI")


class Http2Connection(asyncio.Protocol):
    """One connection; see the module."""

    def __init__(self, shared: SharedByConnections) -> None:
        self.clock = shared.clock
        self.peer = ""
        self.streams: dict[int, GrpcStream] = {}
        self.is_choked = False  # the peer does not read: its socket takes no more bytes
        self.last_used = shared.clock.monotonic()
        self._shared = shared
        self._transport: asyncio.Transport | None = None
        self._blocks = HeaderBlocks()
        self._rest = b""
        self._late = b""  # bytes of a long burst that wait for their slice
        self._out: list[bytes | memoryview] = []
        self._is_in_burst = False
        self._is_flushing = False
        self._is_greeted = False  # the preface has arrived
        self._has_settings = False
        self._is_leaving = False
        self._last = 0  # highest stream that the peer has opened
        self._window_in = CONNECTION_WINDOW
        self._used_window = 0
        self._window_out = 65535
        self._stream_window_out = 65535  # initial window of the peer's new streams
        self._max_frame = frames.MAX_FRAME
        self._blocked: dict[int, GrpcStream] = {}  # streams whose messages wait for windows
        self._held = 0  # bytes of messages in work
        self._noise = 0
        self._others: dict[int, Callable[[int, int, bytes], None]] = {
            Frame.PRIORITY: self._priority,
            Frame.RST_STREAM: self._reset,
            Frame.SETTINGS: self._settings,
            Frame.PUSH_PROMISE: self._push,
            Frame.PING: self._ping,
            Frame.GOAWAY: self._leaves,
            Frame.WINDOW_UPDATE: self._window_update,
            Frame.CONTINUATION: self._continuation,
        }

    # -- the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer: Any = transport.get_extra_info("peername") or ("unknown", 0)
        self.peer = join_address(*peer[:2])
        self._shared.connections.add(self)
        self._out += [
            frames.settings(
                {
                    SettingId.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
                    SettingId.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
                    SettingId.MAX_HEADER_LIST_SIZE: MAX_HEADER_BYTES,
                }
            ),
            frames.window_update(0, CONNECTION_WINDOW - 65535),
        ]
        self.flush()

    def data_received(self, data: bytes) -> None:
        if self._late or len(data) > SLICE_BYTES:
            if not self._late:
                asyncio.get_running_loop().call_soon(self.go_on)
            self._late += data
            self._read_or_pause()
        else:
            self._receive(data)

    def go_on(self) -> None:
        """Handle the next slice of a long burst; other connections were served meanwhile."""
        data, self._late = self._late[:SLICE_BYTES], self._late[SLICE_BYTES:]
        if self._transport is None or self._transport.is_closing():
            self._late = b""
            return
        self._receive(data)
        if self._late:
            asyncio.get_running_loop().call_soon(self.go_on)
        self._read_or_pause()

    def _receive(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        self._is_in_burst = True
        try:
            used = self._take(data) if self._is_greeted else self._greet(data)
            self._rest = data[used:]
        except Http2Error as error:
            self._fail(error.code, str(error))
        finally:
            self._is_in_burst = False
        self.flush()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._rest = b""
        self._out.clear()
        self._shared.connections.discard(self)
        for stream in list(self.streams.values()):
            self._abandon(stream)

    def pause_writing(self) -> None:
        self.is_choked = True
        self._read_or_pause()

    def resume_writing(self) -> None:
        self.is_choked = False
        self._read_or_pause()
        self._pump_all()
        for stream in list(self.streams.values()):
            if not stream.unsent:
                stream.wake()

    # -- what the server of the port calls

    def leave(self) -> None:
        """Tell the peer to open no more calls, and close when the open calls have ended."""
        if self._transport is not None and not self._is_leaving:
            self._is_leaving = True
            self._out.append(frames.goaway(self._last, Http2Code.NO_ERROR))
            self._flush_soon()
            self._close_if_done()

    def abort(self) -> None:
        """Close the connection now; open calls end."""
        if self._transport is not None:
            self._transport.abort()

    def expire(self, now: float) -> None:
        """End calls whose message does not arrive, and the connection if it is silent or without calls."""
        self._noise = max(0, self._noise - 100)
        if not self._has_settings:
            if now - self.last_used > FIRST_SECONDS:
                self.abort()
            return
        for stream in list(self.streams.values()):
            is_late = not stream.is_half_closed and now - stream.opened_at > REQUEST_SECONDS
            if is_late and (stream.buffer or stream.is_unary):
                text = f"the request did not arrive within {REQUEST_SECONDS:g} s"
                self.finish_stream(stream, GrpcCode.DEADLINE_EXCEEDED, text)
        if not self.streams and now - self.last_used > IDLE_SECONDS:
            self.leave()

    # -- what streams call

    def send_message(self, stream: GrpcStream, message: bytes) -> None:
        if stream.is_closed or stream.ending is not None:
            return
        self._start(stream)
        stream.outgoing.append(PREFIX.pack(0, len(message)) + message)
        stream.unsent += len(message) + PREFIX.size
        self._pump(stream)
        self._flush_soon()

    def finish_stream(self, stream: GrpcStream, code: GrpcCode, text: str) -> None:
        if stream.is_closed or stream.ending is not None:
            return
        block = frames.trailers_block(code, text)
        if not stream.started:  # trailers only: the response's header fields and its status are one block
            stream.started = True
            block = frames.RESPONSE_BLOCK + block
        stream.ending = block
        self._pump(stream)
        self._flush_soon()

    def reply(self, stream: GrpcStream, message: bytes) -> None:
        size = len(message) + PREFIX.size
        has_room = size <= self._max_frame and size <= self._window_out and size <= stream.send_window
        if stream.is_closed or stream.started or self.is_choked or not has_room:
            self.send_message(stream, message)
            self.finish_stream(stream, GrpcCode.OK, "")
            return
        self._window_out -= size
        number = stream.id
        self._out += [
            frame_header(len(frames.RESPONSE_BLOCK), Frame.HEADERS, frames.END_HEADERS, number),
            frames.RESPONSE_BLOCK,
            frame_header(size, Frame.DATA, 0, number),
            PREFIX.pack(0, size - PREFIX.size),
            message,
            frame_header(len(frames.OK_BLOCK), Frame.HEADERS, frames.END_HEADERS | frames.END_STREAM, number),
            frames.OK_BLOCK,
        ]
        self._close_stream(stream)
        self._flush_soon()

    # -- frames that arrive

    def _greet(self, data: bytes) -> int:
        preface = frames.PREFACE
        if data[: len(preface)] != preface[: len(data)]:
            self._refuse_other_protocol(data)
            return len(data)
        if len(data) < len(preface):
            return 0
        self._is_greeted = True
        return len(preface) + self._take(data[len(preface) :])

    def _take(self, data: bytes) -> int:
        """Handle the complete frames in `data`; return the number of bytes used."""
        at, end = 0, len(data)
        while end - at >= FRAME_SIZE and self._transport is not None:
            high, low, kind, flags, number = FRAME.unpack_from(data, at)
            size = high << 8 | low
            if size > frames.MAX_FRAME:
                raise Http2Error(Http2Code.FRAME_SIZE_ERROR, f"frame of {size} bytes; the limit is {frames.MAX_FRAME}")
            begin, stop = at + FRAME_SIZE, at + FRAME_SIZE + size
            if stop > end:
                break
            at = stop
            number &= frames.MAX_WINDOW
            if self._blocks.is_open and kind != Frame.CONTINUATION:
                raise broken("a header block is continued by another frame")
            if not self._has_settings and kind != Frame.SETTINGS:
                raise broken("the first frame is not SETTINGS")
            if kind == Frame.DATA:
                self._data(flags, number, data[begin:stop])
            elif kind == Frame.HEADERS:
                self._headers(flags, number, data[begin:stop])
            elif (handle := self._others.get(kind)) is not None:
                handle(flags, number, data[begin:stop])
            else:
                self._hear_noise()  # types that HTTP/2 does not know are ignored
        return at if self._transport is not None else end

    def _headers(self, flags: int, number: int, payload: bytes) -> None:
        if (opening := self._blocks.begin(flags, number, payload)) is not None:
            self._open(opening)

    def _continuation(self, flags: int, number: int, payload: bytes) -> None:
        self._hear_noise()
        if (opening := self._blocks.go_on(flags, number, payload)) is not None:
            self._open(opening)

    def _open(self, opening: Opening) -> None:
        """Open a call, or take the trailers of an open one."""
        number, flags, fields = opening
        if (stream := self.streams.get(number)) is not None:
            if not flags & frames.END_STREAM:
                raise broken(f"stream {number} is opened twice")
            self._half_close(stream)
            return
        if number % 2 == 0:
            raise broken(f"a client cannot open stream {number}")
        if number <= self._last:
            self._hear_noise()  # the trailers of a call that we have ended
            return
        self._last = number
        self.last_used = self.clock.monotonic()
        if len(self.streams) >= MAX_STREAMS or self._is_leaving:
            self._hear_noise()
            self._out.append(frames.reset(number, Http2Code.REFUSED_STREAM))
        elif problem := not_grpc(fields):
            self._refuse_request(number, *problem)
        else:
            path = fields[b":path"].decode("latin-1")
            stream = GrpcStream(self, number, path, fields, window=self._stream_window_out)
            self.streams[number] = stream
            self._shared.handler.opened(stream)
            if flags & frames.END_STREAM and not stream.is_closed:
                self._half_close(stream)

    def _data(self, flags: int, number: int, payload: bytes) -> None:
        size = len(payload)
        self._window_in -= size
        if self._window_in < 0:
            raise Http2Error(Http2Code.FLOW_CONTROL_ERROR, "more DATA than the connection's window")
        self._used_window += size
        if self._used_window > CONNECTION_WINDOW // 2:
            self._out.append(frames.window_update(0, self._used_window))
            self._window_in += self._used_window
            self._used_window = 0
        stream = self.streams.get(number)
        if stream is None or stream.is_half_closed:
            if number > self._last or number == 0:
                raise broken(f"DATA for stream {number}, which is not open")
            self._hear_noise()
            return
        if flags & frames.PADDED:
            payload = unpadded(flags, payload)
        if not payload and not flags & frames.END_STREAM:
            self._hear_noise()
        stream.take(size, payload)
        if flags & frames.END_STREAM and not stream.is_closed:
            self._half_close(stream)

    def _priority(self, flags: int, number: int, payload: bytes) -> None:
        if len(payload) != 5:
            raise Http2Error(Http2Code.FRAME_SIZE_ERROR, "PRIORITY has 5 bytes")
        self._hear_noise()

    def _reset(self, flags: int, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Error(Http2Code.FRAME_SIZE_ERROR, "RST_STREAM has 4 bytes")
        if number == 0 or number > self._last:
            raise broken(f"RST_STREAM for stream {number}, which is not open")
        self._hear_noise()
        if (stream := self.streams.get(number)) is not None:
            self._abandon(stream)
            self._close_if_done()

    def _settings(self, flags: int, number: int, payload: bytes) -> None:
        if number or len(payload) % _PAIR.size or (flags & frames.ACK and payload):
            raise Http2Error(Http2Code.FRAME_SIZE_ERROR, "SETTINGS of a wrong size or for a stream")
        self._has_settings = True
        if flags & frames.ACK:
            return
        self._hear_noise()
        for name, value in _PAIR.iter_unpack(payload):
            if name == SettingId.ENABLE_PUSH and value > 1:
                raise broken(f"ENABLE_PUSH is {value}")
            if name == SettingId.MAX_FRAME_SIZE:
                if not frames.MAX_FRAME <= value < 1 << 24:
                    raise broken(f"MAX_FRAME_SIZE is {value}")
                self._max_frame = min(value, 4 * frames.MAX_FRAME)
            elif name == SettingId.INITIAL_WINDOW_SIZE:
                self._change_windows(value)
        self._out.append(frames.frame(Frame.SETTINGS, frames.ACK, 0))
        self._pump_all()

    def _change_windows(self, value: int) -> None:
        if value > frames.MAX_WINDOW:
            raise Http2Error(Http2Code.FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE is {value}")
        change = value - self._stream_window_out
        self._stream_window_out = value
        for stream in self.streams.values():
            stream.send_window += change
            if stream.send_window > frames.MAX_WINDOW:
                raise Http2Error(Http2Code.FLOW_CONTROL_ERROR, f"the window of stream {stream.id} is too large")

    def _push(self, flags: int, number: int, payload: bytes) -> None:
        raise broken("a client cannot push")

    def _ping(self, flags: int, number: int, payload: bytes) -> None:
        if number or len(payload) != 8:
            raise Http2Error(Http2Code.FRAME_SIZE_ERROR, "PING has 8 bytes and no stream")
        self._hear_noise()
        if not flags & frames.ACK:
            self._out.append(frames.frame(Frame.PING, frames.ACK, 0, payload))

    def _leaves(self, flags: int, number: int, payload: bytes) -> None:
        """Take a GOAWAY: the peer closes the connection itself, when its calls have ended."""
        self._hear_noise()

    def _window_update(self, flags: int, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Error(Http2Code.FRAME_SIZE_ERROR, "WINDOW_UPDATE has 4 bytes")
        size = int.from_bytes(payload, "big") & frames.MAX_WINDOW
        if size == 0 or number > self._last:
            raise broken(f"WINDOW_UPDATE of {size} for stream {number}")
        if number == 0:
            self._window_out += size
            if self._window_out > frames.MAX_WINDOW:
                raise Http2Error(Http2Code.FLOW_CONTROL_ERROR, "the connection's window is too large")
            self._pump_all()
        elif (stream := self.streams.get(number)) is None:
            self._hear_noise()
        elif (window := stream.send_window + size) > frames.MAX_WINDOW:
            self.end_stream(stream, Http2Code.FLOW_CONTROL_ERROR)
        else:
            stream.send_window = window
            self._pump(stream)

    def _half_close(self, stream: GrpcStream) -> None:
        if stream.is_half_closed:
            return
        stream.is_half_closed = True
        if stream.buffer:
            self.finish_stream(stream, GrpcCode.INVALID_ARGUMENT, "the last message is incomplete")
        elif stream.half_closed is not None:
            stream.half_closed()

    def _hear_noise(self) -> None:
        self._noise += 1
        if self._noise > MAX_NOISE:
            text = f"more than {MAX_NOISE} frames without a completed call: pings, resets, settings"
            raise Http2Error(Http2Code.ENHANCE_YOUR_CALM, text)

    # -- messages of streams, and their memory

    def reserve(self, stream: GrpcStream) -> None:
        """Let the peer send the rest of an incomplete message, when there is memory for it."""
        memory = self._shared.memory
        try:
            memory.take(self, stream.need, text="clients send too many large messages at once: send less at once")
        except LimitReached as error:
            waiting = self._shared.waiting
            if stream.need <= STREAM_WINDOW or len(waiting) >= MAX_WAITING:
                self.finish_stream(stream, GrpcCode.RESOURCE_EXHAUSTED, str(error))
            else:
                waiting.append(stream)
            return
        stream.reserved = stream.need
        self.open_window(stream, stream.need - len(stream.buffer))

    def open_window(self, stream: GrpcStream, wanted: int) -> None:
        """Let the peer send at least `wanted` more bytes of a stream."""
        if wanted > stream.window_in and not stream.is_half_closed:
            self._out.append(frames.window_update(stream.id, wanted - stream.window_in))
            stream.window_in = wanted
            self._flush_soon()

    def hold(self, stream: GrpcStream, size: int) -> None:
        """Count the bytes of a message in work; too many pause reading."""
        stream.held += size
        self._held += size
        if self._held > MAX_HELD_BYTES:
            self._read_or_pause()

    def _release(self, stream: GrpcStream) -> None:
        if stream.held:
            self._held -= stream.held
            stream.held = 0
            self._read_or_pause()
        if stream.reserved:
            self._shared.memory.give(self, stream.reserved)
            stream.reserved = 0
            waiting = self._shared.waiting
            for _ in range(len(waiting)):
                if not (other := waiting.popleft()).is_closed:
                    other.connection.reserve(other)

    def _read_or_pause(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        is_wanted = not self.is_choked and self._held <= MAX_HELD_BYTES and not self._late
        if is_wanted != self._transport.is_reading():
            (self._transport.resume_reading if is_wanted else self._transport.pause_reading)()

    # -- ends of streams

    def end_stream(self, stream: GrpcStream, code: Http2Code) -> None:
        """Reset a stream of which the peer broke the rules."""
        self._out.append(frames.reset(stream.id, code))
        self._flush_soon()
        self._abandon(stream)

    def _abandon(self, stream: GrpcStream) -> None:
        """End a call that client or network have ended."""
        self._remove(stream)
        if stream.ended is not None:
            stream.ended()

    def _close_stream(self, stream: GrpcStream) -> None:
        """End a call whose trailers are written."""
        if not stream.is_half_closed:  # the client need not send the rest
            self._out.append(frames.reset(stream.id, Http2Code.NO_ERROR))
        self._noise = max(0, self._noise - NOISE_OF_CALL)
        self._remove(stream)
        self._close_if_done()

    def _remove(self, stream: GrpcStream) -> None:
        stream.is_closed = True
        self.streams.pop(stream.id, None)
        if stream.need > STREAM_WINDOW and not stream.reserved and stream in self._shared.waiting:
            self._shared.waiting.remove(stream)
        self._blocked.pop(stream.id, None)
        stream.outgoing.clear()
        stream.buffer = bytearray()
        if stream.held or stream.reserved:
            self._release(stream)
        stream.wake()

    def _close_if_done(self) -> None:
        if self._is_leaving and not self.streams and self._transport is not None:
            self.flush()
            self._transport.close()

    def _fail(self, code: Http2Code, text: str) -> None:
        self._shared.refusals.note("http2", self.peer, "connection of %s is closed: %s", self.peer, text)
        self._out.append(frames.goaway(self._last, code, text))
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def _refuse_request(self, number: int, http_status: int, text: str) -> None:
        """Answer a request that is HTTP/2 but not gRPC."""
        self._hear_noise()
        block = frames.refusal_block(http_status, text)
        self._out.append(frames.frame(Frame.HEADERS, frames.END_HEADERS | frames.END_STREAM, number, block))
        self._out.append(frames.reset(number, Http2Code.NO_ERROR))

    def _refuse_other_protocol(self, data: bytes) -> None:
        text = "this port speaks gRPC over HTTP/2 only: connect with a client of RocketMQ 5"
        self._shared.refusals.note("http2", self.peer, "connection of %s is closed: no HTTP/2", self.peer)
        self._out = [frames.other_protocol_answer(data, text)]
        self.flush()
        if self._transport is not None:
            self._transport.close()

    # -- output

    def _start(self, stream: GrpcStream) -> None:
        if not stream.started:
            stream.started = True
            block = frames.RESPONSE_BLOCK
            self._out += [frame_header(len(block), Frame.HEADERS, frames.END_HEADERS, stream.id), block]

    def _pump_all(self) -> None:
        for stream in list(self._blocked.values()):
            self._pump(stream)

    def _pump(self, stream: GrpcStream) -> None:
        """Write as much of a stream's messages as the windows allow; then its trailers."""
        outgoing = stream.outgoing
        while outgoing and not self.is_choked:
            part = outgoing[0]
            size = min(len(part), self._max_frame, stream.send_window, self._window_out)
            if size <= 0:
                break
            self._out += [frame_header(size, Frame.DATA, 0, stream.id), part[:size]]
            stream.send_window -= size
            self._window_out -= size
            stream.unsent -= size
            if size == len(part):
                outgoing.popleft()
            else:
                outgoing[0] = memoryview(part)[size:]
        if outgoing:
            self._blocked[stream.id] = stream
            return
        self._blocked.pop(stream.id, None)
        if (block := stream.ending) is not None:
            flags = frames.END_HEADERS | frames.END_STREAM
            self._out += [frame_header(len(block), Frame.HEADERS, flags, stream.id), block]
            self._close_stream(stream)
        elif not self.is_choked:
            stream.wake()

    def _flush_soon(self) -> None:
        if not self._is_in_burst and not self._is_flushing:
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Write all frames of this burst."""
        self._is_flushing = False
        if self._out and self._transport is not None:
            self.last_used = self.clock.monotonic()
            out, self._out = self._out, []
            self._transport.write(b"".join(out))
