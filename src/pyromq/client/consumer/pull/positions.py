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
from pyromq.clock import Clock
from pyromq.errors import MQError, TopicNotFound
from pyromq.message import MessageQueue

logger = logging.getLogger(__name__)


class Positions:
    """The positions in the queues of `assigned`, which others fill and empty."""

    def __init__(
        self,
        group: str,
        assigned: Mapping[MessageQueue, AssignedQueue],
        offsets: QueueOffsets,
        *,
        config: ConsumerConfig,
        clock: Clock,
    ) -> None:
        self._group = group
        self._assigned = assigned
        self._offsets = offsets
        self._config = config
        self._clock = clock
        self._auto_committed = clock.monotonic()

    def finish_handed_out(self) -> None:
        """The application asks for more: it is done with what it got."""
        for assigned in self._assigned.values():
            assigned.finished = assigned.position

    def hand_back_latest(self) -> None:
        """What the latest poll or iteration step handed out does not count as consumed."""
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

    async def commit_at(self, queue: MessageQueue, offset: int) -> None:
        """Commit an offset of a queue, assigned or not."""
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
