"""Progress that waits for its log, however much of the log comes meanwhile."""

from pathlib import Path

import pytest
from tests.store.making import ADDRESS, SMALL, StoppedClock, message

from pyromq.broker.internal_queues import FlushedProgress
from pyromq.store.config import FlushMode, StoreConfig
from pyromq.store.message_store import MessageStore
from pyromq.testing import SimulatedDisk


@pytest.fixture
def disk():
    return SimulatedDisk()


@pytest.fixture
def store(disk):
    """A store that flushes when it is told to."""
    config = StoreConfig(Path("/srv/store"), **SMALL, flush=FlushMode.SYNC)
    store = MessageStore(config, StoppedClock(), store_address=ADDRESS, disk=disk)
    store.open()
    yield store
    store.close()


def test_progress_is_taken_once_its_log_is_on_disk(store):
    progress = FlushedProgress(store)
    store.append(message())
    progress.hold("one")
    assert progress.take() is None
    flush(store)
    assert [progress.take(), progress.take()] == ["one", None]


def test_a_log_that_grows_during_every_flush_does_not_hold_progress_back(store, disk):
    progress = FlushedProgress(store)
    store.append(message())
    progress.hold("one")
    later = iter(["two"])

    def grow(_):
        for each in later:
            store.append(message())
            progress.hold(each)

    disk.while_syncing = grow
    flush(store)
    assert progress.take() == "one"


def flush(store):
    store.wait_flushed(store.max_log_offset)
    store.flush_due()
