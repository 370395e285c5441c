"""Times of delivery: when messages come, in which order, how they are cancelled, what is refused."""

import logging
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import pytest
from tests.broker.consuming.cold import LoadedAtOnce
from tests.broker.delays.full_log import leaves_errors, refuse
from tests.broker.headers import batch_header, send_header
from tests.broker.timers import DAY, cancel, timed
from tests.waiting import PATIENCE_SECONDS

from pyromq.broker.broker import Broker
from pyromq.broker.delays import timer_index
from pyromq.broker.delays import timer_scheduler as timers
from pyromq.broker.delays.timer_scheduler import LONGEST_WAIT, TimerScheduler
from pyromq.broker.put_message import PutMessage
from pyromq.broker.statistics import Statistics
from pyromq.errors import MessageRefused, StoreNotWritable
from pyromq.message import StoredMessage, encode_properties
from pyromq.names import TIMER_TOPIC
from pyromq.record import BatchMember, decode_all, encode_batch
from pyromq.store.disk import LOCAL_DISK, LocalDisk
from pyromq.store.message_store import MessageStore
from pyromq.store.timers import timer_files
from pyromq.store.timers.timer_bucket import HOUR_MS


async def refused(caller, properties):
    with pytest.raises(AssertionError) as failure:
        await caller.send("orders", properties=properties)
    return str(failure.value)


class Alone(NamedTuple):
    """A store with its timers, without a broker that runs them all the time."""

    store: MessageStore
    timers: TimerScheduler


@pytest.fixture
def alone_in(clock, tmp_path):  # `tmp_path`, so that stores close before their folder is deleted
    """Open stores with timers: `alone_in(config)`."""
    opened = []

    def begin(config, disk=LOCAL_DISK):
        store = MessageStore(config.store_config, clock, store_address=bytes(8), disk=disk)
        store.open()
        put_message = PutMessage(store, Statistics("c", clock))
        cold_reads = LoadedAtOnce(store.disk, clock)
        folder = config.data / "timers"
        timers = TimerScheduler(store, put_message, folder, config=config, cold_reads=cold_reads, clock=clock)
        opened.append(Alone(store, timers))
        timers.load()
        return Alone(store, timers)

    yield begin
    for each in opened:
        each.store.close()
        each.timers.index._files.release()


@pytest.fixture
def alone(alone_in, config):
    return alone_in(config)


def park(alone, due_ms, body=b"hello", *, topic="orders", key=None):
    properties = {"TIMER_DELIVER_MS": str(due_ms)} | ({"UNIQ_KEY": key} if key else {}) | {"CLUSTER": "c"}
    message = StoredMessage(topic, body, encode_properties(properties))
    is_scheduled = alone.timers.divert(message) is not None
    alone.store.append(message)
    return is_scheduled


def work(alone):
    """Do all there is to do now; return in how many seconds there is more."""
    while (wait := alone.timers.step()) == 0:
        pass
    return wait


def delivered(alone, topic="orders"):
    entries = alone.store.entries(topic, 0, 0, 1000)
    return [alone.store.message_at(entry.log_offset).body for entry in entries]


# -- when


@pytest.mark.parametrize("seconds", [0.001, 0.999, 1, 59.5])
async def test_the_broker_delivers_at_the_moment_due(orders, clock, seconds):
    await timed(orders, clock, seconds)
    await clock.advance(seconds - 0.001)
    assert await orders.bodies() == []
    await clock.advance(0.001)
    assert await orders.bodies() == [b"hello"]


@pytest.mark.parametrize("seconds", [0.001, 3599.999, 3600, 7 * DAY, 30 * DAY])
def test_a_message_comes_at_its_time_and_not_before(alone, clock, seconds):
    ms = round(seconds * 1000)
    park(alone, clock.now_ms() + ms)
    clock.jump((ms - 1) / 1000)
    work(alone)
    assert delivered(alone) == []
    clock.jump(0.001)
    work(alone)
    assert delivered(alone) == [b"hello"]


@pytest.mark.parametrize(
    "properties",
    [
        "TIMER_DELAY_SEC\x012",
        "TIMER_DELAY_MS\x012000",
        "TIMER_DELAY_SEC\x012\x02TIMER_DELAY_MS\x011\x02TIMER_DELIVER_MS\x011",
        "TIMER_DELAY_MS\x012000\x02TIMER_DELIVER_MS\x011\x02",
        "DELAY\x010\x02TIMER_DELAY_SEC\x012",
    ],
)
async def test_delays_count_from_now_in_the_order_of_upstream(orders, clock, properties):
    await orders.send("orders", properties=properties)
    await clock.advance(1.999)
    assert await orders.bodies() == []
    await clock.advance(0.001)
    assert await orders.bodies() == [b"hello"]


@pytest.mark.parametrize(
    "properties",
    ["TIMER_DELAY_SEC\x010", "TIMER_DELAY_MS\x01-5", "TIMER_DELIVER_MS\x011", "TIMER_DELIVER_MS\x011700000000000"],
)
async def test_a_time_in_the_past_is_now(orders, properties):
    answer = await orders.send("orders", properties=properties)
    assert await orders.bodies() == [b"hello"]
    assert answer.recall_handle is None


async def test_a_delay_level_wins(orders, clock):
    await orders.send("orders", properties="TIMER_DELAY_SEC\x01100\x02DELAY\x011")
    await clock.advance(1)
    (message,) = await orders.messages()
    assert "TIMER_DELAY_SEC" not in message.properties


async def test_the_message_comes_as_it_was_sent(orders, clock):
    await orders.send(
        "orders", b"body", queue_id=3, properties="TAGS\x01red\x02KEYS\x01k\x02a\x01b\x02TIMER_DELAY_SEC\x011"
    )
    await clock.advance(1)
    (message,) = await orders.messages(queue_id=3)
    assert (message.body, message.tags, message.keys, message.properties["a"]) == (b"body", "red", ["k"], "b")
    assert message.born_ms == 1


async def test_a_pull_that_waits_gets_it_at_once(orders, clock):
    await timed(orders, clock, 5)
    waiting = orders.pull(suspend_ms=15_000)
    await clock.advance(5)
    assert [each.body for each in decode_all((await waiting).body)] == [b"hello"]


async def test_a_copy_of_a_message_that_has_waited_does_not_wait_again(orders, clock):
    await orders.send("orders", properties="TIMER_DELAY_SEC\x015")
    await clock.advance(5)
    (message,) = await orders.messages()
    await orders.send("orders", b"copy", properties=message.property_text)
    assert await orders.bodies() == [b"hello", b"copy"]


async def test_dead_letters_do_not_wait(orders):
    await orders.create_topic("%DLQ%g", queues=1)
    await orders.send("%DLQ%g", properties="TIMER_DELAY_SEC\x015")
    assert await orders.bodies("%DLQ%g") == [b"hello"]


def test_due_messages_leave_in_due_order_and_equal_ones_as_they_came(alone, clock):
    now = clock.now_ms()
    for number, seconds in enumerate([3, 1, 2, 1, 4000, 3, 4000, 2, 1]):
        park(alone, now + seconds * 1000, b"%d" % number)
    clock.jump(5000)
    work(alone)
    assert delivered(alone) == [b"1", b"3", b"8", b"2", b"7", b"0", b"5", b"4", b"6"]


def test_midnight_is_no_border(alone, clock):
    midnight = (clock.now_ms() // (DAY * 1000) + 1) * DAY * 1000
    for ms in (1, 0, -1, 0, -HOUR_MS, HOUR_MS):
        park(alone, midnight + ms, b"%d" % ms)
    clock.jump((midnight - clock.now_ms()) / 1000 - 0.001)
    work(alone)
    assert delivered(alone) == [b"%d" % -HOUR_MS, b"-1"]
    clock.jump(0.001)
    work(alone)
    assert delivered(alone)[2:] == [b"0", b"0"]
    clock.jump(2 * 3600)
    work(alone)
    assert delivered(alone)[4:] == [b"1", b"%d" % HOUR_MS]


def test_one_that_comes_later_and_is_due_earlier_goes_first(alone, clock):
    now = clock.now_ms()
    park(alone, now + 100, b"late")
    work(alone)
    park(alone, now + 50, b"early")
    clock.jump(0.2)
    park(alone, now + 50, b"past")
    work(alone)
    assert delivered(alone) == [b"past", b"early", b"late"]


def test_a_step_says_when_the_next_message_is_due(alone, clock):
    assert work(alone) is None
    park(alone, clock.now_ms() + 300)
    assert work(alone) == 0.3
    park(alone, clock.now_ms() + 200)
    assert work(alone) == 0.2


def test_far_ones_are_looked_at_again_since_the_clock_may_be_set(alone, clock):
    park(alone, clock.now_ms() + 10 * DAY * 1000)
    assert work(alone) == LONGEST_WAIT


@pytest.mark.parametrize("restarted", [False, True])
async def test_midnight_is_a_moment_like_any_other(config, clock, caller_to, restarted):
    clock.jump(DAY - clock.now_ms() / 1000 % DAY - 2)
    async with Broker(config, clock) as broker:
        orders = await caller_to(broker)
        await orders.create_topic("orders")
        for seconds in (3, 2, 1, DAY + 2):  # 2: at midnight
            await timed(orders, clock, seconds, b"%d" % seconds)
        if not restarted:
            await comes_each_second(orders, clock)
    if restarted:
        async with Broker(config, clock) as broker:
            await comes_each_second(await caller_to(broker), clock)


async def comes_each_second(orders, clock):
    """Around midnight, and at the next one."""
    await clock.advance(0)
    for expected in ([b"1"], [b"1", b"2"], [b"1", b"2", b"3"]):
        await clock.advance(0.875)
        assert await orders.bodies() == expected[:-1]
        await clock.advance(0.125)
        assert await orders.bodies() == expected
    clock.jump(DAY - 2)
    await clock.advance(LONGEST_WAIT)
    assert await orders.bodies() == [b"1", b"2", b"3", b"86402"]


async def test_a_clock_set_forward_is_noticed(orders, clock):
    await timed(orders, clock, DAY)
    clock.jump(DAY)
    await clock.advance(LONGEST_WAIT)
    assert await orders.bodies() == [b"hello"]


async def test_a_broker_whose_clock_is_set_back_delivers_when_the_clock_says_so(orders, clock):
    await timed(orders, clock, 10)
    await clock.advance(9)
    clock.jump(-60)
    await clock.advance(60.9)
    assert await orders.bodies() == []
    await clock.advance(0.1)
    assert await orders.bodies() == [b"hello"]


def test_a_clock_set_back_makes_nothing_early_and_loses_nothing(alone, clock):
    now = clock.now_ms()
    park(alone, now + 10_000, b"a")
    work(alone)
    clock.jump(-7200)
    park(alone, now - 3_600_000, b"b")
    work(alone)
    assert delivered(alone) == []
    clock.jump(3600)
    work(alone)
    assert delivered(alone) == [b"b"]
    clock.jump(3610)
    work(alone)
    assert delivered(alone) == [b"b", b"a"]


def test_an_hour_may_come_again_after_the_clock_was_set_back(alone, clock):
    """Its first bucket is finished and dropped; the second one has another name."""
    now = clock.now_ms()
    park(alone, now + 1000, b"a")
    park(alone, now + 30 * DAY * 1000, b"far")
    work(alone)
    finished = alone.timers.index.buckets[now // HOUR_MS]
    clock.jump(2 * 3600)
    work(alone)
    save(alone)
    assert len(alone.timers.index.buckets) == 1
    assert finished.name not in {path.stem for path in alone.timers.index._files.folder.iterdir()}
    clock.jump(-2 * 3600)
    park(alone, now + 1000, b"b")
    clock.jump(1)
    work(alone)
    assert delivered(alone) == [b"a", b"b"]
    assert alone.timers.index.buckets[now // HOUR_MS].name != finished.name


def save(alone):
    """Take a checkpoint and save it."""
    assert alone.timers.unsaved() is None
    work(alone)
    while alone.store.flushed_to < alone.store.max_log_offset:
        alone.store.wait_flushed(alone.store.max_log_offset).result(PATIENCE_SECONDS)
    alone.timers.unsaved()()


# -- limits


@pytest.mark.parametrize("name", ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
@pytest.mark.parametrize("value", ["soon", "1.5", "1_000", "+5", "９", "1" * 40, "--5", "-"])
async def test_what_is_no_number_is_refused(orders, name, value):
    assert f"property {name} is '{value}'" in await refused(orders, f"{name}\x01{value}")


async def test_beyond_the_limit_is_refused_with_limit_and_setting(orders, clock):
    text = await refused(orders, f"TIMER_DELAY_MS\x01{30 * DAY * 1000 + 1}")
    assert "would wait 2592001 s; the limit is 2592000 s, broker setting timerMaxDelaySec" in text
    assert "timerMaxDelaySec" in await refused(orders, "TIMER_DELIVER_MS\x01" + "9" * 30)
    await orders.send("orders", properties=f"TIMER_DELAY_SEC\x01{30 * DAY}")


@pytest.mark.parametrize("wish", ["TIMER_DELAY_SEC\x01soon", "TIMER_DELAY_SEC\x0199999999"])
async def test_bad_times_are_answered_with_the_code_of_illegal_messages(orders, wish):
    header = send_header(wish)
    assert (await orders.ask(header, b"x", code=13)).remark
    assert await orders.bodies() == []


async def test_a_full_timer_disk_is_answered_with_its_code_and_others_are_taken(orders, broker, clock):
    handle = (await timed(orders, clock, 5, b"before", key="K1")).recall_handle
    broker.timers.intake.refusal = "cannot write timers to there: No space left on device"
    answer = await orders.ask(send_header("TIMER_DELAY_SEC\x015"), b"x", code=14)
    assert "No space left on device" in answer.remark
    await orders.send("orders", b"plain")
    assert await orders.bodies() == [b"plain"]
    await clock.advance(5)
    assert await orders.bodies() == [b"plain", b"before"]
    await cancel(orders, handle, code=604)


def test_the_limit_may_be_a_year(alone_in, config, clock):
    alone = alone_in(replace(config, timer_max_delay_seconds=365 * DAY))
    assert park(alone, clock.now_ms() + 365 * DAY * 1000)
    with pytest.raises(MessageRefused, match="timerMaxDelaySec"):
        park(alone, clock.now_ms() + 366 * DAY * 1000)


async def test_batches_cannot_wait(orders):
    body = encode_batch([BatchMember(0, b"x", "TIMER_DELAY_SEC\x015")])
    header = batch_header()
    response = await orders.ask(header, body, code=13)
    assert "batch cannot be delayed" in response.remark and "property TIMER_DELAY_SEC;" in response.remark


async def test_nobody_sends_to_the_timer_topic(orders):
    with pytest.raises(AssertionError, match="forbidden"):
        await orders.send(TIMER_TOPIC)


async def test_properties_without_room_for_what_waiting_adds_are_refused(orders):
    text = "a\x01" + "x" * 32_680 + "\x02TIMER_DELAY_SEC\x015"
    assert "properties length" in await refused(orders, text)


# -- trouble


def test_when_the_log_is_full_what_is_due_is_delivered_later(alone, clock, monkeypatch):
    for number in range(3):
        park(alone, clock.now_ms() + 10, b"%d" % number)
    clock.jump(1)
    with monkeypatch.context() as full:
        full.setattr(alone.store._log, "append_batch", refuse)
        with pytest.raises(StoreNotWritable):
            work(alone)
    work(alone)
    assert delivered(alone) == [b"0", b"1", b"2"]


def test_a_full_log_leaves_nothing_for_the_collector_of_garbage(alone, clock, monkeypatch):
    park(alone, clock.now_ms() + 10, b"x")
    clock.jump(1)
    monkeypatch.setattr(alone.store._log, "append_batch", refuse)
    assert not leaves_errors(lambda: work(alone))


def test_when_the_disk_of_the_timers_is_full_nothing_is_lost(alone, clock, monkeypatch, caplog):
    now = clock.now_ms()
    monkeypatch.setattr(timer_index, "UNWRITTEN_BYTES", 0)
    folder = alone.timers.index._files.folder
    folder.write_text("no folder can be here")
    park(alone, now + 1000, b"near")
    park(alone, now + DAY * 1000, b"far")
    with caplog.at_level(logging.WARNING):
        work(alone)
    assert "messages with a delivery time are refused" in caplog.text
    with pytest.raises(StoreNotWritable, match="cannot write timers"):
        park(alone, now + 1000)
    clock.jump(1)
    work(alone)
    assert delivered(alone) == [b"near"]
    folder.unlink()
    work(alone)
    assert park(alone, now + 5000, b"again")
    clock.jump(DAY)
    work(alone)
    assert delivered(alone) == [b"near", b"again", b"far"]


def test_a_message_too_large_for_one_write_goes_by_itself(alone, clock):
    now = clock.now_ms()
    for number in range(5):
        park(alone, now + 10, b"%d" % number + bytes(300_000))
    clock.jump(1)
    work(alone)
    assert [body[:1] for body in delivered(alone)] == [b"0", b"1", b"2", b"3", b"4"]


def test_a_broken_record_is_left_out_and_named(alone, clock, caplog):
    alone.store.append(StoredMessage(TIMER_TOPIC, b"foreign", "TIMER_OUT_MS\x01never"))
    alone.store.append(StoredMessage(TIMER_TOPIC, b"foreign", f"TIMER_OUT_MS\x01{1 << 60}"))
    park(alone, clock.now_ms() + 10)
    clock.jump(1)
    with caplog.at_level(logging.WARNING):
        work(alone)
    assert delivered(alone) == [b"hello"]
    assert "scheduled message at queue offset 0" in caplog.text
    assert "scheduled message at queue offset 1" in caplog.text


def damage(alone):
    """Flip a bit in the body of the first record that is filed; return its file."""
    save(alone)
    [path] = (alone.timers.index._files.folder).glob("*.records")
    content = bytearray(path.read_bytes())
    content[90] ^= 1
    path.write_bytes(content)
    return path


def test_for_a_damaged_record_that_of_the_log_is_delivered(alone, clock, caplog):
    park(alone, clock.now_ms() + 10)
    work(alone)
    path = damage(alone)
    clock.jump(1)
    work(alone)
    assert delivered(alone) == [b"hello"]
    assert f"{path} byte 0: the record is damaged (" in caplog.text


def test_a_damaged_record_without_another_is_named_and_not_delivered(alone, clock, caplog, monkeypatch):
    park(alone, clock.now_ms() + 10)
    work(alone)
    path = damage(alone)
    monkeypatch.setattr(alone.store, "record_at", lambda log_offset: None)  # expired
    clock.jump(1)
    work(alone)
    assert delivered(alone) == []
    assert f"{path} byte 0: the record is damaged, and the log no longer has it" in caplog.text


# -- turns


def test_every_turn_is_short(alone, clock, monkeypatch):
    """Small slices, so that reading and delivering take several turns."""
    monkeypatch.setattr(timers, "DELIVERED_MESSAGES", 2)
    monkeypatch.setattr(timers, "READ_ENTRIES", 2)
    now = clock.now_ms()
    for number in range(20):
        park(alone, now + 1000 - number * 10, b"%02d" % number)
    clock.jump(1)
    counts = []
    while alone.timers.step() == 0:
        counts.append(len(delivered(alone)))
    assert all(later - earlier <= 2 for earlier, later in pairwise(counts))
    assert delivered(alone) == [b"%02d" % number for number in reversed(range(20))]


def test_a_flood_does_not_keep_back_what_is_due(alone, clock):
    now = clock.now_ms()
    for number in range(60):
        park(alone, now + 5 * number + 5, b"%02d" % number)
        for _ in range(2):
            park(alone, now + 600_000, b"far")
        clock.jump(0.005)
        alone.timers.step()
        assert len(delivered(alone)) == number + 1
    assert delivered(alone) == [b"%02d" % number for number in range(60)]


def test_after_a_long_stop_overdue_hours_are_read_as_they_are_delivered(alone, clock, monkeypatch):
    monkeypatch.setattr(timers, "ENOUGH_IN_MEMORY", 5)
    monkeypatch.setattr(timers, "READ_ENTRIES", 4)
    monkeypatch.setattr(timers, "DELIVERED_MESSAGES", 3)
    now = clock.now_ms()
    for number in range(60):
        park(alone, now + 1000 + number * HOUR_MS // 6, b"%02d" % number)
    clock.jump(12 * 3600)
    most = 0
    while alone.timers.step() == 0:
        most = max(most, len(alone.timers._times))
    assert delivered(alone) == [b"%02d" % number for number in range(60)]
    assert most <= 9


async def test_a_time_may_be_the_last_property(orders, clock):
    due = clock.now_ms() + 60_000
    await orders.send("orders", properties=f"KEYS\x01k\x02TIMER_DELIVER_MS\x01{due}")
    assert await orders.bodies() == []
    await clock.advance(60.5)
    assert await orders.bodies() == [b"hello"]


class Writes(LocalDisk):
    """Notes how much is written, and read of files that are not mapped, between two looks."""

    def __init__(self):
        self.bytes = 0

    def write(self, descriptor, content, position):
        written = super().write(descriptor, content, position)
        self.bytes += written
        return written

    def read(self, descriptor, size, position):
        self.bytes += size
        return super().read(descriptor, size, position)

    def taken(self):
        taken, self.bytes = self.bytes, 0
        return taken


@pytest.mark.parametrize(("count", "body_bytes"), [(8_000, 10), (60, 60_000)], ids=["many", "large"])
def test_what_has_come_for_one_hour_is_written_and_copied_in_small_pieces(alone_in, config, clock, count, body_bytes):
    """However much it is: 36 bytes for each of a million messages took 30 ms, in which nobody was answered."""
    disk = Writes()
    alone = alone_in(replace(config, store=replace(config.store, segment_bytes=1 << 23)), disk=disk)
    for number in range(count):
        park(alone, clock.now_ms() + DAY * 1000 + number % 1000, bytes(body_bytes))
    files = alone.timers.index._files
    alone.timers.index.file_recent()
    files.begin_round(copy=True)
    disk.taken()
    most = pieces = 0
    while not files.write_some(timer_index.WRITTEN_RECORDS, keep=0):
        most = max(most, disk.taken())
        pieces += 1
    assert not files.unwritten
    assert files.needed_from is None
    assert files.buckets[(clock.now_ms() + DAY * 1000) // HOUR_MS].sizes.entries == 36 * count
    assert pieces > 3
    assert most < 3 * timer_files.WRITTEN_BYTES + body_bytes * 3  # entries; records read, and written
