"""What of the log is in memory, and for how long that is believed."""

import os
from itertools import pairwise

import pytest

from pyromq.message import StoredMessage
from pyromq.store.disk import LOCAL_DISK, LocalDisk
from pyromq.store.log import commit_log as residency_module
from pyromq.store.log.commit_log import CommitLog, Residency
from pyromq.store.message_store import MessageStore
from pyromq.store.store_config import StoreConfig
from pyromq.testing.fake_clock import FakeClock

pytestmark = pytest.mark.on_disk

MEGABYTE = 1 << 20
SEGMENT_BYTES = 3 * MEGABYTE + 4096  # its borders are not the blocks'


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def log(tmp_path, clock):
    log = CommitLog(tmp_path, SEGMENT_BYTES, clock=clock, max_record_bytes=MEGABYTE)
    log.resume(0, 0)
    for _ in range(100):
        log.append(StoredMessage("orders", os.urandom(100_000)))
    yield log
    log.close()


def drop(segment, start, size):
    LOCAL_DISK.drop_pages(segment.memory, start, size)
    with segment.path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), start, size, os.POSIX_FADV_DONTNEED)


@pytest.fixture
def forget(log):
    """Have nothing of the log in memory, as far as the file system does that."""

    def forget():
        for segment in log.files.segments:
            drop(segment, 0, segment.size)

    forget()
    if not any(segment.to_load(0, segment.size) for segment in log.files.segments):
        pytest.skip("this file system keeps its files in memory")
    return forget


@pytest.fixture
def residency(log, clock, monkeypatch):
    monkeypatch.setattr(residency_module, "RECENT_BYTES", MEGABYTE)
    return Residency(log, clock)


def load(residency, start, end):
    LOCAL_DISK.load(residency.to_load((at, MEGABYTE) for at in range(start, end, MEGABYTE)))


def test_what_was_written_a_moment_ago_is_there(log, residency):
    assert residency.covers(log.end - MEGABYTE, log.end)


@pytest.mark.parametrize("start", [0, 2 * MEGABYTE + 5000], ids=["in a segment", "over two segments"])
async def test_what_was_whole_is_believed_for_a_second(log, residency, forget, clock, start):
    end = start + MEGABYTE + 7000
    assert not residency.covers(start, end)
    load(residency, start // MEGABYTE * MEGABYTE, start // MEGABYTE * MEGABYTE + 2 * MEGABYTE)
    assert residency.covers(start, end)
    forget()
    await clock.advance(0.9)
    assert residency.covers(start, end)
    await clock.advance(0.2)
    assert not residency.covers(start, end)


def test_a_block_with_a_page_missing_is_not_believed(log, residency, forget):
    load(residency, 0, MEGABYTE)
    drop(log.files.segments[0], MEGABYTE // 2, MEGABYTE // 2)
    if not residency.to_load([(0, MEGABYTE)]):
        pytest.skip("this file system keeps what it has read")
    assert not residency.covers(0, 5000)


@pytest.mark.parametrize("step", [1, -1])
def test_neighbouring_records_are_one_piece_to_load(log, residency, forget, step):
    places = [(MEGABYTE + at, 100) for at in range(0, MEGABYTE - 100, 50_000)][::step]
    pieces = residency.to_load([(0, 100), *places, (5 * MEGABYTE, 100)])
    assert pieces[0][:3] == (log.files.segments[0].path, 0, 100)
    assert len(pieces) == (3 if step == 1 else 2 + len(places))
    assert sum(piece.size for piece in pieces) < MEGABYTE + 200


def test_a_piece_to_load_ends_with_its_file(log, residency, forget):
    first, second = log.files.segments[:2]
    found = [piece[:3] for piece in residency.to_load([(SEGMENT_BYTES - 100, 300)])]
    assert found == [(first.path, SEGMENT_BYTES - 100, 100), (second.path, 0, 200)]


def test_what_is_loaded_is_there_whatever_lies_between(log, residency, forget):
    places = [(MEGABYTE, 100), (MEGABYTE + 300_000, 100), (4 * MEGABYTE, 100)]
    LOCAL_DISK.load(residency.to_load(places[:2]))
    assert residency.to_load(places) == residency.to_load(places[2:])
    LOCAL_DISK.load(residency.to_load(places))
    assert residency.to_load(places) == []


@pytest.mark.parametrize("place", [(0, 65 * MEGABYTE), (-10 * MEGABYTE, -9 * MEGABYTE), (5000, -7)])
def test_a_long_stretch_or_a_damaged_one_is_not_sure(residency, place):
    assert not residency.covers(*place)


class LoadingDisk(LocalDisk):
    """Notes what is loaded."""

    def __init__(self):
        self.loaded = []

    def load(self, unread):
        self.loaded += unread
        super().load(unread)


def test_an_opened_log_has_its_end_loaded(tmp_path, clock, monkeypatch):
    monkeypatch.setattr(residency_module, "RECENT_BYTES", 6_000)
    config = StoreConfig(tmp_path, segment_bytes=4096)
    for disk in (LoadingDisk(), LoadingDisk()):
        store = MessageStore(config, clock, store_address=bytes(8), disk=disk)
        store.open()
        for _ in range(12):
            store.append(StoredMessage("orders", bytes(800)))
        end = store.max_log_offset
        store.close()
    again = LoadingDisk()
    store = MessageStore(config, clock, store_address=bytes(8), disk=again)
    store.open()
    store.close()
    pieces = [(int(path.name) + position, size) for path, position, size, *_ in again.loaded]
    assert pieces[0][0] == end - 6_000
    assert sum(size for _, size in pieces) == 6_000
    assert all(start + size == after for (start, size), (after, _) in pairwise(pieces))
    assert len(pieces) in (2, 3)
