"""However many wait in an hour, and were cancelled: each cancel is worked out in small steps, and little in all."""

from contextlib import suppress

import pytest
from tests.broker.delays.test_timer_recovery import Run
from tests.broker.folders import killed
from tests.slow_work import steps_of

from pyromq.broker.delays import timer_index, timer_scheduler
from pyromq.errors import RecallRefused
from pyromq.store.disk import LocalDisk
from pyromq.store.timers import timer_bucket
from pyromq.store.timers.timer_bucket import HOUR_MS

COUNT = 400
STEP_BYTES = 1_000  # that a step may read, where it reads ten entries or marks, and a few records
CANCEL_BYTES = 2_000  # that a cancel may read of an hour that is known


class CountingDisk(LocalDisk):
    """Tells how much was read of files that are not mapped: those of timers."""

    def __init__(self):
        self.total = 0

    def read(self, descriptor, size, position):
        self.total += size
        return super().read(descriptor, size, position)

    def read_now(self, descriptor, size, position):
        self.total += size
        return super().read_now(descriptor, size, position)

    def taken(self):
        """Return what was read since the last time."""
        total, self.total = self.total, 0
        return total


@pytest.fixture
def disk():
    return CountingDisk()


@pytest.fixture
def run(config, disk):
    run = Run(config, disk=disk)
    yield run
    run.crash()


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    monkeypatch.setattr(timer_bucket, "_AT_ONCE", 10)
    monkeypatch.setattr(timer_bucket, "_LOOKED_AT", 10)
    monkeypatch.setattr(timer_scheduler, "READ_ENTRIES", 10)
    monkeypatch.setattr(timer_scheduler, "SLICE_SECONDS", 0)
    monkeypatch.setattr(timer_index, "FOLLOWED_RECORDS", 40)  # two cancels


def park_hour(run, count=COUNT):
    """Let messages wait that are due in an hour far off, all of them in files; return when."""
    first = run.clock.now_ms() // HOUR_MS * HOUR_MS + 10 * HOUR_MS
    for number in range(count):
        run.park(first + number, f"K{number:03}")
    run.work()
    run.save()
    return first


def largest_read(steps, disk):
    """Take all steps; return how much the greediest of them has read, and how many there were."""
    most = count = 0
    disk.taken()
    for count, _ in enumerate(steps, 1):  # noqa: B007
        most = max(most, disk.taken())
    return max(most, disk.taken()), count


def test_no_step_of_a_cancel_reads_much(run, disk):
    first = park_hour(run)
    for number in range(COUNT // 2):
        run.cancel(first + number, f"K{number:03}")
    run.save()
    run.timers.index.buckets[first // HOUR_MS].release()
    most, steps = largest_read(run.cancelling(first + COUNT - 1, f"K{COUNT - 1}"), disk)
    assert most <= STEP_BYTES
    assert steps >= COUNT // 2 // 10  # marks, while entries are not read yet


def test_many_cancels_of_an_hour_read_it_once(run, disk):
    first = park_hour(run)
    disk.taken()
    run.cancel(first, "K000")
    assert disk.taken() >= COUNT * timer_bucket.ENTRY_BYTES
    for number in range(1, COUNT):
        run.cancel(first + number, f"K{number:03}")
        assert disk.taken() <= CANCEL_BYTES
        if not number % 50:  # what is new is written, and the files are closed
            run.save()
            disk.taken()
    assert run.timers.index.pending == {}


def test_what_comes_after_the_hour_was_read_is_cancelled_as_well(run):
    first = park_hour(run)
    run.cancel(first, "K000")
    run.park(first + 7, "more")
    run.cancel(first + 7, "more")
    run.cancel(first + 1, "K001")
    assert run.timers.index.pending == {"orders": COUNT - 2}


def test_following_cancels_after_a_crash_is_done_in_steps(config, disk):
    run = Run(config)
    first = park_hour(run)
    for number in range(COUNT // 2):
        run.cancel(first + number, f"K{number:03}")
    left = killed(config)
    run.crash()
    again = Run(left, disk=disk)
    most, steps = largest_read(steps_of(again.timers.index.catch_up()), disk)
    assert most <= STEP_BYTES
    assert steps >= COUNT // 2 // 2  # two cancels at a time
    assert again.timers.index.pending == {"orders": COUNT // 2}
    again.crash()


def test_an_hour_comes_near_in_steps(run, disk):
    first = park_hour(run)
    for number in range(COUNT - 1):
        run.cancel(first + number, f"K{number:03}")
    run.save()
    run.timers.index.buckets[first // HOUR_MS].release()
    run.clock.jump((first - run.clock.now_ms()) // 1000 - 60)
    assert largest_read(iter(run.timers.step, 1.0), disk)[0] <= STEP_BYTES
    assert run.timers.index.buckets[first // HOUR_MS].finished is not None
    run.clock.jump(3600)
    run.work()
    assert run.keys() == [f"K{COUNT - 1}"]


# -- many under one key


def test_all_of_one_key_are_cancelled_in_steps_and_none_leaves_meanwhile(run):
    due = run.clock.now_ms() + 5_000
    for _ in range(50):
        run.park(due, "same")
    run.work()
    before, steps = run.store.max_log_offset, 0
    for _ in run.cancelling(due, "same"):
        if run.store.max_log_offset > before:
            steps += 1
            run.clock.jump(10)  # they are due
            run.timers.step()
    assert steps >= 10
    run.work()
    assert run.keys() == []


def test_what_comes_behind_a_cancel_is_not_cancelled_by_it(run):
    due = run.clock.now_ms() + 5_000
    for _ in range(50):
        run.park(due, "same")
    for number, _ in enumerate(run.cancelling(due, "same")):
        run.park(due, "same" if number else "other")
    run.clock.jump(10)
    run.work()
    assert run.keys().count("other") == 1
    assert 0 < run.keys().count("same") < 50


@pytest.mark.parametrize("steps", range(0, 30, 4))
def test_a_crash_in_the_middle_of_a_cancel_leaves_all_or_nothing_of_it(config, steps):
    run = Run(config)
    due = run.clock.now_ms() + 5_000
    for _ in range(50):
        run.park(due, "same")
    run.save()
    before = run.store.max_log_offset
    if steps:
        for _ in zip(range(steps), run.cancelling(due, "same"), strict=False):
            pass
    is_stored = run.store.max_log_offset > before
    if run.timers.unsaved() is None:  # a snapshot of the middle is taken, and saved
        run.timers.index.write()
    run.flush()
    if (save := run.timers.unsaved()) is not None:
        save()
    left = killed(config)
    run.crash()
    again = Run(left, due + 1)
    again.work()
    assert len(again.keys()) == (0 if is_stored else 50)
    again.crash()


def test_one_that_leaves_while_it_is_looked_for_cannot_be_cancelled(run):
    due = run.clock.now_ms() // HOUR_MS * HOUR_MS + HOUR_MS
    for number in range(COUNT):
        run.park(due + number, f"K{number:03}")
    run.work()
    steps = run.cancelling(due, "K000")
    next(steps)
    run.clock.jump(2 * 3600)
    run.work()
    with pytest.raises(RecallRefused, match="was delivered"):
        list(steps)
    assert len(run.keys()) == COUNT


@pytest.mark.parametrize("step", range(0, 50, 7))
def test_an_hour_that_is_dropped_while_it_is_looked_through_stays_gone(run, step):
    first = park_hour(run)
    steps = iter(run.cancelling(first, "K000"))
    for _ in range(step):
        next(steps, None)
    run.clock.jump((first - run.clock.now_ms()) // 1000 + 3 * 3600)
    run.work()
    run.park(run.clock.now_ms() + HOUR_MS, "news")  # for there to be something to save
    run.save()
    run.save()
    assert first // HOUR_MS not in run.timers.index.buckets
    with suppress(RecallRefused):
        list(steps)
    assert len(list((run.config.data / "timers").glob("*.entries"))) == 1
