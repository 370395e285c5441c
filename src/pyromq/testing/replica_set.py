"""A replica set for tests: the replicas of one broker name run in this process, with a registry in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerConfig
from pyromq.broker.replication.replica_server import ReplicaServer
from pyromq.clock import Clock
from pyromq.errors import UsageError
from pyromq.testing.killed_folder import keep_as_killed
from pyromq.testing.memory_registry import MemoryRegistry

_PATIENCE_SECONDS = 30.0  # longest wait for an election or for replicas that catch up
_CHECK_SECONDS = 0.01  # time between two checks of the set's state


class ReplicaSet:
    """The replicas of one broker name, by their numbers, from 1.

    `servers` has the replicas that run now, `registry` their record. Elections use the real time; brokers use `clock`
    for all other times.
    """

    def __init__(self, configs: dict[int, BrokerConfig], registry: MemoryRegistry, clock: Clock | None = None) -> None:
        self.name = next(iter(configs.values())).name
        self.servers: dict[int, ReplicaServer] = {}
        self._configs = configs
        self.registry = registry
        self._clock = clock

    @property
    def master(self) -> int | None:
        """The number of the master; None during an election."""
        return next((number for number, each in self.servers.items() if each.broker.role.is_master), None)

    @property
    def in_sync(self) -> list[int]:
        """The numbers of the replicas that are in sync, as the master knows them; empty during an election."""
        master = self.master
        record = None if master is None else self.servers[master].replica.view.record
        return [] if record is None else sorted(member.number for member in record.in_sync)

    def broker(self, number: int | None = None) -> Broker:
        """Return the broker of a replica, by default of the master. Raises `UsageError` if no such replica runs."""
        return self.servers[self.number_of(number)].broker

    def number_of(self, number: int | None) -> int:
        """Return the number of a running replica; None means the master. Raises `UsageError` if it does not run."""
        found = self.master if number is None else number
        if found is None:
            raise UsageError(f"the set {self.name} has no master now: await until_in_sync() first, or name a replica")
        if found not in self.servers:
            raise UsageError(f"replica {found} of the set {self.name} does not run; running: {sorted(self.servers)}")
        return found

    async def until_in_sync(self) -> None:
        """Wait until there is a master, and all running replicas are in sync. Raises `TimeoutError` after 30 s."""
        await self.until(lambda: bool(self.servers) and self.in_sync == sorted(self.servers))

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition holds. Raises `TimeoutError` after 30 s."""
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while not holds():
                await asyncio.sleep(_CHECK_SECONDS)

    async def start(self, number: int | None = None) -> None:
        """Start a replica, by default all that do not run. A replica that ran before has its folder and its port."""
        for each in sorted(self._configs) if number is None else [number]:
            if each not in self.servers:
                self.servers[each] = await self._start(each)

    async def stop(self, number: int | None = None) -> None:
        """Stop a replica in order, by default the master. A master hands over to another replica first."""
        found = self.number_of(number)
        await self.servers.pop(found).__aexit__(None, None, None)

    async def stop_all(self) -> None:
        for number in sorted(self.servers):
            await self.stop(number)

    async def kill(self, number: int | None = None) -> int:
        """End a replica, by default the master, as SIGKILL would end its process. Return the replica's number.

        Its connections break immediately, the other replicas get no notice, and its folder stays unchanged.
        """
        found = self.number_of(number)
        server = self.servers.pop(found)
        server.cut_connections()
        await keep_as_killed(server.config.data, server.abort)
        return found

    def log(self, number: int) -> bytes:
        """Return the commit log of a running replica. The logs of replicas that are in sync are equal."""
        store = self.broker(number).store
        files = sorted(store.config.log_folder.iterdir())
        return b"".join(path.read_bytes() for path in files)[: store.max_log_offset]

    async def _start(self, number: int) -> ReplicaServer:
        server = await ReplicaServer(self._configs[number], self.registry, self._clock).__aenter__()
        replication = replace(server.config.ha, port=int(server.ha_address.rpartition(":")[2]))
        self._configs[number] = replace(server.config, ha=replication)  # the next start takes the same ports
        return server
