"""One call of a gRPC client: its header fields, its messages in order, and the messages and status sent back.

The stream owns its flow control: `window_in` is what the client may send, `_extra_window` what the client allows.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyromq.errors import LimitReached
from pyromq.proxy.http2 import frames
from pyromq.proxy.http2.frames import Frame, Http2Code, frame_header
from pyromq.proxy.http2.grpc_status import OK_BLOCK, RESPONSE_BLOCK, GrpcCode, trailers_block
from pyromq.proxy.http2.header_blocks import Fields

if TYPE_CHECKING:
    from pyromq.proxy.http2.http2_connection import Http2Connection

PREFIX = struct.Struct(">BI")  # of each message: whether it is compressed, length
# Bytes of a message that a client may send at once; a larger message first gets its share of the server's memory.
STREAM_WINDOW = 64 << 10
MAX_MESSAGE_BYTES = 16 << 20  # limit of one message; a body of 4 MiB has room, and a batch of small ones
REQUEST_SECONDS = 30.0  # longest wait for the rest of a call's message
WORK_COPIES = 3  # a message in work is kept as bytes, parsed, and as the request to a broker
_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
NOISE_OF_CALL = 10  # a completed call lowers the connection's count of frames without a call by this number
_MAX_DIGITS = 8  # digits of a gRPC timeout


def prefixed(message: bytes) -> bytes:
    """Return a message with its prefix, as a stream sends it."""
    return PREFIX.pack(0, len(message)) + message


@dataclass(slots=True, eq=False, repr=False)
class GrpcStream:
    """A call between its header fields and its status.

    `half_closed` is called when the client has sent everything; `message` is then the request of a unary call. For
    other calls the handler sets `received`, which is called with each message. `ended` is called once if the client,
    the network or a refused message ends the call before the handler does.
    """

    connection: Http2Connection
    id: int
    fields: Fields
    opened_at: float
    max_bytes: int = MAX_MESSAGE_BYTES  # limit of a message
    message: bytes | None = None
    received: Callable[[bytes], None] | None = None
    half_closed: Callable[[], None] | None = None
    ended: Callable[[], None] | None = None
    is_half_closed: bool = False  # the client has sent everything
    is_closed: bool = False
    buffer: bytes | bytearray = b""  # incomplete message
    need: int = 0  # bytes of the incomplete message, if its length is known
    reserved: int = 0  # part of the server's memory for large messages
    kept: int = 0  # part of the connection's kept bytes
    in_work: int = 0  # part of the kept bytes that is released without an action of the peer
    window_in: int = STREAM_WINDOW
    unsent: int = 0
    kept_unsent: int = 0  # part of `unsent` in the connection's kept bytes
    _begun_at: float = 0.0  # when the incomplete message began
    _extra_window: int = 0  # bytes that the client allows, beyond the connection's initial window
    _is_started: bool = False  # response header fields are written
    _outgoing: list[bytes | memoryview] = field(default_factory=list)
    _ending: bytes | None = None  # header block of the trailers, after the outgoing messages
    _room: asyncio.Future[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether messages can be sent: the call has no status yet."""
        return not self.is_closed and self._ending is None

    @property
    def peer(self) -> str:
        """The client's address, `host:port`."""
        return self.connection.peer

    @property
    def path(self) -> str:
        return self.text(b":path")

    def text(self, name: bytes) -> str:
        """Return a header field as a string; empty if the client did not send the field."""
        return self.fields.get(name, b"").decode("utf-8", "replace")

    def seconds_left(self, default: float) -> float:
        """Return the seconds until the client's deadline; `default` without a legal deadline."""
        value = self.text(b"grpc-timeout")
        digits, unit = value[:-1], _UNITS.get(value[-1:])
        if unit is None or not digits.isdecimal() or len(digits) > _MAX_DIGITS:
            return default
        return self.opened_at + int(digits) * unit - self.connection.clock.monotonic()

    # -- messages of the client

    def take(self, size: int, payload: bytes) -> None:
        """Take the payload of a DATA frame of `size` bytes with padding, and pass on the messages that are complete."""
        self.window_in -= size
        if self.window_in < 0:
            self.reset(Http2Code.FLOW_CONTROL_ERROR)
            return
        if self._ending is not None:  # the status waits for the client's window; what follows changes nothing
            return
        if not self.buffer and len(payload) >= PREFIX.size:
            compressed, length = PREFIX.unpack_from(payload)
            if length + PREFIX.size == len(payload) and not compressed:  # nearly always: one frame is one message
                self._pass_on(payload[PREFIX.size :])
                return
        if not self.buffer:
            self.buffer = bytearray()
            self._begun_at = self.connection.clock.monotonic()
        self.buffer += payload
        while self._ending is None and len(self.buffer) >= PREFIX.size and self._is_legal():
            if len(self.buffer) < self.need:
                return
            message = bytes(self.buffer[PREFIX.size : self.need])
            self.buffer = self.buffer[self.need :]
            self._begun_at = self.connection.clock.monotonic()
            self._release()
            self._pass_on(message)

    def _release(self) -> None:
        """Release the memory of a complete message. A unary call keeps that of a large one until the call ends."""
        if self.need <= STREAM_WINDOW:
            self.connection.keep(self, -self.need)
        elif self.received is not None:
            self.connection.shared.release(self)
        self.need = 0

    def _is_legal(self) -> bool:
        """Return whether the client may send the message that it has begun.

        If it may, the stream's window is opened as far as needed. If not, the call is finished with a status."""
        if self.need:
            return True
        compressed, length = PREFIX.unpack_from(self.buffer)
        if compressed:
            self._refuse(GrpcCode.UNIMPLEMENTED, "compressed messages are not supported: send identity encoding")
        elif length > self.max_bytes:
            self._refuse(GrpcCode.RESOURCE_EXHAUSTED, f"a request of {length} bytes; the limit is {self.max_bytes}")
        else:
            self.need = length + PREFIX.size
            try:
                if self.need > STREAM_WINDOW:
                    self.connection.shared.reserve(self)
                else:
                    self.connection.keep(self, self.need)
                    self.open_window(self.need - len(self.buffer))
            except LimitReached as error:
                self.need = 0
                self._refuse(GrpcCode.RESOURCE_EXHAUSTED, str(error))
        return self.need > 0

    def _pass_on(self, message: bytes) -> None:
        if self.received is not None:
            if self.connection.is_over_share:
                self._refuse(GrpcCode.RESOURCE_EXHAUSTED, "the answers are not read")
                return
            self.received(message)
            if self.window_in < STREAM_WINDOW // 2:
                self.open_window(STREAM_WINDOW)
        elif self.message is not None:
            self._refuse(GrpcCode.INVALID_ARGUMENT, "the call has more than one request")
        else:
            self.message = message
            self.connection.keep(self, len(message) * WORK_COPIES, in_work=True)

    def half_close(self) -> None:
        """Note that the client has sent everything."""
        if self.is_half_closed or self.is_closed:
            return
        self.is_half_closed = True
        if self.buffer:
            self._refuse(GrpcCode.INVALID_ARGUMENT, "the last message is incomplete")
        elif self.half_closed is not None:
            self.half_closed()

    def open_window(self, wanted: int) -> None:
        """Let the client send at least `wanted` more bytes."""
        if wanted > self.window_in and not self.is_half_closed and not self.is_closed:
            self.connection.write(frames.window_update(self.id, wanted - self.window_in))
            self.window_in = wanted

    def expire(self, now: float) -> None:
        """Finish the call if its message does not arrive."""
        if self.received is None:
            is_late = now - self.opened_at > REQUEST_SECONDS
        else:  # the call may be open for days
            is_late = bool(self.buffer) and now - self._begun_at > REQUEST_SECONDS
        if is_late and not self.is_half_closed:
            self._refuse(GrpcCode.DEADLINE_EXCEEDED, f"the request did not arrive within {REQUEST_SECONDS:g} s")

    # -- messages to the client

    def send(self, *messages: bytes) -> None:
        """Send messages, when the client's windows have room for them. Several may share a frame."""
        self.send_prefixed(b"".join(map(prefixed, messages)))

    def send_prefixed(self, part: bytes, *, is_last: bool = False) -> None:
        """Send messages that have their prefixes already; after the last ones, the status OK."""
        if self.is_open:
            self._outgoing.append(part)
            self.unsent += len(part)
            if is_last:
                self._ending = OK_BLOCK
            self.pump()

    def reply(self, message: bytes) -> None:
        """Send the only message and the status OK."""
        self.send_prefixed(prefixed(message), is_last=True)

    def finish(self, code: GrpcCode = GrpcCode.OK, text: str = "") -> None:
        """End the call with a status, behind its messages. Without effect on a call that has ended."""
        if self.is_open:
            # Without messages, the response's header fields and its status are one block.
            self._ending = (b"" if self._is_started else RESPONSE_BLOCK) + trailers_block(code, text)
            self.pump()

    async def until_room(self) -> bool:
        """Wait until the client has taken most of what was sent. Return False if the call has ended meanwhile."""
        while not self.is_closed and (self.unsent or self.connection.is_choked):
            self._room = asyncio.get_running_loop().create_future()
            await self._room
        return not self.is_closed

    def allow(self, size: int) -> None:
        """Note that the client takes `size` more bytes of this call."""
        self._extra_window += size
        if self._extra_window + self.connection.initial_window > frames.MAX_WINDOW:
            self.reset(Http2Code.FLOW_CONTROL_ERROR)
        elif self._outgoing:
            self.pump()

    def pump(self) -> None:
        """Write as much of the messages as the windows allow; then the trailers."""
        connection, number = self.connection, self.id
        if self._outgoing and not self._is_started:
            self._is_started = True
            size = len(RESPONSE_BLOCK)
            connection.write(frame_header(size, Frame.HEADERS, frames.END_HEADERS, number), RESPONSE_BLOCK)
        while self._outgoing:
            part = self._outgoing[0]
            own = connection.initial_window + self._extra_window
            size = min(len(part), connection.max_frame, own, connection.window_out)
            if size <= 0 or connection.is_choked:
                connection.block(self, by_connection=own > 0)
                return
            connection.write(frame_header(size, Frame.DATA, 0, number), part[:size])
            self._extra_window -= size
            connection.window_out -= size
            self.unsent -= size
            if size == len(part):
                del self._outgoing[0]
            else:
                self._outgoing[0] = memoryview(part)[size:]
        if (block := self._ending) is None:
            if self.kept_unsent:
                connection.block(self, by_connection=False)
            self.wake()
            return
        flags = frames.END_HEADERS | frames.END_STREAM
        connection.write(frame_header(len(block), Frame.HEADERS, flags, number), block)
        if not self.is_half_closed:  # the client need not send the rest
            connection.write(frames.reset(number, Http2Code.NO_ERROR))
        connection.hear_noise(-NOISE_OF_CALL)
        self._close()

    def wake(self) -> None:
        """Wake `until_room`."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    # -- ends

    def reset(self, code: Http2Code) -> None:
        """End a call whose client broke the protocol."""
        self.connection.write(frames.reset(self.id, code))
        self.connection.hear_noise()
        self.abandon()

    def abandon(self) -> None:
        """End a call that the client or the network has ended."""
        self._close()
        self._call_ended()

    def _refuse(self, code: GrpcCode, text: str) -> None:
        """Finish a call because of its messages."""
        self.finish(code, text)
        self._call_ended()

    def _call_ended(self) -> None:
        ended, self.ended = self.ended, None
        if ended is not None:
            ended()

    def _close(self) -> None:
        self.is_closed = True
        self._outgoing.clear()
        self.buffer = b""
        self.wake()
        self.connection.remove(self)
