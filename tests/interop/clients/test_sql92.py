"""SQL92 expressions: our broker and the genuine one choose the same messages, for Java's consumers and for ours."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest
from tests.filter.drawn_expressions import expression, properties
from tests.interop.peers.clients import JavaClient, received
from tests.interop.peers.java import Driver
from tests.interop.peers.servers import GenuineServers, OurServers, Servers
from tests.seed import seed_of_the_day

from pyromq import AsyncAdmin, AsyncProducer, AsyncPullConsumer, Message
from pyromq.clock import SystemClock
from pyromq.net.channel import Channel, connect
from pyromq.record import decode_all
from pyromq.remoting.bodies import ClientCheck, Subscription, encode_body
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.headers import CheckClient, PullMessage, SaveBrokerSettings, SendMessage

pytestmark = pytest.mark.interop
MESSAGES = 40
WANTED = "price BETWEEN 3 AND 7 AND region = 'EU'"
BODIES = [b"3", b"5", b"7"]


@asynccontextmanager
async def channel_to(servers: Servers) -> AsyncIterator[Channel]:
    channel = await connect(servers.broker, Dispatcher(), SystemClock())
    yield channel
    await channel.close()


@pytest.fixture
async def filtering(genuine: GenuineServers) -> AsyncIterator[GenuineServers]:
    """The genuine servers, which serve expressions meanwhile."""
    async with channel_to(genuine) as channel:
        (await channel.call(SaveBrokerSettings(), b"enablePropertyFilter=true", timeout=5)).check()
        yield genuine
        (await channel.call(SaveBrokerSettings(), b"enablePropertyFilter=false", timeout=5)).check()


async def judged(channel: Channel, topic: str, expressions: list[str]) -> list[str]:
    """Return for each expression what a broker gives: the wanted bodies, or that it is refused."""
    found = []
    for each in expressions:
        subscription = Subscription(topic=topic, expression=each, expression_type="SQL92")
        check = encode_body(ClientCheck(client_id="one", group="readers", subscription=subscription))
        if (answer := await channel.call(CheckClient(), check, timeout=5)).code:
            found.append(f"refused with {answer.code}")
            continue
        pull = PullMessage(
            consumer_group="readers",
            topic=topic,
            queue_id=0,
            queue_offset=0,
            max_count=32,
            sys_flag=4,
            commit_offset=0,
            suspend_ms=0,
            subscription=each,
            subscription_version=0,
            expression_type="SQL92",
        )
        answer = await channel.call(pull, timeout=5)
        found.append(f"{answer.code} " + " ".join(m.body.decode() for m in decode_all(answer.body)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("count", [pytest.param(100, marks=pytest.mark.interop_short), 5_000])
async def test_both_brokers_choose_the_same(
    filtering: GenuineServers, ours: OurServers, topic: str, count: int
) -> None:
    random = Random(seed_of_the_day())
    stored = [properties(random) for _ in range(MESSAGES)]
    expressions = [expression(random) for _ in range(count)]
    answers = []
    for servers in (filtering, ours):
        async with AsyncAdmin(servers.namesrv) as admin:
            await admin.create_topic(topic, queues=1)
        async with channel_to(servers) as channel:
            for number, text in enumerate(stored):
                header = SendMessage(
                    producer_group="sends",
                    topic=topic,
                    default_topic="TBW102",
                    default_topic_queue_count=4,
                    queue_id=0,
                    sys_flag=0,
                    born_ms=1,
                    flag=0,
                    properties=text,
                )
                (await channel.call(header, b"%d" % number, timeout=5)).check()
            while max(await judged(channel, topic, ["missing IS NULL"]), key=len).count(" ") < 32:
                pass  # the genuine broker fills its queues some time after it has answered
            answers.append(await judged(channel, topic, expressions))
    assert dict(zip(expressions, answers[1], strict=True)) == dict(zip(expressions, answers[0], strict=True))
    assert 0 < sum(each.startswith("refused") for each in answers[0]) < count


async def send_priced(servers: Servers, topic: str) -> None:
    async with AsyncProducer("sends", servers.namesrv) as producer:
        for price in range(12):
            own = {"price": str(price), "region": "EU" if price % 2 else "US"}
            await producer.send(Message(topic, b"%d" % price, properties=own))


@pytest.mark.interop_short
async def test_java_consumers_choose_at_our_broker(java: JavaClient, ours: OurServers, topic: str) -> None:
    await send_priced(ours, topic)
    pushed = received(java.driver.run("push", topic, "pushed", f"sql:{WANTED}", 3, 20))
    assert sorted(each.content.body for each in pushed) == BODIES


async def test_ours_choose_at_the_genuine_broker(filtering: GenuineServers, topic: str) -> None:
    await send_priced(filtering, topic)
    async with AsyncPullConsumer("readers", filtering.namesrv) as consumer:
        consumer.subscribe(topic, sql=WANTED)
        found: list[bytes] = []
        for _ in range(40):
            found += [message.body for message in await consumer.poll(0.5)]
            if len(found) >= len(BODIES):
                break
    assert sorted(found) == BODIES


async def test_java_is_refused_by_our_broker_as_by_its_own(home: object, ours: OurServers, topic: str) -> None:
    await send_priced(ours, topic)
    with pytest.raises(RuntimeError, match="cannot be used: it ends at character 8"):
        Driver(home, ours.namesrv).run("push", topic, "pushed", "sql:price >", 1, 5)  # type: ignore[arg-type]
