"""One queue that a push consumer owns: what is in flight, where pulling stands, whether it may be worked on.

Plain state; pull loop, listeners and rebalance each read and write their part of it, all on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable

from pyromq.client.consumer.push.process_queue import ProcessQueue
from pyromq.message import MessageQueue


class OwnedQueue:
    """The state of one owned queue.

    `committed` is the offset stored last, -1 for nothing yet.
    """

    def __init__(self, queue: MessageQueue, start_offset: int, now: Callable[[], float]) -> None:
        self.queue = queue
        self.process_queue = ProcessQueue(queue, start_offset, now)
        self.committed = -1
        self.broker_id = 0  # the one the broker suggested with its last answer
        self.troubled = False  # pulling fails; said once
        self.full = False  # as much is in flight as may be: pulling waits
        self.pulled = now()  # monotonic seconds of the latest pull
        self.pulled_ms = 0  # wall clock, for those who look from outside
        self.latest_ms = 0  # when the latest message pulled was stored
        self.lock_address = ""  # the broker that keeps the queue's lock, where order is kept
        self.locked_ms = 0  # wall clock of the broker's latest word that it is locked for us
        self.breaks = 0  # how often the connection broke that the lock is tied to
        self.lost = False  # its lock is, or may be, another's: to be given up and taken again

    @property
    def topic(self) -> str:
        return self.queue.topic

    @property
    def dropped(self) -> bool:
        return self.process_queue.dropped
