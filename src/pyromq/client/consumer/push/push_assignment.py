"""The assigned queues of a push consumer: pulls and drains them, renews their locks, resets their offsets.

`Assignment` decides when queues are acquired and revoked. In an orderly consumer a queue has `lock_lost` when another
member may hold its lock. In this state no listener starts, the offset is not committed, and the rebalance acquires the
queue again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import inf

from pyromq.client.consumer.assignment import RENEW_SECONDS, Assignment, QueueLockClient
from pyromq.client.consumer.group_offsets import GroupOffsets
from pyromq.client.consumer.push.consume_orderly_service import ConsumeOrderlyService
from pyromq.client.consumer.push.process_queue import ProcessQueue
from pyromq.client.consumer.push.pull_loop import PullLoops
from pyromq.clock import Clock
from pyromq.errors import TopicNotFound
from pyromq.logs import logger_of
from pyromq.message import MessageQueue
from pyromq.net.tasks import Tasks, every
from pyromq.plural import counted

logger = logger_of(__name__)

# A lock counts as valid this long after the broker confirmed it; brokers keep a lock 60 s.
# Source: REBALANCE_LOCK_MAX_LIVE_TIME
VALID_SECONDS = 30.0
# A pyromq broker keeps a lock this long after the connection of its holder is lost. If the queue is locked again within
# this time, no other member held the lock meanwhile.
GRACE_SECONDS = 0.4
AGAIN_SECONDS = 0.02  # pause between attempts to lock again within GRACE_SECONDS


class PushAssignment:
    """Runs the pull loops, commits and lock renewals of one consumer; implements `assignment.QueueWork`.

    The rebalance updates `assigned`. `order` is None in concurrent consumers, `locks` is None in broadcast ones.
    `wake()` triggers a rebalance.
    """

    def __init__(
        self,
        group: str,
        clock: Clock,
        *,
        assigned: dict[MessageQueue, ProcessQueue],
        offsets: GroupOffsets,
        pulls: PullLoops,
        order: ConsumeOrderlyService | None,
        locks: QueueLockClient | None,
        wake: Callable[[], None],
    ) -> None:
        self._group = group
        self._clock = clock
        self._assigned = assigned
        self._offsets = offsets
        self._pulls = pulls
        self._order = order
        self._locks = locks
        self._strict = strict = locks is not None and order is not None
        self._wake = wake
        self._tasks = Tasks()
        self._loops: dict[ProcessQueue, asyncio.Task[None]] = {}
        self._resets: dict[ProcessQueue, int] = {}  # latest offset of each reset that waits for a listener
        self._breaks = 0  # number of connections to brokers lost so far
        self._breaks_before = 0  # `_breaks` when the latest `acquire` began
        self._left: dict[MessageQueue, int] = {}  # consumed offsets of queues released with a lost lock
        self._uncommitted: set[tuple[str, str]] = set()  # broker and error of the latest commit: logged once
        self.queues = Assignment[ProcessQueue](group, clock, self, locks=locks, strict=strict, wake=wake)
        self._renewal = (
            LockRenewal(locks, self.queues.held, clock, go_on=self._go_on, lose=self._lose)
            if locks is not None
            else None
        )

    def start(self) -> None:
        """Start the task that renews the locks, if there are locks."""
        if self._renewal is not None:
            self._tasks.start(every(RENEW_SECONDS, self._renewal.renew, self._clock), name=f"locks of {self._group}")

    async def acquire(self, queues: Sequence[MessageQueue]) -> list[ProcessQueue]:
        """Lock queues and begin to consume them. Return the acquired queues."""
        self._breaks_before = self._breaks
        return await self.queues.acquire(queues)

    async def leave(self, seconds: float) -> None:
        """End consuming all queues: wait at most `seconds` for running listeners, commit, unlock.

        Results of listeners that run longer are ignored.
        """
        await self._tasks.stop()
        await self.queues.leave(seconds)

    def stuck(self, assigned: ProcessQueue) -> str:
        """Return why an assigned queue must be acquired again, to follow "queues that"; "" if there is no reason."""
        if assigned.lock_lost:
            return "may be locked by another member"
        return "were not pulled for a long time" if self._pulls.is_stuck(assigned) else ""

    def reset(self, offsets: dict[MessageQueue, int]) -> None:
        """Move assigned queues to these offsets and commit the offsets; messages in flight are dropped.

        Offsets of queues that are being revoked are only committed. Called for an administrator's reset, and for a
        deleted topic.
        """
        for queue, offset in offsets.items():
            self._left.pop(queue, None)
            assigned = self._assigned.get(queue) or self.queues.held.get(queue)
            if assigned is not None:
                waiting = assigned in self._resets
                self._resets[assigned] = offset
                if not waiting:
                    self._tasks.start(self._reset(assigned), name=f"reset {queue}")

    def connection_lost(self, address: str) -> None:
        """Lock the queues of a broker again after the connection to `address` was lost.

        In an orderly consumer no listener starts before the locks are confirmed.
        """
        self._breaks += 1
        queues = [assigned for assigned in self.queues.held.values() if assigned.lock_address == address]
        if self._renewal is not None and queues:
            again = self._renewal.lock_again(queues) if self._strict else self._renewal.renew()
            self._tasks.start(again, name=f"lock again at {address}")

    async def begin(self, queue: MessageQueue) -> ProcessQueue | None:
        """Start pulling at the group's offset.

        Return None in an orderly consumer if a connection was lost meanwhile, and with it perhaps the lock.
        """
        offset = await self._offsets.start(queue)
        lock_address = self._locks.address(queue) if self._locks is not None else ""
        if self._strict and self._breaks != self._breaks_before:
            return None
        offset = max(offset, self._left.pop(queue, 0))  # a broker that crashed may have lost the latest commits
        allowed_until = self._clock.monotonic() + VALID_SECONDS if self._strict else inf
        # Added now, because the queue's listener may run, and a reset may arrive, before the rebalance adds the queue.
        assigned = self._assigned[queue] = self._pull(queue, offset, allowed_until, lock_address)
        return assigned

    def stop(self, assigned: ProcessQueue) -> None:
        """Stop pulling a revoked queue, and call no further listener for it."""
        assigned.revoked = True
        self._halt(assigned)

    def is_busy(self, assigned: ProcessQueue) -> bool:
        return assigned.running

    async def drain(self, assigned: ProcessQueue) -> None:
        await assigned.drain()

    def log_late(self, late: Sequence[ProcessQueue], seconds: float) -> None:
        names = ", ".join(str(assigned.queue) for assigned in late)
        logger.warning(
            "group %s: listeners still running after %g s, messages are redelivered: %s", self._group, seconds, names
        )

    async def save(self, queues: Iterable[ProcessQueue]) -> None:
        """Commit the queues' safe offsets that have changed, except those of queues with a lost lock.

        Errors are logged; the next save or pull commits again.
        """
        await self._save(assigned for assigned in queues if not assigned.lock_lost)

    async def save_all(self) -> None:
        await self.save(self._assigned.values())

    def release(self, assigned: ProcessQueue) -> bool:
        """Drop a queue. Return whether its lock may be released: False while an orderly listener is running."""
        assigned.drop()
        if assigned.lock_lost:
            self._left[assigned.queue] = assigned.safe_offset
            return False
        return not (self._strict and assigned.running)

    def _pull(self, queue: MessageQueue, offset: int, allowed_until: float, lock_address: str) -> ProcessQueue:
        assigned = ProcessQueue(queue, offset, self._clock.monotonic)
        assigned.allowed_until = allowed_until
        if self._locks is not None:
            assigned.lock_address, assigned.locked_ms = lock_address, self._clock.now_ms()
        self._loops[assigned] = self._tasks.start(self._pulls.run(assigned), name=f"pull {queue}")
        return assigned

    def _halt(self, assigned: ProcessQueue) -> None:
        assigned.close()
        if (loop := self._loops.pop(assigned, None)) is not None:
            loop.cancel()

    async def _reset(self, assigned: ProcessQueue) -> None:
        self._halt(assigned)
        if self._strict and not assigned.revoked:
            await assigned.drain()  # an orderly queue has one listener at a time
        offset = self._resets.pop(assigned)
        assigned.drop()
        if assigned.revoked:  # the next owner begins at the offset
            for failure in (await self._offsets.save({assigned.queue: offset})).values():
                logger.warning(
                    "group %s: offset %d of %s is not stored: %s", self._group, offset, assigned.queue, failure
                )
            return
        moved = self._pull(assigned.queue, offset, assigned.allowed_until, assigned.lock_address)
        moved.lock_lost = assigned.lock_lost
        self._assigned[assigned.queue] = self.queues.held[assigned.queue] = moved
        logger.info("group %s: %s is reset to offset %d", self._group, assigned.queue, offset)
        await self._save([moved])

    async def _save(self, queues: Iterable[ProcessQueue]) -> None:
        offsets = {
            assigned: self._resets.get(assigned, assigned.safe_offset) for assigned in queues if not assigned.dropped
        }
        moved = {assigned: offset for assigned, offset in offsets.items() if offset != assigned.committed}
        failures = await self._offsets.save({assigned.queue: offset for assigned, offset in moved.items()})
        late: dict[tuple[str, str], list[str]] = {}
        for assigned, offset in moved.items():
            failure = failures.get(assigned.queue)
            if failure is None or isinstance(failure, TopicNotFound):  # brokers keep no offsets of a deleted topic
                assigned.committed = offset
            else:
                queue = assigned.queue
                late.setdefault((queue.broker_name, str(failure)), []).append(f"{offset} of {queue}")
        for trouble, names in late.items():
            if trouble not in self._uncommitted:
                more = f" and of {counted(len(names) - 1, 'other queue')} there" if names[1:] else ""
                logger.warning("group %s: not committed yet: %s%s: %s", self._group, names[0], more, trouble[1])
        self._uncommitted = set(late)

    def _go_on(self, assigned: ProcessQueue) -> None:
        if self._order is not None:
            self._order.go_on(assigned)

    def _lose(self, assigned: ProcessQueue) -> None:
        """Stop consuming an orderly queue whose lock another member may hold; the rebalance acquires it again."""
        if self._order is None:
            return  # a concurrent consumer goes on until a rebalance revokes the queue
        assigned.lock_lost = True
        assigned.allowed_until = 0.0
        self.queues.lock_lost(assigned.queue)
        self._order.lose(assigned)
        self._wake()


class LockRenewal:
    """Renews the locks of the queues in `held`.

    `go_on(assigned)` is called when a lock is confirmed, `lose(assigned)` when it is lost.
    """

    def __init__(
        self,
        locks: QueueLockClient,
        held: Mapping[MessageQueue, ProcessQueue],
        clock: Clock,
        *,
        go_on: Callable[[ProcessQueue], None],
        lose: Callable[[ProcessQueue], None],
    ) -> None:
        self._locks = locks
        self._held = held
        self._clock = clock
        self._go_on = go_on
        self._lose = lose

    async def renew(self) -> None:
        """Renew the locks of all held queues. If a broker does not answer, its locks stay valid until they expire."""
        breaks = {assigned: assigned.breaks for assigned in self._held.values()}
        held = await self._locks.lock(self._held)
        for queue, is_held in held.items():
            assigned = self._held.get(queue)
            if assigned is None or assigned.lock_lost or assigned.breaks != breaks.get(assigned):
                continue
            if is_held:
                self._note(assigned)
            else:
                self._lose(assigned)

    async def lock_again(self, queues: Collection[ProcessQueue]) -> None:
        """Lock queues over a new connection after the old one was lost.

        Queues that are not locked within `GRACE_SECONDS` count as lost: `lose` is called for each.
        """
        for assigned in queues:
            assigned.allowed_until = 0.0
            assigned.breaks += 1
        breaks = {assigned: assigned.breaks for assigned in queues}
        deadline = self._clock.monotonic() + GRACE_SECONDS
        left = list(queues)
        while left:
            rest = max(deadline - self._clock.monotonic(), AGAIN_SECONDS)
            held = await self._locks.lock([assigned.queue for assigned in left], timeout=rest)
            late = self._clock.monotonic() > deadline
            # Queues whose connection was lost again are left to a later call.
            left = [assigned for assigned in left if assigned.breaks == breaks[assigned]]
            for assigned in left:
                if late or held.get(assigned.queue) is False:
                    self._lose(assigned)
                elif held.get(assigned.queue):
                    self._note(assigned)
            left = [assigned for assigned in left if not assigned.lock_lost and assigned.queue not in held]
            if left:
                await self._clock.sleep(AGAIN_SECONDS)

    def _note(self, assigned: ProcessQueue) -> None:
        if assigned.allowed_until != inf:
            assigned.allowed_until = self._clock.monotonic() + VALID_SECONDS
        assigned.locked_ms, assigned.lock_address = self._clock.now_ms(), self._locks.address(assigned.queue)
        self._go_on(assigned)
