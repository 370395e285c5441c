"""The blocking producer."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future

from pyromq.client.blocking.blocking_client import BlockingClient, blocking
from pyromq.client.blocking.blocking_runner import refuse_running_loop
from pyromq.client.config import ProducerConfig
from pyromq.client.producer.pending_send import Selector, listed, queue_chooser
from pyromq.client.producer.producer import AsyncProducer
from pyromq.client.producer.queue_selection import OrderingKey
from pyromq.message import Message, MessageQueue, SendResult


class Producer(BlockingClient[AsyncProducer]):
    """Sends messages; blocking, for programs without an event loop. Threads may share one.

        with Producer("orders-service") as producer:
            result = producer.send(Message("orders", b"...", keys="order-7"), ordering_key="customer-3")

    Arguments, units and errors are those of `AsyncProducer`. Called inside a running event loop, every method raises
    `UsageError`. In a forked child, a producer made by the parent raises `NotRunning`.
    """

    def __init__(self, group: str, namesrv: str | None = None, *, config: ProducerConfig | None = None) -> None:
        client = AsyncProducer(group, namesrv, config=config)
        super().__init__(client, client.config.instance)

    send_one_way = blocking(AsyncProducer.send_one_way)
    request = blocking(AsyncProducer.request)
    cancel = blocking(AsyncProducer.cancel)
    queues = blocking(AsyncProducer.queues)
    flush = blocking(AsyncProducer.flush)

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        ordering_key: OrderingKey | None = None,
        selector: Selector | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send a message and return its queue and offset; see `AsyncProducer.send`."""
        choose = queue_chooser(message, queue, ordering_key, selector)
        self._make_room()
        return self._runner.run(self._async.begin, message, choose, timeout, at_once=True)

    def send_soon(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        ordering_key: OrderingKey | None = None,
        selector: Selector | None = None,
        timeout: float | None = None,
    ) -> Future[SendResult]:
        """Send without waiting; the `concurrent.futures.Future` gets the result or the error.

        Messages sent in a row share a write. Blocks only while `max_in_flight` messages or `max_pending_bytes` wait
        for their replies.
        """
        refuse_running_loop()
        choose = queue_chooser(message, queue, ordering_key, selector)
        self._make_room()
        self._async.check_open()  # raises here even while another thread turns the loop
        return self._runner.submit(self._async.begin_soon, message, choose, timeout)

    def send_batch(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        ordering_key: OrderingKey | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send messages of one topic in one request; see `AsyncProducer.send_batch`."""
        return self._runner.run(
            self._async.send_batch, listed(messages), queue=queue, ordering_key=ordering_key, timeout=timeout
        )

    def _make_room(self) -> None:
        if self._async.is_full:
            self._runner.run(self._async.room)
