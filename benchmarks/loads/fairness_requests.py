"""What `fairness.py` has administrators ask for, and the folder of the broker they ask: many topics, many groups."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import msgspec

from loads.plain_send import plain_send
from pyromq.clock import SystemClock
from pyromq.message import StoredMessage, pack_address
from pyromq.net.channel import Channel
from pyromq.remoting.bodies import (
    ConsumerEntry,
    ConsumerOffsetTable,
    GroupConfig,
    GroupConfigTable,
    HeartbeatBody,
    Subscription,
    TopicConfig,
    TopicConfigTable,
    encode_body,
)
from pyromq.remoting.command import Response
from pyromq.remoting.header import Header
from pyromq.remoting.headers import (
    AllConsumerOffsets,
    AllGroups,
    AllTopics,
    BrokerClusterInfo,
    BrokerConsumeStatistics,
    BrokerState,
    CleanTopics,
    ConsumeStatistics,
    CreateTopic,
    DeleteGroup,
    DeleteTopic,
    Heartbeat,
    PullMessage,
    QueryMessage,
    SaveBrokerSettings,
    SaveGroup,
    TopicConsumers,
    TopicNames,
    TopicStatistics,
    UpdateConsumerOffset,
)
from pyromq.store.message_store import MessageStore
from pyromq.store.store_config import StoreConfig

TOPICS = [TopicConfig(name=f"topic-{number:04}", read_queues=8, write_queues=8, permission=6) for number in range(1000)]
GROUPS = [f"group-{number:04}" for number in range(2000)]
WIDE_TOPIC = "wide"
WIDE_QUEUES = 1024
BACKLOG = 100_000
PIPELINED = 2_000
ASK_SECONDS = 60.0


@dataclass(slots=True)
class Scene:
    """Connections of an administrator, and numbers for new names."""

    broker: Channel
    name_server: Channel
    numbers: count[int] = field(default_factory=count)

    async def ask(self, header: Header, body: bytes = b"") -> Response:
        return await self.broker.call(header, body, timeout=ASK_SECONDS)

    async def create(self, topic: str, queues: int = 4) -> None:
        (await self.ask(CreateTopic(topic=topic, read_queues=queues, write_queues=queues, permission=6))).check()

    async def send(self, topic: str, properties: str = "", *, queue_id: int = 0, times: int = 1) -> None:
        header = plain_send(topic, queue_id, properties=properties)
        for begin in range(0, times, PIPELINED):
            asked = [
                self.broker.call_soon(header, b"x" * 128, timeout=ASK_SECONDS)
                for _ in range(min(PIPELINED, times - begin))
            ]
            for answer in await asyncio.gather(*asked):
                answer.check()


@dataclass(frozen=True, slots=True)
class Action:
    """`prepare` is not watched; it settles for a while before the rest is."""

    name: str
    act: Callable[[Scene], Awaitable[object]]
    prepare: Callable[[Scene], Awaitable[object]] | None = None
    settle_seconds: float = 0.2


def furnish(folder: Path) -> None:
    """Make the broker's folder: a message in each queue, an offset of each group in each queue of one topic."""
    tables = folder / "config"
    tables.mkdir(parents=True)
    topics = {topic.name: topic for topic in TOPICS}
    topics[WIDE_TOPIC] = TopicConfig(name=WIDE_TOPIC, read_queues=WIDE_QUEUES, write_queues=WIDE_QUEUES, permission=6)
    groups = {name: GroupConfig(name=name) for name in GROUPS}
    offsets = {
        f"{TOPICS[number % len(TOPICS)].name}@{name}": dict.fromkeys(range(8), 1) for number, name in enumerate(GROUPS)
    }
    for name, table in (
        ("topics", TopicConfigTable(topics=topics)),
        ("subscriptionGroup", GroupConfigTable(groups=groups)),
        ("consumerOffset", ConsumerOffsetTable(offsets=offsets)),
    ):
        (tables / f"{name}.json").write_bytes(msgspec.json.encode(table))
    store = MessageStore(StoreConfig(folder), SystemClock(), store_address=pack_address("127.0.0.1", 0))
    try:
        store.open()
        for topic in topics.values():
            for queue_id in range(topic.write_queues):
                store.append(StoredMessage(topic.name, b"x" * 128, "", queue_id, born_address=bytes(8)))
    finally:
        store.close()


async def _nothing(scene: Scene) -> None:
    await asyncio.sleep(0.5)


async def _a_statistics_sample(scene: Scene) -> None:
    await asyncio.sleep(11)


async def _create(scene: Scene) -> None:
    await scene.create(f"new-{next(scene.numbers)}", 8)


async def _make_doomed(scene: Scene) -> None:
    await scene.create("doomed", 8)
    for queue_id in range(8):
        await scene.send("doomed", queue_id=queue_id)


async def _delete(scene: Scene) -> None:
    (await scene.ask(DeleteTopic(topic="doomed"))).check()


async def _make_wide_doomed(scene: Scene) -> None:
    await scene.create("doomed", 1024)
    for queue_id in range(1024):
        await scene.send("doomed", queue_id=queue_id)


async def _change_settings(scene: Scene) -> None:
    (await scene.ask(SaveBrokerSettings(), b"transactionCheckMax=15\n")).check()


async def _change_permission(scene: Scene) -> None:
    (await scene.ask(SaveBrokerSettings(), b"brokerPermission=4\n")).check()
    (await scene.ask(SaveBrokerSettings(), b"brokerPermission=6\n")).check()
    await asyncio.sleep(1.2)  # name servers are told within a second


async def _save_group(scene: Scene) -> None:
    (await scene.ask(SaveGroup(), encode_body(GroupConfig(name=f"new-{next(scene.numbers)}")))).check()


async def _delete_group(scene: Scene) -> None:
    (await scene.ask(DeleteGroup(group=GROUPS[next(scene.numbers)], remove_offsets=True))).check()


async def _store_backlog(scene: Scene) -> None:
    for number in range(0, BACKLOG, PIPELINED):
        await scene.send(TOPICS[1].name, f"KEYS\x01key-{number}\x02UNIQ_KEY\x01{number:032X}", times=PIPELINED)


async def _query(scene: Scene) -> None:
    for key in ("key-0", f"key-{BACKLOG - PIPELINED}"):
        query = QueryMessage(topic=TOPICS[1].name, key=key, max_count=32, begin_ms=0, end_ms=(1 << 63) - 1)
        (await scene.ask(query)).check()


async def _beat(scene: Scene) -> None:
    subscriptions = [Subscription(topic=topic.name, expression="*", version=1) for topic in TOPICS]
    groups = [
        ConsumerEntry(group=f"new-{next(scene.numbers)}", subscriptions=subscriptions),
        ConsumerEntry(group="steady", subscriptions=subscriptions),
    ]
    (await scene.ask(Heartbeat(), encode_body(HeartbeatBody(client_id="one", consumers=groups)))).check()


async def _poll(scene: Scene) -> None:
    pull = PullMessage(
        consumer_group=GROUPS[0],
        topic=WIDE_TOPIC,
        queue_id=0,
        queue_offset=1,
        max_count=32,
        sys_flag=6,
        commit_offset=0,
        suspend_ms=1000,
        subscription_version=0,
        subscription="*",
    )
    await asyncio.gather(*(scene.broker.call_soon(pull, timeout=ASK_SECONDS) for _ in range(5_000)))


async def _delay(scene: Scene) -> None:
    await scene.send(TOPICS[2].name, "DELAY\x011", times=20_000)


async def _time(scene: Scene) -> None:
    due = SystemClock().now_ms() + 3_000
    await scene.send(TOPICS[2].name, f"__STARTDELIVERTIME\x01{due}", times=20_000)


async def _wait_for_due(scene: Scene) -> None:
    await asyncio.sleep(3)


async def _touch_all_topics(scene: Scene) -> None:
    for topic in TOPICS:
        await scene.send(topic.name)


async def _commit(scene: Scene) -> None:
    commit = UpdateConsumerOffset(consumer_group=GROUPS[-1], topic=TOPICS[0].name, queue_id=0, commit_offset=1)
    (await scene.ask(commit)).check()
    await asyncio.sleep(5.2)  # they are saved every five seconds


def _question(name: str, header: Header) -> Action:
    return Action(name, lambda scene: scene.ask(header))


def _question_of_names(name: str, header: Header) -> Action:
    return Action(name, lambda scene: scene.name_server.call(header, timeout=ASK_SECONDS))


ACTIONS = [
    Action("nothing", _nothing),
    Action("create a topic", _create),
    Action("delete a topic of 8 queues", _delete, _make_doomed),
    Action("delete a topic of 1,024 queues", _delete, _make_wide_doomed),
    Action("change a setting", _change_settings),
    Action("change the broker's permission, and back", _change_permission),
    Action("save a group", _save_group),
    Action("delete a group with its offsets", _delete_group),
    Action("query by key, 100,000 wait to be indexed", _query, _store_backlog, 0),
    _question("all topics (21)", AllTopics()),
    _question("all groups (201)", AllGroups()),
    _question("all offsets (43)", AllConsumerOffsets()),
    _question("statistics of 1,024 queues (202)", TopicStatistics(topic=WIDE_TOPIC)),
    _question("statistics of a group (208)", ConsumeStatistics(consumer_group=GROUPS[5])),
    _question("statistics of all groups", BrokerConsumeStatistics()),
    _question("groups of a topic", TopicConsumers(topic=TOPICS[5].name)),
    _question("state of the broker (28)", BrokerState()),
    _question("clean unused topics", CleanTopics()),
    _question_of_names("names of all topics (206)", TopicNames()),
    _question_of_names("the cluster (106)", BrokerClusterInfo()),
    Action("heartbeat with 2 x 1,000 subscriptions", _beat),
    Action("save the offsets of 2,000 groups", _commit),
    Action("5,000 long polls that end together", _poll),
    Action("20,000 of a delay level that are due", _wait_for_due, _delay, 0),
    Action("20,000 timers that are due together", _wait_for_due, _time, 0),
    Action("a sample of statistics of 1,000 topics", _a_statistics_sample, _touch_all_topics),
]
