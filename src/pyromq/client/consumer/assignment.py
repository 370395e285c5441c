"""Takes queues and gives them away, for push and pull consumers alike: lock, begin; stop, wait, store, unlock.

Who takes a queue goes on at the offset that the one before has stored; who gives one away first lets run to its end
what is at work on it, then stores the offset, then unlocks. Where order is kept, nobody works on a queue without its
lock; elsewhere the lock only makes the next owner wait a moment, so that nothing is consumed twice. Which queues are
ours is for the rebalance to say, what is done with them for `Work`.

       free ── lock ──► locked ── begin ──► held ── stop ──► ending ── quiet, save, release, unlock ──► free
        │                                                      │
        └── refused: again at the next rebalance,              └── late: gives up waiting (its messages come again)
            for ever (order) or PATIENCE_SECONDS                   or, where order is kept, ends when it is quiet
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Generic, Protocol, TypeVar

from pyromq.client.consumer.queue_locks import QueueLocks
from pyromq.clock import Clock
from pyromq.errors import MQError
from pyromq.logs import logger_of
from pyromq.message import MessageQueue
from pyromq.net.tasks import Tasks

logger = logger_of(__name__)

HAND_OVER_SECONDS = 0.5  # how long a queue given away waits for those at work on it
PATIENCE_SECONDS = 0.7  # how long its next owner waits for that, where order is not kept
LONG_SECONDS = 5.0  # a wait for a lock that somebody should look at; after a join, a short one is usual


class Owned(Protocol):
    """A queue that is ours; push and pull consumers each have a class of their own."""

    queue: MessageQueue


Q = TypeVar("Q", bound=Owned)


class Work(Protocol[Q]):
    """What a consumer does with its queues."""

    async def begin(self, queue: MessageQueue) -> Q | None:
        """Begin where the group stands; None when the queue is not to be had now. Raises `MQError` likewise."""

    def stop(self, owned: Q) -> None:
        """Fetch nothing more of a queue, and let nothing begin."""

    def at_work(self, owned: Q) -> bool:
        """Whether somebody still works on what was fetched."""

    async def quiet(self, owned: Q) -> None:
        """Wait until nobody does."""

    def tell_late(self, late: Sequence[Q], seconds: float) -> None:
        """Log that after so many seconds somebody still does."""

    async def save(self, queues: Sequence[Q]) -> None:
        """Store how far queues are consumed; trouble is logged."""

    def release(self, owned: Q) -> bool:
        """Let nothing of a queue count any more; return whether its lock is ours to give back now."""


class Assignment(Generic[Q]):
    """The queues that one consumer has taken, in `held`: those that are ours, and those that are still ending.

    `locks` is None where every member consumes every queue. With `strict` order is kept. `wake` makes the rebalance
    look again.
    """

    def __init__(
        self,
        group: str,
        clock: Clock,
        work: Work[Q],
        *,
        locks: QueueLocks | None,
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
        self._locked: set[MessageQueue] = set()  # at brokers, as far as we know: also those about to be taken
        self._refused: dict[MessageQueue, float] = {}  # since when (monotonic) another has its lock
        self._troubled: set[MessageQueue] = set()

    async def take(self, queues: Sequence[MessageQueue]) -> list[Q]:
        """Begin to consume queues; returns those that could be taken, others are free to take later."""
        self._refused = {queue: since for queue, since in self._refused.items() if queue in queues}
        free = await self._lock(queues) if self._locks is not None else queues
        begun = await asyncio.gather(*(self._begin(queue) for queue in free))
        await self._unlock(self._locked.intersection(queues) - self.held.keys())
        return [owned for owned in begun if owned is not None]

    async def give(self, queues: Sequence[Q]) -> None:
        """End consuming queues. Where order is kept, one that is still worked on keeps its lock until that is over."""
        for owned in queues:
            self._work.stop(owned)
        await self._quiet(queues, HAND_OVER_SECONDS)
        late = [owned for owned in queues if self._work.at_work(owned)]
        if not self._strict:
            self._tell_late(late, HAND_OVER_SECONDS)
            await self._end(queues)
            return
        await self._end([owned for owned in queues if owned not in late])
        for owned in late:
            logger.info("group %s: %s goes when its running listener is done", self._group, owned.queue)
            self._tasks.start(self._end_later(owned), name=f"end {owned.queue}")

    async def leave(self, seconds: float) -> None:
        """End consuming all queues; who works on one longer than so many seconds has worked for nothing."""
        await self._tasks.stop()
        queues = list(self.held.values())
        for owned in queues:
            self._work.stop(owned)
        await self._quiet(queues, seconds)
        self._tell_late([owned for owned in queues if self._work.at_work(owned)], seconds)
        await self._end(queues)
        at_work = {owned.queue for owned in queues if self._work.at_work(owned)}
        await self._unlock(self._locked - at_work)  # of those that were just being taken or given away

    async def unlock_all(self) -> None:
        """Give all locks back; for who has ended its work by itself."""
        await self._unlock(list(self._locked))

    def lock_lost(self, queue: MessageQueue) -> None:
        """The lock of a queue is another's: it is not ours to give back."""
        self._locked.discard(queue)

    async def _lock(self, queues: Sequence[MessageQueue]) -> list[MessageQueue]:
        """Return those of the queues that may be taken now."""
        assert self._locks is not None
        free = [queue for queue in queues if queue not in self.held]  # others are still ending here
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

    async def _begin(self, queue: MessageQueue) -> Q | None:
        try:
            owned = await self._work.begin(queue)
        except MQError as error:
            self._say(queue, f"cannot be consumed yet: {error}")
            return None
        if owned is not None:
            self._troubled.discard(queue)
            self.held[queue] = owned
        return owned

    async def _quiet(self, queues: Sequence[Q], seconds: float) -> None:
        """Wait until nobody works on these queues, at most so long."""
        if not any(self._work.at_work(owned) for owned in queues):
            return

        async def all_quiet() -> None:
            for owned in queues:
                await self._work.quiet(owned)

        waits = [asyncio.ensure_future(all_quiet()), asyncio.ensure_future(self._clock.sleep(seconds))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _end(self, queues: Sequence[Q]) -> None:
        """Store the offsets, let nothing count any more, unlock."""
        await self._work.save(queues)
        for owned in queues:
            self.held.pop(owned.queue, None)
        await self._unlock([owned.queue for owned in queues if self._work.release(owned)])

    async def _end_later(self, owned: Q) -> None:
        await self._work.quiet(owned)
        await self._end([owned])
        self._wake()

    async def _unlock(self, queues: Collection[MessageQueue]) -> None:
        if self._locks is not None and queues:
            await self._locks.unlock(queues)
            self._locked.difference_update(queues)

    def _tell_late(self, late: Sequence[Q], seconds: float) -> None:
        if late:
            self._work.tell_late(late, seconds)

    def _say(self, queue: MessageQueue, what: str) -> None:
        if queue not in self._troubled:
            self._troubled.add(queue)
            logger.warning("group %s: %s: %s", self._group, queue, what)
