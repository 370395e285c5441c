"""One queue assigned to a pull consumer: what is fetched and not yet handed out, and how far the application is.

    fetched ahead          handed out              finished
    `fetch_offset` >= ...  `position` >= ...       `finished`  (what may be committed without being asked)

Plain state without tasks; the consumer fetches into it and hands out of it.
"""

from __future__ import annotations

from collections import deque

from pyromq.filter.subscribed import Wanted
from pyromq.message import MessageQueue, StoredMessage


class Batch:
    """What one pull brought; handed out whole, or message by message."""

    def __init__(self, assigned: AssignedQueue, messages: list[StoredMessage], next_offset: int) -> None:
        self.assigned = assigned
        self._epoch = assigned.epoch
        self.messages = deque(messages)
        self.next_offset = next_offset
        self.count = len(messages)
        self.size = sum(len(message.stored_body) for message in messages)

    def hand_out_all(self) -> list[StoredMessage]:
        """Return the messages left; the queue's position is behind them."""
        messages = list(self.messages)
        self.messages.clear()
        self._advance(self.next_offset)
        return messages

    def hand_out_one(self) -> StoredMessage:
        """Return the next message; the queue's position is behind it."""
        message = self.messages.popleft()
        self._advance(message.queue_offset + 1 if self.messages else self.next_offset)
        return message

    def _advance(self, position: int) -> None:
        if self._epoch == self.assigned.epoch:  # else the queue was moved while this batch was looked through
            self.assigned.position = position


class AssignedQueue:
    """The state of one assigned queue; offsets are queue offsets."""

    def __init__(self, queue: MessageQueue, wanted: Wanted) -> None:
        self.queue = queue
        self.wanted = wanted
        self.paused = False
        self.leaving = False  # it is given away: nothing more is handed out
        self.pulled_ms = 0  # wall clock of the latest pull, for those who look from outside
        self.polled_ms = 0  # and of the latest batch handed out
        self.gone_since: float | None = None  # monotonic; the topic was not there whenever it was asked for since
        self.epoch = 0  # counts the moves to another offset
        self.broker_id = 0  # the one the broker suggested with its last answer
        self.position = 0
        self.finished = 0
        self.committed = -1  # what was stored last; -1: nothing yet
        self.fetch_offset = 0
        self.latest_ms = 0  # when the latest message fetched was stored
        self.ready: deque[Batch] = deque()
        self.ready_count = 0
        self.ready_bytes = 0

    def restart(self, offset: int) -> None:
        """Forget what is fetched and go on at `offset`."""
        self.epoch += 1
        self.position = self.finished = self.fetch_offset = offset
        self._forget_fetched()

    def begin_anew(self, *, forgotten: bool) -> None:
        """The topic is gone: one made later by its name begins at 0.

        What was committed is `forgotten` with it where brokers keep that; elsewhere the beginning is to be stored.
        """
        self.restart(0)
        self.committed = 0 if forgotten else -1

    def leave(self) -> None:
        """Hand out nothing more; the position stays behind what was."""
        self.leaving = True
        self._forget_fetched()

    def add(self, messages: list[StoredMessage], next_offset: int) -> bool:
        """Take what a pull brought; return whether there is something to hand out."""
        self.fetch_offset = next_offset
        if messages:
            self.latest_ms = messages[-1].store_ms
            batch = Batch(self, messages, next_offset)
            self.ready.append(batch)
            self.ready_count += batch.count
            self.ready_bytes += batch.size
        elif not self.ready and self.position < next_offset:
            self.position = next_offset  # nothing wanted on the way: filtered queues make progress too
        return bool(messages)

    def correct(self, offset: int) -> None:
        """Go on at `offset`, on either side of the place so far; what is fetched is handed out first."""
        self.fetch_offset = offset
        if not self.ready:
            self.position = offset
            self.finished = min(self.finished, offset)

    def take(self) -> Batch:
        """Return the oldest batch, which the caller hands out."""
        batch = self.ready.popleft()
        self.ready_count -= batch.count
        self.ready_bytes -= batch.size
        return batch

    def _forget_fetched(self) -> None:
        self.ready.clear()
        self.ready_count = self.ready_bytes = 0
