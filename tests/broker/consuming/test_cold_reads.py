"""Who waits for whom at the threads that read the disk."""

import threading
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_SECONDS

from pyromq.broker.cold_reads import THREADS, ColdReads, Fetching
from pyromq.net.tasks import Alarm
from pyromq.slow_work import FilePiece
from pyromq.store.disk import LocalDisk

REQUESTED, DUE = FilePiece(Path("requested"), 0, 1), FilePiece(Path("due"), 0, 1)


class SlowDisk(LocalDisk):
    """Loads what is requested when a test says so, everything else at once."""

    def __init__(self):
        self.may_load = threading.Event()

    def load(self, unread):
        if unread[0] is REQUESTED:
            assert self.may_load.wait(PATIENCE_SECONDS)


@pytest.fixture
def disk():
    return SlowDisk()


@pytest.fixture
def cold_reads(disk, clock):
    cold_reads = ColdReads(disk, clock)
    yield cold_reads
    disk.may_load.set()
    cold_reads.close()


def test_what_is_due_does_not_queue_behind_requests(cold_reads, disk, clock):
    requested = [cold_reads.load([REQUESTED]) for _ in range(4 * THREADS)]
    alarm = Alarm(clock)
    fetching = Fetching(cold_reads, alarm)
    assert fetching.lacks([DUE])
    fetching._loading.result(PATIENCE_SECONDS)
    assert not fetching.is_under_way
    assert not any(loading.done() for loading in requested)
    disk.may_load.set()
    for loading in requested:
        loading.result(PATIENCE_SECONDS)
