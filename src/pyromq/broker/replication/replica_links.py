"""The connections between the replicas of a set: accepts and dials them, and sends the log to followers.

Each replica dials each other replica, so two replicas have two connections. The log flows from the dialled replica to
the replica that dialled. This module reports events, and carries out the actions of `replica_actions`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from pyromq.broker.replication.replica_actions import Feed, Link
from pyromq.broker.replication.replica_stream import (
    HEARTBEAT_SECONDS,
    MAX_FRAME_BYTES,
    PREAMBLE,
    Frame,
    Hello,
    Message,
    Refusal,
    StreamDecoder,
    TablePiece,
    encode_message,
    frame_head,
)
from pyromq.broker.replication.tables.sent_tables import SentToFollower
from pyromq.broker.replication.trust.replica_trust import ReplicaTrust
from pyromq.errors import ProtocolError, UsageError
from pyromq.logs import logger_of
from pyromq.message import join_address
from pyromq.net.listening import listen_failure
from pyromq.net.tasks import Tasks, soon_in_this_loop
from pyromq.net.tls.failures import refused_handshake
from pyromq.net.tls.tls_config import TlsConfig
from pyromq.remoting.rejection_log import RejectionLog
from pyromq.slow_work import NotInMemory, PagesToLoad

logger = logger_of(__name__)

DIAL_SECONDS = 1.0  # longest wait for a connection: a stopped machine does not answer
HELLO_SECONDS = 5.0  # longest wait for the hello of an accepted connection
BUSY_SECONDS = 0.005  # time between two checks for new bytes of the log while messages are being stored
CATCH_UP_BYTES = 8 << 20  # a follower that lacks more bytes is catching up, at a limited rate
NO_REPLICAS = "brokenReplicationStreams"  # a reason in the `RejectionLog`
_JOINED_BYTES = 64 << 10  # limit of log bytes that are copied after the frame's header, to save a system call
_BUFFERED_BYTES = 2 << 20  # bytes in a connection's buffer at which frames wait


class FedLog(Protocol):
    """The log that is sent to followers."""

    @property
    def end(self) -> int: ...

    @property
    def confirmed_end(self) -> int: ...

    def views(self, start: int, most: int) -> memoryview:
        """Return bytes of the log from `start` on; no bytes if retention has deleted them."""
        ...


class FedTables(Protocol):
    """The tables that are sent to followers, between the frames."""

    def fed(self, replica: int) -> None: ...

    def due(self, sent: SentToFollower, end: int, *, is_near: bool, now: float) -> list[TablePiece]: ...


class LinkEvents(Protocol):
    """The callbacks for events of links. All methods are called in the event loop."""

    def link_opened(self, number: int) -> None: ...

    def link_refused(self, number: int) -> None: ...

    def link_lost(self, link: Link) -> None: ...

    def received(self, link: Link, messages: list[Message]) -> None: ...


class ReplicaConnection(asyncio.Protocol):
    """One connection with another replica. `link` is None until an accepted connection has sent its hello."""

    transport: asyncio.Transport

    def __init__(self, links: ReplicaLinks, link: Link | None) -> None:
        self.link = link
        self.is_closed = False
        self.feed: Feed | None = None
        self.sent_to = 0  # log offset up to which frames were written
        self.sent_confirmed = 0  # confirmed end in the last frame
        self.written_at = 0.0
        self.is_full = False  # whether the connection's buffer has reached its limit
        self.sent_tables = SentToFollower()
        self.hello: Hello | None = None  # the last hello that was accepted
        self.loading: Future[None] | None = None  # loads pages of the log that are not resident
        self._links = links
        self._decoder = StreamDecoder()

    @property
    def address(self) -> str:
        return join_address(*self.transport.get_extra_info("peername")[:2])

    @property
    def is_ready(self) -> bool:
        """Whether frames may be written now."""
        return not self.is_full and (self.loading is None or self.loading.done())

    def write(self, *pieces: bytes | memoryview) -> None:
        for piece in pieces:
            self.transport.write(piece)
        self.written_at = self._links.now()

    def abort(self) -> None:
        """Close without calling `LinkEvents`, and drop unsent bytes, as a crash of this process does."""
        self.is_closed = True
        self.transport.abort()

    def close(self, reason: str = "") -> None:
        """Close without calling `LinkEvents`, after sending the written bytes."""
        if not self.is_closed:
            self.is_closed = True
            if reason:
                self.transport.write(encode_message(Refusal(reason)))
            self.transport.close()

    # -- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=_BUFFERED_BYTES)
        transport.write(PREAMBLE)
        self._links.opened(self)

    def data_received(self, data: bytes) -> None:
        if self.is_closed:
            return
        try:
            messages = self._decoder.feed(data)
        except ProtocolError as error:
            self._links.broken(self, str(error))
            return
        if messages:
            self._links.received(self, messages)

    def connection_lost(self, error: Exception | None) -> None:
        self._links.lost(self)

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False
        self._links.wake()


class ReplicaLinks:
    """All connections of one replica with the others of its set."""

    def __init__(
        self,
        events: LinkEvents,
        *,
        now: Callable[[], float],
        promised: Callable[[], int],
        load: Callable[[PagesToLoad], Future[None]],
        trust: ReplicaTrust,
        rejections: RejectionLog,
        catch_up_bytes_per_second: int,
    ) -> None:
        self.now = now
        self.log: FedLog | None = None  # the log that is sent; None while the store is closed
        self.tables: FedTables | None = None  # the tables that are sent with the log
        self._events = events
        self._promised = promised
        self._load = load
        self._trust = trust
        self._rejections = rejections
        self._rate = catch_up_bytes_per_second
        self._allowance = 0.0  # bytes that may be sent now to followers that catch up
        self._counted_at = 0.0
        self._tasks = Tasks()
        self._listener: asyncio.Server | None = None
        self._unknown: set[ReplicaConnection] = set()  # accepted, without a hello
        self._connections: dict[Link, ReplicaConnection] = {}
        self._failures: dict[int, str] = {}  # why TLS with each replica failed the last time
        self._is_woken = False
        self._looks_again = False  # whether a check for new bytes is scheduled within `BUSY_SECONDS`

    async def start(self, host: str, port: int) -> int:
        """Listen for other replicas; return the port. Raises `UsageError` if the port cannot be opened."""
        loop = asyncio.get_running_loop()
        try:
            tls = self._trust.server_tls
            self._listener = await loop.create_server(
                lambda: ReplicaConnection(self, None),
                host,
                port,
                ssl=None if tls is None else tls.renewing(),
                ssl_handshake_timeout=None if tls is None else HELLO_SECONDS,
            )
        except (OSError, OverflowError, UnicodeError) as error:
            raise UsageError(f"{listen_failure(host, port, error)}; replicas use this port (haListenPort)") from error
        return int(self._listener.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        self.stop_listening()
        await self._tasks.stop()
        self.close_all()

    def stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()

    def close_all(self, *, drop_unsent: bool = False) -> None:
        """Close all links without calling `LinkEvents`. Until `log` is set again, accepted links only wait.

        With `drop_unsent` the links break as in a crash of this process.
        """
        self.log = None
        for connection in [*self._connections.values(), *self._unknown]:
            connection.abort() if drop_unsent else connection.close()
        self._connections.clear()
        self._unknown.clear()

    @property
    def waiting(self) -> list[tuple[Link, Hello]]:
        """Return the accepted links with their last hello. A new `Replica` must answer the hellos."""
        accepted = [(link, each.hello) for link, each in self._connections.items() if not link.is_ours]
        return [(link, hello) for link, hello in accepted if hello is not None]

    @property
    def fed(self) -> dict[int, int]:
        """Number of each follower to which the log is sent, and the log offset up to which it was sent."""
        return {link.number: each.sent_to for link, each in self._connections.items() if each.feed is not None}

    def is_open(self, link: Link) -> bool:
        return link in self._connections

    # -- actions

    def dial(self, number: int, address: str, main_address: str) -> None:
        """Connect to a replica. The result calls `link_opened`, `link_refused` or `link_lost` of `LinkEvents`."""
        self._tasks.start(self._dial(number, address, main_address), name=f"dial replica {number}")

    def send(self, link: Link, message: Message) -> None:
        """Send a message on a link, a hello with a signature. Does nothing if the link is closed."""
        if isinstance(message, Hello):
            message = self._trust.sign(message)
        connection = self._connections.get(link)
        if connection is not None:
            connection.write(encode_message(message))

    def close(self, link: Link, reason: str) -> None:
        connection = self._connections.pop(link, None)
        if connection is not None:
            connection.close(reason)

    def begin_feed(self, feed: Feed) -> None:
        connection = self._connections.get(Link(feed.number, False))
        if connection is not None:
            connection.feed, connection.sent_to = feed, feed.start
            connection.sent_tables = SentToFollower()
            if self.tables is not None:
                self.tables.fed(feed.number)
            self.wake()

    def wake(self) -> None:
        """Send new bytes of the log in the next turn of the event loop."""
        if not self._is_woken:
            self._is_woken = True
            asyncio.get_running_loop().call_soon(self._feed_all)

    def tick(self) -> None:
        """Send heartbeats and new bytes of the log, and close accepted connections that have sent no hello in time."""
        now = self.now()
        passed, self._counted_at = now - self._counted_at, now
        self._allowance = min(self._allowance + passed * self._rate, self._rate * 0.1)
        self._feed_all()
        for link, connection in self._connections.items():
            if not link.is_ours and self.log is not None and now - connection.written_at >= HEARTBEAT_SECONDS:
                self._beat(connection, self.log)
        for connection in [each for each in self._unknown if now - each.written_at > HELLO_SECONDS]:
            self.broken(connection, "no hello")

    # -- the log

    def _beat(self, connection: ReplicaConnection, log: FedLog) -> None:
        epoch = self._promised() if connection.feed is None else connection.feed.epoch
        connection.write(encode_message(Frame(epoch, log.end, log.confirmed_end, b"")))
        connection.sent_confirmed = log.confirmed_end

    def _feed_all(self) -> None:
        self._is_woken = False
        log = self.log
        if log is None:
            return
        is_busy = False
        for connection in list(self._connections.values()):
            if connection.feed is not None:
                is_busy = self._feed(connection, log) or is_busy
        if is_busy and not self._looks_again:
            self._looks_again = True
            asyncio.get_running_loop().call_later(BUSY_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._looks_again = False
        self.wake()

    def _feed(self, connection: ReplicaConnection, log: FedLog) -> bool:
        """Write the next frame of the log to a follower. Return whether anything was written."""
        feed, start = connection.feed, connection.sent_to
        assert feed is not None
        if connection.is_closed or not connection.is_ready:
            return False
        lack = log.end - start
        self._send_tables(connection, log, is_near=lack <= CATCH_UP_BYTES)
        confirmed = log.confirmed_end
        if lack <= 0:
            if confirmed > connection.sent_confirmed:
                self._beat(connection, log)
                return True
            return False
        most = MAX_FRAME_BYTES
        if lack > CATCH_UP_BYTES:
            if self._allowance < 1:
                return False
            most = min(most, max(int(self._allowance), _JOINED_BYTES))
        try:
            view = log.views(start, most)
        except NotInMemory as missing:
            run_soon = soon_in_this_loop()
            connection.loading = self._load(missing.to_load)
            connection.loading.add_done_callback(lambda _: run_soon(self.wake))
            return False
        if not view:  # the follower connects again, learns where the log begins now, and empties its own
            connection.close(f"the log from {start} on is deleted here")
            self.lost(connection, told=False)
            return False
        if lack > CATCH_UP_BYTES:
            self._allowance -= len(view)
        head = frame_head(Frame(feed.epoch, start, confirmed, b""), len(view))
        connection.sent_to, connection.sent_confirmed = start + len(view), confirmed
        if len(view) <= _JOINED_BYTES:
            connection.write(head + bytes(view))
        else:
            connection.write(head, view)
        if connection.sent_to < log.end:
            self.wake()
        return True

    def _send_tables(self, connection: ReplicaConnection, log: FedLog, *, is_near: bool) -> None:
        """Send the tables that have changed, before the records that were appended since."""
        if self.tables is None:
            return
        pieces = self.tables.due(connection.sent_tables, log.end, is_near=is_near, now=self.now())
        if pieces and log.confirmed_end > connection.sent_confirmed:
            self._beat(connection, log)  # first the confirmed end: a follower lowers consumer offsets to it
        for piece in pieces:
            connection.write(encode_message(piece))

    # -- connections

    async def _dial(self, number: int, address: str, main_address: str) -> None:
        link = Link(number, True)
        connection = ReplicaConnection(self, link)
        try:
            await self._connect(connection, address, tls=self._trust.client_tls)
        except ConnectionRefusedError:
            if await self._is_refused(main_address):
                self._events.link_refused(number)
            else:
                self._events.link_lost(link)
        except (OSError, TimeoutError, UsageError) as error:
            self._log_failure(number, address, error)
            self._events.link_lost(link)

    def _log_failure(self, number: int, address: str, error: Exception) -> None:
        """Log why TLS with a replica failed, once for each reason. Without TLS a failure needs no explanation."""
        tls = self._trust.client_tls
        if tls is None or isinstance(error, TimeoutError):
            return
        reason = str(error) if isinstance(error, UsageError) else refused_handshake(error, tls)
        if self._failures.get(number) != reason:
            self._failures[number] = reason
            logger.error("no connection with replica %d at %s: %s", number, address, reason)

    async def _connect(self, protocol: asyncio.Protocol, address: str, *, tls: TlsConfig | None = None) -> None:
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        context, name = (None, None) if tls is None else (tls.context(), tls.server_name)
        async with asyncio.timeout(DIAL_SECONDS):
            await loop.create_connection(
                lambda: protocol, host.strip("[]"), int(port), ssl=context, server_hostname=name
            )

    async def _is_refused(self, address: str) -> bool:
        """Return whether the machine at an address refuses connections to the port: no process listens there."""
        probe = _Probe()
        try:
            await self._connect(probe, address)
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            return False
        return False

    def opened(self, connection: ReplicaConnection) -> None:
        connection.written_at = self.now()
        if connection.link is None:
            self._unknown.add(connection)
        elif self.log is None:  # dialled for a `Replica` that has ended; the next `Replica` dials again
            connection.close()
        else:
            self._connections[connection.link] = connection
            self._events.link_opened(connection.link.number)

    def received(self, connection: ReplicaConnection, messages: list[Message]) -> None:
        if (fault := self._fault(connection, messages)) is not None:
            self.broken(connection, fault)
            return
        link = connection.link
        if link is None:
            hello = messages[0]
            assert isinstance(hello, Hello)
            link = connection.link = Link(hello.number, False)
            self._unknown.discard(connection)
            if (earlier := self._connections.get(link)) is not None:
                earlier.close("the replica has connected again")
                self._events.link_lost(link)
            self._connections[link] = connection
        self._events.received(link, messages)

    def _fault(self, connection: ReplicaConnection, messages: list[Message]) -> str | None:
        """Return why the messages are not trusted; None if they are. A hello must come first, and hellos be signed."""
        for message in messages:
            if isinstance(message, Hello):
                if (fault := self._trust.fault(message)) is not None:
                    return fault
                connection.hello = message
            elif connection.hello is None and not isinstance(message, Refusal):
                return f"it begins with {type(message).__name__}, not with a hello"
        if connection.link is None and not isinstance(messages[0], Hello):
            return f"it begins with {type(messages[0]).__name__}, not with a hello"
        return None

    def broken(self, connection: ReplicaConnection, reason: str) -> None:
        """Close a connection whose peer violates the protocol. The peer may come back twice a second."""
        host = connection.address.rpartition(":")[0]
        self._rejections.note(NO_REPLICAS, host, "connection of a replica at %s is closed: %s", host, reason)
        connection.close(reason)
        self.lost(connection, told=False)

    def lost(self, connection: ReplicaConnection, *, told: bool = True) -> None:
        """Remove a lost connection, and call `link_lost` unless this replica had closed the connection."""
        self._unknown.discard(connection)
        link = connection.link
        if link is not None and self._connections.get(link) is connection:
            del self._connections[link]
            if not (told and connection.is_closed):
                self._events.link_lost(link)


class _Probe(asyncio.Protocol):
    """Closes a connection that only tests whether a port is open."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()
