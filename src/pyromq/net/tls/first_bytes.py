"""Detects whether a new connection to a TLS port is plain or encrypted.

The first byte decides: 0x16 begins a TLS handshake, any other byte a plain connection. The byte is only peeked at, so
the protocol receives all bytes. A handshake begins when the client's first record is complete: before, a connection
costs only a descriptor, and the number of handshakes is limited. Source: RocketMQ 4.9.8,
NettyRemotingServer.HandshakeHandler.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from pyromq.clock import Clock
from pyromq.errors import NoPermission, ProtocolError
from pyromq.message import join_address
from pyromq.net.tasks import Tasks, every
from pyromq.net.tls.tls_server import ServerContext, TlsMode
from pyromq.net.tls.transport import TlsLayer
from pyromq.platforms import platform
from pyromq.remoting.command import Call, FrameSplitter, decode_request, write_reply
from pyromq.remoting.dispatch import refusal
from pyromq.remoting.rejection_log import HANDSHAKES, NOT_ENCRYPTED, RejectionLog

SILENT_SECONDS = 120.0  # longest wait for the first byte, as for idle connections: clients may open a connection early
MAX_WAITING = 4096  # limit of connections without a complete first record; above the limit the oldest is closed
MAX_HANDSHAKES = 256  # limit of concurrent handshakes, 60 kB each; above the limit the oldest (most take ms) is cut
_BEGUN_AT_ONCE = 4  # limit of handshakes begun in a turn of the event loop: each computes for a millisecond
_EXPIRE_SECONDS = 1.0
# Wait before a refused connection is closed: Java's client drops a reply that arrives with the end.
_REFUSED_SECONDS = 1.0

_HANDSHAKE = 0x16
_RECORD_HEADER = 5  # type, version, length
_MAX_RECORD = (1 << 14) + _RECORD_HEADER
_MAX_REFUSED = 1 << 16  # limit of bytes of requests that are read and answered by refusals

REFUSED = "this port accepts TLS connections only (tls.server.mode=enforcing): connect with TLS"


@dataclass(slots=True)
class _WaitingClient:
    """A connection whose first bytes have not arrived completely."""

    accepted: socket.socket
    deadline: float  # monotonic seconds
    needed: int = 1  # number of bytes that must have arrived at the next check


@dataclass(slots=True)
class _Refused:
    """A plain connection to a port that requires TLS; its requests are refused.

    Java clients begin with two requests at a time.
    """

    accepted: socket.socket
    deadline: float  # monotonic seconds
    splitter: FrameSplitter = field(default_factory=lambda: FrameSplitter(_MAX_REFUSED))
    left: int = _MAX_REFUSED  # number of bytes that may still be read

    def answer(self) -> bool:
        """Refuse the requests received so far. Return False if no more requests can be answered."""
        output: list[bytes | memoryview] = []
        try:
            data = self.accepted.recv(self.left)
            self.left -= len(data)
            for serialization, header, body in self.splitter.split(data):
                call = decode_request(serialization, header, body)
                if isinstance(call, Call):
                    write_reply(refusal(NoPermission(REFUSED)), call, output)
            self.accepted.send(b"".join(output))
        except (BlockingIOError, InterruptedError):
            return True
        except (OSError, ProtocolError):  # the peer does not speak the protocol
            return False
        return bool(data) and self.left > 0 and not self.splitter.broken


class FirstBytes:
    """Peeks at the first bytes of new connections, and serves each connection with the plain or the TLS protocol.

    `factory` makes protocols for plain bytes. `serve` serves a socket, which must not block, with a protocol.
    """

    def __init__(
        self,
        context: ServerContext,
        clock: Clock,
        refusals: RejectionLog,
        *,
        factory: Callable[[], asyncio.Protocol],
        serve: Callable[[socket.socket, asyncio.Protocol], None],
    ) -> None:
        self._context = context
        self._clock = clock
        self._factory = factory
        self._serve = serve
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, _WaitingClient] = {}  # waiting connections by descriptor, in order of arrival
        self._ready: deque[socket.socket] = deque()
        # Connections in a handshake with address and deadline, oldest first.
        self._shaking: dict[TlsLayer, tuple[str, float]] = {}
        self._refused: deque[_Refused] = deque()  # refused connections in order of deadlines
        self._refusals = refusals
        self._tasks = Tasks()
        self._tasks.start(every(_EXPIRE_SECONDS, self._expire, clock), name="expire handshakes")

    @property
    def count(self) -> int:
        """The number of connections that no protocol serves yet."""
        return len(self._waiting) + len(self._ready) + len(self._shaking)

    def add(self, accepted: socket.socket) -> None:
        """Take a new connection; its socket must be non-blocking."""
        if len(self._waiting) >= MAX_WAITING:
            self._drop(next(iter(self._waiting.values())))
        number = accepted.fileno()
        self._waiting[number] = _WaitingClient(accepted, self._clock.monotonic() + SILENT_SECONDS)
        self._loop.add_reader(number, self._look, number)

    def close(self) -> None:
        """Close all connections that no protocol serves yet."""
        for waiting in list(self._waiting.values()):
            self._drop(waiting)
        for accepted in self._ready:
            accepted.close()
        self._ready.clear()
        while self._refused:
            self._end_refused()
        for layer in list(self._shaking):
            layer.abort()

    async def wait_closed(self) -> None:
        """Stop the background task and wait for its end."""
        await self._tasks.stop()

    def _look(self, number: int) -> None:
        waiting = self._waiting[number]
        try:
            seen = waiting.accepted.recv(waiting.needed, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            seen = b""
        if not seen:
            self._drop(waiting)
        elif seen[0] != _HANDSHAKE:
            self._forget(waiting)
            self._take_plain(waiting.accepted)
        elif len(seen) == waiting.needed < (needed := _record_size(seen)):
            self._wait_for(waiting, needed)
        # The peer has closed its side: the first record stays incomplete.
        elif len(seen) < waiting.needed and not platform.may_still_send(waiting.accepted):
            self._drop(waiting)
        else:
            self._forget(waiting)
            self._begin_soon(waiting.accepted)

    def _wait_for(self, waiting: _WaitingClient, needed: int) -> None:
        """Check the connection again when `needed` bytes have arrived; the kernel reports no event before."""
        if waiting.needed == 1:
            waiting.deadline = self._clock.monotonic() + self._context.config.handshake_seconds
        waiting.needed = needed
        waiting.accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, needed)

    def _take_plain(self, accepted: socket.socket) -> None:
        if self._context.config.mode is TlsMode.ENFORCING:
            address = _address_of(accepted)
            self._refusals.note(NOT_ENCRYPTED, address, "refused connection of %s: it is not encrypted", address)
            if len(self._refused) >= MAX_WAITING:
                self._end_refused()
            refused = _Refused(accepted, self._clock.monotonic() + _REFUSED_SECONDS)
            self._refused.append(refused)
            self._loop.add_reader(accepted.fileno(), self._answer, refused)
            self._answer(refused)
        else:
            self._serve(accepted, self._factory())

    def _answer(self, refused: _Refused) -> None:
        if not refused.answer():
            self._loop.remove_reader(refused.accepted.fileno())

    def _end_refused(self) -> None:
        """Close the connection that was refused first."""
        accepted = self._refused.popleft().accepted
        self._loop.remove_reader(accepted.fileno())
        accepted.close()

    def _begin_soon(self, accepted: socket.socket) -> None:
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        self._ready.append(accepted)
        if len(self._ready) == 1:
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        for _ in range(min(_BEGUN_AT_ONCE, len(self._ready))):
            if len(self._shaking) >= MAX_HANDSHAKES:
                self._cut(next(iter(self._shaking)))
            self._shake(self._ready.popleft())
        if self._ready:
            self._loop.call_soon(self._begin)

    def _shake(self, accepted: socket.socket) -> None:
        address = _address_of(accepted)

        def on_handshake(failure: str | None) -> None:
            if self._shaking.pop(layer, None) is not None and failure is not None:
                self._note(address, failure)

        layer = TlsLayer(self._context.current(), self._factory, on_handshake)
        self._shaking[layer] = address, self._clock.monotonic() + self._context.config.handshake_seconds
        self._serve(accepted, layer)

    def _cut(self, layer: TlsLayer) -> None:
        address, _ = self._shaking.pop(layer)
        layer.abort()
        self._note(address, "not finished in time")

    def _expire(self) -> None:
        now = self._clock.monotonic()
        for waiting in [each for each in self._waiting.values() if each.deadline <= now]:
            self._drop(waiting)
        while self._refused and self._refused[0].deadline <= now:
            self._end_refused()
        for layer in [layer for layer, (_, deadline) in self._shaking.items() if deadline <= now]:
            self._cut(layer)

    def _forget(self, waiting: _WaitingClient) -> None:
        number = waiting.accepted.fileno()
        self._loop.remove_reader(number)
        del self._waiting[number]

    def _drop(self, waiting: _WaitingClient) -> None:
        self._forget(waiting)
        waiting.accepted.close()

    def _note(self, address: str, failure: str) -> None:
        self._refusals.note(HANDSHAKES, address, "TLS handshake with %s failed: %s", address, failure)


def _address_of(accepted: socket.socket) -> str:
    try:
        host, port = accepted.getpeername()[:2]
    except OSError:  # the socket is closed already
        return "an unknown address"
    return join_address(host, port)


def _record_size(seen: bytes) -> int:
    """Return the size of the first TLS record, or the size of a record header while the header is incomplete."""
    if len(seen) < _RECORD_HEADER:
        return _RECORD_HEADER
    return min(_RECORD_HEADER + int.from_bytes(seen[3:5], "big"), _MAX_RECORD)
