"""Locks of orderly consumers: which client of a group consumes which queue. In memory only; advisory.

A lock ends when its holder releases it, or does not renew it for 60 s. A lock may also be tied to its connection: if
the connection closes, the holder has half a second to lock again over another connection, and starts no listener
meanwhile. So the queues of a killed holder move within a second, and a holder that reconnects keeps them. Locks that
are not tied, such as those of Java clients, outlast their connection.

Members that were refused a queue are notified when it is free: Java clients ask again only every 20 s.
Source: RocketMQ 4.9.8, RebalanceLockManager; tied locks are ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pyromq.broker.limits import DEFAULT_LIMITS
from pyromq.clock import Clock
from pyromq.message import MessageQueue
from pyromq.net.slow_replies import in_pieces
from pyromq.net.tasks import Alarm
from pyromq.quota import Quota
from pyromq.remoting.bodies import REQUEST, LockedQueues, LockHolder, QueueLock, WireQueue, decode_body
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import Peer, answers
from pyromq.remoting.headers import ConsumerIdsChanged, LockQueues, UnlockQueues
from pyromq.slow_work import breathe

AT_ONCE = 100  # queues between two pauses

LOCK_SECONDS = 60.0  # rocketmq.broker.rebalance.lockMaxLiveTime
GRACE_SECONDS = 0.5  # for a holder to reconnect: many times what connecting takes; its listener may be running
_JUST_AFTER = 0.001  # a lock still holds at the moment when it ends


@dataclass(slots=True)
class _Lock:
    client_id: str
    since: float  # monotonic seconds
    ends: float  # monotonic seconds; each request of the holder moves it, and the end of `connection` too
    connection: Peer | None  # to which it is tied


class QueueLocks:
    """The locks by group and queue. `alarm` rings when `tell_refused` must run earlier than it returned."""

    def __init__(self, clock: Clock, *, most: int = DEFAULT_LIMITS.queue_locks) -> None:
        self._clock = clock
        self._most_refused = most
        self._quota: Quota[str] = Quota("maxQueueLocks", most, is_hard=True)  # by group
        self._count_refused = 0
        self.alarm = Alarm(clock)
        self._locks: dict[str, dict[MessageQueue, _Lock]] = {}
        # The groups of which each connection holds or held locks: its end looks through these only.
        self._groups_of: dict[Peer, set[str]] = {}
        self._refused: dict[tuple[str, MessageQueue], set[Peer]] = {}

    def lock(
        self,
        group: str,
        client_id: str,
        queues: Iterable[MessageQueue],
        *,
        asker: Peer | None = None,
        tied: bool = False,
    ) -> list[MessageQueue]:
        """Lock the queues that are free, expired or the client's own; return them in the order asked.

        The connection `asker` is notified when the others are free. `tied` locks end soon after it. Raises
        `LimitReached` if the group exceeds its share.
        """
        tied_to = asker if tied else None
        now = self._clock.monotonic()
        locks = self._locks.setdefault(group, {})
        granted = []
        for queue in queues:
            lock = locks.get(queue)
            if lock is None or lock.client_id == client_id or now > lock.ends:
                if lock is None:
                    text = f"group {group[:80]} has {len(locks)} queues locked, which is its share; use several groups"
                    self._quota.take(group, text=text)
                since = lock.since if lock is not None and lock.client_id == client_id else now
                locks[queue] = _Lock(client_id, since, now + LOCK_SECONDS, tied_to)
                granted.append(queue)
            elif asker is not None and self._count_refused < self._most_refused:
                askers = self._refused.setdefault((group, queue), set())
                self._count_refused += asker not in askers
                askers.add(asker)
                self.alarm.ring_within(lock.ends - now)
        if tied_to is not None and granted:
            self._watch(tied_to, group)
        return granted

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Release the client's own locks among `queues`; locks of other clients stay."""
        locks = self._locks.get(group, {})
        for queue in queues:
            lock = locks.get(queue)
            if lock is not None and lock.client_id == client_id:
                del locks[queue]
                self._quota.give(group)
                if (group, queue) in self._refused:
                    self.alarm.ring_within(0)
        if not locks:
            self._locks.pop(group, None)

    def tell_refused(self) -> float | None:
        """Notify members that were refused a queue which is free now; return the seconds until the next may be free."""
        now = self._clock.monotonic()
        told: set[tuple[str, Peer]] = set()
        waits = []
        for (group, queue), askers in list(self._refused.items()):
            lock = self._locks.get(group, {}).get(queue)
            if lock is not None and now <= lock.ends:
                waits.append(lock.ends - now)
            else:
                told.update((group, asker) for asker in askers)
                del self._refused[group, queue]
                self._count_refused -= len(askers)
        for group, asker in told:
            asker.notify(ConsumerIdsChanged(consumer_group=group))
        return min(waits) + _JUST_AFTER if waits else None

    def expire(self) -> None:
        """Remove expired locks."""
        now = self._clock.monotonic()
        for group in list(self._locks):
            locks = self._locks[group]
            ended = [queue for queue, lock in locks.items() if now > lock.ends]
            for queue in ended:
                del locks[queue]
            self._quota.give(group, len(ended))
            if not locks:
                del self._locks[group]

    def holders(self, group: str) -> dict[MessageQueue, tuple[str, float]]:
        """Return the client id and the age in seconds of each lock of a group."""
        now = self._clock.monotonic()
        locks = self._locks.get(group, {})
        return {queue: (lock.client_id, now - lock.since) for queue, lock in locks.items() if now <= lock.ends}

    def _watch(self, connection: Peer, group: str) -> None:
        groups = self._groups_of.get(connection)
        if groups is None:
            groups = self._groups_of[connection] = set()
            connection.on_close += (self._free,)
        groups.add(group)

    def _free(self, connection: Peer) -> None:
        """End the locks tied to a closed connection soon. Locks renewed over another connection stay."""
        ends = self._clock.monotonic() + GRACE_SECONDS
        for group in self._groups_of.pop(connection, ()):
            for lock in self._locks.get(group, {}).values():
                if lock.connection is connection:
                    lock.ends = min(lock.ends, ends)
        if self._refused:
            self.alarm.ring_within(GRACE_SECONDS + _JUST_AFTER)


class QueueLockProcessor:
    """Answers requests to lock and unlock queues."""

    def __init__(self, queue_locks: QueueLocks) -> None:
        self._queue_locks = queue_locks

    @answers(LockQueues)
    async def lock(self, header: LockQueues, call: Call) -> Reply:
        asked = decode_body(QueueLock, call.body, REQUEST)
        tied = asked.tied_to_connection
        granted: list[MessageQueue] = []
        left: set[MessageQueue] = set()
        for part in _parts(asked):
            if call.peer.closed:
                return Reply()
            locked = self._queue_locks.lock(asked.group, asked.client_id, part, asker=call.peer, tied=tied)
            granted += locked
            left |= set(part) - set(locked)
            await breathe()
        refused = self._refused(asked.group, left) if tied and left else None
        return await in_pieces(LockedQueues(queues=[WireQueue.of(q) for q in granted], refused=refused))

    def _refused(self, group: str, queues: set[MessageQueue]) -> list[LockHolder]:
        holders = self._queue_locks.holders(group)
        return [
            LockHolder(queue=WireQueue.of(queue), client_id=holders[queue][0], age_ms=int(holders[queue][1] * 1000))
            for queue in sorted(queues)
        ]

    @answers(UnlockQueues)
    async def unlock(self, header: UnlockQueues, call: Call) -> Reply:
        asked = decode_body(QueueLock, call.body, REQUEST)
        for part in _parts(asked):
            self._queue_locks.unlock(asked.group, asked.client_id, part)
            await breathe()
        return Reply()


def _parts(asked: QueueLock) -> Iterator[list[MessageQueue]]:
    for begin in range(0, len(asked.queues), AT_ONCE):
        yield [wire.queue for wire in asked.queues[begin : begin + AT_ONCE]]
