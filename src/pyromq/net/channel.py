"""The client's side of a connection: connect, call, send one-way, answer the server's requests."""

from __future__ import annotations

import asyncio
import logging
import ssl

from pyromq.clock import Clock
from pyromq.errors import AnotherServer, DeadlineExceeded, MQError, ProtocolError, Unavailable
from pyromq.remoting.command import Response
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.exchange import Completed, Exchange
from pyromq.remoting.frame import JSON
from pyromq.remoting.header import Filled, Header

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 3.0
WRITE_SECONDS = 1.0  # for what is ready to be written at the end, to a peer that may not read
HIGH_WATER_BYTES = 4 << 20


class Channel(asyncio.Protocol):
    """One open connection to a server. All calls of a process to one address share it; answers may overtake."""

    def __init__(self, dispatcher: Dispatcher, clock: Clock, serialization: int = JSON) -> None:
        self._dispatcher = dispatcher
        self._clock = clock
        self._serialization = serialization
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._exchange: Exchange
        self._flush_asked = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._expiry: asyncio.TimerHandle | None = None
        self._failure: AnotherServer | None = None
        self._lost = self._loop.create_future()

    @property
    def address(self) -> str:
        return self._exchange.address

    @property
    def local_address(self) -> tuple[str, int]:
        """Our end of the connection."""
        host, port = self._transport.get_extra_info("sockname")[:2]
        return host, port

    @property
    def closed(self) -> bool:
        return self._exchange.closed

    @property
    def exchange(self) -> Exchange:
        return self._exchange

    def call_soon(self, header: Header | Filled, body: bytes = b"", *, timeout: float) -> asyncio.Future[Response]:
        """Ask now, together with what else is asked in this turn; the future gets the response, whatever its code.

        It fails with `DeadlineExceeded` or `ConnectionLost`. Seconds.
        """
        future: asyncio.Future[Response] = self._loop.create_future()

        def answered(result: Response | MQError) -> None:
            if future.done():
                return
            if isinstance(result, MQError):
                future.set_exception(result)
            else:
                future.set_result(result)

        self.ask(header, body, timeout=timeout, answered=answered)
        return future

    def ask(self, header: Header | Filled, body: bytes = b"", *, timeout: float, answered: Completed) -> None:
        """Ask now; `answered` gets the response, `DeadlineExceeded` or `ConnectionLost`, without a future between."""
        self._exchange.call(header, body, timeout=timeout, answered=answered)
        if self._expiry is None:
            self._expiry = self._loop.call_later(0.1, self._expire)

    def ask_at_once(self, header: Header | Filled, body: bytes = b"", *, timeout: float, answered: Completed) -> None:
        """Like `ask`, written before this returns: for a caller that is about to wait for nothing else."""
        self._flush_asked = True  # so that no flush is scheduled: it comes right now
        self.ask(header, body, timeout=timeout, answered=answered)
        self._flush()

    async def call(self, header: Header | Filled, body: bytes = b"", *, timeout: float) -> Response:
        """Ask and wait; waits also while the peer does not read what was written before, all within the timeout."""
        if not self._writable.is_set():
            timeout = await self.writable(header.code, timeout)
        return await self.call_soon(header, body, timeout=timeout)

    def notify(self, header: Header | Filled, body: bytes = b"") -> None:
        """Send a one-way request."""
        self._exchange.notify(header, body)

    async def writable(self, code: int, timeout: float) -> float:
        """Wait while more than a few MiB are written and not read by the peer; return how much of the timeout is left.

        `code` is that of the request in question. Raises `DeadlineExceeded`.
        """
        deadline = self._loop.time() + timeout
        try:
            async with asyncio.timeout_at(deadline):
                await self._writable.wait()
        except TimeoutError:
            text = f"{self.address} did not take request {code} within {timeout:g} s: it reads nothing"
            raise DeadlineExceeded(text) from None
        return deadline - self._loop.time()

    async def close(self) -> None:
        """Write what is ready, close, and wait for the end. A peer that does not read loses what was written."""
        if not self._exchange.closed:
            self._flush()
            self._transport.close()
            await asyncio.wait([self._lost], timeout=WRITE_SECONDS)
            self._transport.abort()
        await asyncio.wait([self._lost])
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        self._exchange = Exchange(
            self._dispatcher,
            self._clock,
            address=transport.get_extra_info("peername") or ("0.0.0.0", 0),  # none: the peer is gone already
            wake=self._ask_flush,
            run_soon=self._run_soon,
            initiator=True,
            serialization=self._serialization,
        )

    def data_received(self, data: bytes) -> None:
        try:
            self._exchange.receive(data)
        except ProtocolError as error:
            self._failure = _another_server(self._exchange.address, data)
            if self._failure is None:  # else who asks is told
                logger.warning("closing connection to %s: %s", self._exchange.address, error)
            self._transport.close()
            return
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        self._writable.set()
        self._exchange.close(str(error) if error else "closed by the server", self._failure)
        if not self._lost.done():
            self._lost.set_result(None)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _run_soon(self, *call: object) -> None:
        try:
            self._loop.call_soon_threadsafe(*call)  # type: ignore[arg-type]  # function and its arguments
        except RuntimeError:  # the answer of a listener that took longer than the loop lived
            logger.debug("an answer for %s came after the end", self._exchange.address)

    def _flush(self) -> None:
        self._flush_asked = False
        output = self._exchange.take_output()
        if output:
            self._transport.write(output[0] if len(output) == 1 else b"".join(output))

    def _ask_flush(self) -> None:
        if not self._flush_asked:
            self._flush_asked = True
            self._loop.call_soon(self._flush)

    def _expire(self) -> None:
        self._exchange.expire()
        waiting = self._exchange.waiting and not self._exchange.closed
        self._expiry = self._loop.call_later(0.1, self._expire) if waiting else None


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


async def connect(
    address: str,
    dispatcher: Dispatcher,
    clock: Clock,
    *,
    tls: ssl.SSLContext | None = None,
    serialization: int = JSON,
) -> Channel:
    """Open a connection to `host:port`. Raises `Unavailable` naming the address and why."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            transport, channel = await loop.create_connection(
                lambda: Channel(dispatcher, clock, serialization), host.strip("[]"), int(port), ssl=tls
            )
    except ConnectionRefusedError as error:
        raise Unavailable(f"{address} refuses connections: nothing listens there") from error
    except TimeoutError as error:
        raise Unavailable(f"{address} cannot be reached within {CONNECT_SECONDS:g} s") from error
    except (OSError, ValueError, OverflowError) as error:  # the last: a port beyond 65535
        raise Unavailable(f"{address} cannot be reached: {error}") from error
    if transport.get_extra_info("peername") is None:
        transport.abort()
        raise Unavailable(f"{address} closed the connection at once")
    return channel
