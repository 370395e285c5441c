"""The master's side of the HA stream: sends the commit log to slaves, and receives their reports.

In each turn of the event loop, one task writes memory views of the log to all sockets, without copying bytes.
Different from RocketMQ: a report counts only for its own connection, an impossible report closes the connection, and
only allowed addresses get the log. Source: RocketMQ 4.9.7, HAService and HAConnection.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future

from pyromq.broker.replication.ha.ha_config import HaConfig
from pyromq.broker.replication.ha.ha_stream import REPORT_BYTES, ReportReader, encode_frame_header
from pyromq.clock import Clock
from pyromq.logs import logger_of
from pyromq.net.listening import HandingListener, open_port, stop_listening
from pyromq.net.tasks import Alarm, Tasks, soon_in_this_loop
from pyromq.slow_work import MAX_ROUNDS, NotInMemory, PagesToLoad
from pyromq.store.message_store import MessageStore

logger = logger_of(__name__)

WAKE_SECONDS = 0.1  # time between two checks for new bytes of the log: as upstream's HAConnection
BUSY_WAKE_SECONDS = 0.005  # time between two checks while messages are being stored
TURN_BYTES = 1 << 20  # limit of bytes for one slave in one turn of the event loop: less than a millisecond
MAX_FRAMES = 256  # limit of frames in one write: half of the kernel's limit of pieces in one call
MAX_PEERS = 100  # limit of connections, because an unknown address costs a request to a name server
_READ_BYTES = 4096  # bytes per read: up to 512 reports, of which only the last one counts

Piece = bytes | memoryview


class HaConnection:
    """The connection of one slave. `sent_to` is None until the first report; before it, no bytes are sent."""

    def __init__(self, peer: socket.socket, address: str, now: float) -> None:
        self.address = address
        self.peer = peer
        self.reports = ReportReader()
        self.reported = 0  # log offset up to which the slave has stored the log
        self.sent_to: int | None = None
        self.unsent: list[Piece] = []  # bytes that the full socket did not accept
        self.loading: Future[None] | None = None  # loads pages of the log that are not resident
        self.loads = 0  # loads since bytes were last sent
        self.heard_at = self.written_at = now  # monotonic seconds

    @property
    def host(self) -> str:
        return host_of(self.address)

    @property
    def is_ready(self) -> bool:
        """Whether bytes may be written now."""
        return not self.unsent and (self.loading is None or self.loading.done())


class HaService:
    """The slaves of one master. `replicated(end)` is called when a slave has stored the log up to `end`.

    `allows(host)` returns whether slaves at an IP address may get the log. `fetch` loads pages in a thread; `step` is
    called when they are loaded. `port` is set by `start`.
    """

    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        config: HaConfig,
        *,
        replicated: Callable[[int], None],
        allows: Callable[[str], Awaitable[bool]],
        fetch: Callable[[PagesToLoad, Alarm], Future[None]],
    ) -> None:
        self.alarm = Alarm(clock)
        self.port = 0
        self._store = store
        self._clock = clock
        self._config = config
        self._replicated = replicated
        self._allows = allows
        self._fetch = fetch
        self._listener: HandingListener | None = None
        self._tasks = Tasks()
        self._connections: dict[socket.socket, HaConnection] = {}
        self._admitting = 0  # number of peers whose address is being checked
        self._warnings: dict[str, str] = {}  # host -> last warning about it; an equal warning is not repeated
        self._is_woken = False
        self._run_soon: Callable[[Callable[[], object]], object] = lambda work: None  # set by `start`

    @property
    def slaves(self) -> list[tuple[str, int]]:
        """The address of each connected slave, and the log offset up to which the slave has stored the log."""
        return [(each.address, each.reported) for each in self._connections.values()]

    async def start(self, host: str, port: int) -> None:
        """Listen for slaves. Raises `UsageError` if the port cannot be opened."""
        self._run_soon = soon_in_this_loop()
        self._listener = HandingListener(await open_port(host, port), self._accepted, reactor=None)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening. Connected slaves get the log until `close`."""
        if self._listener is not None:
            stop_listening(self._listener)
            self._listener = None
        await self._tasks.stop()

    def close(self) -> None:
        """Write the last records to the slaves, and close their connections."""
        self._send_all()
        for connection in list(self._connections.values()):
            self._close(connection)

    def has_replica(self, end: int) -> bool:
        """Return whether a connected slave may soon have the log up to `end`. Schedules sending."""
        self.wake()
        least = end - self._config.fall_behind_bytes
        return any(each.reported > least for each in self._connections.values())

    def wake(self) -> None:
        """Send new bytes of the log in the next turn of the event loop."""
        if not self._is_woken and self._connections:
            self._is_woken = True
            self._run_soon(self._send_all)

    def step(self) -> float | None:
        """Send new bytes and heartbeats, and close silent connections. Return the seconds until the next call."""
        now = self._clock.monotonic()
        for connection in list(self._connections.values()):
            if now - connection.heard_at > self._config.housekeeping_ms / 1000:
                seconds = self._config.housekeeping_ms // 1000
                self._refuse(connection, f"no report for {seconds} s (haHousekeepingInterval)")
        is_busy = self._send_all()
        for connection in self._connections.values():
            is_due = now - connection.written_at > self._config.heartbeat_ms / 1000
            if is_due and connection.is_ready and connection.sent_to is not None:
                self._write(connection, [encode_frame_header(connection.sent_to, 0)])
        if not self._connections:
            return None
        return BUSY_WAKE_SECONDS if is_busy else WAKE_SECONDS

    # -- connections

    def _accepted(self, peer: socket.socket) -> None:
        try:
            host, port = peer.getpeername()[:2]
        except OSError:  # the peer has closed the connection already
            peer.close()
            return
        if len(self._connections) + self._admitting >= MAX_PEERS:
            peer.close()
            return
        self._admitting += 1
        self._tasks.start(self._admit(peer, f"{host}:{port}"), name=f"admit slave {host}")

    async def _admit(self, peer: socket.socket, address: str) -> None:
        """Accept a slave if its address is allowed, and begin to read its reports."""
        connection = HaConnection(peer, address, self._clock.monotonic())
        try:
            allowed = await self._allows(connection.host)
        except BaseException:
            peer.close()
            raise
        finally:
            self._admitting -= 1
        if not allowed:
            peer.close()
            self._warn_once(
                connection, "the address is neither in haAllowedPeers nor registered under this broker's name"
            )
            return
        self._connections[peer] = connection
        logger.info("slave %s has connected", address)
        asyncio.get_running_loop().add_reader(peer.fileno(), self._readable, connection)
        self.alarm.schedule_within(0)

    def _close(self, connection: HaConnection) -> None:
        if self._connections.pop(connection.peer, None) is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(connection.peer.fileno())
        loop.remove_writer(connection.peer.fileno())
        connection.peer.close()
        logger.info("slave %s has left, with the log before %d", connection.address, connection.reported)

    def _refuse(self, connection: HaConnection, reason: str) -> None:
        self._warn_once(connection, reason)
        self._close(connection)

    def _warn_once(self, connection: HaConnection, reason: str) -> None:
        """Log why a slave is refused, once for each host and reason, because slaves connect again every 5 s."""
        if self._warnings.get(connection.host) != reason:
            self._warnings[connection.host] = reason
            logger.warning("the log is not sent to slave %s: %s", connection.address, reason)

    # -- reports

    def _readable(self, connection: HaConnection) -> None:
        try:
            received = connection.peer.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self._close(connection)
            return
        connection.heard_at = self._clock.monotonic()
        report = connection.reports.read(received)
        if report is not None:
            self._reported(connection, report)

    def _reported(self, connection: HaConnection, report: int) -> None:
        limit = self._store.max_log_offset if connection.sent_to is None else connection.sent_to
        if not 0 <= report <= limit:
            self._refuse(connection, _beyond(report, limit, is_first=connection.sent_to is None))
            return
        if connection.sent_to is None:
            begin = self._begin(report)
            if begin < self._store.min_log_offset:
                self._refuse(connection, self._behind(begin))
                return
            connection.sent_to = begin
            logger.info("the log is sent to slave %s from %d on", connection.address, begin)
            self.alarm.schedule_within(0)
        elif report > connection.reported:
            self._warnings.pop(connection.host, None)
        connection.reported = report
        self._replicated(report)

    def _begin(self, report: int) -> int:
        """Return the log offset at which a slave begins: its reported end; an empty slave begins at the last file."""
        end = self._store.max_log_offset
        return report or max(end - end % self._store.config.segment_bytes, self._store.min_log_offset)

    def _behind(self, offset: int) -> str:
        return (
            f"it lacks the bytes from log offset {offset} on, and the log here begins at {self._store.min_log_offset}."
            " Empty the slave's data folder (storePathRootDir), and start the slave again"
        )

    # -- bytes

    def _send_all(self) -> bool:
        """Write to each slave the bytes that it lacks. Return whether any bytes were written."""
        self._is_woken = False
        written = False
        for connection in list(self._connections.values()):
            written = self._send(connection) or written
        return written

    def _send(self, connection: HaConnection) -> bool:
        start = connection.sent_to
        if start is None or not connection.is_ready or start >= self._store.confirmed_end:
            return False
        if start < self._store.min_log_offset:
            self._refuse(connection, self._behind(start))
            return False
        batch = self._config.batch_bytes
        try:
            view = self._store.views(start, min(TURN_BYTES, batch * MAX_FRAMES, self._store.confirmed_end - start))
        except NotInMemory as lack:
            self._load(connection, lack.to_load)
            return False
        if not view:
            return False
        connection.loads = 0
        pieces: list[Piece] = []
        for position in range(0, len(view), batch):
            part = view[position : position + batch]
            pieces += (encode_frame_header(start + position, len(part)), part)
        connection.sent_to = start + len(view)
        if not self._write(connection, pieces):
            return False
        if connection.sent_to < self._store.confirmed_end:
            self.wake()
        return True

    def _load(self, connection: HaConnection, pages: PagesToLoad) -> None:
        connection.loads += 1
        if connection.loads > MAX_ROUNDS:
            place = f"{pages[0].path} at byte {pages[0].position}"
            self._refuse(connection, f"{place} cannot be read from the disk: look for its errors in the kernel's log")
        else:
            connection.loading = self._fetch(pages, self.alarm)

    def _write(self, connection: HaConnection, pieces: Sequence[Piece]) -> bool:
        """Write pieces, and keep the bytes that the socket does not accept. Return False if the connection closed."""
        try:
            sent = connection.peer.sendmsg(pieces)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._close(connection)
            return False
        loop = asyncio.get_running_loop()
        rest = _rest(pieces, sent)
        if rest and not connection.unsent:
            loop.add_writer(connection.peer.fileno(), self._writable, connection)
        elif connection.unsent and not rest:
            loop.remove_writer(connection.peer.fileno())
        connection.unsent = rest
        if sent:
            connection.written_at = self._clock.monotonic()
        return True

    def _writable(self, connection: HaConnection) -> None:
        if self._write(connection, connection.unsent) and not connection.unsent:
            self._send(connection)


def _rest(pieces: Sequence[Piece], sent: int) -> list[Piece]:
    """Return the pieces without their first `sent` bytes."""
    for index, piece in enumerate(pieces):
        if sent < len(piece):
            return [memoryview(piece)[sent:], *pieces[index + 1 :]]
        sent -= len(piece)
    return []


def _beyond(report: int, limit: int, *, is_first: bool) -> str:
    if report < 0:
        return f"it reports log offset {report}; its first {REPORT_BYTES} bytes are not those of a slave"
    if not is_first:
        return f"it reports log offset {report}, and was sent the log before {limit}"
    return (
        f"it reports log offset {report}, and the log here ends at {limit}: the slave has bytes that this master never"
        " had. Keep the slave's data folder (storePathRootDir) if they are needed, and start the slave with an empty"
        " one"
    )


def host_of(address: str) -> str:
    """Return the IP address of `host:port`; an IPv4 address that a dual socket shows as IPv6 is returned as IPv4."""
    return address.rpartition(":")[0].strip("[]").removeprefix("::ffff:")
