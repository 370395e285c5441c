"""One TCP connection: its bytes go to a `RemotingSession`, the session's output to the socket, one write per burst.

Used by both sides: `server.py` accepts connections, `channel.py` opens them. The one place where answers that complete
later hop back to the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

from pyromq import speedups
from pyromq.clock import Clock
from pyromq.errors import AnotherServer, ConnectionLost, ProtocolError
from pyromq.logs import logger_of
from pyromq.net.connection_config import ConnectionConfig
from pyromq.net.connection_quota import ConnectionQuota, Shared, run_soon
from pyromq.net.ended_transport import untie
from pyromq.net.tls.failures import broken, ended_unheard
from pyromq.remoting.dispatch import Dispatching
from pyromq.remoting.rejection_log import BROKEN_OFF, NO_FRAMES
from pyromq.remoting.remoting_session import RemotingSession

if TYPE_CHECKING or speedups.is_active:
    from pyromq.speedups.reactor import Transport
else:

    class Transport:
        """No transport is one of the compiled reactor's."""

        heard: float
        is_within_frame: bool


logger = logger_of(__name__)

LAST_SECONDS = 5.0  # of a connection that broke: for answers that wait for the disk, and for the peer to read them
HIGH_WATER_BYTES = 4 << 20  # output a server may leave unread: then a client stops asking


class Connection(asyncio.Protocol):
    """A connection from its first byte to its last. `session` is there once it is open.

    `initiator` is true at the side that opened it; the other side is a server's and has `shared`, by whose limits its
    peer lives. `opened` and `lost` are called once each, at begin and end.
    """

    # There may be tens of thousands, as of what they are made of.
    # fmt: off
    __slots__ = (
        "__weakref__", "_clock", "_config", "_deadline", "_dispatcher", "_failure", "_flush_asked", "_has_ended",
        "_initiator", "_is_refused", "_last_written", "_loop", "_lost", "_made_at", "_opened", "_shared", "_sockname",
        "_transport", "_usage", "session", "writable",
    )
    # fmt: on
    session: RemotingSession
    writable: asyncio.Event  # of an initiator: not set while the peer leaves too much unread

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
        self._usage: ConnectionQuota | None = None
        self._dispatcher = dispatcher
        self._clock = clock
        self._config = config
        self._initiator = initiator
        self._opened = opened
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._sockname: tuple[str, int]
        self._flush_asked = False
        self._is_refused = False
        self._has_ended = False
        self._failure: ConnectionLost | None = None
        self._deadline: asyncio.TimerHandle | None = None  # of a server's connection that broke
        self._last_written = 0.0
        self._made_at = 0.0

    @property
    def local_address(self) -> tuple[str, int]:
        """Our end: host and port, also when the connection is gone."""
        host, port = self._sockname[:2]
        return host, port

    @property
    def idle_since(self) -> float:
        """When something last came or was written; monotonic seconds."""
        heard = self._transport.heard if isinstance(self._transport, Transport) else 0.0
        return max(self.session.last_heard, self._last_written, heard)

    @property
    def peer_certificate(self) -> bytes | None:
        """The certificate that the peer showed, in DER; None if it showed none."""
        tls = self._transport.get_extra_info("ssl_object")
        return tls.getpeercert(True) if tls is not None else None

    @property
    def is_ending(self) -> bool:
        """Whether it broke: it answers the requests that came before, and reads on until the peer has ended, too.

        A socket that is closed with bytes unread is reset, and the peer loses the answers that it has not read.
        """
        return self._deadline is not None

    @property
    def is_within_frame(self) -> bool:
        """Whether more has to come of a request that has begun."""
        transport = self._transport
        return self.session.splitter.is_within_frame or (isinstance(transport, Transport) and transport.is_within_frame)

    def flush(self) -> None:
        """Write what is ready, by one call."""
        self._flush_asked = False
        if self.session.closed:
            return
        output = self.session.take_output()
        if output:
            self._transport.write(output[0] if len(output) == 1 else b"".join(output))
        usage, session = self._usage, self.session
        if self.is_ending and not (session.parked or session.is_behind):
            self._write_end()
            return
        is_counted = usage is not None and usage.is_counted
        if self._shared is not None and (is_counted or session.is_behind or session.splitter.unfinished):
            self._used(self._shared).weigh()

    def hold(self) -> None:
        """Schedule no flush: the caller is about to flush."""
        self._flush_asked = True

    def finish(self) -> None:
        """Write what is ready, then close."""
        self.flush()
        self._transport.close()

    def cut(self) -> None:
        """Close at once, whatever is unwritten."""
        self._is_refused = True  # a frame that ends with it is no news
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._initiator:
            self._sockname = transport.get_extra_info("sockname") or ("0.0.0.0", 0)
        self.session = RemotingSession(
            self._dispatcher,
            self._clock,
            address=transport.get_extra_info("peername") or ("0.0.0.0", 0),  # none: the peer is gone already
            wake=self._ask_flush,
            run_soon=partial(run_soon, self._loop) if self._shared is None else self._shared.run_soon,
            initiator=self._initiator,
            serialization=self._config.serialization,
            hooks=self._config.hooks,
            signer=self._config.signer if self._initiator else None,  # who serves has no account
            budget=None if self._shared is None else self._shared.budget,
        )
        self.session.writer = self._transport
        if self._shared is None:
            self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        else:  # all that is not sent is counted: told from the first bytes that stay until the last are gone
            self._transport.set_write_buffer_limits(high=1, low=0)
        if isinstance(transport, Transport):
            transport.set_address(self.session.packed_address)
        self._made_at = self.session.last_heard
        self._opened(self)

    def data_received(self, data: bytes) -> None:
        if self.is_ending:  # nobody knows where the next frame begins
            return
        try:
            self.session.receive(data, is_next=self._shared is None or self._shared.scheduler.is_empty)
        except ProtocolError as error:
            self._end(error, data)
        else:
            self.flush()

    def go_on(self, until: float) -> None:
        """Answer what is behind until then; monotonic seconds."""
        if self._transport.is_closing():
            return
        try:
            self.session.go_on(until)
        except ProtocolError as error:
            self._end(error)
        else:
            self.flush()

    def connection_lost(self, error: Exception | None) -> None:
        unfinished = self.session.splitter.unfinished
        if unfinished and not self._is_refused:
            self._tell(BROKEN_OFF, "connection %s %s ended within a frame, after %d bytes", unfinished)
        if self._shared is None:
            self.writable.set()
        elif self._usage is not None:
            self._usage.end()
            self._usage = None
        if self._deadline is not None:
            self._deadline.cancel()
        self._lost(self)
        untie(self._transport)
        self.session.close(self._reason(error), self._failure)

    def _reason(self, error: Exception | None) -> str:
        was_heard = self.session.last_heard != self._made_at
        if self._initiator and not was_heard and (error is None or isinstance(error, ConnectionResetError)):
            return ended_unheard(self._config.tls)
        return broken(error) if error else "closed by the server" if self._initiator else "closed by peer"

    def pause_writing(self) -> None:
        """Not all was sent. Of a server's connection called again when much more stays."""
        if self._shared is None:
            self.writable.clear()
        else:
            self._used(self._shared).is_clogged = True
            self._used(self._shared).weigh()

    def resume_writing(self) -> None:
        if self._shared is None:
            self.writable.set()
        else:
            self._used(self._shared).is_clogged = False
            self._used(self._shared).weigh()

    def _used(self, shared: Shared) -> ConnectionQuota:
        """Return what counts what this connection uses: made once there is something, which most never have."""
        if self._usage is None:
            self._usage = ConnectionQuota(self, self._transport, shared)
        return self._usage

    def _end(self, error: ProtocolError, data: bytes = b"") -> None:
        """The peer has sent what is no frame: requests before it are answered, then the connection closes."""
        if self.is_ending:
            self.flush()
            return
        self._is_refused = True
        address = self.session.address
        if self._initiator:
            self._failure = _another_server(address, data) or ConnectionLost(f"connection to {address} broke: {error}")
        if not isinstance(self._failure, AnotherServer):  # else who asks is told
            self._tell(NO_FRAMES, "closing connection %s %s: %s", error)
        if self._initiator:
            self.finish()
            return
        if isinstance(self._transport, Transport):
            self._transport.set_address(b"")  # no frames any more, not for the compiled parts either
        self._deadline = self._loop.call_later(LAST_SECONDS, self.finish)
        self.flush()

    def _write_end(self) -> None:
        if not self._transport.can_write_eof():  # TLS
            self._transport.close()
        elif not self._has_ended:
            self._has_ended = True
            self._transport.write_eof()

    def _tell(self, reason: str, text: str, what: object) -> None:
        address = self.session.address
        self._dispatcher.refusals.note(reason, address, text, self._preposition, address, what)

    @property
    def _preposition(self) -> str:
        return "to" if self._initiator else "of"

    def _ask_flush(self) -> None:
        """Output came up outside `data_received`: write it at the end of this turn, together with what follows."""
        if not self._flush_asked:
            self._flush_asked = True
            self._last_written = self._clock.monotonic()
            self._loop.call_soon(self.flush)


def _another_server(address: str, data: bytes) -> AnotherServer | None:
    """Return what is to be told of bytes that begin no frame; None where they look like nothing known.

    A frame begins with the high byte of its length, which is 0 or 1; no text does, nor an alert of TLS.
    """
    line = data[:60].strip().split(b"\n")[0].strip().decode("latin-1")
    if line.startswith(("HTTP/", "<")):  # the latter from servers that take us for HTTP 0.9
        return AnotherServer(f"{address} answers in HTTP: a web server listens there, no RocketMQ server")
    if data.startswith(b"\x15\x03"):
        return AnotherServer(f"{address} answers in TLS: what listens there takes no plain connections")
    if len(line) >= 4 and line.isascii() and line.isprintable():
        return AnotherServer(f"{address} answers {line!r}: no RocketMQ server listens there")
    return None
