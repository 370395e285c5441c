"""The async pull consumer: the application assigns queues, asks for messages and says how far it is.

For each assigned queue one task pulls ahead, within bounds; `poll` and iteration hand out what it brought.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Self

from pyromq.client.assigned_queue import AssignedQueue, Batch
from pyromq.client.config import ConsumerConfig
from pyromq.client.fetching import Fetching
from pyromq.client.membership import Membership
from pyromq.client.offsets import QueueOffsets
from pyromq.client.pulling import PullRequest, PullResult, pull
from pyromq.client.queue_watch import QueueListener, QueueWatch
from pyromq.client.reporting import Reporting
from pyromq.clock import Clock, SystemClock
from pyromq.errors import IllegalName, MQError, NotRunning, UsageError
from pyromq.filter.tags import parse_tags
from pyromq.message import MessageQueue, StoredMessage
from pyromq.names import DEFAULT_CONSUMER_GROUP, check_group, check_topic
from pyromq.remoting.bodies import ConsumerEntry, HeartbeatBody, Subscription

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0  # how long iteration waits before it looks again whether the consumer was closed


class AsyncPullConsumer:
    """Pulls messages from queues the application chooses, for programs with an event loop; see also `PullConsumer`.

        async with AsyncPullConsumer("billing") as consumer:
            await consumer.assign(await consumer.queues("orders"))
            async for message in consumer:
                ...

    A queue begins where the group has committed, else where `ConsumerConfig.consume_from` says. Messages come at least
    once: those not committed come again to the next member that gets the queue. With `auto_commit` each `poll` commits
    what earlier polls handed out, and closing commits everything handed out - except, when an exception ends the
    `async with`, what came last.

    `namesrv` is `host:port`, several joined by `;`. Times are seconds unless a name says ms. Entering raises
    `NoNameServer` at once when no name server can be reached; other methods raise `Unavailable` when no broker answers
    within `ConsumerConfig.timeout`, a `BrokerError` for an answer that says no, `NotRunning` before start and after
    close. While a broker is away, polls find nothing of its queues; pulling resumes by itself.
    """

    def __init__(
        self,
        group: str,
        namesrv: str = "127.0.0.1:9876",
        *,
        config: ConsumerConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        check_group(group)
        if group == DEFAULT_CONSUMER_GROUP:
            raise IllegalName(f"consumerGroup can not equal {DEFAULT_CONSUMER_GROUP}, please specify another one.")
        self.group = group
        self.config = config or ConsumerConfig()
        self._clock = clock or SystemClock()
        self._assigned: dict[MessageQueue, AssignedQueue] = {}
        self._membership = Membership(
            namesrv,
            self._clock,
            announce=lambda client_id: HeartbeatBody(client_id, consumers=[self._entry()]),
            answerer=Reporting(self._assigned, self._entry, self._reset),
            instance=self.config.instance,
            heartbeat_seconds=self.config.heartbeat_seconds,
            route_refresh_seconds=self.config.route_refresh_seconds,
        )
        self._offsets = QueueOffsets(self._membership, timeout=self.config.timeout)
        self._fetching = Fetching(group, self._membership, self.config, self._clock)
        self._watch = QueueWatch(self._membership)
        self._turns: list[AssignedQueue] = []
        self._open: Batch | None = None  # being handed out message by message
        self._auto_committed = 0.0

    async def start(self) -> None:
        """Connect. Raises `NoNameServer` at once when no name server can be reached."""
        await self._membership.start()
        self._auto_committed = self._clock.monotonic()

    async def close(self) -> None:
        """Commit what was handed out (with `auto_commit`), stop pulling, leave the group. Idempotent."""
        if not self._membership.running:
            return
        try:
            if self.config.auto_commit:
                self._finish_handed_out()
                await self._commit_finished()
        except MQError as error:
            logger.warning("closing: offsets of group %s are not committed: %s", self.group, error)
        finally:
            await self._membership.close()
            self._fetching.changed.set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.hand_back_latest()
        await self.close()

    def hand_back_latest(self) -> None:
        """Take what the latest poll, or iteration step, handed out as not consumed: closing will not commit it."""
        for assigned in self._assigned.values():
            assigned.position = assigned.finished

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic that can be read now, in order of broker name and queue id."""
        check_topic(topic)
        self._membership.check_running()
        await self._membership.refresh(topic)
        return list((await self._membership.route(topic)).readable)

    async def watch_queues(self, topic: str, listener: QueueListener) -> list[MessageQueue]:
        """Return the queues of a topic that can be read now, and call `listener(queues)` whenever they are others.

            await consumer.assign(await consumer.watch_queues("orders", consumer.assign))

        The listener, plain or `async`, runs on the event loop; a topic has one: the latest. Changes are seen within
        `ConsumerConfig.route_refresh_seconds`. Raises `TopicNotFound`.
        """
        check_topic(topic)
        self._membership.check_running()
        return await self._watch.begin(topic, listener)

    def unwatch_queues(self, topic: str) -> None:
        """End what `watch_queues` began."""
        self._watch.end(topic)

    @property
    def assignment(self) -> list[MessageQueue]:
        """The assigned queues, in order."""
        return sorted(self._assigned)

    async def assign(self, queues: Iterable[MessageQueue], *, tags: str = "*") -> None:
        """Pull from exactly these queues from now on; `tags` is `*` or `a || b`, for all of them.

        Queues assigned before with the same tags go on where they are; others are let go, after their commit.
        """
        self._membership.check_running()
        parse_tags(tags)
        wanted = dict.fromkeys(queues)
        for queue in wanted:
            check_topic(queue.topic)
        dropped = [a for queue, a in self._assigned.items() if queue not in wanted or a.tags != tags]
        if self.config.auto_commit:
            self._finish_handed_out()
            await self._commit_finished(dropped)
        for assigned in dropped:
            self._drop(assigned)
        added = [AssignedQueue(queue, tags) for queue in wanted if queue not in self._assigned]
        self._assigned.update((assigned.queue, assigned) for assigned in added)
        starts = await asyncio.gather(
            *(
                self._offsets.start(self.group, assigned.queue, self.config.consume_from, self.config.consume_from_ms)
                for assigned in added
            )
        )
        for assigned, offset in zip(added, starts, strict=True):
            assigned.restart(offset)
            assigned.committed = offset  # nothing to tell the broker before the position moves
            self._fetching.begin(assigned)
        self._turns = list(self._assigned.values())
        await self._membership.heartbeat()

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at a queue offset; `UsageError` unless it is between the queue's bounds."""
        assigned = self._find(queue)
        least, end = await asyncio.gather(self._offsets.least(queue), self._offsets.end(queue))
        if not least <= offset <= end:
            raise UsageError(f"offset {offset} of {queue} is outside the queue: {least} to {end}")
        self._go_on_at(assigned, offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on at the first message that is still there."""
        assigned = self._find(queue)
        self._go_on_at(assigned, await self._offsets.least(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on with the next message that arrives."""
        assigned = self._find(queue)
        self._go_on_at(assigned, await self._offsets.end(queue))

    async def seek_to_time(self, queue: MessageQueue, timestamp_ms: int) -> None:
        """Go on at the message stored nearest to a time (ms since 1970)."""
        assigned = self._find(queue)
        self._go_on_at(assigned, await self._offsets.by_time(queue, timestamp_ms))

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Hand out nothing of these assigned queues until they are resumed."""
        for queue in queues:
            self._find(queue).paused = True

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        for queue in queues:
            self._find(queue).paused = False
        self._fetching.room.set()
        self._fetching.changed.set()

    async def poll(self, timeout: float = 1.0) -> list[StoredMessage]:
        """Return the next messages of one queue, in order; [] when there is none within `timeout` seconds.

        Raises an answer that says no to a pull, such as `NoPermission`, once for each time it came.
        """
        self._membership.check_running()
        self._finish_handed_out()
        await self._auto_commit()
        batch, self._open = self._open, None
        if batch is None or not batch.messages:
            batch = await self._next_batch(timeout)
        return batch.hand_out_all() if batch is not None else []

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StoredMessage:
        """Return the next message of any assigned queue, however long it takes; ends when the consumer is closed."""
        message = self.next_buffered()
        while message is None:
            if not self._membership.running:
                raise StopAsyncIteration
            await self._auto_commit()
            self._open = await self._next_batch(POLL_SECONDS)
            message = self.next_buffered()
        return message

    def next_buffered(self) -> StoredMessage | None:
        """Return the next message of the batch that iteration is in; None when it is used up. Never waits."""
        batch = self._open
        if batch is None:
            return None
        batch.assigned.finished = batch.assigned.position
        return batch.hand_out_one() if batch.messages else None

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Store the position of every assigned queue, that is, behind all that was handed out, at the brokers.

        With `offsets`, store exactly these instead: where the group goes on in each queue, assigned here or not.
        """
        self._membership.check_running()
        if offsets is None:
            self._finish_handed_out()
            await self._commit_finished()
        else:
            await asyncio.gather(*(self._commit_at(queue, offset) for queue, offset in offsets.items()))

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's stored offset of a queue; None if there is none."""
        self._membership.check_running()
        return await self._offsets.committed(self.group, queue)

    def position(self, queue: MessageQueue) -> int:
        """Return the offset of the next message that will be handed out of an assigned queue."""
        return self._find(queue).position

    async def pull(
        self, queue: MessageQueue, offset: int, max_count: int = 32, *, tags: str = "*", wait_seconds: float = 0.0
    ) -> PullResult:
        """Pull once from any queue, without touching assignment and positions.

        With `wait_seconds` the broker holds the request until a message comes, at most so long.
        """
        self._membership.check_running()
        request = PullRequest(max_count, tags, wait_seconds, self.config.timeout)
        return await pull(self._membership, self.group, queue, offset, request=request)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the first message that is still there."""
        self._membership.check_running()
        return await self._offsets.least(queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message will get."""
        self._membership.check_running()
        return await self._offsets.end(queue)

    async def offset_by_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the message stored nearest to a time (ms since 1970)."""
        self._membership.check_running()
        return await self._offsets.by_time(queue, timestamp_ms)

    def _entry(self) -> ConsumerEntry:
        """What heartbeats say about this consumer."""
        expressions = {assigned.queue.topic: parse_tags(assigned.tags) for assigned in self._assigned.values()}
        return ConsumerEntry(
            self.group,
            consume_type="CONSUME_ACTIVELY",
            consume_from=self.config.consume_from.value,
            subscriptions=[
                Subscription(topic=topic, expression=tags.expression, tags=sorted(tags.tags), codes=sorted(tags.codes))
                for topic, tags in sorted(expressions.items(), key=lambda item: item[0])
            ],
        )

    def _find(self, queue: MessageQueue) -> AssignedQueue:
        if not self._membership.running:
            raise NotRunning("the consumer is not running: start it with `with` or start()")
        assigned = self._assigned.get(queue)
        if assigned is None:
            raise UsageError(f"{queue} is not assigned to this consumer; assign() it first")
        return assigned

    def _go_on_at(self, assigned: AssignedQueue, offset: int) -> None:
        """Forget what is fetched and pull from `offset` on; an answer on its way is never looked at."""
        if self._open is not None and self._open.assigned is assigned:
            self._open = None
        assigned.restart(offset)
        assigned.committed = -1  # the application decides now: what it commits is told, whatever the broker has
        self._fetching.begin(assigned)

    def _reset(self, assigned: AssignedQueue, offset: int) -> None:
        """An administrator moves the group: go there and store it, as all members do."""
        self._go_on_at(assigned, offset)
        self._membership.tasks.start(self._commit(assigned, offset), name=f"reset {assigned.queue}")

    def _drop(self, assigned: AssignedQueue) -> None:
        del self._assigned[assigned.queue]
        self._fetching.end(assigned)
        if self._open is not None and self._open.assigned is assigned:
            self._open = None

    async def _next_batch(self, timeout: float) -> Batch | None:
        """Wait for a batch of a queue that is not paused; queues take turns."""
        try:
            async with asyncio.timeout(timeout):
                while True:
                    self._fetching.changed.clear()
                    if (batch := self._take_ready()) is not None:
                        return batch
                    if (failure := self._fetching.take_failure()) is not None:
                        raise failure
                    if not self._membership.running:
                        return None
                    await self._fetching.changed.wait()
        except TimeoutError:
            return None

    def _take_ready(self) -> Batch | None:
        for index, assigned in enumerate(self._turns):
            if assigned.ready and not assigned.paused:
                self._turns.append(self._turns.pop(index))
                batch = assigned.take()
                self._fetching.room.set()
                return batch
        return None

    def _finish_handed_out(self) -> None:
        for assigned in self._assigned.values():
            assigned.finished = assigned.position

    async def _auto_commit(self) -> None:
        now = self._clock.monotonic()
        if not self.config.auto_commit or now - self._auto_committed < self.config.auto_commit_seconds:
            return
        self._auto_committed = now
        try:
            await self._commit_finished()
        except MQError as error:
            logger.warning("offsets of group %s are not committed, trying again: %s", self.group, error)

    async def _commit_finished(self, only: Iterable[AssignedQueue] | None = None) -> None:
        changed = [
            assigned
            for assigned in (self._assigned.values() if only is None else only)
            if assigned.finished != assigned.committed
        ]
        await asyncio.gather(*(self._commit(assigned, assigned.finished) for assigned in changed))

    async def _commit_at(self, queue: MessageQueue, offset: int) -> None:
        if (assigned := self._assigned.get(queue)) is not None:
            await self._commit(assigned, offset)
        else:
            await self._offsets.commit(self.group, queue, offset)

    async def _commit(self, assigned: AssignedQueue, offset: int) -> None:
        await self._offsets.commit(self.group, assigned.queue, offset)
        assigned.committed = offset
