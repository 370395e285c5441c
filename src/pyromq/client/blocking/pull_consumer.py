"""The blocking pull consumer."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from pyromq.client.application_code import check_takes
from pyromq.client.arguments import checked
from pyromq.client.blocking.blocking_client import BlockingClient, blocking, on_loop
from pyromq.client.blocking.blocking_runner import refuse_running_loop
from pyromq.client.config import ConsumerConfig
from pyromq.client.consumer.pull.lite_pull_consumer import AsyncPullConsumer
from pyromq.client.consumer.pull.queue_watch import QueueListener
from pyromq.message import MessageQueue, StoredMessage


@checked
class PullConsumer(BlockingClient[AsyncPullConsumer]):
    """Pulls messages when the application asks; blocking, for programs without an event loop.

        with PullConsumer("billing") as consumer:
            consumer.subscribe("orders")
            for message in consumer:
                ...

    Arguments, units, errors and commits are those of `AsyncPullConsumer`. One thread at a time may poll or iterate;
    other threads may close, pause and resume meanwhile. Called inside a running event loop, methods raise `UsageError`.
    """

    def __init__(self, group: str, namesrv: str | None = None, *, config: ConsumerConfig | None = None) -> None:
        client = AsyncPullConsumer(group, namesrv, config=config)
        super().__init__(client, client.config.instance)
        self.config = client.config

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._async.hand_back_latest()
        super().__exit__(kind, error, trace)

    queues = blocking(AsyncPullConsumer.queues)
    unwatch_queues = on_loop(AsyncPullConsumer.unwatch_queues)
    assign = blocking(AsyncPullConsumer.assign)
    seek = blocking(AsyncPullConsumer.seek)
    seek_to_begin = blocking(AsyncPullConsumer.seek_to_begin)
    seek_to_end = blocking(AsyncPullConsumer.seek_to_end)
    seek_to_time = blocking(AsyncPullConsumer.seek_to_time)
    pause = on_loop(AsyncPullConsumer.pause)
    resume = on_loop(AsyncPullConsumer.resume)
    poll = blocking(AsyncPullConsumer.poll)
    commit = blocking(AsyncPullConsumer.commit)
    committed = blocking(AsyncPullConsumer.committed)
    pull = blocking(AsyncPullConsumer.pull)
    min_offset = blocking(AsyncPullConsumer.min_offset)
    max_offset = blocking(AsyncPullConsumer.max_offset)
    offset_by_time = blocking(AsyncPullConsumer.offset_by_time)

    def watch_queues(self, topic: str, listener: QueueListener) -> list[MessageQueue]:
        """Return a topic's queues, and call `listener(queues)` in a thread of its own whenever they change."""
        return self._runner.run(self._async.watch_queues, topic, _in_thread(listener))

    @property
    def client_id(self) -> str:
        """This member's name in its group; set by `start`."""
        return self._async.client_id

    @property
    def damaged_count(self) -> int:
        """Number of damaged or undecodable messages: see `ConsumerConfig.damaged` and `deliver_undecodable`."""
        return self._async.damaged_count

    @property
    def assignment(self) -> list[MessageQueue]:
        """The assigned queues, in order."""
        return self._async.assignment

    def subscribe(
        self, topic: str, *, tags: str = "*", sql: str | None = None, listener: QueueListener | None = None
    ) -> None:
        """Join the group's assignment of the topic's queues; see `AsyncPullConsumer.subscribe`.

        The listener is called in a thread of its own.
        """
        tell = None if listener is None else _in_thread(listener)
        if self._runner.was_started:
            self._runner.call(self._async.subscribe, topic, tags=tags, sql=sql, listener=tell)
        else:
            self._async.subscribe(topic, tags=tags, sql=sql, listener=tell)

    def unsubscribe(self, topic: str) -> None:
        """Stop pulling the topic; its queues are released soon."""
        if self._runner.was_started:
            self._runner.call(self._async.unsubscribe, topic)
        else:
            self._async.unsubscribe(topic)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StoredMessage:
        """Return the next message of any assigned queue, waiting without limit; closing ends the iteration."""
        refuse_running_loop()
        message = self._async.next_buffered()
        if message is not None:
            return message
        try:
            return self._runner.run(self._async.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None

    def position(self, queue: MessageQueue) -> int:
        """Return the offset of the next message that an assigned queue will hand out."""
        return self._async.position(queue)


def _in_thread(listener: QueueListener) -> QueueListener:
    check_takes(listener, "queues", what="a listener for queues")

    async def tell(queues: list[MessageQueue]) -> None:
        await asyncio.to_thread(listener, queues)

    return tell
