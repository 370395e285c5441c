"""Blocking clients of one instance, or of none: one loop and one connection to each broker, whoever comes and goes."""

import asyncio
import itertools
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.platforms.marks import not_windows

from pyromq import Admin, Consumer, ConsumerConfig, Message, Producer, ProducerConfig, PullConsumer
from pyromq.client.blocking.blocking_client import BlockingRunner
from pyromq.errors import NotRunning

CONSUMING = ConsumerConfig(instance="shop")
PRODUCING = ProducerConfig(instance="shop")


@pytest.fixture
def keepers():
    """Return the threads that keep loops which a test has made: other tests' clients may be open."""

    def found():
        return {thread for thread in threading.enumerate() if thread.name == "pyromq keeper"}

    before = found()
    return lambda: found() - before


@pytest.fixture
def producer(served, keepers):
    with Producer("shop", served.namesrv, config=PRODUCING) as producer:
        yield producer


def consumer(served, group, heard, topic="shared"):
    consumer = Consumer(group, served.namesrv, config=CONSUMING)
    consumer.subscribe(topic, lambda messages: heard.set())
    return consumer


def test_two_groups_are_one_connection_at_the_broker(served, keepers, producer):
    producer.send(Message("shared", b"0"))
    heard = threading.Event(), threading.Event()
    with (
        consumer(served, "one", heard[0]) as one,
        consumer(served, "two", heard[1]) as two,
        Admin(served.namesrv, instance="shop") as admin,
    ):
        assert one.client_id == two.client_id
        assert all(each.wait(30) for each in heard)
        [first], [second] = (admin.consumer_connection(group).connections for group in ("one", "two"))
        assert first.client_address == second.client_address
        [mine] = admin.producer_connection("shop", "shared").connections
        assert mine.client_address == first.client_address
        assert len(keepers()) == 1


def loop_of(client):
    return client._runner._caller_loop


def loops_of(*clients):
    return {loop_of(client) for client in clients}


def test_clients_without_an_instance_share_a_connection(served):
    heard = threading.Event(), threading.Event()
    clients = [Consumer(group, served.namesrv) for group in ("one", "two")]
    for each, told in zip(clients, heard, strict=True):
        each.subscribe("shared", lambda messages, told=told: told.set())
    with (
        Producer("shop", served.namesrv) as producer,
        clients[0] as one,
        clients[1] as two,
        Producer("other", served.namesrv, config=PRODUCING) as named,
        Admin(served.namesrv) as admin,
    ):
        producer.send(Message("shared", b"0"))
        named.send(Message("shared", b"1"))
        assert all(each.wait(30) for each in heard)
        assert one.client_id == two.client_id
        addresses = {admin.consumer_connection(group).connections[0].client_address for group in ("one", "two")}
        addresses.add(admin.producer_connection("shop", "shared").connections[0].client_address)
        assert len(addresses) == 1
        [apart] = admin.producer_connection("other", "shared").connections
        assert apart.client_address not in addresses
        assert loops_of(producer, one, two, admin) == {loop_of(producer)}
        assert loop_of(named) != loop_of(producer)


def test_clients_of_one_group_without_an_instance_are_two_to_brokers(served):
    clients = [Consumer("workers", served.namesrv) for _ in range(3)]
    for each in clients:
        each.subscribe("shared", lambda messages: None)
    with clients[0] as one, clients[1] as two, Admin(served.namesrv) as admin:
        ids = {one.client_id, two.client_id}
        assert {each.client_id for each in admin.consumer_connection("workers").connections} == ids
        assert len(ids) == 2
        with clients[2] as three:
            assert three.client_id not in ids
        one.close()
        with Consumer("workers", served.namesrv) as again:
            assert again.client_id in ids - {two.client_id}  # which is free now, and has its connection still
        assert loops_of(one, two, admin) == {loop_of(two)}


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_clients_close_in_any_order(served, keepers, order):
    producers = [Producer(f"p-{number}", served.namesrv, config=PRODUCING) for number in range(3)]
    for each in producers:
        each.start()
    left = list(order)
    for number in order:
        producers[number].close()
        left.remove(number)
        for other in left:
            assert producers[other].send(Message("shared", b"1")).queue_offset >= 0
        with pytest.raises(NotRunning):
            producers[number].send(Message("shared", b"1"))
    assert not keepers()


def test_closing_ends_the_calls_of_its_client_only():
    async def wait_for_ever(begun):
        begun.set()
        await asyncio.Event().wait()

    async def nothing():
        pass

    closed, other = BlockingRunner(lambda: None, "shop"), BlockingRunner(lambda: None, "shop")
    closed.start(nothing)
    other.start(nothing)
    begun, release = [threading.Event(), threading.Event()], None
    with ThreadPoolExecutor(2) as pool:
        ended = pool.submit(closed.run, wait_for_ever, begun[0])

        async def until_released():
            nonlocal release
            release = asyncio.Event()
            begun[1].set()
            await release.wait()
            return "released"

        goes_on = pool.submit(other.run, until_released)
        assert all(each.wait(30) for each in begun)

        closed.close(nothing)

        with pytest.raises(NotRunning, match="closed"):
            ended.result(30)
        assert not goes_on.done()
        other.call(release.set)
        assert goes_on.result(30) == "released"
    other.close(nothing)


def test_a_listener_that_takes_long_holds_up_nobody(served, producer):
    began, release = threading.Event(), threading.Event()

    def listen(messages):
        began.set()
        release.wait(60)

    slow = Consumer("slow", served.namesrv, config=CONSUMING)
    slow.subscribe("slowly", listen)
    with slow:
        producer.send(Message("slowly", b"1"))
        assert began.wait(30)
        assert producer.send(Message("slowly", b"2")).queue_offset >= 0
        release.set()


def test_a_listener_may_send_by_a_producer_of_its_instance(served, producer):
    done = threading.Event()
    forwarding = Consumer("forwarding", served.namesrv, config=CONSUMING)
    forwarding.subscribe("first", lambda messages: [producer.send(Message("second", m.body)) for m in messages])
    with forwarding, consumer(served, "last", done, "second"):
        producer.send(Message("first", b"1"))
        assert done.wait(30)


@not_windows
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_makes_clients_of_the_instance_anew(served, producer):
    producer.send(Message("shared", b"1"))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with pytest.raises(NotRunning, match="made before fork"):
                producer.send(Message("shared", b"2"))
            with Producer("child", served.namesrv, config=PRODUCING) as own:
                own.send(Message("shared", b"3"))
            os.write(writer, b"sent")
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert pipe.read() == "sent"
    assert os.waitpid(child, 0)[1] == 0
    assert producer.send(Message("shared", b"4")).queue_offset >= 0


PROGRAM = """
import asyncio
from pyromq.client.blocking.blocking_client import BlockingRunner

async def said(name):
    print(name, "closed", flush=True)

def started(name):
    portal = BlockingRunner(lambda: portal.close(lambda: said(name)), "shop")
    portal.start(lambda: asyncio.sleep(0))

started("one")
started("two")
"""


def test_forgotten_clients_are_closed_when_the_program_ends():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert (sorted(done.stdout.split("\n")), done.stderr) == (["", "one closed", "two closed"], "")


def test_pull_consumers_share_too(served, producer):
    sent = producer.send(Message("pulled", b"1"))
    with PullConsumer("pulling", served.namesrv, config=CONSUMING) as pulling:
        pulling.assign([sent.queue])
        pulling.seek(sent.queue, 0)
        assert [message.body for message in pulling.poll(timeout=30)] == [b"1"]
