"""The VIP channel, two ports below a broker's: Java's producers at our broker, ours at the genuine one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.peers.clients import JavaClient, contents, read
from tests.interop.peers.java import Driver
from tests.interop.peers.samples import samples
from tests.interop.peers.servers import GenuineServers, OurServers

from pyromq import ConnectionConfig, Message, Producer, ProducerConfig
from pyromq.remoting.headers import SendMessageV2
from pyromq.remoting.hooks import RemotingOutcome, RemotingRequest

pytestmark = pytest.mark.interop

OPTIONS = ["-Dcom.rocketmq.sendMessageWithVIPChannel=true"]


@pytest.fixture(scope="module")
def with_vip_channel(tmp_path_factory: pytest.TempPathFactory, jars: None) -> Iterator[OurServers]:
    data = tmp_path_factory.mktemp("vip-channel")
    settings = data / "broker.conf"
    settings.write_text("vipChannelEnable=true\n")
    servers = OurServers(data, options=["--config", settings])
    try:
        servers.start()
        yield servers
    finally:
        servers.stop()


def test_java_producers_use_ours(with_vip_channel: OurServers, home: Path, topic: str) -> None:
    java = JavaClient(Driver(home, with_vip_channel.namesrv, options=OPTIONS))

    java.send("sync", samples(topic))

    assert contents(read(java, topic, "reads", len(samples(topic)))) == contents(samples(topic))


@pytest.mark.parametrize("way", ["async", "oneway", "batch"])
def test_java_sends_of_every_kind_use_ours(with_vip_channel: OurServers, home: Path, topic: str, way: str) -> None:
    java = JavaClient(Driver(home, with_vip_channel.namesrv, options=OPTIONS))

    java.send(way, samples(topic))

    assert contents(read(java, topic, "reads", len(samples(topic)))) == contents(samples(topic))


def test_java_producers_do_not_send_where_it_is_off(ours: OurServers, home: Path, topic: str) -> None:
    java = JavaClient(Driver(home, ours.namesrv, options=OPTIONS))
    port = int(ours.broker.rpartition(":")[2])

    with pytest.raises(RuntimeError, match=rf"connect to <?127\.0\.0\.1:{port - 2}>? failed"):
        java.send("sync", samples(topic)[:1])


class SentTo:
    """Where messages went."""

    def __init__(self) -> None:
        self.addresses: set[str] = set()

    def before_request(self, request: RemotingRequest) -> None:
        if request.code == SendMessageV2.code:
            self.addresses.add(request.address)

    def after_response(self, request: RemotingRequest, outcome: RemotingOutcome) -> None:
        pass


def test_our_producers_use_the_genuine_brokers(genuine: GenuineServers, topic: str) -> None:
    sent_to = SentTo()
    config = ProducerConfig(vip_channel=True, connections=ConnectionConfig(hooks=(sent_to,)))
    with Producer("vip", genuine.namesrv, config=config) as producer:
        producer.send(Message(topic, b"hello"))

    host, _, port = genuine.broker.rpartition(":")
    assert sent_to.addresses == {f"{host}:{int(port) - 2}"}
