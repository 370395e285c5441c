"""Locks of orderly consumers: which client of a group consumes which queue. Kept in memory only, and advisory.

A lock ends when the client that holds the lock (the holder) releases it, or does not renew it for 60 s. A lock may be
tied to the holder's connection. If that connection closes, the holder has half a second to lock again over another
connection, and calls no listener until then. So the queues of a killed holder move within a second, and a holder that
reconnects keeps its queues. Locks that are not tied, for example locks of Java clients, outlast their connection.

Refused clients are notified when the queue is free, because Java clients request locks only every 20 s.
Source: RocketMQ 4.9.8, RebalanceLockManager, except tied locks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from pyromq.broker.limits import DEFAULT_LIMITS
from pyromq.broker.replicated_table import ChangedKeys
from pyromq.clock import Clock
from pyromq.message import MessageQueue
from pyromq.net.slow_replies import in_pieces
from pyromq.net.tasks import Alarm
from pyromq.quota import Quota
from pyromq.remoting.bodies import REQUEST, LockedQueues, LockHolder, QueueLock, WireQueue, decode_body
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import Peer, answers
from pyromq.remoting.headers import ConsumerIdsChanged, LockQueues, UnlockQueues
from pyromq.slow_work import yield_slice

AT_ONCE = 100  # queues that are locked or unlocked before other connections are served

LOCK_SECONDS = 60.0  # life of a lock that is not renewed: rocketmq.broker.rebalance.lockMaxLiveTime
GRACE_SECONDS = 0.5  # time in which a holder can reconnect before its tied locks end: connecting takes far less
_JUST_AFTER = 0.001  # added to the wait for a lock's end, at which the lock is still valid


@dataclass(slots=True)
class _Lock:
    client_id: str
    since: float  # time at which the client locked the queue (monotonic seconds)
    ends: float  # time at which the lock ends (monotonic seconds), if the holder does not renew the lock
    connection: Peer | None  # connection to which the lock is tied; None if not tied


class QueueLocks:
    """The locks of orderly consumers, by group and queue.

    `notify_refused` returns the seconds until its next call; `alarm` fires if the call must come earlier.
    """

    def __init__(self, clock: Clock, *, most: int = DEFAULT_LIMITS.queue_locks) -> None:
        self._clock = clock
        self._max_refused = most
        self._quota: Quota[str] = Quota("maxQueueLocks", most, is_hard=True)  # each group may use a part of the limit
        self._count_refused = 0
        self.alarm = Alarm(clock)
        self.changed: ChangedKeys | None = None  # counts changes for the replicas of a set; None outside of sets
        self._locks: dict[str, dict[MessageQueue, _Lock]] = {}
        # The groups in which each connection holds or held tied locks: searched when the connection closes.
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
        """Lock the queues that are free, or whose lock has expired or is the client's. Return them in the given order.

        The connection `asker` is notified when the other queues are free. `tied` locks end soon after this connection.
        Raises `LimitReached` if the group exceeds its part of the limit.
        """
        tied_to = asker if tied else None
        now = self._clock.monotonic()
        locks = self._locks.setdefault(group, {})
        if tied_to is not None:
            self._watch(tied_to, group)
        self._note(group)
        granted = []
        for queue in queues:
            lock = locks.get(queue)
            if lock is None or lock.client_id == client_id or now > lock.ends:
                if lock is None:
                    text = f"group {group[:80]} locked {len(locks)} queues, the limit of one group; use several groups"
                    self._quota.acquire(group, text=text)
                since = lock.since if lock is not None and lock.client_id == client_id else now
                locks[queue] = _Lock(client_id, since, now + LOCK_SECONDS, tied_to)
                granted.append(queue)
            elif asker is not None and self._count_refused < self._max_refused:
                askers = self._refused.setdefault((group, queue), set())
                self._count_refused += asker not in askers
                askers.add(asker)
                self.alarm.schedule_within(lock.ends - now)
        return granted

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Release the client's locks of these queues. Locks of other clients are not changed."""
        locks = self._locks.get(group, {})
        for queue in queues:
            lock = locks.get(queue)
            if lock is not None and lock.client_id == client_id:
                del locks[queue]
                self._quota.release(group)
                if (group, queue) in self._refused:
                    self.alarm.schedule_within(0)
        if not locks:
            self._locks.pop(group, None)
        self._note(group)

    def notify_refused(self) -> float | None:
        """Notify the refused clients of queues that are free now.

        Return the seconds until the next queue may be free; None if no client waits.
        """
        now = self._clock.monotonic()
        notified: set[tuple[str, Peer]] = set()
        waits = []
        for (group, queue), askers in list(self._refused.items()):
            lock = self._locks.get(group, {}).get(queue)
            if lock is not None and now <= lock.ends:
                waits.append(lock.ends - now)
            else:
                notified.update((group, asker) for asker in askers)
                del self._refused[group, queue]
                self._count_refused -= len(askers)
        for group, asker in notified:
            asker.notify(ConsumerIdsChanged(consumer_group=group))
        return min(waits) + _JUST_AFTER if waits else None

    def expire(self) -> None:
        """Remove the locks that their holders have not renewed in time, and refused clients that have left."""
        now = self._clock.monotonic()
        for group in list(self._locks):
            locks = self._locks[group]
            ended = [queue for queue, lock in locks.items() if now > lock.ends]
            for queue in ended:
                del locks[queue]
            self._quota.release(group, len(ended))
            if not locks:
                del self._locks[group]
        for askers in self._refused.values():
            gone = {asker for asker in askers if asker.closed}
            askers -= gone
            self._count_refused -= len(gone)

    def holders(self, group: str) -> dict[MessageQueue, tuple[str, float]]:
        """Return for each locked queue of a group the holder's client id and the lock's age in seconds."""
        now = self._clock.monotonic()
        locks = self._locks.get(group, {})
        return {queue: (lock.client_id, now - lock.since) for queue, lock in locks.items() if now <= lock.ends}

    # -- replicas of a set

    def encode_changed(self, since: int | None) -> bytes:
        """Return the locks of the groups that have changed since a version of `changed`, for `adopt`; None: all."""
        groups = list(self._locks) if since is None or self.changed is None else self.changed.since(since)
        now = self._clock.monotonic()
        locks = {
            group: [
                _CopiedLock(queue.topic, queue.broker_name, queue.queue_id, lock.client_id, now - lock.since, left)
                for queue, lock in self._locks.get(group, {}).items()
                if (left := lock.ends - now) >= 0
            ]
            for group in groups
        }
        return msgspec.json.encode(_CopiedLocks(locks, since is None))

    def adopt(self, data: bytes) -> None:
        """Take over changed locks of a master, each with its remaining time.

        So after a takeover other clients get a lock only when its remaining time is over. The locks are tied to no
        connection, since holders have to reconnect. Raises `msgspec.DecodeError`.
        """
        copied = msgspec.json.decode(data, type=_CopiedLocks)
        now = self._clock.monotonic()
        for group in {*copied.locks, *(self._locks if copied.is_all else ())}:
            locks = {
                MessageQueue(lock.topic, lock.broker, lock.queue_id): _Lock(
                    lock.client_id, now - lock.age_seconds, now + lock.left_seconds, None
                )
                for lock in copied.locks.get(group, ())
            }
            self._quota.hold(group, len(locks))
            self._locks[group] = locks
            if not locks:
                del self._locks[group]
            self._note(group)

    def _note(self, group: str) -> None:
        if self.changed is not None:
            self.changed.note(group)

    def _watch(self, connection: Peer, group: str) -> None:
        groups = self._groups_of.get(connection)
        if groups is None:
            groups = self._groups_of[connection] = set()
            connection.on_close += (self._end_tied,)
        groups.add(group)

    def _end_tied(self, connection: Peer) -> None:
        """Let the locks tied to a closed connection end after `GRACE_SECONDS`.

        Locks that were renewed over another connection do not end.
        """
        ends = self._clock.monotonic() + GRACE_SECONDS
        for group in self._groups_of.pop(connection, ()):
            for lock in self._locks.get(group, {}).values():
                if lock.connection is connection:
                    lock.ends = min(lock.ends, ends)
            self._note(group)
        if self._refused:
            self.alarm.schedule_within(GRACE_SECONDS + _JUST_AFTER)


class _CopiedLock(msgspec.Struct, frozen=True):
    topic: str
    broker: str
    queue_id: int
    client_id: str
    age_seconds: float
    left_seconds: float


class _CopiedLocks(msgspec.Struct, frozen=True):
    """The locks of changed groups. `is_all`: other groups have no locks."""

    locks: dict[str, list[_CopiedLock]]
    is_all: bool


class QueueLockProcessor:
    """Answers requests of orderly consumers to lock and unlock queues."""

    def __init__(self, queue_locks: QueueLocks) -> None:
        self._queue_locks = queue_locks

    @answers(LockQueues)
    async def lock(self, header: LockQueues, call: Call) -> Reply:
        request = decode_body(QueueLock, call.body, REQUEST)
        tied = request.tied_to_connection
        granted: list[MessageQueue] = []
        left: set[MessageQueue] = set()
        for part in _parts(request):
            if call.peer.closed:
                return Reply()
            locked = self._queue_locks.lock(request.group, request.client_id, part, asker=call.peer, tied=tied)
            granted += locked
            left |= set(part) - set(locked)
            await yield_slice()
        refused = self._refused(request.group, left) if tied and left else None
        return await in_pieces(LockedQueues(queues=[WireQueue.of(q) for q in granted], refused=refused))

    def _refused(self, group: str, queues: set[MessageQueue]) -> list[LockHolder]:
        holders = self._queue_locks.holders(group)
        return [
            LockHolder(queue=WireQueue.of(queue), client_id=holders[queue][0], age_ms=int(holders[queue][1] * 1000))
            for queue in sorted(queues & holders.keys())  # a lock may have ended meanwhile
        ]

    @answers(UnlockQueues)
    async def unlock(self, header: UnlockQueues, call: Call) -> Reply:
        request = decode_body(QueueLock, call.body, REQUEST)
        for part in _parts(request):
            self._queue_locks.unlock(request.group, request.client_id, part)
            await yield_slice()
        return Reply()


def _parts(request: QueueLock) -> Iterator[list[MessageQueue]]:
    for begin in range(0, len(request.queues), AT_ONCE):
        yield [wire.queue for wire in request.queues[begin : begin + AT_ONCE]]
