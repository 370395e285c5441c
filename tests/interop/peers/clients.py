"""The Java client and ours behind the same few verbs, and messages as either of them saw them."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.interop.peers.java import Driver

from pyromq import (
    ConnectionConfig,
    ConsumerConfig,
    Message,
    MessageQueue,
    Producer,
    ProducerConfig,
    PullConsumer,
    SendResult,
    StoredMessage,
)
from pyromq.errors import TopicNotFound

ORDER = "order"  # the property by which the way "ordered" chooses the queue
WAYS = ("sync", "async", "oneway", "batch", "ordered")
DRAIN_ROUNDS = 50
READ_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Sent:
    """What the broker answered to a send; for a batch ids are joined by commas."""

    status: str
    message_id: str
    offset_message_id: str
    queue_id: int
    queue_offset: int


@dataclass(frozen=True, slots=True)
class Content:
    """What the application put into a message."""

    body: bytes
    tags: str | None
    keys: str
    flag: int
    properties: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Received:
    """A message as a client handed it out."""

    content: Content
    message_id: str
    offset_message_id: str
    queue_id: int
    queue_offset: int
    log_offset: int
    store_ms: int
    sys_flag: int


# Set by clients and brokers on the way; everything else is the application's.
SYSTEM = {
    *("KEYS", "TAGS", "UNIQ_KEY", "WAIT", "CLUSTER", "MIN_OFFSET", "MAX_OFFSET"),
    *("MSG_REGION", "TRACE_ON", "CONSUME_START_TIME", "POP_CK", "1ST_POP_TIME"),
}


def content(message: Message) -> Content:
    properties = tuple(sorted(message.properties.items()))
    return Content(message.body, message.tags, " ".join(message.keys), message.flag, properties)


def contents(messages: Iterable[Message | Received]) -> list[Content]:
    """Return what the application put into the messages, sorted: to compare what came with what went, in any order."""
    found = (content(message) if isinstance(message, Message) else message.content for message in messages)
    return sorted(found, key=repr)


def _own(properties: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, value) for name, value in properties.items() if name not in SYSTEM))


class JavaClient:
    """The genuine client, one process a verb."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    def send(self, way: str, messages: Sequence[Message]) -> list[Sent]:
        lines = [self._line(message) for message in messages]
        return [self._sent(line) for line in self.driver.run("send", way, "java-sends", lines=lines)]

    def pull(self, topic: str, group: str, tags: str = "*") -> list[Received]:
        """Read from the group's committed offsets (else the start) to the present end and commit."""
        return received(self.driver.run("pull", topic, group, tags))

    @staticmethod
    def _line(message: Message) -> dict[str, Any]:
        return {
            "topic": message.topic,
            "body": base64.b64encode(message.body).decode(),
            "tags": message.tags,
            "keys": " ".join(message.keys) or None,
            "flag": message.flag,
            "properties": message.properties,
            "order": message.properties.get(ORDER),
        }

    @staticmethod
    def _sent(line: dict[str, Any]) -> Sent:
        ids = (line["messageId"], line["offsetMessageId"])
        return Sent(line["status"], *ids, line["queueId"], line["queueOffset"])


def received(lines: Sequence[dict[str, Any]]) -> list[Received]:
    """Return the messages among the lines of the driver, in their order."""
    return [_received(line) for line in lines if "body" in line]


def _received(line: dict[str, Any]) -> Received:
    body = base64.b64decode(line["body"])
    return Received(
        content=Content(body, line.get("tags"), line.get("keys") or "", line["flag"], _own(line["properties"])),
        message_id=line["messageId"],
        offset_message_id=line["offsetMessageId"],
        queue_id=line["queueId"],
        queue_offset=line["queueOffset"],
        log_offset=line["logOffset"],
        store_ms=line["storeMs"],
        sys_flag=line["sysFlag"],
    )


class OurClient:
    """Our blocking clients, a new one for every verb as the Java side has it."""

    def __init__(self, namesrv: str, connections: ConnectionConfig | None = None) -> None:
        self.namesrv = namesrv
        self._connections = connections

    def send(self, way: str, messages: Sequence[Message]) -> list[Sent]:
        config = ProducerConfig(connections=self._connections)
        with Producer("our-sends", self.namesrv, config=config) as producer:
            return [_sent(result) for result in self._send(producer, way, messages)]

    @staticmethod
    def _send(producer: Producer, way: str, messages: Sequence[Message]) -> list[SendResult]:
        if way == "sync":
            return [producer.send(message) for message in messages]
        if way == "async":
            futures = [producer.send_soon(message) for message in messages]
            return [future.result(30) for future in futures]
        if way == "batch":
            return [producer.send_batch(messages)]
        if way == "ordered":
            return [producer.send(message, ordering_key=message.properties[ORDER]) for message in messages]
        for message in messages:
            producer.send_one_way(message)
        return []

    def pull(self, topic: str, group: str, tags: str = "*") -> list[Received]:
        """Read from the group's committed offsets (else the start) to the present end and commit."""
        with PullConsumer(group, self.namesrv, config=ConsumerConfig(connections=self._connections)) as consumer:
            queues = consumer.queues(topic)
            consumer.assign(queues, tags=tags)
            ends = {queue: consumer.max_offset(queue) for queue in queues}
            for queue in queues:
                committed = consumer.committed(queue)
                consumer.seek(queue, consumer.min_offset(queue) if committed is None else committed)
            messages = self._drain(consumer, ends)
            consumer.commit()
            return [_of_stored(message) for message in sorted(messages, key=lambda m: (m.queue, m.queue_offset))]

    @staticmethod
    def _drain(consumer: PullConsumer, ends: dict[MessageQueue, int]) -> list[StoredMessage]:
        messages: list[StoredMessage] = []
        for _ in range(DRAIN_ROUNDS):
            if all((consumer.position(queue) or 0) >= end for queue, end in ends.items()):
                return messages
            messages += consumer.poll(timeout=1.0)
        raise AssertionError(f"positions stop short of the ends {ends}")


def _sent(result: SendResult) -> Sent:
    ids = (result.message_id, result.offset_message_id)
    return Sent(result.status.value, *ids, result.queue.queue_id, result.queue_offset)


def _of_stored(message: StoredMessage) -> Received:
    properties = _own(message.properties)
    return Received(
        content=Content(bytes(message.body), message.tags, " ".join(message.keys), message.flag, properties),
        message_id=message.message_id,
        offset_message_id=message.offset_message_id,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        log_offset=message.log_offset,
        store_ms=message.store_ms,
        sys_flag=message.sys_flag,
    )


Client = JavaClient | OurClient


def read(client: Client, topic: str, group: str, count: int) -> list[Received]:
    """Pull until `count` messages have arrived.

    One-way sends may still be on their way. The genuine broker answers a send up to 0.1 s before the message can be
    pulled, and its name server may learn of a new topic later than its sender.
    """
    messages: list[Received] = []
    deadline = time.monotonic() + READ_SECONDS
    while len(messages) < count and time.monotonic() < deadline:
        try:
            messages += client.pull(topic, group)
        except TopicNotFound:
            time.sleep(0.1)
    return messages
