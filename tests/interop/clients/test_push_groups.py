"""Our push consumers at the genuine broker, and with Java's in one group: queues, locks, offsets, retries shared."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from tests.interop.peers.clients import received
from tests.interop.peers.java import Driver

from pyromq import (
    Admin,
    ConsumeFrom,
    Consumer,
    ConsumerConfig,
    GiveUp,
    Message,
    Producer,
    PullConsumer,
    RetryLater,
    StoredMessage,
)

pytestmark = [pytest.mark.interop]

QUEUES = 8
JAVA_SECONDS = 12
# Java asks for a lock it was refused again only with its next rebalance, 20 s later.
JAVA_ORDERLY_SECONDS = 32


@pytest.fixture(params=["genuine", "ours"])
def namesrv(request: pytest.FixtureRequest) -> str:
    """Name servers of both kinds, each with its broker."""
    return str(request.getfixturevalue(request.param).namesrv)


@pytest.fixture
def made(namesrv: str, topic: str) -> str:
    """A topic that exists at the name server."""
    with Admin(namesrv) as admin:
        admin.create_topic(topic, queues=QUEUES)
    return topic


@pytest.fixture
def group(topic: str) -> str:
    return f"{topic}-group"


class Seen:
    """A listener that keeps what it got."""

    def __init__(self, answer: Callable[[StoredMessage], object] = lambda message: None) -> None:
        self.messages: list[StoredMessage] = []
        self._answer = answer

    def __call__(self, messages: list[StoredMessage]) -> None:
        for message in messages:
            self.messages.append(message)
            self._answer(message)

    @property
    def places(self) -> list[tuple[int, int]]:
        return [(message.queue_id, message.queue_offset) for message in self.messages]


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        threading.Event().wait(0.02)


def config(**settings: Any) -> ConsumerConfig:
    return ConsumerConfig(consume_from=ConsumeFrom.FIRST, commit_seconds=0.2, **settings)


def send(namesrv: str, topic: str, count: int) -> set[tuple[int, int]]:
    """Send so many messages to each queue, in turns; return their places."""
    with Producer("feeder", namesrv) as producer:
        queues = producer.queues(topic)
        results = [producer.send(Message(topic, b"%d" % n), queue=queues[n % QUEUES]) for n in range(count * QUEUES)]
    return {(result.queue.queue_id, result.queue_offset) for result in results}


@pytest.fixture
def java_member(namesrv: str, made: str, group: str, home: Any) -> Iterator[Callable[[bool], Future[list[Any]]]]:
    """Start a member of the group in Java; the future has the lines of what it consumed."""
    with ThreadPoolExecutor(1) as pool:
        driver = Driver(home, namesrv)

        def start(orderly: bool) -> Future[list[Any]]:
            kind = "push-orderly" if orderly else "push"
            seconds = JAVA_ORDERLY_SECONDS if orderly else JAVA_SECONDS
            return pool.submit(driver.run, kind, made, group, "*", 1_000_000, seconds)

        yield start


@pytest.mark.parametrize("orderly", [False, True])
def test_every_message_comes_once_and_stays_consumed(namesrv: str, made: str, group: str, orderly: bool) -> None:
    sent = send(namesrv, made, 5)
    for expected in (sent, set()):
        seen = Seen()
        consumer = Consumer(group, namesrv, config=config(orderly=orderly))
        consumer.subscribe(made, seen)
        with consumer:
            until(lambda expected=expected, seen=seen: set(seen.places) >= expected)
            threading.Event().wait(0.2)
        assert sorted(seen.places) == sorted(expected)
        if orderly:
            assert [p for q in range(QUEUES) for p in seen.places if p[0] == q] == sorted(seen.places)


def test_a_failed_message_comes_again_with_its_origin(namesrv: str, made: str, group: str) -> None:
    def fail_first(message: StoredMessage) -> None:
        if not message.reconsume_times:
            raise RetryLater("not yet", delay_level=1)

    send(namesrv, made, 1)
    seen = Seen(fail_first)
    consumer = Consumer(group, namesrv, config=config())
    consumer.subscribe(made, seen)
    with consumer:
        until(lambda: len(seen.messages) == 2 * QUEUES, 60)
    again = seen.messages[QUEUES:]
    assert {message.topic for message in again} == {made}
    assert {message.message_id for message in again} == {message.message_id for message in seen.messages[:QUEUES]}
    assert {message.reconsume_times for message in again} == {1}


@pytest.mark.parametrize("orderly", [False, True])
def test_a_message_given_up_is_a_dead_letter(namesrv: str, made: str, group: str, orderly: bool) -> None:
    def give_up(message: StoredMessage) -> None:
        raise GiveUp("hopeless")

    send(namesrv, made, 1)
    seen = Seen(give_up)
    consumer = Consumer(group, namesrv, config=config(orderly=orderly))
    consumer.subscribe(made, seen)
    with consumer:
        until(lambda: len(seen.messages) == QUEUES, 30)
        until(lambda: not any(assigned.count for assigned in consumer._async._assigned.values()))
    with PullConsumer("reader", namesrv, config=config()) as reader:
        queues = reader.queues(f"%DLQ%{group}")
        reader.assign(queues)
        for queue in queues:
            reader.seek_to_begin(queue)
        letters: list[StoredMessage] = []
        until(lambda: letters.extend(reader.poll(1)) or len(letters) >= QUEUES)
    assert {letter.message_id for letter in letters} == {message.message_id for message in seen.messages}


@pytest.mark.parametrize("orderly", [False, True])
def test_java_and_we_share_a_group(
    namesrv: str, made: str, group: str, java_member: Callable[[bool], Future[list[Any]]], orderly: bool
) -> None:
    seen = Seen()
    consumer = Consumer(group, namesrv, config=config(orderly=orderly))
    consumer.subscribe(made, seen)
    with consumer:
        until(lambda: len(consumer.assignment) == QUEUES)
        java = java_member(orderly)
        until(lambda: len(consumer.assignment) == QUEUES // 2)
        shared = send(namesrv, made, 5)
        of_java = [(one.queue_id, one.queue_offset) for one in received(java.result())]
        until(lambda: len(consumer.assignment) == QUEUES, 40)
        after = send(namesrv, made, 2)
        until(lambda: set(seen.places) >= after)
    assert len(of_java) == len(shared) // 2
    assert sorted(seen.places + of_java) == sorted(shared | after)
