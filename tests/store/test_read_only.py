"""A file system that turns read-only, as ext4 does after an error: what is stored can be read, nothing is taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.errors import StoreNotWritable
from pyromq.slow_work import FilePiece, run_blocking
from pyromq.store.disk import LOCAL_DISK
from pyromq.store.message_store import MessageStore
from pyromq.store.store_config import StoreConfig
from pyromq.testing import SimulatedDisk

from .making import ADDRESS, NOON_MS, SMALL, TOPIC, StoppedClock, bodies, fill, message


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def store(disk: SimulatedDisk) -> MessageStore:
    config = StoreConfig(Path("/srv/store"), **SMALL)  # type: ignore[arg-type]
    store = MessageStore(config, StoppedClock(), store_address=ADDRESS, disk=disk)
    store.open()
    fill(store, 100)
    return store


def test_reading_goes_on_also_from_files_that_are_not_mapped(disk: SimulatedDisk, store: MessageStore) -> None:
    store._queues.release()
    store._log.files.release()
    disk.is_read_only = True
    assert bodies(store, 1) == [b"body %d" % number for number in range(1, 100, 2)]
    read = store.read(TOPIC, 0, 0, 32)
    assert read.records
    assert run_blocking(store.search_by_time(TOPIC, 0, NOON_MS)) == 0


def test_sends_are_refused_before_they_leave_anything(disk: SimulatedDisk, store: MessageStore) -> None:
    store._queues.release()
    disk.is_read_only = True
    assert bodies(store, 1)
    end = store.max_log_offset
    for _ in range(2):
        with pytest.raises(StoreNotWritable, match="Read-only file system; check that disk, then restart"):
            store.append(message(queue_id=1))
    assert (store.max_log_offset, store.max_offset(TOPIC, 1)) == (end, 50)


def test_a_damaged_entry_is_left_as_it_is(disk: SimulatedDisk, store: MessageStore) -> None:
    queue = store._queues.by_topic[TOPIC][0]
    entry = queue.find(7)
    assert entry is not None
    queue.put(7, entry._replace(log_offset=3))
    queue.unverified_end = queue.max_offset
    store._queues.release()
    disk.is_read_only = True
    assert store.read(TOPIC, 0, 0, 5).records
    store.read(TOPIC, 0, 7, 1)
    assert store.read(TOPIC, 0, 8, 5).records


def test_what_is_mapped_for_reading_can_be_looked_at_loaded_and_let_go(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 16384)
    descriptor = LOCAL_DISK.open(path, write=False)
    memory = LOCAL_DISK.map(descriptor, 16384, scattered=False, write=False)
    LOCAL_DISK.close(descriptor)
    with pytest.raises(TypeError):
        memory[0] = 1
    LOCAL_DISK.load([FilePiece(path, 10, 10), FilePiece(path, 9000, 10)])
    assert LOCAL_DISK.is_resident(memory, 10, 10)
    assert LOCAL_DISK.is_resident(memory, 9000, 10)
    LOCAL_DISK.drop_pages(memory, 0, 16384)
    assert bytes(memory) == b"x" * 16384
