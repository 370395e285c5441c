"""Each cell of the table in docs/durability.md: what is there after which accident."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from pyromq.errors import StoreNotWritable
from pyromq.message import StoredMessage
from pyromq.slow_work import run_blocking
from pyromq.store.message_store import MessageStore
from pyromq.store.store_config import FlushMode, StoreConfig
from pyromq.testing import SimulatedDisk
from pyromq.testing.simulated_disk import SECTOR, Killed, Loss

from .making import ADDRESS, SMALL, TOPIC, StoppedClock, bodies, message

ROOT = Path("/srv/store")
MODES = pytest.mark.parametrize("flush", list(FlushMode))


def opened(disk: SimulatedDisk, flush: FlushMode = FlushMode.SYNC, clock: StoppedClock | None = None) -> MessageStore:
    config = StoreConfig(ROOT, flush=flush, **{**SMALL, "segment_bytes": 16 << 10})  # type: ignore[arg-type]
    store = MessageStore(config, clock or StoppedClock(), store_address=ADDRESS, disk=disk)
    store.open()
    return store


def send(store: MessageStore, count: int) -> list[bytes]:
    first = store.max_offset(TOPIC, 0)
    for number in range(first, first + count):
        store.append(message(number, KEYS=f"k{number}"))
    return [b"body %d" % number for number in range(first + count)]


def confirm(store: MessageStore) -> None:
    """What the answer to a sender waits for when flushing is synchronous."""
    waiting = store.wait_flushed(store.max_log_offset)
    store.flush_due()
    assert waiting.result(0)


@MODES
def test_a_killed_process_loses_nothing(flush: FlushMode) -> None:
    disk = SimulatedDisk()
    sent = send(opened(disk, flush), 100)
    assert bodies(opened(disk.after_kill(), flush)) == sent


def test_after_a_kill_data_of_a_failed_flush_is_not_trusted() -> None:
    disk = SimulatedDisk()
    store = opened(disk)
    send(store, 5)
    assert not opened(disk.after_kill()).lost_unflushed
    disk.refuse = lambda kind, path: errno.EIO if kind == "sync" else None
    store.wait_flushed(store.max_log_offset)
    assert not store.flush_due()
    disk.refuse = lambda kind, path: None
    assert opened(disk.after_kill()).lost_unflushed


@pytest.mark.parametrize("loss", list(Loss))
def test_a_machine_crash_loses_nothing_that_a_synchronous_flush_confirmed(loss: Loss) -> None:
    disk = SimulatedDisk()
    store = opened(disk)
    confirmed = send(store, 100)
    confirm(store)
    sent = send(store, 20)
    found = bodies(opened(disk.after_power_cut(Random(1), loss)))
    assert found[:100] == confirmed
    assert found == sent[: len(found)]


@pytest.mark.parametrize("loss", list(Loss))
def test_a_machine_crash_loses_what_an_asynchronous_flush_has_not_reached_and_no_more(loss: Loss) -> None:
    disk, clock = SimulatedDisk(), StoppedClock()
    store = opened(disk, FlushMode.ASYNC, clock)
    send(store, 100)
    clock.ms += 10_000  # the longest that anything waits
    store.flush_due()
    sent = send(store, 20)
    found = bodies(opened(disk.after_power_cut(Random(1), loss)))
    assert found == sent[: len(found)]
    assert len(found) >= 100


@MODES
@pytest.mark.parametrize("body_size", [10, 1_500])
def test_a_torn_write_costs_only_what_was_not_flushed(flush: FlushMode, body_size: int) -> None:
    """Of the last record any part of the sectors is there."""
    for kept in range(1, 16):
        disk = SimulatedDisk()
        store = opened(disk, flush)
        confirmed = send(store, 5)
        confirm(store)
        torn = message(5, filling="x" * 1_200)
        torn.stored_body = bytes([1]) * body_size
        store.append(torn)
        log = store._log.files.segments[0].memory
        first = torn.log_offset // SECTOR
        for number, sector in enumerate(range(first + 1, (torn.log_offset + torn.size) // SECTOR + 1)):
            if not kept >> number & 1:
                log[sector * SECTOR : (sector + 1) * SECTOR] = bytes(SECTOR)
        found = bodies(opened(disk.after_power_cut(Random(1), Loss.NOTHING)))
        assert found[:5] == confirmed
        assert found[5:] in ([], [torn.stored_body])


@MODES
def test_names_that_were_not_on_disk_cost_nothing_confirmed(flush: FlushMode) -> None:
    """New files and folders: the first of the store, further segments, a new queue's."""
    disk = SimulatedDisk()
    store = opened(disk, flush)
    sent = send(store, 300)
    store.append(message(topic="new"))
    confirm(store)
    after = opened(disk.after_power_cut(Random(1), Loss.ALL))
    assert len(store._log.files.segments) > 2
    assert bodies(after) == sent
    assert bodies(after, topic="new") == [b"body 0"]
    after.follow_index()
    assert run_blocking(after.search_by_key(TOPIC, "k299", 1, 0, 1 << 62)).log_offsets


@MODES
def test_a_failed_flush_confirms_nothing_any_more(flush: FlushMode) -> None:
    disk = SimulatedDisk()
    store = opened(disk, flush)
    confirmed = send(store, 5)
    confirm(store)
    sent = send(store, 5)
    disk.refuse = lambda kind, path: errno.EIO if kind == "sync" else None
    waiting = store.wait_flushed(store.max_log_offset)
    assert not store.flush_due()
    disk.refuse = lambda kind, path: None  # as real ones: the next flush succeeds, and writes nothing
    assert waiting.result(0) is False
    assert store.wait_flushed(store.max_log_offset).result(0) is False
    with pytest.raises(StoreNotWritable, match="Input/output error"):
        store.append(message())
    assert bodies(store) == sent
    with pytest.raises(StoreNotWritable, match="Input/output error"):
        store.close()
    found = bodies(opened(disk.after_kill().after_power_cut(Random(1), Loss.ALL)))
    assert found == sent[: len(found)]
    assert found[:5] == confirmed


def test_what_a_failed_flush_lost_is_written_again_after_a_restart() -> None:
    disk = SimulatedDisk()
    store = opened(disk)
    sent = send(store, 50)
    disk.refuse = lambda kind, path: errno.EIO if kind == "sync" else None
    store.wait_flushed(store.max_log_offset)
    store.flush_due()
    disk = disk.after_kill()
    again = opened(disk)
    assert bodies(again) == sent
    confirm(again)
    assert bodies(opened(disk.after_power_cut(Random(1), Loss.ALL))) == sent


@pytest.mark.parametrize("kind", ["create", "allocate"])
def test_a_full_disk_refuses_and_takes_again_when_there_is_room(kind: str) -> None:
    disk = SimulatedDisk()
    store = opened(disk)
    sent = send(store, 5)
    disk.refuse = lambda asked, path: errno.ENOSPC if asked == kind else None
    with pytest.raises(StoreNotWritable, match="No space left on device; make room on that disk, then messages"):
        for number in range(1_000):
            store.append(message(5 + number, queue_id=1, topic=f"topic-{number}"))
    assert disk.written_without_room() is None
    assert bodies(store) == sent
    disk.refuse = lambda asked, path: None
    assert len(send(store, 200)) == 205
    store.close()
    assert len(bodies(opened(disk))) == 205


def test_the_key_index_waits_for_room() -> None:
    disk = SimulatedDisk()
    store = opened(disk)
    send(store, 50)
    disk.refuse = lambda kind, path: errno.ENOSPC if "index" in path.parts and kind == "create" else None
    assert store.index_step(1.0)
    with pytest.raises(StoreNotWritable, match=r"key index.*No space left"):
        store.follow_index()
    disk.refuse = lambda kind, path: None
    store.follow_index()
    assert all(
        run_blocking(store.search_by_key(TOPIC, f"k{number}", 1, 0, 1 << 62)).log_offsets for number in range(50)
    )


@pytest.mark.slow
def test_killed_at_every_operation_of_opening_and_closing() -> None:
    """Whatever a start or a stop does, the next one finds all there was."""
    before = SimulatedDisk()
    store = opened(before)
    sent = send(store, 120)
    confirm(store)

    def lived(disk: SimulatedDisk) -> None:
        store = opened(disk)
        store.index_step(1.0)
        store.close()

    for disk in killed_at_each(lived, before):
        for after in (disk.after_kill(), disk.after_power_cut(Random(1), Loss.ALL)):
            assert bodies(opened(after)) == sent


@pytest.mark.parametrize("crashed", [False, True])
def test_a_folder_for_reading_only_is_refused_and_named(crashed: bool) -> None:
    before = SimulatedDisk()
    store = opened(before)
    sent = send(store, 120)
    if not crashed:
        store.close()
    disk = before.after_kill()
    disk.refuse = lambda kind, path: errno.EROFS  # what is only read is not asked about
    with pytest.raises(StoreNotWritable, match=rf"{ROOT}: .*Read-only file system.*choose another folder"):
        opened(disk)
    assert bodies(opened(disk.after_kill())) == sent


def test_whatever_a_start_may_not_write_is_told_with_the_folder() -> None:
    before = SimulatedDisk()
    store = opened(before)
    sent = send(store, 120)
    for number in range(1, 1000):
        disk = before.after_kill()
        disk.refuse = refusing(number)
        try:
            opened(disk)
        except StoreNotWritable as error:
            assert str(ROOT) in str(error)
            assert "Input/output error" in str(error)
        else:
            break
        assert bodies(opened(disk.after_kill())) == sent


def refusing(number: int) -> Callable[[str, Path], int | None]:
    """Fail the one change with that number."""
    left = number

    def refuse(kind: str, path: Path) -> int | None:
        nonlocal left
        left -= 1
        return None if left else errno.EIO

    return refuse


def killed_at_each(life: Callable[[SimulatedDisk], None], before: SimulatedDisk) -> list[SimulatedDisk]:
    """Return the disks as they are when `life` was killed at its first, second, third ... operation."""
    killed = []
    while True:
        disk = before.after_kill()
        disk.kill_at = len(killed) + 1
        try:
            life(disk)
        except Killed:
            killed.append(disk)
        else:
            return killed


def test_a_roll_waits_for_the_name_of_the_file() -> None:
    """A confirmed record may be in a file that is newer than the last flush of its folder."""
    disk = SimulatedDisk()
    store = opened(disk)
    big: list[StoredMessage] = []
    for number in range(8):
        each = message(number)
        each.stored_body = bytes([number]) * 6_000
        store.append(each)
        big.append(each)
        confirm(store)
        after = opened(disk.after_power_cut(Random(number), Loss.ALL))
        assert bodies(after) == [sent.stored_body for sent in big]
