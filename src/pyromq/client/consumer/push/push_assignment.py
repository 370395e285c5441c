"""What a push consumer does with the queues it owns: pulls them, ends them, keeps their locks, moves them elsewhere.

When queues are taken and given away is for `Assignment` to say. Where order is kept, a queue whose lock is, or may be,
another's is `lost`: nothing of it starts any more, its offset is not stored, the rebalance takes it again when it can.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import inf

from pyromq.client.consumer.assignment import Assignment
from pyromq.client.consumer.group_offsets import GroupOffsets
from pyromq.client.consumer.push.orderly import OrderlyConsuming
from pyromq.client.consumer.push.owned_queue import OwnedQueue
from pyromq.client.consumer.push.pull_loop import PullLoops
from pyromq.client.consumer.queue_locks import RENEW_SECONDS, QueueLocks
from pyromq.clock import Clock
from pyromq.errors import MQError, TopicNotFound
from pyromq.logs import logger_of
from pyromq.message import MessageQueue
from pyromq.net.tasks import Tasks, every

logger = logger_of(__name__)

VALID_SECONDS = 30.0  # since the broker's latest word; it keeps a lock for 60 s. Source: REBALANCE_LOCK_MAX_LIVE_TIME
# A broker that ties locks to connections keeps them so long for the client to come back; what is locked again within
# this time cannot have been another's.
GRACE_SECONDS = 0.4
AGAIN_SECONDS = 0.02


class PushAssignment:
    """The work on the queues of one consumer, and the tasks for it. `owned` are those that are ours by the rebalance.

    `order` is None where messages are consumed side by side, `locks` where every member consumes every queue. `wake`
    makes the rebalance look again.
    """

    def __init__(
        self,
        group: str,
        clock: Clock,
        *,
        owned: dict[MessageQueue, OwnedQueue],
        offsets: GroupOffsets,
        pulls: PullLoops,
        order: OrderlyConsuming | None,
        locks: QueueLocks | None,
        wake: Callable[[], None],
    ) -> None:
        self._group = group
        self._clock = clock
        self._owned = owned
        self._offsets = offsets
        self._pulls = pulls
        self._order = order
        self._locks = locks
        self._strict = strict = locks is not None and order is not None
        self._wake = wake
        self._tasks = Tasks()
        self._loops: dict[OwnedQueue, asyncio.Task[None]] = {}
        self._breaks = 0  # of connections to brokers, so far
        self._breaks_before = 0  # the locks of those that are just being taken
        self._left: dict[MessageQueue, int] = {}  # queues with lost locks, and up to where they are consumed here
        self.queues = Assignment[OwnedQueue](group, clock, self, locks=locks, strict=strict, wake=wake)
        self._renewal = (
            LockRenewal(locks, self.queues.held, clock, go_on=self._go_on, lose=self._lose)
            if locks is not None
            else None
        )

    def start(self) -> None:
        """Begin to renew locks."""
        if self._renewal is not None:
            self._tasks.start(every(RENEW_SECONDS, self._renewal.renew, self._clock), name=f"locks of {self._group}")

    async def take(self, queues: Sequence[MessageQueue]) -> list[OwnedQueue]:
        """Begin to consume queues; returns those that could be taken."""
        self._breaks_before = self._breaks
        return await self.queues.take(queues)

    async def leave(self, seconds: float) -> None:
        """End consuming all queues; listeners that run longer than so many seconds have worked for nothing."""
        await self._tasks.stop()
        await self.queues.leave(seconds)

    def stuck(self, owned: OwnedQueue) -> str:
        """Why a queue of ours has to be taken again; "" when it need not."""
        if owned.lost:
            return "may be another member's now"
        return "was not pulled for a long time" if self._pulls.is_stuck(owned) else ""

    def reset(self, offsets: dict[MessageQueue, int]) -> None:
        """Go on with those queues that are ours at the offsets, and store them: what was known of them is void.

        So an administrator moves the group, and so it begins again in a topic that was deleted.
        """
        for queue, offset in offsets.items():
            self._left.pop(queue, None)
            if (held := self.queues.held.get(queue)) is not None and held is not self._owned.get(queue):
                held.process_queue.drop()  # given away, but its listener still runs
            if queue in self._owned:
                self._tasks.start(self._reset(self._owned[queue], offset), name=f"reset {queue}")

    def connection_lost(self, address: str) -> None:
        """A broker may free our locks now. Where order is kept, no listener starts before they are ours again."""
        self._breaks += 1
        queues = [owned for owned in self.queues.held.values() if owned.lock_address == address]
        if self._renewal is not None and queues:
            again = self._renewal.take_again(queues) if self._strict else self._renewal.renew()
            self._tasks.start(again, name=f"lock again at {address}")

    async def begin(self, queue: MessageQueue) -> OwnedQueue | None:
        """Pull a queue from where the group stands; None when its lock may have gone with a connection meanwhile."""
        offset = await self._offsets.start(queue)
        lock_address = await self._locks.address(queue) if self._locks is not None else ""
        if self._strict and self._breaks != self._breaks_before:
            return None
        offset = max(offset, self._left.pop(queue, 0))  # a broker that was killed has forgotten what it was told last
        allowed_until = self._clock.monotonic() + VALID_SECONDS if self._strict else inf
        # Its messages may come before the other queues have begun: the listener may ask, an administrator move it.
        owned = self._owned[queue] = self._pull(queue, offset, allowed_until, lock_address)
        return owned

    def stop(self, owned: OwnedQueue) -> None:
        """Pull nothing more, and start no listener."""
        owned.process_queue.close()
        if (loop := self._loops.pop(owned, None)) is not None:
            loop.cancel()

    def at_work(self, owned: OwnedQueue) -> bool:
        """Whether a listener runs."""
        return owned.process_queue.running

    async def quiet(self, owned: OwnedQueue) -> None:
        """Wait until no listener runs."""
        await owned.process_queue.quiet()

    def tell_late(self, late: Sequence[OwnedQueue], seconds: float) -> None:
        names = ", ".join(str(owned.queue) for owned in late)
        logger.warning(
            "group %s: listeners still run after %g s, their messages come again: %s", self._group, seconds, names
        )

    async def save(self, queues: Iterable[OwnedQueue]) -> None:
        """Store the safe offsets that have changed; those of lost queues are another's to store.

        What cannot be stored is logged; another try comes with the next save or pull.
        """
        await self._save(owned for owned in queues if not owned.lost)

    async def save_all(self) -> None:
        await self.save(self._owned.values())

    def release(self, owned: OwnedQueue) -> bool:
        """Let nothing of a queue count any more. Where order is kept, a listener that still runs keeps its lock."""
        owned.process_queue.drop()
        if owned.lost:
            self._left[owned.queue] = owned.process_queue.safe_offset
            return False
        return not (self._strict and owned.process_queue.running)

    def _pull(self, queue: MessageQueue, offset: int, allowed_until: float, lock_address: str) -> OwnedQueue:
        """Pull a queue from an offset on."""
        owned = OwnedQueue(queue, offset, self._clock.monotonic)
        owned.process_queue.allowed_until = allowed_until
        if self._locks is not None:
            owned.lock_address, owned.locked_ms = lock_address, self._clock.now_ms()
        self._loops[owned] = self._tasks.start(self._pulls.run(owned), name=f"pull {queue}")
        return owned

    async def _reset(self, owned: OwnedQueue, offset: int) -> None:
        self.stop(owned)
        if self._strict:
            await owned.process_queue.quiet()  # never two listeners of a queue at once
        if self._owned.get(owned.queue) is not owned:
            return  # given away meanwhile
        owned.process_queue.drop()
        moved = self._pull(owned.queue, offset, owned.process_queue.allowed_until, owned.lock_address)
        moved.lost = owned.lost
        self._owned[owned.queue] = self.queues.held[owned.queue] = moved
        logger.info("group %s: %s is consumed from offset %d on, as asked", self._group, owned.queue, offset)
        await self._save([moved])

    async def _save(self, queues: Iterable[OwnedQueue]) -> None:
        offsets = {owned: owned.process_queue.safe_offset for owned in queues if not owned.dropped}
        moved = {owned: offset for owned, offset in offsets.items() if offset != owned.committed}
        failures = await self._offsets.save({owned.queue: offset for owned, offset in moved.items()})
        late: dict[MQError, list[str]] = {}
        for owned, offset in moved.items():
            failure = failures.get(owned.queue)
            if failure is None or isinstance(failure, TopicNotFound):  # nobody keeps offsets of a topic that is gone
                owned.committed = offset
            else:
                late.setdefault(failure, []).append(f"{offset} of {owned.queue}")
        for failure, names in late.items():
            logger.warning("group %s: offsets are not stored yet, %s: %s", self._group, ", ".join(names), failure)

    def _go_on(self, owned: OwnedQueue) -> None:
        if self._order is not None:
            self._order.go_on(owned.process_queue)

    def _lose(self, owned: OwnedQueue) -> None:
        """The lock is, or may be, another's: give the queue up; the rebalance will take it again when it can."""
        if self._order is None:
            return  # another has run out of patience: a rebalance will say whose the queue is
        owned.lost = True
        owned.process_queue.allowed_until = 0.0
        self.queues.lock_lost(owned.queue)
        self._order.lose(owned.process_queue)
        self._wake()


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
