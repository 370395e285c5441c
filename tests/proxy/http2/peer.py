"""A connection of ours and a client by the library `h2`, joined in memory: `h2` judges every byte that ours sends."""

from __future__ import annotations

import asyncio

import h2.config
import h2.connection
import h2.events
import h2.settings

from pyromq.proxy.http2.http2_connection import Http2Connection
from pyromq.proxy.http2.shared_by_connections import SharedByConnections
from pyromq.remoting.rejection_log import RejectionLog
from pyromq.testing import FakeClock

HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/test.Service/Echo"),
    (":authority", "localhost"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]


class Pipe(asyncio.Transport):
    """The transport of our connection: keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_closed = False
        self.is_read = True

    def get_extra_info(self, name, default=None):
        return ("127.0.0.1", 5) if name == "peername" else default

    def write(self, data):
        assert not self.is_closed
        self.written += data

    def close(self):
        self.is_closed = True

    abort = close

    def is_closing(self):
        return self.is_closed

    def is_reading(self):
        return self.is_read

    def pause_reading(self):
        self.is_read = False

    def resume_reading(self):
        self.is_read = True


class Echo:
    """Answers each unary call with its request, and keeps the streams."""

    def __init__(self):
        self.streams = []
        self.ended = []
        self.answers = True

    def opened(self, stream):
        self.streams.append(stream)
        stream.ended = lambda: self.ended.append(stream.id)
        if self.answers:
            stream.half_closed = lambda: stream.reply(stream.message or b"")


def connected():
    """Return a connection of ours, its transport and its handler; nothing has arrived yet."""
    handler, pipe, clock = Echo(), Pipe(), FakeClock()
    connection = Http2Connection(SharedByConnections(handler, clock, RejectionLog(clock)))
    connection.connection_made(pipe)
    return connection, pipe, handler


class Peer:
    """A client by `h2` at a connection of ours. Both windows follow what `h2` allows."""

    def __init__(self, *, initial_window: int | None = None) -> None:
        self.ours, self.pipe, self.handler = connected()
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        self.client.initiate_connection()
        if initial_window is not None:
            self.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: initial_window})
        self.events: list[h2.events.Event] = []
        self.exchange()

    def exchange(self, piece: int | None = None) -> None:
        """Carry bytes both ways until neither side has more; towards ours in pieces of so many bytes."""
        while True:
            data = self.client.data_to_send()
            for at in range(0, len(data), piece or len(data) or 1):
                receive(self.ours, data[at : at + (piece or len(data))])
            if not (answer := self.written()) and not data:
                return
            self.events += self.client.receive_data(answer)

    def written(self) -> bytes:
        self.ours.flush()
        answer, self.pipe.written = self.pipe.written, b""
        return answer

    def call(self, message: bytes | None, *, end: bool = True, headers=HEADERS) -> int:
        """Open a call and send its message, as far as the window allows; return the stream."""
        number = self.client.get_next_available_stream_id()
        self.client.send_headers(number, headers, end_stream=end and message is None)
        if message is not None:
            self.send(number, grpc_message(message), end=end)
        return number

    def send(self, number: int, data: bytes, *, end: bool = False) -> None:
        while data:
            size = min(len(data), self.client.local_flow_control_window(number), self.client.max_outbound_frame_size)
            if not size:
                before = self.client.local_flow_control_window(number)
                self.exchange()
                assert self.client.local_flow_control_window(number) > before, "ours opens no window"
                continue
            self.client.send_data(number, data[:size], end_stream=end and size == len(data))
            data = data[size:]

    def answer(self, number: int) -> tuple[bytes, dict[str, str]]:
        """Return the messages' bytes and all header fields of a call's answer so far; opens the windows."""
        body, fields = b"", {}
        for event in self.events:
            if getattr(event, "stream_id", None) != number:
                continue
            if isinstance(event, h2.events.DataReceived):
                body += event.data
            elif isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
                fields |= dict(event.headers)
        return body, fields

    def happened(self, kind: type) -> list[h2.events.Event]:
        return [event for event in self.events if isinstance(event, kind)]


def receive(connection, data: bytes) -> None:
    """Let a connection receive data, with all slices of it at once."""
    connection.data_received(data)
    while connection in connection.shared.late:
        connection.shared.go_on()


def grpc_message(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


def raw_frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload
