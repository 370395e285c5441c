"""The server's side of TLS over a transport of either kind: bytes as they travel below, plain ones above.

asyncio's own keeps 256 KiB for each connection, and does not tell the peer why a handshake failed.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, cast

_READ_BYTES = 1 << 16  # decrypted at once; records have 16 KiB at most


class TlsTransport(asyncio.Transport):
    """What the upper protocol writes to: `asyncio.Transport` as far as connections use it."""

    def __init__(self, layer: TlsLayer, lower: asyncio.Transport) -> None:
        super().__init__()
        self._layer: TlsLayer | None = layer
        self._lower = lower
        self._is_closing = False

    def forget(self) -> None:
        """The connection is gone."""
        self._layer = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            return self._layer.tls if self._layer is not None else default
        return self._lower.get_extra_info(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if data and not self._is_closing and self._layer is not None:
            self._layer.tls.write(data)
            self._layer.send()

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        """Send what there is, say that nothing follows, end."""
        if not self._is_closing:
            self._is_closing = True
            if self._layer is not None:
                self._layer.say_farewell()
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
    """One connection from its handshake on. `factory` makes the protocol above when the handshake is done.

    `shaken` is called once: with None then, or with why there was none.
    """

    def __init__(
        self, context: ssl.SSLContext, factory: Callable[[], asyncio.Protocol], shaken: Callable[[str | None], None]
    ) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._factory = factory
        self._shaken: Callable[[str | None], None] | None = shaken
        self._upper: asyncio.Protocol | None = None
        self._transport: TlsTransport | None = None
        self._lower: asyncio.Transport | None = None  # not yet, or no more
        self._is_aborted = False

    def abort(self) -> None:
        """End at once, or as soon as it begins."""
        self._is_aborted = True
        if self._lower is not None:
            self._lower.abort()

    def send(self) -> None:
        """Hand on what is encrypted."""
        if self._lower is not None and self._outgoing.pending:
            self._lower.write(self._outgoing.read())

    def say_farewell(self) -> None:
        """Tell the peer that nothing follows; its own farewell is not waited for."""
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
        if self._upper is not None and not lower.is_closing():  # who is one too many is cut when its protocol is made
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
            self._transport.forget()
        del self.tls, self._incoming, self._outgoing  # at once, and not when the collector finds them: they are much
        if upper is not None:
            upper.connection_lost(error)
        self._tell(str(error) if error else "closed by the peer")

    def _shake(self, lower: asyncio.Transport) -> None:
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            self.send()
        except ssl.SSLError as error:
            self.send()  # an alert says what is wrong
            self._tell(error.reason or str(error))
            lower.close()
        else:
            self.send()
            self._upper = self._factory()
            self._transport = TlsTransport(self, lower)
            self._upper.connection_made(self._transport)
            self._tell(None)

    def _deliver(self, upper: asyncio.Protocol, lower: asyncio.Transport) -> None:
        parts = []
        is_over = False
        try:
            while part := self.tls.read(_READ_BYTES):
                parts.append(part)
            is_over = True  # the peer says that nothing follows
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:  # garbled
            is_over = True
        self.send()  # TLS itself may have something to say
        if parts:
            upper.data_received(b"".join(parts) if len(parts) > 1 else parts[0])
        if is_over and not upper.eof_received():
            lower.close()

    def _tell(self, failure: str | None) -> None:
        shaken, self._shaken = self._shaken, None
        if shaken is not None:
            shaken(failure)


def release_transport(transport: asyncio.BaseTransport) -> None:
    """Let an ended transport go at once: asyncio's keeps a method of its own, and would stay until it is collected."""
    getattr(transport, "__dict__", {}).pop("_read_ready_cb", None)
