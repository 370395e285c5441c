"""The blocking pull consumer: the async one behind a `BlockingRunner`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Self

from pyromq.client.application_code import check_takes
from pyromq.client.arguments import checked
from pyromq.client.blocking.blocking_runner import BlockingRunner, refuse_running_loop
from pyromq.client.config import ConsumerConfig
from pyromq.client.consumer.pull.lite_pull_consumer import AsyncPullConsumer
from pyromq.client.consumer.pull.queue_watch import QueueListener
from pyromq.client.consumer.pulling import PullResult
from pyromq.client.lifespan import Lifespan
from pyromq.message import MessageQueue, StoredMessage


@checked
class PullConsumer(Lifespan):
    """Pulls messages when the application asks; blocking, for programs without an event loop.

        with PullConsumer("billing") as consumer:
            consumer.subscribe("orders")
            for message in consumer:
                ...

    Arguments, units, errors and commits are those of `AsyncPullConsumer`. One thread at a time may poll or iterate;
    other threads may close, pause and resume meanwhile. Called inside a running event loop, methods raise `UsageError`.
    """

    def __init__(self, group: str, namesrv: str | None = None, *, config: ConsumerConfig | None = None) -> None:
        self._async = AsyncPullConsumer(group, namesrv, config=config)
        self.config = self._async.config
        self._runner = BlockingRunner(self.close, self._async.config.instance)
        self._started = False

    def start(self) -> None:
        """Connect. Raises `NoNameServer` at once when no name server can be reached."""
        self._runner.start(self._async.start)
        self._started = True

    def close(self) -> None:
        """Commit what was handed out (with `auto_commit`), stop pulling, leave the group. Idempotent."""
        self._runner.close(self._async.close)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._async.hand_back_latest()
        super().__exit__(kind, error, trace)

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic that can be read now, in order of broker name and queue id."""
        return self._runner.run(self._async.queues, topic)

    def watch_queues(self, topic: str, listener: QueueListener) -> list[MessageQueue]:
        """Return a topic's queues, and call `listener(queues)` in a thread of its own whenever they are others."""

        return self._runner.run(self._async.watch_queues, topic, _in_thread(listener))

    def unwatch_queues(self, topic: str) -> None:
        """End what `watch_queues` began."""
        self._runner.call(self._async.unwatch_queues, topic)

    @property
    def client_id(self) -> str:
        """This member's name in its group, known once started."""
        return self._async.client_id

    @property
    def damaged_count(self) -> int:
        """How many messages nobody could consume: see `ConsumerConfig.damaged` and `deliver_undecodable`."""
        return self._async.damaged_count

    @property
    def assignment(self) -> list[MessageQueue]:
        """The assigned queues, in order; after `subscribe`, those that are this member's now."""
        return self._async.assignment

    def subscribe(
        self, topic: str, *, tags: str = "*", sql: str | None = None, listener: QueueListener | None = None
    ) -> None:
        """Share the topic's queues with the group's other members; see `AsyncPullConsumer.subscribe`.

        The listener is called in a thread of its own.
        """
        tell = None if listener is None else _in_thread(listener)
        if self._started:
            self._runner.call(self._async.subscribe, topic, tags=tags, sql=sql, listener=tell)
        else:
            self._async.subscribe(topic, tags=tags, sql=sql, listener=tell)

    def unsubscribe(self, topic: str) -> None:
        """Pull the topic no more; its queues are given away, soon."""
        if self._started:
            self._runner.call(self._async.unsubscribe, topic)
        else:
            self._async.unsubscribe(topic)

    def assign(self, queues: Iterable[MessageQueue], *, tags: str = "*", sql: str | None = None) -> None:
        """Pull from exactly these queues from now on; see `AsyncPullConsumer.assign`."""
        self._runner.run(self._async.assign, queues, tags=tags, sql=sql)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at a queue offset; `UsageError` unless it is between the queue's bounds."""
        self._runner.run(self._async.seek, queue, offset)

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on at the first message that is still there."""
        self._runner.run(self._async.seek_to_begin, queue)

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on with the next message that arrives."""
        self._runner.run(self._async.seek_to_end, queue)

    def seek_to_time(self, queue: MessageQueue, timestamp_ms: int) -> None:
        """Go on at the message stored nearest to a time (ms since 1970)."""
        self._runner.run(self._async.seek_to_time, queue, timestamp_ms)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Hand out nothing of these assigned queues until they are resumed."""
        self._runner.call(self._async.pause, queues)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        self._runner.call(self._async.resume, queues)

    def poll(self, timeout: float = 1.0) -> list[StoredMessage]:
        """Return the next messages of one queue, in order; [] when there is none within `timeout` seconds."""
        return self._runner.run(self._async.poll, timeout)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StoredMessage:
        """Return the next message of any assigned queue, however long it takes; ends when the consumer is closed."""
        refuse_running_loop()
        message = self._async.next_buffered()
        if message is not None:
            return message
        try:
            return self._runner.run(self._async.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Store the position of every assigned queue, or exactly these offsets, at the brokers."""
        self._runner.run(self._async.commit, offsets)

    def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's stored offset of a queue; None if there is none."""
        return self._runner.run(self._async.committed, queue)

    def position(self, queue: MessageQueue) -> int:
        """Return the offset of the next message that will be handed out of an assigned queue."""
        return self._async.position(queue)

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_count: int = 32,
        *,
        tags: str = "*",
        sql: str | None = None,
        wait_seconds: float = 0.0,
    ) -> PullResult:
        """Pull once from any queue, without touching assignment and positions."""
        asked = (queue, offset, max_count)
        return self._runner.run(self._async.pull, *asked, tags=tags, sql=sql, wait_seconds=wait_seconds)

    def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the first message that is still there."""
        return self._runner.run(self._async.min_offset, queue)

    def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message will get."""
        return self._runner.run(self._async.max_offset, queue)

    def offset_by_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the message stored nearest to a time (ms since 1970)."""
        return self._runner.run(self._async.offset_by_time, queue, timestamp_ms)


def _in_thread(listener: QueueListener) -> QueueListener:
    check_takes(listener, "queues", what="a listener for queues")

    async def tell(queues: list[MessageQueue]) -> None:
        await asyncio.to_thread(listener, queues)

    return tell
