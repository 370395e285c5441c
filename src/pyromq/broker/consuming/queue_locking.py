"""Answers consumers that keep order: locks queues for one client of a group, and frees them."""

from __future__ import annotations

from pyromq.broker.consuming.queue_locks import QueueLocks
from pyromq.message import MessageQueue
from pyromq.remoting.bodies import LockedQueues, LockHolder, QueueLock, WireQueue, decode_body, encode_body
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import LockQueues, UnlockQueues


class Locking:
    """Passes lock requests to the table of locks."""

    def __init__(self, queue_locks: QueueLocks) -> None:
        self._queue_locks = queue_locks

    @answers(LockQueues)
    def lock(self, header: LockQueues, call: Call) -> Reply:
        asked = decode_body(QueueLock, call.body)
        queues = [wire.queue for wire in asked.queues]
        granted = self._queue_locks.lock(
            asked.group, asked.client_id, queues, asker=call.peer, tied=asked.tied_to_connection
        )
        refused = None
        if asked.tied_to_connection and len(granted) < len(queues):
            refused = self._refused(asked.group, set(queues) - set(granted))
        return Reply(body=encode_body(LockedQueues(queues=[WireQueue.of(q) for q in granted], refused=refused)))

    def _refused(self, group: str, queues: set[MessageQueue]) -> list[LockHolder]:
        holders = self._queue_locks.holders(group)
        return [
            LockHolder(queue=WireQueue.of(queue), client_id=holders[queue][0], age_ms=int(holders[queue][1] * 1000))
            for queue in sorted(queues)
        ]

    @answers(UnlockQueues)
    def unlock(self, header: UnlockQueues, call: Call) -> Reply:
        asked = decode_body(QueueLock, call.body)
        self._queue_locks.unlock(asked.group, asked.client_id, [wire.queue for wire in asked.queues])
        return Reply()
