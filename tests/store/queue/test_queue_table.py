"""A queue that lost its files between two runs: it is missed, made again, and goes on counting where it was."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from tests.store.making import ADDRESS, SMALL, TOPIC, StoppedClock, bodies, crashed_copy, fill, message, opened, settle
from tests.waiting import PATIENCE_SECONDS

from pyromq.errors import MessageRefused, StoreNotWritable
from pyromq.message import StoredMessage
from pyromq.store.message_store import MessageStore
from pyromq.store.offline.store_check import StoreCheck
from pyromq.store.store_config import StoreConfig
from pyromq.testing import SimulatedDisk
from pyromq.testing.simulated_disk import Loss

OTHER = "payments"


def last_file(root: Path) -> Path:
    return sorted((root / "consumequeue" / TOPIC / "1").iterdir())[-1]


def empty_folder(root: Path) -> None:
    for path in (root / "consumequeue" / TOPIC / "1").iterdir():
        path.unlink()


def erase_entries(root: Path) -> None:
    path = last_file(root)
    path.write_bytes(bytes(path.stat().st_size))


LOSSES: dict[str, Callable[[Path], object]] = {
    "queue": lambda root: shutil.rmtree(root / "consumequeue" / TOPIC / "1"),
    "files": empty_folder,
    "last file": lambda root: last_file(root).unlink(),
    "entries": erase_entries,
    "topic": lambda root: shutil.rmtree(root / "consumequeue" / TOPIC),
    "all": lambda root: shutil.rmtree(root / "consumequeue"),
}


def fill_and_rest(store: MessageStore) -> None:
    """Messages of one topic, then so many of another that a start reads none of the first."""
    fill(store, 40)
    for number in range(40):
        store.append(message(number, topic=OTHER, filling="x" * 30_000))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with opened(tmp_path, segment_bytes=1 << 16) as store:
        fill_and_rest(store)
    return tmp_path


@pytest.mark.parametrize("loss", LOSSES)
def test_a_queue_without_its_files_is_made_again_and_told(
    root: Path, loss: str, caplog: pytest.LogCaptureFixture
) -> None:
    LOSSES[loss](root)
    with opened(root, segment_bytes=1 << 16) as store:
        assert bodies(store, 1) == [b"body %d" % number for number in range(1, 40, 2)]
        store.append(late := message(40, queue_id=1))
    assert late.queue_offset == 20
    assert any("orders/1 has lost its entries" in line and "rebuilt" in line for line in caplog.messages)


def test_a_killed_store_misses_its_queues_too(tmp_path: Path) -> None:
    with opened(tmp_path / "live", segment_bytes=1 << 16) as store:
        fill_and_rest(store)
        store._flusher.flush_log()
        store._flusher.flush_queues(least_pages=0)
        copy = crashed_copy(tmp_path / "live", tmp_path / "copy")
    LOSSES["queue"](copy)
    with opened(copy, segment_bytes=1 << 16) as store:
        assert len(bodies(store, 1)) == 20


def test_a_queue_goes_on_counting_when_its_messages_have_expired(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = StoppedClock()
    with opened(tmp_path, clock) as store:
        fill(store, 40)
        for number in range(40):
            store.append(message(number, topic=OTHER))
        clock.ms += 1_000
        assert store.retention.expire_now(0)
    shutil.rmtree(tmp_path / "consumequeue" / TOPIC / "1")
    for _ in range(2):  # what it was put right to lasts
        with opened(tmp_path, clock) as store:
            assert store.max_offset(TOPIC, 1) == 20
            read = store.read(TOPIC, 1, store.min_offset(TOPIC, 1), 32)
            assert (read.records, read.next_offset) == ([], 20)
    assert sum("from 0 to 19 are not in the log any more" in line for line in caplog.messages) == 1


@pytest.mark.parametrize("loss", ["queue", "all"])
def test_a_deleted_topic_stays_deleted_when_queues_are_made_again(tmp_path: Path, loss: str) -> None:
    with opened(tmp_path, segment_bytes=1 << 16) as store:
        store.append(message(topic="gone"))
        fill_and_rest(store)
        store.delete_topic("gone")
    LOSSES[loss](tmp_path)
    with opened(tmp_path, segment_bytes=1 << 16) as store:
        assert sorted(store.topics()) == [TOPIC, OTHER]
        assert len(bodies(store, 1)) == 20


def test_a_deletion_is_known_before_the_next_stop(tmp_path: Path) -> None:
    with opened(tmp_path / "live") as store:
        fill(store, 10)
    with opened(tmp_path / "live") as store:
        store.delete_topic(TOPIC).result(PATIENCE_SECONDS)
        copy = crashed_copy(tmp_path / "live", tmp_path / "copy")
    with opened(copy) as store:
        assert store.topics() == []


def test_a_deletion_that_was_answered_outlives_a_kill_and_a_topic_made_again_begins_at_0(tmp_path: Path) -> None:
    with opened(tmp_path / "live", flush_interval_ms=3_600_000) as store:
        fill(store, 10)
        store.delete_topic(TOPIC).result(PATIENCE_SECONDS)
        gone = crashed_copy(tmp_path / "live", tmp_path / "gone")
        store.append(message(99))
        again = crashed_copy(tmp_path / "live", tmp_path / "again")
    with opened(gone) as store:
        assert store.topics() == []
        store.append(first := message(98))
        assert first.queue_offset == 0
    with opened(again) as store:
        assert bodies(store) == [b"body 99"]


@pytest.fixture
def simulated() -> MessageStore:
    """A store on a simulated disk, with all queues on disk."""
    disk = SimulatedDisk()
    store = MessageStore(StoreConfig(Path("/srv"), **SMALL), StoppedClock(), store_address=ADDRESS, disk=disk)  # type: ignore[arg-type]
    store.open()
    fill(store, 20)
    store._flusher.flush_queues(least_pages=0)
    settle(disk)
    return store


@pytest.mark.parametrize("loss", list(Loss))
def test_a_deletion_that_was_answered_outlives_a_power_loss(simulated: MessageStore, loss: Loss) -> None:
    deleted = simulated.delete_topic(TOPIC)
    simulated.flush_due()
    assert deleted.done()
    assert isinstance(simulated.disk, SimulatedDisk)
    assert simulated.disk.after_power_cut(Random(1), loss).names(Path("/srv/consumequeue")) == []


def test_a_deletion_that_the_disk_refuses_to_flush_ends_and_the_store_says_so(simulated: MessageStore) -> None:
    assert isinstance(simulated.disk, SimulatedDisk)
    simulated.disk.refuse = lambda kind, path: errno.EIO if kind == "sync_folder" else None
    assert simulated.delete_topic(TOPIC).done()
    with pytest.raises(StoreNotWritable, match=r"a flush failed: .*Input/output error"):
        simulated.append(message())
    with pytest.raises(StoreNotWritable, match="Input/output error"):
        simulated.close()


def test_a_queue_that_a_deletion_notes_before_its_entries_are_flushed_is_kept(tmp_path: Path) -> None:
    with opened(tmp_path / "live") as store:
        store.append(message(topic="gone"))
        fill(store, 10)
        store.delete_topic("gone").result(PATIENCE_SECONDS)
        copy = crashed_copy(tmp_path / "live", tmp_path / "copy", power_loss=True)
    shutil.rmtree(copy / "consumequeue" / TOPIC)  # was not on disk
    with opened(copy) as store:
        assert bodies(store, 1) == [b"body %d" % number for number in range(1, 10, 2)]


@pytest.mark.parametrize("count", [6, 14, 16])
@pytest.mark.parametrize("later", [39, 40, 41])
def test_a_file_made_for_a_refused_batch_hides_no_end_of_a_queue(tmp_path: Path, count: int, later: int) -> None:
    expected = [b"body %d" % number for number in range(count)]
    with opened(tmp_path, segment_bytes=1 << 16) as store:
        fill(store, count, queues=1)
        with pytest.raises(MessageRefused):
            store.append_batch([*map(message, range(4)), StoredMessage(TOPIC, b"x", "a" * 40_000)])
        for number in range(later):  # about 1 MiB: a start reads few records of the first topic, or none
            store.append(message(number, topic=OTHER, filling="x" * 26_000))
    for _ in range(2):
        with opened(tmp_path, segment_bytes=1 << 16) as store:
            assert store.max_offset(TOPIC, 0) == len(expected)
            assert bodies(store) == expected
            store.append(message(len(expected)))
            expected.append(b"body %d" % len(expected))


def test_a_damaged_note_is_told_and_changes_nothing(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    note = root / "queues"
    note.write_bytes(note.read_bytes().replace(b"20", b"90", 1))
    with opened(root, segment_bytes=1 << 16) as store:
        assert store.max_offset(TOPIC, 1) == 20
    assert any(str(note) in line for line in caplog.messages)


def test_a_log_begun_anew_is_not_measured_by_the_old_note(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "commitlog")
    shutil.rmtree(root / "index")
    with opened(root) as store:
        fill(store, 4)
        copy = crashed_copy(root, root.with_name("copy"))
    with opened(copy) as store:
        assert bodies(store, 1) == [b"body 1", b"body 3"]


@pytest.mark.parametrize("expired", [False, True])
def test_a_check_names_a_missing_queue_and_the_start_mends_it(tmp_path: Path, expired: bool) -> None:
    clock = StoppedClock()
    with opened(tmp_path, clock) as store:
        fill(store, 40)
        for number in range(40):
            store.append(message(number, topic=OTHER))
        clock.ms += 1_000
        assert not expired or store.retention.expire_now(0)
    missing = tmp_path / "consumequeue" / TOPIC / "1"
    shutil.rmtree(missing)
    report = StoreCheck(StoreConfig(tmp_path, **SMALL)).run()  # type: ignore[arg-type]
    assert [finding.path for finding in report.findings] == [missing]
    assert not report.is_sound
    with opened(tmp_path, clock):
        pass
    assert StoreCheck(StoreConfig(tmp_path, **SMALL)).run().is_sound  # type: ignore[arg-type]
