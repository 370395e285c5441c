"""The async pull consumer: the application asks for messages and commits.

The application assigns queues itself, or subscribes and its group's members share the queues. A task for each assigned
queue pulls ahead, within the limits; `poll` and iteration hand out the messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from types import TracebackType
from typing import Self

from pyromq.client.arguments import check_queue, checked
from pyromq.client.client_config import ConsumerConfig
from pyromq.client.client_hooks import ConsumeHooks, connect_hooks
from pyromq.client.cluster.cluster_client import AsyncLifespan, ClusterClient
from pyromq.client.cluster.namespace import namespace_of
from pyromq.client.consumer.consumer_status import ConsumerInternals, ConsumerStatusProcessor
from pyromq.client.consumer.group_offsets import group_offsets
from pyromq.client.consumer.pull.assigned_queue import AssignedQueue, Batch, Positions
from pyromq.client.consumer.pull.prefetch import Prefetch
from pyromq.client.consumer.pull.subscribed_queues import QueueListener, QueueWatch, SubscribedQueues
from pyromq.client.consumer.pulling import PullRequest, PullResult, pull
from pyromq.client.consumer.queue_offsets import QueueOffsets
from pyromq.client.consumer.subscriptions import subscription
from pyromq.clock import Clock, SystemClock
from pyromq.errors import MQError, UsageError
from pyromq.filter.filter import Wanted, wanted_by
from pyromq.logs import logger_of
from pyromq.message import MessageQueue, StoredMessage
from pyromq.names import check_consumer_group
from pyromq.remoting.bodies import ConsumerEntry, HeartbeatBody, PulledQueue

logger = logger_of(__name__)

POLL_SECONDS = 1.0  # interval at which iteration checks whether the consumer was closed


@checked
class AsyncPullConsumer(AsyncLifespan):
    """Pulls messages when the application asks, for programs with an event loop; see also `PullConsumer`.

        async with AsyncPullConsumer("billing") as consumer:
            consumer.subscribe("orders")
            async for message in consumer:
                ...

    After `subscribe`, the members of the group share the queues; all must subscribe to the same topics. With
    `assign(await consumer.queues("orders"))` the application chooses queues itself. All consumers of a group must do
    the same: a consumer that uses `assign` counts as a member, so other members would leave queues to it unread.

    A queue begins at the group's committed offset, else at that of `ConsumerConfig.consume_from`. Delivery is at least
    once: uncommitted messages are redelivered to the next owner of the queue. With `auto_commit` each `poll` commits
    the messages of earlier polls, and closing commits all messages handed out. If an exception ends the `async with`,
    the messages of the latest poll are not committed.

    `namesrv` is as for `AsyncProducer`. Times are seconds unless a name says ms. Entering raises `NoNameServer`
    immediately if no name server can be reached. Other methods raise `Unavailable` if no broker answers within
    `ConsumerConfig.timeout`, a `BrokerError` if a broker refuses, `NotRunning` before start and after close. While a
    broker is out of reach, polls return no messages of its queues; pulling resumes by itself. A topic that is deleted
    and created again is read from its new beginning. Polls raise `TopicNotFound` once a topic is missing for three
    seconds.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | None = None,
        *,
        config: ConsumerConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        check_consumer_group(group)
        self.config = config = config or ConsumerConfig()
        names = self._names = namespace_of(self.config.namespace, namesrv)
        self._wire_group = wire_group = names.checked_group(group)
        self.group = group
        self._clock = clock = clock or SystemClock()
        self._assigned: dict[MessageQueue, AssignedQueue] = {}
        self._assigns = False  # True after the first call of `assign`
        self._assigning = asyncio.Lock()  # a listener of `watch_queues` may assign at the same time as the application
        state = internals(
            self._assigned, self.config, entry=self._entry, restart_at=self._reset, wake=lambda: self._sharing.wake()
        )
        status = self._status = ConsumerStatusProcessor(state, self._clock, names)
        self._cluster = ClusterClient(
            namesrv,
            self._clock,
            announce=lambda client_id: HeartbeatBody(client_id, consumers=[self._entry()]),
            answerers=[self._status],
            instance=self.config.instance,
            connections=self.config.connections,
            names=names,
            heartbeat_seconds=self.config.heartbeat_seconds,
            route_refresh_seconds=self.config.route_refresh_seconds,
        )
        self._offsets = offsets = QueueOffsets(self._cluster, timeout=self.config.timeout)
        self._fetching = Prefetch(wire_group, self._cluster, offsets=offsets, config=self.config, rates=status.rates)
        self._watch = QueueWatch(self._cluster)
        self._turns = Turns(self._assigned, self._clock, self._fetching, is_over=lambda: not self._cluster.running)
        self._open: Batch | None = None  # the batch that iteration hands out message by message
        connect_hooks(self.config.hooks, self.config.connections, namesrv)
        hooks = ConsumeHooks(self.config.hooks, group, lambda: self._cluster.client_id, clock=self._clock)
        kept = self._kept = group_offsets(wire_group, self._cluster, config, store=config.offset_store)
        self._positions = Positions(wire_group, self._assigned, kept, hooks, bounds=offsets, config=config, clock=clock)
        self._cluster.routes.on_master_change.append(self._positions.master_changed)
        self._sharing = SubscribedQueues(
            wire_group,
            self._cluster,
            self.config,
            clock=self._clock,
            assigned=self._assigned,
            positions=self._positions,
            fetching=self._fetching,
            changed=self._turns.renew,
        )

    @property
    def client_id(self) -> str:
        """This member's id in its group; available after the start."""
        return self._cluster.client_id

    @property
    def damaged_count(self) -> int:
        """The number of damaged and undecodable messages: see `ConsumerConfig.damaged` and `deliver_undecodable`."""
        return self._fetching.damaged_count

    async def start(self) -> None:
        """Connect. Raises `NoNameServer` immediately if no name server can be reached."""
        await self._cluster.start()
        self._status.start(self._cluster.tasks)
        try:
            await self._sharing.start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Commit the messages handed out (with `auto_commit`), stop pulling, leave the group. Idempotent."""
        if not self._cluster.running:
            return
        try:
            await self._cluster.tasks.stop()  # includes the rebalance
            if self.config.auto_commit:
                self._positions.finish_handed_out()
                await self._positions.commit_finished()
        except MQError as error:
            logger.warning("closing: offsets of group %s are not committed: %s", self.group, error)
        finally:
            await self._sharing.leave()
            await self._cluster.close()
            self._positions.hand_back_latest()  # so that hooks see uncommitted messages as retried
            self._fetching.changed.set()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.hand_back_latest()
        await super().__aexit__(kind, error, trace)

    def hand_back_latest(self) -> None:
        """Mark the messages of the latest poll or iteration step as not consumed: closing does not commit them."""
        self._positions.hand_back_latest()

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of a topic, in order of broker name and queue id."""
        topic = self._names.checked_topic(topic)
        self._cluster.check_running()
        await self._cluster.refresh(topic)
        return list((await self._cluster.route(topic)).readable)

    async def watch_queues(self, topic: str, listener: QueueListener) -> list[MessageQueue]:
        """Return the readable queues of a topic, and call `listener(queues)` whenever they change.

            await consumer.assign(await consumer.watch_queues("orders", consumer.assign))

        The listener, plain or `async`, runs on the event loop. A topic has one listener: the latest. Changes are
        noticed within `ConsumerConfig.route_refresh_seconds`. Raises `TopicNotFound`.
        """
        topic = self._names.checked_topic(topic)
        self._cluster.check_running()
        return await self._watch.begin(topic, listener)

    def unwatch_queues(self, topic: str) -> None:
        """Stop calling the listener that `watch_queues` set for the topic."""
        self._watch.end(self._names.unwrap(topic))

    @property
    def assignment(self) -> list[MessageQueue]:
        """The assigned queues, sorted."""
        return sorted(self._assigned)

    def subscribe(
        self, topic: str, *, tags: str = "*", sql: str | None = None, listener: QueueListener | None = None
    ) -> None:
        """Share the topic's queues with the group's members. Call before or after the start. Filters: see `assign`.

        The listener, plain or `async`, gets this member's queues of the topic whenever they change. It is called before
        a message of a new queue is handed out, so that it may `seek`; the rebalance waits for it. No message of a
        revoked queue is handed out. The new owner waits up to half a second until the application asks for more
        messages, or commits if `auto_commit` is off. Uncommitted messages are redelivered to the new owner. Call
        this on the event loop.
        """
        topic = self._names.checked_topic(topic)
        wanted = wanted_by(tags, sql)
        if self._assigns:
            raise UsageError(f"consumer of group {self.group} assigns its queues; make another consumer to subscribe")
        self._sharing.subscribe(topic, wanted, listener)

    def unsubscribe(self, topic: str) -> None:
        """Stop pulling the topic; its queues are revoked soon."""
        self._sharing.unsubscribe(self._names.unwrap(topic))

    async def assign(self, queues: Iterable[MessageQueue], *, tags: str = "*", sql: str | None = None) -> None:
        """Pull from exactly these queues, and only messages with these `tags` (`*`, `a || b`).

        `sql` selects by properties instead, for example `price > 5`. Queues that were assigned with the same filter
        keep their position. Other assigned queues are committed and released.
        """
        self._cluster.check_running()
        if self._sharing.used:
            raise UsageError(
                f"consumer of group {self.group} subscribes to topics; make another consumer to assign queues"
            )
        wanted, chosen = wanted_by(tags, sql), dict.fromkeys(queues)
        for queue in chosen:
            check_queue("one of queues", queue)
        self._assigns = True
        async with self._assigning:
            await self._assign(chosen, wanted)
        await self._cluster.heartbeat()

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue an assigned queue at an offset. Raises `UsageError` for an offset outside the queue."""
        self._find(queue)
        least, end = await asyncio.gather(self._offsets.least(queue), self._offsets.end(queue))
        if not least <= offset <= end:
            raise UsageError(f"offset {offset} of {queue} is outside the queue: {least} to {end}")
        self._move(queue, offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue an assigned queue at the first message that still exists."""
        self._find(queue)
        self._move(queue, await self._offsets.least(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue an assigned queue with the next message that arrives."""
        self._find(queue)
        self._move(queue, await self._offsets.end(queue))

    async def seek_to_time(self, queue: MessageQueue, timestamp_ms: int) -> None:
        """Continue an assigned queue at the message stored nearest to a time (ms since 1970)."""
        self._find(queue)
        self._move(queue, await self._offsets.by_time(queue, timestamp_ms))

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Hand out no message of these assigned queues until `resume`."""
        for queue in queues:
            assigned = self._find(queue)
            assigned.paused = True
            if self._open is not None and self._open.assigned is assigned:
                assigned.put_back(self._open)
                self._open = None

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """End the pause of these queues."""
        for queue in queues:
            self._find(queue).paused = False
        self._fetching.room.set()
        self._fetching.changed.set()

    async def poll(self, timeout: float = 1.0) -> list[StoredMessage]:
        """Return the next messages of one queue, in order; [] if none arrives within `timeout` seconds.

        Raises a broker's refusal of a pull, for example `NoPermission`, once for each refused pull. With `Damaged.STOP`
        it raises `MessageDamaged` until the application seeks behind the message.
        """
        self._cluster.check_running()
        await self._positions.finish_previous()
        batch, self._open = self._open, None
        if batch is None or not batch.messages or batch.assigned.leaving:
            batch = await self._next_batch(timeout)
        return self._positions.handed_out(batch.hand_out_all()) if batch is not None else []

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StoredMessage:
        """Return the next message of any assigned queue, waiting without limit. Closing ends the iteration."""
        message = self.next_buffered()
        while message is None:
            if not self._cluster.running:
                raise StopAsyncIteration
            await self._positions.finish_previous()
            self._open = await self._next_batch(POLL_SECONDS)
            message = self.next_buffered()
        return message

    def next_buffered(self) -> StoredMessage | None:
        """Return the next message of the batch that iteration hands out; None at the batch's end. Does not wait."""
        batch = self._open
        if batch is None:
            return None
        batch.assigned.finished = batch.assigned.position
        message = batch.hand_out_one() if batch.messages and not batch.assigned.leaving else None
        if self.config.hooks:
            self._positions.handed_out([message] if message is not None else [])
        return message

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit the position of every assigned queue: behind all messages handed out.

        With `offsets`, commit exactly these. Raises `UsageError`, and commits none, if an offset is outside its queue.
        """
        self._cluster.check_running()
        if offsets is None:
            self._positions.finish_handed_out()
            await self._positions.commit_finished()
        else:
            await self._positions.commit_at(offsets)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset of a queue; None if none was committed."""
        self._cluster.check_running()
        return await self._kept.stored(queue)

    def position(self, queue: MessageQueue) -> int:
        """Return the offset of the next message that an assigned queue will hand out."""
        return self._find(queue).position

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_count: int = 32,
        *,
        tags: str = "*",
        sql: str | None = None,
        wait_seconds: float = 0.0,
    ) -> PullResult:
        """Pull once from any queue. The assignment and positions do not change.

        With `wait_seconds` the broker waits that long for a message before it replies without one. Damaged messages
        are in `PullResult.damaged`; they are not counted.
        """
        self._cluster.check_running()
        request = PullRequest.once(self.config, max_count, wanted_by(tags, sql), wait_seconds=wait_seconds)
        return await pull(self._cluster, self._wire_group, queue, offset, request=request)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of a queue's first message that still exists."""
        self._cluster.check_running()
        return await self._offsets.least(queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message of a queue will have."""
        self._cluster.check_running()
        return await self._offsets.end(queue)

    async def offset_by_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of a queue's message stored nearest to a time (ms since 1970)."""
        self._cluster.check_running()
        return await self._offsets.by_time(queue, timestamp_ms)

    async def _assign(self, chosen: Collection[MessageQueue], wanted: Wanted) -> None:
        dropped = [a for queue, a in self._assigned.items() if queue not in chosen or a.wanted is not wanted]
        if self.config.auto_commit:
            self._positions.finish_handed_out()
            await self._positions.commit_finished(dropped)
        for assigned in dropped:
            del self._assigned[assigned.queue]
            self._fetching.end(assigned)
            assigned.leave()
        added = [AssignedQueue(queue, wanted) for queue in chosen if queue not in self._assigned]
        # If one fails, no queue is added.
        await asyncio.gather(*(self._positions.begin(assigned) for assigned in added))
        self._assigned.update((assigned.queue, assigned) for assigned in added)
        for assigned in added:
            self._fetching.begin(assigned)
        self._turns.renew()

    def _entry(self) -> ConsumerEntry:
        """Return this consumer's entry in heartbeats."""
        subscriptions = self._sharing.subscriptions()
        if self._assigns:
            assigned = {each.queue.topic: each.wanted for each in self._assigned.values()}
            subscriptions = [subscription(self._names.wrap(topic), assigned[topic]) for topic in sorted(assigned)]
        return ConsumerEntry(
            self._wire_group, "CONSUME_ACTIVELY", consume_from=self.config.announced_start, subscriptions=subscriptions
        )

    def _find(self, queue: MessageQueue) -> AssignedQueue:
        self._cluster.check_running()
        assigned = self._assigned.get(queue)
        if assigned is None or assigned.leaving:
            hint = "another member has it, or will have it" if self._sharing.used else "assign() it first"
            raise UsageError(f"{queue} is not assigned to this consumer; {hint}")
        return assigned

    def _move(self, queue: MessageQueue, offset: int) -> None:
        """Continue a queue at an offset. Raises `UsageError` if the queue was revoked while a broker was asked."""
        self._restart_at(self._find(queue), offset)

    def _restart_at(self, assigned: AssignedQueue, offset: int) -> None:
        """Drop the prefetched messages and pull from `offset` on. The response to a running pull is ignored."""
        if self._open is not None and self._open.assigned is assigned:
            self._open = None
        assigned.restart(offset)
        assigned.committed = -1  # so that the next commit is sent, even if the offset is the broker's present one
        self._fetching.begin(assigned)

    def _reset(self, assigned: AssignedQueue, offset: int) -> None:
        """Continue a queue at the offset of an administrator's reset, and commit this offset.

        A queue that is being revoked is not pulled again: its next owner continues at the offset.
        """
        if assigned.leaving:
            assigned.restart(offset)
        else:
            self._restart_at(assigned, offset)
        self._cluster.tasks.start(self._positions.commit_reset(assigned, offset), name=f"reset {assigned.queue}")

    async def _next_batch(self, timeout: float) -> Batch | None:
        if not (self._assigns or self._sharing.used):
            raise UsageError(f"consumer of group {self.group} has no queues: subscribe to a topic or assign some first")
        return await self._turns.next_batch(timeout)


def internals(
    assigned: Mapping[MessageQueue, AssignedQueue],
    config: ConsumerConfig,
    *,
    entry: Callable[[], ConsumerEntry],
    restart_at: Callable[[AssignedQueue, int], None],
    wake: Callable[[], None],
) -> ConsumerInternals:
    """Return the parts of a pull consumer that brokers and administrators may see and change."""

    def reset(offsets: dict[MessageQueue, int]) -> None:
        for queue, offset in offsets.items():
            if queue in assigned:
                restart_at(assigned[queue], offset)

    settings = {
        "PROP_CONSUMEORDERLY": "false",
        "autoCommit": str(config.auto_commit).lower(),
        "autoCommitIntervalMillis": str(int(config.auto_commit_seconds * 1000)),
    }
    return ConsumerInternals(
        config,
        settings,
        entry,
        positions=lambda: {queue: each.position for queue, each in assigned.items()},
        queues=lambda: {queue: _pulled(each) for queue, each in assigned.items()},
        reset=reset,
        wake=wake,
    )


def _pulled(assigned: AssignedQueue) -> PulledQueue:
    return PulledQueue(
        commit_offset=max(assigned.committed, 0),
        cached_min_offset=assigned.position if assigned.ready_count else 0,
        cached_max_offset=assigned.fetch_offset - 1 if assigned.ready_count else 0,
        cached_count=assigned.ready_count,
        cached_mebibytes=assigned.ready_bytes >> 20,
        dropped=assigned.leaving,
        last_pull_ms=assigned.pulled_ms,
        last_consume_ms=assigned.polled_ms,
    )


class Turns:
    """Takes batches from the queues in `assigned`, one queue after the other, so that each is served.

    `renew` must be called when queues were added or removed. `is_over()` returns True after the consumer was closed.
    """

    def __init__(
        self,
        assigned: Mapping[MessageQueue, AssignedQueue],
        clock: Clock,
        fetching: Prefetch,
        *,
        is_over: Callable[[], bool],
    ) -> None:
        self._assigned = assigned
        self._clock = clock
        self._fetching = fetching
        self._is_over = is_over
        self._turns: list[AssignedQueue] = []

    def renew(self) -> None:
        self._turns = list(self._assigned.values())

    async def next_batch(self, timeout: float) -> Batch | None:
        """Return a batch of a queue that is not paused; None if there is none within `timeout` seconds.

        Raises a broker's refusal of a pull.
        """
        try:
            async with asyncio.timeout(timeout):
                while True:
                    self._fetching.changed.clear()
                    if (batch := self._take()) is not None:
                        self._fetching.room.set()
                        return batch
                    if (failure := self._fetching.take_failure()) is not None:
                        raise failure
                    if self._is_over():
                        return None
                    await self._fetching.changed.wait()
        except TimeoutError:
            return None

    def _take(self) -> Batch | None:
        for index, assigned in enumerate(self._turns):
            if assigned.ready and not assigned.paused:
                self._turns.append(self._turns.pop(index))
                assigned.polled_ms = self._clock.now_ms()
                return assigned.take()
        return None
