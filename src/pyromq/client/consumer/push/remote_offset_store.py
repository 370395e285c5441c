"""Offsets of a group that shares its queues: kept by the brokers, told every few seconds, at the end, and on pulls."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.client.config import ConsumerConfig
from pyromq.client.consumer.push.owned_queue import OwnedQueue
from pyromq.client.consumer.queue_offsets import QueueOffsets
from pyromq.errors import MQError, TopicNotFound
from pyromq.message import MessageQueue

logger = logging.getLogger(__name__)


class RemoteOffsetStore:
    """Finds where queues begin, and stores how far they are consumed."""

    def __init__(self, group: str, cluster: ClusterClient, config: ConsumerConfig) -> None:
        self._group = group
        self._offsets = QueueOffsets(cluster, timeout=config.timeout)
        self._config = config

    async def start(self, queue: MessageQueue) -> int:
        """Return where to begin in a queue. Raises `MQError` when it cannot be told now."""
        return await self._offsets.start(self._group, queue, self._config)

    async def stored(self, queue: MessageQueue) -> int | None:
        """Return the offset stored for a queue; None if there is none. Raises `MQError`."""
        return await self._offsets.committed(self._group, queue)

    async def save(self, queues: Iterable[OwnedQueue]) -> None:
        """Store the safe offset of the queues that have moved; true at the brokers when this returns.

        What cannot be stored is logged; another try comes with the next save or pull.
        """
        moved = [owned for owned in queues if not owned.dropped and owned.process_queue.safe_offset != owned.committed]
        await asyncio.gather(*(self._save(owned) for owned in moved))

    async def _save(self, owned: OwnedQueue) -> None:
        offset = owned.process_queue.safe_offset
        try:
            await self._offsets.commit(self._group, owned.queue, offset)
        except TopicNotFound:
            owned.committed = offset  # nobody keeps offsets of a topic that is gone
        except MQError as error:
            logger.warning("group %s: offset %d of %s is not stored yet: %s", self._group, offset, owned.queue, error)
        else:
            owned.committed = offset
