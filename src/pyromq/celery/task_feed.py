"""Receives the messages of a channel's durable queues in a thread, as many as the channel's prefetch count allows."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from pyromq.client.consumer.pop.async_simple_consumer import AsyncSimpleConsumer
from pyromq.errors import MQError, NotRunning
from pyromq.logs import logger_of
from pyromq.message import StoredMessage

logger = logger_of(__name__)

T = TypeVar("T")

WAIT_SECONDS = 15.0  # longest wait of one receive: then new brokers are found
GET_SECONDS = 0.02  # wait of `get`: a message is visible about a millisecond after `give_back`
PAUSE_SECONDS = 1.0  # pause after a failed receive


class TaskFeed:
    """The received queues of one channel. `room()` is the number of messages that the channel may still receive.

    `deliver(queue, message)` and `room()` are called in the feed's thread, which runs the consumer's event loop.
    Methods block the calling thread. Unacknowledged messages are invisible while the feed is open. Raises
    `NoNameServer` if no name server can be reached.
    """

    def __init__(
        self,
        consumer: AsyncSimpleConsumer,
        *,
        visibility_timeout: float,
        room: Callable[[], int],
        deliver: Callable[[str, StoredMessage], None],
    ) -> None:
        self._consumer = consumer
        self._visibility_timeout = visibility_timeout
        self._room = room
        self._deliver = deliver
        self._topics: dict[str, list[str]] = {}  # topics of each queue, the highest priority first
        self._queues: dict[str, str] = {}
        self._subscribed: set[str] = set()
        self._turn = 0
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Event()
        self._receive: asyncio.Task[list[StoredMessage]] | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="pyromq celery tasks", daemon=True)
        self._thread.start()
        try:
            self._run(consumer.start())
        except BaseException:
            self._end()
            raise
        self._loop.call_soon_threadsafe(self._begin)
        atexit.register(self.close)

    def add(self, queue: str, topics: list[str]) -> None:
        """Begin to receive a queue, whose `topics` are in order of priority, the highest first."""
        self._run(self._change(queue, topics))

    def remove(self, queue: str) -> None:
        """Receive no more messages of a queue."""
        self._run(self._change(queue, []))

    def wake(self) -> None:
        """Call `room()` again, because a message was acknowledged or the prefetch count was changed."""
        self._loop.call_soon_threadsafe(self._changed.set)

    def get(self, topics: list[str]) -> StoredMessage | None:
        """Return one message of these topics; None if there is none."""
        found = self._run(self._received(topics, 1, wait_seconds=GET_SECONDS))
        return found[0] if found else None

    def ack(self, message: StoredMessage) -> None:
        """Acknowledge a message. Raises `ReceiptHandleExpired` if the message was redelivered."""
        self._run(self._consumer.ack(message))

    def dead_letter(self, message: StoredMessage, reason: str) -> None:
        """Make a message a dead letter of the group."""
        self._run(self._consumer.dead_letter(message, reason))

    def give_back(self, message: StoredMessage) -> None:
        """Make a message visible again."""
        try:
            self._run(self._consumer.change_invisible_duration(message, 0))
        except MQError as error:
            logger.info("message %s is redelivered later: %s", message.message_id, error)

    def close(self) -> None:
        """Stop receiving. Unacknowledged messages become visible. Does nothing in a forked child."""
        atexit.unregister(self.close)
        if not self._thread.is_alive():
            return
        try:
            self._run(self._stop())
        finally:
            self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the feed's thread, and return its result. Raises `NotRunning` after closing."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except concurrent.futures.CancelledError:
            raise NotRunning("the connection was closed during the call; open a new connection") from None

    def _begin(self) -> None:
        self._feeding = self._loop.create_task(self._feed())

    async def _stop(self) -> None:
        self._feeding.cancel()
        await asyncio.wait({self._feeding})
        await self._consumer.close()

    async def _change(self, queue: str, topics: list[str]) -> None:
        for topic in topics:
            self._queues[topic] = queue
        self._topics = {name: others for name, others in self._topics.items() if name != queue}
        if topics:
            self._topics[queue] = topics
        self._changed.set()
        if self._receive is not None:
            self._receive.cancel()  # the running receive waits for the previous topics

    async def _received(self, topics: list[str], count: int, *, wait_seconds: float) -> list[StoredMessage]:
        for topic in topics:
            if topic not in self._subscribed:
                self._consumer.subscribe(topic)
                self._subscribed.add(topic)
        return await self._consumer.receive(
            count,
            wait_seconds=wait_seconds,
            invisible_seconds=self._visibility_timeout,
            renew=True,
            topics=topics,
        )

    async def _feed(self) -> None:
        is_failing = False
        while True:
            self._changed.clear()
            topics, room = self._in_order(), self._room()
            if not topics or room <= 0:
                await self._changed.wait()
                continue
            self._receive = asyncio.ensure_future(self._received(topics, room, wait_seconds=WAIT_SECONDS))
            try:
                await asyncio.wait({self._receive})
            finally:
                self._receive.cancel()
            if self._receive.cancelled():
                continue
            try:
                messages = self._receive.result()
            except MQError as error:
                if not is_failing:
                    logger.warning("tasks cannot be received now: %s", error)
                is_failing = True
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), PAUSE_SECONDS)
                continue
            if is_failing:
                logger.info("tasks are received again")
            is_failing = False
            for message in messages:
                await self._hand_out(message)

    async def _hand_out(self, message: StoredMessage) -> None:
        queue = self._queues[message.topic]
        if queue in self._topics:
            self._deliver(queue, message)
            return
        with suppress(MQError):  # then the message becomes visible when its invisible time ends
            await self._consumer.change_invisible_duration(message, 0)

    def _in_order(self) -> list[str]:
        """Return the topics of all queues, the highest priority first. In each call the next queue is the first."""
        queues = list(self._topics.values())
        if not queues:
            return []
        self._turn = (self._turn + 1) % len(queues)
        queues = queues[self._turn :] + queues[: self._turn]
        most = max(map(len, queues))
        return [topics[at] for at in range(-most, 0) for topics in queues if len(topics) >= -at]
