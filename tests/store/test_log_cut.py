"""The end of a replica's log is cut, and kept aside; a kill in the middle goes on cutting at the next start."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pyromq.errors import StoreCorrupt, StoreNotWritable, UsageError
from pyromq.message import StoredMessage, SysFlag
from pyromq.slow_work import run_blocking
from pyromq.store.checkpoint import Checkpoint
from pyromq.store.disk import LOCAL_DISK, Disk
from pyromq.store.epoch_file import EpochFile
from pyromq.store.log_cut import LogCut, kept_files, kept_messages
from pyromq.store.message_store import MessageStore
from pyromq.store.offline.store_check import StoreCheck
from pyromq.store.store_config import StoreConfig
from pyromq.testing.simulated_disk import Killed, SimulatedDisk

from .making import (
    ADDRESS,
    NOON_MS,
    SMALL,
    TOPIC,
    StoppedClock,
    bodies,
    files_below,
    fill,
    message,
    opened,
    small_store,
)

SEGMENT = 4096
ROOT = Path("/data")


def stored(root: Path, count: int, *, queues: int = 2) -> list[StoredMessage]:
    """A stopped store with messages of two topics."""
    with opened(root) as store:
        sent = fill(store, count, queues=queues)
        for number in range(count, count + 4):
            store.append(each := message(number, topic="later"))
            sent.append(each)
    return sent


def cut_store(root: Path, end: int, *, epoch: int = 5, confirmed: int = 0) -> MessageStore:
    store = small_store(root)
    store.open(LogCut(end, epoch, confirmed))
    store.finish_cut()
    return store


@pytest.mark.parametrize("keep", [1, 9, 33, 60, 98, 103])
def test_after_a_cut_the_store_is_as_if_the_cut_messages_never_came(tmp_path: Path, keep: int) -> None:
    sent = stored(tmp_path / "cut", 100)
    with opened(tmp_path / "fresh") as fresh:
        fill(fresh, min(keep, 100))
        for number in range(100, keep):
            fresh.append(message(number, topic="later"))
    end = sent[keep].log_offset
    store = cut_store(tmp_path / "cut", end)
    assert store.max_log_offset == end
    with opened(tmp_path / "fresh") as fresh:
        for queue_id in (0, 1):
            assert store.entries(TOPIC, queue_id, 0, 999) == fresh.entries(TOPIC, queue_id, 0, 999)
        assert store.max_offset("later", 0) == fresh.max_offset("later", 0)
        for each in (fresh, store):  # both go on
            fill(each, 7, first=500)
            each.follow_index()
        assert bodies(store) == bodies(fresh)
        for key in ("k500", "k2", "k98"):
            found = [run_blocking(each.search_by_key(TOPIC, key, 9, 0, NOON_MS * 2)) for each in (store, fresh)]
            assert found[0].log_offsets == found[1].log_offsets
    store.close()
    assert files_below(tmp_path / "cut/commitlog") == files_below(tmp_path / "fresh/commitlog")
    kept = [each for file in kept_files(tmp_path / "cut", LOCAL_DISK) for each in kept_messages(file, LOCAL_DISK)]
    assert [each.body for each in kept] == [each.body for each in sent[keep:]]
    assert {file.epoch for file in kept_files(tmp_path / "cut", LOCAL_DISK)} == {5}
    report = StoreCheck(StoreConfig(tmp_path / "cut", **SMALL)).run()  # type: ignore[arg-type]
    assert report.findings == []


def test_cut_where_a_file_begins_and_in_front_of_half_messages(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 30)
        half = message(31)
        half.sys_flag = SysFlag.HALF
        store.append(half)
        store.append(last := message(32))
        begins = [each.log_offset for each in fill(store, 60, first=40) if each.log_offset % SEGMENT == 0]
    for end in (begins[-1], last.log_offset, half.log_offset):
        store = cut_store(tmp_path, end)
        assert store.max_log_offset == end
        store.close()


def test_a_cut_at_the_first_byte_empties_the_store(tmp_path: Path) -> None:
    sent = stored(tmp_path, 60)
    store = cut_store(tmp_path, 0)
    assert (store.max_log_offset, store.topics()) == (0, [])
    with opened(tmp_path / "master") as master:
        fill(master, 100)
        store.append_bytes(SEGMENT, master.views(SEGMENT, SEGMENT))
        assert store.min_log_offset == SEGMENT
    store.close()
    with opened(tmp_path) as again:
        assert again.min_log_offset == SEGMENT
    kept = [each for file in kept_files(tmp_path, LOCAL_DISK) for each in kept_messages(file, LOCAL_DISK)]
    assert [each.body for each in kept] == [each.body for each in sent]


def test_a_log_with_a_part_of_its_first_record_is_emptied(tmp_path: Path) -> None:
    with opened(tmp_path / "master") as master:
        fill(master, 100)
        with opened(tmp_path) as store:
            store.append_bytes(0, master.views(0, 50))
        store = cut_store(tmp_path, 0)
        store.append_bytes(SEGMENT, master.views(SEGMENT, SEGMENT))
        assert store.min_log_offset == SEGMENT
        store.close()


def test_epochs_that_are_cut_are_forgotten(tmp_path: Path) -> None:
    sent = stored(tmp_path, 20)
    file = EpochFile(tmp_path)
    file.load()
    file.begin(1, 0)
    file.begin(3, sent[10].log_offset)
    cut_store(tmp_path, sent[10].log_offset).close()
    file.load()
    assert file.lines == [(1, 0)]
    assert file.promised == 3


def test_a_folder_that_was_a_replica_opens_as_a_single_broker(tmp_path: Path) -> None:
    sent = stored(tmp_path, 20)
    file = EpochFile(tmp_path)
    file.load()
    file.begin(3, 0)
    cut_store(tmp_path, sent[10].log_offset).close()
    with opened(tmp_path) as store:
        fill(store, 5, first=50)
    assert StoreCheck(StoreConfig(tmp_path, **SMALL)).run().findings == []  # type: ignore[arg-type]
    file.load()
    assert (file.promised, file.lines) == (3, [(3, 0)])
    assert len(kept_files(tmp_path, LOCAL_DISK)) == 1


def test_nothing_is_appended_before_the_cut_is_finished(tmp_path: Path) -> None:
    sent = stored(tmp_path, 20)
    store = small_store(tmp_path)
    store.open(LogCut(sent[10].log_offset, 5))
    assert store.cutting is not None
    assert (store.cutting.end, store.cutting.log_end) == (sent[10].log_offset, sent[-1].log_offset + sent[-1].size)
    assert [each.body for each in store.kept_messages()] == [each.body for each in sent[10:]]
    with pytest.raises(StoreNotWritable, match="the cut of the log is not finished"):
        store.append(message())
    store.close()
    again = small_store(tmp_path)
    again.open()
    assert again.cutting is not None
    assert [each.body for each in again.kept_messages()] == [each.body for each in sent[10:]]
    again.finish_cut()
    again.append(message())
    again.close()
    with opened(tmp_path) as later:
        assert later.cutting is None
        assert later.max_log_offset > sent[10].log_offset


@pytest.mark.parametrize(
    ("end", "confirmed", "text"),
    [
        (-1, -9, "no record ends there"),
        (1, 0, "no record ends there"),
        (0, 9, "is not cut at .*: records up to log offset .* were confirmed"),
        (1 << 30, 0, "it cannot be cut at"),
    ],
)
def test_a_cut_that_must_not_happen_is_refused_and_changes_nothing(
    tmp_path: Path, end: int, confirmed: int, text: str
) -> None:
    sent = stored(tmp_path, 30)
    before = files_below(tmp_path)
    at = sent[20].log_offset
    store = small_store(tmp_path)
    with pytest.raises(UsageError, match=text):
        store.open(LogCut(at + end, 5, at + confirmed))
    store.close()
    assert files_below(tmp_path) == before


def test_the_checkpoint_covers_no_message_that_was_cut(tmp_path: Path) -> None:
    clock = StoppedClock()
    with opened(tmp_path, clock) as store:
        sent = []
        for number in range(10):
            clock.ms += 60_000
            sent += fill(store, 1, first=number)
    cut_store(tmp_path, sent[6].log_offset).close()
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    checkpoint.load()
    times = checkpoint.log_ms, checkpoint.queues_ms, checkpoint.index_ms
    assert all(time <= sent[5].store_ms for time in times)


def test_an_unclean_store_is_not_cut(tmp_path: Path) -> None:
    sent = stored(tmp_path, 30)
    (tmp_path / "abort").write_bytes(b"")
    store = small_store(tmp_path)
    with pytest.raises(UsageError, match="was not closed: open the store once before its log is cut"):
        store.open(LogCut(sent[20].log_offset, 5))
    store.close()


def test_damage_before_the_cut_is_refused(tmp_path: Path) -> None:
    sent = stored(tmp_path, 30)
    path = tmp_path / "commitlog" / f"{0:020}"
    content = bytearray(path.read_bytes())
    content[sent[19].log_offset + 89] ^= 1
    path.write_bytes(content)
    store = small_store(tmp_path)
    with pytest.raises(StoreCorrupt, match="the log is not cut"):
        store.open(LogCut(sent[20].log_offset, 5))
    store.close()


def test_an_equal_end_cuts_nothing(tmp_path: Path) -> None:
    sent = stored(tmp_path, 3)
    store = small_store(tmp_path)
    store.open(LogCut(sent[-1].log_offset + sent[-1].size, 5))
    assert store.cutting is None
    store.append(message())
    store.close()


def on_disk(disk: Disk) -> MessageStore:
    return MessageStore(StoreConfig(ROOT, **SMALL), StoppedClock(), store_address=ADDRESS, disk=disk)  # type: ignore[arg-type]


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("keep", [0, 9, 70])
def test_a_kill_at_any_write_goes_on_cutting_at_the_next_start(keep: int, power: bool) -> None:
    disk = SimulatedDisk()
    store = on_disk(disk)
    store.open()
    sent = fill(store, 80)
    store.close()
    epochs = EpochFile(ROOT, disk)
    epochs.load()
    epochs.begin(4, 0)
    end, chance, kills, cut = sent[keep].log_offset, random.Random(keep), 0, 0
    while True:
        kills += 1
        left = disk.after_kill()
        left.kill_at = left.operations + kills
        try:
            store = on_disk(left)
            store.open(LogCut(end, 5))
            store.finish_cut()
            break
        except Killed:
            left = left.after_power_cut(chance) if power else left.after_kill()
        if chance.random() < 0.3:  # killed again
            left.kill_at = left.operations + chance.randint(1, 60)
            try:
                on_disk(left).open()
            except Killed:
                left = left.after_power_cut(chance) if power else left.after_kill()
            left.kill_at = None
            left = left.after_kill()
        store = on_disk(left)
        store.open()
        if store.cutting is not None or store.max_log_offset == end:
            cut += 1
            assert store.max_log_offset == end
            assert store.cutting is None or [each.body for each in store.kept_messages()] == [
                each.body for each in sent[keep:]
            ]
            store.finish_cut()
            assert bodies(store) == [each.body for each in sent[:keep:2]]
        else:  # killed before the wish was on disk
            assert store.max_log_offset == sent[-1].log_offset + sent[-1].size
            assert bodies(store) == [each.body for each in sent[::2]]
        store.append(message(99))
        store.close()
        store = on_disk(left.after_power_cut(chance))
        store.open()
        assert bodies(store)[-1] == b"body 99"
        store.close()
    assert cut > 20


def test_cut_bytes_are_deleted_when_messages_of_that_age_would_be(tmp_path: Path) -> None:
    sent = stored(tmp_path, 30)
    clock = StoppedClock()
    cut_store(tmp_path, sent[32].log_offset).close()
    [kept] = kept_files(tmp_path, LOCAL_DISK)
    clock.ms = LOCAL_DISK.changed_ms(kept.path) + 72 * 3_600_000
    with opened(tmp_path, clock) as store:
        store.retention.step(1.0)
        assert kept.path.exists()
    clock.ms += 1
    with opened(tmp_path, clock) as store:
        store.retention.step(1.0)
    assert not kept.path.exists()


def test_the_offline_check_names_an_unfinished_cut(tmp_path: Path) -> None:
    sent = stored(tmp_path, 30)
    store = small_store(tmp_path)
    store.open(LogCut(sent[20].log_offset, 5))
    store.close()
    report = StoreCheck(StoreConfig(tmp_path, **SMALL)).run()  # type: ignore[arg-type]
    assert [str(finding) for finding in report.findings] == [
        f"{tmp_path}/cutting: a cut of the log is not finished; the next start repairs it"
    ]
