"""The genuine administration tool 4.9.8 prints the same of our servers as of the genuine ones."""

from __future__ import annotations

import asyncio
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

from pyromq import AsyncAdmin, AsyncConsumer, AsyncProducer, Message
from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerConfig
from pyromq.message import StoredMessage
from pyromq.names import RETRY_PREFIX

pytestmark = pytest.mark.interop

SECONDS = 60  # the push consumer, which makes the group known, gives up after

# What differs from run to run; the longer patterns first.
PASSING = {
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:,\d+)?": "TIME",
    r"127\.0\.0\.1:\d+": "ADDRESS",
    r"(?:/\S+/)?\b[0-9A-F]{32,}\b": "ID",
    r"(CommitLog Offset:) +\d+": r"\1 NUMBER",
    r"\b(bornTimestamp|storeTimestamp|commitLogOffset)=\d+": r"\1=NUMBER",
    r"V4_9_[78]": "VERSION",
    r"\] OK, \d+": "] OK, COUNT",  # of all topics, other tests' as well
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


# Figures of thread pools, buffers and single calls that nothing of ours corresponds to.
NOT_MEASURED = {
    *("EndTransactionQueueSize", "EndTransactionThreadPoolQueueCapacity", "dispatchMaxBuffer"),
    *("getMessageEntireTimeMax", "pullThreadPoolQueueCapacity", "putLatency99", "putLatency999"),
    *("putMessageDistributeTime", "putMessageEntireTimeMax", "queryThreadPoolQueueCapacity"),
    *("queryThreadPoolQueueHeadWaitTimeMills", "remainTransientStoreBufferNumbs", "startAcceptSendRequestTimeStamp"),
}
# A line for each folder, and for each delay level that other tests have used.
OF_ONE_BROKER = ("commitLogDiskRatio_", "scheduleMessageOffset_")

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
    "brokerConsumeStats -b {broker} -l 1",
    "allocateMQ -t {topic} -i 10.0.0.1,10.0.0.2",
    "printMsgByQueue -t {topic} -a broker-a -i 1 -p true",
    "consumeMessage -t {topic} -b broker-a -i 1 -o 0 -c 2",
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
    "cloneGroupOffset -s {group} -d {group}-clone -t {topic}",
    "skipAccumulatedMessage -g {group} -t {topic}",
    "updateOrderConf -t {topic} -m put -v broker-a:3",
    "updateOrderConf -t {topic} -m get",
    "updateOrderConf -t {topic} -m delete",
    "updateBrokerConfig -b {broker} -k transactionCheckMax -v 15",
    "updateNamesrvConfig -k orderMessageEnable -v false",
    "cleanExpiredCQ -b {broker}",
    "cleanUnusedTopic -b {broker}",
    "deleteExpiredCommitLog -b {broker}",
    "wipeWritePerm -b broker-a",
    "addWritePerm -b broker-a",
    "sendMessage -t {topic} -p hello -k k1 -b broker-a -i 0",
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
def test_answers_are_those_of_the_genuine_servers(answers: Answers, places: tuple[Place, Place], question: str) -> None:
    theirs, mine = answers[question]
    if question.startswith("brokerConsumeStats"):  # tells of all groups that are behind, other tests' as well
        topic = places[0].words["topic"]
        theirs, mine = ([line for line in lines if line[0] == "#" or topic in line] for lines in (theirs, mine))

    assert mine
    assert mine == theirs


def test_topics_are_listed_with_their_groups(answers: Answers, places: tuple[Place, Place]) -> None:
    words = places[0].words

    for lines in answers["topicList -c"]:
        assert f"DefaultCluster {words['topic']} {words['group']}" in lines


def test_figures_of_a_broker_have_the_genuine_names(answers: Answers) -> None:
    theirs, mine = (
        {line.partition(":")[0].strip() for line in lines if not line.startswith(OF_ONE_BROKER)}
        for lines in answers["brokerStatus -b {broker}"]
    )

    assert theirs
    assert theirs - mine <= NOT_MEASURED


def test_topics_and_figures_can_be_exported(places: tuple[Place, Place], tmp_path: Path) -> None:
    exported = []
    for number, place in enumerate(places):
        folder = tmp_path / str(number)
        folder.mkdir()
        place.tools.run(
            [f"exportMetadata -c DefaultCluster -f {folder}", f"exportMetrics -c DefaultCluster -f {folder}"]
        )
        exported.append([json.loads((folder / f"{kind}.json").read_text()) for kind in ("metadata", "metrics")])
    (their_data, their_figures), (our_data, our_figures) = exported
    topic, group = places[0].words["topic"], places[0].words["group"]
    assert our_data["topicConfigTable"][topic] == their_data["topicConfigTable"][topic]
    assert our_data["subscriptionGroupTable"][group] == their_data["subscriptionGroupTable"][group]
    assert our_figures["totalData"].keys() == their_figures["totalData"].keys()
    mine, theirs = (each["evaluateReport"]["broker-a"] for each in (our_figures, their_figures))
    assert mine["runtimeQuota"].keys() == theirs["runtimeQuota"].keys()
    assert mine["runtimeEnv"]["cpuNum"] == theirs["runtimeEnv"]["cpuNum"]
    assert int(mine["runtimeEnv"]["totalMemKBytes"]) > 0


async def test_exports_of_our_own_are_those_of_the_tool(places: tuple[Place, Place], tmp_path: Path) -> None:
    """By our client at the genuine servers."""
    place = places[0]
    place.tools.run([f"export{kind} -c DefaultCluster -f {tmp_path}" for kind in ("Configs", "Metadata", "Metrics")])
    configs, metadata, metrics = (
        json.loads((tmp_path / f"{kind}.json").read_text()) for kind in ("configs", "metadata", "metrics")
    )
    async with AsyncAdmin(place.servers.namesrv) as admin:
        assert await admin.exports.settings("DefaultCluster") == configs
        mine = await admin.exports.metadata("DefaultCluster")
        figures = await admin.exports.metrics("DefaultCluster")
    assert {**mine, "exportTime": 0} == {**metadata, "exportTime": 0}
    assert figures["totalData"].keys() == metrics["totalData"].keys()
    report, theirs = figures["evaluateReport"]["broker-a"], metrics["evaluateReport"]["broker-a"]
    assert report["runtimeQuota"].keys() == theirs["runtimeQuota"].keys()
    assert report["runtimeQuota"]["groupSize"] == theirs["runtimeQuota"]["groupSize"]


async def test_overviews_of_the_genuine_servers_are_those_of_ours(places: tuple[Place, Place]) -> None:
    topic, group = places[0].words["topic"], places[0].words["group"]
    seen = []
    for place in places:
        async with AsyncAdmin(place.servers.namesrv) as admin:
            (of_topic,) = [each for each in await admin.overviews.topics() if each.topic == topic]
            (of_group,) = [each for each in await admin.overviews.groups() if each.group == group]
            (rates,) = [each for each in await admin.overviews.rates(topic) if each.group == group]
        assert of_topic.last_store_ms > 0
        assert (of_group.delay_seconds > 0) == (of_group.lag > 0)
        seen.append((of_topic.brokers, of_topic.queues, of_topic.messages, of_group.members, of_group.lag, rates.lag))
    assert seen[0] == seen[1]


RUN_ONLY = (  # what these print is of the moment, or of one server
    ("checkMsgSendRT -t {topic}-measured -a 3 -s 10", r"Avg RT: \d+\.\d\d"),
    ("sendMsgStatus -b broker-a -c 2", "sendStatus=SEND_OK"),
    ("queryCq -t {topic} -q 1 -i 0 -c 2 -b {broker}", "idx: 1"),
    ("getNamesrvConfig", "orderMessageEnable"),
    ("getBrokerConfig -b {broker}", "brokerName += +broker-a"),
    ("clusterList -m", "DefaultCluster +broker-a"),
    ("printMsg -t {topic}", "MSGID: "),
    ("statsAll -t {topic}", r"tools-\w+ +tools-\w+-group +\d+ "),  # sums are those of the latest sample
)


def test_what_tools_print_of_the_moment_is_there(places: tuple[Place, Place]) -> None:
    _, place = places
    commands = [command.format(broker=place.servers.broker, **place.words) for command, _ in RUN_ONLY]
    for (command, sign), printed in zip(RUN_ONLY, place.tools.run(commands), strict=True):
        assert re.search(sign, printed), command


async def test_the_tool_shows_the_state_of_our_consumer(ours: OurServers, home: Path) -> None:
    topic, seen = f"tools-{uuid.uuid4().hex[:8]}", asyncio.Event()
    async with AsyncProducer("p", ours.namesrv) as producer, AsyncConsumer(f"{topic}-group", ours.namesrv) as consumer:

        async def work(messages: list[StoredMessage]) -> None:
            seen.set()

        consumer.subscribe(topic, work)
        sent = await producer.send(Message(topic, b"hello"))
        await asyncio.wait_for(seen.wait(), 30)
        questions = [
            f"consumerStatus -g {consumer.group} -i {consumer.client_id} -s",
            f"queryMsgById -i {sent.offset_message_id} -g {consumer.group} -d {consumer.client_id}",
        ]
        status, consumed = await asyncio.to_thread(Tools(home, ours.namesrv).run, questions)
    assert re.search(rf"^{topic} +\d+\.\d\d +\d+\.\d\d +\d+\.\d\d +0\.10 +0\.00 +0$", status, re.MULTILINE)
    assert "#Consumer jstack#" in status and "MainThread" in status
    assert "CR_SUCCESS" in consumed


def test_settings_can_be_exported(ours: OurServers, home: Path, tmp_path: Path) -> None:
    Tools(home, ours.namesrv).run([f"exportConfigs -c DefaultCluster -f {tmp_path}"])
    exported = json.loads((tmp_path / "configs.json").read_text())
    assert exported["clusterScale"]["masterBrokerSize"] == 1
    assert exported["brokerConfigs"]["broker-a"]["useTLS"] == "false"


async def test_a_genuine_name_server_takes_our_broker(genuine: GenuineServers, tmp_path: Path) -> None:
    config = BrokerConfig(tmp_path, name="ours", port=0, namesrv=(genuine.namesrv,))
    async with Broker(config) as broker:
        assert broker.registering.registered == [genuine.namesrv]
