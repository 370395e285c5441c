"""Clients of this process, one for each name server list, kept between tasks: Spark's workers live on."""

from __future__ import annotations

import atexit
import os

from pyromq.client.blocking_pull_consumer import PullConsumer
from pyromq.message import MessageQueue

_clients: dict[tuple[int, str, str], QueueClient] = {}


class QueueClient:
    """A pull consumer that reads queues directly, without joining a group's division of them."""

    def __init__(self, namesrv: str, group: str) -> None:
        self.consumer = PullConsumer(group, namesrv)
        self.consumer.start()
        self.queues = self.consumer.queues
        self.min_offset = self.consumer.min_offset
        self.max_offset = self.consumer.max_offset
        self.offset_by_time = self.consumer.offset_by_time
        self.pull = self.consumer.pull

    def store_time_at(self, queue: MessageQueue, offset: int) -> int | None:
        """Return the store time (ms) of the message at an offset; None where there is none."""
        messages = self.pull(queue, offset, 1).messages
        return messages[0].store_ms if messages and messages[0].queue_offset == offset else None

    def close(self) -> None:
        self.consumer.close()


def client_of(namesrv: str, group: str) -> QueueClient:
    """Return this process's client; Spark forks its workers, so a client of the parent is of no use to the child."""
    key = os.getpid(), namesrv, group
    if key not in _clients:
        _clients[key] = QueueClient(namesrv, group)
    return _clients[key]


@atexit.register
def _close_clients() -> None:
    for (pid, *_), client in _clients.items():
        if pid == os.getpid():
            client.close()
