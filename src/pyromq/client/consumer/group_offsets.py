"""How far a group is in its queues: kept by their brokers, or by an `OffsetStore`. Consumers do not ask which."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.client.config import ConsumerConfig
from pyromq.client.consumer.own_offsets import OwnOffsets
from pyromq.client.consumer.queue_offsets import QueueOffsets
from pyromq.client.offset_store import OffsetStore
from pyromq.errors import MQError
from pyromq.message import MessageQueue


class GroupOffsets(Protocol):
    """The offsets of one group."""

    async def start(self, queue: MessageQueue, *, keep: bool = True) -> int:
        """Return where to begin in a queue; with `keep`, that is stored where nothing was.

        Raises `MQError` when it cannot be told now.
        """

    async def stored(self, queue: MessageQueue) -> int | None:
        """Return the offset stored for a queue; None if there is none. Raises `MQError`."""

    async def save(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, MQError]:
        """Store offsets, and return why which of them are not stored; all others are when this returns."""


class BrokerOffsets:
    """Offsets that the brokers of the queues keep, as is usual. Source: RocketMQ 4.9.8, RemoteBrokerOffsetStore."""

    def __init__(self, group: str, cluster: ClusterClient, config: ConsumerConfig) -> None:
        self._group = group
        self._config = config
        self._offsets = QueueOffsets(cluster, timeout=config.timeout)

    async def start(self, queue: MessageQueue, *, keep: bool = True) -> int:
        return await self._offsets.start(self._group, queue, self._config, keep=keep)

    async def stored(self, queue: MessageQueue) -> int | None:
        return await self._offsets.committed(self._group, queue)

    async def save(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, MQError]:
        failures = await asyncio.gather(*(self._save(queue, offset) for queue, offset in offsets.items()))
        return {queue: failure for queue, failure in zip(offsets, failures, strict=True) if failure is not None}

    async def _save(self, queue: MessageQueue, offset: int) -> MQError | None:
        try:
            await self._offsets.commit(self._group, queue, offset)
        except MQError as error:
            return error
        return None


def group_offsets(
    group: str, cluster: ClusterClient, config: ConsumerConfig, *, store: OffsetStore | None
) -> GroupOffsets:
    """Return the offsets that a store keeps; those that brokers keep where there is none."""
    return BrokerOffsets(group, cluster, config) if store is None else OwnOffsets(group, cluster, config, store)
