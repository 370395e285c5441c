"""A follower that has some of its master's log becomes the master: nothing is lost, nothing is delivered twice."""

import asyncio
from dataclasses import replace

import pytest
from tests.broker.batches.test_batch_transaction_processor import Batches
from tests.broker.timers import timed
from tests.broker.transactions.transactions import COMMIT

from pyromq.broker.batches import batch_publishing
from pyromq.broker.broker import Broker
from pyromq.broker.replication.slave_tables import SlaveTables
from pyromq.broker.role import BrokerRole
from pyromq.names import HALF_TOPIC, OP_TOPIC
from pyromq.remoting.bodies import GroupConfig, encode_body
from pyromq.remoting.headers import SaveGroup, UpdateConsumerOffset

DELAYED = "DELAY\x011"  # delay level 1: one second


class Pair:
    """A master and a follower; the test ships the log and copies the tables."""

    def __init__(self, master, follower, clock):
        self.master, self.follower, self.clock = master, follower, clock

    def ship(self, to=None):
        """Send the follower the master's log up to a log offset, in small pieces; None: all of it."""
        end = self.master.store.max_log_offset if to is None else to
        store = self.follower.store
        while (at := store.written_end) < end:
            store.append_bytes(at, bytes(self.master.store.views(at, min(end - at, 1_000))))

    async def copy_tables(self):
        await self._tables.copy()

    @property
    def _tables(self):
        if not hasattr(self, "_made"):
            self._made = SlaveTables(self.follower._state)
        return self._made

    def count(self, topic="orders"):
        """The number of messages of a topic at the follower."""
        store = self.follower.store
        return sum(store.max_offset(topic, queue_id) for queue_id in store.queue_ids(topic))

    async def restart_follower(self):
        await self.follower.__aexit__(None, None, None)
        self.follower = await Broker(self.follower.config, self.clock, role=BrokerRole(1)).__aenter__()
        self.follower.role.follow(self.master.address, None)


@pytest.fixture
async def pair(config, clock, tmp_path):
    folder = tmp_path / "follower"
    other = replace(config, data=folder, store=replace(config.store, root=folder))
    async with Broker(config, clock) as master:
        follower = await Broker(other, clock, role=BrokerRole(1)).__aenter__()
        follower.role.follow(master.address, None)
        pair = Pair(master, follower, clock)
        yield pair
        await pair.follower.__aexit__(None, None, None)


@pytest.fixture
async def orders(pair, caller_to):
    """A connection to the master, which has the topic orders."""
    caller = await caller_to(pair.master)
    await caller.create_topic("orders")
    return caller


async def pass_time(clock, seconds):
    for _ in range(round(seconds * 4)):
        await clock.advance(0.25)


# -- tables


async def test_topics_and_groups_are_copied_with_their_versions(pair, orders, caller_to):
    await orders.ask(SaveGroup(), encode_body(GroupConfig(name="c", retry_queues=3)))

    await pair.copy_tables()

    assert pair.follower.topics.table() == pair.master.topics.table()
    assert pair.follower.groups.table() == pair.master.groups.table()
    await pair.restart_follower()
    assert pair.follower.topics.table() == pair.master.topics.table()
    assert pair.follower.groups.table() == pair.master.groups.table()


async def test_consumer_offsets_never_exceed_the_followers_log(pair, orders):
    for body in (b"1", b"2", b"3"):
        await orders.send("orders", body)
    ends = [entry.log_offset for entry in pair.master.store.entries("orders", 0, 0, 3)]
    pair.ship(to=ends[2])
    await orders.ask(UpdateConsumerOffset(consumer_group="c", topic="orders", queue_id=0, commit_offset=3))
    await orders.ask(UpdateConsumerOffset(consumer_group="d", topic="orders", queue_id=0, commit_offset=1))

    await pair.copy_tables()
    assert (pair.follower.offsets.find("c", "orders", 0), pair.follower.offsets.find("d", "orders", 0)) == (2, 1)

    pair.ship()
    await pair.copy_tables()
    assert pair.follower.offsets.find("c", "orders", 0) == 3


async def test_tables_are_copied_3_s_after_the_start_and_each_10_s(pair, orders):
    async def seconds_until(topic):
        """Let time pass until the follower knows a topic; return the seconds of the clock."""
        began = pair.clock.monotonic()
        while pair.follower.topics.find(topic) is None:
            await pass_time(pair.clock, 0.25)
            for _ in range(20):  # sockets are read in real time
                await asyncio.sleep(0.001)
        return pair.clock.monotonic() - began

    assert 2.5 <= await seconds_until("orders") <= 4
    await orders.create_topic("later")
    assert 9 <= await seconds_until("later") <= 11


async def test_a_follower_keeps_its_log_as_long_as_its_master(pair, orders):
    await orders.send("orders")
    pair.ship()
    assert pair.follower.store.retention.keep_from() == 0  # the master's first byte is not known

    pair.follower.role.log_needed_from = 7
    assert pair.follower.store.retention.keep_from() == 7
    await pair.follower.promote()
    assert pair.follower.store.retention.keep_from() == pair.follower.store.max_log_offset


# -- delay levels


async def test_a_delayed_message_whose_delivery_is_not_here_is_delivered(pair, orders):
    await orders.send("orders", properties=DELAYED)
    pair.ship()
    await pass_time(pair.clock, 2)
    assert pair.master.store.max_offset("orders", 0) == 1
    await pair.copy_tables()  # the master's progress is ahead of the log here

    await pair.follower.promote()
    await pass_time(pair.clock, 2)

    assert pair.count() == 1


@pytest.mark.parametrize("copied", [True, False])
async def test_a_delayed_message_whose_delivery_is_here_is_not_delivered_again(pair, orders, copied):
    await orders.send("orders", properties=DELAYED)
    await pass_time(pair.clock, 2)
    pair.ship()
    if copied:
        await pair.copy_tables()

    await pair.follower.promote()
    await pass_time(pair.clock, 2)

    assert pair.count() == 1


async def test_progress_waits_until_the_log_has_reached_it(pair, orders):
    await orders.send("orders", properties=DELAYED)
    pair.ship()
    await pass_time(pair.clock, 2)
    await pair.copy_tables()
    assert pair.follower.delay_levels.offsets() == {}

    pair.ship()
    await pair.copy_tables()

    assert pair.follower.delay_levels.offsets() == {1: 1}


async def test_a_follower_delivers_nothing(pair, orders):
    await orders.send("orders", properties=DELAYED)
    await timed(orders, pair.clock, 1)
    pair.ship()
    end = pair.follower.store.max_log_offset

    await pass_time(pair.clock, 5)

    assert pair.follower.store.max_log_offset == end


# -- scheduled messages


async def test_a_scheduled_message_whose_delivery_is_not_here_is_delivered(pair, orders):
    await timed(orders, pair.clock, 2)
    pair.ship()
    await pass_time(pair.clock, 3)
    assert pair.master.store.max_offset("orders", 0) == 1

    await pair.follower.promote()
    await pass_time(pair.clock, 2)

    assert pair.count() == 1


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("kept_up", [0, 10])
async def test_a_scheduled_message_whose_delivery_is_here_is_not_delivered_again(pair, orders, kept_up, restarts):
    await timed(orders, pair.clock, 2)
    await timed(orders, pair.clock, 3_600, key="K2")
    pair.ship()
    await pass_time(pair.clock, 1)
    await pass_time(pair.clock, 2)
    pair.ship()
    await pass_time(pair.clock, kept_up)
    if restarts:
        await pair.restart_follower()
        pair.ship()

    await pair.follower.promote()
    await pass_time(pair.clock, 4)

    assert pair.count() == 1
    assert pair.follower.timers.index.pending == {"orders": 1}


# -- transactions


async def test_a_half_message_is_decided_at_the_new_master(pair, orders, transactions_of):
    producer = await transactions_of(pair.master)
    sent = await producer.send()
    pair.ship()
    await pair.copy_tables()
    await pair.follower.promote()
    at_new = await transactions_of(pair.follower)

    await at_new.end(sent, COMMIT)

    assert pair.count() == 1
    assert len(pair.follower.half_messages) == 0


async def test_a_decision_that_was_cut_between_its_two_records_does_not_take_effect_twice(
    pair, orders, transactions_of
):
    producer = await transactions_of(pair.master)
    sent = await producer.send()
    await producer.end(sent, COMMIT)
    (op,) = pair.master.store.entries(OP_TOPIC, 0, 0, 1)
    pair.ship(to=op.log_offset)
    await pair.copy_tables()
    assert len(pair.follower.half_messages) == 1

    await pair.follower.promote()

    assert len(pair.follower.half_messages) == 0
    assert (pair.count(), pair.follower.store.max_offset(OP_TOPIC, 0)) == (1, 1)


async def test_an_undecided_half_message_is_checked_at_the_new_master(pair, orders, transactions_of):
    producer = await transactions_of(pair.master)
    await producer.send()
    pair.ship()
    await pair.copy_tables()
    at_follower = await transactions_of(pair.follower)  # producers beat at slaves, too
    await pair.follower.promote()

    await at_follower.rounds(2)

    header, _ = await at_follower.checked.next()
    await at_follower.answer(header, COMMIT)
    assert pair.count() == 1
    assert pair.follower.store.max_offset(HALF_TOPIC, 0) > 1  # the check has made a copy


# -- batch transactions


@pytest.mark.parametrize("shipped", [0, 3, 4, 5, 8])
async def test_a_batch_that_was_cut_while_it_became_visible_is_completed_once(
    pair, orders, caller_to, monkeypatch, shipped
):
    monkeypatch.setattr(batch_publishing, "SLICE", 4)
    monkeypatch.setattr(batch_publishing, "MADE_SLICE", 4)
    at_master = Batches(orders, pair.clock)
    bodies = [str(number) for number in range(9)]
    await at_master.run(bodies)
    await at_master.commit({"a": 9})
    await pass_time(pair.clock, 1)
    ends = [entry.log_offset for entry in pair.master.store.entries("orders", 1, 0, 9)]
    assert len(ends) == 9
    pair.ship(to=ends[shipped])
    await pair.copy_tables()

    await pair.follower.promote()
    await pass_time(pair.clock, 1)

    at_new = Batches(await caller_to(pair.follower), pair.clock)
    assert await at_new.visible() == bodies
