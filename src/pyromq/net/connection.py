"""One TCP connection: its bytes go to an `Exchange`, the exchange's output to the socket, one write per burst.

Used by both sides: `server.py` accepts connections, `channel.py` opens them. The one place where answers that complete
later hop back to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from pyromq.clock import Clock
from pyromq.errors import AnotherServer, ProtocolError
from pyromq.net.connection_config import ConnectionConfig
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.exchange import Exchange

logger = logging.getLogger(__name__)

HIGH_WATER_BYTES = 4 << 20  # output a slow reader may leave unread: then a server stops reading, a client asking


class Connection(asyncio.Protocol):
    """A connection from its first byte to its last. `exchange` is there once it is open.

    `initiator` is true at the side that opened it. `opened` and `lost` are called once each, at begin and end.
    """

    exchange: Exchange

    def __init__(
        self,
        dispatcher: Dispatcher,
        clock: Clock,
        config: ConnectionConfig,
        *,
        initiator: bool,
        opened: Callable[[Connection], None] = lambda connection: None,
        lost: Callable[[Connection], None] = lambda connection: None,
    ) -> None:
        self.writable = asyncio.Event()  # not set while the peer leaves too much unread
        self.writable.set()
        self._dispatcher = dispatcher
        self._clock = clock
        self._config = config
        self._initiator = initiator
        self._opened = opened
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._flush_asked = False
        self._is_refused = False
        self._failure: AnotherServer | None = None
        self._last_written = 0.0

    @property
    def local_address(self) -> tuple[str, int]:
        """Our end: host and port."""
        host, port = self._transport.get_extra_info("sockname")[:2]
        return host, port

    @property
    def idle_since(self) -> float:
        """When something last came or was written; monotonic seconds."""
        return max(self.exchange.last_heard, self._last_written)

    def flush(self) -> None:
        """Write what is ready, by one call."""
        self._flush_asked = False
        output = self.exchange.take_output()
        if output:
            self._transport.write(output[0] if len(output) == 1 else b"".join(output))

    def hold(self) -> None:
        """Schedule no flush: the caller is about to flush."""
        self._flush_asked = True

    def finish(self) -> None:
        """Write what is ready, then close."""
        self.flush()
        self._transport.close()

    def cut(self) -> None:
        """Close at once, whatever is unwritten."""
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        self.exchange = Exchange(
            self._dispatcher,
            self._clock,
            address=transport.get_extra_info("peername") or ("0.0.0.0", 0),  # none: the peer is gone already
            wake=self._ask_flush,
            run_soon=self._run_soon,
            initiator=self._initiator,
            serialization=self._config.serialization,
            hooks=self._config.hooks,
            signer=self._config.signer,
        )
        self._opened(self)

    def data_received(self, data: bytes) -> None:
        try:
            self.exchange.receive(data)
        except ProtocolError as error:
            self._is_refused = True
            if self._initiator:
                self._failure = _another_server(self.exchange.address, data)
            if self._failure is None:  # else who asks is told
                logger.warning("closing connection %s %s: %s", self._preposition, self.exchange.address, error)
            self.finish()
            return
        self.flush()

    def connection_lost(self, error: Exception | None) -> None:
        self.writable.set()
        if self.exchange.unfinished and not self._is_refused:
            text = "connection %s %s ended within a frame, after %d bytes"
            logger.warning(text, self._preposition, self.exchange.address, self.exchange.unfinished)
        self._lost(self)
        reason = str(error) if error else "closed by the server" if self._initiator else "closed by peer"
        self.exchange.close(reason, self._failure)

    def pause_writing(self) -> None:
        self.writable.clear()
        if not self._initiator:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self.writable.set()
        if not self._initiator:
            self._transport.resume_reading()

    @property
    def _preposition(self) -> str:
        return "to" if self._initiator else "of"

    def _ask_flush(self) -> None:
        """Output came up outside `data_received`: write it at the end of this turn, together with what follows."""
        if not self._flush_asked:
            self._flush_asked = True
            self._last_written = self._clock.monotonic()
            self._loop.call_soon(self.flush)

    def _run_soon(self, *call: object) -> None:
        try:
            self._loop.call_soon_threadsafe(*call)  # type: ignore[arg-type]  # function and its arguments
        except RuntimeError:  # an answer completed by another thread after the loop has ended has nobody to go to
            logger.debug("an answer for %s came after the end", self.exchange.address)


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
