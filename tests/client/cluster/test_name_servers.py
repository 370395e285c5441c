"""Addresses of name servers, and asking the next one when one is away."""

import socket

import pytest
from tests.waiting import PATIENCE_SECONDS, until

from pyromq import (
    Admin,
    AsyncAdmin,
    AsyncBatchTransactions,
    AsyncConsumer,
    AsyncProducer,
    AsyncPullConsumer,
    AsyncTransactionProducer,
    Consumer,
    Producer,
    PullConsumer,
)
from pyromq.client.admin.diagnosis import diagnose
from pyromq.client.admin.messages.dead_letters import AsyncDeadLetters
from pyromq.client.admin.messages.delayed_messages import AsyncDelayedMessages
from pyromq.client.admin.messages.undecided_transactions import AsyncHalfMessages
from pyromq.client.client_config import ProducerConfig
from pyromq.client.consumer.queue_reader import AsyncQueueReader
from pyromq.errors import NoNameServer, SystemBusy, UsageError
from pyromq.message import Message
from pyromq.net.address_server import parse_addresses
from pyromq.net.server import Server
from pyromq.remoting.bodies import BrokerAddresses, QueuesAtBroker, TopicRoute, encode_body
from pyromq.remoting.codes import Permission
from pyromq.remoting.command import Reply
from pyromq.remoting.dispatch import Dispatcher, answers
from pyromq.remoting.headers import RouteOfTopic


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("127.0.0.1:9876", ["127.0.0.1:9876"]),
        ("a:1;b:2", ["a:1", "b:2"]),
        (" a:1 ; ;b:2;", ["a:1", "b:2"]),
        ("http://a:1/", ["a:1"]),
        ("[::1]:9876", ["[::1]:9876"]),
    ],
)
def test_addresses_are_separated_by_semicolons(text, addresses):
    assert parse_addresses(text) == addresses


@pytest.mark.parametrize("text", ["localhost", ":9876", "a:b", "a:0", "a:65536"])
def test_what_is_no_address_is_named(text):
    with pytest.raises(UsageError, match=f"'{text}' is not host:port"):
        parse_addresses(text)


@pytest.mark.parametrize("text", ["", ";"])
def test_no_address_at_all_is_refused(text):
    with pytest.raises(UsageError, match="no name server address"):
        parse_addresses(text)


CLIENTS = [
    lambda *namesrv: AsyncProducer("g", *namesrv),
    lambda *namesrv: AsyncPullConsumer("g", *namesrv),
    lambda *namesrv: AsyncConsumer("g", *namesrv),
    lambda *namesrv: AsyncTransactionProducer("g", *namesrv, check=print),
    AsyncAdmin,
    AsyncDeadLetters,
    AsyncDelayedMessages,
    AsyncHalfMessages,
    lambda *namesrv: AsyncBatchTransactions("g", *namesrv),
    lambda *namesrv: AsyncQueueReader("g", *namesrv),
]


def addresses(client):
    runs = getattr(client, "runs", None)
    return (runs.cluster if runs else client._cluster).name_servers.addresses


@pytest.mark.parametrize("client", CLIENTS)
def test_every_client_takes_the_environments_name_servers_unless_it_is_given_some(client, monkeypatch):
    monkeypatch.setenv("NAMESRV_ADDR", "a:1;b:2")
    assert addresses(client()) == ["a:1", "b:2"]
    assert addresses(client("c:3")) == ["c:3"]
    monkeypatch.setenv("NAMESRV_ADDR", " ")
    assert addresses(client()) == ["127.0.0.1:9876"]
    monkeypatch.delenv("NAMESRV_ADDR")
    assert addresses(client()) == ["127.0.0.1:9876"]


@pytest.mark.parametrize("client", [lambda: Producer("g"), lambda: PullConsumer("g"), lambda: Consumer("g"), Admin])
def test_blocking_clients_do_as_well(client, monkeypatch):
    monkeypatch.setenv("NAMESRV_ADDR", "a:1")
    assert addresses(client()._async) == ["a:1"]


def test_a_wrong_variable_is_named(monkeypatch):
    monkeypatch.setenv("NAMESRV_ADDR", "nonsense")
    with pytest.raises(UsageError, match="environment variable NAMESRV_ADDR: name server address 'nonsense' is not"):
        AsyncProducer("g")


async def test_a_diagnosis_looks_there_too(monkeypatch):
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:1")
    assert [finding.name for finding in await diagnose()] == ["name server 127.0.0.1:1"]


def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


async def test_starting_with_nothing_listening_names_the_address_and_what_to_do():
    address = f"127.0.0.1:{closed_port()}"
    with pytest.raises(NoNameServer, match=f"{address} refuses connections: nothing listens there.; start one there"):
        await AsyncProducer("p", address).start()


async def test_a_host_that_cannot_be_resolved_is_told_from_one_that_does_not_answer():
    with pytest.raises(NoNameServer, match=r"no name server is found: .* host 'nohost\.invalid' cannot be resolved"):
        await AsyncProducer("p", "nohost.invalid:9876").start()
    address = f"127.0.0.1:{closed_port()}"
    with pytest.raises(NoNameServer) as raised:
        await AsyncProducer("p", f"nohost.invalid:9876;{address}").start()
    assert "host 'nohost.invalid' cannot be resolved" in str(raised.value)
    assert f"{address} refuses connections" in str(raised.value)


async def test_the_next_name_server_is_asked_when_one_is_away(cluster):
    for _ in range(8):  # a client starts at a random one
        async with AsyncProducer("p", f"127.0.0.1:{closed_port()};{cluster.namesrv}") as producer:
            assert len(await producer.queues("new")) == 4


class BusyNames:
    """A name server that knows the route of one topic, and is busy when it is asked for the second time."""

    def __init__(self, broker_address):
        addresses = [BrokerAddresses(cluster="c", broker_name="broker-a", addresses={0: broker_address})]
        queues = [QueuesAtBroker("broker-a", Permission.READ | Permission.WRITE, 1, 1)]
        self.route = encode_body(TopicRoute(brokers=addresses, queues=queues))
        self.refused = 0

    @answers(RouteOfTopic)
    def route_of(self, header, call):
        if self.route:
            route, self.route = self.route, b""
            return Reply(body=route)
        self.refused += 1
        raise SystemBusy("too many requests")


async def test_a_send_goes_on_with_the_known_route_while_name_servers_are_busy(cluster):
    await (await cluster.admin()).create_topic("orders", queues=1)
    names = BusyNames(cluster.broker.address)
    server = Server(Dispatcher(names), cluster.clock, host="127.0.0.1", port=0)
    await server.start()
    config = ProducerConfig(timeout=PATIENCE_SECONDS)
    async with AsyncProducer("p", f"127.0.0.1:{server.port}", config=config) as producer:
        await producer.send(Message("orders", b"1"))
        await cluster.stop_broker()
        sending = producer.send_soon(Message("orders", b"2"))
        await until(lambda: names.refused)
        await cluster.start_broker()
        await sending
    await server.close()
