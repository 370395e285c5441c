"""Times of delivery over restarts and crashes: nothing confirmed is lost, early, late without end, or there twice."""

import asyncio
import os
import random
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.broker.consuming.cold import LoadedAtOnce
from tests.broker.folders import killed
from tests.seed import seed_of_the_day
from tests.slow_work import steps_of
from tests.waiting import PATIENCE_SECONDS

from pyromq.broker.broker import Broker
from pyromq.broker.delays import timer_index
from pyromq.broker.delays import timer_scheduler as timers
from pyromq.broker.delays.timer_scheduler import TimerScheduler
from pyromq.broker.put_message import PutMessage
from pyromq.broker.statistics import Statistics
from pyromq.errors import RecallRefused, StoreCorrupt
from pyromq.message import StoredMessage, encode_properties
from pyromq.remoting.recall_handle import RecallHandle
from pyromq.store.disk import LOCAL_DISK
from pyromq.store.json_file import JsonFile
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.message_store import MessageStore
from pyromq.store.timers import timer_bucket, timer_files
from pyromq.store.timers.growing_file import GrowingFile
from pyromq.store.timers.timer_bucket import HOUR_MS, TimerBucket
from pyromq.testing import FakeClock

DAY = 86_400_000


class Run:
    """One life of a store with its timers, on a clock that stands still."""

    def __init__(self, config, now_ms=1_700_000_000_000, *, disk=LOCAL_DISK, follows=False):
        self.config = config
        self.clock = FakeClock(now_ms)
        self.store = MessageStore(config.store_config, self.clock, store_address=bytes(8), disk=disk)
        self.store.open()
        self.timers = TimerScheduler(
            self.store,
            PutMessage(self.store, Statistics("c", self.clock)),
            config.data / "timers",
            config=config,
            cold_reads=LoadedAtOnce(self.store.disk, self.clock),
            clock=self.clock,
        )
        if follows:
            self.timers.index.load_to_follow()
        else:
            self.timers.load()

    def park(self, due_ms, key):
        text = encode_properties({"TIMER_DELIVER_MS": str(due_ms), "UNIQ_KEY": key, "CLUSTER": "c"})
        message = StoredMessage("orders", key.encode(), text)
        self.timers.divert(message)
        self.store.append(message)
        return message

    def cancel(self, due_ms, key):
        for _ in self.cancelling(due_ms, key):
            pass

    def cancelling(self, due_ms, key):
        """The steps of a cancel."""
        return steps_of(self.timers.cancel(RecallHandle("orders", "broker-a", due_ms, key), born_address=bytes(8)))

    def catch_up(self):
        for _ in steps_of(self.timers.index.catch_up()):
            pass

    def work(self):
        while self.timers.step() == 0:
            pass

    def flush(self):
        self.store.wait_flushed(self.store.max_log_offset).result(PATIENCE_SECONDS)

    def save(self, *, flush=True):
        """Take a checkpoint, and save it if it may be."""
        self.timers.unsaved()
        self.work()
        if flush:
            self.flush()
        if (save := self.timers.unsaved()) is not None:
            save()

    def delivered(self):
        entries = self.store.entries("orders", 0, 0, 10_000)
        return [self.store.message_at(entry.log_offset) for entry in entries]

    def keys(self):
        return [message.body.decode() for message in self.delivered()]

    def stop(self):
        self.store.close()
        self.timers.persist()

    def crash(self):
        """End it without a trace on disk; only the copies count."""
        self.store.close()
        self.timers.index._files.release()


@pytest.fixture
def config(config):
    return replace(config, store=replace(config.store, segment_bytes=1 << 16))


# -- restarts


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("crashed", [False, True])
def test_what_waits_waits_on_after_a_restart(config, saved, crashed):
    run = Run(config)
    now = run.clock.now_ms()
    for number in range(50):
        run.park(now + 1000 + number * HOUR_MS // 4, f"K{number:02}")
    run.work()
    if saved:
        run.save()
    run.cancel(now + 1000 + 7 * HOUR_MS // 4, "K07")
    run.clock.jump(3600)
    run.work()
    before = run.keys()
    if crashed:
        config = killed(config)
        run.crash()
    else:
        run.stop()
    again = Run(config, now + DAY)
    again.catch_up()
    assert again.timers.index.pending == {"orders": 50 - 1 - len(before)}
    again.work()
    assert again.keys() == [f"K{number:02}" for number in range(50) if number != 7]
    assert again.timers.index.pending == {}
    again.crash()


async def test_a_broker_that_was_killed_goes_on(config, clock, caller_to):
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await caller.create_topic("orders")
        for seconds in (1, 5):
            await caller.send("orders", b"%d" % seconds, properties=f"TIMER_DELAY_SEC\x01{seconds}")
        await clock.advance(2)
        left = killed(config)
    async with Broker(left, clock) as broker:
        caller = await caller_to(broker)
        assert broker.store.max_offset("orders", 0) == 1
        await clock.advance(3)
        assert broker.store.max_offset("orders", 0) == 2


async def test_what_became_due_during_a_stop_comes_at_once_in_order_and_lets_others_through(
    config, clock, caller_to, monkeypatch
):
    monkeypatch.setattr(timers, "DELIVERED_MESSAGES", 2)
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await caller.create_topic("orders")
        await caller.create_topic("other")
        for number in range(400):
            due = clock.now_ms() + 1000 + (number * 7919 % 400) * 60_000
            await caller.send("orders", b"%d" % due, properties=f"TIMER_DELIVER_MS\x01{due}")
    clock.jump(86_400)
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await caller.send("other")  # answered between the batches
        assert 0 < broker.store.max_offset("orders", 0) < 400
        while broker.store.max_offset("orders", 0) < 400:
            await asyncio.sleep(0)
        entries = broker.store.entries("orders", 0, 0, 1000)
        bodies = [int(broker.store.message_at(entry.log_offset).body) for entry in entries]
        assert bodies == sorted(bodies)


async def test_a_broker_saves_its_progress_while_it_runs(config, clock, caller_to):
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await caller.create_topic("orders")
        await caller.send("orders", properties="TIMER_DELAY_SEC\x0186400")
        needed = broker.timers.index.log_needed_from
        for _ in range(4):
            await clock.advance(config.offsets_interval_ms / 1000)
            broker.store.wait_flushed(broker.store.max_log_offset).result(PATIENCE_SECONDS)
            await broker.saved()
        assert broker.timers.index.log_needed_from > needed
        assert list(config.data.glob("timers/*.entries"))
        left = killed(config)
    async with Broker(left, clock) as broker:
        assert broker.timers.index.pending == {"orders": 1}


async def test_a_broker_without_timers_has_no_files_for_them(config, clock):
    async with Broker(config, clock):
        pass
    assert not (config.data / "timers").exists()


def test_the_log_before_the_checkpoint_is_not_needed(config):
    """The records are gone, as after their retention; the messages come all the same."""
    run = Run(config)
    now = run.clock.now_ms()
    for number in range(600):
        run.park(now + 40 * HOUR_MS + number, f"K{number:03}")
    run.work()
    assert run.timers.index.log_needed_from == 0
    run.save()
    assert run.timers.index.log_needed_from == run.store.max_log_offset
    run.park(now + 40 * HOUR_MS + 1000, "last")
    run.work()
    needed = run.timers.index.log_needed_from
    assert needed < run.store.max_log_offset
    copy = killed(config)
    run.crash()
    segments = sorted((copy.data / "commitlog").iterdir())
    gone = [path for path in segments if int(path.name) + (1 << 16) <= needed]
    assert gone
    for path in gone:
        path.unlink()
    again = Run(copy, now + 50 * HOUR_MS)
    again.work()
    assert again.keys() == [*(f"K{number:03}" for number in range(600)), "last"]
    again.crash()


def test_without_checkpoint_everything_is_made_again_from_the_log(config):
    run = Run(config)
    now = run.clock.now_ms()
    for number in range(20):
        run.park(now + 1000 + number * HOUR_MS, f"K{number:02}")
    run.clock.jump(5 * 3600)
    run.work()
    run.save()
    assert len(run.keys()) == 5
    run.stop()
    shutil.rmtree(config.data / "timers")
    again = Run(config, now + DAY)
    again.work()
    assert again.keys() == [f"K{number:02}" for number in range(20)]
    again.crash()


def test_files_shorter_than_the_checkpoint_says_are_named(config):
    run = Run(config)
    run.park(run.clock.now_ms() + HOUR_MS, "K")
    run.save()
    run.stop()
    (path,) = (config.data / "timers").glob("*.records")
    path.write_bytes(b"")
    with pytest.raises(StoreCorrupt, match=path.name):
        Run(config)


def test_a_quiet_store_keeps_its_checkpoint_near_the_end_of_the_log(config, monkeypatch):
    """Else a crash after weeks would have to look through all that was stored since."""
    monkeypatch.setattr(timer_index, "REFRESH_BYTES", 1000)
    run = Run(config)
    run.park(run.clock.now_ms() + DAY, "K")
    run.save()
    run.save()
    for _ in range(100):
        run.store.append(StoredMessage("others", b"x" * 100))
    run.save()
    assert run.timers.index._files.saved.log_end == run.store.max_log_offset
    run.crash()


def test_a_stop_in_the_middle_of_recovery_does_no_harm(config, monkeypatch):
    run = Run(config)
    now = run.clock.now_ms()
    for number in range(20):
        run.park(now + 1000 + number, f"K{number:02}")
    run.work()
    run.save()
    run.clock.jump(1.010)
    run.work()
    copy = killed(config)
    run.crash()
    monkeypatch.setattr(timer_index, "CHECKED_RECORDS", 2)
    for _ in range(3):
        again = Run(copy, now + 1010)
        again.timers.step()
        again.timers.unsaved()
        again.timers.step()
        again.stop()
    last = Run(copy, now + DAY)
    last.work()
    assert last.keys() == [f"K{number:02}" for number in range(20)]
    last.crash()


def test_what_is_filed_but_not_copied_is_taken_from_the_log(config):
    run = Run(config)
    now = run.clock.now_ms()
    for number in range(5):
        run.park(now + DAY + number, f"K{number}")
    run.save()
    copied = run.timers.index.log_needed_from
    for number in range(5, 10):
        run.park(now + DAY + number, f"K{number}")
    run.stop()
    again = Run(config, now)
    (bucket,) = again.timers.index.buckets.values()
    assert (bucket.count, bucket.copied) == (10, 5)
    assert again.timers.index.log_needed_from == copied
    again.save()
    assert bucket.copied == 10
    assert again.timers.index.log_needed_from == again.store.max_log_offset
    again.stop()
    last = Run(config, now + 2 * DAY)
    last.work()
    assert last.keys() == [f"K{number}" for number in range(10)]
    last.crash()


def test_records_are_copied_when_little_comes_or_much_of_the_log_is_kept_for_them(config, monkeypatch):
    monkeypatch.setattr(timer_index, "QUIET", 5)
    monkeypatch.setattr(timer_index, "COPY_BYTES", 8_000)
    run = Run(config)
    index, due = run.timers.index, run.clock.now_ms() + DAY
    copied, kept = [], []
    for come in [6] * 12 + [5]:
        for _ in range(come):
            run.park(due, "K")
        run.save()
        (bucket,) = index.buckets.values()
        copied.append(bucket.copied)
        kept.append(run.store.max_log_offset - index.log_needed_from)
    assert copied[0] == 0
    assert sorted(set(copied)) == [0, 42, 77]
    assert copied[-1] == bucket.count
    assert kept[-1] == 0
    assert max(kept) < 2 * 8_000
    run.crash()


def test_a_stop_leaves_no_file_open(config):
    run = Run(config)
    for hours in range(30):
        run.park(run.clock.now_ms() + 1 + hours * HOUR_MS, f"K{hours}")
        run.work()
        run.save()
        run.clock.jump(2 * 3600)
        run.work()
    run.stop()
    assert not [path for path in map(os.path.realpath, Path("/proc/self/fd").iterdir()) if str(config.data) in path]


def test_following_the_log_after_a_crash_comes_to_an_end_however_many_come(config):
    run = Run(config)
    now = run.clock.now_ms()
    for number in range(40):
        run.park(now + DAY, f"old{number:02}")
    copy = killed(config)
    run.crash()
    again = Run(copy, now)
    for number in range(20):  # without a step in between
        again.park(now + 1 + number, f"new{number:02}")
    assert again.timers.index.pending == {"orders": 60}
    again.clock.jump(1)
    again.work()
    assert again.keys() == [f"new{number:02}" for number in range(20)]
    again.crash()


# -- crashes at any moment


@dataclass(frozen=True)
class Wreck:
    """A folder as a crash left it, and what had been promised by then."""

    config: object
    now_ms: int
    confirmed: dict  # key -> due ms
    cancelled: frozenset  # confirmed cancels
    doubtful: frozenset  # whose send or cancel was not answered yet


class Schedule:
    """A random run of sends, cancels, deliveries and checkpoints; crashes are tried around every write."""

    def __init__(self, config, seed, *, power_loss=False):
        self.random = random.Random(seed)
        self.config = config
        self.run = Run(config)
        self.confirmed = {}
        self.ends = {}  # key -> end of its record, and of its cancel's, in the log
        self.cancelled = set()
        self.doubtful = set()
        self.wrecks = []
        self.synced = {}
        self.power_loss = power_loss
        self.chance = 0.0

    def moment(self):
        if self.random.random() < self.chance:
            self.wrecks.append(self.wreck())

    def wreck(self):
        copy = killed(self.config, f"crash-{len(self.wrecks)}")
        confirmed, cancelled = dict(self.confirmed), set(self.cancelled)
        doubtful = set(self.doubtful)
        if self.power_loss:
            safe = self.run.store.flushed_to
            self._cut(copy, safe)
            lost = {key for key in confirmed if self.ends[key] > safe}
            uncertain = {key for key in cancelled if self.ends[f"cancel of {key}"] > safe}
            doubtful |= lost | uncertain
        return Wreck(copy, self.run.clock.now_ms(), confirmed, frozenset(cancelled), frozenset(doubtful))

    def _cut(self, copy, safe):
        """Take away what was not flushed: of the log, of the queues (they are made again), of the timers' files."""
        for path in sorted((copy.data / "commitlog").iterdir()):
            keep = min(max(safe - int(path.name), 0), 1 << 16)
            content = path.read_bytes()
            path.write_bytes(content[:keep] + bytes(len(content) - keep))
        for path in copy.data.glob("timers/*-*T*"):
            path.write_bytes(path.read_bytes()[: self.synced.get(path.name, 0)])
        (copy.data / "abort").write_text("1 another boot\n")

    def go(self, events):
        for number in range(events):
            choice = self.random.random()
            if choice < 0.5:
                self.send(f"K{number:04}")
            elif choice < 0.65:
                self.cancel()
            elif choice < 0.9:
                self.run.clock.jump(self.random.choice([0.05, 1, 30, 400, 1800]))
                self.run.work()
            elif choice < 0.95:
                self.run.flush()
            else:
                self.run.save(flush=self.random.random() < 0.5)
        return self.wrecks

    def send(self, key):
        due = self.run.clock.now_ms() + self.random.choice([1, 500, 60_000, HOUR_MS, 5 * HOUR_MS])
        due += self.random.randrange(3)
        self.doubtful.add(key)
        message = self.run.park(due, key)
        self.doubtful.discard(key)
        self.confirmed[key] = due
        self.ends[key] = message.log_offset + message.size

    def cancel(self):
        open_keys = sorted(self.confirmed.keys() - self.cancelled)
        if not open_keys:
            return
        key = self.random.choice(open_keys)
        self.doubtful.add(key)
        try:
            for _ in self.run.cancelling(self.confirmed[key], key):
                self.moment()
                if self.random.random() < 0.5:
                    self.run.timers.step()
        except RecallRefused:
            pass
        else:
            self.cancelled.add(key)
            self.ends[f"cancel of {key}"] = self.run.store.max_log_offset
        self.doubtful.discard(key)


@pytest.fixture
def watched(monkeypatch):
    """Let a schedule's `moment` be called before and after each write of log, timers' files and checkpoint."""

    def watch(schedule):
        def around(owner, name):
            real = getattr(owner, name)

            def wrapped(self, *arguments):
                schedule.moment()
                result = real(self, *arguments)
                if owner is GrowingFile and name == "sync":
                    schedule.synced[Path(self.path).name] = self.path.stat().st_size
                schedule.moment()
                return result

            monkeypatch.setattr(owner, name, wrapped)

        for owner, name in [
            (CommitLog, "append"),
            (CommitLog, "append_batch"),
            (GrowingFile, "write"),
            (GrowingFile, "sync"),
            (JsonFile, "save"),
            (TimerBucket, "delete"),
        ]:
            around(owner, name)
        store = schedule.run.store
        store._append_record = store._log.append

    return watch


def check(wreck):
    """Open what a crash left, let all time pass, and see that every promise is kept."""
    run = Run(wreck.config, wreck.now_ms)
    run.work()
    run.clock.jump(24 * 3600)
    run.work()
    delivered = run.delivered()
    keys = [message.body.decode() for message in delivered]
    assert len(set(keys)) == len(keys), "delivered twice"
    assert wreck.confirmed.keys() - wreck.cancelled - wreck.doubtful <= set(keys), "lost"
    assert not (wreck.cancelled - wreck.doubtful) & set(keys), "delivered though cancelled"
    assert set(keys) <= wreck.confirmed.keys() | wreck.doubtful
    dues = [int(message.properties["TIMER_OUT_MS"]) for message in delivered if "TIMER_OUT_MS" in message.properties]
    for message in delivered:
        if message.body.decode() in wreck.confirmed:
            assert message.store_ms >= wreck.confirmed[message.body.decode()], "early"
    assert dues == sorted(dues), "out of order"
    assert run.timers.index.pending == {}
    run.stop()
    again = Run(wreck.config, wreck.now_ms + 2 * DAY)
    again.work()
    assert again.keys() == keys
    again.crash()
    shutil.rmtree(wreck.config.data)


@pytest.mark.parametrize("power_loss", [False, True])
@pytest.mark.slow
@pytest.mark.parametrize("seed", [seed_of_the_day()])
def test_no_crash_breaks_a_promise(config, watched, monkeypatch, seed, power_loss):
    """500 sends and cancels, cut short at some 40 moments around writes; in small slices, so all is often half done."""
    monkeypatch.setattr(timer_index, "FOLLOWED_RECORDS", 7)
    monkeypatch.setattr(timer_bucket, "_AT_ONCE", 9)
    monkeypatch.setattr(timer_index, "WRITTEN_RECORDS", 5)
    monkeypatch.setattr(timer_index, "QUIET", 5)
    monkeypatch.setattr(timer_index, "COPY_BYTES", 8_000)
    monkeypatch.setattr(timer_files, "OPENING_EFFORT", 2)
    monkeypatch.setattr(timer_index, "UNWRITTEN_BYTES", 3_000)
    monkeypatch.setattr(timers, "DELIVERED_MESSAGES", 5)
    monkeypatch.setattr(timers, "READ_ENTRIES", 6)
    monkeypatch.setattr(timers, "SLICE_SECONDS", 0)
    schedule = Schedule(config, seed, power_loss=power_loss)
    schedule.chance = 0.015
    watched(schedule)
    wrecks = schedule.go(770)  # of which 500 send or cancel
    schedule.run.crash()
    monkeypatch.undo()
    assert len(wrecks) > 20
    for wreck in wrecks:
        check(wreck)
