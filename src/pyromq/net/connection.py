"""One TCP connection of a client or a server: connects a `RemotingSession` with a transport, with one write per burst.

`BackPressure` charges the bytes that a connection of a server holds, and pauses reading. Replies that complete in
another thread return to the event loop only by `run_soon`.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, cast

from pyromq import speedups
from pyromq.clock import Clock
from pyromq.errors import AnotherServer, ConnectionLost, ProtocolError
from pyromq.logs import logger_of
from pyromq.net.connection_config import ConnectionConfig
from pyromq.net.tls.failures import closed_without_a_reply, describe
from pyromq.net.tls.transport import release_transport
from pyromq.quota import Quota
from pyromq.remoting.connection_limits import Budget
from pyromq.remoting.dispatch import Dispatching
from pyromq.remoting.rejection_log import BROKEN_OFF, NO_FRAMES
from pyromq.remoting.remoting_session import RemotingSession

if TYPE_CHECKING or speedups.is_active:
    from pyromq.speedups.reactor import Transport
else:

    class Transport:
        """The type of the compiled reactor's transport if the compiled parts are missing.

        No connection has this transport.
        """

        heard: float
        is_within_frame: bool
        parked: int


logger = logger_of(__name__)

DRAIN_SECONDS = (
    5.0  # after invalid bytes: longest wait until the pending replies are complete and the peer has read them
)
HIGH_WATER_BYTES = 4 << 20  # limit of unsent bytes of a client's connection; above the limit calls wait
TURN_SECONDS = 0.002  # limit of time for slices in one turn of the event loop
_SLICE_SECONDS = 0.0005  # limit of one slice: 100 pending connections wait 50 ms for their turns
# Smaller amounts of received bytes are not charged: most connections sometimes hold an incomplete frame.
COUNTED_BYTES = 4096
_NO_LINGERING = struct.pack("ii", 1, 0)  # the value of SO_LINGER with which closing is a reset


class Connection(asyncio.Protocol):
    """One connection from opening to closing. `session` exists once the connection is open.

    `initiator` is true for the client's side. A server's connection has `shared` instead, with the server's limits.
    `opened` and `lost` are called once each.
    """

    # A server may have tens of thousands: slots save memory.
    # fmt: off
    __slots__ = (
        "__weakref__",
        "_back_pressure",
        "_clock",
        "_config",
        "_deadline",
        "_dispatcher",
        "_failure",
        "_initiator",
        "_is_ended_here",
        "_is_eof_written",
        "_is_flush_scheduled",
        "_last_written",
        "_loop",
        "_lost",
        "_opened",
        "_opened_at",
        "_shared",
        "_sockname",
        "_transport",
        "session",
        "writable",
    )
    # fmt: on
    session: RemotingSession
    writable: asyncio.Event  # only of a client; cleared while unsent bytes exceed `HIGH_WATER_BYTES`

    def __init__(
        self,
        dispatcher: Dispatching,
        clock: Clock,
        config: ConnectionConfig,
        *,
        initiator: bool,
        shared: Shared | None = None,
        opened: Callable[[Connection], None] = lambda connection: None,
        lost: Callable[[Connection], None] = lambda connection: None,
    ) -> None:
        if initiator:
            self.writable = asyncio.Event()
            self.writable.set()
        self._shared = shared
        # Created when needed; most connections never need back-pressure.
        self._back_pressure: BackPressure | None = None
        self._dispatcher = dispatcher
        self._clock = clock
        self._config = config
        self._initiator = initiator
        self._opened = opened
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._sockname: tuple[str, int]
        self._is_flush_scheduled = False
        self._is_ended_here = False  # whether this side closed the connection: an incomplete frame is then not logged
        self._is_eof_written = False
        self._failure: ConnectionLost | None = None
        self._deadline: asyncio.TimerHandle | None = None  # closes the connection if draining takes too long
        self._last_written = 0.0
        self._opened_at = 0.0

    @property
    def local_address(self) -> tuple[str, int]:
        """The local host and port, also after the connection has closed."""
        host, port = self._sockname[:2]
        return host, port

    @property
    def idle_since(self) -> float:
        """The time of the latest read or write, in monotonic seconds."""
        heard = self._transport.heard if isinstance(self._transport, Transport) else 0.0
        return max(self.session.last_heard, self._last_written, heard)

    @property
    def peer_certificate(self) -> bytes | None:
        """The peer's certificate in DER; None if the peer presented none."""
        tls = self._transport.get_extra_info("ssl_object")
        return tls.getpeercert(True) if tls is not None else None

    @property
    def is_draining(self) -> bool:
        """Whether invalid bytes came. Earlier requests are still answered; later bytes are read and discarded.

        Closing a socket with unread bytes would reset the connection, and the peer would lose unread replies.
        """
        return self._deadline is not None

    @property
    def is_within_frame(self) -> bool:
        """Whether an incomplete frame has been received."""
        transport = self._transport
        return self.session.splitter.is_within_frame or (isinstance(transport, Transport) and transport.is_within_frame)

    @property
    def owes_replies(self) -> bool:
        """Whether the reply to a received request is still waiting for an event, for example a flush to disk."""
        transport = self._transport
        return self.session.in_flight > 0 or (isinstance(transport, Transport) and transport.parked > 0)

    def flush(self) -> None:
        """Write the session's output with one system call."""
        self._is_flush_scheduled = False
        session = self.session
        if session.closed:
            return
        output = session.take_output()
        if output:
            self._transport.write(output[0] if len(output) == 1 else b"".join(output))
        if self.is_draining and not (self.owes_replies or session.has_pending):
            self._write_end()
            return
        needs_update = self._back_pressure is not None and self._back_pressure.needs_update
        if self._shared is not None and (needs_update or session.has_pending or session.splitter.incomplete_bytes):
            self._back_pressure_in(self._shared).update()

    def hold(self) -> None:
        """Suppress the flush that is scheduled: the caller flushes the output."""
        self._is_flush_scheduled = True

    def finish(self) -> None:
        """Write the output, then close the connection."""
        self.flush()
        self._transport.close()

    def cut(self) -> None:
        """Close the connection immediately and discard unsent bytes."""
        self._is_ended_here = True
        self._transport.abort()

    def reset(self) -> None:
        """Close the connection with a TCP reset and discard unsent bytes.

        After an orderly close, Java's clients wait for the timeout of their requests; after a reset they do not.
        """
        sock = self._transport.get_extra_info("socket")
        if sock is not None and sock.fileno() >= 0:  # a connection that has just ended may have closed its socket
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGERING)
        self.cut()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._initiator:
            self._sockname = transport.get_extra_info("sockname") or ("0.0.0.0", 0)
        self.session = RemotingSession(
            self._dispatcher,
            self._clock,
            address=transport.get_extra_info("peername")
            or ("0.0.0.0", 0),  # the transport returns None if the peer has closed already
            wake=self._schedule_flush,
            writer=self._transport,
            run_soon=partial(run_soon, self._loop) if self._shared is None else self._shared.run_soon,
            initiator=self._initiator,
            serialization=self._config.serialization,
            hooks=self._config.hooks,
            signer=self._config.signer if self._initiator else None,  # servers do not sign
            budget=None if self._shared is None else self._shared.budget,
        )
        if self._shared is None:
            self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        else:  # `pause_writing` is called for any unsent byte: the quota charges all unsent bytes
            self._transport.set_write_buffer_limits(high=1, low=0)
        if isinstance(transport, Transport):
            transport.set_address(self.session.packed_address)
        self._opened_at = self.session.last_heard
        self._opened(self)

    def data_received(self, data: bytes) -> None:
        if self.is_draining:  # after invalid bytes the beginning of the next frame is unknown
            return
        try:
            self.session.receive(data, at_once=self._shared is None or self._shared.scheduler.is_empty)
        except ProtocolError as error:
            self._end(error, data)
        else:
            self.flush()

    def answer_pending(self, until: float) -> None:
        """Answer pending requests until the monotonic time `until` (seconds)."""
        if self._transport.is_closing():
            return
        try:
            self.session.answer_pending(until)
        except ProtocolError as error:
            self._end(error)
        else:
            self.flush()

    def connection_lost(self, error: Exception | None) -> None:
        incomplete = self.session.splitter.incomplete_bytes
        if incomplete and self._initiator:
            self._failure = self._failure or _another_server(self.session.address, self.session.splitter.beginning)
        if incomplete and not self._is_ended_here and not isinstance(self._failure, AnotherServer):
            self._log(BROKEN_OFF, "connection %s %s ended within a frame, after %d bytes", incomplete)
        if self._shared is None:
            self.writable.set()
        elif self._back_pressure is not None:
            self._back_pressure.release()
            self._back_pressure = None
        if self._deadline is not None:
            self._deadline.cancel()
        self._lost(self)
        release_transport(self._transport)
        self.session.close(self._reason(error), self._failure)

    def _reason(self, error: Exception | None) -> str:
        has_received = self.session.last_heard != self._opened_at
        if self._initiator and not has_received and (error is None or isinstance(error, ConnectionResetError)):
            return closed_without_a_reply(self._config.tls)
        return describe(error) if error else "closed by the server" if self._initiator else "closed by peer"

    def pause_writing(self) -> None:
        """Called when bytes stay unsent; for a connection of a server called again when many more bytes are added."""
        if self._shared is None:
            self.writable.clear()
        else:
            self._set_write_paused(self._shared, True)

    def resume_writing(self) -> None:
        if self._shared is None:
            self.writable.set()
        else:
            self._set_write_paused(self._shared, False)

    def _set_write_paused(self, shared: Shared, is_paused: bool) -> None:
        quota = self._back_pressure_in(shared)
        quota.is_write_paused = is_paused
        quota.update()

    def _back_pressure_in(self, shared: Shared) -> BackPressure:
        if self._back_pressure is None:
            self._back_pressure = BackPressure(self, self._transport, shared)
        return self._back_pressure

    def _end(self, error: ProtocolError, data: bytes = b"") -> None:
        """Handle invalid bytes: answer the requests before them, then close the connection."""
        if self.is_draining:
            self.flush()
            return
        self._is_ended_here = True
        address = self.session.address
        if self._initiator:
            self._failure = _another_server(address, data) or ConnectionLost(f"connection to {address} broke: {error}")
        if not isinstance(self._failure, AnotherServer):  # `AnotherServer` is not logged, since callers get this error
            self._log(NO_FRAMES, "closing connection %s %s: %s", error)
        if self._initiator:
            self.finish()
            return
        if isinstance(self._transport, Transport):
            self._transport.set_address(b"")  # stops the compiled parts from reading frames
        self._deadline = self._loop.call_later(DRAIN_SECONDS, self.finish)
        self.flush()

    def _write_end(self) -> None:
        if not self._transport.can_write_eof():  # the transport is TLS
            self._transport.close()
        elif not self._is_eof_written:
            self._is_eof_written = True
            self._transport.write_eof()

    def _log(self, reason: str, text: str, what: object) -> None:
        address = self.session.address
        self._dispatcher.refusals.note(reason, address, text, self._preposition, address, what)

    @property
    def _preposition(self) -> str:
        return "to" if self._initiator else "of"

    def _schedule_flush(self) -> None:
        """Flush at the end of the event loop's turn, together with output that is added before."""
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._last_written = self._clock.monotonic()
            self._loop.call_soon(self.flush)


def _another_server(address: str, data: bytes) -> AnotherServer | None:
    """Return an error that names the protocol of bytes that begin no frame; None if the protocol is unknown.

    A frame begins with the high byte of its length, which is 0 or 1. Text and TLS alerts begin with other bytes. The
    first frame of an HTTP/2 server (SETTINGS) looks like a RocketMQ frame with an empty header.
    """
    if data[3:9] == b"\x04\0\0\0\0\0":
        return AnotherServer(
            f"{address} answers in HTTP/2: a proxy for clients of RocketMQ 5 (gRPC) may listen there, no name server"
        )
    line = data[:60].strip().split(b"\n")[0].strip().decode("latin-1")
    if line.startswith(("HTTP/", "<")):  # "<" from servers that assume HTTP 0.9
        return AnotherServer(f"{address} answers in HTTP: a web server listens there, no RocketMQ server")
    if data.startswith(b"\x15\x03"):
        return AnotherServer(f"{address} answers in TLS: this port requires TLS connections")
    if len(line) >= 4 and line.isascii() and line.isprintable():
        return AnotherServer(f"{address} answers {line!r}: no RocketMQ server listens there")
    return None


class Shared:
    """The objects that the connections of one server share: budget of limits, quotas of bytes, scheduler."""

    def __init__(self, budget: Budget, scheduler: FairScheduler) -> None:
        self.budget = budget
        self.scheduler = scheduler
        limits = budget.limits
        self.received: Quota[BackPressure] = Quota("maxReceivedBytes", limits.received_bytes)
        self.unsent: Quota[BackPressure] = Quota("maxAllUnreadBytes", limits.all_unread_bytes)
        self.run_soon = partial(run_soon, asyncio.get_running_loop())


def run_soon(loop: asyncio.AbstractEventLoop, *call: object) -> None:
    """Let the event loop call a function with its arguments soon. May be called from any thread."""
    try:
        loop.call_soon_threadsafe(*call)  # type: ignore[arg-type]  # function and its arguments
    except RuntimeError:  # the event loop is closed
        logger.debug("a reply completed after the event loop was closed")


class Answering(Enum):
    """Whether a connection of a server answers requests; see the table in `BackPressure`."""

    OPEN = auto()
    SCHEDULED = auto()
    BLOCKED = auto()


class BackPressure:
    """Charges the bytes that one connection holds to its server's quotas, and pauses reading from it.

        state      entered when                                 reading  replies             left when
        OPEN       nothing is pending                           yes      immediately
        SCHEDULED  requests or completed replies are pending    paused   one slice per turn  nothing is pending
        BLOCKED    unsent bytes exceed the connection's limit   paused   none                the peer has read enough
                   or its share of the limit of all connections

    Requests and replies are pending (`RemotingSession.has_pending`) because a slice was used up, because other
    connections are scheduled first, or because the peer does not read. A scheduled connection waits in the scheduler,
    except during its turn. A blocked connection may still be in the scheduler: its turn then does nothing.
    `Connection.is_draining` stops new requests in any state; paused reading then stays paused. When all connections
    together exceed a quota, the connection whose amount changed least recently is cut.
    """

    __slots__ = (
        "_connection",
        "_is_scheduled",
        "_received_bytes",
        "_session",
        "_shared",
        "_state",
        "_transport",
        "_unsent_bytes",
        "is_write_paused",
        "needs_update",
    )

    def __init__(self, connection: Connection, transport: asyncio.Transport, shared: Shared) -> None:
        # Whether `update` must be called at each flush: bytes are charged, or reading is paused.
        self.needs_update = False
        self.is_write_paused = False  # whether the transport has called `pause_writing` last, not `resume_writing`
        self._connection = connection
        self._session = connection.session
        self._transport = transport
        self._shared = shared
        self._unsent_bytes = self._received_bytes = 0
        self._state = Answering.OPEN
        self._is_scheduled = False  # whether the connection waits in the scheduler

    def update(self) -> None:
        """Charge the bytes that the connection holds now, then enter the state that follows from these amounts."""
        session, shared = self._session, self._shared
        if session.closed:
            return
        unsent = self._transport.get_write_buffer_size() + session.pending_reply_bytes
        if unsent != self._unsent_bytes:
            shared.unsent.hold(self, unsent)
            self._unsent_bytes = unsent
        received = session.splitter.incomplete_bytes + session.pending_request_bytes
        if received != self._received_bytes:
            shared.received.hold(self, received if received > COUNTED_BYTES else 0)
            self._received_bytes = received
        self._cut_idlest()
        if not session.closed and not self._transport.is_closing():
            self._enter(self._next_state())
        # Pending replies that are memory views charge nothing, but reading must be resumed after these, too.
        self.needs_update = bool(unsent or received) or self._state is not Answering.OPEN

    def answer_pending(self, until: float) -> None:
        """Let the connection answer pending requests until the monotonic time `until`: its turn in the scheduler."""
        self._is_scheduled = False
        self._connection.answer_pending(until)

    def release(self) -> None:
        """Give back all charged bytes: the connection has ended."""
        self._shared.unsent.end(self)
        self._shared.received.end(self)

    def _cut_idlest(self) -> None:
        for quota in (self._shared.received, self._shared.unsent):
            while (idlest := quota.idlest()) is not None:
                idlest._cut(quota)

    def _cut(self, quota: Quota[BackPressure]) -> None:
        text = "closing connection of %s: all connections together keep %d bytes (%s), and it has been idle for longest"
        address, setting = self._session.address, quota.setting
        self._shared.budget.refusals.note(setting, address, text, address, quota.limit, setting)
        self.release()
        self._connection.cut()

    def _next_state(self) -> Answering:
        limit = min(self._shared.budget.limits.unread_bytes, self._shared.unsent.share_of(self))
        if self._unsent_bytes > limit:
            return Answering.BLOCKED
        return Answering.SCHEDULED if self._session.has_pending else Answering.OPEN

    def _enter(self, state: Answering) -> None:
        was_open, self._state = self._state is Answering.OPEN, state
        self._session.is_output_full = state is Answering.BLOCKED
        if state is Answering.OPEN:
            if not was_open and not self._connection.is_draining:
                self._transport.resume_reading()
            return
        if was_open:
            self._transport.pause_reading()
        if state is Answering.SCHEDULED:
            if not self._is_scheduled:
                self._is_scheduled = True
                self._shared.scheduler.add(self)
        # During a burst of output: the socket may take the bytes at the end of the burst.
        elif not self.is_write_paused:
            asyncio.get_running_loop().call_soon(self.update)


class FairScheduler:
    """The connections of a server that wait for a slice of time to answer requests.

    While a connection waits, connections with new requests wait, too. New connections get every second slice: most need
    only one, and must not wait for all connections that need more.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._new: deque[BackPressure] = deque()
        self._old: deque[BackPressure] = deque()
        self._is_new_first = True
        self._working: BackPressure | None = None

    @property
    def is_empty(self) -> bool:
        return not (self._new or self._old)

    def add(self, connection: BackPressure) -> None:
        """Give a connection a slice of time soon. The connection must not be waiting already."""
        if self.is_empty and self._working is None:
            self._loop.call_soon(self._work)
        (self._old if connection is self._working else self._new).append(connection)

    def _work(self) -> None:
        end = self._clock.monotonic() + TURN_SECONDS
        while not self.is_empty:
            first, second = (self._new, self._old) if self._is_new_first else (self._old, self._new)
            self._is_new_first = not self._is_new_first
            self._working = (first or second).popleft()
            self._working.answer_pending(self._clock.monotonic() + _SLICE_SECONDS)
            if self._clock.monotonic() >= end:
                break
        self._working = None
        if not self.is_empty:
            self._loop.call_soon(self._work)
