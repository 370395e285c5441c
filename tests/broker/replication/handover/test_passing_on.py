"""What clients of other languages send to a replica that is not the master, or hands over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from tests.broker.headers import pull_header, send_header
from tests.broker.replication.handover.other_client import client_at
from tests.broker.replication.replica_sets import ReplicaSet, replica_set

from pyromq import AsyncConsumer, ConsumeFrom, ConsumerConfig, Message, StoredMessage
from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerConfig
from pyromq.broker.replication.handover import passing_on
from pyromq.broker.replication.handover.passing_on import PassingOn
from pyromq.broker.replication.replica_server import ReplicaServer
from pyromq.client.cluster import replica_set_watch
from pyromq.client.producer.async_producer import AsyncProducer
from pyromq.clock import SystemClock
from pyromq.errors import ResponseCode, StoreNotWritable
from pyromq.remoting.bodies import HeartbeatBody, ProducerEntry, encode_body
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import Later
from pyromq.remoting.header import RawFields
from pyromq.remoting.headers import Heartbeat, QueryConsumerOffset, UpdateConsumerOffset
from pyromq.remoting.remoting_session import RemotingSession

LONG_SECONDS = 60.0  # wait of a client that does not learn of the new master, and of a failover that is not planned
LONGEST_SECONDS = 20.0  # without a confirmation in a planned failover: a busy machine stands still for seconds


@pytest.fixture
async def replicas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ReplicaSet]:
    monkeypatch.setattr(passing_on, "WAIT_SECONDS", LONG_SECONDS)
    for name in ("SILENT_SECONDS", "REFRESH_SECONDS"):
        monkeypatch.setattr(replica_set_watch, name, LONG_SECONDS)
    async with replica_set(tmp_path) as found:
        yield found


@pytest.fixture
async def three(replicas: ReplicaSet) -> ReplicaSet:
    """Three replicas in sync, and the topic orders."""
    for number in (1, 2, 3):
        await replicas.start(number, pass_on_ms=100, lease_ms=int(LONG_SECONDS * 1_000))
    await replicas.until(lambda: replicas.in_sync == [1, 2, 3])
    async with AsyncProducer("g", replicas.namesrv) as producer:
        await producer.send(Message("orders", b"first"))
    return replicas


def master_of(replicas: ReplicaSet) -> ReplicaServer:
    assert replicas.master_server is not None
    return replicas.master_server


def other_than(replicas: ReplicaSet, server: ReplicaServer) -> int:
    return next(number for number in replicas.servers if number != server.number)


async def bodies(replicas: ReplicaSet) -> list[bytes]:
    """The bodies in queue 0 of the topic orders at the master."""
    store = master_of(replicas).broker.store
    found = [store.message("orders", 0, offset) for offset in range(store.next_offset("orders", 0))]
    return [message.body for message in found if message is not None]


async def test_no_send_fails_in_a_planned_failover_and_each_connection_keeps_its_order(three: ReplicaSet) -> None:
    first = master_of(three)
    is_over = False
    gaps: list[float] = []
    confirmed: dict[int, list[bytes]] = {}

    async def send_on(number: int) -> None:
        async with client_at(first.broker.address) as client:
            mine = confirmed[number] = []
            last = time.monotonic()
            while not is_over:
                body = b"%d-%d" % (number, len(mine))
                response = await client.ask(send_header(), body)
                assert response.code == 0, response.remark
                gaps.append(time.monotonic() - last)
                last = time.monotonic()
                mine.append(body)

    senders = [asyncio.create_task(send_on(number)) for number in range(4)]
    await asyncio.sleep(0.3)
    await first.hand_over(other_than(three, first))
    await three.until(lambda: three.in_sync == [1, 2, 3])
    await asyncio.sleep(0.3)
    is_over = True
    await asyncio.gather(*senders)
    assert master_of(three) is not first
    assert max(gaps) < LONGEST_SECONDS
    stored = await bodies(three)
    for number, mine in confirmed.items():
        own = [body for body in stored if body.startswith(b"%d-" % number)]
        assert list(dict.fromkeys(own)) == mine


async def test_our_producer_moves_in_a_planned_failover_without_a_failed_send(three: ReplicaSet) -> None:
    first = master_of(three)
    is_over = False
    gaps: list[float] = []

    async def send_on(producer: AsyncProducer) -> None:
        last = time.monotonic()
        while not is_over:
            await producer.send(Message("orders", b"x"))
            gaps.append(time.monotonic() - last)
            last = time.monotonic()

    async with AsyncProducer("g", three.namesrv) as producer:
        sender = asyncio.create_task(send_on(producer))
        await asyncio.sleep(0.3)
        await first.hand_over(other_than(three, first))
        await three.until(lambda: three.in_sync == [1, 2, 3])
        is_over = True
        await sender
    assert max(gaps) < LONGEST_SECONDS


async def test_an_idle_consumer_of_ours_is_at_the_new_master_when_the_next_message_comes(three: ReplicaSet) -> None:
    first = master_of(three)
    came: asyncio.Queue[bytes] = asyncio.Queue()

    async def take(messages: list[StoredMessage]) -> None:
        for message in messages:
            came.put_nowait(message.body)

    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST, long_poll_seconds=LONG_SECONDS)
    async with (
        AsyncProducer("g", three.namesrv) as producer,
        AsyncConsumer("c", three.namesrv, config=config) as consumer,
    ):
        consumer.subscribe("orders", take)
        assert await came.get() == b"first"
        await asyncio.sleep(0.2)  # it waits for messages at the old master
        await first.hand_over(other_than(three, first))
        await producer.send(Message("orders", b"second"))
        began = time.monotonic()
        while await came.get() != b"second":  # what was in work may come twice
            pass
        assert time.monotonic() - began < LONGEST_SECONDS


async def test_a_follower_passes_on_what_other_clients_send_and_tells_ours_who_is_master(three: ReplicaSet) -> None:
    master = master_of(three)
    follower = three.servers[other_than(three, master)]
    async with client_at(follower.broker.address) as client:
        responses = await client.ask_all(*[send_header(properties=f"KEYS\x01{n}") for n in range(20)], body=b"other")
        assert {response.code for response in responses} == {0}
        offsets = [int(response.fields["queueOffset"]) for response in responses]
        assert offsets == sorted(offsets) and len(set(offsets)) == 20
        position = {"consumer_group": "c", "topic": "orders", "queue_id": 0}
        await client.tell(UpdateConsumerOffset(**position, commit_offset=3))
        asked = await client.ask(QueryConsumerOffset(**position))
        assert asked.fields["offset"] == "3"
        assert master.broker.offsets.find("c", "orders", 0) == 3
    async with client_at(follower.broker.address, language="PYTHON") as client:
        refused = await client.ask(send_header())
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert master.broker.address in (refused.remark or "")


async def test_what_waits_for_a_failover_that_fails_is_answered_by_the_master_that_stays(three: ReplicaSet) -> None:
    master = master_of(three)
    async with client_at(master.broker.address) as client, client_at(master.broker.address) as reader:
        master._rule.refusal = "the master hands over"
        master._passing.hold()
        sending = asyncio.create_task(client.ask(send_header(), b"held"))
        await three.until(lambda: len(master._passing) == 1)
        assert (await reader.ask(pull_header(queue_offset=0))).code == 0
        assert not sending.done()
        master._rule.refusal = ""
        master._passing.serve()
        assert (await sending).code == 0
    assert (await bodies(three)).count(b"held") == 1


@pytest.mark.parametrize("master", ["127.0.0.1:1", None])
async def test_what_reaches_a_replica_waits_for_a_master(
    three: ReplicaSet, monkeypatch: pytest.MonkeyPatch, master: str | None
) -> None:
    monkeypatch.setattr(passing_on, "WAIT_SECONDS", 0.5)
    follower = three.servers[other_than(three, master_of(three))]
    follower._passing.pass_to(master)
    async with client_at(follower.broker.address) as client:
        began = time.monotonic()
        response = await client.ask(send_header(), b"nowhere")
        assert response.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert time.monotonic() - began > 0.4
        monkeypatch.setattr(passing_on, "WAIT_SECONDS", LONG_SECONDS)
        sending = asyncio.create_task(client.ask(send_header(), b"in time"))
        await three.until(lambda: len(follower._passing) == 1)
        follower._passing.pass_to(master_of(three).broker.address)
        assert (await sending).code == 0


@pytest.mark.parametrize("fails", [False, True])
async def test_a_master_with_other_clients_stops_once_they_know_the_new_one_or_it_fails(
    three: ReplicaSet, fails: bool
) -> None:
    first = master_of(three)
    if fails:
        first._failover = replace(first._failover, pass_on_ms=int(LONG_SECONDS * 1_000))
    beat = HeartbeatBody(client_id="other", producers=[ProducerEntry("p")])
    async with client_at(first.broker.address) as client:
        assert (await client.ask(Heartbeat(), encode_body(beat))).code == 0
        stopping = asyncio.create_task(three.stop(first.number))
        await three.until(lambda: three.master_server is not None)
        if fails:
            for _ in range(5):
                assert (await client.ask(send_header(), b"late")).code == 0
            assert not stopping.done()
            first.failed.set_exception(StoreNotWritable("the disk is full"))
            assert first.failed.exception()
        await stopping
    assert master_of(three) is not first
    assert (await bodies(three)).count(b"late") >= 5 * fails  # the client repeats what a closed connection took


async def test_a_master_that_is_replaced_while_the_connection_opens_gets_no_later_request(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        first, second = [
            await stack.enter_async_context(Broker(BrokerConfig(tmp_path / name, port=0))) for name in ("1", "2")
        ]
        second.offsets.commit("g", "orders", 0, 7)
        passing = PassingOn(first.config.connections, SystemClock())
        stack.push_async_callback(passing.stop)
        passing.dispatcher = first.dispatcher
        passing.pass_to(first.address)
        header = QueryConsumerOffset("g", "orders", 0)
        session = RemotingSession(first.dispatcher, SystemClock(), address=("127.0.0.1", 1), wake=print, run_soon=print)
        answered = passing.divert(Call(int(header.code), header=header, peer=session))
        await asyncio.sleep(0)  # the connection with the first master begins to open
        passing.pass_to(second.address)
        assert isinstance(answered, Later)
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        answered.add_done_callback(lambda done: reply.set_result(done.result()))
        found = (await reply).header
        assert isinstance(found, RawFields) and found.texts == {"offset": "7"}
