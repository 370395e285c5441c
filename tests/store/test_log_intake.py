"""A follower's store takes in the bytes of its master's log, and has the same records, queues and files."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_SECONDS

from pyromq.errors import StoreCorrupt, StoreNotWritable, UsageError
from pyromq.message import StoredMessage, SysFlag
from pyromq.record import encode
from pyromq.slow_work import run_blocking
from pyromq.store.message_store import MessageStore
from pyromq.store.store_config import StoreConfig
from pyromq.testing.simulated_disk import Killed, SimulatedDisk

from .making import ADDRESS, NOON_MS, SMALL, TOPIC, StoppedClock, bodies, crashed_copy, fill, message, opened

SEGMENT = 4096


def pump(
    master: MessageStore, follower: MessageStore, *, most: int = 1 << 20, seed: int | None = None, frames: int = 1 << 30
) -> None:
    """Copy what the follower lacks of the master's log, in frames of up to `most` bytes."""
    sizes = random.Random(seed)
    for _ in range(frames):
        view = master.views(follower.written_end, most if seed is None else sizes.randint(1, most))
        if not view:
            return
        follower.append_bytes(follower.written_end, view)


def logs_of(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((root / "commitlog").iterdir())}


def state(store: MessageStore) -> dict[str, object]:
    """Everything a reader can see of the queues."""
    return {
        f"{topic} {queue_id}": (
            store.min_offset(topic, queue_id),
            store.entries(topic, queue_id, 0, 9999),
        )
        for topic in sorted(store.topics())
        for queue_id in store.queue_ids(topic)
    }


@pytest.mark.parametrize(("most", "seed"), [(1 << 20, None), (1, None), (300, 1), (300, 2), (5000, 3)])
def test_logs_are_equal_byte_for_byte_and_queues_too(tmp_path: Path, most: int, seed: int | None) -> None:
    with opened(tmp_path / "m") as master, opened(tmp_path / "f") as follower:
        fill(master, 100)  # several files
        pump(master, follower, most=most, seed=seed)
        assert follower.max_log_offset == follower.written_end == master.max_log_offset
        assert state(follower) == state(master)
        assert bodies(follower, 1) == bodies(master, 1)
    assert logs_of(tmp_path / "f") == logs_of(tmp_path / "m")


def test_records_are_seen_once_they_are_whole(tmp_path: Path) -> None:
    clock = StoppedClock()
    with opened(tmp_path / "m", clock) as master, opened(tmp_path / "f") as follower:
        arrived: list[tuple[int, int]] = []
        followed: list[int] = []
        follower.listen(
            lambda stored, code: arrived.append((stored.log_offset, code)),
            lambda topic, queue_id, arrivals: arrived.extend(arrivals()),
        )
        follower.follow("inner", lambda stored: followed.append(stored.log_offset))
        clock.ms += 5_000
        master.append(first := message(1, TAGS="TagA"))
        master.append(second := message(2, topic="inner"))
        data = bytes(master.views(0, 9999))
        follower.append_bytes(0, data[: first.size - 1])
        assert (follower.max_log_offset, follower.written_end, arrived) == (0, first.size - 1, [])
        assert follower.views(0, 99) == b""
        follower.append_bytes(first.size - 1, data[first.size - 1 : first.size + 3])
        assert (follower.max_log_offset, follower.written_end) == (first.size, first.size + 3)
        assert arrived == [(0, 2598919)]
        stored = follower.message_at(0)
        assert stored is not None
        assert stored.store_ms == NOON_MS + 5_000
        follower.append_bytes(first.size + 3, data[first.size + 3 :])
        assert followed == [second.log_offset]
        assert follower.max_log_offset == len(data)


def test_messages_are_found_by_key_on_a_follower(tmp_path: Path) -> None:
    with opened(tmp_path / "m") as master, opened(tmp_path / "f") as follower:
        sent = fill(master, 10)
        pump(master, follower)
        follower.follow_index()
        found = run_blocking(follower.search_by_key(TOPIC, "k3", 9, 0, NOON_MS * 2))
        assert found.log_offsets == [sent[3].log_offset]


def test_a_follower_that_became_a_master_goes_on_where_whole_records_end(tmp_path: Path) -> None:
    clock = StoppedClock()
    clock.ms += 60_000
    with opened(tmp_path / "m", clock) as master, opened(tmp_path / "f") as follower:
        sent = fill(master, 3, queues=1)
        data = bytes(master.views(0, 9999))
        follower.append_bytes(0, data[:-1])
        follower.append(own := message(7))
        assert own.log_offset == sent[2].log_offset
        assert own.queue_offset == 2
        assert own.store_ms == NOON_MS + 60_000  # not before the master's
        assert follower.written_end == follower.max_log_offset == own.log_offset + own.size
        assert bodies(follower) == [b"body 0", b"body 1", b"body 7"]
        assert not any((tmp_path / "f/commitlog" / f"{0:020}").read_bytes()[follower.max_log_offset :])


@pytest.mark.parametrize("crashed", [False, True])
def test_after_a_restart_the_log_ends_with_its_last_whole_record(tmp_path: Path, crashed: bool) -> None:
    with opened(tmp_path / "m") as master:
        fill(master, 59)
        with opened(tmp_path / "f") as follower:
            pump(master, follower)
            master.append(last := message(60))
            follower.append_bytes(last.log_offset, master.views(last.log_offset, last.size - 9))
            if crashed:
                crashed_copy(tmp_path / "f", tmp_path / "killed")
        if crashed:
            shutil.rmtree(tmp_path / "f")
            (tmp_path / "killed").rename(tmp_path / "f")
        with opened(tmp_path / "f") as again:
            assert again.written_end == again.max_log_offset == last.log_offset
            pump(master, again, most=77)
            assert state(again) == state(master)
    assert logs_of(tmp_path / "f") == logs_of(tmp_path / "m")


def test_an_empty_follower_begins_where_a_file_of_its_master_begins(tmp_path: Path) -> None:
    with opened(tmp_path / "m") as master, opened(tmp_path / "f") as follower:
        fill(master, 100)
        with pytest.raises(UsageError, match="begin at log offset 17, the log ends at 0"):
            follower.append_bytes(17, b"x")
        follower.append_bytes(SEGMENT, master.views(SEGMENT, SEGMENT))
        pump(master, follower, most=100)
        assert follower.min_log_offset == SEGMENT
        first = next(entry for entry in master.entries(TOPIC, 0, 0, 99) if entry.log_offset >= SEGMENT)
        begins = follower.min_offset(TOPIC, 0)
        assert master.entries(TOPIC, 0, begins, 1) == [first]
        assert follower.entries(TOPIC, 0, begins, 99) == master.entries(TOPIC, 0, begins, 99)
        assert follower.max_offset(TOPIC, 0) == master.max_offset(TOPIC, 0)
        follower.follow_index()
    with opened(tmp_path / "f") as again:
        assert again.min_offset(TOPIC, 0) == begins


@pytest.mark.parametrize("count", [3, 8])  # in the middle of a queue's file, and at its end
def test_queues_whose_messages_all_expired_go_on_at_the_same_offset_on_a_follower(tmp_path: Path, count: int) -> None:
    with opened(tmp_path / "m") as master, opened(tmp_path / "f") as follower:
        for number in range(count):
            master.append(message(number, topic="old"))
        fill(master, 60)
        master.retention.expire_now(age_ms=-1)
        begin = master.min_log_offset
        assert begin > 0
        assert master.expired_ends() == {"old": {0: count}}
        follower.begin_queues(master.expired_ends())
        follower.append_bytes(begin, master.views(begin, SEGMENT))
        pump(master, follower)
        assert follower.next_offset("old", 0) == count
    with opened(tmp_path / "f") as again:
        assert again.next_offset("old", 0) == count
        again.append(late := message(9, topic="old"))
        assert late.queue_offset == count
        again.begin_queues({"old": {0: 99}})  # it has messages
        assert bodies(again, topic="old") == [b"body 9"]


def test_a_topic_that_was_deleted_and_made_again_begins_again_at_0(tmp_path: Path) -> None:
    with opened(tmp_path / "m") as master, opened(tmp_path / "f") as follower:
        fill(master, 40, queues=2)
        pump(master, follower)
        master.delete_topic(TOPIC).result(PATIENCE_SECONDS)
        for number in (70, 71):
            master.append(message(number))
        pump(master, follower)
        assert bodies(follower) == [b"body 70", b"body 71"]
        assert follower.entries(TOPIC, 0, 0, 9) == master.entries(TOPIC, 0, 0, 9)
    with opened(tmp_path / "f") as again:
        assert bodies(again) == [b"body 70", b"body 71"]
        assert again.max_offset(TOPIC, 0) == 2


def test_messages_that_the_master_lost_are_fillers_on_the_follower_too(tmp_path: Path) -> None:
    with opened(tmp_path / "m") as master, opened(tmp_path / "f") as follower:
        fill(master, 2, queues=1)
        master.queues_of(TOPIC)[0].restore_end(30)  # a power loss took 28 messages
        master.append(message(9))
        pump(master, follower)
        assert follower.max_offset(TOPIC, 0) == 31
        assert bodies(follower) == [b"body 0", b"body 1", b"body 9"]


def test_half_messages_are_in_no_queue(tmp_path: Path) -> None:
    with opened(tmp_path / "m") as master, opened(tmp_path / "f") as follower:
        half = message(1)
        half.sys_flag = SysFlag.HALF
        master.append(half)
        master.append(message(2))
        pump(master, follower)
        assert bodies(follower) == [b"body 2"]
        assert follower.max_log_offset == master.max_log_offset


@pytest.mark.parametrize("what", ["magic", "body", "size", "log offset"])
def test_damaged_bytes_are_refused_and_nothing_is_overwritten(tmp_path: Path, what: str) -> None:
    at = {"magic": 4, "body": 90, "size": 0, "log offset": 35}[what]
    with opened(tmp_path / "m") as master, opened(tmp_path / "f") as follower:
        sent = fill(master, 3)
        data = bytearray(master.views(0, 9999))
        data[sent[1].log_offset + at] ^= 0x40
        with pytest.raises(StoreCorrupt, match=f"byte {sent[1].log_offset}: the master sent damaged bytes"):
            follower.append_bytes(0, data)
        assert follower.written_end == follower.max_log_offset == sent[1].log_offset
        assert bodies(follower) == [b"body 0"]
        pump(master, follower)
        assert state(follower) == state(master)
    assert logs_of(tmp_path / "f") == logs_of(tmp_path / "m")


def test_bytes_that_do_not_belong_there_are_refused_by_name(tmp_path: Path) -> None:
    with opened(tmp_path / "m") as master, opened(tmp_path / "f") as follower:
        fill(master, 60)
        follower.append_bytes(0, master.views(0, 100))
        with pytest.raises(UsageError, match="begin at log offset 99, the log ends at 100"):
            follower.append_bytes(99, b"x")
        with pytest.raises(UsageError, match="cross the end of a file of 4096 bytes"):
            follower.append_bytes(100, bytes(SEGMENT))
        pump(master, follower)
        assert state(follower) == state(master)


def test_a_damaged_queue_offset_does_not_move_a_message(tmp_path: Path) -> None:
    with opened(tmp_path / "m") as master, opened(tmp_path / "f") as follower:
        sent = fill(master, 8, queues=1)
        data = bytearray(master.views(0, 9999))
        data[sent[5].log_offset + 20] = 0x11  # 0x1100000000000005
        data[sent[6].log_offset + 27] = 3  # 3 instead of 6
        follower.append_bytes(0, data)
        assert follower.entries(TOPIC, 0, 0, 99) == master.entries(TOPIC, 0, 0, 99)


def test_a_store_that_refuses_messages_takes_in_no_bytes(tmp_path: Path) -> None:
    with opened(tmp_path / "m") as master, opened(tmp_path / "f") as follower:
        fill(master, 1)
        follower._log.suspend("the disk is full")
        with pytest.raises(StoreNotWritable, match="the disk is full"):
            follower.append_bytes(0, master.views(0, 99))
        follower._log.suspend("")
        pump(master, follower)
        assert bodies(follower) == [b"body 0"]


def test_views_end_at_a_file_and_at_the_last_record(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        assert store.views(0, 99) == b""
        fill(store, 60)
        assert store.views(0, 10) == (tmp_path / "commitlog" / f"{0:020}").read_bytes()[:10]
        assert len(store.views(100, 1 << 20)) == SEGMENT - 100
        assert len(store.views(SEGMENT, 1 << 20)) == min(SEGMENT, store.max_log_offset - SEGMENT)
        assert store.views(store.max_log_offset, 99) == store.views(1 << 40, 99) == store.views(-1, 9) == b""
        assert store.views(0, 9).readonly


def test_an_illegal_topic_stays_in_the_log_and_enters_no_queue(tmp_path: Path) -> None:
    with opened(tmp_path) as follower:
        stray = StoredMessage("a/b", b"x", "", store_ms=NOON_MS, born_address=bytes(8), store_address=bytes(8))
        follower.append_bytes(0, encode(stray))
        assert follower.max_log_offset == stray.size
        assert follower.topics() == []


ROOT = Path("/data")


def on_disk(disk: SimulatedDisk) -> MessageStore:
    return MessageStore(StoreConfig(ROOT, **SMALL), StoppedClock(), store_address=ADDRESS, disk=disk)  # type: ignore[arg-type]


@pytest.mark.parametrize("power", [False, True])
def test_a_follower_killed_at_any_write_has_a_part_of_its_masters_log_and_goes_on(tmp_path: Path, power: bool) -> None:
    chance, kills = random.Random(power), 0
    with opened(tmp_path / "m") as master:
        sent = fill(master, 60)
        master.delete_topic(TOPIC).result(PATIENCE_SECONDS)
        sent += fill(master, 20, first=60)
        whole = b"".join(bytes(master.views(at, SEGMENT)) for at in range(0, master.max_log_offset, SEGMENT))
        ends = {0, *range(SEGMENT, len(whole), SEGMENT), *(each.log_offset + each.size for each in sent)}
        while True:
            kills += 1
            disk = SimulatedDisk(seed=kills)
            disk.kill_at = 7 * kills
            try:
                follower = on_disk(disk)
                follower.open()
                while follower.written_end < len(whole):
                    pump(master, follower, most=500, seed=kills, frames=3)
                    follower.flush_due()
                follower.close()
                break
            except Killed:
                disk = disk.after_power_cut(chance) if power else disk.after_kill()
            again = on_disk(disk)
            again.open()
            assert again.written_end == again.max_log_offset
            assert again.max_log_offset in ends
            copied = b"".join(bytes(again.views(at, SEGMENT)) for at in range(0, again.max_log_offset, SEGMENT))
            assert copied == whole[: len(copied)]
            pump(master, again)
            assert state(again) == state(master)
            again.close()
    assert kills > 20


def test_a_full_disk_refuses_bytes_and_later_takes_them(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    full: set[str] = set()

    def refuse(kind: str, path: Path) -> int | None:
        if any(name in str(path) for name in full) and kind in ("allocate", "populate", "resize", "make_ready"):
            raise OSError(28, "No space left on device")
        return None

    disk.refuse = refuse
    with opened(tmp_path / "m") as master:
        sent = fill(master, 100)
        follower = on_disk(disk)
        follower.open()
        pump(master, follower, frames=1, most=sent[3].log_offset)
        for folder in ("consumequeue", "commitlog"):
            full.add(folder)
            with pytest.raises(StoreNotWritable, match="No space left on device; make room on that disk"):
                pump(master, follower)
            full.clear()
            assert follower.written_end == follower.max_log_offset
            pump(master, follower, frames=1, most=700)
        pump(master, follower)
        assert state(follower) == state(master)
        assert disk.written_without_room() is None
        follower.close()
