"""Copies the tables of a master to a slave: topics, consumer groups, consumer offsets, and progress of delay levels.

RocketMQ's slaves copy the same tables by the same requests. Different from RocketMQ: no offset is ever ahead of the
slave's log. Otherwise messages would be lost when the slave becomes the master. Source: RocketMQ 4.9.8,
SlaveSynchronize.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from pyromq.broker.modules import BrokerModule
from pyromq.broker.replication.ha.log_comparison import ASK_SECONDS, log_bounds
from pyromq.errors import MQError
from pyromq.logs import logger_of
from pyromq.names import SYSTEM_GROUP_PREFIX
from pyromq.net.channel import Channel, connected
from pyromq.net.tasks import Tasks
from pyromq.remoting.bodies import (
    FILE,
    ConsumerOffsetTable,
    DelayOffsetTable,
    GroupConfigTable,
    TopicConfigTable,
    decode_body,
)
from pyromq.remoting.bodies.body import Body
from pyromq.remoting.header import Header
from pyromq.remoting.headers import AllConsumerOffsets, AllDelayOffsets, AllGroups, AllTopics

if TYPE_CHECKING:
    from pyromq.broker.shared_state import SharedState

logger = logger_of(__name__)

FIRST_SECONDS = 3.0  # time from the start to the first copy. Source: BrokerController.handleSlaveSynchronize
AGAIN_SECONDS = 10.0  # time between two copies
MAX_WAITING = 3  # limit of copies of delay-level progress that wait until the slave's log has reached them
KEYS_AT_ONCE = 500  # limit of groups and topics stored between two yields to the event loop: about half a millisecond

B = TypeVar("B", bound=Body)


class _Progress(NamedTuple):
    """The master's progress through its delay levels. All its deliveries are in its log before `log_end`."""

    table: DelayOffsetTable
    log_end: int


class SlaveTables:
    """Copies a master's tables to one slave. `fault` is the reason why copying fails now, "" if it works."""

    def __init__(self, state: SharedState) -> None:
        self.fault = ""
        self._role = state.role
        self._store = state.store
        self._topics = state.topics
        self._groups = state.groups
        self._offsets = state.offsets
        self._delay_levels = state.delay_levels
        self._connections = state.config.connections
        self._clock = state.clock
        self._tasks = Tasks()
        self.stop = self._tasks.stop
        self._waiting: deque[_Progress] = deque()

    async def start(self) -> None:
        if not self._role.is_master:
            self._tasks.start(self._keep_copying(), name="copy the master's tables")

    async def _keep_copying(self) -> None:
        await self._clock.sleep(FIRST_SECONDS)
        while not self._role.is_master:
            try:
                await self.copy()
                self.fault = ""
            except MQError as error:
                if self.fault != str(error):  # each reason is logged once
                    logger.warning("the tables of master %s are not copied: %s", self._role.master_address, error)
                self.fault = str(error)
            except Exception as error:
                logger.exception("copying the tables of master %s failed", self._role.master_address)
                self.fault = repr(error)
            await self._clock.sleep(AGAIN_SECONDS)

    async def copy(self) -> None:
        """Copy all tables once. Does nothing without a known master.

        Raises errors of the connection and of the master, and `StoreNotWritable`.
        """
        master = self._role.master_address
        if self._role.is_master or master is None:
            return
        async with connected(master, self._clock, self._connections) as channel:
            topics = await self._ask(channel, AllTopics(), TopicConfigTable)
            groups = await self._ask(channel, AllGroups(), GroupConfigTable)
            offsets = await self._ask(channel, AllConsumerOffsets(), ConsumerOffsetTable)
            before = await log_bounds(channel)
            delays = await self._ask(channel, AllDelayOffsets(), DelayOffsetTable)
            after = await log_bounds(channel)
        if self._role.is_master:
            return
        self._role.log_needed_from = before.first
        self._topics.adopt(topics)
        self._groups.adopt(groups)
        self._note_progress(_Progress(DelayOffsetTable(delays.offsets, before.end), after.end))
        await self._take_offsets(offsets)

    async def _ask(self, channel: Channel, header: Header, body: type[B]) -> B:
        return decode_body(body, (await channel.call(header, timeout=ASK_SECONDS)).check().body, FILE)

    async def _take_offsets(self, table: ConsumerOffsetTable) -> None:
        """Store the consumer offsets of clients' groups, limited to the end of each queue here.

        Offsets of internal groups are not copied: the broker finds them in the log here.
        """
        for number, (key, queues) in enumerate(table.offsets.items(), 1):
            topic, _, group = key.partition("@")
            if group.startswith(SYSTEM_GROUP_PREFIX):
                continue
            for queue_id, offset in queues.items():
                end = self._store.max_offset(topic, queue_id)
                self._offsets.commit(group, topic, queue_id, min(offset, end))
            if number % KEYS_AT_ONCE == 0:
                await asyncio.sleep(0)
                if self._role.is_master:
                    return

    def _note_progress(self, progress: _Progress) -> None:
        """Save the latest progress of delay levels whose deliveries are in the log here.

        Newer progress waits until the log here has reached it. Progress that is saved too early would skip delayed
        messages whose deliveries are not in the log here.
        """
        if len(self._waiting) < MAX_WAITING:
            self._waiting.append(progress)
        reached = None
        while self._waiting and self._waiting[0].log_end <= self._store.confirmed_end:
            reached = self._waiting.popleft()
        if reached is not None:
            self._delay_levels.adopt(reached.table)


def copying_tables(state: SharedState) -> BrokerModule:
    """Return the module by which a slave copies its master's tables.

    A replica of a set gets an empty module, because its tables follow the log.
    """
    if state.config.failover.etcd:
        return BrokerModule()
    tables = SlaveTables(state)
    return BrokerModule(start=tables.start, stop=tables.stop)
