"""Sends: so many messages beforehand, or a few to every queue of a topic for as long as something is watched."""

from __future__ import annotations

import threading
import time
from typing import Self

from pyromq import Admin, Message, MessageQueue, Producer, TopicNotFound

BATCH = 250
QUEUES = 9  # two members have 5 and 4 of them, three have 3 each
READY_SECONDS = 10.0
PAUSE = 0.005  # between two messages of one queue


def fill(producer: Producer, topic: str, count: int, body: bytes) -> None:
    """Store so many messages, in turns over the topic's queues. Waits for a broker that has yet to register."""
    deadline = time.monotonic() + READY_SECONDS
    while count > 0:
        now = min(BATCH, count)
        try:
            producer.send_batch([Message(topic, body) for _ in range(now)])
        except TopicNotFound:
            if time.monotonic() > deadline:
                raise
            time.sleep(PAUSE)
        else:
            count -= now


class Feeding:
    """While it is entered, every queue of a new topic gets a message each few milliseconds."""

    def __init__(self, namesrv: str, topic: str) -> None:
        self._namesrv = namesrv
        self.topic = topic
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._feed, daemon=True)

    def __enter__(self) -> Self:
        with Admin(self._namesrv) as admin:
            admin.create_topic(self.topic, queues=QUEUES)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Send no more; returns when all is stored."""
        self._ended.set()
        self._thread.join()

    def _feed(self) -> None:
        with Producer("feeding", self._namesrv) as producer:
            queues = self._queues(producer)
            while not self._ended.wait(PAUSE):
                for queue in queues:
                    producer.send_soon(Message(self.topic, b"x"), queue=queue)
            producer.flush()

    def _queues(self, producer: Producer) -> list[MessageQueue]:
        while len(queues := producer.queues(self.topic)) < QUEUES:
            time.sleep(PAUSE)  # the name server hears of a new topic a moment later
        return queues
