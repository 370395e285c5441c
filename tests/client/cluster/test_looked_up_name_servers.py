"""Name servers that are looked up over HTTP: every client finds its cluster so, and follows when it moves."""

import asyncio
import logging

import pytest
from tests.net.address_server import AddressSite

from pyromq import Admin, AsyncConsumer, AsyncProducer, AsyncPullConsumer, ConsumerConfig, Message, Producer
from pyromq.client.admin.diagnosis import diagnose
from pyromq.client.blocking.consumers import QueueReader
from pyromq.client.cluster.name_servers import NameServers
from pyromq.clock import SystemClock
from pyromq.errors import NoNameServer
from pyromq.net.address_server import REFRESH_SECONDS
from pyromq.net.channel import Pool
from pyromq.remoting.dispatch import Dispatcher
from pyromq.testing import FakeClock


@pytest.fixture
def site():
    with AddressSite() as site:
        yield site


@pytest.fixture
def found(site, cluster):
    """The URL at which the cluster's name server is found."""
    site.answer = cluster.namesrv
    return site.url


async def test_async_clients_find_their_cluster(found, seen):
    async with AsyncProducer("p", found) as producer, AsyncPullConsumer("g", found) as consumer:
        await producer.send(Message("orders", b"1"))
        queues = await consumer.queues("orders")
        await consumer.assign(queues)
        for queue in queues:
            await consumer.seek(queue, 0)
        assert [message.body for message in await consumer.poll(timeout=5)] == [b"1"]
    async with AsyncConsumer("workers", found, config=ConsumerConfig(instance="shared")):
        pass


def test_blocking_clients_find_it_in_the_environment(site, served, monkeypatch):
    site.answer = served.namesrv
    monkeypatch.setenv("NAMESRV_ADDR", site.url)
    with Producer("p") as producer, Admin() as admin, QueueReader("g") as reader:
        sent = producer.send(Message("looked-up", b"1"))
        assert "looked-up" in admin.topics()
        assert reader.pull(sent.queue, 0).messages[0].body == b"1"


async def test_a_start_without_an_answer_names_the_url(site):
    site.status = 500
    with pytest.raises(NoNameServer, match=f"cannot be looked up: {site.url} answers 500 .*; correct the address"):
        await AsyncProducer("p", site.url).start()


async def test_addresses_are_looked_up_again_every_two_minutes(found, site, until):
    clock = FakeClock()
    async with AsyncProducer("p", found, clock=clock):
        await clock.advance(0)  # its tasks begin to wait
        await clock.advance(REFRESH_SECONDS - 1)
        assert len(site.asked) == 1
        await clock.advance(1)
        await until(lambda: len(site.asked) == 2)


@pytest.fixture
async def name_servers(found):
    pool = Pool(Dispatcher(), SystemClock())
    name_servers = NameServers([found], pool, timeout=3)
    await name_servers.connect()
    yield name_servers
    await pool.close()


async def test_a_client_follows_its_cluster(name_servers, cluster, site, caplog):
    caplog.set_level(logging.INFO)
    old = await name_servers.connect()
    site.answer = "127.0.0.1:1;127.0.0.1:2"

    await name_servers.look_up()

    assert name_servers.addresses == ["127.0.0.1:1", "127.0.0.1:2"]
    assert old.closed
    assert f"name servers are now 127.0.0.1:1;127.0.0.1:2; they were {cluster.namesrv}" in caplog.text


async def test_a_client_stays_at_the_name_server_it_has(name_servers, cluster, site):
    for number in range(4):
        site.answer = ";".join([f"127.0.0.1:{number + 1}"] * (number + 1) + [cluster.namesrv])
        await name_servers.look_up()
        channel = await name_servers.connect()
        assert channel.address == cluster.namesrv
        assert not channel.closed


async def test_an_address_server_that_fails_later_changes_nothing_and_is_told_once(name_servers, cluster, site, caplog):
    site.status = 503
    for _ in range(3):
        await name_servers.look_up()
    assert name_servers.addresses == [cluster.namesrv]
    assert caplog.text.count(f"{site.url} answers 503") == 1
    assert f"still using {cluster.namesrv}" in caplog.text


async def test_a_diagnosis_tells_both(found, site, cluster):
    names = [finding.name for finding in await diagnose(found)]
    assert names[:2] == [f"address server {found}", f"name server {cluster.namesrv}"]
    site.answer = "nonsense"
    [finding] = await diagnose(found)
    assert not finding.ok
    assert "nonsense" in finding.text


async def test_a_wait_for_the_address_server_is_over_when_the_client_closes(found, site, until):
    clock = FakeClock()
    producer = AsyncProducer("p", found, clock=clock)
    await producer.start()
    await clock.advance(0)
    site.talks.clear()
    await clock.advance(REFRESH_SECONDS)
    await until(lambda: len(site.asked) == 2)
    async with asyncio.timeout(2):
        await producer.close()
