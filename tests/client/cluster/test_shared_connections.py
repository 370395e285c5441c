"""Clients with one client id: shared connections, each its own groups, one consumer of a group."""

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from pyromq import ConnectionConfig
from pyromq.client.client_config import ConsumerConfig, ProducerConfig
from pyromq.client.cluster.shared_connections import Key, Member, SharedConnections, share_on
from pyromq.client.consumer.push.push_consumer import AsyncConsumer
from pyromq.client.producer.async_producer import AsyncProducer
from pyromq.errors import NoNameServer, ResponseCode, UsageError
from pyromq.message import Message
from pyromq.net.tasks import take_error
from pyromq.remoting.bodies import ConsumerEntry, HeartbeatBody, ProducerEntry
from pyromq.remoting.command import BINARY, Call, Reply
from pyromq.remoting.dispatch import Dispatcher, answers
from pyromq.remoting.headers import CheckTransaction, ConsumerIdsChanged, PushReplyMessage
from pyromq.testing import FakeClock

SHARED = ConsumerConfig(instance="shop")
OTHER = ConnectionConfig(serialization=BINARY)


async def test_clients_of_one_instance_share_id_and_connections(cluster, new_seen):
    first, second = new_seen(), new_seen()
    one = AsyncConsumer("one", cluster.namesrv, config=SHARED)
    two = AsyncConsumer("two", cluster.namesrv, config=SHARED)
    producer = AsyncProducer("p", cluster.namesrv, config=ProducerConfig(instance="shop"))
    one.subscribe("orders", first)
    two.subscribe("orders", second)
    async with producer:
        await producer.send(Message("orders", b"0"))
        async with one:
            async with two:
                assert one.client_id == two.client_id == f"{producer._cluster.ip}@shop"
                assert one._cluster._pool is two._cluster._pool is producer._cluster._pool
                await asyncio.gather(first.wait(1), second.wait(1))
            await producer.send(Message("orders", b"1"))
            assert await first.wait(2) == [0, 1]
        await producer.send(Message("orders", b"2"))
    assert not second.bodies[1:]


async def test_producers_of_one_instance_have_ids_of_their_own(cluster):
    config = ProducerConfig(instance="shop")
    async with (
        AsyncProducer("p", cluster.namesrv, config=config) as one,
        AsyncProducer("q", cluster.namesrv, config=config) as two,
    ):
        ids = [each._cluster.client_id for each in (one, two)]
        assert ids == [f"{one._cluster.ip}@shop@p", f"{one._cluster.ip}@shop@q"]
        assert one._cluster._pool is two._cluster._pool


async def test_nameless_clients_share_an_id_only_where_they_share_connections(cluster):
    share_on(asyncio.get_running_loop())
    async with (
        AsyncConsumer("one", cluster.namesrv) as one,
        AsyncConsumer("two", cluster.namesrv) as two,
        AsyncConsumer("three", cluster.namesrv, config=ConsumerConfig(connections=OTHER)) as three,
        AsyncConsumer("four", cluster.namesrv, config=ConsumerConfig(connections=OTHER)) as four,
    ):
        assert one.client_id == two.client_id != three.client_id == four.client_id
        assert one._cluster._pool is two._cluster._pool is not three._cluster._pool is four._cluster._pool


async def test_brokers_reach_the_client_of_the_group(cluster, new_seen, until):
    admin = await cluster.admin()
    await admin.create_topic("orders", queues=4)
    seen = new_seen()
    one = AsyncConsumer("one", cluster.namesrv, config=SHARED)
    two = AsyncConsumer("two", cluster.namesrv, config=SHARED)
    one.subscribe("orders", seen)
    two.subscribe("orders", seen)
    async with one, two:
        await until(lambda: len(two.assignment) == 4)
        other = AsyncConsumer("two", cluster.namesrv)
        other.subscribe("orders", seen)
        async with other:
            await until(lambda: len(two.assignment) == 2)
        assert len(one.assignment) == 4


async def test_a_group_has_one_consumer_of_an_instance(cluster):
    async with AsyncConsumer("one", cluster.namesrv, config=SHARED):
        again = AsyncConsumer("one", cluster.namesrv, config=SHARED)
        again.subscribe("orders", print)
        with pytest.raises(UsageError, match="consumer of group one with instance 'shop' already"):
            await again.start()
        with pytest.raises(UsageError, match="failed to start"):
            await again.start()
        async with AsyncConsumer("one", cluster.namesrv):
            pass
    async with AsyncConsumer("one", cluster.namesrv, config=SHARED):
        pass


async def test_a_failed_start_leaves_no_trace():
    for _ in range(2):
        with pytest.raises(NoNameServer):
            async with AsyncConsumer("one", "127.0.0.1:1", config=SHARED):
                pass


async def test_clients_with_hooks_of_their_own_share_no_connections_and_hooks_need_not_be_hashable(cluster):
    @dataclass
    class Counting:
        codes: list[int] = field(default_factory=list)

        def before_request(self, request):
            self.codes.append(request.code)

        def after_response(self, request, outcome):
            pass

    hooks = Counting(), Counting()
    one, two = (ProducerConfig(instance="shop", connections=ConnectionConfig(hooks=(hook,))) for hook in hooks)
    async with (
        AsyncProducer("p", cluster.namesrv, config=one) as first,
        AsyncProducer("q", cluster.namesrv, config=two),
    ):
        await first.send(Message("orders", b"1"))
    assert [310 in hook.codes for hook in hooks] == [True, False]


async def test_a_group_has_one_producer_of_an_instance(cluster):
    config = ProducerConfig(instance="shop")
    async with AsyncProducer("p", cluster.namesrv, config=config):
        with pytest.raises(UsageError, match=r"producer of group p with instance 'shop' already.*ProducerConfig.insta"):
            await AsyncProducer("p", cluster.namesrv, config=config).start()
        async with (
            AsyncProducer("q", cluster.namesrv, config=config),
            AsyncProducer("p", cluster.namesrv, config=ProducerConfig(instance="other")),
            AsyncProducer("p", cluster.namesrv),
            AsyncConsumer("p", cluster.namesrv, config=SHARED),
        ):
            pass
    async with AsyncProducer("p", cluster.namesrv, config=config) as again:
        await again.send(Message("orders", b"1"))


class Answering:
    """Says who it is to a question about a group, or to one without a group."""

    def __init__(self, code):
        self.code = code

    @answers(ConsumerIdsChanged)
    def changed(self, header, call):
        return Reply(code=self.code)


class AnsweringChecks:
    @answers(CheckTransaction)
    def check(self, header, call):
        raise AssertionError("nobody asked")


class AnsweringAll(Answering):
    @answers(PushReplyMessage)
    def take(self, header, call):
        return Reply(code=self.code)


def consuming(group, *answerers):
    return Member(lambda: HeartbeatBody("id", consumers=[ConsumerEntry(group)]), Dispatcher(*answerers))


def producing(group, *answerers):
    return Member(lambda: HeartbeatBody("id", producers=[ProducerEntry(group)]), Dispatcher(*answerers))


async def test_what_is_asked_of_a_group_goes_to_its_client_that_can_answer_and_to_nobody_else():
    shared = SharedConnections(Key(1, ("a:1",), "shop", True, 1, ()), FakeClock(), ConnectionConfig())
    shared.members += [
        producing("shop", AnsweringChecks()),
        consuming("other", AnsweringAll(70)),
        consuming("shop", Answering(71)),
    ]

    def answer(header):
        return shared.dispatch(Call(int(header.code), header=header, peer=SimpleNamespace(address="b:2"))).code

    assert answer(ConsumerIdsChanged(consumer_group="shop")) == 71
    assert answer(ConsumerIdsChanged(consumer_group="other")) == 70
    assert answer(ConsumerIdsChanged(consumer_group="gone")) == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    reply = {name: "" for name in ("producer_group", "topic", "default_topic", "born_host", "store_host")}
    numbers = {name: 0 for name in PushReplyMessage.__struct_fields__ if name not in reply and name != "properties"}
    assert answer(PushReplyMessage(**reply, **numbers)) == 70
    await shared.pool.close()


async def test_a_closed_client_leaves_nothing_at_the_connections_of_others(cluster):
    config = ProducerConfig(instance="shop")
    async with AsyncProducer("p", cluster.namesrv, config=config) as producer:
        await producer.send(Message("orders", b"0"))
        channels = producer._cluster._pool.channels().values()
        before = [len(each.session.on_close) for each in channels]
        async with AsyncProducer("q", cluster.namesrv, config=config) as other:
            await other.send(Message("orders", b"1"))
        assert [len(each.session.on_close) for each in channels] == before


@pytest.mark.parametrize("turns", range(1, 6))
async def test_a_client_whose_close_is_cancelled_is_closed_all_the_same(cluster, turns):
    config = ProducerConfig(instance="shop")
    producer = AsyncProducer("p", cluster.namesrv, config=config)
    await producer.start()
    producer.send_soon(Message("orders", b"0")).add_done_callback(take_error)
    closing = asyncio.ensure_future(producer.close())
    for _ in range(turns):
        await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    assert closing.cancelled()
    assert not producer._cluster._pool.channels()
    async with AsyncProducer("p", cluster.namesrv, config=config):
        pass
