"""Reads and swaps the record of a set for a `Replica`, and watches the set's keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pyromq.broker.replication.registry import Conflict
from pyromq.broker.replication.replica import Replica
from pyromq.broker.replication.replica_actions import Actions, ReadRecord, SwapRecord
from pyromq.broker.replication.set_record import ReplicaInfo
from pyromq.broker.replication.set_registry import SetRegistry
from pyromq.errors import MQError
from pyromq.logs import logger_of
from pyromq.net.tasks import Tasks

logger = logger_of(__name__)

_PAUSE_SECONDS = 0.2  # time between the end of a watch and the next watch


class RecordAccess:
    """Reads and writes the set's record for a `Replica`, and passes each result to it. `do` carries out its actions.

    `infos` are the registered replicas as last read. `swaps` counts compare-and-swaps of the record by their result.
    """

    def __init__(self, keys: SetRegistry, *, now: Callable[[], float], do: Callable[[Actions], None]) -> None:
        self.infos: dict[int, ReplicaInfo] = {}
        self.swaps = dict.fromkeys(("done", "conflict", "unknown"), 0)
        self._keys = keys
        self._now = now
        self._do = do
        self._calls = Tasks()
        self.stop = self._calls.stop

    def begin(self, replica: Replica, action: ReadRecord | SwapRecord) -> None:
        """Start a read or a compare-and-swap of the set's record. Its result is passed to `replica`."""
        call = self._read(replica, action) if isinstance(action, ReadRecord) else self._swap(replica, action)
        self._calls.start(call, name="read or swap the set's record")

    async def _read(self, replica: Replica, action: ReadRecord) -> None:
        try:
            reading, _ = await self._keys.read()
        except MQError as error:
            logger.info("the set's record was not read: %s", error)
            actions = replica.read_failed(self._now(), action.number)
        else:
            self.infos = reading.replicas
            actions = replica.record_read(self._now(), action.number, reading)
        self._do(actions)

    async def _swap(self, replica: Replica, swap: SwapRecord) -> None:
        try:
            answer = await self._keys.swap(swap.revision, swap.record)
        except MQError as error:
            logger.warning("the set's record was not written: %s", error)
            answer = None
        now = self._now()
        if isinstance(answer, int):
            self.swaps["done"] += 1
            actions = replica.swap_done(now, swap.number, answer)
        else:
            self.swaps["conflict" if isinstance(answer, Conflict) else "unknown"] += 1
            actions = replica.swap_failed(now, swap.number)
        self._do(actions)

    async def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever the record or the running replicas may have changed, until cancelled."""
        while True:
            try:
                _, revision = await self._keys.read()
                async for change in self._keys.watch(revision):
                    if self._keys.is_news(change, self.infos):
                        changed()
            except MQError as error:
                logger.info("the set is not watched: %s", error)
            await asyncio.sleep(_PAUSE_SECONDS)
