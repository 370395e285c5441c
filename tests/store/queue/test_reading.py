"""What a read gives, how much, and where it says to go on."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.filter.wanting import Wanted, with_body
from tests.store.making import TOPIC, fill, message, opened, small_store

from pyromq.java_hash import java_hash
from pyromq.record import decode, decode_all
from pyromq.slow_work import NotInMemory
from pyromq.store.disk import LocalDisk
from pyromq.store.log import commit_log
from pyromq.store.message_store import MessageStore, ReadResult, ReadStatus
from pyromq.store.queue.reading import AHEAD_BYTES


def found_bodies(result: ReadResult) -> list[bytes]:
    messages = decode_all(b"".join(result.records))
    assert len(messages) == result.count
    assert sum(each.size for each in messages) == result.size
    return [each.body for each in messages]


def test_read_gives_messages_from_the_offset_on(tmp_path: Path) -> None:
    with opened(tmp_path, consume_queue_entries=100) as store:
        sent = fill(store, 80)
        result = store.read(TOPIC, 1, 5, 10)
        assert found_bodies(result) == [each.body for each in sent[11:31:2]]
        assert (result.status, result.next_offset, result.min_offset, result.max_offset) == (
            ReadStatus.FOUND,
            15,
            0,
            40,
        )


def test_records_back_to_back_are_one_view(tmp_path: Path) -> None:
    with opened(tmp_path, segment_bytes=1 << 20) as store:
        fill(store, 8, queues=1)
        assert len(store.read(TOPIC, 0, 0, 8).records) == 1
        fill(store, 8, queues=2)
        assert len(store.read(TOPIC, 1, 0, 8).records) == 4


def test_reading_on_from_next_offset_meets_every_message_once(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        sent = fill(store, 100, queues=1)
        found: list[bytes] = []
        offset = 0
        while (result := store.read(TOPIC, 0, offset, 5)).status is ReadStatus.FOUND:
            found += found_bodies(result)
            offset = result.next_offset
        assert found == [each.body for each in sent]
        assert result.status is ReadStatus.OFFSET_OVERFLOW_ONE


@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [
        (0, ReadStatus.FOUND, 6),
        (6, ReadStatus.OFFSET_OVERFLOW_ONE, 6),
        (7, ReadStatus.OFFSET_OVERFLOW_BADLY, 6),
        (-1, ReadStatus.OFFSET_TOO_SMALL, 0),
    ],
)
def test_offsets_outside_say_where_to_go(tmp_path: Path, offset: int, status: ReadStatus, next_offset: int) -> None:
    with opened(tmp_path) as store:
        fill(store, 6, queues=1)
        result = store.read(TOPIC, 0, offset, 32)
        assert (result.status, result.next_offset) == (status, next_offset)


def test_limits_of_count_and_bytes_end_a_read_but_never_before_the_first(tmp_path: Path) -> None:
    with opened(tmp_path, max_transfer_count=5, consume_queue_entries=100) as store:
        sent = fill(store, 20, queues=1)
        size = sent[0].size
        assert store.read(TOPIC, 0, 0, 32).count == 5
        assert store.read(TOPIC, 0, 0, 3).count == 3
        assert store.read(TOPIC, 0, 0, 32, max_bytes=3 * size + 20).count == 3
        assert store.read(TOPIC, 0, 0, 32, max_bytes=1).count == 1


def test_who_asks_for_more_bytes_gets_a_bulk_read(tmp_path: Path) -> None:
    limits = {"max_transfer_bytes": 1000, "bulk_transfer_bytes": 5000, "bulk_transfer_count": 50}
    with opened(tmp_path, consume_queue_entries=1000, **limits) as store:
        size = fill(store, 100, queues=1)[0].size
        assert store.read(TOPIC, 0, 0, 500, max_bytes=10 * size).count == min(10, 5000 // size)
        assert store.read(TOPIC, 0, 0, 500, max_bytes=1 << 30).count == min(50, 5000 // size)
        assert store.read(TOPIC, 0, 0, 500).count == min(32, 1000 // size)


@pytest.mark.parametrize("max_bytes", [1, 1001, 5000, 1 << 20])
def test_bulk_reads_find_what_looking_at_each_entry_finds(tmp_path: Path, max_bytes: int) -> None:
    limits = {"max_transfer_bytes": 1, "bulk_transfer_bytes": 1 << 20, "bulk_transfer_count": 2000}
    with opened(tmp_path, consume_queue_entries=3000, **limits) as store:
        for count, queues in ((300, 1), (60, 2), (500, 1)):
            fill(store, count, queues=queues)
        fast = store.read(TOPIC, 0, 7, 1500, max_bytes=max_bytes)
        slow = store.read(TOPIC, 0, 7, 1500, max_bytes=max_bytes, wanted=Wanted(lambda code: True))
        assert [bytes(each) for each in fast.records] == [bytes(each) for each in slow.records]
        assert (fast.status, fast.next_offset, fast.count) == (slow.status, slow.next_offset, slow.count)
        assert len(found_bodies(fast)) == fast.count


def cold_store(root: Path) -> MessageStore:
    store = small_store(root, segment_bytes=1 << 20, consume_queue_entries=100, cold_transfer_count=2)
    store.open()
    store.reading._resident_bytes = 1000  # as if memory were that small
    return store


def test_records_far_behind_the_end_come_in_smaller_portions(tmp_path: Path) -> None:
    store = cold_store(tmp_path)
    fill(store, 50, queues=1)
    assert store.read(TOPIC, 0, 0, 32).count == 2
    assert store.read(TOPIC, 0, 47, 32).count == 3
    assert store.is_cold(0)
    store.close()


def test_filter_passes_over_what_it_does_not_accept(tmp_path: Path) -> None:
    with opened(tmp_path, consume_queue_entries=100) as store:
        sent = fill(store, 60, queues=1)
        wanted = java_hash("t1")
        result = store.read(TOPIC, 0, 0, 10, wanted=Wanted(lambda code: code == wanted))
        assert found_bodies(result) == [each.body for each in sent[1:30:3]]
        assert result.next_offset == 29


def test_filter_that_accepts_nothing_makes_progress_of_800_entries(tmp_path: Path) -> None:
    with opened(tmp_path, consume_queue_entries=2000, segment_bytes=1 << 20) as store:
        for _ in range(1000):
            store.append(message())
        results = [store.read(TOPIC, 0, at, 32, wanted=Wanted(lambda code: False)) for at in (0, 800)]
        assert [each.status for each in results] == [ReadStatus.NO_MATCHED_MESSAGE] * 2
        assert [each.next_offset for each in results] == [800, 1000]


def test_a_filter_of_records_is_asked_after_the_one_of_codes(tmp_path: Path) -> None:
    with opened(tmp_path, consume_queue_entries=100) as store:
        sent = fill(store, 60, queues=1)
        code, asked = java_hash("t1"), []

        def accepts(record: memoryview) -> bool:
            asked.append(decode(record).body)
            return len(asked) % 2 == 0

        result = store.read(TOPIC, 0, 0, 3, wanted=Wanted(lambda each: each == code, accepts))
        assert asked == [each.body for each in sent[1:18:3]]
        assert found_bodies(result) == asked[1::2]
        assert (result.status, result.next_offset) == (ReadStatus.FOUND, 17)


def test_reading_on_with_a_filter_of_records_meets_every_wanted_one_once(tmp_path: Path) -> None:
    with opened(tmp_path, consume_queue_entries=30) as store:
        bodies = [each.body for each in fill(store, 100, queues=1)]
        found: list[bytes] = []
        offset = 0
        while offset < 100:
            result = store.read(TOPIC, 0, offset, 4, wanted=with_body(*bodies[::7]))
            assert result.count <= 4
            assert result.next_offset > offset
            found += found_bodies(result)
            offset = result.next_offset
        assert found == bodies[::7]


def test_records_that_a_filter_has_to_see_are_not_touched_before_they_are_in_memory(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(commit_log, "RECENT_BYTES", 0)
    with opened(tmp_path, consume_queue_entries=100) as store:
        bodies = [each.body for each in fill(store, 20, queues=1)]
        asked = []
        wanted = Wanted(accepts_record=lambda record: bool(asked.append(record)) or decode(record).body in bodies[3:5])
        monkeypatch.setattr(LocalDisk, "is_resident", lambda *_: False)
        with pytest.raises(NotInMemory) as lack:
            store.read(TOPIC, 0, 0, 10, wanted=wanted)
        [(path, position, size, _, ahead)] = lack.value.to_load
        assert (int(path.name) + position, size, ahead) == (0, store.max_log_offset, AHEAD_BYTES)
        assert asked == []
        monkeypatch.setattr(LocalDisk, "is_resident", lambda *_: True)
        result = store.read(TOPIC, 0, 0, 10, wanted=wanted)
        assert (found_bodies(result), result.next_offset) == (bodies[3:5], 20)


def test_entries_whose_records_are_gone_are_passed_over(tmp_path: Path) -> None:
    with opened(tmp_path, consume_queue_entries=1000) as store:
        fill(store, 100, queues=1)
    (tmp_path / "commitlog" / f"{0:020}").unlink()
    with opened(tmp_path, consume_queue_entries=1000) as store:
        first = store.min_offset(TOPIC, 0)
        assert first > 0
        assert store.read(TOPIC, 0, 0, 32).next_offset == first
        assert store.read(TOPIC, 0, first, 32).count == 32


def test_queue_without_living_records_says_so(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.append(message(topic="old"))
        fill(store, 60)
    (tmp_path / "commitlog" / f"{0:020}").unlink()
    with opened(tmp_path) as store:
        assert (store.min_offset("old", 0), store.max_offset("old", 0), store.message("old", 0, 0)) == (0, 1, None)
        result = store.read("old", 0, 0, 32)
        assert (result.status, result.next_offset) == (ReadStatus.MESSAGE_WAS_REMOVING, 1)
