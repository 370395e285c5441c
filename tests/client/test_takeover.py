"""A master and a slave that takes over: what the master confirmed is there, and reaches every consumer."""

import asyncio
from collections import defaultdict

import pytest
from tests.waiting import until

from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerConfig, ConfiguredRole
from pyromq.broker.replication.ha.ha_config import HaConfig
from pyromq.broker.role import BrokerRole
from pyromq.client.client_config import ConsumeFrom, ConsumerConfig, ProducerConfig
from pyromq.client.consumer.pull.lite_pull_consumer import AsyncPullConsumer
from pyromq.client.consumer.push.push_consumer import AsyncConsumer
from pyromq.client.producer.async_producer import AsyncProducer
from pyromq.client.producer.transaction_producer import AsyncTransactionProducer, Decision
from pyromq.clock import SystemClock
from pyromq.errors import MQError
from pyromq.message import Message, SendStatus
from pyromq.store.store_config import StoreConfig
from pyromq.testing import Cluster

HA = HaConfig(port=0, heartbeat_ms=50)
PRODUCER = ProducerConfig(retries=0)
CONSUMER = {"consume_from": ConsumeFrom.FIRST, "retry_seconds": 0.05, "commit_seconds": 0.1, "long_poll_seconds": 2.0}


def replica(folder, number, configured, role, namesrv):
    folder = folder / f"replica-{number}"
    store = StoreConfig(
        folder, segment_bytes=4 << 20, consume_queue_entries=3000, index_slots=5000, index_entries=20000
    )
    config = BrokerConfig(
        folder,
        name="orders",
        port=0,
        broker_id=0 if role.is_master else number,
        role=configured,
        namesrv=(namesrv,),
        store=store,
        ha=HA,
        default_topic_queues=2,
    )
    return Broker(config, SystemClock(), role=role)


@pytest.fixture
async def pair(tmp_path):
    """A synchronous master of epoch 1, and a slave that has its log."""
    async with Cluster(brokers=0, clock=SystemClock()) as cluster:
        leading, following = BrokerRole(1, is_master=True, epoch=1), BrokerRole(2, epoch=1)
        master = replica(tmp_path, 1, ConfiguredRole.SYNC_MASTER, leading, cluster.namesrv)
        slave = replica(tmp_path, 2, ConfiguredRole.SLAVE, following, cluster.namesrv)
        async with master, slave:
            following.follow(master.address, master.role.ha_address, 1)
            async with AsyncProducer("first", cluster.namesrv) as producer:
                await producer.send(Message("orders", b"first"))
                async with asyncio.timeout(30):
                    while (await producer.send(Message("orders", b"first"))).status is not SendStatus.OK:
                        await asyncio.sleep(0.05)
            yield cluster, master, slave


class Load:
    """Sends numbered messages of several kinds until it is stopped; `confirmed` are those that the slave has, too."""

    def __init__(self, namesrv):
        self.confirmed = set()
        self.failed = []
        self._producer = AsyncTransactionProducer("load", namesrv, check=lambda _: Decision.COMMIT, config=PRODUCER)
        self._going = True
        self._tasks = []

    async def __aenter__(self):
        await self._producer.start()
        self._tasks = [asyncio.ensure_future(self._run(kind)) for kind in ("plain", "keyed", "batch", "transaction")]
        return self

    async def __aexit__(self, *failure):
        self._going = False
        await asyncio.gather(*self._tasks)
        await self._producer.close()

    async def _run(self, kind):
        number = 0
        while self._going:
            body = f"{kind}-{number}".encode()
            number += 1
            try:
                if await self._send(kind, Message("orders", body)) is SendStatus.OK:
                    self.confirmed.add(body)
            except MQError as error:
                self.failed.append(error)
            await asyncio.sleep(0)

    async def _send(self, kind, message):
        producer = self._producer
        if kind == "plain":
            return (await producer.send(message)).status
        if kind == "keyed":
            return (await producer.send(message, ordering_key="k")).status
        if kind == "batch":
            return (await producer.send_batch([message])).status
        result = await producer.send_in_transaction(message, lambda _: Decision.COMMIT)
        return result.sent.status if result.confirmed else None


async def grown(load, by=40):
    end = len(load.confirmed) + by
    await until(lambda: len(load.confirmed) >= end)


def orders_of(got, kind):
    return [int(body.partition(b"-")[2]) for body in got if body.startswith(kind)]


@pytest.mark.parametrize("planned", [False, True])
async def test_what_was_confirmed_reaches_every_consumer_through_a_takeover(pair, planned):
    cluster, master, slave = pair
    seen = defaultdict(list)

    def taking(name):
        async def take(messages):
            seen[name].extend(message.body for message in messages)

        return take

    consumers = [
        AsyncConsumer(name, cluster.namesrv, config=ConsumerConfig(**CONSUMER, orderly=name == "orderly"))
        for name in ("push", "orderly")
    ]
    for consumer in consumers:
        consumer.subscribe("orders", taking(consumer.group))
    puller = AsyncPullConsumer("pull", cluster.namesrv, config=ConsumerConfig(**CONSUMER))
    puller.subscribe("orders")

    async def poll():
        while True:
            seen["pull"].extend(message.body for message in await puller.poll(0.1))

    async with consumers[0], consumers[1], puller:
        polling = asyncio.ensure_future(poll())
        async with Load(cluster.namesrv) as load:
            await grown(load)
            if planned:
                master.role.step_down(slave.address, 2)
            else:
                master.cut_connections()
            await asyncio.sleep(0.2)
            await slave.promote(2)
            await grown(load, by=10)
            await grown(load)
        for name in ("push", "orderly", "pull"):
            await until(lambda name=name: load.confirmed <= {*seen[name]})
        polling.cancel()
    assert not load.failed
    keyed = orders_of(seen["orderly"], b"keyed")
    assert list(dict.fromkeys(keyed)) == sorted(set(keyed))
