"""How far an application is in the queues assigned to its pull consumer, and telling the brokers so.

Which queues are assigned, and what is handed out of them, is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping

from pyromq.client.config import ConsumerConfig
from pyromq.client.consumer.pull.assigned_queue import AssignedQueue
from pyromq.client.consumer.queue_offsets import QueueOffsets
from pyromq.client.hooks import ConsumeHooks, ConsumeStatus, MessageDelivery
from pyromq.clock import Clock
from pyromq.errors import MQError, TopicNotFound, UsageError
from pyromq.message import MessageQueue, StoredMessage

logger = logging.getLogger(__name__)


class Positions:
    """The positions in the queues of `assigned`, which others fill and empty."""

    def __init__(
        self,
        group: str,
        assigned: Mapping[MessageQueue, AssignedQueue],
        offsets: QueueOffsets,
        hooks: ConsumeHooks,
        *,
        config: ConsumerConfig,
        clock: Clock,
    ) -> None:
        self._group = group
        self._assigned = assigned
        self._offsets = offsets
        self._hooks = hooks
        self._delivery: MessageDelivery | None = None  # what the application has, for hooks
        self._config = config
        self._clock = clock
        self._auto_committed = clock.monotonic()

    def handed_out(self, messages: list[StoredMessage]) -> list[StoredMessage]:
        """Return what the application gets; hooks are told of it, and that it is done with what it got before."""
        if self._config.hooks:
            self._end_delivery(ConsumeStatus.CONSUMED)
            self._delivery = self._hooks.before(messages) if messages else None
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
        """Commit what is finished of some queues, or of all; true at the brokers when this returns."""
        changed = [
            assigned
            for assigned in (self._assigned.values() if only is None else only)
            if assigned.finished != assigned.committed
        ]
        await asyncio.gather(*(self.commit(assigned, assigned.finished) for assigned in changed))

    async def commit_at(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Commit an offset of each of these queues, assigned or not. Raises `UsageError` for one that cannot be."""
        await asyncio.gather(*(self._check(queue, offset) for queue, offset in offsets.items()))
        await asyncio.gather(*(self._commit_at(queue, offset) for queue, offset in offsets.items()))

    async def _check(self, queue: MessageQueue, offset: int) -> None:
        """Raise `UsageError` for an offset that is not in the queue; its end is asked for what was not pulled yet."""
        if offset < 0:
            raise UsageError(f"offset {offset} of {queue} cannot be committed: it is negative")
        assigned = self._assigned.get(queue)
        known = assigned.fetch_offset if assigned is not None else 0
        if offset > known and offset > (end := await self._offsets.end(queue)):
            raise UsageError(f"offset {offset} of {queue} cannot be committed: the queue ends at {end}")

    async def _commit_at(self, queue: MessageQueue, offset: int) -> None:
        if (assigned := self._assigned.get(queue)) is not None:
            await self.commit(assigned, offset)
        else:
            await self._offsets.commit(self._group, queue, offset)

    async def commit(self, assigned: AssignedQueue, offset: int) -> None:
        await self._offsets.commit(self._group, assigned.queue, offset)
        assigned.committed = offset

    async def commit_reset(self, assigned: AssignedQueue, offset: int) -> None:
        """Commit where others have moved the group; trouble is logged."""
        try:
            await self.commit(assigned, offset)
        except TopicNotFound:
            assigned.committed = offset  # nobody keeps offsets of a topic that is gone
        except MQError as error:
            logger.warning("group %s: offset %d of %s is not stored: %s", self._group, offset, assigned.queue, error)

    async def begin(self, assigned: AssignedQueue) -> None:
        """Go to where the group begins in a queue: its committed offset, else where the settings say."""
        config = self._config
        offset = await self._offsets.start(self._group, assigned.queue, config, keep=config.auto_commit)
        assigned.restart(offset)
        assigned.committed = offset  # nothing to tell the broker before the position moves

    def _end_delivery(self, status: ConsumeStatus) -> None:
        if (delivery := self._delivery) is not None:
            self._delivery = None
            done = len(delivery.messages) if status is ConsumeStatus.CONSUMED else 0
            self._hooks.after(delivery, status, done=done)
