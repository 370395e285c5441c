"""The blocking push consumer, pull consumer, simple consumer and queue reader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from pyromq.client.application_code import check_takes
from pyromq.client.arguments import checked
from pyromq.client.blocking.blocking_client import BlockingClient, at_any_time, blocking, on_loop, refuse_running_loop
from pyromq.client.blocking.sigint import sigterm_calls
from pyromq.client.client_config import ConsumerConfig
from pyromq.client.consumer.pop.async_simple_consumer import AsyncSimpleConsumer
from pyromq.client.consumer.pull.lite_pull_consumer import AsyncPullConsumer
from pyromq.client.consumer.pull.subscribed_queues import QueueListener
from pyromq.client.consumer.push.listener import Listener
from pyromq.client.consumer.push.push_consumer import AsyncConsumer
from pyromq.client.consumer.queue_reader import AsyncQueueReader
from pyromq.message import MessageQueue, StoredMessage
from pyromq.net.connection_config import ConnectionConfig


@checked
class PullConsumer(BlockingClient[AsyncPullConsumer]):
    """Pulls messages when the application asks; blocking, for programs without an event loop.

        with PullConsumer("billing") as consumer:
            consumer.subscribe("orders")
            for message in consumer:
                ...

    Arguments, units, errors and commits are those of `AsyncPullConsumer`. One thread at a time may poll or iterate;
    other threads may close, pause and resume at the same time. Called inside a running event loop, methods raise
    `UsageError`.
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

    hand_back_latest = on_loop(AsyncPullConsumer.hand_back_latest)
    queues = blocking(AsyncPullConsumer.queues)
    unwatch_queues = on_loop(AsyncPullConsumer.unwatch_queues)
    assign = blocking(AsyncPullConsumer.assign)
    seek = blocking(AsyncPullConsumer.seek)
    seek_to_begin = blocking(AsyncPullConsumer.seek_to_begin)
    seek_to_end = blocking(AsyncPullConsumer.seek_to_end)
    seek_to_time = blocking(AsyncPullConsumer.seek_to_time)
    unsubscribe = at_any_time(AsyncPullConsumer.unsubscribe)
    _subscribe = at_any_time(AsyncPullConsumer.subscribe)
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
        """Return a topic's queues, and call `listener(queues)` in a separate thread whenever they change."""
        return self._runner.run(self._async.watch_queues, topic, _in_thread(listener))

    @property
    def client_id(self) -> str:
        """This member's client id in its group; available after the start."""
        return self._async.client_id

    @property
    def damaged_count(self) -> int:
        """The number of damaged and undecodable messages: see `ConsumerConfig.damaged` and `deliver_undecodable`."""
        return self._async.damaged_count

    @property
    def assignment(self) -> list[MessageQueue]:
        """The assigned queues, sorted."""
        return self._async.assignment

    def subscribe(
        self, topic: str, *, tags: str = "*", sql: str | None = None, listener: QueueListener | None = None
    ) -> None:
        """Share the topic's queues with the group's members; see `AsyncPullConsumer.subscribe`.

        The listener is called in a separate thread.
        """
        tell = None if listener is None else _in_thread(listener)
        self._subscribe(topic, tags=tags, sql=sql, listener=tell)

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


@checked
class SimpleConsumer(BlockingClient[AsyncSimpleConsumer]):
    """Receives messages and acknowledges each by itself; blocking, for programs without an event loop.

        with SimpleConsumer("billing") as consumer:
            consumer.subscribe("orders")
            for message in consumer.receive():
                ...
                consumer.ack(message)

    Arguments, units, errors and redelivery are those of `AsyncSimpleConsumer`. Several threads may receive and
    acknowledge at the same time. Called inside a running event loop, methods raise `UsageError`.
    """

    def __init__(self, group: str, namesrv: str | None = None, *, config: ConsumerConfig | None = None) -> None:
        client = AsyncSimpleConsumer(group, namesrv, config=config)
        super().__init__(client, client.config.instance)
        self.config = client.config

    subscribe = at_any_time(AsyncSimpleConsumer.subscribe)
    unsubscribe = at_any_time(AsyncSimpleConsumer.unsubscribe)
    receive = blocking(AsyncSimpleConsumer.receive)
    ack = blocking(AsyncSimpleConsumer.ack)
    change_invisible_duration = blocking(AsyncSimpleConsumer.change_invisible_duration)
    dead_letter = blocking(AsyncSimpleConsumer.dead_letter)

    @property
    def client_id(self) -> str:
        """This member's id in its group; available after the start."""
        return self._async.client_id

    @property
    def damaged_count(self) -> int:
        """The number of damaged records received since the start, also repeatedly."""
        return self._async.damaged_count


def _in_thread(listener: QueueListener) -> QueueListener:
    check_takes(listener, "queues", what="a listener for queues")

    async def tell(queues: list[MessageQueue]) -> None:
        await asyncio.to_thread(listener, queues)

    return tell


L = TypeVar("L", bound=Listener)
T = TypeVar("T")
R = TypeVar("R")


class Consumer(BlockingClient[AsyncConsumer]):
    """Consumes topics as a member of a group; for programs without an event loop.

        with Consumer("billing") as consumer:
            @consumer.subscribe("orders", tags="paid || refunded")
            def work(messages):
                ...
            consumer.wait()

    Arguments, listeners, units and errors are those of `AsyncConsumer`. Plain listeners run in threads, `async` ones on
    the consumer's own event loop. Called inside a running event loop, methods raise `UsageError`.
    """

    def __init__(self, group: str, namesrv: str | None = None, *, config: ConsumerConfig | None = None) -> None:
        client = AsyncConsumer(group, namesrv, config=config)
        super().__init__(client, client.instance)
        self._terminated = False  # True after SIGTERM, which may arrive before `start` returned

    reply = blocking(AsyncConsumer.reply)
    unsubscribe = at_any_time(AsyncConsumer.unsubscribe)
    _subscribe = at_any_time(AsyncConsumer.subscribe)
    pause = on_loop(AsyncConsumer.pause)
    resume = on_loop(AsyncConsumer.resume)

    def run(self, *, signals: bool = True) -> None:
        """Start, consume until `stop` is called, Ctrl-C or SIGTERM, and close.

        Listeners and other threads may call `stop`. SIGTERM is not handled with `signals=False`, or if the program
        handles or ignores it. Raises `UsageError` if no topic is subscribed to.
        """
        self._async.check_subscribed()
        with sigterm_calls(self._terminate) if signals else nullcontext(), self:
            try:
                if not self._terminated:
                    self.wait()
            except KeyboardInterrupt:
                pass  # Ctrl-C is the usual end of a program that consumes

    def wait(self) -> None:
        """Wait until `stop` or `close` is called. Raises the error that ended the consumer, see `AsyncConsumer.wait`.

        Ctrl-C raises `KeyboardInterrupt`.
        """
        if (failure := self._runner.run(self._async.ended)) is not None:
            raise failure  # raised here, not on the loop, where it would end the thread that turns the loop

    def stop(self) -> None:
        """Make `wait` return. The consumer stays open. For listeners and other threads."""
        self._async.stop()

    @overload
    def subscribe(self, topic: str, listener: Listener, *, tags: str = "*", sql: str | None = None) -> None: ...
    @overload
    def subscribe(
        self, topic: str, listener: None = None, *, tags: str = "*", sql: str | None = None
    ) -> Callable[[L], L]: ...
    @overload
    def subscribe(
        self,
        topic: str,
        *,
        tags: str = "*",
        sql: str | None = None,
        type: type[T],
        unfit: Listener | None = None,
    ) -> Callable[[Callable[[list[T]], R]], Callable[[list[T]], R]]: ...
    def subscribe(self, topic: str, listener: Listener | None = None, **how: Any) -> Any:
        """Call a listener with the topic's messages that have these tags (`*`, `a`, `a || b`).

        `sql` selects by properties instead: `price > 5 AND region IN ('EU', 'US')`. If `listener` is omitted, a
        decorator for one is returned. A topic has one listener: the latest. With `type`, the listener gets values of
        that type, see `AsyncConsumer.subscribe`. May be called before and after the start.
        """

        def decorate(function: Any) -> Any:
            self._subscribe(topic, function, **how)
            return function

        if listener is None:
            return decorate
        decorate(listener)
        return None

    @property
    def client_id(self) -> str:
        """This member's client id in its group; available after the start."""
        return self._async.client_id

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues assigned to this member, sorted, without those of the retry topic."""
        return self._async.assignment

    @property
    def damaged_count(self) -> int:
        """The number of damaged and undecodable messages: see `ConsumerConfig.damaged` and `deliver_undecodable`."""
        return self._async.damaged_count

    def _terminate(self) -> None:
        self._terminated = True
        if self._runner.was_started:
            self.stop()


class QueueReader(BlockingClient[AsyncQueueReader]):
    """Reads queues in the name of a group; blocking, for programs without an event loop.

    Several threads may use one reader. Arguments, units and errors are those of `AsyncQueueReader`.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | None = None,
        *,
        timeout: float = 5.0,
        verify_checksums: bool = True,
        connections: ConnectionConfig | None = None,
        namespace: str | None = None,
    ) -> None:
        client = AsyncQueueReader(
            group,
            namesrv,
            timeout=timeout,
            verify_checksums=verify_checksums,
            connections=connections,
            namespace=namespace,
        )
        super().__init__(client)

    topics = blocking(AsyncQueueReader.topics)
    brokers = blocking(AsyncQueueReader.brokers)
    absent = blocking(AsyncQueueReader.absent)
    queues = blocking(AsyncQueueReader.queues)
    has_master = on_loop(AsyncQueueReader.has_master)
    deleted = blocking(AsyncQueueReader.deleted)
    bounds = blocking(AsyncQueueReader.bounds)
    live_bounds = blocking(AsyncQueueReader.live_bounds)
    first_since = blocking(AsyncQueueReader.first_since)
    store_time_at = blocking(AsyncQueueReader.store_time_at)
    store_times = blocking(AsyncQueueReader.store_times)
    pull = blocking(AsyncQueueReader.pull)
    pull_all = blocking(AsyncQueueReader.pull_all)
    committed = blocking(AsyncQueueReader.committed)
    commit = blocking(AsyncQueueReader.commit)
    announce_group = blocking(AsyncQueueReader.announce_group)
