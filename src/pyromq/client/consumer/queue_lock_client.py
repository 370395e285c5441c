"""Requests queue locks from brokers, so that one member at a time consumes a queue.

A lock is requested as tied to the connection. A pyromq broker frees it soon after the connection is lost, other brokers
after 60 s without renewal. Source: RocketMQ 4.9.8, RebalanceImpl.lock, lockAll, unlock.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable

from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.errors import MQError, Unavailable
from pyromq.logs import logger_of
from pyromq.message import MessageQueue
from pyromq.remoting.bodies import LockedQueues, QueueLock, WireQueue, decode_body, encode_body
from pyromq.remoting.headers import LockQueues, UnlockQueues

logger = logger_of(__name__)

LOCK_REQUEST_SECONDS = 1.0
RENEW_SECONDS = 20.0  # a broker keeps a lock for 60 s. Source: ConsumeMessageOrderlyService.lockMQPeriodically


class QueueLockClient:
    """Locks and unlocks queues of one group for this client, one request per broker."""

    def __init__(self, group: str, cluster: ClusterClient) -> None:
        self._group = group
        self._cluster = cluster
        self._holders: dict[MessageQueue, str] = {}

    async def lock(
        self, queues: Iterable[MessageQueue], *, timeout: float = LOCK_REQUEST_SECONDS
    ) -> dict[MessageQueue, bool]:
        """Lock queues. Return whether each is held by this client; queues of silent brokers are left out."""
        asked = await asyncio.gather(*(self._lock(of_broker, timeout) for of_broker in _by_broker(queues)))
        return {queue: held for answer in asked for queue, held in answer.items()}

    def holder(self, queue: MessageQueue) -> str:
        """Return the holder of a refused lock and how long it has held it, if the broker reports that."""
        return self._holders.get(queue, "another member")

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Release locks. Errors are logged: a broker frees a lock that is not renewed."""
        await asyncio.gather(*(self._unlock(of_broker) for of_broker in _by_broker(queues)))

    async def address(self, queue: MessageQueue) -> str:
        """Return the address of the queue's master, which keeps the lock. Raises `Unavailable`."""
        route = await self._cluster.route(queue.topic)
        address = route.master(queue.broker_name)
        if address is None:
            raise Unavailable(f"broker {queue.broker_name!r} has no master in the route of topic {queue.topic!r}")
        return address

    async def _lock(self, queues: list[MessageQueue], timeout: float) -> dict[MessageQueue, bool]:
        try:
            address = await self.address(queues[0])
            response = await self._cluster.ask(address, LockQueues(), self._body(queues), timeout=timeout)
            locked = decode_body(LockedQueues, response.check().body)
        except MQError as error:
            logger.debug("group %s: lock request for %d queues failed: %s", self._group, len(queues), error)
            return {}
        for refused in locked.refused or ():
            self._holders[self._cluster.names.unwrap_queue(refused.queue.queue)] = (
                f"{refused.client_id}, for {refused.age_ms / 1000:.1f} s"
            )
        names = self._cluster.names
        held = {names.unwrap_queue(wire.queue) for wire in locked.queues}
        return {queue: queue in held for queue in queues}

    async def _unlock(self, queues: list[MessageQueue]) -> None:
        try:
            address = await self.address(queues[0])
            response = await self._cluster.ask(
                address, UnlockQueues(), self._body(queues), timeout=LOCK_REQUEST_SECONDS
            )
            response.check()
        except MQError as error:
            logger.warning("group %s: unlocking %d queues failed: %s", self._group, len(queues), error)

    def _body(self, queues: list[MessageQueue]) -> bytes:
        lock = QueueLock(
            group=self._group,
            client_id=self._cluster.client_id,
            queues=[WireQueue.of(self._cluster.names.wrap_queue(queue)) for queue in queues],
            tied_to_connection=True,
        )
        return encode_body(lock)


def _by_broker(queues: Iterable[MessageQueue]) -> list[list[MessageQueue]]:
    """Return one list of queues for each broker and topic: the address comes from the topic's route."""
    lists: dict[tuple[str, str], list[MessageQueue]] = defaultdict(list)
    for queue in queues:
        lists[queue.broker_name, queue.topic].append(queue)
    return list(lists.values())
