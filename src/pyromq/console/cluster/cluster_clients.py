"""The clients with which the console acts for one broker account: started when first used, closed together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, TypeVar

from pyromq.client.admin.async_admin import AsyncAdmin
from pyromq.client.admin.messages.dead_letters import AsyncDeadLetters
from pyromq.client.admin.messages.delayed_messages import AsyncDelayedMessages
from pyromq.client.admin.messages.undecided_transactions import AsyncHalfMessages
from pyromq.client.client_config import ProducerConfig
from pyromq.client.cluster.name_servers import addresses_of
from pyromq.client.consumer.queue_reader import AsyncQueueReader
from pyromq.client.producer.async_producer import AsyncProducer
from pyromq.client.producer.batch_transactions import AsyncBatchTransactions
from pyromq.clock import Clock
from pyromq.console.cluster.cluster_snapshot import BrokerView, ClusterSnapshot, take
from pyromq.console.console_config import ConsoleConfig
from pyromq.names import INNER_PRODUCER_GROUP, TOOLS_GROUP
from pyromq.net.connection_config import ConnectionConfig
from pyromq.net.silent_servers import SilentServers
from pyromq.net.tasks import shared
from pyromq.remoting.bodies import BrokerAddresses, ClusterTable, QueuesAtBroker, TopicRoute

T = TypeVar("T")

TIMEOUT = 5.0
PATIENCE_SECONDS = 0.3  # a page waits this long for a new snapshot, and then shows the previous one
MAX_AGE = 20  # a previous snapshot is shown up to this multiple of `snapshot_seconds`
FORGOTTEN_MS = 86_400_000  # a broker that left is forgotten after this time, the longest range of charts


class ClusterClients:
    """The clients of one broker account.

    Each method that returns a client raises `NoNameServer` if no name server has answered yet. Later, the brokers seen
    before stand in for silent name servers.
    """

    def __init__(self, config: ConsoleConfig, connections: ConnectionConfig, clock: Clock) -> None:
        self._config = config
        self._connections = replace(connections, stand_in=self._stand_in)
        self._clock = clock
        self._stack = AsyncExitStack()
        self._started: dict[type, Any] = {}
        self._starting = asyncio.Lock()
        self._snapshot: ClusterSnapshot | None = None
        self._taking: asyncio.Task[ClusterSnapshot] | None = None
        self._silent = connections.silent or SilentServers(clock)
        self._seen: dict[str, BrokerView] = {}
        self.fault_since_ms: int | None = None  # since when no name server answers

    async def close(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
        await self._stack.aclose()

    async def admin(self) -> AsyncAdmin:
        return await self._client(AsyncAdmin, timeout=TIMEOUT)

    async def reader(self) -> AsyncQueueReader:
        """Return a client that reads stored records, including damaged ones."""
        make: Callable[..., Any] = AsyncQueueReader
        return await self._client(
            AsyncQueueReader, make=lambda *a, **k: make(TOOLS_GROUP, *a, **k), verify_checksums=False
        )

    async def producer(self) -> AsyncProducer:
        def make(namesrv: str | None, connections: ConnectionConfig | None) -> AsyncProducer:
            return AsyncProducer(INNER_PRODUCER_GROUP, namesrv, config=ProducerConfig(connections=connections))

        return await self._client(AsyncProducer, make=make)

    async def dead_letters(self) -> AsyncDeadLetters:
        return await self._client(AsyncDeadLetters, clock=self._clock)

    async def delayed(self) -> AsyncDelayedMessages:
        return await self._client(AsyncDelayedMessages)

    async def half_messages(self) -> AsyncHalfMessages:
        return await self._client(AsyncHalfMessages)

    async def batches(self) -> AsyncBatchTransactions:
        """Return a client that lists the batch transactions of all ledgers (the brokers that decide transactions)."""
        return await self._client(AsyncBatchTransactions, make=lambda *_, **__: self.ledger(None))

    def ledger(self, broker: str | None) -> AsyncBatchTransactions:
        """Return a client for the batch transactions that one broker decides. The client is not started."""
        config = ProducerConfig(connections=self._connections)
        return AsyncBatchTransactions(
            INNER_PRODUCER_GROUP, self._config.namesrv, ledger=broker, timeout=TIMEOUT, config=config
        )

    async def snapshot(self, *, fresh: bool = False) -> ClusterSnapshot:
        """Return a snapshot of the cluster that is at most `snapshot_seconds` old; with `fresh`, a new snapshot.

        While brokers are slow, return the previous snapshot instead of waiting.
        """
        known, newest_ms = self._snapshot, self._clock.now_ms() - self._config.snapshot_seconds * 1000
        if known is not None:
            self.note_silence(known)
        if known is not None and not fresh and known.at_ms > newest_ms:
            return known
        if fresh and self._taking is not None:
            await asyncio.wait([self._taking])
        if self._taking is None or self._taking.done():
            self._taking = asyncio.create_task(self._take())
        if known is not None and not fresh:
            age_seconds = (self._clock.now_ms() - known.at_ms) / 1000
            if age_seconds < MAX_AGE * self._config.snapshot_seconds:
                await asyncio.wait([self._taking], timeout=PATIENCE_SECONDS)
                if not self._taking.done():
                    return known
        return await shared(self._taking)

    async def snapshot_with(self, name: str, among: Callable[[ClusterSnapshot], Container[str]]) -> ClusterSnapshot:
        """Return a snapshot whose `among` contains the name.

        If the current snapshot lacks the name, return a new one, with or without the name.
        """
        snapshot = await self.snapshot()
        return snapshot if name in among(snapshot) else await self.snapshot(fresh=True)

    def note_silence(self, snapshot: ClusterSnapshot) -> None:
        """Mark the brokers of a snapshot that do not answer now, even if they answered when it was taken."""
        for broker in snapshot.brokers.values():
            if broker.address is not None and (reason := self._silent.reason(broker.address)) is not None:
                broker.error, broker.error_since_ms = reason, self._silent.since_ms(broker.address)

    def forget(self) -> None:
        """Discard the current snapshot, because the cluster was changed."""
        self._snapshot = None

    async def _take(self) -> ClusterSnapshot:
        now = self._clock.now_ms()
        admin, before, self.fault_since_ms = await self.admin(), self.fault_since_ms, None
        snapshot = await take(admin, now, self._seen)
        if self.fault_since_ms is not None:
            self.fault_since_ms = before or self.fault_since_ms
            snapshot.fault = f"no name server answers at {' or '.join(addresses_of(self._config.namesrv))}"
            snapshot.fault_since_ms = self.fault_since_ms
        self.note_silence(snapshot)
        for name, broker in snapshot.brokers.items():
            if broker.error is not None and broker.error_since_ms is None:
                broker.error_since_ms = self._seen.get(name, broker).error_since_ms or now
        for name in [each.name for each in snapshot.silent if not each.is_registered]:
            if (snapshot.brokers[name].error_since_ms or now) < now - FORGOTTEN_MS:
                del snapshot.brokers[name]
        self._seen = dict(snapshot.brokers)
        self._snapshot = snapshot
        return snapshot

    def _stand_in(self, topic: str | None) -> ClusterTable | TopicRoute | None:
        """Return the last known route of a topic, or for None all known brokers; None if nothing is known."""
        seen = {name: each for name, each in self._seen.items() if each.is_registered}
        brokers = {name: BrokerAddresses(name, each.cluster, each.addresses) for name, each in seen.items()}
        if topic is None:
            self.fault_since_ms = self.fault_since_ms or self._clock.now_ms()
            clusters: dict[str, list[str]] = {}
            for name, each in seen.items():
                clusters.setdefault(each.cluster, []).append(name)
            return ClusterTable(brokers, clusters) if brokers else None
        queues = [
            QueuesAtBroker(name, at.permission, at.read_queues, at.write_queues)
            for name, each in seen.items()
            for at in (each.figures.topics if each.figures is not None else ())
            if at.name == topic
        ]
        return TopicRoute([brokers[each.broker_name] for each in queues], queues=queues) if queues else None

    async def _client(self, kind: type[T], *, make: Callable[..., Awaitable[T] | T] | None = None, **options: Any) -> T:
        if kind not in self._started:
            async with self._starting:
                if kind not in self._started:
                    maker: Callable[..., Any] = make or kind
                    client = maker(self._config.namesrv, connections=self._connections, **options)
                    self._started[kind] = await self._stack.enter_async_context(client)
        found: T = self._started[kind]
        return found
