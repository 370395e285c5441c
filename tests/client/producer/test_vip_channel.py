"""Producers that send to the VIP channel: messages go there, everything else to the broker's own port."""

import pytest
from tests.processes import free_port

from pyromq import ConnectionConfig, Message, ProducerConfig
from pyromq.client.producer.batch_stream import AsyncRunProducer
from pyromq.errors import Unavailable
from pyromq.remoting.headers import Heartbeat, SendBatchMessage, SendMessageV2
from pyromq.testing import Cluster

SENDS = (SendMessageV2.code, SendBatchMessage.code)


class Asked:
    """Where requests of each code went."""

    def __init__(self):
        self.addresses = {}

    def before_request(self, request):
        self.addresses.setdefault(request.code, set()).add(request.address)

    def after_response(self, request, outcome):
        pass


@pytest.fixture
async def vip_cluster():
    async with Cluster(vip_channel=True) as cluster:
        yield cluster


@pytest.fixture
def asked():
    return Asked()


@pytest.fixture
def config(asked):
    return ProducerConfig(vip_channel=True, connections=ConnectionConfig(hooks=(asked,)))


async def test_messages_go_to_the_port_two_below(vip_cluster, config, asked):
    producer = await vip_cluster.producer(config=config)

    await producer.send(Message("orders", b"1"))
    await producer.send(Message("orders", b"2"))
    await producer.send_batch([Message("orders", b"3"), Message("orders", b"4")])

    port = vip_cluster.broker.port
    assert [asked.addresses[code] for code in SENDS] == [{f"127.0.0.1:{port - 2}"}] * 2
    assert asked.addresses[Heartbeat.code] == {f"127.0.0.1:{port}"}


async def test_runs_go_there_too(vip_cluster, config, asked):
    await (await vip_cluster.admin()).create_topic("orders", queues=1)
    async with AsyncRunProducer("p", vip_cluster.namesrv, config=config) as producer:
        [queue] = await producer.queues("orders")
        stream = producer.stream()
        await stream.put(queue, b"1", 1, header=producer.single_header(queue, flag=0, properties=""))
        await stream.finish()
    assert asked.addresses[SendMessageV2.code] == {f"127.0.0.1:{vip_cluster.broker.port - 2}"}


async def test_a_broker_without_it_is_named_and_what_to_do(config):
    async with Cluster(port=free_port(-2)) as cluster:
        producer = await cluster.producer(config=config)
        address = cluster.broker.address

        with pytest.raises(Unavailable, match=rf"VIP channel of broker {address} .*vipChannelEnable=true"):
            await producer.send(Message("orders", b"1"), timeout=0.5)
