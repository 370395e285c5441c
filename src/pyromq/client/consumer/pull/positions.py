"""How far an application is in the queues assigned to its pull consumer, and storing that.

Which queues are assigned, and what is handed out of them, is decided elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from pyromq.client.config import ConsumerConfig
from pyromq.client.consumer.group_offsets import GroupOffsets
from pyromq.client.consumer.pull.assigned_queue import AssignedQueue
from pyromq.client.consumer.queue_offsets import QueueOffsets
from pyromq.client.hooks import ConsumeHooks, ConsumeStatus, MessageDelivery
from pyromq.clock import Clock
from pyromq.errors import MQError, TopicNotFound, UsageError
from pyromq.logs import logger_of
from pyromq.message import MessageQueue, StoredMessage

logger = logger_of(__name__)


class Positions:
    """The positions in the queues of `assigned`, which others fill and empty."""

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
        self._delivery: MessageDelivery | None = None  # what the application has, for hooks
        self._config = config
        self._clock = clock
        self._auto_committed = clock.monotonic()

    def handed_out(self, messages: list[StoredMessage]) -> list[StoredMessage]:
        """Return what the application gets; hooks are told of it, and that it is done with what it got before."""
        if self._config.hooks:
            self._end_delivery(ConsumeStatus.CONSUMED)
            self._delivery = self._hooks.before(messages, encloses=False) if messages else None
        return messages

    async def go_on(self) -> None:
        """The application asks for more: finish what it got, and commit if it is time."""
        self.finish_handed_out()
        await self.auto_commit()

    def finish_handed_out(self) -> None:
        """The application is done with what it got."""
        self._end_delivery(ConsumeStatus.CONSUMED)
        for assigned in self._assigned.values():
            assigned.finished = assigned.position

    def hand_back_latest(self) -> None:
        """What the latest poll or iteration step handed out does not count as consumed."""
        self._end_delivery(ConsumeStatus.RETRIED)
        for assigned in self._assigned.values():
            assigned.position = assigned.finished

    async def auto_commit(self) -> None:
        """Commit what is finished, if that is wanted and its time has come; trouble is logged."""
        now = self._clock.monotonic()
        if not self._config.auto_commit or now - self._auto_committed < self._config.auto_commit_seconds:
            return
        self._auto_committed = now
        try:
            await self.commit_finished()
        except MQError as error:
            logger.warning("offsets of group %s are not committed, trying again: %s", self._group, error)

    async def commit_finished(self, only: Iterable[AssignedQueue] | None = None) -> None:
        """Commit what is finished of some queues, or of all; stored when this returns. Raises `MQError`."""
        await self._commit(
            {
                assigned.queue: assigned.finished
                for assigned in (self._assigned.values() if only is None else only)
                if assigned.finished != assigned.committed
            }
        )

    async def commit_at(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Commit an offset of each of these queues, assigned or not. Raises `UsageError` for one that cannot be."""
        await asyncio.gather(*(self._check(queue, offset) for queue, offset in offsets.items()))
        await self._commit(offsets)

    async def _check(self, queue: MessageQueue, offset: int) -> None:
        """Raise `UsageError` for an offset that is not in the queue; its end is asked for what was not pulled yet."""
        if offset < 0:
            raise UsageError(f"offset {offset} of {queue} cannot be committed: it is negative")
        assigned = self._assigned.get(queue)
        known = assigned.fetch_offset if assigned is not None else 0
        if offset > known and offset > (end := await self._bounds.end(queue)):
            raise UsageError(f"offset {offset} of {queue} cannot be committed: the queue ends at {end}")

    async def _commit(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Store offsets; raises what one of those that cannot be stored has met."""
        told = [(assigned, offset) for queue, offset in offsets.items() if (assigned := self._assigned.get(queue))]
        failures = await self._offsets.save(offsets)
        for assigned, offset in told:
            if assigned.queue not in failures:
                assigned.committed = offset
        for failure in failures.values():
            raise failure

    async def commit_reset(self, assigned: AssignedQueue, offset: int) -> None:
        """Commit where others have moved the group; trouble is logged."""
        try:
            await self._commit({assigned.queue: offset})
        except TopicNotFound:
            assigned.committed = offset  # nobody keeps offsets of a topic that is gone
        except MQError as error:
            logger.warning("group %s: offset %d of %s is not stored: %s", self._group, offset, assigned.queue, error)

    async def begin(self, assigned: AssignedQueue) -> None:
        """Go to where the group begins in a queue: its committed offset, else where the settings say."""
        offset = await self._offsets.start(assigned.queue, keep=self._config.auto_commit)
        assigned.restart(offset)
        assigned.committed = offset  # nothing to store before the position moves

    def _end_delivery(self, status: ConsumeStatus) -> None:
        if (delivery := self._delivery) is not None:
            self._delivery = None
            done = len(delivery.messages) if status is ConsumeStatus.CONSUMED else 0
            self._hooks.after(delivery, status, done=done)
