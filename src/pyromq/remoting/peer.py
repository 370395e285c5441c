"""The other side of a connection, as far as tables and processors know it; no sockets here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pyromq.errors import MQError
from pyromq.remoting.command import Response
from pyromq.remoting.header import Filled, Header

Completed = Callable[[Response | MQError], None]


class Peer(Protocol):
    """A client of a server, or the server of a client, until the connection closes."""

    address: str  # host:port
    packed_address: bytes  # as records hold it
    closed: bool
    on_close: tuple[Callable[[Peer], None], ...]  # called once, when the connection has closed

    @property
    def takes_pushes(self) -> bool:
        """Whether requests may be sent: False while the peer does not read earlier ones."""

    def call(self, header: Header | Filled, body: bytes = b"", *, timeout: float, answered: Completed) -> None:
        """Send a request; `timeout` is in seconds. `answered` is called once, with the response or the error."""

    def notify(self, header: Header | Filled, body: bytes = b"") -> None:
        """Send a one-way request; it is dropped if the connection is closed or the peer does not read."""
