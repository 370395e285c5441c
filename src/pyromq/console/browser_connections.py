"""Limits the connections of browsers: their number, and the time for which the console waits for a browser.

A connection waits for its browser until the head of a request is complete, while a body arrives, while a response is
unread, and between two requests. A new connection at the limit closes the connection that has waited longest.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from pyromq.net.tasks import Tasks, every
from pyromq.platforms import platform
from pyromq.remoting.rejection_log import UNREADABLE

if TYPE_CHECKING:
    from socket import socket

    from pyromq.console.console import Console

MAX_CONNECTIONS = 1000  # limit of open connections: far more than the browser windows of one team
WAIT_SECONDS = 30.0  # longest wait for a TLS handshake, a request's head, or a piece of a body or response
PIECE_BYTES = 64 << 10  # part of a body or response that a browser must transfer within WAIT_SECONDS
SWEEP_SECONDS = 1.0  # between two searches for connections that have waited too long

SLOW, TOO_MANY = "slowConnections", "tooManyConnections"  # reasons in metrics, in addition to those of `refusals`


class BrowserConnections:
    """The open connections of browsers to one console, at most `most`. `take` serves accepted sockets."""

    def __init__(self, server: uvicorn.Server, console: Console, *, most: int | None = None) -> None:
        self._server = server
        self._clock = console.clock
        self._refusals = console.refusals
        self._most = most if most is not None else _max_connections()
        self._open: set[HttpConnection] = set()
        self._waiting: dict[HttpConnection, float] = {}  # monotonic seconds at which each wait began, oldest first
        self._tasks = Tasks()

    def start(self) -> None:
        """Start closing connections that wait too long."""
        self._tasks.start(every(SWEEP_SECONDS, self._close_slow, self._clock), name="close slow connections")

    async def close(self) -> None:
        """Close every connection immediately; unwritten bytes are dropped."""
        for connection in list(self._open):
            connection.cut()
        await self._tasks.stop()

    def take(self, accepted: socket) -> None:
        """Serve an accepted socket.

        At the limit, close the connection that has waited longest for its browser; if none waits, close the new one.
        """
        if len(self._open) >= self._most:
            oldest = next(iter(self._waiting), None)
            self._refuse(TOO_MANY, oldest, f"closing a connection of %s: {self._most} are open, the limit")
            if oldest is None:
                accepted.close()
                return
            oldest.cut()
        server = self._server
        connection = HttpConnection(server.config, server.server_state, server.lifespan.state)
        connection.owner = self
        self._open.add(connection)
        self.note(connection)
        connection.opening = self._tasks.start(self._serve(connection, accepted), name="open a connection")
        connection.opening.add_done_callback(lambda _: self._opened(connection, accepted))

    def note(self, connection: HttpConnection, *, is_progress: bool = False) -> None:
        """Record whether a connection waits for its browser. Progress restarts the time of the wait."""
        if is_progress or not connection.is_waiting:
            self._waiting.pop(connection, None)
        if connection.is_waiting and connection in self._open:
            self._waiting.setdefault(connection, self._clock.monotonic())

    def lost(self, connection: HttpConnection) -> None:
        """Remove a connection that has ended."""
        self._open.discard(connection)
        self._waiting.pop(connection, None)

    def refuse_unreadable(self, connection: HttpConnection) -> None:
        """Count and log a request that is not HTTP."""
        self._refuse(UNREADABLE, connection, "a request of %s is not HTTP")

    async def _serve(self, connection: HttpConnection, accepted: socket) -> None:
        tls = self._server.config.ssl
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, accepted, ssl=tls)
        except OSError:
            pass  # the TLS handshake failed: the browser left, or used another protocol

    def _opened(self, connection: HttpConnection, accepted: socket) -> None:
        if connection.transport is None:
            self.lost(connection)
            accepted.close()

    def _close_slow(self) -> None:
        longest = self._clock.monotonic() - WAIT_SECONDS
        for connection, since in list(self._waiting.items()):
            if since > longest:
                break
            self._refuse(
                SLOW, connection, f"closing a connection of %s: it sent or read nothing for {WAIT_SECONDS:g} s"
            )
            connection.cut()

    def _refuse(self, reason: str, connection: HttpConnection | None, text: str) -> None:
        client = connection.client if connection is not None else None
        address = client[0] if client is not None else "a stranger"
        self._refusals.note(reason, address, text, address)


class HttpConnection(H11Protocol):
    """A browser's connection that uvicorn serves.

    The connection reports to `BrowserConnections` when it waits for its browser.
    """

    owner: BrowserConnections
    opening: asyncio.Task[None]
    _piece = 0  # bytes of a body received since the last progress

    @property
    def is_waiting(self) -> bool:
        """Whether the browser must act next, and not the console."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body or self.flow.write_paused

    def cut(self) -> None:
        """Close the connection immediately; unwritten bytes are dropped."""
        self.owner.lost(self)
        if self.transport is None:
            self.opening.cancel()
        else:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.owner.lost(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:  # bytes after a response are no progress
            self._piece += len(data)
        is_progress = self.cycle is not before or self._piece >= PIECE_BYTES
        if is_progress:
            self._piece = 0
        self.owner.note(self, is_progress=is_progress)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.owner.note(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.owner.note(self, is_progress=True)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.owner.note(self)

    def send_400_response(self, msg: str) -> None:
        self.owner.refuse_unreadable(self)
        super().send_400_response(msg)


def _max_connections() -> int:
    """Return the limit of browsers' connections: half of the process's file descriptors.

    The other half stays free for files and brokers.
    """
    return min(MAX_CONNECTIONS, platform.descriptor_limit() // 2)
