"""The slave's side of the HA stream: appends the bytes of the master's log, and reports the stored log offset.

Before a slave follows a master, the slave compares the size of log files, the bounds of both logs, and its last record.
Different from RocketMQ, a slave never appends to a log that differs from the master's. It logs the reason if it cannot
follow, and closes the connection to a silent master. Source: RocketMQ 4.9.7, HAService.HAClient.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple, cast

from pyromq.broker.replication.ha.ha_config import HaConfig
from pyromq.broker.replication.ha.ha_stream import FrameReader, Piece, encode_report
from pyromq.broker.replication.ha.log_comparison import LogComparison
from pyromq.clock import Clock
from pyromq.errors import MQError, StoreError, Unavailable
from pyromq.logs import logger_of
from pyromq.net.connection_config import PLAIN, ConnectionConfig
from pyromq.net.tasks import Tasks
from pyromq.store.message_store import MessageStore

logger = logger_of(__name__)

RETRY_SECONDS = 5.0  # pause after a try that failed, as upstream's HAClient
CONNECT_SECONDS = 3.0  # longest wait for a connection
CHECK_SECONDS = 1.0  # time between two checks whether the master is silent, and whether a report is due
# Bytes per read. Appending them blocks the event loop for less than a millisecond if records are small.
BUFFER_BYTES = 128 << 10


class Master(NamedTuple):
    """The addresses (`host:port`) of a master: of its HA stream, and of its port for requests."""

    ha_address: str
    address: str


class MasterConnection(asyncio.BufferedProtocol):
    """One connection to a master.

    `ended` is set when the connection has ended. `error` is the reason; None if the master closed the connection.
    """

    def __init__(self, store: MessageStore, clock: Clock) -> None:
        self.ended = asyncio.Event()
        self.error: MQError | None = None
        self.heard_at = clock.monotonic()
        self.is_idle = False  # True if the last frame was a heartbeat: the master has nothing to send
        self.received = 0  # bytes of the log received on this connection
        self._store = store
        self._clock = clock
        self._frames = FrameReader(store.config.segment_bytes)
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._transport: asyncio.Transport | None = None
        self._reported_at = self.heard_at

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.report()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.heard_at = self._clock.monotonic()
        try:
            for piece in self._frames.read(self._buffer[:nbytes]):
                self._take(piece)
        except MQError as error:
            self.end(error)
        else:
            self.report()

    def _take(self, piece: Piece) -> None:
        end = self._store.written_end
        if piece.log_offset != end and end:
            raise StoreError(f"the master sends log offset {piece.log_offset}, and the log here ends at {end}")
        self.is_idle = not piece.data
        if piece.data:
            self._store.append_bytes(piece.log_offset, piece.data)
            self.received += len(piece.data)

    def report(self) -> None:
        """Send the master the log offset up to which the log is stored here."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode_report(self._store.written_end))
            self._reported_at = self._clock.monotonic()

    def report_within(self, seconds: float) -> None:
        """Report if the last report is older than `seconds`."""
        if self._clock.monotonic() - self._reported_at > seconds:
            self.report()

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(None)

    def end(self, error: MQError | None) -> None:
        """Close the connection. The first reason counts."""
        if not self.ended.is_set():
            self.error = error
            self.ended.set()
        if self._transport is not None:
            self._transport.abort()


class HaClient:
    """Copies the log of the master that `follow` was called with.

    `fault` is the reason why the slave does not follow its master, "" if it does. `connection` is the connection to the
    master, None without one.
    """

    def __init__(
        self, store: MessageStore, clock: Clock, config: HaConfig, *, connections: ConnectionConfig = PLAIN
    ) -> None:
        self.fault = ""
        self.master: Master | None = None
        self.connection: MasterConnection | None = None
        self._store = store
        self._clock = clock
        self._config = config
        self._comparison = LogComparison(store, clock, connections)
        self._tasks = Tasks()
        self._following: asyncio.Task[None] | None = None

    def follow(self, master: Master | None) -> None:
        """Follow this master from now on, and close the connection to another master; None: follow no master."""
        if master == self.master:
            return
        self._leave()
        self.master = master
        if master is not None:
            self._following = self._tasks.start(self._follow(master), name=f"follow master {master.ha_address}")

    def _leave(self) -> None:
        if self._following is not None:
            self._following.cancel()
            self._following = None
        if self.connection is not None:
            self.connection.end(None)
            self.connection = None

    async def stop(self) -> None:
        """Close the connection to the master."""
        self.follow(None)
        await self._tasks.stop()

    async def _follow(self, master: Master) -> None:
        """Connect to a master and append its log. Connect again when the connection ends, until cancelled."""
        while True:
            received = 0
            try:
                received = await self._follow_once(master)
            except MQError as error:
                self._warn_once(master, str(error))
            except Exception as error:
                logger.exception("following master %s failed", master.ha_address)
                self.fault = repr(error)
            if not received:
                await self._clock.sleep(RETRY_SECONDS)

    async def _follow_once(self, master: Master) -> int:
        """Follow a master until the connection ends. Return the number of bytes received.

        Raises `StoreError` if the logs do not fit together, and other errors of the connection or the store.
        """
        self._store.drop_incomplete()  # another master may have sent the first half of another record
        await self._comparison.check(master.address)
        connection = self.connection = await self._connect(master)
        logger.info("following master %s from log offset %d on", master.ha_address, self._store.max_log_offset)
        self.fault = ""
        looking = asyncio.ensure_future(self._maintain(connection, master))
        ended = asyncio.ensure_future(connection.ended.wait())
        try:
            await asyncio.wait({ended, looking}, return_when=asyncio.FIRST_COMPLETED)
            if looking.done():
                looking.result()
        finally:
            looking.cancel()
            ended.cancel()
            connection.end(None)
            if self.connection is connection:
                self.connection = None
        if connection.error is not None:
            raise connection.error
        logger.info("master %s has closed the HA connection", master.ha_address)
        return connection.received

    async def _connect(self, master: Master) -> MasterConnection:
        host, _, port = master.ha_address.rpartition(":")
        connecting = asyncio.get_running_loop().create_connection(
            lambda: MasterConnection(self._store, self._clock), host.strip("[]"), int(port)
        )
        try:
            _, connection = await asyncio.wait_for(connecting, CONNECT_SECONDS)
        except (OSError, TimeoutError) as error:
            raise Unavailable(f"{master.ha_address} cannot be reached: {error or 'no answer'}") from error
        return connection

    async def _maintain(self, connection: MasterConnection, master: Master) -> None:
        """Send due reports, and compare the bounds of the logs while the master sends only heartbeats.

        Raises `Unavailable` if the master is silent, and `StoreError` if the master has deleted bytes that the slave
        lacks.
        """
        silence = self._config.housekeeping_ms / 1000
        compared_at = self._clock.monotonic()
        while True:
            await self._clock.sleep(CHECK_SECONDS)
            now = self._clock.monotonic()
            if now - connection.heard_at > silence:
                raise Unavailable(f"the master has sent nothing for {silence:g} s (haHousekeepingInterval)")
            connection.report_within(self._config.heartbeat_ms / 1000)
            if connection.is_idle and now - compared_at > silence:
                compared_at = now
                await self._compare_bounds(master)

    async def _compare_bounds(self, master: Master) -> None:
        """Raise `StoreError` if the master has deleted bytes that the slave lacks."""
        if not self._store.max_log_offset:
            return
        try:
            await self._comparison.check_bounds(master.address)
        except StoreError:
            raise
        except MQError as error:  # only this request failed; the HA connection works, and the next check repeats it
            logger.info("master %s does not report the bounds of its log: %s", master.address, error)

    def _warn_once(self, master: Master, reason: str) -> None:
        """Log why the master is not followed, once for each reason, because the slave retries every 5 s."""
        if self.fault != reason:
            self.fault = reason
            logger.warning("the log of master %s is not followed: %s", master.ha_address, reason)
