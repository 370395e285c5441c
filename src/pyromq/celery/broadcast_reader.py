"""Reads the messages of an exchange for the queues of this process: remote control, events, replies.

Each process reads all messages of the exchange's topic since its first binding. No group has offsets in the topic.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from pyromq.client.blocking.consumers import PullConsumer
from pyromq.client.client_config import ConsumerConfig
from pyromq.errors import MQError, NotRunning
from pyromq.logs import logger_of
from pyromq.message import MessageQueue, StoredMessage
from pyromq.names import TOOLS_GROUP

logger = logger_of(__name__)

POLL_SECONDS = 1.0


class BroadcastReader:
    """Reads the existing topic of one exchange. `deliver(message)` is called in the reader's thread."""

    def __init__(
        self, topic: str, namesrv: str, config: ConsumerConfig, deliver: Callable[[StoredMessage], None]
    ) -> None:
        self._deliver = deliver
        self._started_ms = int(time.time() * 1000)
        self._added: set[MessageQueue] = set()  # queues of brokers that were registered after the start of this reader
        self._consumer = PullConsumer(TOOLS_GROUP, namesrv, config=config)
        self._consumer.start()
        try:
            queues = self._consumer.watch_queues(topic, self._add)
            self._consumer.assign(queues)
            for queue in queues:
                self._consumer.seek_to_end(queue)
        except BaseException:
            self._consumer.close()
            raise
        self._thread = threading.Thread(target=self._run, name=f"pyromq celery {topic}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._consumer.close()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _add(self, queues: list[MessageQueue]) -> None:
        """Assign new queues of the topic. Queues of unregistered brokers are still assigned, at their positions."""
        assigned = self._consumer.assignment
        added = set(queues) - set(assigned)
        try:
            self._added |= added
            self._consumer.assign([*assigned, *added])
            for queue in added:
                self._consumer.seek_to_time(queue, self._started_ms)
        except NotRunning:
            pass
        except MQError as error:
            logger.warning("messages to this process at %s cannot be read: %s", queues, error)

    def _run(self) -> None:
        while True:
            try:
                for message in self._consumer.poll(POLL_SECONDS):
                    if message.queue not in self._added or message.store_ms >= self._started_ms:
                        self._deliver(message)
            except NotRunning:
                return
            except MQError as error:
                logger.warning("messages to this process cannot be read now: %s", error)
