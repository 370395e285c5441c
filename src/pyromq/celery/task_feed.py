"""Receives the messages of a channel's durable queues in a thread, as many as the channel's prefetch count allows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from pyromq.client.blocking.consumers import SimpleConsumer
from pyromq.errors import MQError, NotRunning
from pyromq.logs import logger_of
from pyromq.message import StoredMessage

logger = logger_of(__name__)

WAIT_SECONDS = 2.0  # longest wait of one receive: a new queue of the channel is received after it
PAUSE_SECONDS = 1.0  # pause after a failed receive, and between two looks for room


class TaskFeed:
    """The received queues of one channel. `room()` is the number of messages that the channel may still receive.

    `deliver(queue, message)` is called in the feed's thread. Unacknowledged messages stay invisible as long as the feed
    is open.
    """

    def __init__(
        self,
        consumer: SimpleConsumer,
        *,
        visibility_timeout: float,
        room: Callable[[], int],
        deliver: Callable[[str, StoredMessage], None],
    ) -> None:
        self.consumer = consumer
        self._visibility_timeout = visibility_timeout
        self._room = room
        self._deliver = deliver
        self._topics: dict[str, list[str]] = {}  # topics of each queue, the highest priority first
        self._queues: dict[str, str] = {}
        self._turn = 0
        self._changed = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None

    def add(self, queue: str, topics: list[str]) -> None:
        """Begin to receive a queue, whose `topics` are in order of priority, the highest first."""
        for topic in topics:
            self.consumer.subscribe(topic)
            self._queues[topic] = queue
        self._topics = {**self._topics, queue: topics}
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pyromq celery tasks", daemon=True)
            self._thread.start()
        self.wake()

    def remove(self, queue: str) -> None:
        """Receive no more messages of a queue."""
        self._topics = {name: topics for name, topics in self._topics.items() if name != queue}

    def wake(self) -> None:
        """Look for room again: a message was acknowledged."""
        self._changed.set()

    def get(self, topics: list[str]) -> StoredMessage | None:
        """Return one message of these topics without waiting; None if there is none."""
        for topic in topics:
            self.consumer.subscribe(topic)
        found = self.consumer.receive(
            1, wait_seconds=0.0, invisible_seconds=self._visibility_timeout, renew=True, topics=topics
        )
        return found[0] if found else None

    def close(self) -> None:
        """Stop receiving. Messages that were not acknowledged become visible."""
        self._closed = True
        self.wake()
        self.consumer.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        is_failing = False
        while not self._closed:
            self._changed.clear()
            topics, room = self._in_order(), self._room()
            if not topics or room <= 0:
                self._changed.wait(PAUSE_SECONDS)
                continue
            try:
                messages = self.consumer.receive(
                    room,
                    wait_seconds=WAIT_SECONDS,
                    invisible_seconds=self._visibility_timeout,
                    renew=True,
                    topics=topics,
                )
            except NotRunning:
                return
            except MQError as error:
                if not is_failing and not self._closed:
                    logger.warning("tasks cannot be received now: %s", error)
                is_failing = True
                self._changed.wait(PAUSE_SECONDS)
                continue
            is_failing = False
            for message in messages:
                self._hand_out(message)

    def _hand_out(self, message: StoredMessage) -> None:
        queue = self._queues[message.topic]
        if queue in self._topics and not self._closed:
            self._deliver(queue, message)
        else:
            with suppress(MQError):  # visible already, because the consumer is closed; or visible after its time
                self.consumer.change_invisible_duration(message, 0)

    def _in_order(self) -> list[str]:
        """Return the topics of all queues: the highest priority first, queues of one priority by turns."""
        queues = list(self._topics.values())
        if not queues:
            return []
        self._turn = (self._turn + 1) % len(queues)
        queues = queues[self._turn :] + queues[: self._turn]
        most = max(map(len, queues))
        return [topics[at] for at in range(-most, 0) for topics in queues if len(topics) >= -at]
