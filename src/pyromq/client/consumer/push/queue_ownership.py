"""Begins and ends the consumption of queues: where to start, how to stop, what to leave behind for the next owner.

Who takes a queue finds the offset that the one before has stored; who gives one away first lets the listeners finish
that run, then stores the offset, then unlocks. Where order is kept, nobody works on a queue without its lock; elsewhere
the lock only makes the next owner wait a moment, so that nothing is consumed twice. Which queues are ours is for the
rebalance to say.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from math import inf

from pyromq.client.consumer.push.concurrent import ConcurrentConsuming
from pyromq.client.consumer.push.local_offset_store import LocalOffsets
from pyromq.client.consumer.push.lock_renewal import RENEW_SECONDS, VALID_SECONDS, LockRenewal
from pyromq.client.consumer.push.orderly import OrderlyConsuming
from pyromq.client.consumer.push.owned_queue import OwnedQueue
from pyromq.client.consumer.push.pull_loop import PullLoops
from pyromq.client.consumer.push.remote_offset_store import GroupOffsets
from pyromq.client.consumer.queue_locks import Locks
from pyromq.clock import Clock
from pyromq.errors import MQError
from pyromq.message import MessageQueue
from pyromq.net.tasks import Tasks, every

logger = logging.getLogger(__name__)

HAND_OVER_SECONDS = 0.5  # how long a queue given away waits for its running listeners
LONG_SECONDS = 5.0  # a wait for a lock that somebody should look at; after a join, a short one is usual
PATIENCE_SECONDS = 0.7  # how long its next owner waits for that, where order is not kept


class Ownership:
    """The queues of one consumer, in `owned`, and the tasks that work on them.

    `locks` is None where every member consumes every queue. `wake` makes the rebalance look again.
    """

    def __init__(
        self,
        group: str,
        clock: Clock,
        *,
        owned: dict[MessageQueue, OwnedQueue],
        offsets: GroupOffsets | LocalOffsets,
        pulls: PullLoops,
        consuming: ConcurrentConsuming | OrderlyConsuming,
        locks: Locks | None,
        wake: Callable[[], None],
    ) -> None:
        self._group = group
        self._clock = clock
        self._owned = owned
        self._offsets = offsets
        self._pulls = pulls
        self._consuming = consuming
        self._locks = locks
        self._strict = locks is not None and isinstance(consuming, OrderlyConsuming)
        self._wake = wake
        self._tasks = Tasks()
        self._loops: dict[OwnedQueue, asyncio.Task[None]] = {}
        self._held: dict[MessageQueue, OwnedQueue] = {}  # locked: those owned, and those whose listeners still run
        self._locked: set[MessageQueue] = set()  # at brokers, as far as we know: also those about to be taken
        self._breaks = 0  # of connections to brokers, so far
        self._left: dict[MessageQueue, int] = {}  # queues with lost locks, and up to where they are consumed here
        self._refused: dict[MessageQueue, float] = {}  # since when (monotonic) another has its lock
        self._troubled: set[MessageQueue] = set()
        self._renewal = (
            LockRenewal(locks, self._held, clock, go_on=self._go_on, lose=self._lose) if locks is not None else None
        )

    def start(self) -> None:
        """Begin to renew locks."""
        if self._renewal is not None:
            self._tasks.start(every(RENEW_SECONDS, self._renewal.renew, self._clock), name=f"locks of {self._group}")

    async def take(self, queues: Sequence[MessageQueue]) -> list[OwnedQueue]:
        """Begin to consume queues; returns those that could be taken, others are free to take later."""
        breaks = self._breaks
        free = await self._lock(queues) if self._locks is not None else queues
        found = await asyncio.gather(*(self._take(queue, breaks) for queue in free))
        taken = [owned for owned in found if owned is not None]
        await self._unlock(self._locked.intersection(queues) - self._held.keys())
        return taken

    async def give(self, queues: Sequence[OwnedQueue]) -> None:
        """End consuming queues. Where order is kept, a listener that takes longer keeps its queue's lock until done."""
        self._stop_pulling(queues)
        await self._quiet(queues, HAND_OVER_SECONDS)
        late = [owned for owned in queues if owned.process_queue.running]
        if not self._strict:
            self._tell_late(late, HAND_OVER_SECONDS)
            await self._end(queues)
            return
        await self._end([owned for owned in queues if owned not in late])
        for owned in late:
            logger.info("group %s: %s goes when its running listener is done", self._group, owned.queue)
            self._tasks.start(self._end_later(owned), name=f"end {owned.queue}")

    async def leave(self, seconds: float) -> None:
        """End consuming all queues; listeners that run longer than so many seconds have worked for nothing."""
        await self._tasks.stop()
        queues = [*self._owned.values(), *(owned for owned in self._held.values() if owned not in self._owned.values())]
        self._stop_pulling(queues)
        await self._quiet(queues, seconds)
        self._tell_late([owned for owned in queues if owned.process_queue.running], seconds)
        await self._end(queues)
        at_work = {owned.queue for owned in queues if owned.process_queue.running}
        await self._unlock(self._locked - at_work)  # of those that were just being taken or given away

    async def save(self) -> None:
        """Store the offsets that have changed."""
        await self._offsets.save(owned for owned in self._owned.values() if not owned.lost)

    async def rescue(self) -> None:
        """Send back the messages of listeners that take too long."""
        for owned in list(self._owned.values()):
            await self._consuming.rescue(owned.process_queue)

    def reset(self, offsets: dict[MessageQueue, int]) -> None:
        """Go on with those queues that are ours at the offsets, and store them: what was known of them is void.

        So an administrator moves the group, and so it begins again in a topic that was deleted.
        """
        for queue, offset in offsets.items():
            self._left.pop(queue, None)
            if (held := self._held.get(queue)) is not None and held is not self._owned.get(queue):
                held.process_queue.drop()  # given away, but its listener still runs
            if queue in self._owned:
                self._tasks.start(self._reset(self._owned[queue], offset), name=f"reset {queue}")

    def connection_lost(self, address: str) -> None:
        """A broker may free our locks now. Where order is kept, no listener starts before they are ours again."""
        self._breaks += 1
        queues = [owned for owned in self._held.values() if owned.lock_address == address]
        if self._renewal is not None and queues:
            again = self._renewal.take_again(queues) if self._strict else self._renewal.renew()
            self._tasks.start(again, name=f"lock again at {address}")

    async def _lock(self, queues: Sequence[MessageQueue]) -> list[MessageQueue]:
        """Return those of the queues that may be taken now."""
        assert self._locks is not None
        free = [queue for queue in queues if queue not in self._held]  # others: their listeners still run here
        self._locked.update(free)
        held = await self._locks.lock(free)
        self._locked.difference_update(queue for queue in free if not held.get(queue))
        if self._strict:
            self._tell_waits([queue for queue in free if held.get(queue) is False and queue not in self._refused])
        return [queue for queue in free if self._may_take(queue, held.get(queue))]

    def _tell_waits(self, queues: Sequence[MessageQueue]) -> None:
        if queues:
            names = ", ".join(map(str, queues))
            logger.info("group %s: waiting for locks that other members hold: %s", self._group, names)

    def _may_take(self, queue: MessageQueue, is_held: bool | None) -> bool:
        """`is_held` is None when the broker did not answer."""
        if is_held or (is_held is None and not self._strict):
            self._refused.pop(queue, None)
            return True
        if is_held is None:
            return False
        now = self._clock.monotonic()
        waited = now - self._refused.setdefault(queue, now)
        if self._strict:
            if waited > LONG_SECONDS and self._locks is not None:
                self._say(queue, f"waiting for its lock, held by {self._locks.holder(queue)}")
            return False
        if waited < PATIENCE_SECONDS:
            return False
        del self._refused[queue]
        return True

    async def _take(self, queue: MessageQueue, breaks: int) -> OwnedQueue | None:
        """Begin with a queue; None when that is not possible now. `breaks` is how many there were before its lock."""
        try:
            offset = await self._offsets.start(queue)
            lock_address = await self._locks.address(queue) if self._locks is not None else ""
        except MQError as error:
            self._say(queue, f"cannot be consumed yet: {error}")
            return None
        if self._strict and self._breaks != breaks:
            return None  # the lock may have gone with its connection
        offset = max(offset, self._left.pop(queue, 0))  # a broker that was killed has forgotten what it was told last
        self._troubled.discard(queue)
        allowed_until = self._clock.monotonic() + VALID_SECONDS if self._strict else inf
        return self._begin(queue, offset, allowed_until, lock_address)

    def _begin(self, queue: MessageQueue, offset: int, allowed_until: float, lock_address: str) -> OwnedQueue:
        """Pull a queue from an offset on."""
        owned = OwnedQueue(queue, offset, self._clock.monotonic)
        owned.process_queue.allowed_until = allowed_until
        if self._locks is not None:
            owned.lock_address, owned.locked_ms = lock_address, self._clock.now_ms()
            self._held[queue] = owned
        self._loops[owned] = self._tasks.start(self._pulls.run(owned), name=f"pull {queue}")
        return owned

    def _stop_pulling(self, queues: Iterable[OwnedQueue]) -> None:
        for owned in queues:
            owned.process_queue.close()
            if (loop := self._loops.pop(owned, None)) is not None:
                loop.cancel()

    async def _quiet(self, queues: Sequence[OwnedQueue], seconds: float) -> None:
        """Wait until no listener runs for these queues, at most so long."""
        if not any(owned.process_queue.running for owned in queues):
            return

        async def all_quiet() -> None:
            for owned in queues:
                await owned.process_queue.quiet()

        waits = [asyncio.ensure_future(all_quiet()), asyncio.ensure_future(self._clock.sleep(seconds))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _end(self, queues: Sequence[OwnedQueue]) -> None:
        """Store the offsets, let nothing count any more, unlock."""
        kept = [owned for owned in queues if not owned.lost]
        await self._offsets.save(kept)
        for owned in queues:
            owned.process_queue.drop()
            self._held.pop(owned.queue, None)
            if owned.lost:
                self._locked.discard(owned.queue)
                self._left[owned.queue] = owned.process_queue.safe_offset
        await self._unlock([owned.queue for owned in kept if not (self._strict and owned.process_queue.running)])

    async def _unlock(self, queues: Collection[MessageQueue]) -> None:
        if self._locks is not None and queues:
            await self._locks.unlock(queues)
            self._locked.difference_update(queues)

    async def _end_later(self, owned: OwnedQueue) -> None:
        await owned.process_queue.quiet()
        await self._end([owned])
        self._wake()

    async def _reset(self, owned: OwnedQueue, offset: int) -> None:
        self._stop_pulling([owned])
        if self._strict:
            await owned.process_queue.quiet()  # never two listeners of a queue at once
        if self._owned.get(owned.queue) is not owned:
            return  # given away meanwhile
        owned.process_queue.drop()
        anew = self._begin(owned.queue, offset, owned.process_queue.allowed_until, owned.lock_address)
        anew.lost = owned.lost
        self._owned[owned.queue] = anew
        logger.info("group %s: %s is consumed from offset %d on, as asked", self._group, owned.queue, offset)
        await self._offsets.save([anew])

    def _go_on(self, owned: OwnedQueue) -> None:
        if isinstance(self._consuming, OrderlyConsuming):
            self._consuming.go_on(owned.process_queue)

    def _lose(self, owned: OwnedQueue) -> None:
        """The lock is, or may be, another's: give the queue up; the rebalance will take it again when it can."""
        if not self._strict:
            return  # another has run out of patience: a rebalance will say whose the queue is
        owned.lost = True
        owned.process_queue.allowed_until = 0.0
        if isinstance(self._consuming, OrderlyConsuming):
            self._consuming.lose(owned.process_queue)
        self._wake()

    def _tell_late(self, late: Sequence[OwnedQueue], seconds: float) -> None:
        if late:
            names = ", ".join(str(owned.queue) for owned in late)
            logger.warning(
                "group %s: listeners still run after %g s, their messages come again: %s", self._group, seconds, names
            )

    def _say(self, queue: MessageQueue, what: str) -> None:
        if queue not in self._troubled:
            self._troubled.add(queue)
            logger.warning("group %s: %s: %s", self._group, queue, what)
