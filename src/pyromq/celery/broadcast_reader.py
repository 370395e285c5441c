"""Reads the messages of an exchange for queues that belong to this process: remote control, events, replies.

Each process reads the exchange's topic by itself, from the time of the first binding, without a group's offsets.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from pyromq.client.blocking.consumers import PullConsumer
from pyromq.client.client_config import ConsumerConfig
from pyromq.errors import MQError, NotRunning
from pyromq.logs import logger_of
from pyromq.message import StoredMessage
from pyromq.names import TOOLS_GROUP

logger = logger_of(__name__)

POLL_SECONDS = 1.0


class BroadcastReader:
    """The reader of one exchange's topic, which exists. `deliver(message)` is called in the reader's thread."""

    def __init__(
        self, topic: str, namesrv: str, config: ConsumerConfig, deliver: Callable[[StoredMessage], None]
    ) -> None:
        self._deliver = deliver
        self._consumer = PullConsumer(TOOLS_GROUP, namesrv, config=config)
        self._consumer.start()
        try:
            queues = self._consumer.queues(topic)
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

    def _run(self) -> None:
        while True:
            try:
                for message in self._consumer.poll(POLL_SECONDS):
                    self._deliver(message)
            except NotRunning:
                return
            except MQError as error:
                logger.warning("messages to this process cannot be read now: %s", error)
