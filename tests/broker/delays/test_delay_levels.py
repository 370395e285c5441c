"""Delay levels: when messages come, in which order, what is stored meanwhile, and that no stop loses one."""

import asyncio
import errno
import json
import logging
from collections import Counter
from dataclasses import replace
from typing import NamedTuple

import pytest
from tests.broker.consuming.cold import LoadedAtOnce
from tests.broker.delays.full_log import leaves_errors, refuse
from tests.broker.folders import killed
from tests.broker.headers import batch_header, send_header

from pyromq.broker.broker import Broker
from pyromq.broker.delays.delay_levels import LONGEST_WAIT, DelayLevels
from pyromq.broker.put_message import PutMessage
from pyromq.broker.statistics import Statistics
from pyromq.errors import MessageRefused, StoreError, StoreNotWritable
from pyromq.message import StoredMessage
from pyromq.names import SCHEDULE_TOPIC
from pyromq.net.tasks import Alarm
from pyromq.record import BatchMember, decode_all, encode_batch
from pyromq.remoting.bodies import GroupConfig
from pyromq.remoting.headers import (
    AllDelayOffsets,
    BrokerState,
    MaxOffset,
    SendMessageResponse,
)
from pyromq.store.json_file import JsonFile
from pyromq.store.message_store import MessageStore, QueueEntry
from pyromq.store.queue.consume_queue import FILLER_SIZE
from pyromq.store.store_config import DELAY_LEVELS_MS


async def delay(caller, level, body=b"hello", *, queue_id=0, more=""):
    return await caller.send("orders", body, queue_id=queue_id, properties=f"DELAY\x01{level}{more}")


class Alone(NamedTuple):
    """A store with its levels, without a broker that looks at them all the time."""

    store: MessageStore
    levels: DelayLevels


def levels_of(store, config, clock):
    statistics = Statistics("c", clock)
    put_message = PutMessage(store, statistics)
    cold_reads = LoadedAtOnce(store.disk, clock)
    file = JsonFile(config.data / "o.json")
    return DelayLevels(store, put_message, file, statistics=statistics, cold_reads=cold_reads, clock=clock)


@pytest.fixture
def alone(config, clock):
    store = MessageStore(config.store, clock, store_address=bytes(8))
    store.open()
    levels = levels_of(store, config, clock)
    levels.load()
    yield Alone(store, levels)
    store.close()


def park(alone, level, body=b"hello"):
    message = StoredMessage("orders", body)
    assert alone.levels.divert(message, {"DELAY": str(level)})
    alone.store.append(message)


def restarted(alone, config, clock):
    """Return the levels as a broker finds them that comes after a killed one."""
    levels = levels_of(alone.store, config, clock)
    levels.load()
    return levels


def deliver(alone):
    """Deliver all that is due; return in how many seconds there is more."""
    while (wait := alone.levels.deliver()) == 0:
        pass
    return wait


# -- when


@pytest.mark.parametrize("level", range(1, 19))
async def test_each_level_delivers_after_its_delay_and_not_before(alone, clock, level):
    park(alone, level)
    await clock.advance(DELAY_LEVELS_MS[level - 1] / 1000 - 0.001)
    deliver(alone)
    assert alone.store.max_offset("orders", 0) == 0
    await clock.advance(0.001)
    deliver(alone)
    assert alone.store.max_offset("orders", 0) == 1


@pytest.mark.parametrize("level", [1, 2])
async def test_the_broker_delivers_at_the_moment_due(orders, clock, level):
    await delay(orders, level)
    await clock.advance(DELAY_LEVELS_MS[level - 1] / 1000 - 0.001)
    assert await orders.bodies() == []
    await clock.advance(0.001)
    assert await orders.bodies() == [b"hello"]


@pytest.mark.parametrize("level", [19, 30, 2_000_000_000])
async def test_a_level_above_the_last_is_the_last(alone, clock, level):
    park(alone, level)
    (entry,) = alone.store.entries(SCHEDULE_TOPIC, 17, 0, 1)
    assert alone.store.message_at(entry.log_offset).properties["DELAY"] == "18"
    await clock.advance(7_200)
    deliver(alone)
    assert alone.store.max_offset("orders", 0) == 1


@pytest.mark.parametrize("level", ["0", "-1"])
async def test_other_levels_are_no_delay(orders, level):
    await delay(orders, level)
    assert await orders.bodies() == [b"hello"]


@pytest.mark.parametrize("level", ["soon", "1.5", "1h"])
async def test_what_is_no_number_is_refused(orders, level):
    header = send_header(f"DELAY\x01{level}")
    response = await orders.ask(header, b"hello", code=13)
    assert response.remark == f"property DELAY is '{level}'; it must be a delay level, a whole number"
    assert await orders.bodies() == []


async def test_the_table_of_levels_can_be_configured(config, clock, caller_to):
    config = replace(config, store=replace(config.store, delay_levels_ms=(2_000, 7_000)))
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await delay(caller, 1, b"short")
        await delay(caller, 9, b"long")
        await clock.advance(2)
        assert await caller.bodies() == [b"short"]
        await clock.advance(5)
        assert await caller.bodies() == [b"short", b"long"]


async def test_levels_keep_the_order_of_arrival_and_do_not_wait_for_each_other(orders, clock):
    for number in range(5):
        await delay(orders, 3, b"slow %d" % number)
        await delay(orders, 1, b"quick %d" % number)
        await clock.advance(0.1)
    await clock.advance(10)
    expected = [b"quick %d" % number for number in range(5)] + [b"slow %d" % number for number in range(5)]
    assert await orders.bodies() == expected


async def test_each_message_has_its_own_moment(orders, clock):
    for number in range(3):
        await delay(orders, 1, b"%d" % number)
        await clock.advance(0.25)
    seen = []
    for _ in range(8):
        seen.append(len(await orders.bodies()))
        await clock.advance(0.125)
    assert seen == [0, 0, 1, 1, 2, 2, 3, 3]


async def test_a_waiting_pull_is_answered_when_the_message_is_due(orders, clock):
    waiting = orders.pull(suspend_ms=15_000)
    await delay(orders, 1)
    await clock.advance(0.999)
    assert not waiting.done()
    await clock.advance(0.001)
    assert [message.body for message in decode_all((await waiting).body)] == [b"hello"]


async def test_more_than_one_batch_is_delivered_in_order(orders, broker, clock):
    for number in range(350):
        await delay(orders, 1, b"%d" % number)
    await clock.advance(1)
    await clock.advance(0)
    assert broker.store.max_offset("orders", 0) == 350
    stored = [broker.store.message_at(entry.log_offset) for entry in broker.store.entries("orders", 0, 0, 400)]
    assert [int(message.body) for message in stored] == list(range(350))


async def test_it_wants_to_run_again_when_the_next_message_is_due_or_not_at_all(alone, clock):
    assert deliver(alone) is None
    park(alone, 1)
    assert deliver(alone) == 1
    await clock.advance(0.4)
    park(alone, 18)
    assert deliver(alone) == pytest.approx(0.6)
    await clock.advance(0.6)
    assert deliver(alone) == LONGEST_WAIT
    await clock.advance(7_200)
    assert deliver(alone) is None


async def test_it_asks_to_be_run_for_the_first_message_of_a_level_only(alone, clock):
    asked = []
    for level in (1, 1, 2, 1):
        alarm = alone.levels.alarm = Alarm(clock)
        park(alone, level)
        asked.append(alarm.seconds_left <= 0)
    assert asked == [True, False, True, False]


async def test_a_full_level_does_not_keep_the_others_waiting(alone, clock):
    for number in range(1_000):
        park(alone, 2, b"%d" % number)
    await clock.advance(4)
    park(alone, 1, b"other")
    await clock.advance(1)
    for _ in range(2):
        alone.levels.deliver()
    stored = [alone.store.message_at(entry.log_offset).body for entry in alone.store.entries("orders", 0, 0, 2_000)]
    assert b"other" in stored
    assert len(stored) < 1_000


# -- the wall clock is set


async def test_a_clock_set_back_by_less_than_the_level_delays_no_longer_than_that(orders, clock):
    await delay(orders, 3, b"before")
    await clock.advance(4)
    clock.jump(-9)
    await delay(orders, 3, b"after")
    await clock.advance(0)
    await clock.advance(9.9)
    assert await orders.bodies() == []
    await clock.advance(1.2)  # the clock is looked at once a second
    assert await orders.bodies() == [b"before", b"after"]


@pytest.mark.parametrize(("set_back", "is_due"), [(13, False), (16, True)])
async def test_due_twice_the_delay_from_now_is_due_now(orders, clock, set_back, is_due):
    await delay(orders, 3)
    await clock.advance(4)
    clock.jump(-set_back)  # due in 6 s before that, in 19 or 22 s after it
    await clock.advance(1.2)  # the clock is looked at once a second
    assert await orders.bodies() == ([b"hello"] if is_due else [])


async def test_what_is_due_much_too_late_is_due_now(orders, clock):
    await delay(orders, 3, b"before")
    await clock.advance(4)
    clock.jump(-3_600)
    await delay(orders, 3, b"after")
    await clock.advance(1.2)  # the clock is looked at once a second
    assert await orders.bodies() == [b"before"]
    await clock.advance(11)  # its time begins when it is looked at
    assert await orders.bodies() == [b"before", b"after"]


@pytest.mark.parametrize("set_back", [15, 3_600])
async def test_a_message_sent_after_the_clock_was_set_back_waits_its_time(orders, clock, set_back):
    await orders.send("orders", b"now", queue_id=1)  # so the log has seen the later time
    clock.jump(-set_back)
    await delay(orders, 3)
    await clock.advance(0)  # the broker looks at it
    await clock.advance(9.75)
    assert await orders.bodies() == []
    await clock.advance(0.25)
    assert await orders.bodies() == [b"hello"]


@pytest.mark.parametrize("restarted", [False, True])
async def test_midnight_is_a_moment_like_any_other(config, clock, caller_to, restarted):
    day = 86_400
    clock.jump(day - clock.now_ms() / 1000 % day - 2)
    async with Broker(config, clock) as broker:
        orders = await caller_to(broker)
        await orders.create_topic("orders")
        await delay(orders, 2, b"5 s")
        await delay(orders, 1, b"1 s")
        if not restarted:
            await comes_around_midnight(orders, clock)
    if restarted:
        async with Broker(config, clock) as broker:
            await comes_around_midnight(await caller_to(broker), clock)


async def comes_around_midnight(orders, clock):
    await clock.advance(0)
    await clock.advance(2)
    assert await orders.bodies() == [b"1 s"]
    await clock.advance(2.875)
    assert await orders.bodies() == [b"1 s"]
    await clock.advance(0.125)
    assert await orders.bodies() == [b"1 s", b"5 s"]


async def test_a_clock_set_forward_is_noticed_within_a_second(orders, clock):
    await delay(orders, 18)
    await clock.advance(0)
    clock.jump(7_200)
    await clock.advance(1)
    assert await orders.bodies() == [b"hello"]


# -- what


async def test_a_parked_message_is_as_upstream_stores_it(orders, clock):
    response = await delay(orders, 2, queue_id=3, more="\x02WAIT\x01true\x02TAGS\x01a\x02n\x017")
    assert (response.queue_id, response.queue_offset) == (3, 0)
    (parked,) = await orders.messages(SCHEDULE_TOPIC, 1)
    assert parked.offset_message_id == response.message_id
    assert parked.properties == {
        "DELAY": "2",
        "WAIT": "true",
        "TAGS": "a",
        "n": "7",
        "CLUSTER": "DefaultCluster",
        "REAL_TOPIC": "orders",
        "REAL_QID": "3",
    }


async def test_the_entry_of_a_parked_message_holds_the_due_time(broker, orders, clock):
    await delay(orders, 2, more="\x02TAGS\x01a")
    (entry,) = broker.store.entries(SCHEDULE_TOPIC, 1, 0, 1)
    assert entry.tags_code == clock.now_ms() + 5_000


async def test_a_delivered_message_is_the_one_sent_with_a_new_store_time(broker, orders, clock):
    header = send_header(
        "DELAY\x011\x02TAGS\x01a", queue_id=2, sys_flag=0x100, born_ms=1_234, flag=7, reconsume_times=2
    )
    await orders.ask(header, b"hello")
    (parked,) = await orders.messages(SCHEDULE_TOPIC, 0)
    await clock.advance(1)
    (message,) = await orders.messages(queue_id=2)
    assert message.property_text == parked.property_text
    assert (message.flag, message.sys_flag, message.reconsume_times, message.born_ms) == (7, 0x100, 2, 1_234)
    assert message.born_address == parked.born_address
    assert (message.body, message.store_ms) == (b"hello", clock.now_ms())
    (entry,) = broker.store.entries("orders", 2, 0, 1)
    assert entry.tags_code == ord("a")


async def test_properties_must_fit_with_what_is_added(orders):
    room = 32_767 - len("DELAY\x011\x02a\x01\x02CLUSTER\x01DefaultCluster\x02REAL_TOPIC\x01orders\x02REAL_QID\x010")
    await delay(orders, 1, more="\x02a\x01" + "v" * room)
    header = send_header("DELAY\x011\x02a\x01" + "v" * (room + 1))
    await orders.ask(header, b"hello", code=13)


async def test_delayed_and_plain_messages_share_a_burst(orders, clock):
    def header(properties):
        return send_header(properties, queue_id=1)

    sent = [orders.channel.call_soon(header(text), b"x", timeout=30) for text in ("", "DELAY\x011", "", "DELAY\x01x")]
    responses = [await each for each in sent]
    assert [response.code for response in responses] == [0, 0, 0, 13]
    answers = [response.header(SendMessageResponse) for response in responses[:3]]
    assert [(answer.queue_id, answer.queue_offset) for answer in answers] == [(1, 0), (1, 0), (1, 1)]
    await clock.advance(1)
    assert len(await orders.messages(queue_id=1)) == 3


async def test_a_batch_cannot_be_delayed(orders):
    header = batch_header()
    members = encode_batch([BatchMember(0, b"1", ""), BatchMember(0, b"2", "DELAY\x011")])
    response = await orders.ask(header, members, code=13)
    assert "A batch cannot be delayed" in response.remark and "property DELAY;" in response.remark
    assert await orders.bodies() == []


async def test_the_last_retry_is_a_dead_letter_at_once(broker, orders):
    broker.groups.put(GroupConfig(name="g", retry_max_times=2))
    header = send_header("DELAY\x015", topic="%RETRY%g", default_topic_queue_count=1, reconsume_times=2)
    await orders.ask(header, b"hello")
    assert await orders.bodies("%DLQ%g") == [b"hello"]


# -- trouble


async def test_what_has_no_real_topic_is_left_out(broker, orders, clock, caplog):
    for text in ("DELAY\x011", "DELAY\x011\x02REAL_TOPIC\x01a/b\x02REAL_QID\x010"):
        await delay(orders, 1)
        (entry,) = broker.store.entries(SCHEDULE_TOPIC, 0, broker.store.max_offset(SCHEDULE_TOPIC, 0) - 1, 1)
        damaged = broker.store.message_at(entry.log_offset)
        damaged.property_text = text
        broker.store.append(damaged)
    await clock.advance(2)
    assert await orders.bodies() == [b"hello"] * 2
    assert "level 1: message at queue offset 1 is skipped" in caplog.text
    assert "level 1: message at queue offset 3 is skipped" in caplog.text


async def test_nothing_is_lost_while_the_disk_takes_nothing(broker, orders, clock, monkeypatch, caplog):
    await delay(orders, 1)
    with monkeypatch.context() as full:
        full.setattr(broker.store, "append_batch", refuse)
        await clock.advance(5)
    assert "the disk is full" in caplog.text
    await clock.advance(1)
    assert await orders.bodies() == [b"hello"]
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_full_log_leaves_nothing_for_the_collector_of_garbage(alone, clock, monkeypatch):
    park(alone, 1)
    clock.jump(1)
    monkeypatch.setattr(alone.store, "append_batch", refuse)
    assert not leaves_errors(lambda: deliver(alone))


def test_when_the_disk_fills_amid_a_burst_the_first_messages_are_delivered(alone, clock, monkeypatch):
    for body in (b"0", b"1", b"2"):
        park(alone, 1, body)
    clock.jump(1)
    append = alone.store.append

    def refuse_batch(messages):
        raise MessageRefused("the messages exceed one write")

    def refuse_the_last(message):
        if message.body == b"2":
            raise StoreNotWritable("the disk is full")
        return append(message)

    with monkeypatch.context() as full:
        full.setattr(alone.store, "append_batch", refuse_batch)
        full.setattr(alone.store, "append", refuse_the_last)
        with pytest.raises(StoreNotWritable):
            deliver(alone)
    deliver(alone)
    assert [alone.store.message("orders", 0, offset).body for offset in range(3)] == [b"0", b"1", b"2"]
    assert alone.store.max_offset("orders", 0) == 3


def test_a_file_that_cannot_be_opened_is_named_and_costs_no_message(alone, clock, monkeypatch):
    bodies = [b"%d" % number for number in range(5)]
    for body in bodies:
        park(alone, 1, body)
    clock.jump(1)
    message = alone.store.message

    def refuse(topic, queue_id, offset):
        if offset == 2:
            raise OSError(errno.EMFILE, "Too many open files", "/commitlog/0")
        return message(topic, queue_id, offset)

    with monkeypatch.context() as full:
        full.setattr(alone.store, "message", refuse)
        with pytest.raises(StoreError, match=r"^cannot read /commitlog/0: Too many open files$"):
            deliver(alone)
    deliver(alone)
    assert [alone.store.message("orders", 0, offset).body for offset in range(5)] == bodies
    assert alone.store.max_offset("orders", 0) == 5


# -- stops


async def test_what_waits_survives_a_stop_and_is_delivered_once(config, clock, caller_to):
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await delay(caller, 1, b"first")
        await delay(caller, 2, b"second")
        await delay(caller, 2, b"third", queue_id=0)
        await clock.advance(1)
    assert json.loads((config.data / "config/delayOffset.json").read_bytes())["offsetTable"] == {"1": 1}
    await clock.advance(2)
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await clock.advance(1.999)
        assert await caller.bodies() == [b"first"]
        await clock.advance(0.001)
        assert await caller.bodies() == [b"first", b"second", b"third"]


async def test_what_became_due_during_a_stop_is_delivered_at_the_start(config, clock, caller_to):
    async with Broker(config, clock) as broker:
        await delay(await caller_to(broker), 3)
    await clock.advance(60)
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await clock.advance(0)
        assert await caller.bodies() == [b"hello"]


@pytest.mark.parametrize("noted", [True, False])
async def test_a_crash_loses_nothing_and_repeats_nothing(config, clock, caller_to, noted):
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await delay(caller, 1, b"noted")
        await delay(caller, 2, b"long before")
        await clock.advance(2)
        if noted:  # progress is noted once what it speaks of is on disk
            await asyncio.wrap_future(broker.store.wait_flushed(broker.store.max_log_offset))
            await clock.advance(58)
            await broker.saved()
        for body in (b"equal", b"equal", b"not noted"):  # born in the same millisecond
            await delay(caller, 1, body)
        await delay(caller, 2, b"waiting")
        await clock.advance(1)
        left = killed(config)
    assert (left.data / "config/delayOffset.json").exists() == noted
    async with Broker(left, clock) as broker:
        caller = await caller_to(broker)
        await clock.advance(10)
        seen = Counter(await caller.bodies())
    assert seen == {b"noted": 1, b"long before": 1, b"equal": 2, b"not noted": 1, b"waiting": 1}


async def test_a_retry_delivered_before_a_crash_is_no_retry_more(config, clock, caller_to):
    """The same under another table of levels: what was delivered is known by itself, not by its due time."""
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        for level in (1, 2, 3):
            await delay(caller, level, b"at %d" % level)
        await clock.advance(10)
        left = killed(config)
    shorter = replace(left, store=replace(left.store, delay_levels_ms=(1_000,)))
    async with Broker(shorter, clock) as broker:
        caller = await caller_to(broker)
        await clock.advance(10)
        assert await caller.bodies() == [b"at 1", b"at 2", b"at 3"]


def test_a_message_left_out_hides_no_copies_behind_it(alone, clock, config, monkeypatch):
    for number in range(5):
        park(alone, 1, b"%d" % number)
    clock.jump(1)
    append = alone.store.append

    def refuse_one(message):
        if message.stored_body == b"2":
            raise MessageRefused("it fits nowhere")
        append(message)

    def refuse_all(messages):
        raise MessageRefused("too much for one write")

    monkeypatch.setattr(alone.store, "append", refuse_one)
    monkeypatch.setattr(alone.store, "append_batch", refuse_all)
    deliver(alone)
    assert restarted(alone, config, clock).offsets() == {1: 5}


def damage_body(alone, offset):
    [entry] = alone.store.entries(SCHEDULE_TOPIC, 0, offset, 1)
    record = alone.store.record_at(entry.log_offset)
    place = bytes(record).index(b"hello")
    record[place : place + 5] = b"hallo"


def lose(alone, offset):
    """Let a message be lost as recovery leaves it: its entry is a filler at the record before."""
    [before] = alone.store.entries(SCHEDULE_TOPIC, 0, offset - 1, 1)
    alone.store.queue_tail(SCHEDULE_TOPIC, 0).put(offset, QueueEntry(before.log_offset, FILLER_SIZE, 0))


@pytest.mark.parametrize("harm", [damage_body, lose])
@pytest.mark.parametrize("before", [True, False])
def test_a_damaged_message_hides_no_copies_beside_it(alone, clock, config, harm, before):
    for number in range(5):
        park(alone, 1, b"hello" if number == 2 else b"%d" % number)
    clock.jump(1)
    if before:
        harm(alone, 2)
    deliver(alone)
    if not before:
        harm(alone, 2)
    assert restarted(alone, config, clock).offsets() == {1: 5}


def test_levels_refresh_their_note_so_that_a_start_reads_little(alone, clock, config, monkeypatch):
    park(alone, 18)
    levels = restarted(alone, config, clock)
    monkeypatch.setattr("pyromq.broker.delays.delay_levels.REFRESH_BYTES", 1_000)
    for _ in range(2):
        alone.store.append(StoredMessage("orders", bytes(2_000)))
        alone.store._flusher.flush_log()
        if (save := levels.unsaved()) is not None:
            save()
    assert json.loads((config.data / "o.json").read_bytes())["logEnd"] > 2_000
    assert levels.unsaved() is None or alone.store.max_log_offset > 4_000


async def test_progress_is_noted_only_when_the_delivered_messages_are_on_disk(broker, orders, clock, config):
    file = config.data / "config/delayOffset.json"
    await delay(orders, 1)
    await clock.advance(1)
    levels = broker.delay_levels
    assert levels.unsaved() is None  # the moment is noted
    assert not file.exists()
    await asyncio.wrap_future(broker.store.wait_flushed(broker.store.max_log_offset))
    levels.unsaved()()
    assert json.loads(file.read_bytes())["offsetTable"] == {"1": 1}
    assert levels.unsaved() is None


def test_the_log_of_delivered_messages_is_needed_until_their_progress_is_saved(alone, clock):
    park(alone, 1)
    clock.jump(1)
    deliver(alone)
    assert alone.levels.log_needed_from == 0
    alone.levels.persist()
    assert alone.levels.log_needed_from == alone.store.max_log_offset


def test_a_stopped_broker_saves_no_progress_that_a_failover_may_undo(alone, clock, config):
    alone.store.bound_reads()
    park(alone, 1)
    alone.store.confirm(alone.store.max_log_offset)
    clock.jump(1)
    deliver(alone)
    alone.levels.persist()
    assert not (config.data / "o.json").exists()
    alone.store.confirm(alone.store.max_log_offset)
    alone.levels.persist()
    assert json.loads((config.data / "o.json").read_bytes())["offsetTable"] == {"1": 1}


def test_the_saved_end_of_a_longer_log_hides_no_delivery(alone, clock, config):
    park(alone, 1)
    clock.jump(1)
    deliver(alone)
    (config.data / "o.json").write_text('{"offsetTable":{},"logEnd":1000000}')  # a power loss has cut the log
    assert restarted(alone, config, clock).offsets() == {1: 1}


async def test_offsets_outside_of_their_queues_are_put_right(config, clock, caller_to):
    file = config.data / "config/delayOffset.json"
    file.parent.mkdir(parents=True)
    file.write_text('{"offsetTable":{1:77,2:-5,40:3}}')  # keys without quotes, as Java writes them
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await delay(caller, 1, b"one")
        await delay(caller, 2, b"two")
        await clock.advance(5)
        assert await caller.bodies() == [b"one", b"two"]


async def test_a_shorter_table_still_delivers_what_waits_in_the_levels_it_lost(config, clock, caller_to):
    async with Broker(config, clock) as broker:
        await delay(await caller_to(broker), 3)
    shorter = replace(config, store=replace(config.store, delay_levels_ms=(1_000,)))
    async with Broker(shorter, clock) as broker:
        caller = await caller_to(broker)
        await clock.advance(9.999)
        assert await caller.bodies() == []
        await clock.advance(0.001)
        assert await caller.bodies() == [b"hello"]


# -- seen from outside


async def test_tools_see_how_far_each_level_is(orders, clock):
    for level in (1, 1, 3):
        await delay(orders, level)
    await clock.advance(1)
    assert (await orders.body(AllDelayOffsets())).offsets == {1: 2}
    table = (await orders.body(BrokerState())).table
    assert table["scheduleMessageOffset_1"] == "2,2"


async def test_statistics_count_what_is_parked_and_what_is_delivered(broker, orders, clock):
    await delay(orders, 1)
    await clock.advance(1)
    assert broker.statistics.put_total.count == 2
    assert broker.statistics.get_total.count == 1
    assert int((await orders.ask(MaxOffset(topic="orders", queue_id=0))).fields["offset"]) == 1
