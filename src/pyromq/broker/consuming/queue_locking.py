"""Answers consumers that keep order: locks queues for one client of a group, and frees them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future

from pyromq.broker.consuming.queue_locks import QueueLocks
from pyromq.message import MessageQueue
from pyromq.net.long_answers import LongAnswer, LongAnswers, in_pieces
from pyromq.remoting.bodies import REQUEST, LockedQueues, LockHolder, QueueLock, WireQueue, decode_body
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import LockQueues, UnlockQueues

AT_ONCE = 100  # queues between two looks at the clock


class Locking:
    """Passes lock requests to the table of locks."""

    def __init__(self, queue_locks: QueueLocks, long_answers: LongAnswers) -> None:
        self._queue_locks = queue_locks
        self._long_answers = long_answers

    @answers(LockQueues)
    def lock(self, header: LockQueues, call: Call) -> Reply | Future[Reply]:
        asked = decode_body(QueueLock, call.body, REQUEST)
        return self._long_answers.give(self._locked(asked, call), call)

    def _locked(self, asked: QueueLock, call: Call) -> LongAnswer:
        tied = asked.tied_to_connection
        granted: list[MessageQueue] = []
        left: set[MessageQueue] = set()
        for part in _parts(asked):
            if call.peer.closed:
                return Reply()
            locked = self._queue_locks.lock(asked.group, asked.client_id, part, asker=call.peer, tied=tied)
            granted += locked
            left |= set(part) - set(locked)
            yield None
        refused = self._refused(asked.group, left) if tied and left else None
        return (yield from in_pieces(LockedQueues(queues=[WireQueue.of(q) for q in granted], refused=refused)))

    def _refused(self, group: str, queues: set[MessageQueue]) -> list[LockHolder]:
        holders = self._queue_locks.holders(group)
        return [
            LockHolder(queue=WireQueue.of(queue), client_id=holders[queue][0], age_ms=int(holders[queue][1] * 1000))
            for queue in sorted(queues)
        ]

    @answers(UnlockQueues)
    def unlock(self, header: UnlockQueues, call: Call) -> Reply | Future[Reply]:
        asked = decode_body(QueueLock, call.body, REQUEST)
        return self._long_answers.give(self._unlocked(asked), call)

    def _unlocked(self, asked: QueueLock) -> LongAnswer:
        for part in _parts(asked):
            self._queue_locks.unlock(asked.group, asked.client_id, part)
            yield None
        return Reply()


def _parts(asked: QueueLock) -> Iterator[list[MessageQueue]]:
    for begin in range(0, len(asked.queues), AT_ONCE):
        yield [wire.queue for wire in asked.queues[begin : begin + AT_ONCE]]
