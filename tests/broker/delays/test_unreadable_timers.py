"""A disk that refuses to read, for once or for good: nothing that waits is forgotten, and the order is kept.

What is on a part of the disk that is gone holds nobody up.
"""

import errno
import os

import pytest
from tests.broker.delays.test_timer_recovery import Run

from pyromq.errors import StoreError
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
