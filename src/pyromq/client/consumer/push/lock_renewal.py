"""Keeps the locks of owned queues: renews them, and stops consumption the moment a lock may be another's.

Source: RocketMQ 4.9.8, ConsumeMessageOrderlyService.lockMQPeriodically, ProcessQueue.isLockExpired.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from math import inf

from pyromq.client.consumer.push.owned_queue import OwnedQueue
from pyromq.client.consumer.queue_locks import QueueLocks
from pyromq.clock import Clock
from pyromq.logs import logger_of
from pyromq.message import MessageQueue

logger = logger_of(__name__)

VALID_SECONDS = 30.0  # since the broker's latest word; it keeps a lock for 60 s. Source: REBALANCE_LOCK_MAX_LIVE_TIME
# A broker that ties locks to connections keeps them so long for the client to come back; what is locked again within
# this time cannot have been another's.
GRACE_SECONDS = 0.4
AGAIN_SECONDS = 0.02


class LockRenewal:
    """Watches over the queues in `held`. `go_on(owned)` consumes further, `lose(owned)` gives a lost queue up."""

    def __init__(
        self,
        locks: QueueLocks,
        held: Mapping[MessageQueue, OwnedQueue],
        clock: Clock,
        *,
        go_on: Callable[[OwnedQueue], None],
        lose: Callable[[OwnedQueue], None],
    ) -> None:
        self._locks = locks
        self._held = held
        self._clock = clock
        self._go_on = go_on
        self._lose = lose

    async def renew(self) -> None:
        """Lock all held queues again; called every `queue_locks.RENEW_SECONDS`."""
        breaks = {owned: owned.breaks for owned in self._held.values()}
        held = await self._locks.lock(self._held)
        for queue, is_held in held.items():  # where there was no answer, the lock is valid as long as it was
            owned = self._held.get(queue)
            if owned is None or owned.lost or owned.breaks != breaks.get(owned):
                continue
            if is_held:
                self._note(owned)
            else:
                self._lose(owned)

    async def take_again(self, queues: Collection[OwnedQueue]) -> None:
        """The connection by which these queues were locked is gone: lock them by a new one, soon or not at all."""
        for owned in queues:
            owned.process_queue.allowed_until = 0.0
            owned.breaks += 1
        breaks = {owned: owned.breaks for owned in queues}
        deadline = self._clock.monotonic() + GRACE_SECONDS
        left = list(queues)
        while left:
            rest = max(deadline - self._clock.monotonic(), AGAIN_SECONDS)
            held = await self._locks.lock([owned.queue for owned in left], timeout=rest)
            late = self._clock.monotonic() > deadline
            left = [owned for owned in left if owned.breaks == breaks[owned]]  # others broke again: a later call's
            for owned in left:
                if late or held.get(owned.queue) is False:
                    self._lose(owned)
                elif held.get(owned.queue):
                    self._note(owned)
            left = [owned for owned in left if not owned.lost and owned.queue not in held]
            if left:
                await self._clock.sleep(AGAIN_SECONDS)

    def _note(self, owned: OwnedQueue) -> None:
        if owned.process_queue.allowed_until != inf:
            owned.process_queue.allowed_until = self._clock.monotonic() + VALID_SECONDS
        owned.locked_ms = self._clock.now_ms()
        self._go_on(owned)
