"""One call of a gRPC client: its header fields, its messages in order, and the messages and status sent back."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyromq.proxy.http2.frames import MAX_MESSAGE_BYTES, STREAM_WINDOW, GrpcCode, Http2Code

if TYPE_CHECKING:
    from pyromq.proxy.http2.http2_connection import Http2Connection

PREFIX = struct.Struct(">BI")  # of each message: whether it is compressed, length
_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_MAX_DIGITS = 8  # digits of a gRPC timeout


class GrpcStream:
    """A call between its header fields and its status.

    `half_closed` is called when the client has sent everything; `message` is then the request of a unary call. For
    other calls (`is_unary` is false) `received` is called with each message. `ended` is called once if the client or
    the network ends the call before `finish`.
    """

    __slots__ = (
        "_connection",
        "buffer",
        "ended",
        "ending",
        "fields",
        "half_closed",
        "held",
        "id",
        "is_closed",
        "is_half_closed",
        "is_unary",
        "message",
        "need",
        "opened_at",
        "outgoing",
        "path",
        "received",
        "reserved",
        "room",
        "send_window",
        "started",
        "unsent",
        "window_in",
    )

    def __init__(
        self, connection: Http2Connection, number: int, path: str, fields: dict[bytes, bytes], *, window: int
    ) -> None:
        self._connection = connection
        self.id = number
        self.path = path
        self.fields = fields
        self.is_unary = True
        self.message: bytes | None = None
        self.received: Callable[[bytes], None] | None = None
        self.half_closed: Callable[[], None] | None = None
        self.ended: Callable[[], None] | None = None
        self.opened_at = connection.clock.monotonic()
        # State that belongs to the connection.
        self.buffer = bytearray()  # incomplete message
        self.need = 0  # bytes of the incomplete message, if its length is known
        self.reserved = 0  # part of the server's quota of bytes
        self.held = 0  # bytes of the message in work
        self.window_in = STREAM_WINDOW
        self.is_half_closed = False  # the client has sent everything
        self.is_closed = False
        self.send_window = window
        self.started = False  # response header fields are written
        self.outgoing: deque[bytes | memoryview] = deque()
        self.unsent = 0
        self.ending: bytes | None = None  # header block of the trailers, after the outgoing messages
        self.room: asyncio.Future[None] | None = None

    @property
    def peer(self) -> str:
        """The client's address, `host:port`."""
        return self._connection.peer

    @property
    def connection(self) -> Http2Connection:
        return self._connection

    def take(self, size: int, payload: bytes) -> None:
        """Take the payload of a DATA frame of `size` bytes with padding, and pass on the messages that are complete."""
        self.window_in -= size
        if self.window_in < 0:
            self._connection.end_stream(self, Http2Code.FLOW_CONTROL_ERROR)
            return
        if not self.buffer and len(payload) >= PREFIX.size:
            compressed, length = PREFIX.unpack_from(payload)
            if length + PREFIX.size == len(payload) and not compressed:  # nearly always: one frame is one message
                self._pass_on(payload[PREFIX.size :])
                return
        self.buffer += payload
        while len(self.buffer) >= PREFIX.size and not self.is_closed:
            compressed, length = PREFIX.unpack_from(self.buffer)
            size = length + PREFIX.size
            if compressed:
                self.finish(GrpcCode.UNIMPLEMENTED, "compressed messages are not supported: send identity encoding")
            elif length > MAX_MESSAGE_BYTES:
                text = f"a request of {length} bytes; the limit is {MAX_MESSAGE_BYTES}"
                self.finish(GrpcCode.RESOURCE_EXHAUSTED, text)
            elif len(self.buffer) >= size:
                message = bytes(self.buffer[PREFIX.size : size])
                del self.buffer[:size]
                self.need = 0
                self._pass_on(message)
                continue
            elif not self.need:
                self.need = size
                self._connection.reserve(self)
            return

    def _pass_on(self, message: bytes) -> None:
        if self.received is not None:
            self.received(message)
        elif self.message is not None:
            self.finish(GrpcCode.INVALID_ARGUMENT, "the call has more than one request")
        else:
            self.message = message
            self._connection.hold(self, len(message))
        if self.window_in < STREAM_WINDOW // 2 and not self.is_closed:
            self._connection.open_window(self, STREAM_WINDOW)

    def text(self, name: bytes) -> str:
        """Return a header field as text; empty if the client did not send the field."""
        return self.fields.get(name, b"").decode("utf-8", "replace")

    def seconds_left(self, default: float) -> float:
        """Return the seconds until the client's deadline; `default` without a legal deadline."""
        value = self.text(b"grpc-timeout")
        digits, unit = value[:-1], _UNITS.get(value[-1:])
        if unit is None or not digits.isdecimal() or len(digits) > _MAX_DIGITS:
            return default
        return self.opened_at + int(digits) * unit - self._connection.clock.monotonic()

    def send(self, message: bytes) -> None:
        """Send a message, when the client's windows have room for it."""
        self._connection.send_message(self, message)

    def finish(self, code: GrpcCode = GrpcCode.OK, text: str = "") -> None:
        """End the call with a status, behind its messages. Without effect on a call that has ended."""
        self._connection.finish_stream(self, code, text)

    def reply(self, message: bytes) -> None:
        """Send the only message and the status OK."""
        self._connection.reply(self, message)

    async def until_room(self) -> bool:
        """Wait until the client has taken most of what was sent. Return False if the call has ended meanwhile."""
        while not self.is_closed and (self.unsent or self._connection.is_choked):
            self.room = asyncio.get_running_loop().create_future()
            await self.room
        return not self.is_closed

    def wake(self) -> None:
        """Wake `until_room`."""
        if self.room is not None and not self.room.done():
            self.room.set_result(None)
