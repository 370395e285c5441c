"""Which client of a group works on which queue, for consumers that keep order. In memory only; advisory.

Source: RocketMQ 4.9.8, RebalanceLockManager.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyromq.clock import Clock
from pyromq.message import MessageQueue

LOCK_SECONDS = 60.0  # rocketmq.broker.rebalance.lockMaxLiveTime


@dataclass(slots=True)
class _Lock:
    client_id: str
    touched: float  # monotonic seconds of the owner's last request


class QueueLocks:
    """The locks by group and queue. An owner that is silent for more than 60 s may be replaced."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._locks: dict[str, dict[MessageQueue, _Lock]] = {}

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Lock what is free, expired or the client's own; return those queues in the order asked."""
        now = self._clock.monotonic()
        locks = self._locks.setdefault(group, {})
        granted = []
        for queue in queues:
            lock = locks.get(queue)
            if lock is None or lock.client_id == client_id or now - lock.touched > LOCK_SECONDS:
                locks[queue] = _Lock(client_id, now)
                granted.append(queue)
        return granted

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Free the client's own locks among `queues`; those of others stay."""
        locks = self._locks.get(group, {})
        for queue in queues:
            lock = locks.get(queue)
            if lock is not None and lock.client_id == client_id:
                del locks[queue]
        if not locks:
            self._locks.pop(group, None)
