"""Requests and replies between the Java client and ours, at either broker."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.interop.peers.java import Driver

from pyromq import Admin, ConsumeFrom, Consumer, ConsumerConfig, Message, Producer, StoredMessage

from .test_delays_and_transactions import line

pytestmark = pytest.mark.interop
short = pytest.mark.interop_short

QUESTIONS = ["first", "second", "größe"]
SECONDS = 30.0


@pytest.fixture(params=[pytest.param("ours", marks=short), "genuine"])
def namesrv(request: pytest.FixtureRequest, topic: str) -> str:
    """Name servers of both kinds, each with a broker that has the topic."""
    namesrv = str(request.getfixturevalue(request.param).namesrv)
    with Admin(namesrv) as admin:
        admin.create_topic(topic, queues=2)
    return namesrv


@contextmanager
def our_replier(namesrv: str, topic: str) -> Iterator[None]:
    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
    with Consumer(f"replies-{topic}", namesrv, config=config) as consumer:

        def reply(messages: list[StoredMessage]) -> None:
            for message in messages:
                consumer.reply(message, b"re: " + message.body)

        consumer.subscribe(topic, reply)
        yield


def test_a_java_requester_gets_our_replies(home: Path, namesrv: str, topic: str) -> None:
    with our_replier(namesrv, topic):
        lines = [line(topic, question) for question in QUESTIONS]
        replies = Driver(home, namesrv).run("request", "java-asks", lines=lines)

    told = [base64.b64decode(reply["body"]).decode() for reply in replies]  # a reply has no id
    assert told == [f"re: {question}" for question in QUESTIONS]


def test_our_requester_gets_java_s_replies(home: Path, namesrv: str, topic: str) -> None:
    with ThreadPoolExecutor(1) as threads, Producer("python-asks", namesrv) as producer:
        count = len(QUESTIONS)
        replying = threads.submit(Driver(home, namesrv).run, "reply", topic, f"replies-{topic}", count, int(SECONDS))
        told = [producer.request(Message(topic, each.encode()), timeout=SECONDS) for each in QUESTIONS]
        sent = replying.result()

    assert [reply.body.decode() for reply in told] == [f"re: {question}" for question in QUESTIONS]
    assert {result["status"] for result in sent} == {"SEND_OK"}
