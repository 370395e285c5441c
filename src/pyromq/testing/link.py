"""A TCP relay between clients and one server, which a test pauses, slows and cuts.

The relay does not parse frames.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Self

from pyromq.clock import Clock, SystemClock
from pyromq.net.listening import all_accepted, stop_listening
from pyromq.net.tasks import Tasks, shared

PIECE_BYTES = 1 << 16


class Way:
    """One direction of a link (a TCP relay), for all connections of the link.

    `delay_seconds` delays each piece of bytes; `passed_bytes` counts the forwarded bytes.
    """

    def __init__(self, clock: Clock) -> None:
        self.delay_seconds = 0.0
        self.passed_bytes = 0
        self._clock = clock
        self._is_open = asyncio.Event()
        self._is_open.set()

    def pause(self) -> None:
        """Hold all bytes and ends of connections from now on. Nothing is lost."""
        self._is_open.clear()

    def resume(self) -> None:
        """Forward the held bytes."""
        self._is_open.set()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward the bytes of one connection until the sender closes the connection."""
        while data := await reader.read(PIECE_BYTES):
            if self.delay_seconds:
                await self._clock.sleep(self.delay_seconds)
            await self._is_open.wait()
            writer.write(data)
            self.passed_bytes += len(data)
            await writer.drain()
        await self._is_open.wait()


class Link:
    """A TCP relay that clients connect to instead of a server, an async context manager.

        async with Link(cluster.namesrv) as link, AsyncProducer("group", link.address) as producer:
            link.answers.pause()

    `requests` is the direction to the server, `answers` to the clients. `Cluster(linked=True)` has a link before each
    broker.
    """

    def __init__(self, server: str, *, host: str = "127.0.0.1", port: int = 0, clock: Clock | None = None) -> None:
        self.host = host
        self.port = port
        clock = clock or SystemClock()
        self.requests = Way(clock)
        self.answers = Way(clock)
        self._server = server
        self._listener: asyncio.Server | None = None
        # For each forwarding task, the client's side of the connection.
        self._relays: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._tasks = Tasks()

    @property
    def address(self) -> str:
        """The address that clients connect to, `host:port`."""
        return f"{self.host}:{self.port}"

    @property
    def connections(self) -> int:
        """The number of connections, including connections that the link is opening to the server."""
        return len(self._relays)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def pause(self) -> None:
        """Hold the bytes of both directions. Connections stay open, and nothing is lost."""
        self.requests.pause()
        self.answers.pause()

    def resume(self) -> None:
        """Forward the held bytes of both directions."""
        self.requests.resume()
        self.answers.resume()

    def cut(self) -> None:
        """Break every connection; held bytes are lost. New connections are still accepted."""
        for relay in self._relays:
            relay.cancel()

    async def open(self) -> None:
        """Accept connections. After `close`, the link opens at the same address."""
        self._listener = await asyncio.start_server(self._accept, self.host, self.port)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Break every connection and refuse new ones."""
        if self._listener is not None:
            listener, self._listener = self._listener, None
            stop_listening(listener)
            await all_accepted()
            accepted = list(self._relays.values())
            await self._tasks.stop()
            await _abort(accepted)
            await listener.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relay = self._tasks.start(self._relay(reader, writer), name=f"link to {self._server}")
        self._relays[relay] = writer
        relay.add_done_callback(self._ended)

    def _ended(self, relay: asyncio.Task[None]) -> None:
        self._relays.pop(relay).transport.abort()  # a task that was cancelled before its start has closed nothing

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        try:
            host, _, port = self._server.rpartition(":")
            server_reader, server_writer = await asyncio.open_connection(host.strip("[]"), int(port))
            ends.append(server_writer)
            await _first_of(self.requests.carry(reader, server_writer), self.answers.carry(server_reader, writer))
            for end in ends:
                end.close()
                await _closed(end)
        except OSError:  # one side is closed, so the other is closed too
            pass
        finally:
            await _abort(ends)


async def _first_of(*ways: Coroutine[Any, Any, None]) -> None:
    """Run the coroutines until the first one ends, cancel the others, and raise the exception of the first."""
    running = [asyncio.ensure_future(way) for way in ways]
    try:
        ended, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _abort(ends: list[asyncio.StreamWriter]) -> None:
    for end in ends:
        end.transport.abort()
    for end in ends:
        with suppress(OSError):
            await _closed(end)


async def _closed(end: asyncio.StreamWriter) -> None:
    """Wait until the transport is closed.

    All callers share one future, so a cancelled caller must not cancel the future.
    """
    await shared(asyncio.ensure_future(end.wait_closed()))
