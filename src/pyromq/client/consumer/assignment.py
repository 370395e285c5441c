"""Acquires queues for push and pull consumers (lock, begin) and revokes them (stop, drain, save, unlock).

A new owner starts at the offset that the previous owner committed. The previous owner finishes its running listeners,
commits, then unlocks. An orderly consumer never works on a queue without its lock. For other consumers the lock only
delays the new owner, so that fewer messages are duplicates. `Rebalance` decides which queues to acquire and revoke.
A lock is tied to the connection: a pyromq broker frees it soon after the connection is lost, other brokers after 60 s
without renewal. Source: RocketMQ 4.9.8, RebalanceImpl.lock, lockAll, unlock.

       free ── lock ──► locked ── begin ──► held ── stop ──► ending ── drain, save, release, unlock ──► free
        │                                                      │
        └── refused: retried at the next rebalance;            └── not drained in time: ends, messages are redelivered;
            others than orderly wait ACQUIRE_SECONDS               an orderly consumer keeps the lock until drained
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.clock import Clock
from pyromq.errors import MQError
from pyromq.logs import logger_of
from pyromq.message import MessageQueue
from pyromq.net.tasks import Tasks
from pyromq.plural import counted
from pyromq.remoting.bodies import LockedQueues, QueueLock, WireQueue, decode_body, encode_body
from pyromq.remoting.command import Response
from pyromq.remoting.header import Header
from pyromq.remoting.headers import LockQueues, UnlockQueues

logger = logger_of(__name__)

DRAIN_SECONDS = 0.5  # longest wait for running listeners of a revoked queue before it is unlocked
# Longest wait for a lock, in consumers that are not orderly; longer than DRAIN_SECONDS of the previous owner.
ACQUIRE_SECONDS = 0.7
LOCK_WARNING_SECONDS = 5.0  # a longer wait for a queue's lock is logged; a short wait is usual after a member joins


class Assigned(Protocol):
    """A queue assigned to this member: `ProcessQueue` of push consumers, `AssignedQueue` of pull consumers."""

    queue: MessageQueue


Q = TypeVar("Q", bound=Assigned)


class QueueWork(Protocol[Q]):
    """Starts and ends the work on queues for one kind of consumer: push or pull."""

    async def begin(self, queue: MessageQueue) -> Q | None:
        """Start to consume at the group's offset. Return None, or raise `MQError`, if that is impossible now."""

    def stop(self, assigned: Q) -> None:
        """Stop fetching messages of a queue, and call no further listener for it."""

    def is_busy(self, assigned: Q) -> bool:
        """Return whether fetched messages of a queue are still being consumed."""

    async def drain(self, assigned: Q) -> None:
        """Wait until no fetched message of a queue is being consumed."""

    def log_late(self, late: Sequence[Q], seconds: float) -> None:
        """Log the queues on which listeners are still working after `seconds`."""

    async def save(self, queues: Sequence[Q]) -> None:
        """Commit the consumed offsets of queues; errors are logged, not raised."""

    def release(self, assigned: Q) -> bool:
        """Ignore all further results of a queue's listeners. Return whether the queue's lock may be released now."""


class Assignment(Generic[Q]):
    """The queues of one consumer. `held` has the assigned queues, and revoked queues that are not drained yet.

    `locks` is None for broadcast consumers, `strict` is True for orderly ones. `wake()` triggers a rebalance.
    """

    def __init__(
        self,
        group: str,
        clock: Clock,
        work: QueueWork[Q],
        *,
        locks: QueueLockClient | None,
        strict: bool = False,
        wake: Callable[[], None],
    ) -> None:
        self.held: dict[MessageQueue, Q] = {}
        self._group = group
        self._clock = clock
        self._work = work
        self._locks = locks
        self._strict = strict
        self._wake = wake
        self._tasks = Tasks()
        self._locked: set[MessageQueue] = set()  # queues locked at brokers, or with a lock request in progress
        self._refused: dict[MessageQueue, float] = {}  # monotonic seconds at which a queue's lock was first refused
        # Queues for which a warning was logged: one warning until the queue is acquired.
        self._troubled: set[MessageQueue] = set()

    async def acquire(self, queues: Sequence[MessageQueue]) -> list[Q]:
        """Lock queues and begin to consume them. Return the acquired queues; the caller may retry the others later."""
        self._refused = {queue: since for queue, since in self._refused.items() if queue in queues}
        free = await self._lock(queues) if self._locks is not None else queues
        begun = await asyncio.gather(*(self._begin(queue) for queue in free))
        await self._unlock(self._locked.intersection(queues) - self.held.keys())
        return [assigned for assigned in begun if assigned is not None]

    async def revoke(self, queues: Sequence[Q]) -> None:
        """End consuming queues. An orderly consumer keeps the lock of a busy queue until the queue is drained."""
        for assigned in queues:
            self._work.stop(assigned)
        late = await self._drain(queues, DRAIN_SECONDS)
        if not self._strict:
            self._log_late(late, DRAIN_SECONDS)
            await self._end(queues)
            return
        await self._end([assigned for assigned in queues if assigned not in late])
        for assigned in late:
            logger.info("group %s: %s is revoked when its running listener returns", self._group, assigned.queue)
            self._tasks.start(self._end_later(assigned), name=f"end {assigned.queue}")

    async def leave(self, seconds: float) -> None:
        """End consuming all queues: wait at most `seconds` for running listeners, commit, unlock.

        Results of listeners that run longer are ignored.
        """
        await self._tasks.stop()
        queues = list(self.held.values())
        for assigned in queues:
            self._work.stop(assigned)
        late = await self._drain(queues, seconds)
        self._log_late(late, seconds)
        await self._end(queues)
        busy = {assigned.queue for assigned in late if self._work.is_busy(assigned)}
        await self._unlock(self._locked - busy)  # `_locked` includes queues being acquired or revoked

    async def unlock_all(self) -> None:
        """Release the locks of all queues, without waiting for listeners and without a commit."""
        await self._unlock(list(self._locked))

    def lock_lost(self, queue: MessageQueue) -> None:
        """Forget the lock of a queue, because another member may hold the lock now."""
        self._locked.discard(queue)

    async def _lock(self, queues: Sequence[MessageQueue]) -> list[MessageQueue]:
        """Request the locks of queues. Return the queues that may be acquired now."""
        assert self._locks is not None
        # Queues in `held` were revoked and are not drained yet.
        free = [queue for queue in queues if queue not in self.held]
        self._locked.update(free)
        held = await self._locks.lock(free)
        self._locked.difference_update(queue for queue in free if not held.get(queue))
        if self._strict:
            self._log_waits([queue for queue in free if held.get(queue) is False and queue not in self._refused])
        return [queue for queue in free if self._may_acquire(queue, held.get(queue))]

    def _log_waits(self, queues: Sequence[MessageQueue]) -> None:
        if queues:
            names = ", ".join(map(str, queues))
            logger.info("group %s: waiting for locks held by other members: %s", self._group, names)

    def _may_acquire(self, queue: MessageQueue, is_held: bool | None) -> bool:
        """Return whether to acquire a queue.

        `is_held` tells whether this client holds the queue's lock; None if the queue's broker did not answer.
        """
        if is_held or (is_held is None and not self._strict):
            self._refused.pop(queue, None)
            return True
        if is_held is None:
            return False
        now = self._clock.monotonic()
        waited = now - self._refused.setdefault(queue, now)
        if self._strict:
            if waited > LOCK_WARNING_SECONDS and self._locks is not None:
                self._warn_once(queue, f"waiting for its lock, held by {self._locks.holder(queue)}")
            return False
        if waited < ACQUIRE_SECONDS:
            return False
        del self._refused[queue]
        return True

    async def _begin(self, queue: MessageQueue) -> Q | None:
        try:
            assigned = await self._work.begin(queue)
        except MQError as error:
            self._warn_once(queue, f"cannot be consumed yet: {error}")
            return None
        if assigned is not None:
            self._troubled.discard(queue)
            self.held[queue] = assigned
        return assigned

    async def _drain(self, queues: Sequence[Q], seconds: float) -> list[Q]:
        """Wait at most `seconds` until no listener is working on the queues. Return the queues that are still busy."""
        busy = [assigned for assigned in queues if self._work.is_busy(assigned)]
        if not busy:
            return []

        async def all_drained() -> None:
            for assigned in busy:
                await self._work.drain(assigned)

        waits = [asyncio.ensure_future(all_drained()), asyncio.ensure_future(self._clock.sleep(seconds))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return [assigned for assigned in busy if self._work.is_busy(assigned)]

    async def _end(self, queues: Sequence[Q]) -> None:
        """Commit the offsets of queues, forget the queues and unlock them."""
        await self._work.save(queues)
        for assigned in queues:
            self.held.pop(assigned.queue, None)
        await self._unlock([assigned.queue for assigned in queues if self._work.release(assigned)])

    async def _end_later(self, assigned: Q) -> None:
        await self._work.drain(assigned)
        await self._end([assigned])
        self._wake()

    async def _unlock(self, queues: Collection[MessageQueue]) -> None:
        if self._locks is not None and queues:
            await self._locks.unlock(queues)
            self._locked.difference_update(queues)

    def _log_late(self, late: Sequence[Q], seconds: float) -> None:
        if late:
            self._work.log_late(late, seconds)

    def _warn_once(self, queue: MessageQueue, what: str) -> None:
        if queue not in self._troubled:
            self._troubled.add(queue)
            logger.warning("group %s: %s: %s", self._group, queue, what)


LOCK_REQUEST_SECONDS = 1.0
# Interval of lock renewals; a broker keeps a lock for 60 s. Source: ConsumeMessageOrderlyService.lockMQPeriodically
RENEW_SECONDS = 20.0


class QueueLockClient:
    """Locks and unlocks queues of one group for this client, with one request per broker and topic."""

    def __init__(self, group: str, cluster: ClusterClient) -> None:
        self._group = group
        self._cluster = cluster
        self._holders: dict[MessageQueue, str] = {}
        self._addresses: dict[MessageQueue, str] = {}  # the broker that granted the latest lock of each queue

    async def lock(
        self, queues: Iterable[MessageQueue], *, timeout: float = LOCK_REQUEST_SECONDS
    ) -> dict[MessageQueue, bool]:
        """Request the locks of queues. Return for each queue whether this client now holds its lock.

        Queues of brokers that do not answer within `timeout` seconds are left out.
        """
        asked = await asyncio.gather(*(self._lock(of_broker, timeout) for of_broker in _by_broker(queues)))
        return {queue: held for answer in asked for queue, held in answer.items()}

    def holder(self, queue: MessageQueue) -> str:
        """Return the client id of the holder of a refused lock, and how long it has held the lock.

        Return "another member" if the broker does not report the holder.
        """
        return self._holders.get(queue, "another member")

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Release the locks of queues. Errors are logged, not raised: a broker frees a lock that is not renewed."""
        await asyncio.gather(*(self._unlock(of_broker) for of_broker in _by_broker(queues)))

    def address(self, queue: MessageQueue) -> str:
        """Return the address of the master that granted the queue's latest lock; "" if none did."""
        return self._addresses.get(queue, "")

    async def _lock(self, queues: list[MessageQueue], timeout: float) -> dict[MessageQueue, bool]:
        try:
            response = await self._ask(LockQueues(), queues, timeout)
            locked = decode_body(LockedQueues, response.check().body)
            address = await self._cluster.master(queues[0])
        except MQError as error:
            logger.debug("group %s: lock request for %s failed: %s", self._group, counted(len(queues), "queue"), error)
            return {}
        for refused in locked.refused or ():
            self._holders[self._cluster.names.unwrap_queue(refused.queue.queue)] = (
                f"{refused.client_id}, for {refused.age_ms / 1000:.1f} s"
            )
        names = self._cluster.names
        held = {names.unwrap_queue(wire.queue) for wire in locked.queues}
        self._addresses |= dict.fromkeys(held, address)
        return {queue: queue in held for queue in queues}

    async def _unlock(self, queues: list[MessageQueue]) -> None:
        try:
            (await self._ask(UnlockQueues(), queues, LOCK_REQUEST_SECONDS)).check()
        except MQError as error:
            logger.info("group %s: unlocking %s failed: %s", self._group, counted(len(queues), "queue"), error)

    async def _ask(self, header: Header, queues: list[MessageQueue], timeout: float) -> Response:
        return await self._cluster.ask_master(queues[0], header, self._body(queues), timeout=timeout, idempotent=True)

    def _body(self, queues: list[MessageQueue]) -> bytes:
        lock = QueueLock(
            group=self._group,
            client_id=self._cluster.client_id,
            queues=[WireQueue.of(self._cluster.names.wrap_queue(queue)) for queue in queues],
            tied_to_connection=True,
        )
        return encode_body(lock)


def _by_broker(queues: Iterable[MessageQueue]) -> list[list[MessageQueue]]:
    """Return one list of queues for each broker and topic: a broker's address comes from the topic's route."""
    lists: dict[tuple[str, str], list[MessageQueue]] = defaultdict(list)
    for queue in queues:
        lists[queue.broker_name, queue.topic].append(queue)
    return list(lists.values())
