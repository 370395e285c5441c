"""Offsets in a store of the application's own: the one of docs/offset-store.md, with consumers of every kind."""

import asyncio
import re
import sqlite3
import threading
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_SECONDS, wait_until

from pyromq import Consumer, Message, MessageQueue, OffsetStore, PullConsumer
from pyromq.client.client_config import ConsumeFrom, ConsumerConfig
from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.client.consumer.group_offsets import OwnOffsets
from pyromq.client.consumer.pull.lite_pull_consumer import AsyncPullConsumer
from pyromq.clock import SystemClock
from pyromq.errors import DeadlineExceeded, StoreError, UsageError
from pyromq.testing import BlockingCluster

PAGE = Path(__file__).parents[3] / "docs" / "offset-store.md"
EXAMPLE = next(code for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "sqlite3" in code)
A, B, C = (MessageQueue("orders", "broker-a", number) for number in range(3))
OFTEN = {"commit_seconds": 0.01, "auto_commit_seconds": 0.01, "retry_seconds": 0.05}
BEGINNING = {"consume_from": ConsumeFrom.FIRST, **OFTEN}

names = {}
exec(EXAMPLE[: EXAMPLE.index("def bill")], names)
SqliteOffsets = names["SqliteOffsets"]


@pytest.fixture
def store(tmp_path) -> OffsetStore:
    return SqliteOffsets(tmp_path / "own.db")


class Faulty:
    """A store before another one that fails when it is told to, as a database that is away."""

    def __init__(self, store):
        self.store = store
        self.fails = set()

    def load(self, group, queues):
        self._check("load")
        return self.store.load(group, queues)

    def save(self, group, offsets):
        self._check("save")
        self.store.save(group, offsets)

    def _check(self, function):
        if function in self.fails:
            raise sqlite3.OperationalError("database is locked")


def total(store, group="workers", topic="orders"):
    """How many messages are consumed, by the store."""
    return sum(store.load(group, [MessageQueue(topic, "broker-a", number) for number in range(16)]).values())


def told(cluster, group="workers"):
    """What the broker knows of the group."""
    return cluster.broker.offsets.of_topic(group, "orders")


@pytest.mark.parametrize("orderly", [False, True])
async def test_push_consumers_go_on_by_their_store_and_tell_brokers_nothing(
    cluster, send, consuming, new_seen, store, orderly, until
):
    first, second = new_seen(), new_seen()
    async with consuming(first, orderly=orderly, offset_store=store, **BEGINNING):
        for number in range(24):  # one after the other: pulls follow that could tell how far it is
            await send([number])
            await first.wait(number + 1)
        await until(lambda: total(store) == 24)
    await send(range(24, 28))
    async with consuming(second, orderly=orderly, offset_store=store, **BEGINNING):
        await second.wait(4)

    assert sorted(first.bodies + second.bodies) == list(range(28))
    assert total(store) == 28
    assert not told(cluster)


async def test_what_a_broker_knows_of_the_group_is_not_read(cluster, send, consuming, new_seen, store):
    first, second = new_seen(), new_seen()
    await send(range(8))
    async with consuming(first, **BEGINNING):
        await first.wait(8)
    async with consuming(second, offset_store=store, **BEGINNING):
        await second.wait(8)
    assert sorted(second.bodies) == list(range(8))
    assert sum(told(cluster).values()) == 8


async def test_after_a_crash_what_was_not_saved_comes_again(send, consuming, new_seen, store, until):
    first, second = new_seen(), new_seen()
    crashing = Faulty(store)
    await send(range(8))
    async with consuming(first, offset_store=crashing, **BEGINNING):
        await until(lambda: total(store) == 8)
        crashing.fails = {"save"}
        await send(range(8, 12))
        await first.wait(12)
    async with consuming(second, offset_store=store, **BEGINNING):
        await second.wait(4)
    assert sorted(second.bodies) == [8, 9, 10, 11]


async def test_where_a_group_begins_is_saved_before_anything_is_consumed(send, consuming, new_seen, store, until):
    first, second = new_seen(), new_seen()
    await send(range(8))
    crashing = Faulty(store)
    async with consuming(first, offset_store=crashing, consume_from=ConsumeFrom.LAST) as consumer:
        await until(lambda: len(consumer.assignment) == 4)
        crashing.fails = {"save"}
    await send(range(8, 12))
    async with consuming(second, offset_store=store, consume_from=ConsumeFrom.LAST):
        await second.wait(4)
    assert sorted(second.bodies) == [8, 9, 10, 11]


@pytest.mark.parametrize("orderly", [False, True])
async def test_members_hand_queues_over_through_the_store(send, consuming, new_seen, store, orderly, until):
    first, second = new_seen(), new_seen()
    settings = {**BEGINNING, "orderly": orderly, "offset_store": store, "commit_seconds": 3600}
    await send(range(40))
    async with consuming(first, **settings) as leaving:
        await first.wait(40)
        async with consuming(second, **settings) as joined:
            await until(lambda: len(joined.assignment) == len(leaving.assignment) == 2)
            given = {queue: 10 for queue in joined.assignment}
            assert store.load("workers", joined.assignment) == given  # saved when given away, not by and by
            await send(range(40, 80))
            await until(lambda: {*first.bodies, *second.bodies} == {*range(80)})
            assert len(second.messages) >= 20  # without order, a member that waits too long takes what is still held
    assert total(store) == 80


@pytest.mark.parametrize("function", ["load", "save"])
@pytest.mark.parametrize("orderly", [False, True])
async def test_a_queue_waits_until_its_beginning_is_loaded_or_saved(
    send, consuming, seen, store, until, orderly, function, caplog
):
    away = Faulty(store)
    away.fails = {function}
    await send(range(8))
    async with consuming(seen, orderly=orderly, offset_store=away, **BEGINNING):
        await until(lambda: f"{function} of Faulty failed: OperationalError: database is locked" in caplog.text)
        assert "cannot be consumed yet" in caplog.text
        assert not seen.messages
        away.fails = set()
        await seen.wait(8)
    assert sorted(seen.bodies) == list(range(8))


async def test_what_cannot_be_saved_goes_with_the_next_save(send, consuming, seen, store, until, caplog):
    away = Faulty(store)
    async with consuming(seen, offset_store=away, **BEGINNING) as consumer:
        await send(range(8))
        await until(lambda: len(consumer.assignment) == 4)
        away.fails = {"save"}
        await send(range(8, 16))
        await seen.wait(16)
        await until(lambda: "not committed yet" in caplog.text and "save of Faulty failed" in caplog.text)
        away.fails = set()
        await until(lambda: total(store) == 16)
    assert sorted(seen.bodies) == list(range(16))


async def test_broadcast_consumers_use_it_instead_of_files(cluster, send, consuming, new_seen, store, tmp_path):
    settings = {**BEGINNING, "broadcast": True, "offset_store": store, "offsets_folder": tmp_path / "files"}
    first, second = new_seen(), new_seen()
    await send(range(8))
    async with consuming(first, **settings):
        await first.wait(8)
    await send(range(8, 12))
    async with consuming(second, **settings):
        await second.wait(4)
    assert sorted(second.bodies) == [8, 9, 10, 11]
    assert not (tmp_path / "files").exists()
    assert not told(cluster)


@pytest.mark.parametrize("orderly", [False, True])
async def test_where_an_administrator_moves_a_group_is_saved(cluster, send, consuming, seen, store, until, orderly):
    await send(range(6), key="k")
    async with consuming(seen, orderly=orderly, offset_store=store, **BEGINNING):
        await until(lambda: total(store) == 6)
        await (await cluster.admin()).reset_offset("workers", "orders", 0)
        await seen.wait(12)
        await until(lambda: total(store) == 6)
    assert not told(cluster)


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_topic_made_again_is_saved_from_its_beginning(
    cluster, send, consuming, new_seen, store, until, orderly
):
    seen, admin = new_seen(), await cluster.admin()
    await admin.create_topic("orders", queues=4)
    await send(range(20))
    async with consuming(seen, orderly=orderly, offset_store=store, **BEGINNING):
        await until(lambda: total(store) == 20)
        await admin.delete_topic("orders")
        await until(lambda: total(store) == 0)
        await admin.create_topic("orders", queues=4)
        await send(range(20, 28))
        await seen.wait(28)
        await until(lambda: total(store) == 8)


@asynccontextmanager
async def polling(cluster, store, group="workers", **config):
    async with AsyncPullConsumer(
        group, cluster.namesrv, config=ConsumerConfig(offset_store=store, **BEGINNING | config)
    ) as consumer:
        yield consumer


async def polled(consumer, count):
    found = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(found) < count:
            found += [int(message.body) for message in await consumer.poll(0.05)]
    return sorted(found)


async def test_pull_consumers_commit_to_their_store(cluster, send, store):
    sent = await send(range(8))
    queue = sent[0].queue
    async with polling(cluster, store, auto_commit=False) as consumer:
        await consumer.assign(await consumer.queues("orders"))
        assert await polled(consumer, 8) == list(range(8))
        await consumer.commit()
        assert total(store) == 8
        await consumer.commit({queue: 1})
        assert await consumer.committed(queue) == store.load("workers", [queue])[queue] == 1
        with pytest.raises(UsageError, match="the queue ends at 2"):
            await consumer.commit({queue: 3})
    async with polling(cluster, store) as consumer:
        await consumer.assign([queue])
        assert len(await polled(consumer, 1)) == 1
    assert total(store) == 8
    assert not told(cluster)


async def test_a_pull_consumer_without_auto_commit_saves_what_it_is_told(cluster, send, store):
    await send(range(8))
    async with polling(cluster, store, auto_commit=False) as consumer:
        await consumer.assign(await consumer.queues("orders"))
        await polled(consumer, 8)
    assert total(store) == 0
    assert store.load("workers", [A]) == {}


async def test_members_that_poll_hand_queues_over_through_the_store(cluster, send, store, until):
    await send(range(40))
    async with polling(cluster, store) as first:
        first.subscribe("orders")
        found = await polled(first, 40)
        async with polling(cluster, store) as second:
            second.subscribe("orders")
            async with asyncio.timeout(PATIENCE_SECONDS):
                while len(second.assignment) != 2 or len(first.assignment) != 2:
                    found += [int(message.body) for message in await first.poll(0.01)]
            await send(range(40, 80))
            async with asyncio.timeout(PATIENCE_SECONDS):
                while {*found} != {*range(80)}:  # some twice: a member that waits too long takes what is still held
                    messages = await second.poll(0.01) + await first.poll(0.01)
                    found += [int(message.body) for message in messages]
    assert total(store) == 80


async def test_assigning_fails_with_the_store_and_works_after_it(cluster, send, store):
    await send(range(4))
    away = Faulty(store)
    away.fails = {"load"}
    async with polling(cluster, away) as consumer:
        queues = await consumer.queues("orders")
        with pytest.raises(StoreError, match=r"load of Faulty failed: OperationalError: database is locked"):
            await consumer.assign(queues)
        assert consumer.assignment == []
        away.fails = set()
        await consumer.assign(queues)
        assert await polled(consumer, 4) == list(range(4))
        away.fails = {"save"}
        with pytest.raises(StoreError, match="save of Faulty failed"):
            await consumer.commit()
        away.fails = set()
        await consumer.commit()
        assert total(store) == 4


async def test_a_pull_consumer_saves_the_beginning_of_a_topic_made_again(cluster, send, store, until):
    admin = await cluster.admin()
    await admin.create_topic("orders", queues=4)
    await send(range(20))
    async with polling(cluster, store, long_poll_seconds=0.0) as consumer:
        consumer.subscribe("orders")
        await polled(consumer, 20)
        await consumer.commit()
        cluster.broker.topics.delete("orders")  # as a broker 4.9 does, which tells nobody
        cluster.broker.store.delete_topic("orders")
        await until(lambda: [consumer.position(queue) for queue in consumer.assignment] == [0] * 4)
        await admin.create_topic("orders", queues=4)
        await consumer.commit()
        assert total(store) == 0


async def test_stores_see_brokers_names(cluster, consuming, seen, store, until):
    producer = await cluster.producer()
    await producer.send(Message("shop%orders", b"1"))
    async with consuming(seen, offset_store=store, namespace="shop", **BEGINNING):
        await until(lambda: total(store, "shop%workers", "shop%orders") == 1)
        retries = MessageQueue("%RETRY%shop%workers", "broker-a", 0)
        await until(lambda: store.load("shop%workers", [retries]) == {retries: 0})
    assert total(store, "workers") == 0


class Counting:
    """A store that stands still while it is held, and keeps what it was called with."""

    def __init__(self):
        self.calls, self.running, self.most = [], 0, 0
        self.go_on = threading.Event()
        self.go_on.set()

    def load(self, group, queues):
        self._note(sorted(queues))
        return {}

    def save(self, group, offsets):
        self._note(offsets)

    def _note(self, call):
        self.running += 1
        self.most = max(self.most, self.running)
        assert threading.current_thread() is not threading.main_thread()
        assert self.go_on.wait(PATIENCE_SECONDS)
        self.calls.append(call)
        self.running -= 1


@pytest.fixture
async def client(cluster):
    client = ClusterClient(cluster.namesrv, SystemClock())
    await client.start()
    yield client
    await client.close()


async def test_queues_asked_for_at_once_are_one_call(client):
    store = Counting()
    offsets = OwnOffsets("workers", client, ConsumerConfig(timeout=PATIENCE_SECONDS), store)
    await asyncio.gather(*(offsets.stored(queue) for queue in (A, B, C)))
    await asyncio.gather(offsets.save({A: 1}), offsets.save({B: 2}))
    assert store.calls == [[A, B, C], {A: 1, B: 2}]


async def test_a_store_that_stands_still_gets_one_call_with_the_latest_afterwards(client, until):
    store = Counting()
    offsets = OwnOffsets("workers", client, ConsumerConfig(timeout=0.05), store)
    store.go_on.clear()
    for offset in range(1, 4):
        failures = await offsets.save({A: offset, B: 7} if offset == 2 else {A: offset})
        assert isinstance(failures[A], DeadlineExceeded)
        assert str(failures[A]) == "save of Counting took longer than 0.05 s"
    with pytest.raises(DeadlineExceeded, match="load of Counting took longer"):
        await offsets.stored(C)
    store.go_on.set()
    await until(lambda: len(store.calls) == 3)
    assert store.calls == [{A: 1}, {A: 3, B: 7}, [C]]
    assert store.most == 1


async def test_a_cancelled_save_ends_before_the_next_begins(client, until):
    store = Counting()
    offsets = OwnOffsets("workers", client, ConsumerConfig(timeout=PATIENCE_SECONDS), store)
    store.go_on.clear()
    first = asyncio.ensure_future(offsets.save({A: 1}))
    await until(lambda: store.running)
    first.cancel()
    second = asyncio.ensure_future(offsets.save({A: 2}))
    await asyncio.sleep(0)
    store.go_on.set()
    await second
    assert store.calls == [{A: 1}, {A: 2}]
    assert store.most == 1


@pytest.mark.parametrize("found", [None, {A: -1}, {A: "5"}, {A: True}, [(A, 5)]])
async def test_what_is_no_table_of_offsets_is_refused(client, store, found):
    store.load = lambda group, queues: found
    with pytest.raises(StoreError, match="load of SqliteOffsets returned"):
        await OwnOffsets("workers", client, ConsumerConfig(), store).stored(A)


class Async:
    async def load(self, group, queues): ...
    async def save(self, group, offsets): ...


@pytest.mark.parametrize(("store", "text"), [(object(), "has no method load"), (Async(), "load is async")])
def test_what_is_no_store_is_refused_at_once(store, text):
    with pytest.raises(UsageError, match=rf"offset_store=<.*{text}"):
        ConsumerConfig(offset_store=store)


def test_the_page_s_example_runs_as_it_stands_there(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    with BlockingCluster() as cluster:
        monkeypatch.setenv("NAMESRV_ADDR", cluster.namesrv)
        cluster.producer().send(Message("orders", b"tea"))
        names = {"__name__": "example"}
        exec(EXAMPLE.replace("consumer.run()", "consumer.start()"), names)
        consumer, printed = names["consumer"], []
        assert isinstance(consumer, Consumer)

        def shown():
            printed.append(capsys.readouterr().out)
            return "".join(printed)

        wait_until(lambda: shown() == "tea\n")
        consumer.close()
        assert total(names["SqliteOffsets"]("billing.db"), "billing") == 1
        with PullConsumer("billing", config=names["config"]) as reader:
            queues = reader.queues("orders")
            assert sorted(reader.committed(queue) for queue in queues) == [0, 0, 0, 1]
