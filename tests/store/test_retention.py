"""What goes, what stays and who is told: with small files, a clock that stands still, and a disk as full as said."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from random import Random

import pytest
from tests.store.making import ADDRESS, SMALL, TOPIC, StoppedClock, bodies, fill, message, opened, small_store

from pyromq.errors import StoreNotWritable, UsageError
from pyromq.slow_work import run_blocking
from pyromq.store.log import commit_log
from pyromq.store.message_store import MessageStore
from pyromq.store.retention import DiskUse, measured
from pyromq.store.store_config import StoreConfig
from pyromq.testing import SimulatedDisk
from pyromq.testing.simulated_disk import Loss

HOUR_MS = 3_600_000
NIGHT_MS = int(datetime(2023, 11, 20, 4, 30).timestamp() * 1000)  # local time, as the setting is
DAY_MS = int(datetime(2023, 11, 20, 12, 0).timestamp() * 1000)


@dataclass
class Scene:
    """An open store and its surroundings."""

    store: MessageStore
    clock: StoppedClock
    root: Path
    percent: int = 10

    def measure(self, path: Path) -> DiskUse:
        return DiskUse(path, self.percent << 20, (100 - self.percent) << 20)

    def pass_hours(self, hours: float) -> None:
        self.clock.ms += int(hours * HOUR_MS)
        self.look()

    def look(self, rounds: int = 1) -> None:
        for _ in range(rounds):
            self.clock.ms += 10_000
            assert self.store.retention.step(1.0)

    def log_files(self) -> list[int]:
        """Return the begins of the log files, in memory and (once the thread is done) on disk."""
        return [segment.base for segment in self.store._log.files.segments]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    yield from scenes(tmp_path)


def scenes(root: Path, **changes: object) -> Iterator[Scene]:
    clock = StoppedClock()
    clock.ms = DAY_MS
    with opened(root, clock, **changes) as store:
        made = Scene(store, clock, root)
        store.retention.measure = made.measure
        yield made


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_nothing_goes_while_it_is_young(scene: Scene) -> None:
    fill(scene.store, 100)
    before = scene.log_files()
    for _ in range(71):
        scene.pass_hours(1)
    assert scene.log_files() == before


def test_old_files_go_at_their_hour_only(scene: Scene) -> None:
    fill(scene.store, 40)
    before = scene.log_files()
    scene.clock.ms = NIGHT_MS + 80 * HOUR_MS  # half past twelve
    scene.look()
    assert scene.log_files() == before
    scene.clock.ms = NIGHT_MS + 96 * HOUR_MS
    scene.look()
    assert scene.log_files() == before[-1:]


def test_a_file_stays_as_long_as_one_of_its_messages_is_young(scene: Scene) -> None:
    fill(scene.store, 20)
    old = scene.log_files()
    scene.clock.ms += 10 * HOUR_MS
    fill(scene.store, 20, first=20)
    scene.clock.ms += 70 * HOUR_MS
    scene.percent = 80
    scene.look()
    assert scene.log_files()[0] == old[-1]  # where old and young ones meet


def test_a_fuller_disk_lets_old_files_go_at_any_hour(scene: Scene) -> None:
    fill(scene.store, 40)
    last = scene.log_files()[-1:]
    scene.pass_hours(73)
    assert scene.log_files() != last
    scene.percent = 76
    scene.look()
    assert scene.log_files() == last


def test_a_full_disk_lets_young_files_go_a_round_at_a_time(scene: Scene) -> None:
    fill(scene.store, 800)
    count = len(scene.log_files())
    assert count > 25
    scene.percent = 86
    scene.look()
    assert len(scene.log_files()) == count - 10
    scene.percent = 85
    scene.look()
    assert len(scene.log_files()) == count - 10


@pytest.mark.parametrize(("used", "deleted"), [(85, 0), (86, 1), (87, 2), (88, 3), (99, 10)])
def test_a_full_disk_costs_only_the_files_that_bring_it_below_the_limit(scene: Scene, used: int, deleted: int) -> None:
    fill(scene.store, 800)
    count = len(scene.log_files())
    size = scene.store.config.segment_bytes
    scene.store.retention.measure = lambda path: DiskUse(path, used * size, (100 - used) * size)
    scene.look()
    assert len(scene.log_files()) == count - deleted


def test_young_files_stay_on_a_full_disk_where_that_is_wanted(tmp_path: Path) -> None:
    for scene in scenes(tmp_path, force_expire=False):
        fill(scene.store, 100)
        before = scene.log_files()
        scene.percent = 89
        scene.look(3)
        assert scene.log_files() == before


def test_a_bound_of_bytes_holds_at_any_hour(tmp_path: Path) -> None:
    for scene in scenes(tmp_path, retained_bytes=5 * 4096):
        fill(scene.store, 100)
        scene.look()
        assert len(scene.log_files()) == 5


def test_a_bound_below_two_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"retained_bytes\) is 4096, must be at least two log files: 8192"):
        small_store(tmp_path, retained_bytes=4096)


def test_by_hand_old_files_go_at_any_hour(scene: Scene) -> None:
    fill(scene.store, 40)
    scene.pass_hours(73)
    before = scene.log_files()
    assert len(before) > 1
    assert scene.store.retention.expire_now() == len(before) - 1
    assert scene.log_files() == before[-1:]


def test_by_hand_with_an_age_younger_files_go_over_several_rounds(scene: Scene) -> None:
    fill(scene.store, 800)
    scene.pass_hours(2)
    scene.store.retention.expire_now(3 * HOUR_MS)
    assert len(scene.log_files()) > 25
    scene.store.retention.expire_now(HOUR_MS)
    scene.look(5)
    assert len(scene.log_files()) == 1


def test_nothing_that_somebody_needs_goes(scene: Scene) -> None:
    fill(scene.store, 100)
    needed = scene.log_files()[3] + 100
    scene.store.retention.needs.append(lambda: needed)
    scene.percent = 99
    scene.look(20)
    assert scene.log_files()[0] == 3 * 4096


def test_time_that_runs_backwards_lets_nothing_go(scene: Scene) -> None:
    fill(scene.store, 100)
    before = scene.log_files()
    scene.clock.ms -= 1000 * 24 * HOUR_MS
    scene.percent = 80
    assert scene.store.retention.expire_now() == 0
    scene.look(3)
    assert scene.log_files() == before


def test_queues_and_index_follow(tmp_path: Path) -> None:
    for scene in scenes(tmp_path):
        fill(scene.store, 300)
        scene.store.index_step(5)
        index_before = files(tmp_path / "index")
        scene.percent = 86
        scene.look()
        store = scene.store
        begin = store.min_log_offset
        assert begin == 10 * 4096
        for queue_id in (0, 1):
            first = store.min_offset("orders", queue_id)
            [entry] = store.entries("orders", queue_id, first, 1)
            assert begin <= entry.log_offset < begin + 4096
            assert store.read("orders", queue_id, 0, 32).next_offset == first
        assert bodies(store)[-1] == b"body 298"
        store.follow_index()
        assert run_blocking(store.search_by_key("orders", "k3", 8, 0, 1 << 60)).log_offsets == []
        assert run_blocking(store.search_by_key("orders", "k299", 8, 0, 1 << 60)).log_offsets != []
    left = files(tmp_path / "consumequeue/orders/0")
    assert int(left[0]) // 20 <= first < int(left[0]) // 20 + 8
    assert len(files(tmp_path / "commitlog")) == len(scene.log_files())
    assert len(files(tmp_path / "index")) < len(index_before)


def test_a_shortened_store_opens_as_it_was_left(tmp_path: Path) -> None:
    for scene in scenes(tmp_path):
        fill(scene.store, 200)
        scene.percent = 86
        scene.look()
        told = (scene.store.min_log_offset, scene.store.max_log_offset, bodies(scene.store), bodies(scene.store, 1))
    with opened(tmp_path) as store:
        assert (store.min_log_offset, store.max_log_offset, bodies(store), bodies(store, 1)) == told
        store.append(message(7))
        assert bodies(store)[-1] == b"body 7"


def test_a_queue_without_live_messages_goes_on_counting(scene: Scene) -> None:
    for number in range(30):
        scene.store.append(message(number, topic="quiet"))
    fill(scene.store, 300)
    scene.percent = 86
    scene.look()
    store = scene.store
    read = store.read("quiet", 0, store.min_offset("quiet", 0), 32)
    assert (read.count, read.next_offset) == (0, 30)
    store.append(message(99, topic="quiet"))
    assert store.read("quiet", 0, 30, 32).count == 1


def test_views_of_a_dropped_file_stay_readable(scene: Scene) -> None:
    fill(scene.store, 200)
    read = scene.store.read("orders", 0, 0, 5)
    before = [bytes(view) for view in read.records]
    scene.percent = 86
    scene.look()
    scene.store.retention._removal.close()
    assert not (scene.root / "commitlog" / f"{0:020}").exists()
    assert [bytes(view) for view in read.records] == before


def test_mappings_do_not_grow_when_queues_follow(tmp_path: Path) -> None:
    for scene in scenes(tmp_path):
        for number in range(400):
            scene.store.append(message(number, topic=f"t{number % 40}"))
        scene.store._queues.release()
        scene.percent = 86
        scene.look()
        assert not any(segment.is_mapped for queue in scene.store._queues for segment in queue.files.segments)


def test_following_is_done_in_steps(scene: Scene) -> None:
    for number in range(400):
        scene.store.append(message(number, topic=f"t{number % 40}"))
    scene.percent = 86
    scene.clock.ms += 10_000
    steps = 1
    while not scene.store.retention.step(0.0):
        steps += 1
    assert steps == 6  # eight of forty queues a look at the clock


def test_above_the_limit_sends_are_refused_with_path_use_limit_and_way_out(tmp_path: Path) -> None:
    for scene in scenes(tmp_path, force_expire=False):
        fill(scene.store, 100)
        scene.percent = 91
        scene.look()
        with pytest.raises(StoreNotWritable) as refused:
            scene.store.append(message())
        text = str(refused.value)
        assert f"the disk of {tmp_path}" in text
        assert "91 % full (91 MiB used, 9 MiB free)" in text
        assert "above 90 % (diskSpaceWarningLevelRatio)" in text
        assert "`pyromq store expire --older-than HOURS`" in text
        assert bodies(scene.store)[-1] == b"body 98"  # reading goes on


def test_sends_go_on_when_there_is_room_again(scene: Scene) -> None:
    fill(scene.store, 10)
    scene.percent = 91
    scene.look()
    with pytest.raises(StoreNotWritable, match="the store has one log file only"):
        scene.store.append_batch([message()])
    scene.percent = 90
    scene.look()
    scene.store.append_batch([message(77)])
    scene.store.append(message(78))
    assert bodies(scene.store)[-2:] == [b"body 77", b"body 78"]


def test_a_refusal_says_when_waiting_messages_are_the_reason(scene: Scene) -> None:
    fill(scene.store, 100)
    scene.store.retention.needs.append(lambda: 0)
    scene.percent = 95
    scene.look()
    with pytest.raises(StoreNotWritable, match="hold scheduled messages or undecided"):
        scene.store.append(message())


def test_a_broken_disk_stays_refused_when_there_is_room_again(scene: Scene) -> None:
    scene.percent = 95
    scene.look()
    scene.store._log.refuse("the disk is broken")
    scene.percent = 10
    scene.look()
    with pytest.raises(StoreNotWritable, match="the disk is broken"):
        scene.store.append(message())


def test_a_file_that_cannot_be_deleted_is_told_once_and_stays_in_front(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for scene in scenes(tmp_path):
        fill(scene.store, 100)
        blocked = tmp_path / "commitlog" / f"{0:020}"
        blocked.unlink()
        blocked.mkdir()  # cannot be unlinked, whoever runs the test
        scene.percent = 86
        scene.look(3)
        scene.store.retention._removal.close()
        told = [text for text in caplog.messages if "cannot be deleted" in text]
        assert len(told) == 1 and str(blocked) in told[0]
        assert (tmp_path / "commitlog" / f"{4096:020}").exists()
        blocked.rmdir()


@pytest.mark.parametrize("lost", [[0], [0, 1], [1], [1, 2]])
def test_log_files_deleted_by_hand_keep_no_others(
    tmp_path: Path, lost: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_log, "RECENT_BYTES", 0)
    for scene in scenes(tmp_path):
        fill(scene.store, 100)
    for scene in scenes(tmp_path):
        before = scene.log_files()
        scene.store._log.files.release()  # a start maps few files of a large log
        for number, base in enumerate(before):
            path = tmp_path / "commitlog" / f"{base:020}"
            path.unlink() if number in lost else os.utime(path, (scene.clock.ms // 1000,) * 2)
        scene.percent = 80
        assert scene.store.retention.to_load() == []
        scene.pass_hours(71)
        assert scene.log_files()[-4:] == before[-4:]
        scene.pass_hours(2)
        assert scene.log_files() == before[-1:]


def simulated(disk: SimulatedDisk, clock: StoppedClock) -> MessageStore:
    config = StoreConfig(Path("/srv/store"), **SMALL, retained_bytes=2 * 4096)  # type: ignore[arg-type]
    store = MessageStore(config, clock, store_address=ADDRESS, disk=disk)
    store.open()
    return store


def test_after_a_power_cut_queues_go_on_counting_though_their_messages_were_deleted() -> None:
    disk, clock = SimulatedDisk(), StoppedClock()
    store = simulated(disk, clock)
    for number in range(30):
        store.append(message(number, topic="quiet"))
    fill(store, 100)
    store._flusher.flush_log()  # and no queue
    clock.ms += 10_000
    store.retention.step(1.0)
    assert Path("/srv/store/commitlog") / f"{0:020}" not in disk.paths()
    assert simulated(disk.after_power_cut(Random(1), Loss.ALL), clock).next_offset("quiet", 0) == 30


def test_nothing_is_deleted_after_a_failed_flush() -> None:
    disk, clock = SimulatedDisk(), StoppedClock()
    store = simulated(disk, clock)
    fill(store, 100)
    disk.refuse = lambda kind, path: errno.EIO if kind == "sync" else None
    store.wait_flushed(store.max_log_offset)
    assert not store.flush_due()
    disk.refuse = lambda kind, path: None  # the next flush succeeds, and writes nothing
    before = disk.paths()
    clock.ms += 10_000
    store.retention.step(1.0)
    assert disk.paths() == before


def test_a_topic_that_begins_again_keeps_its_files_while_older_ones_wait_for_their_deletion() -> None:
    disk, clock = SimulatedDisk(), StoppedClock()
    store = simulated(disk, clock)
    fill(store, 100)
    disk.refuse = lambda kind, path: errno.EPERM if kind == "remove" and path.parent.name == "commitlog" else None
    clock.ms += 10_000
    store.retention.step(1.0)  # the queues' files are to be deleted behind those of the log
    store.delete_topic(TOPIC)
    assert store.flush_due()
    fill(store, 20)
    disk.refuse = lambda kind, path: None
    clock.ms += 10_000
    store.retention.step(1.0)
    assert Path("/srv/store/commitlog") / f"{0:020}" not in disk.paths()
    assert Path("/srv/store/consumequeue") / TOPIC / "0" / f"{0:020}" in disk.paths()
    store.close()


def test_use_is_counted_as_df_does(tmp_path: Path) -> None:
    assert DiskUse(tmp_path, 899, 101).percent == 90
    assert DiskUse(tmp_path, 901, 99).percent == 91
    assert 0 < measured(tmp_path).percent <= 100
