"""Producers of a replica set: they find the new master by themselves, and no attempt that nobody took counts."""

import asyncio
import time
from dataclasses import replace

import pytest
from tests.client.replica_set import NAME, replica_set
from tests.waiting import PATIENCE_SECONDS, until

from pyromq.client.client_config import ProducerConfig
from pyromq.client.producer.async_producer import AsyncProducer
from pyromq.client.producer.batch_stream import AsyncRunProducer, find_ledger
from pyromq.client.producer.transaction_producer import AsyncTransactionProducer, Decision
from pyromq.errors import DeadlineExceeded, NotTheMaster, Unavailable
from pyromq.message import Message
from pyromq.record import BatchMember, encode_batch

NO_RETRIES = ProducerConfig(retries=0)
SHORT = ProducerConfig(retries=0, timeout=0.2, failover_seconds=8.0)


@pytest.fixture
async def replicas(tmp_path):
    async with replica_set(tmp_path) as replicas:
        yield replicas


async def learns(producer, master):
    """Return when the producer's route has this master: a refresh soon after another one does nothing."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while producer._cluster.routes.find("orders").master(NAME) != master:
            await producer._cluster.refresh_all()
            await asyncio.sleep(0.01)


async def test_after_a_kill_every_send_is_confirmed_by_the_new_master(replicas):
    old, new = await replicas.start(), await replicas.start()
    await replicas.register(old, epoch=1)
    await replicas.register(new, broker_id=2, epoch=1)
    confirmed, longest, going = [], 0.0, True

    async def send_all(producer, name):
        nonlocal longest
        number = 0
        while going:
            body, begin = b"%s-%d" % (name, number), time.monotonic()
            if number % 3 == 0:
                await producer.send(Message("orders", body))
            elif number % 3 == 1:
                await producer.send(Message("orders", body), ordering_key=name.decode())
            else:
                await producer.send_batch([Message("orders", body)])
            longest = max(longest, time.monotonic() - begin)
            confirmed.append(body)
            number += 1

    patient = replace(NO_RETRIES, failover_seconds=2 * PATIENCE_SECONDS)
    async with AsyncProducer("g", replicas.namesrv, config=patient) as producer:
        senders = [asyncio.ensure_future(send_all(producer, b"%d" % n)) for n in range(4)]
        await asyncio.sleep(0.2)
        soon = [producer.send_soon(Message("orders", b"soon-%d" % n)) for n in range(100)]
        await asyncio.sleep(0)
        replicas.kill(0)
        await asyncio.sleep(0.4)
        before = len(confirmed)
        await replicas.register(new, epoch=2)
        await until(lambda: len(confirmed) > before + 50)
        going = False
        await asyncio.gather(*senders, *soon)
    stored = replicas.stored(0) + replicas.stored(1)
    assert {*confirmed, *(b"soon-%d" % n for n in range(100))} <= {*stored}
    assert replicas.stored(1)
    assert longest < PATIENCE_SECONDS  # 0.4 s without a master; a send that waits for it to come back may take more


@pytest.fixture
async def behind(replicas):
    """The name server lists a replica that refuses and names the master; nobody tells it better."""
    master = await replicas.start()
    replica = await replicas.refusing(master)
    await replicas.register(replica)
    return replicas


async def test_the_master_that_a_refusal_names_is_used_without_a_name_server(behind):
    async with AsyncProducer("g", behind.namesrv, config=NO_RETRIES) as producer:
        await producer.queues("orders")
        await behind.cluster.name_server.__aexit__(None, None, None)
        await producer.send(Message("orders", b"1"))
        await producer.send(Message("orders", b"2"), ordering_key="k")
        await producer.send_soon(Message("orders", b"3"))
        await producer.send_batch([Message("orders", b"4"), Message("orders", b"5")])
    assert {*behind.stored(0)} == {b"1", b"2", b"3", b"4", b"5"}


@pytest.mark.parametrize(
    "send",
    [
        lambda producer: producer.send(Message("orders", b"1")),
        lambda producer: producer.send(Message("orders", b"1"), ordering_key="k"),
        lambda producer: producer.send_soon(Message("orders", b"1")),
        lambda producer: producer.send_soon(Message("orders", b"1"), ordering_key="k"),
        lambda producer: producer.send_batch([Message("orders", b"1")]),
        lambda producer: producer.send(Message("orders", b"1", delay_level=0, flag=1)),
    ],
)
async def test_each_kind_of_send_follows_a_refusal(behind, send):
    async with AsyncProducer("g", behind.namesrv, config=NO_RETRIES) as producer:
        await send(producer)
    assert behind.stored(0) == [b"1"]


async def test_messages_that_wait_for_a_batch_follow_a_refusal(behind):
    config = ProducerConfig(retries=0, linger_seconds=0.01)
    async with AsyncProducer("g", behind.namesrv, config=config) as producer:
        await asyncio.gather(*(producer.send(Message("orders", b"%d" % n)) for n in range(3)))
    assert sorted(behind.stored(0)) == [b"0", b"1", b"2"]


async def test_runs_follow_a_refusal(behind):
    async with AsyncRunProducer("g", behind.namesrv) as producer:
        stream = producer.stream()
        queue = (await producer.queues("orders"))[0]
        await stream.put(queue, encode_batch([BatchMember(0, b"1", "")]), 1)
        await stream.finish()
    assert behind.stored(0) == [b"1"]


async def test_a_decision_goes_to_the_new_master(replicas):
    master = await replicas.start()
    await replicas.register(master, epoch=1)
    async with AsyncTransactionProducer("g", replicas.namesrv, check=lambda message: Decision.UNKNOWN) as producer:
        sent = await producer.send_half(Message("orders", b"1"))
        replica = await replicas.refusing(master)
        await replicas.register(replica, epoch=2)
        await learns(producer, replica)
        assert (await producer.end(sent, Decision.COMMIT)).confirmed
    assert replicas.stored(0) == [b"1"]


async def test_half_messages_follow_a_refusal(behind):
    async with (
        AsyncTransactionProducer("g", behind.namesrv, check=lambda message: Decision.UNKNOWN) as producer,
        producer.transaction(Message("orders", b"1")),
    ):
        pass
    assert behind.stored(0) == [b"1"]


async def test_two_replicas_that_name_each_other_are_not_asked_without_pauses(replicas):
    first = await replicas.refusing(None)
    server = await replicas.refusing(first)
    replicas.refusals[0].master = server
    await replicas.register(first)
    async with AsyncProducer("g", replicas.namesrv, config=NO_RETRIES) as producer:
        with pytest.raises(NotTheMaster):
            await producer.send(Message("orders", b"1"), timeout=1.0)
    assert 2 <= sum(each.refused for each in replicas.refusals) <= 12


async def test_sends_wait_for_a_set_without_master_longer_than_for_a_broker(replicas):
    master = await replicas.start()
    replica = await replicas.refusing(None)
    await replicas.register(master, epoch=1)
    await replicas.register(replica, broker_id=2, epoch=1)
    async with AsyncProducer("g", replicas.namesrv, config=SHORT) as producer:
        await producer.send(Message("orders", b"1"))
        await replicas.unregister(master, epoch=1)
        await learns(producer, None)
        waiting = [producer.send_soon(Message("orders", b"2")), producer.send_soon(Message("orders", b"3"))]
        waiting.append(asyncio.ensure_future(producer.send_one_way(Message("orders", b"4"))))
        with pytest.raises(Unavailable, match="broker-a"):
            await producer.send(Message("orders", b"late"), timeout=0.3)
        with pytest.raises(Unavailable, match="orders"):
            await producer.request(Message("orders", b"late"), timeout=0.3)
        assert not any(each.done() for each in waiting)
        await replicas.register(master, epoch=2)
        await asyncio.gather(*waiting)
        assert len(await producer.queues("orders")) == 2
        await producer.send(Message("orders", b"5"))
    assert {b"1", b"2", b"3", b"5"} <= {*replicas.stored(0)}


async def test_requests_at_a_silent_master_are_sent_to_its_successor(replicas):
    old, new = await replicas.start(linked=True), await replicas.start()
    await replicas.register(old, epoch=1)
    async with AsyncProducer("g", replicas.namesrv, config=NO_RETRIES) as producer:
        await producer.send(Message("orders", b"1"))
        replicas.links[0].requests.pause()
        sends = [producer.send_soon(Message("orders", b"%d" % n)) for n in range(2, 5)]
        sends.append(asyncio.ensure_future(producer.send(Message("orders", b"5"), ordering_key="k")))
        await asyncio.sleep(0.2)
        await replicas.register(new, epoch=2)
        await asyncio.wait_for(asyncio.gather(*sends), PATIENCE_SECONDS)
    assert sorted(replicas.stored(1)) == [b"2", b"3", b"4", b"5"]


async def test_also_without_retries_a_message_whose_reply_is_lost_is_stored_twice(replicas):
    old = await replicas.start(linked=True)
    await replicas.register(old, epoch=1)
    async with AsyncProducer("g", replicas.namesrv, config=NO_RETRIES) as producer:
        await producer.send(Message("orders", b"1"))
        replicas.links[0].answers.pause()
        sending = producer.send_soon(Message("orders", b"2"))
        await until(lambda: b"2" in replicas.stored(0))
        await replicas.register(await replicas.start(copy_of=0), epoch=2)
        replicas.links[0].cut()
        await asyncio.wait_for(sending, PATIENCE_SECONDS)
    assert replicas.stored(1).count(b"2") == 2


async def test_requests_at_a_silent_master_without_successor_fail_at_their_timeout(replicas):
    await replicas.register(await replicas.start(linked=True), epoch=1)
    async with AsyncProducer("g", replicas.namesrv, config=NO_RETRIES) as producer:
        await producer.send(Message("orders", b"1"))
        replicas.links[0].requests.pause()
        with pytest.raises(DeadlineExceeded, match="did not answer"):
            await producer.send(Message("orders", b"2"), timeout=0.3)
        assert producer.in_flight == 0
        replicas.links[0].requests.resume()


async def test_a_former_master_that_registers_late_is_not_sent_to(replicas):
    old, new = await replicas.start(), await replicas.start()
    await replicas.register(old, epoch=1)
    async with AsyncProducer("g", replicas.namesrv, config=NO_RETRIES) as producer:
        await producer.send(Message("orders", b"1"))
        await replicas.register(new, epoch=2)
        await learns(producer, new)
        with pytest.raises(Exception, match="no longer the master"):
            await replicas.register(old, epoch=1)
        await asyncio.sleep(0.25)
        await producer._cluster.refresh_all()
        await producer.send(Message("orders", b"2"))
    assert (replicas.stored(0), replicas.stored(1)) == ([b"1"], [b"2"])


async def test_of_two_name_servers_the_one_that_knows_the_new_master_is_believed(replicas, tmp_path):
    old, new = await replicas.start(), await replicas.start()
    async with replica_set(tmp_path / "other") as behind:
        await replicas.register(old, epoch=1)
        await behind.register(old, epoch=1)
        namesrv = f"{replicas.namesrv};{behind.namesrv}"
        async with AsyncProducer("g", namesrv, config=NO_RETRIES) as producer:
            producer._cluster.name_servers._current = 1  # the one that stays behind
            await producer.send(Message("orders", b"1"))
            replicas.kill(0)
            await replicas.register(new, epoch=2)
            await producer.send(Message("orders", b"2"))
    assert replicas.stored(1) == [b"2"]


async def test_a_name_server_that_knows_no_master_takes_none_away(replicas, tmp_path):
    master = await replicas.start()
    async with replica_set(tmp_path / "other") as behind:
        await replicas.register(master, epoch=2)
        await behind.register("127.0.0.1:1", epoch=2)
        await behind.register(master, broker_id=2, epoch=2)
        await behind.unregister("127.0.0.1:1", epoch=2)
        namesrv = f"{replicas.namesrv};{behind.namesrv}"
        async with AsyncProducer("g", namesrv, config=NO_RETRIES) as producer:
            producer._cluster.name_servers._current = 0
            await producer.send(Message("orders", b"1"))
            for _ in range(3):
                await producer._cluster.refresh("orders")
                await asyncio.sleep(0.25)
                assert producer._cluster.routes.find("orders").master("broker-a") == master


async def test_a_set_without_master_keeps_the_ledger_of_batch_transactions(replicas):
    await replicas.register("10.0.0.1:10911", epoch=1)
    await replicas.register("10.0.0.2:10911", broker_id=2, epoch=1)
    async with AsyncRunProducer("g", replicas.namesrv) as producer:
        await replicas.unregister("10.0.0.1:10911", epoch=1)
        assert await producer.cluster.masters() == {}
        assert await find_ledger(producer.cluster, None) == "broker-a"
        assert await find_ledger(producer.cluster, "broker-a") == "broker-a"


async def test_a_request_that_has_waited_for_a_master_waits_for_its_reply(replicas):
    master, replica = await replicas.start(), await replicas.refusing(None)
    await replicas.register(master, epoch=1)
    await replicas.register(replica, broker_id=2, epoch=1)
    config = replace(SHORT, failover_seconds=2 * PATIENCE_SECONDS)
    async with AsyncProducer("g", replicas.namesrv, config=config) as producer:
        await producer.queues("orders")
        await replicas.unregister(master, epoch=1)
        await learns(producer, None)
        requesting = asyncio.ensure_future(producer.request(Message("orders", b"1")))
        await asyncio.sleep(SHORT.timeout)
        await replicas.register(master, epoch=2)
        await until(lambda: b"1" in replicas.stored(0) and not producer.in_flight)
        await asyncio.sleep(0.05)
        assert not requesting.done()
        requesting.cancel()
