"""The server's side of TLS over a transport of asyncio or of the compiled reactor.

asyncio's own TLS keeps 256 KiB per connection and sends no reason to the peer if a handshake fails.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, cast

_READ_BYTES = 1 << 16  # limit of bytes decrypted in one step; a TLS record has at most 16 KiB


class TlsTransport(asyncio.Transport):
    """The transport of the protocol above TLS. Has the methods of `asyncio.Transport` that connections use."""

    def __init__(self, layer: TlsLayer, lower: asyncio.Transport) -> None:
        super().__init__()
        self._layer: TlsLayer | None = layer
        self._lower = lower
        self._is_closing = False

    def release(self) -> None:
        """Drop the reference to the TLS layer: the connection has closed."""
        self._layer = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            return self._layer.tls if self._layer is not None else default
        return self._lower.get_extra_info(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if data and not self._is_closing and self._layer is not None:
            try:
                self._layer.tls.write(data)
            except ssl.SSLError:  # the peer has sent invalid TLS records
                self.abort()
            else:
                self._layer.send()

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        """Send the remaining bytes and the close notification of TLS, then close the connection."""
        if not self._is_closing:
            self._is_closing = True
            if self._layer is not None:
                self._layer.send_close_notify()
            self._lower.close()

    def abort(self) -> None:
        self._is_closing = True
        self._lower.abort()

    def is_closing(self) -> bool:
        return self._is_closing or self._lower.is_closing()

    def is_reading(self) -> bool:
        return self._lower.is_reading()

    def pause_reading(self) -> None:
        self._lower.pause_reading()

    def resume_reading(self) -> None:
        self._lower.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._lower.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._lower.get_write_buffer_size()


class TlsLayer(asyncio.Protocol):
    """TLS of one connection from the handshake on. `factory` makes the protocol above TLS after the handshake.

    `on_handshake` is called once: with None after the handshake, or with the reason why the handshake failed.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        factory: Callable[[], asyncio.Protocol],
        on_handshake: Callable[[str | None], None],
    ) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._factory = factory
        self._on_handshake: Callable[[str | None], None] | None = on_handshake
        self._upper: asyncio.Protocol | None = None
        self._transport: TlsTransport | None = None
        # The connection's transport; None before the connection is made and after it is lost.
        self._lower: asyncio.Transport | None = None
        self._is_aborted = False

    def abort(self) -> None:
        """Abort the connection immediately, or as soon as the connection exists."""
        self._is_aborted = True
        if self._lower is not None:
            self._lower.abort()

    def send(self) -> None:
        """Write the encrypted bytes to the connection."""
        if self._lower is not None and self._outgoing.pending:
            self._lower.write(self._outgoing.read())

    def send_close_notify(self) -> None:
        """Send the close notification of TLS; the peer's notification is not awaited."""
        try:
            self.tls.unwrap()
        except ssl.SSLError:
            pass
        self.send()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._lower = cast(asyncio.Transport, transport)
        if self._is_aborted:
            self._lower.abort()

    def data_received(self, data: bytes) -> None:
        lower = self._lower
        if lower is None:
            return
        self._incoming.write(data)
        if self._upper is None:
            self._shake(lower)
        if self._upper is not None and not lower.is_closing():  # the protocol above may refuse the connection
            self._deliver(self._upper, lower)

    def eof_received(self) -> bool | None:
        return self._upper.eof_received() if self._upper is not None else None

    def pause_writing(self) -> None:
        if self._upper is not None:
            self._upper.pause_writing()

    def resume_writing(self) -> None:
        if self._upper is not None:
            self._upper.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        if self._lower is not None:
            release_transport(self._lower)
        upper, self._upper, self._lower = self._upper, None, None
        if self._transport is not None:
            self._transport.release()
        del self.tls, self._incoming, self._outgoing  # frees much memory immediately, without the garbage collector
        if upper is not None:
            upper.connection_lost(error)
        self._report(str(error) if error else "closed by the peer")

    def _shake(self, lower: asyncio.Transport) -> None:
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            self.send()
        except ssl.SSLError as error:
            self.send()  # sends an alert with the reason
            self._report(error.reason or str(error))
            lower.close()
        else:
            self.send()
            self._upper = self._factory()
            self._transport = TlsTransport(self, lower)
            self._upper.connection_made(self._transport)
            self._report(None)

    def _deliver(self, upper: asyncio.Protocol, lower: asyncio.Transport) -> None:
        parts = []
        is_over = False
        try:
            while part := self.tls.read(_READ_BYTES):
                parts.append(part)
            is_over = True  # the peer has sent its close notification
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:  # the peer sent invalid TLS records
            is_over = True
        self.send()  # TLS may have produced records itself
        if parts:
            upper.data_received(b"".join(parts) if len(parts) > 1 else parts[0])
        if is_over and not upper.eof_received():
            lower.close()

    def _report(self, failure: str | None) -> None:
        on_handshake, self._on_handshake = self._on_handshake, None
        if on_handshake is not None:
            on_handshake(failure)


def release_transport(transport: asyncio.BaseTransport) -> None:
    """Free an ended transport of asyncio without the garbage collector: drop the reference to its own method."""
    getattr(transport, "__dict__", {}).pop("_read_ready_cb", None)


def limit_reads(transport: asyncio.BaseTransport, size: int) -> None:
    """Let a transport of asyncio read at most `size` bytes at once, instead of 256 KiB; other transports stay."""
    if hasattr(transport, "max_size"):
        transport.max_size = size
