"""Every client at servers that take TLS only, and ask for a certificate."""

import asyncio
from dataclasses import replace

import pytest
from tests.certificates import Authority

from pyromq import (
    AsyncConsumer,
    BatchTransactions,
    ConnectionConfig,
    ConsumeFrom,
    ConsumerConfig,
    Message,
    MessageTrace,
    NoNameServer,
    ProducerConfig,
    TlsConfig,
)
from pyromq.client.admin.diagnosis import diagnose
from pyromq.client.admin.messages.dead_letters import AsyncDeadLetters
from pyromq.client.admin.messages.delayed_messages import AsyncDelayedMessages
from pyromq.client.admin.messages.undecided_transactions import AsyncHalfMessages
from pyromq.client.blocking.admin import Admin
from pyromq.client.blocking.consumers import QueueReader
from pyromq.client.blocking.producers import TransactionProducer
from pyromq.client.client_hooks import Decision
from pyromq.client.consumer.queue_reader import AsyncQueueReader
from pyromq.client.producer.async_producer import AsyncProducer
from pyromq.errors import AccessDenied, NoPermission
from pyromq.names import TRACE_TOPIC
from pyromq.net.tls.tls_server import ClientCertificates, ServerTlsConfig, TlsMode
from pyromq.testing import BlockingCluster, Cluster


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture
def secure(authority):
    """Settings of a cluster of which nobody without a certificate is let in."""
    certificate, key = authority.issue("server")
    own, own_key = authority.issue("client")
    return {
        "tls": ServerTlsConfig(
            mode=TlsMode.ENFORCING,
            certificate=certificate,
            key=key,
            authority=authority.file,
            client_certificates=ClientCertificates.REQUIRE,
        ),
        "connections": ConnectionConfig(tls=TlsConfig(authority=authority.file, certificate=own, key=own_key)),
    }


async def test_async_clients(secure):
    async with Cluster(**secure) as cluster:
        connections = cluster.connections
        producer, admin = await cluster.producer(), await cluster.admin()
        await admin.create_topic("orders", queues=1)
        await producer.send(Message("orders", b"1"))
        consumer = await cluster.consumer()
        [queue] = await consumer.queues("orders")
        await consumer.assign([queue])
        await consumer.seek(queue, 0)
        assert [message.body for message in await consumer.poll(timeout=5)] == [b"1"]
        async with AsyncQueueReader("readers", cluster.namesrv, connections=connections) as reader:
            assert (await reader.pull(queue, 0)).messages[0].body == b"1"
        async with AsyncDeadLetters(cluster.namesrv, connections=connections) as dead_letters:
            assert await dead_letters.counts() == []
        async with AsyncDelayedMessages(cluster.namesrv, connections=connections) as delayed:
            assert await delayed.counts() == {}
        async with AsyncHalfMessages(cluster.namesrv, connections=connections) as half_messages:
            assert [half async for half in half_messages.undecided("g")] == []


def test_blocking_clients(secure):
    with BlockingCluster(**secure) as cluster:
        connections = cluster.cluster.connections
        config = ProducerConfig(connections=connections)
        with Admin(cluster.namesrv, connections=connections) as admin:
            admin.create_topic("orders", queues=1)
        with TransactionProducer("t", cluster.namesrv, check=lambda half: Decision.COMMIT, config=config) as producer:
            producer.send_in_transaction(Message("orders", b"1"), lambda message: Decision.COMMIT)
        with BatchTransactions("b", cluster.namesrv, config=config) as batches, batches.attempt("x:1") as attempt:
            attempt.send([Message("orders", b"2")])
        with QueueReader("readers", cluster.namesrv, connections=connections) as reader:
            [queue] = reader.queues("orders")
            assert [message.body for message in reader.pull(queue, 0).messages] == [b"1"]
        consumed = []
        consumer = cluster.push_consumer()
        consumer.subscribe("orders", lambda messages: consumed.append(messages))


async def test_accounts_over_tls(secure, tmp_path):
    folder = tmp_path / "accounts"
    folder.mkdir()
    (folder / "plain_acl.yml").write_text("accounts:\n- {accessKey: operators, secretKey: 12345678, admin: true}\n")
    tls = secure.pop("connections").tls
    signed = ConnectionConfig(tls=tls, access_key="operators", secret_key="12345678")
    async with Cluster(**secure, connections=signed, permissions=True, permissions_path=folder) as cluster:
        producer = await cluster.producer()
        assert (await producer.send(Message("orders", b"1"))).queue_offset == 0
        unsigned = await cluster.producer("other", config=ProducerConfig(connections=ConnectionConfig(tls=tls)))
        with pytest.raises(AccessDenied):
            await unsigned.send(Message("orders", b"2"))


@pytest.mark.parametrize("client", ["producer", "consumer", "pull consumer"])
async def test_traces_go_to_the_name_servers_of_their_client_with_its_tls_and_account(secure, tmp_path, client):
    folder = tmp_path / "accounts"
    folder.mkdir()
    (folder / "plain_acl.yml").write_text("accounts:\n- {accessKey: operators, secretKey: 12345678, admin: true}\n")
    signed = ConnectionConfig(tls=secure.pop("connections").tls, access_key="operators", secret_key="12345678")
    async with Cluster(**secure, connections=signed, permissions=True, permissions_path=folder) as cluster:
        trace = MessageTrace()
        config = ConsumerConfig(connections=signed, consume_from=ConsumeFrom.FIRST)
        traced = replace(config, hooks=(trace,))
        producer = await cluster.producer(
            config=ProducerConfig(connections=signed, hooks=(trace,) if client == "producer" else ())
        )
        await producer.send(Message("orders", b"1"))
        if client == "consumer":
            consumed = asyncio.Event()
            consumer = AsyncConsumer("g", cluster.namesrv, config=traced)

            @consumer.subscribe("orders")
            async def consume(messages):
                consumed.set()

            async with consumer:
                await consumed.wait()
        if client == "pull consumer":
            consumer = await cluster.consumer(config=traced)
            consumer.subscribe("orders")
            await anext(consumer)
        await asyncio.to_thread(trace.close)
        assert trace.dropped == 0
        assert TRACE_TOPIC in await (await cluster.admin()).topics()


async def test_who_speaks_plainly_is_told(secure):
    async with Cluster(**secure) as cluster, AsyncProducer("p", cluster.namesrv) as plain:
        with pytest.raises(NoPermission, match="TLS connections only"):
            await plain.send(Message("orders", b"1"))


async def test_a_client_of_a_plain_cluster_that_wants_tls_is_told(authority):
    async with Cluster() as cluster:
        config = ProducerConfig(connections=ConnectionConfig(tls=TlsConfig(authority=authority.file)))
        with pytest.raises(NoNameServer, match=r"in the TLS handshake.*plain connections only"):
            await AsyncProducer("p", cluster.namesrv, config=config).start()


# --- doctor


def texts(findings):
    return [(finding.ok, f"{finding.name}: {finding.text} -> {finding.advice}") for finding in findings]


async def test_doctor_names_certificates_and_their_dates(secure, authority):
    async with Cluster(**secure) as cluster:
        found = texts(await diagnose(cluster.namesrv, connections=cluster.connections))
        assert [ok for ok, _ in found] == [True] * 4
        assert f"certificate of name server {cluster.namesrv}: expires in" in found[1][1]
        assert "certificate of broker broker-a (id 0): expires in" in found[3][1]


async def test_doctor_finds_a_certificate_that_expires_soon(authority):
    certificate, key = authority.issue("server", ends_in_days=5.5)
    connections = ConnectionConfig(tls=TlsConfig(authority=authority.file))
    async with Cluster(tls=ServerTlsConfig(certificate=certificate, key=key), connections=connections) as cluster:
        found = texts(await diagnose(cluster.namesrv, connections=connections))
    assert [ok for ok, _ in found] == [True, False, True, False]
    assert "expires in 5 days -> renew it" in found[1][1]


@pytest.mark.parametrize("what", ["plain client", "other authority", "plain server"])
async def test_doctor_tells_who_does_not_agree_on_tls(tmp_path, secure, authority, what):
    del secure["tls"]
    if what != "plain server":
        certificate, key = authority.issue("server")
        secure["tls"] = ServerTlsConfig(mode=TlsMode.ENFORCING, certificate=certificate, key=key)
    client = {
        "plain client": None,
        "other authority": ConnectionConfig(tls=TlsConfig(authority=Authority(tmp_path, "another").file)),
        "plain server": secure["connections"],
    }[what]
    if what == "plain server":
        del secure["connections"]
    async with Cluster(**secure) as cluster:
        [(ok, text)] = texts(await diagnose(cluster.namesrv, connections=client))
    assert not ok
    expected = {
        "plain client": "TLS connections only",
        "other authority": "not signed by",
        "plain server": "takes plain connections only -> leave out --tls",
    }[what]
    assert expected in text
