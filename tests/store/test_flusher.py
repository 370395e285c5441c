"""What is on disk when, and who is told."""

from __future__ import annotations

import errno
import struct
from concurrent.futures import Future, wait
from pathlib import Path
from random import Random

import pytest
from tests.waiting import PATIENCE_SECONDS

from pyromq.errors import StoreNotWritable
from pyromq.store import flusher
from pyromq.store.disk import LocalDisk
from pyromq.store.message_store import MessageStore
from pyromq.store.store_config import FlushMode, StoreConfig
from pyromq.testing import SimulatedDisk
from pyromq.testing.simulated_disk import Loss

from .making import ADDRESS, NOON_MS, SMALL, TOPIC, StoppedClock, bodies, fill, message, opened, small_store


def test_waiters_are_told_when_their_message_is_on_disk(tmp_path: Path) -> None:
    with opened(tmp_path, flush=FlushMode.SYNC, flush_interval_ms=3_600_000) as store:
        ends = [each.log_offset + each.size for each in fill(store, 60)]
        for end, flushed in [(end, store.wait_flushed(end)) for end in ends]:
            assert flushed.result(timeout=PATIENCE_SECONDS)
            assert store.flushed_to >= end


def test_a_flush_confirms_no_record_that_was_appended_while_it_ran() -> None:
    disk = SimulatedDisk()
    config = StoreConfig(Path("/srv/store"), **SMALL, flush=FlushMode.SYNC)  # type: ignore[arg-type]
    store = MessageStore(config, StoppedClock(), store_address=ADDRESS, disk=disk)
    store.open()
    waits: list[Future[bool]] = []

    def append(_: Path | None = None) -> None:
        if len(waits) < 2:
            store.append(message())
            waits.append(store.wait_flushed(store.max_log_offset))

    append()
    disk.while_syncing = append
    store.flush_due()
    assert [each.done() for each in waits] == [True, False]
    assert store.flushed_to < store.max_log_offset
    store.flush_due()
    assert waits[1].result(timeout=0)
    store.close()


def test_the_checkpoint_covers_no_record_that_was_appended_during_a_flush() -> None:
    disk, clock = SimulatedDisk(), StoppedClock()
    store = MessageStore(StoreConfig(Path("/srv/store"), **SMALL), clock, store_address=ADDRESS, disk=disk)  # type: ignore[arg-type]
    store.open()
    store.append(message())

    def append(_: Path) -> None:
        clock.ms += 60_000
        store.append(message())

    disk.while_syncing = append
    store._flusher.flush_log()
    assert store._flusher._checkpoint.log_ms == NOON_MS
    entered_ms = store._log.last_store_ms
    store._flusher.flush_queues(least_pages=0)
    assert store._flusher._checkpoint.queues_ms == entered_ms < store._log.last_store_ms
    disk.while_syncing = lambda path: None
    store.close()


def test_entries_of_a_queue_that_begins_again_during_a_flush_are_not_taken_for_flushed() -> None:
    disk = SimulatedDisk()
    store = MessageStore(StoreConfig(Path("/srv/store"), **SMALL), StoppedClock(), store_address=ADDRESS, disk=disk)  # type: ignore[arg-type]
    store.open()
    fill(store, 3, queues=1)
    queue = store._queues.make(TOPIC, 0)
    disk.while_syncing = lambda path: queue.cut_at(0)  # a follower does so for a topic that was created again
    store._flusher.flush_queues(least_pages=0)
    assert queue.flushed_offset == 0
    disk.while_syncing = lambda path: None
    store.close()


def test_many_waiters_share_a_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path, segment_bytes=1 << 20) as store:
        calls = []
        genuine = LocalDisk.sync
        monkeypatch.setattr(LocalDisk, "sync", staticmethod(lambda descriptor: (calls.append(1), genuine(descriptor))))
        sent = fill(store, 200)
        waiting = [store.wait_flushed(each.log_offset + each.size) for each in sent]
        wait(waiting, timeout=PATIENCE_SECONDS)
        assert all(each.result() for each in waiting)
        assert len(calls) < 100
        assert store.wait_flushed(0).done()


def test_waiter_of_a_stuck_disk_is_told_after_the_timeout(tmp_path: Path) -> None:
    clock = StoppedClock()
    store = small_store(tmp_path, clock)
    store._log.resume(0, 0)  # no flushing thread, as if it hung
    store.append(message())
    flushed = store.wait_flushed(store.max_log_offset)
    clock.ms += 4_999
    store.tick()
    assert not flushed.done()
    clock.ms += 1
    store.tick()
    assert flushed.result(timeout=0) is False
    store.close()


def test_broken_disk_ends_appends_and_close_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = small_store(tmp_path)
    store.open()
    store.append(message())

    def broken(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(LocalDisk, "sync", staticmethod(broken))
    assert store.wait_flushed(store.max_log_offset).result(timeout=PATIENCE_SECONDS) is False
    with pytest.raises(StoreNotWritable, match="Input/output error"):
        store.append(message())
    monkeypatch.undo()  # a second try would succeed, without the pages lost in the first
    with pytest.raises(StoreNotWritable, match="Input/output error"):
        store.close()
    assert (tmp_path / "abort").exists()
    with opened(tmp_path) as again:
        assert bodies(again) == [b"body 0"]


@pytest.mark.parametrize("count", [0, 20])
def test_a_flush_that_fails_while_an_append_waits_for_disk_space_ends_appends(count: int) -> None:
    disk = SimulatedDisk()
    config = StoreConfig(Path("/srv/store"), **SMALL)  # type: ignore[arg-type]
    store = MessageStore(config, StoppedClock(), store_address=ADDRESS, disk=disk)
    store.open()
    fill(store, count)

    def fail(kind: str, path: Path) -> None:
        if path.parent.name == "commitlog" and kind in ("allocate", "create"):
            store._log.refuse("a flush failed")  # as the flusher's thread does at any moment

    disk.refuse = fail
    with pytest.raises(StoreNotWritable, match="a flush failed"):
        fill(store, 40)
    end = store.max_log_offset
    with pytest.raises(StoreNotWritable, match="a flush failed"):
        store.append(message())
    assert store.max_log_offset == end


def test_close_flushes_and_the_checkpoint_tells_how_far(tmp_path: Path) -> None:
    clock = StoppedClock()
    with opened(tmp_path, clock) as store:
        fill(store, 10)
        clock.ms += 70
        store.append(message(KEYS="last"))
    content = (tmp_path / "checkpoint").read_bytes()
    assert len(content) == 4096
    assert struct.unpack_from(">qqq", content) == (NOON_MS + 70,) * 3
    assert not any(content[24:468])  # where RocketMQ 5 has more times


def test_waiting_when_the_store_closes_ends_well(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    store.open()
    sent = fill(store, 5)
    waiting = [store.wait_flushed(each.log_offset + each.size) for each in sent]
    store.close()
    assert all(each.result(timeout=0) for each in waiting)


def test_an_index_that_cannot_be_flushed_keeps_no_store_from_its_end() -> None:
    disk = SimulatedDisk()
    config = StoreConfig(Path("/srv/store"), **SMALL)  # type: ignore[arg-type]
    store = MessageStore(config, StoppedClock(), store_address=ADDRESS, disk=disk)
    store.open()
    fill(store, 20)
    flushed = store.wait_flushed(store.max_log_offset)
    disk.refuse = lambda kind, path: errno.EIO if kind == "sync" and path.parent.name == "index" else None
    with pytest.raises(StoreNotWritable, match="Input/output error"):
        store.close()
    assert flushed.result(timeout=0) is True
    left = disk.after_power_cut(Random(1), Loss.ALL)
    again = MessageStore(config, StoppedClock(), store_address=ADDRESS, disk=left)
    again.open()
    assert again.crashed
    assert len(bodies(again)) == 10
    again.close()


def test_flushing_thread_flushes_queues_and_writes_the_checkpoint(tmp_path: Path) -> None:
    clock = StoppedClock()
    store = small_store(tmp_path, clock)
    store._directory.lock()
    store._log.resume(0, 0)
    fill(store, 10)
    clock.ms += 20_000
    store._flusher.turn()
    assert store.flushed_to == store.max_log_offset
    assert struct.unpack_from(">qq", (tmp_path / "checkpoint").read_bytes()) == (NOON_MS, NOON_MS)
    assert store._queues.make(TOPIC, 0).flushed_offset == 5
    store.close()


def test_who_waits_is_told_between_two_of_many_queues() -> None:
    disk = SimulatedDisk()
    config = StoreConfig(Path("/srv/store"), **SMALL, flush=FlushMode.SYNC)  # type: ignore[arg-type]
    store = MessageStore(config, StoppedClock(), store_address=ADDRESS, disk=disk)
    store.open()
    for number in range(100):
        store.append(message(queue_id=number))
    flushes: list[Path] = []
    confirmed: list[int] = []

    def send_one(path: Path) -> None:
        flushes.append(path)
        if len(flushes) == 20:
            store.append(message(queue_id=0))
            store.wait_flushed(store.max_log_offset).add_done_callback(lambda done: confirmed.append(len(flushes)))

    disk.while_syncing = send_one
    store._flusher.flush_queues(least_pages=0)
    assert len(flushes) > 100
    assert confirmed[0] < 25
    store.close()


def test_much_of_the_log_is_handed_to_the_disk_before_it_is_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flusher, "WRITE_OUT_BYTES", 4_000)
    disk = SimulatedDisk()
    config = StoreConfig(Path("/srv/store"), **{**SMALL, "segment_bytes": 1 << 16})  # type: ignore[arg-type]
    store = MessageStore(config, StoppedClock(), store_address=ADDRESS, disk=disk)
    store.open()
    asked: list[str] = []
    disk.refuse = lambda kind, path: asked.append(kind) if path.parent.name == "commitlog" else None

    def flushed(size: int) -> list[str]:
        store.append(message(PADDING="x" * size))
        asked.clear()
        store._flusher.flush_log()
        return [kind for kind in asked if kind in ("write_out", "sync")]

    assert flushed(4_000) == ["write_out", "sync"]
    assert flushed(10) == ["sync"]
    store.append(message())
    store.wait_flushed(store.max_log_offset)
    assert flushed(4_000) == ["sync"]  # somebody waits
    store.close()


def test_space_prepared_behind_the_log_is_not_handed_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed: list[tuple[int, int]] = []

    class WatchedDisk(LocalDisk):
        def write_out(self, descriptor: int, position: int, size: int) -> None:
            handed.append((position, position + size))
            super().write_out(descriptor, position, size)

    monkeypatch.setattr(flusher, "WRITE_OUT_BYTES", 4_000)
    config = StoreConfig(tmp_path, **{**SMALL, "segment_bytes": 1 << 16})  # type: ignore[arg-type]
    store = MessageStore(config, StoppedClock(), store_address=ADDRESS, disk=WatchedDisk())
    store.open()
    for _ in range(9):  # into a second file
        store.append(message(PADDING="x" * 10_000))
    end = store.max_log_offset
    store._flusher.flush_log()
    assert handed == [(0, 1 << 16), (0, end - (1 << 16))]
    store.close()


def test_a_disk_that_refuses_what_it_is_handed_ends_appends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flusher, "WRITE_OUT_BYTES", 100)
    disk = SimulatedDisk()
    config = StoreConfig(Path("/srv/store"), **SMALL)  # type: ignore[arg-type]
    store = MessageStore(config, StoppedClock(), store_address=ADDRESS, disk=disk)
    store.open()
    store.append(message())
    disk.refuse = lambda kind, path: errno.EIO if kind == "write_out" else None
    store._flusher._log_flushed_at = -3_600.0
    assert not store._flusher.turn()
    with pytest.raises(StoreNotWritable, match="restart the broker"):
        store.append(message())
    with pytest.raises(StoreNotWritable, match="Input/output error"):
        store.close()
