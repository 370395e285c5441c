"""A disk that refuses to read, for once or for good: nothing that waits is forgotten, and the order is kept.

What is on a part of the disk that is gone holds nobody up.
"""

import errno
import os

import pytest
from tests.broker.delays.test_timer_recovery import Run

from pyromq.errors import StoreError
from pyromq.message import StoredMessage
from pyromq.store.disk import LocalDisk
from pyromq.store.timers.timer_bucket import ENTRY_BYTES

COUNT = 5
KEYS = [f"K{number}" for number in range(COUNT)]


class Refusing(LocalDisk):
    """Reads no entry of the numbers in `refused`, and only while told to wait those in `cold`."""

    def __init__(self):
        self.refused, self.cold = set(), set()
        self.why = errno.EMFILE

    def read(self, descriptor, size, position):
        if size == ENTRY_BYTES and position // ENTRY_BYTES in self.refused:
            raise OSError(self.why, os.strerror(self.why))
        return super().read(descriptor, size, position)

    def read_now(self, descriptor, size, position):
        if size == ENTRY_BYTES and position // ENTRY_BYTES in self.cold:
            return None
        return self.read(descriptor, size, position)


@pytest.fixture
def run(config):
    """Five messages that are due, in files."""
    run = Run(config, disk=Refusing())
    for number, key in enumerate(KEYS):
        run.park(run.clock.now_ms() + 1_000 + number, key)
    run.work()
    run.save()
    run.clock.jump(2)
    yield run
    run.crash()


@pytest.mark.parametrize("number", range(COUNT))
def test_what_is_due_when_a_timer_cannot_be_read_for_once_is_delivered_all_the_same(run, number):
    run.store.disk.refused.add(number)
    with pytest.raises(StoreError, match=r"^cannot read /.*\.entries: Too many open files$"):
        run.work()
    assert run.keys() == KEYS[:number]
    assert run.timers.index.pending == {"orders": COUNT - number}
    run.store.disk.refused.clear()
    run.work()
    assert run.keys() == KEYS
    assert run.timers.index.pending == {}


@pytest.mark.parametrize("number", range(COUNT))
def test_none_is_delivered_before_an_earlier_one_that_comes_from_the_disk(run, number):
    run.store.disk.cold.add(1)
    run.store.disk.refused.add(number)
    with pytest.raises(StoreError):
        run.work()
    assert run.keys() == KEYS[:number]
    run.store.disk.refused.clear()
    run.work()
    assert run.keys() == KEYS


def test_a_timer_that_is_gone_from_the_disk_is_left_out_and_stays_filed(run, caplog):
    run.store.disk.why = errno.EIO
    run.store.disk.refused.add(2)
    run.work()
    assert run.keys() == [key for key in KEYS if key != "K2"]
    assert run.timers.index.pending == {"orders": 1}
    assert "entries cannot be read at byte 72; restore it from a backup" in caplog.text


def test_whatever_goes_wrong_while_they_are_opened_none_is_forgotten(run, monkeypatch):
    queues = iter([0, 0])
    monkeypatch.setattr(run.timers, "_queue_for", lambda topic, queue_id: next(queues))
    with pytest.raises(StopIteration):
        run.work()
    assert run.keys() == KEYS[:2]
    monkeypatch.undo()
    run.work()
    assert run.keys() == KEYS


class Worn(LocalDisk):
    """A disk with bad sectors: reads that touch a page in `worn`, pairs of a file's suffix and a page, fail."""

    def __init__(self):
        self.worn, self.suffixes = set(), {}

    def open(self, path, *, create=False, write=True):
        descriptor = super().open(path, create=create, write=write)
        self.suffixes[descriptor] = path.suffix
        return descriptor

    def read(self, descriptor, size, position):
        pages = range(position // PAGE, (position + size - 1) // PAGE + 1)
        if any((self.suffixes[descriptor], page) in self.worn for page in pages):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().read(descriptor, size, position)

    def read_now(self, descriptor, size, position):
        return self.read(descriptor, size, position)


PAGE = 4096
FIRST, LATER = [f"F{number:03}" for number in range(300)], ["L0", "L1"]  # keys of two hours, the first of three pages


@pytest.fixture
def stopped(config):
    """A stopped store with messages of two hours; three of the first hour are delivered. Also the time of its stop."""
    run = Run(config)
    hour = run.clock.now_ms() // 3_600_000 * 3_600_000 + 3_600_000
    for number, key in enumerate(FIRST):
        run.park(hour + number, key)
    for key in LATER:
        run.park(hour + 3_600_000, key)
    run.clock.jump((hour + 2 - run.clock.now_ms()) / 1000)
    run.work()
    run.save()
    run.stop()
    return config, run.clock.now_ms()


def restarted_with(stopped, *worn):
    config, now = stopped
    run = Run(config, now, disk=Worn())
    run.store.disk.worn |= set(worn)
    return run


def test_entries_on_a_bad_sector_hold_no_others_up(stopped, caplog):
    run = restarted_with(stopped, (".entries", 1))
    run.clock.jump(2 * 3600)
    run.work()
    lost = range(PAGE // ENTRY_BYTES, -(-2 * PAGE // ENTRY_BYTES))
    assert run.keys() == [key for number, key in enumerate(FIRST) if number not in lost] + LATER
    assert run.timers.index.pending == {"orders": len(lost)}
    assert "entries cannot be read at byte" in caplog.text
    run.crash()


def test_marks_on_a_bad_sector_hold_nobody_up(stopped, caplog):
    run = restarted_with(stopped, (".finished", 0))
    run.clock.jump(2 * 3600)
    run.work()
    assert run.keys() == FIRST[:3] + FIRST + LATER
    assert run.timers.index.pending == {}
    assert "finished cannot be read at byte 0" in caplog.text
    run.crash()


def test_a_cancel_in_an_hour_on_a_bad_sector_holds_nobody_up(stopped, caplog):
    run = restarted_with(stopped)
    due_ms = run.store.message("rmq_sys_wheel_timer", 0, 7).properties["TIMER_OUT_MS"]
    run.cancel(int(due_ms), FIRST[7])
    run.crash()
    config, now = stopped
    run = restarted_with((config, now), (".entries", 2))
    run.clock.jump(2 * 3600)
    run.work()
    assert run.keys()[-2:] == LATER
    assert f"{FIRST[7]} is not cancelled" in caplog.text
    run.crash()


def test_entries_that_cannot_be_read_for_the_copies_of_their_records_hold_nobody_up(config, caplog):
    run = Run(config, disk=Worn())
    now = run.clock.now_ms()
    for key in KEYS:
        run.park(now + 1_000, key)
    run.park(now + 3_600_000, "later")
    run.work()
    run.timers.index._files.begin_round(copy=False)
    assert run.timers.index._files.write_some(1_000, keep=0)
    run.store.disk.worn.add((".entries", 0))
    run.save()
    run.clock.jump(1)
    run.store.disk.worn.clear()
    run.work()
    assert run.keys() == KEYS
    run.crash()


class Busy(LocalDisk):
    """A disk on which a few openings of log files fail."""

    failing = 0

    def open(self, path, *, create=False, write=True):
        if self.failing and path.parent.name == "commitlog":
            self.failing -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().open(path, create=create, write=write)


@pytest.mark.parametrize("follows", [False, True])
def test_a_log_file_that_cannot_be_opened_for_once_repeats_no_delivery(config, follows):
    run = Run(config, disk=Busy())
    now = run.clock.now_ms()
    for number, key in enumerate(KEYS):
        run.park(now + 1_000 + number, key)
    run.park(now + 60_000, "later")
    run.work()
    run.save()
    run.clock.jump(2)
    run.work()
    for _ in range(30):
        run.store.append(StoredMessage("others", bytes(9_000)))  # several files of the log
    run.crash()
    run = Run(config, now + 2_000, disk=Busy(), follows=follows)
    run.store._log.files.release()
    run.store.disk.failing = 3
    for _ in range(3):
        with pytest.raises(StoreError, match="Too many open files"):
            run.timers.follow_master() if follows else run.work()
    if follows:
        run.timers.index.lead()
    run.clock.jump(60)
    run.work()
    assert run.keys() == [*KEYS, "later"]
    run.crash()
