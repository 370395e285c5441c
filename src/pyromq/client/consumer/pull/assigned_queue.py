"""One queue assigned to a pull consumer: its prefetched messages and the application's position.

    fetched ahead          handed out              finished
    `fetch_offset` >= ...  `position` >= ...       `finished`  (`auto_commit` commits this offset)

`AssignedQueue` has no tasks: the consumer adds fetched messages and takes them out. `Positions` commits offsets.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping

from pyromq.client.client_config import ConsumerConfig
from pyromq.client.client_hooks import ConsumeHooks, ConsumeStatus, MessageDelivery
from pyromq.client.consumer.group_offsets import GroupOffsets
from pyromq.client.consumer.queue_offsets import QueueOffsets
from pyromq.clock import Clock
from pyromq.errors import MQError, TopicNotFound, UsageError
from pyromq.filter.filter import Wanted
from pyromq.logs import logger_of
from pyromq.message import MessageQueue, StoredMessage

logger = logger_of(__name__)


class Batch:
    """The messages of one pull response, handed out together or one by one."""

    def __init__(self, assigned: AssignedQueue, messages: list[StoredMessage], next_offset: int) -> None:
        self.assigned = assigned
        self._epoch = assigned.epoch
        self.messages = deque(messages)
        self.next_offset = next_offset
        self.count = len(messages)
        self.size = sum(len(message.stored_body) for message in messages)

    def hand_out_all(self) -> list[StoredMessage]:
        """Return the messages left in the batch, and move the queue's position behind them."""
        messages = list(self.messages)
        self.messages.clear()
        self._advance(self.next_offset)
        return messages

    def hand_out_one(self) -> StoredMessage:
        """Return the next message of the batch, and move the queue's position behind this message."""
        message = self.messages.popleft()
        self._advance(message.queue_offset + 1 if self.messages else self.next_offset)
        return message

    def _advance(self, position: int) -> None:
        if self._epoch == self.assigned.epoch:  # else the offset was reset after the pull
            self.assigned.position = position


class AssignedQueue:
    """The state of one assigned queue; offsets are queue offsets."""

    def __init__(self, queue: MessageQueue, wanted: Wanted) -> None:
        self.queue = queue
        self.wanted = wanted
        self.paused = False
        self.leaving = False  # True while the queue is being revoked: no further message is handed out
        self.pulled_ms = 0  # time (ms since 1970) of the latest pull, for administrators
        self.polled_ms = 0  # time (ms since 1970) of the latest batch handed out, for administrators
        self.gone_since: float | None = None  # monotonic seconds since which pulls do not find the topic
        self.epoch = 0  # number of times that the queue was restarted at another offset
        self.broker_id = 0  # broker to pull from, suggested by the latest pull response
        self.position = 0
        self.finished = 0
        self.committed = -1  # offset committed last; -1: none
        self.fetch_offset = 0
        self.latest_ms = 0  # store time (ms since 1970) of the latest message fetched
        self.ready: deque[Batch] = deque()
        self.ready_count = 0
        self.ready_bytes = 0
        self._taken: Batch | None = None  # the batch taken last, which iteration hands out message by message

    def restart(self, offset: int) -> None:
        """Drop the prefetched messages and continue at `offset`."""
        self.epoch += 1
        self.position = self.finished = self.fetch_offset = offset
        self._forget_fetched()

    def reset_to_start(self, *, forgotten: bool) -> None:
        """Continue at 0 after the topic was deleted: a new topic of the same name starts there.

        `forgotten` is True if brokers keep the offsets: they have deleted the committed offset with the topic. An
        `OffsetStore` has not, so 0 is committed there.
        """
        self.restart(0)
        self.committed = 0 if forgotten else -1

    def leave(self) -> None:
        """Hand out no further message of a queue that is being revoked; the position stays."""
        self.leaving = True
        self._forget_fetched()

    def add(self, messages: list[StoredMessage], next_offset: int) -> bool:
        """Add the messages of a pull response. Return whether the response has messages."""
        self.fetch_offset = next_offset
        if messages:
            self.latest_ms = messages[-1].store_ms
            batch = Batch(self, messages, next_offset)
            self.ready.append(batch)
            self.ready_count += batch.count
            self.ready_bytes += batch.size
        elif not self._has_messages and self.position < next_offset:
            self.position = next_offset  # so that the offset advances past messages that the filter rejects
        return bool(messages)

    def correct(self, offset: int) -> None:
        """Fetch from `offset` on; messages prefetched before are still handed out first."""
        self.fetch_offset = offset
        if not self._has_messages:
            self.position = offset
            self.finished = min(self.finished, offset)

    def take(self) -> Batch:
        """Remove the oldest batch of prefetched messages and return it."""
        batch = self._taken = self.ready.popleft()
        self.ready_count -= batch.count
        self.ready_bytes -= batch.size
        return batch

    def put_back(self, batch: Batch) -> None:
        """Put the rest of a taken batch back in front of the prefetched messages."""
        if batch.messages:
            self.ready.appendleft(batch)
            self.ready_count += batch.count
            self.ready_bytes += batch.size

    @property
    def _has_messages(self) -> bool:
        """Whether messages are left to hand out, in `ready` or in the batch taken last."""
        return bool(self.ready or (self._taken is not None and self._taken.messages))

    def _forget_fetched(self) -> None:
        self.ready.clear()
        self.ready_count = self.ready_bytes = 0
        self._taken = None


class Positions:
    """Commits the positions of the queues in `assigned`, and calls hooks for the messages that the application gets."""

    def __init__(
        self,
        group: str,
        assigned: Mapping[MessageQueue, AssignedQueue],
        offsets: GroupOffsets,
        hooks: ConsumeHooks,
        *,
        bounds: QueueOffsets,
        config: ConsumerConfig,
        clock: Clock,
    ) -> None:
        self._group = group
        self._assigned = assigned
        self._offsets = offsets
        self._bounds = bounds
        self._hooks = hooks
        self._delivery: MessageDelivery | None = None  # messages that the application has now; hooks only
        self._config = config
        self._clock = clock
        self._auto_committed = clock.monotonic()

    def handed_out(self, messages: list[StoredMessage]) -> list[StoredMessage]:
        """Return `messages`, which the application gets now.

        Hooks are called for the end of the previous messages and for the beginning of these messages.
        """
        if self._config.hooks:
            self._end_delivery(ConsumeStatus.CONSUMED)
            self._delivery = self._hooks.before(messages, encloses=False) if messages else None
        return messages

    async def finish_previous(self) -> None:
        """Mark all messages handed out before as finished. Commit if `auto_commit_seconds` have passed."""
        self.finish_handed_out()
        await self.auto_commit()

    def finish_handed_out(self) -> None:
        """Mark all messages handed out as finished, so that they are committed."""
        self._end_delivery(ConsumeStatus.CONSUMED)
        for assigned in self._assigned.values():
            assigned.finished = assigned.position

    def hand_back_latest(self) -> None:
        """Mark the messages of the latest poll or iteration step as not consumed."""
        self._end_delivery(ConsumeStatus.RETRIED)
        for assigned in self._assigned.values():
            assigned.position = assigned.finished

    async def auto_commit(self) -> None:
        """With `auto_commit`, commit finished offsets every `auto_commit_seconds`; errors are logged."""
        now = self._clock.monotonic()
        if not self._config.auto_commit or now - self._auto_committed < self._config.auto_commit_seconds:
            return
        self._auto_committed = now
        try:
            await self.commit_finished()
        except MQError as error:
            logger.warning("offsets of group %s are not committed, trying again: %s", self._group, error)

    async def commit_finished(self, only: Iterable[AssignedQueue] | None = None) -> None:
        """Commit the finished offsets of some queues, or of all. Raises `MQError`."""
        await self._commit(
            {
                assigned.queue: assigned.finished
                for assigned in (self._assigned.values() if only is None else only)
                if assigned.finished != assigned.committed
            }
        )

    def master_changed(self, broker_name: str, *_: str) -> None:
        """Commit finished offsets again at a broker's new master: the latest commits may not be copied."""
        for assigned in self._assigned.values():
            if assigned.queue.broker_name == broker_name and self._config.auto_commit:
                assigned.committed = -1

    async def commit_at(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Commit offsets of queues, assigned or not. Raises `UsageError` for an offset outside its queue."""
        await asyncio.gather(*(self._check(queue, offset) for queue, offset in offsets.items()))
        await self._commit(offsets)

    async def _check(self, queue: MessageQueue, offset: int) -> None:
        """Raise `UsageError` for an offset outside the queue.

        The broker is asked for the queue's end only if the offset is beyond the fetched messages.
        """
        if offset < 0:
            raise UsageError(f"offset {offset} of {queue} cannot be committed: it is negative")
        assigned = self._assigned.get(queue)
        known = assigned.fetch_offset if assigned is not None else 0
        if offset > known and offset > (end := await self._bounds.end(queue)):
            raise UsageError(f"offset {offset} of {queue} cannot be committed: the queue ends at {end}")

    async def _commit(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Store offsets. After all were tried, raises the first failure."""
        told = [(assigned, offset) for queue, offset in offsets.items() if (assigned := self._assigned.get(queue))]
        failures = await self._offsets.save(offsets)
        for assigned, offset in told:
            if assigned.queue not in failures:
                assigned.committed = offset
        for failure in failures.values():
            raise failure

    async def commit_reset(self, assigned: AssignedQueue, offset: int) -> None:
        """Commit the offset of an administrator's reset; errors are logged."""
        try:
            await self._commit({assigned.queue: offset})
        except TopicNotFound:
            assigned.committed = offset  # brokers keep no offsets of a deleted topic
        except MQError as error:
            logger.warning("group %s: offset %d of %s is not stored: %s", self._group, offset, assigned.queue, error)

    async def begin(self, assigned: AssignedQueue) -> None:
        """Continue at the group's committed offset, else at the offset that `ConsumerConfig.consume_from` says."""
        offset = await self._offsets.start(assigned.queue, keep=self._config.auto_commit)
        assigned.restart(offset)
        assigned.committed = offset  # so that nothing is committed before the position moves

    def _end_delivery(self, status: ConsumeStatus) -> None:
        if (delivery := self._delivery) is not None:
            self._delivery = None
            done = len(delivery.messages) if status is ConsumeStatus.CONSUMED else 0
            self._hooks.after(delivery, status, done=done)
