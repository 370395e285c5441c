"""Compares a slave's log with its master's before the slave follows the master, by requests to the master's main port.

RocketMQ does not compare the logs. If its slave has a longer log than the master, the slave continues when the master's
log is longer again. Then the two logs differ.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from pyromq.broker.replication.store_log import last_offsets
from pyromq.clock import Clock
from pyromq.errors import StoreError
from pyromq.net.channel import Channel, connected
from pyromq.net.connection_config import ConnectionConfig
from pyromq.record import log_offset_of
from pyromq.remoting.bodies import ANSWER, KeyValues, decode_body
from pyromq.remoting.headers import BrokerSettings, BrokerState, ViewMessage
from pyromq.remoting.properties import parse_properties
from pyromq.store.message_store import MessageStore

ASK_SECONDS = 3.0  # longest wait for each reply of the master
TOPICS_AT_ONCE = 200  # topics whose queues are searched before other connections are served: less than a millisecond


class LogBounds(NamedTuple):
    """First byte and end of a master's log."""

    first: int
    end: int


class LogComparison:
    """Compares the log of one slave with masters' logs. Nothing is written."""

    def __init__(self, store: MessageStore, clock: Clock, connections: ConnectionConfig) -> None:
        self._store = store
        self._clock = clock
        self._connections = connections

    async def check(self, master: str) -> None:
        """Ask the broker at address `master` whether its log continues the log here.

        Raises `StoreError` with the difference and what to do, and errors of the connection and of the master.
        """
        async with connected(master, self._clock, self._connections) as channel:
            await self._check_file_size(channel)
            if self._store.max_log_offset:
                await self._check_last_record(channel, await self._check_bounds(channel))

    async def check_bounds(self, master: str) -> None:
        """Check that the master still has the byte at which the log here ends. Raises the errors of `check`."""
        async with connected(master, self._clock, self._connections) as channel:
            await self._check_bounds(channel)

    async def is_behind(self, master: str) -> bool:
        """Return whether the log here ends before the master's log begins. False for an empty log."""
        end = self._store.max_log_offset
        async with connected(master, self._clock, self._connections) as channel:
            return 0 < end < (await log_bounds(channel)).first

    async def _check_file_size(self, channel: Channel) -> None:
        response = (await channel.call(BrokerSettings(), timeout=ASK_SECONDS)).check()
        theirs = parse_properties(bytes(response.body).decode()).get("mappedFileSizeCommitLog")
        if theirs != str(self._store.config.segment_bytes):
            raise StoreError(
                f"the master's log files have {theirs} bytes, and those here {self._store.config.segment_bytes}: set"
                " the master's mappedFileSizeCommitLog here, and start with an empty data folder"
            )

    async def _check_bounds(self, channel: Channel) -> LogBounds:
        end = self._store.max_log_offset  # read before the request, so that the master's log can only be longer
        bounds = await log_bounds(channel)
        if end < bounds.first:
            raise StoreError(
                f"the log here ends at {end}, and the master's begins at {bounds.first}: the master has deleted what"
                f" lies between. {self._advice}, or with haStartOver=true"
            )
        if end > bounds.end:
            raise StoreError(
                f"the log here ends at {end}, and the master's at {bounds.end}: the slave has bytes that this master"
                f" does not have. Nothing is overwritten. {self._advice}"
            )
        return bounds

    async def _check_last_record(self, channel: Channel, bounds: LogBounds) -> None:
        record = await self._last_record()
        offset = log_offset_of(record)
        if offset < bounds.first:
            raise StoreError(
                f"the last record here, at log offset {offset}, cannot be compared: the master's log begins at"
                f" {bounds.first}. {self._advice}"
            )
        response = await channel.call(ViewMessage(offset=offset), timeout=ASK_SECONDS)
        if response.code or bytes(response.body) != record:
            found = "another record" if not response.code else "no record"
            raise StoreError(
                f"the logs differ: the master has {found} at log offset {offset}, where the log here has its last."
                f" Nothing is overwritten. {self._advice}"
            )

    @property
    def _advice(self) -> str:
        return (
            f"Stop this slave, keep {self._store.config.root} if its messages are needed, and start the slave with an"
            " empty data folder"
        )

    async def _last_record(self) -> memoryview:
        """Return the last record of the log that is in a queue; without one, the first record of the last file."""
        last = -1
        for number, offset in enumerate(last_offsets(self._store)):
            last = max(last, offset)
            if number % TOPICS_AT_ONCE == 0:
                await asyncio.sleep(0)
        if (record := self._store.record_at(last)) is not None:
            return record
        end, size = self._store.max_log_offset - 1, self._store.config.segment_bytes
        for _, record in self._store.records_from(max(end - end % size, self._store.min_log_offset)):
            return record
        raise StoreError(f"the log in {self._store.config.root} has no readable record. {self._advice}")


async def log_bounds(channel: Channel) -> LogBounds:
    response = (await channel.call(BrokerState(), timeout=ASK_SECONDS)).check()
    table = decode_body(KeyValues, response.body, ANSWER).table
    try:
        return LogBounds(int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"]))
    except (KeyError, ValueError) as error:
        raise StoreError(f"the master does not report the bounds of its log: {error!r}") from error
