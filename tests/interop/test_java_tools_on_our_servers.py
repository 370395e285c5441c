"""The genuine administration tool 4.9.8 prints the same of our servers as of the genuine ones."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.interop.peers.clients import JavaClient
from tests.interop.peers.java import Driver, Tools
from tests.interop.peers.samples import ordered_samples
from tests.interop.peers.servers import GenuineServers, OurServers, Servers

from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerConfig
from pyromq.names import RETRY_PREFIX

pytestmark = pytest.mark.interop

SECONDS = 60  # the push consumer, which makes the group known, gives up after

# What differs from run to run; the longer patterns first.
PASSING = {
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:,\d+)?": "TIME",
    r"127\.0\.0\.1:\d+": "ADDRESS",
    r"(?:/\S+/)?\b[0-9A-F]{32,}\b": "ID",
    r"(CommitLog Offset:) +\d+": r"\1 NUMBER",
    r"V4_9_[78]": "VERSION",
    r"\d+\.\d+": "FIGURE",
    r"\d+ms": "DURATION",
    r" +": " ",
}


class Place(NamedTuple):
    """Servers with a topic of three queues, filled by key and consumed by a group."""

    tools: Tools
    servers: Servers
    words: dict[str, str]

    def asked(self, questions: Iterable[str]) -> list[list[str]]:
        """Return what the tool prints, asked one after the other."""
        questions = [question.format(broker=self.servers.broker, **self.words) for question in questions]
        return [lasting(printed) for printed in self.tools.run(questions)]


def lasting(text: str) -> list[str]:
    """Return the lines without what passes, in an order that does not depend on hash tables."""
    for pattern, word in PASSING.items():
        text = re.sub(pattern, word, text)
    lines = (line.strip() for line in text.splitlines())
    return sorted(line for line in lines if line and not line.startswith(RETRY_PREFIX))  # known sooner or later


def filled(servers: Servers, home: Path, topic: str) -> Place:
    tools = Tools(home, servers.namesrv)
    java = JavaClient(Driver(home, servers.namesrv))
    tools.run([f"updateTopic -b {servers.broker} -t {topic} -r 3 -w 3"])
    messages = ordered_samples(topic)
    sent = java.send("ordered", messages)
    java.driver.run("push", topic, f"{topic}-group", "*", len(messages), SECONDS)
    words = {"topic": topic, "group": f"{topic}-group", "id": sent[3].message_id, "place": sent[3].offset_message_id}
    return Place(tools, servers, words)


@pytest.fixture(scope="module")
def places(genuine: GenuineServers, ours: OurServers, home: Path) -> tuple[Place, Place]:
    topic = f"tools-{uuid.uuid4().hex[:8]}"
    return filled(genuine, home, topic), filled(ours, home, topic)


Answers = dict[str, tuple[list[str], list[str]]]  # by question: of the genuine servers, of ours

QUESTIONS = (
    "topicList -c",  # this and the next are not all alike
    "brokerStatus -b {broker}",
    "topicStatus -t {topic}",
    "topicRoute -t {topic}",
    "topicClusterList -t {topic}",
    "consumerProgress -g {group}",
    "clusterList",
    "queryMsgById -i {place}",
    "queryMsgByUniqueKey -t {topic} -i {id}",
    "queryMsgByKey -t {topic} -k key-3",
    "queryMsgByOffset -t {topic} -b broker-a -i 1 -o 7",
    "getConsumerConfig -g {group}",
)
CHANGES = (
    "updateTopic -b {broker} -t {topic}-new -r 5 -w 4",
    "updateTopicPerm -b {broker} -t {topic}-new -p 4",
    "topicRoute -t {topic}-new",
    "deleteTopic -c DefaultCluster -t {topic}-new",
    "updateSubGroup -b {broker} -g {group}-new -r 3",
    "getConsumerConfig -g {group}-new",
    "deleteSubGroup -b {broker} -g {group}-new",
    "resetOffsetByTime -g {group} -t {topic} -s 0",
    "consumerProgress -g {group} -s true",
    "updateKvConfig -s {topic} -k a -v b",
    "deleteKvConfig -s {topic} -k a",
)


@pytest.fixture(scope="module")
def answers(places: tuple[Place, Place]) -> Answers:
    """All questions, then all changes, each asked at both."""
    everything = QUESTIONS + CHANGES
    theirs, mine = (place.asked(everything) for place in places)
    return dict(zip(everything, zip(theirs, mine, strict=True), strict=True))


@pytest.mark.parametrize("question", QUESTIONS[2:] + CHANGES)
def test_answers_are_those_of_the_genuine_servers(answers: Answers, question: str) -> None:
    theirs, mine = answers[question]

    assert mine
    assert mine == theirs


def test_topics_are_listed_with_their_groups(answers: Answers, places: tuple[Place, Place]) -> None:
    words = places[0].words

    for lines in answers["topicList -c"]:
        assert f"DefaultCluster {words['topic']} {words['group']}" in lines


def test_figures_of_a_broker_have_the_genuine_names(answers: Answers) -> None:
    theirs, mine = (
        {line.partition(":")[0].strip() for line in lines if not line.startswith("commitLogDiskRatio_")}
        for lines in answers["brokerStatus -b {broker}"]
    )

    assert theirs
    assert mine >= theirs


def test_settings_can_be_exported(ours: OurServers, home: Path, tmp_path: Path) -> None:
    Tools(home, ours.namesrv).run([f"exportConfigs -c DefaultCluster -f {tmp_path}"])
    exported = json.loads((tmp_path / "configs.json").read_text())
    assert exported["clusterScale"]["masterBrokerSize"] == 1
    assert exported["brokerConfigs"]["broker-a"]["useTLS"] == "false"


async def test_a_genuine_name_server_takes_our_broker(genuine: GenuineServers, tmp_path: Path) -> None:
    config = BrokerConfig(tmp_path, name="ours", port=0, namesrv=(genuine.namesrv,))
    async with Broker(config) as broker:
        assert broker.registering.registered == [genuine.namesrv]
