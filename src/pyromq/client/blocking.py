"""The blocking clients: the async ones behind a `Portal`. No behaviour of their own.

Each client has its own event loop, which the calling threads turn; a client may be shared by threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

from pyromq.client.config import ConsumerConfig, ProducerConfig
from pyromq.client.delivery import Selector, queue_chooser
from pyromq.client.portal import Outcome, Portal
from pyromq.client.producer import AsyncProducer
from pyromq.client.pull_consumer import AsyncPullConsumer
from pyromq.client.pulling import PullResult
from pyromq.message import Message, MessageQueue, SendResult, StoredMessage


class Producer:
    """Sends messages; blocking, for programs without an event loop. Threads may share one.

        with Producer("orders-service") as producer:
            result = producer.send(Message("orders", b"...", keys="order-7"), ordering_key="customer-3")

    Arguments, units and errors are those of `AsyncProducer`. Called inside a running event loop, every method raises
    `UsageError`. A producer made before `fork` is the parent's: in the child it raises `NotRunning`.
    """

    def __init__(self, group: str, namesrv: str = "127.0.0.1:9876", *, config: ProducerConfig | None = None) -> None:
        self._async = AsyncProducer(group, namesrv, config=config)
        self._portal = Portal(self.close)

    def start(self) -> None:
        """Connect. Raises `NoNameServer` at once when no name server can be reached."""
        self._portal.start(self._async.start)

    def close(self) -> None:
        """Wait for the answers to what was sent, leave the group, close the connections. Idempotent."""
        self._portal.close(self._async.close)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        ordering_key: str | None = None,
        selector: Selector | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send a message and return where it went; see `AsyncProducer.send`."""
        choose = queue_chooser(message, queue, ordering_key, selector)
        self._make_room()
        return self._portal.run(self._async.begin, message, choose, timeout, at_once=True)

    def send_soon(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        ordering_key: str | None = None,
        selector: Selector | None = None,
        timeout: float | None = None,
    ) -> Outcome[SendResult]:
        """Send without waiting for the answer; the `concurrent.futures.Future` gets it.

        Messages sent in a row travel together. Blocks only while `max_in_flight` messages have no answer yet.
        """
        self._make_room()
        return self._portal.submit(
            self._async.send_soon, message, queue=queue, ordering_key=ordering_key, selector=selector, timeout=timeout
        )

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        ordering_key: str | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send messages of one topic in one request; see `AsyncProducer.send_batch`."""
        return self._portal.run(
            self._async.send_batch, messages, queue=queue, ordering_key=ordering_key, timeout=timeout
        )

    def send_one_way(
        self, message: Message, *, queue: MessageQueue | None = None, ordering_key: str | None = None
    ) -> None:
        """Write a message to a broker's connection; nobody says whether it was stored."""
        self._portal.run(self._async.send_one_way, message, queue=queue, ordering_key=ordering_key)

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that messages of a topic can be sent to now."""
        return self._portal.run(self._async.queues, topic)

    def flush(self) -> None:
        """Wait until every message sent so far has its answer or has failed."""
        self._portal.run(self._async.flush)

    def _make_room(self) -> None:
        if self._async.in_flight >= self._async.config.max_in_flight:
            self._portal.run(self._async.room_below, self._async.config.max_in_flight)


class PullConsumer:
    """Pulls messages from queues the application chooses; blocking, for programs without an event loop.

        with PullConsumer("billing") as consumer:
            consumer.assign(consumer.queues("orders"))
            for message in consumer:
                ...

    Arguments, units, errors and commits are those of `AsyncPullConsumer`. One thread at a time may poll or iterate;
    other threads may close, pause and resume meanwhile. Called inside a running event loop, methods raise `UsageError`.
    """

    def __init__(self, group: str, namesrv: str = "127.0.0.1:9876", *, config: ConsumerConfig | None = None) -> None:
        self._async = AsyncPullConsumer(group, namesrv, config=config)
        self._portal = Portal(self.close)

    def start(self) -> None:
        """Connect. Raises `NoNameServer` at once when no name server can be reached."""
        self._portal.start(self._async.start)

    def close(self) -> None:
        """Commit what was handed out (with `auto_commit`), stop pulling, leave the group. Idempotent."""
        self._portal.close(self._async.close)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._async.hand_back_latest()
        self.close()

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic that can be read now, in order of broker name and queue id."""
        return self._portal.run(self._async.queues, topic)

    @property
    def assignment(self) -> list[MessageQueue]:
        """The assigned queues, in order."""
        return self._async.assignment

    def assign(self, queues: Iterable[MessageQueue], *, tags: str = "*") -> None:
        """Pull from exactly these queues from now on; see `AsyncPullConsumer.assign`."""
        self._portal.run(self._async.assign, queues, tags=tags)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at a queue offset; `UsageError` unless it is between the queue's bounds."""
        self._portal.run(self._async.seek, queue, offset)

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on at the first message that is still there."""
        self._portal.run(self._async.seek_to_begin, queue)

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on with the next message that arrives."""
        self._portal.run(self._async.seek_to_end, queue)

    def seek_to_time(self, queue: MessageQueue, timestamp_ms: int) -> None:
        """Go on at the message stored nearest to a time (ms since 1970)."""
        self._portal.run(self._async.seek_to_time, queue, timestamp_ms)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Hand out nothing of these assigned queues until they are resumed."""
        self._portal.call(self._async.pause, queues)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        self._portal.call(self._async.resume, queues)

    def poll(self, timeout: float = 1.0) -> list[StoredMessage]:
        """Return the next messages of one queue, in order; [] when there is none within `timeout` seconds."""
        return self._portal.run(self._async.poll, timeout)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StoredMessage:
        """Return the next message of any assigned queue, however long it takes; ends when the consumer is closed."""
        message = self._async.next_buffered()
        if message is not None:
            return message
        try:
            return self._portal.run(self._async.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None

    def commit(self) -> None:
        """Store the position of every assigned queue at the brokers."""
        self._portal.run(self._async.commit)

    def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's stored offset of a queue; None if there is none."""
        return self._portal.run(self._async.committed, queue)

    def position(self, queue: MessageQueue) -> int:
        """Return the offset of the next message that will be handed out of an assigned queue."""
        return self._async.position(queue)

    def pull(
        self, queue: MessageQueue, offset: int, max_count: int = 32, *, tags: str = "*", wait_seconds: float = 0.0
    ) -> PullResult:
        """Pull once from any queue, without touching assignment and positions."""
        return self._portal.run(self._async.pull, queue, offset, max_count, tags=tags, wait_seconds=wait_seconds)

    def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the first message that is still there."""
        return self._portal.run(self._async.min_offset, queue)

    def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message will get."""
        return self._portal.run(self._async.max_offset, queue)

    def offset_by_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the message stored nearest to a time (ms since 1970)."""
        return self._portal.run(self._async.offset_by_time, queue, timestamp_ms)
