"""Tables that follow the log in a replica set: equal at all replicas, on their disks, and right after a takeover."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from concurrent.futures import Future
from pathlib import Path

import pytest
from tests.broker.replication.replica_sets import ReplicaSet, replica_set

from pyromq import Message
from pyromq.broker.delays.delay_levels import DeliverySearch
from pyromq.broker.replication.replica_server import ReplicaServer
from pyromq.client.producer.async_producer import AsyncProducer
from pyromq.clock import SystemClock
from pyromq.errors import ResponseCode
from pyromq.message import MessageQueue
from pyromq.net.channel import connect
from pyromq.remoting.bodies import GroupConfig, LockedQueues, QueueLock, WireQueue, decode_body, encode_body
from pyromq.remoting.command import Response
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.header import Header
from pyromq.remoting.headers import (
    CreateTopic,
    DeleteTopic,
    LockQueues,
    SaveBrokerSettings,
    SaveGroup,
    UpdateConsumerOffset,
)

QUEUE = MessageQueue("payments", "orders", 0)


async def ask(server: ReplicaServer, header: Header, body: bytes = b"") -> Response:
    channel = await connect(server.broker.address, Dispatcher(), SystemClock())
    try:
        return await channel.call(header, body, timeout=30)
    finally:
        await channel.close()


def topic(name: str, queues: int = 2) -> CreateTopic:
    return CreateTopic(
        name, default_topic="TBW102", read_queues=queues, write_queues=queues, permission=6, filter_type="SINGLE_TAG"
    )


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[ReplicaSet]:
    async with replica_set(tmp_path) as found:
        yield found


@pytest.fixture
async def two(replicas: ReplicaSet) -> ReplicaSet:
    for number in (1, 2):
        await replicas.start(number)
    await replicas.until(lambda: replicas.in_sync == [1, 2])
    return replicas


def both(replicas: ReplicaSet) -> tuple[ReplicaServer, ReplicaServer]:
    """Return the master and the follower."""
    master = replicas.master_server
    assert master is not None
    return master, next(each for each in replicas.servers.values() if each is not master)


async def take_over(replicas: ReplicaSet) -> ReplicaServer:
    """Stop the master; return the new one."""
    master, follower = both(replicas)
    await replicas.stop(master.number)
    await replicas.until(lambda: follower.broker.role.is_master)
    return follower


async def test_topics_groups_and_settings_are_on_the_disk_of_the_follower_when_the_master_answers(
    two: ReplicaSet,
) -> None:
    master, follower = both(two)
    (await ask(master, topic("invoices"))).check()
    (await ask(master, SaveGroup(), encode_body(GroupConfig(name="billing", retry_max_times=3)))).check()
    (await ask(master, SaveBrokerSettings(), b"brokerPermission=4")).check()
    config = follower.config.data / "config"
    assert '"invoices"' in (config / "topics.json").read_text()
    assert '"billing"' in (config / "subscriptionGroup.json").read_text()
    assert "brokerPermission=4" in (config / "broker.properties").read_text()
    ours, theirs = master.broker, follower.broker
    assert theirs.topics.table() == ours.topics.table()
    assert theirs.groups.table() == ours.groups.table()
    assert theirs.config.permission == ours.config.permission == 4


async def test_a_change_that_the_followers_disk_refuses_is_not_confirmed(two: ReplicaSet) -> None:
    master, follower = both(two)
    file = follower.config.data / "config" / "topics.json"
    file.unlink()
    (file / "in the way").mkdir(parents=True)
    reply = await ask(master, topic("invoices"))
    assert reply.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    assert "in force and on the master's disk, but not confirmed within 3 s: in sync: 1, asked for: 2" in reply.remark
    assert follower.replica.following is None
    assert '"invoices"' in (master.config.data / "config" / "topics.json").read_text()


async def test_a_topic_that_a_send_creates_is_at_the_follower_with_its_first_message(two: ReplicaSet) -> None:
    _, follower = both(two)
    async with AsyncProducer("g", two.namesrv) as producer:
        await producer.send(Message("made-by-a-send", b"1"))
    assert follower.broker.topics.find("made-by-a-send") is not None
    assert "made-by-a-send" in (follower.config.data / "config" / "topics.json").read_text()


async def test_nothing_is_confirmed_while_the_follower_writes_a_table(two: ReplicaSet) -> None:
    _, follower = both(two)
    async with AsyncProducer("g", two.namesrv) as producer:
        await producer.send(Message("made-by-a-send", b"1"))
        saving: Future[None] = Future()
        follower._tables.taken._saving.add(saving)
        sending = asyncio.ensure_future(producer.send(Message("made-by-a-send", b"2")))
        end = follower.broker.store.max_log_offset
        await two.until(lambda: follower.broker.store.max_log_offset > end)
        await asyncio.sleep(0.2)  # several times the time between two reports
        assert not sending.done()
        follower._tables.taken._saving.discard(saving)
        await sending


async def test_a_new_follower_gets_all_tables(replicas: ReplicaSet) -> None:
    master = await replicas.start(1, min_in_sync=1)
    await replicas.until(lambda: replicas.master_server is master)
    (await ask(master, topic("invoices"))).check()
    await ask(master, UpdateConsumerOffset("billing", "invoices", 0, 0))
    other = await replicas.start(2, min_in_sync=1)
    await replicas.until(lambda: replicas.in_sync == [1, 2])
    await replicas.until(lambda: other.broker.offsets.find("billing", "invoices", 0) == 0)
    assert other.broker.topics.table() == master.broker.topics.table()


async def test_consumer_offsets_follow_and_none_is_behind_the_end_of_its_queue(two: ReplicaSet) -> None:
    master, follower = both(two)
    (await ask(master, topic("payments", 1))).check()
    async with AsyncProducer("g", two.namesrv) as producer:
        for number in range(20):
            await producer.send(Message("payments", b"%d" % number))
    await ask(master, UpdateConsumerOffset("billing", "payments", 0, 20))
    await two.until(lambda: follower.broker.offsets.find("billing", "payments", 0) == 20)
    await ask(master, UpdateConsumerOffset("billing", "payments", 0, 15))
    await ask(master, UpdateConsumerOffset("other", "payments", 0, 999))
    await two.until(lambda: follower.broker.offsets.find("other", "payments", 0) == 20)
    assert follower.broker.offsets.find("billing", "payments", 0) == 15
    master.broker.offsets.remove_group("billing")
    await two.until(lambda: follower.broker.offsets.find("billing", "payments", 0) is None)


async def test_a_deleted_topic_has_no_queues_at_the_follower_and_begins_again_at_0(two: ReplicaSet) -> None:
    master, follower = both(two)
    (await ask(master, topic("payments", 2))).check()
    async with AsyncProducer("g", two.namesrv) as producer:
        for number in range(20):
            await producer.send(Message("payments", b"%d" % number))
        assert sum(follower.broker.store.next_offset("payments", queue) for queue in (0, 1)) == 20
        (await ask(master, DeleteTopic("payments"))).check()
        await two.until(lambda: not any(follower.broker.store.next_offset("payments", queue) for queue in (0, 1)))
        (await ask(master, topic("payments", 2))).check()
        await producer.send(Message("payments", b"new"), queue=QUEUE)
    await two.until(lambda: follower.broker.store.next_offset("payments", 0) == 1)
    assert follower.broker.store.next_offset("payments", 1) == 0


async def test_a_follower_that_was_away_during_a_deletion_drops_the_old_entries(replicas: ReplicaSet) -> None:
    for number in (1, 2):
        await replicas.start(number, min_in_sync=1)
    await replicas.until(lambda: replicas.in_sync == [1, 2])
    master, follower = both(replicas)
    (await ask(master, topic("payments", 2))).check()
    async with AsyncProducer("g", replicas.namesrv) as producer:
        for number in range(20):
            await producer.send(Message("payments", b"%d" % number))
        await replicas.stop(follower.number)
        (await ask(master, DeleteTopic("payments"))).check()
        (await ask(master, topic("payments", 2))).check()
        await producer.send(Message("payments", b"new"), queue=QUEUE)
    follower = await replicas.start(follower.number, min_in_sync=1)
    await replicas.until(lambda: replicas.in_sync == [1, 2])
    store = follower.broker.store
    await replicas.until(lambda: [store.next_offset("payments", queue) for queue in (0, 1)] == [1, 0])


async def test_after_a_takeover_another_client_gets_a_lock_only_when_its_time_is_over(two: ReplicaSet) -> None:
    master, follower = both(two)

    async def locked(server: ReplicaServer, client: str) -> int:
        body = encode_body(QueueLock(group="g", client_id=client, queues=[WireQueue.of(QUEUE)]))
        reply = (await ask(server, LockQueues(), body)).check()
        return len(decode_body(LockedQueues, reply.body).queues)

    assert await locked(master, "first") == 1
    refused = await ask(follower, LockQueues(), encode_body(QueueLock(group="g", client_id="first")))
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert master.broker.address in refused.remark
    locks = follower.broker.queue_locks
    await two.until(lambda: bool(locks.holders("g")))
    await take_over(two)
    assert await locked(follower, "second") == 0
    assert await locked(follower, "first") == 1
    assert 0 < locks.holders("g")[QUEUE][1] < 60


async def test_a_follower_deletes_log_files_up_to_the_masters_first_byte(two: ReplicaSet) -> None:
    master, follower = both(two)
    (await ask(master, topic("payments", 1))).check()
    async with AsyncProducer("g", two.namesrv) as producer:
        for _ in range(30):
            await producer.send(Message("payments", os.urandom(100_000)))
    ours, theirs = master.broker.store, follower.broker.store
    assert theirs.retention.expire_now(0) == 0
    search = DeliverySearch(theirs, {}, 0)  # as the follower's own, which may not have begun when files are deleted
    await two.until(lambda: ours.confirmed_end == ours.max_log_offset)
    assert ours.retention.expire_now(0) > 0
    await two.until(lambda: follower.broker.role.log_needed_from == ours.min_log_offset)
    theirs.retention.expire_now()
    assert theirs.min_log_offset == ours.min_log_offset
    assert search.advance()
    assert (await take_over(two)).broker.store.min_log_offset == theirs.min_log_offset
