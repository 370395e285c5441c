"""A broker whose log was cut delivers what only cut messages had delivered, and nothing twice."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from tests.broker.folders import moved_to
from tests.broker.timers import cancel, timed

from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerConfig
from pyromq.broker.replication.cut_progress import cut_log, lower_progress
from pyromq.broker.shared_state import SharedState
from pyromq.message import Property, StoredMessage
from pyromq.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from pyromq.remoting.headers import UpdateConsumerOffset
from pyromq.store.log_cut import LogCut
from pyromq.store.message_store import MessageStore
from pyromq.store.store_config import StoreConfig
from pyromq.testing import FakeClock
from pyromq.testing.simulated_disk import Killed, SimulatedDisk

COMMIT = 8
HOUR = 3600


def cut(config, end, epoch=5, *, finish=True):
    """Cut the log of a stopped broker's folder, as a replica does that joins another master."""
    store = MessageStore(config.store_config, FakeClock(), store_address=bytes(8))
    if finish:
        cut_log(store, LogCut(end, epoch), config.data)
    else:
        store.open(LogCut(end, epoch))
        store.close()


def records(config):
    """Return the messages of a stopped broker's log."""
    store = MessageStore(config.store_config, FakeClock(), store_address=bytes(8))
    store.open()
    found = [store.message_at(at) for at, _ in store.records_from(store.min_log_offset)]
    store.close()
    return found


@pytest.fixture
async def lived(config, clock, caller_to, transactions_of):
    """The settings of a broker that delivered delayed and timed messages, and committed transactions; and its log."""
    config = replace(config, transaction_timeout_ms=1_000)
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await caller.create_topic("orders")
        producer = await transactions_of(broker)
        for number in range(4):
            await caller.send("orders", b"delayed %d" % number, properties=f"DELAY\x01{1 + number % 2}")
            await timed(caller, clock, 3 + 2 * number, b"timed %d" % number, key=f"K{number}")
            half = await producer.send(b"half %d" % number)
            await clock.advance(2.0)
            if number != 2:
                await producer.end(half, COMMIT)
        sent = await timed(caller, clock, 9, b"cancelled", key="C")
        await timed(caller, clock, 4 * HOUR, b"timed far", key="F")
        await cancel(caller, sent.recall_handle)
        await caller.send("orders", b"delayed late", properties="DELAY\x013")
        await clock.advance(12.0)
        await caller.send("orders", b"last")
        await caller.ask(UpdateConsumerOffset(consumer_group="g", topic="orders", queue_id=0, commit_offset=9))
    return config, records(config), clock


def waiting(log):
    """Return bodies of delayed and timed messages, and of half messages, by what must come of them."""
    timed = {each.body for each in log if each.topic == TIMER_TOPIC and Property.TIMER_CANCELS not in each.properties}
    cancels = {each.properties[Property.UNIQUE_KEY] for each in log if Property.TIMER_CANCELS in each.properties}
    if "C" in cancels:
        timed.discard(b"cancelled")
    delayed = {each.body for each in log if each.topic == SCHEDULE_TOPIC}
    return Counter(timed | delayed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
async def test_after_any_cut_each_waiting_message_comes_once(lived, tmp_path, part):
    config, log, clock = lived
    assert waiting(log).total() == 10
    for number, first_cut in enumerate(log):
        if number % 4 != part:
            continue
        left = moved_to(config, tmp_path.with_name(f"{tmp_path.name}-{number}"))
        shutil.copytree(config.data, left.data)
        cut(left, first_cut.log_offset, finish=number % 3 > 0)  # otherwise the broker finishes it
        later = FakeClock(clock.now_ms())
        async with Broker(left, later) as broker:
            assert broker.store.cutting is None
            await later.advance(20.0)
            later.jump(5 * HOUR)
            await later.advance(20.0)
            await later.advance(20.0)
            assert broker.timers.index.pending == {}
            done = {each.body for each in log[:number] if each.topic == "orders"}
            undecided = {each.body for each in log[:number] if each.topic == HALF_TOPIC} - done
            assert len(broker.half_messages) == len(undecided), f"cut before record {number}"
            committed = broker.offsets.find("g", "orders", 0)
            ends = [each.queue_offset + 1 for each in log[:number] if (each.topic, each.queue_id) == ("orders", 0)]
            assert committed == min(9, max(ends, default=0))
        final = records(left)
        assert [each.body for each in final[:number]] == [each.body for each in log[:number]]
        came = Counter(each.body for each in final if each.topic == "orders" and each.body != b"last")
        halves = Counter(body for body in came.elements() if body.startswith(b"half"))
        assert came - halves == waiting(log[:number]), f"cut before record {number}"
        assert all(body in done and count == 1 for body, count in halves.items())
        shutil.rmtree(left.data)


class Life:
    """A broker's store with its delay levels and offsets, on a simulated disk."""

    def __init__(self, disk, cut=None, *, now_ms=1_700_000_000_000):
        config = BrokerConfig(Path("/data"), port=0, store=StoreConfig(Path("/data"), segment_bytes=1 << 16))
        self.clock = FakeClock(now_ms)
        state = SharedState(config, self.clock, disk)
        self.store, self.levels, self.offsets = state.store, state.delay_levels, state.offsets
        self.store.open(cut)
        lower_progress(self.store, config.data)
        self.offsets.load()
        self.levels.load()

    def delay(self, body):
        message = StoredMessage("orders", body, "DELAY\x011")
        assert self.levels.divert(message, message.properties)
        self.store.append(message)
        return message

    def deliver(self):
        self.clock.jump(2.0)
        while self.levels.deliver() == 0.0:
            pass

    def stop(self):
        self.store.close()
        self.levels.persist()
        self.offsets.persist()


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("power", [False, True])
def test_a_kill_at_any_write_of_a_cut_leaves_no_progress_ahead_of_the_log(power, every):
    disk = SimulatedDisk()
    life = Life(disk)
    for number in range(6):
        life.delay(b"%d" % number)
        if number != 3:
            life.deliver()
    last = life.delay(b"6")
    life.deliver()
    life.offsets.commit("g", "orders", 0, 7)
    life.stop()
    entry = life.store.entries("orders", 0, 3, 1)[0]  # 0, 1 and 2 are delivered before, and all wait before it
    kills, chance = 0, random.Random(1)
    while True:
        kills += 1
        left = disk.after_kill()
        left.kill_at = left.operations + kills * every
        try:
            Life(left, LogCut(entry.log_offset, 5)).stop()
            break
        except Killed:
            left = left.after_power_cut(chance) if power else left.after_kill()
        life = Life(left, now_ms=1_700_000_100_000)
        if life.store.max_log_offset > last.log_offset:
            life.stop()
            continue  # killed before the wish was on disk
        assert life.store.max_log_offset == entry.log_offset
        assert life.offsets.find("g", "orders", 0) == 3
        life.deliver()
        bodies = [life.store.message("orders", 0, offset).body for offset in range(life.store.max_offset("orders", 0))]
        assert bodies == [b"0", b"1", b"2", b"3", b"4"]
        life.stop()
    assert kills * every > 40


async def test_progress_that_no_cut_message_made_stays(lived, tmp_path):
    config, log, _ = lived
    before = json.loads((config.data / "config/delayOffset.json").read_text())
    cut(config, log[-1].log_offset)
    after = json.loads((config.data / "config/delayOffset.json").read_text())
    assert after["offsetTable"] == before["offsetTable"]
    assert after["logEnd"] <= log[-1].log_offset


async def test_after_a_cut_of_everything_no_progress_is_left(lived):
    config, _, clock = lived
    cut(config, 0)
    assert json.loads((config.data / "config/delayOffset.json").read_text())["offsetTable"] == {}
    assert list((config.data / "timers").glob("*.entries")) == []
    later = FakeClock(clock.now_ms())
    async with Broker(config, later) as broker:
        assert broker.store.max_log_offset == 0
        assert broker.offsets.find("CID_RMQ_SYS_TRANS", HALF_TOPIC, 0) in (None, 0)
