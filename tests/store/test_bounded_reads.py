"""Readers see confirmed messages only, where reads are bounded."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from pyromq.slow_work import run_blocking
from pyromq.store.message_store import MessageStore, ReadStatus

from .making import NOON_MS, TOPIC, StoppedClock, bodies, fill, message, opened

ALL = 1 << 50


def read(store: MessageStore, offset: int, queue_id: int = 0) -> tuple[ReadStatus, int, int, int]:
    found = store.read(TOPIC, queue_id, offset, 32)
    return found.status, found.count, found.next_offset, found.max_offset


def test_without_a_bound_all_is_confirmed_that_is_stored(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 4)
        store.confirm(1)
        assert store.confirmed_end == store.max_log_offset
        assert store.max_offset(TOPIC, 0) == store.next_offset(TOPIC, 0) == 2
        assert store.unconfirmed_entries(TOPIC, 0, 10) == []


def test_nothing_is_seen_before_it_is_confirmed(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.bound_reads()
        sent = fill(store, 6)  # queues 0 and 1 in turn
        assert (store.confirmed_end, store.max_offset(TOPIC, 0), store.next_offset(TOPIC, 0)) == (0, 0, 3)
        assert read(store, 0) == (ReadStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        store.confirm(sent[2].log_offset + sent[2].size - 1)
        assert read(store, 0) == (ReadStatus.FOUND, 1, 1, 1)
        store.confirm(sent[2].log_offset + sent[2].size)
        assert read(store, 0) == (ReadStatus.FOUND, 2, 2, 2)
        assert read(store, 0, 1) == (ReadStatus.FOUND, 1, 1, 1)
        store.confirm(0)
        assert store.max_offset(TOPIC, 0) == 2
        store.confirm(ALL)
        assert store.confirmed_end == store.max_log_offset
        assert read(store, 0) == (ReadStatus.FOUND, 3, 3, 3)


def test_a_read_between_confirmed_and_stored_end_stays_there(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.bound_reads()
        sent = fill(store, 6, queues=1)
        for confirmed in (0, 2):
            store.confirm(sent[confirmed].log_offset)
            for offset in range(confirmed + 1, 7):
                assert read(store, offset) == (ReadStatus.OFFSET_OVERFLOW_ONE, 0, offset, confirmed)
        assert read(store, 7) == (ReadStatus.OFFSET_OVERFLOW_BADLY, 0, 2, 2)


def test_records_keys_and_times_of_unconfirmed_messages_are_not_found(tmp_path: Path) -> None:
    clock = StoppedClock()
    with opened(tmp_path, clock) as store:
        store.bound_reads()
        first, second = message(1, KEYS="k"), message(2, KEYS="k")
        store.append(first)
        clock.ms += 1000
        store.append(second)
        store.follow_index()
        store.confirm(second.log_offset)
        assert store.confirmed_record_at(first.log_offset) == store.record_at(first.log_offset)
        assert store.confirmed_record_at(second.log_offset) is None
        assert run_blocking(store.search_by_key(TOPIC, "k", 10, 0, ALL)).log_offsets == [first.log_offset]
        assert run_blocking(store.search_by_time(TOPIC, 0, NOON_MS + 1000)) == 0
        assert store.reading.first_from(TOPIC, 0, 1) is None
        store.confirm(ALL)
        assert len(run_blocking(store.search_by_key(TOPIC, "k", 10, 0, ALL)).log_offsets) == 2
        assert run_blocking(store.search_by_time(TOPIC, 0, NOON_MS + 1000)) == 1


def test_actions_wait_for_the_records_before_them_in_order(tmp_path: Path) -> None:
    done: list[int] = []
    with opened(tmp_path) as store:
        store.when_confirmed(lambda: done.append(0))
        store.bound_reads()
        ends = []
        for number in (1, 2, 3):
            store.append(message(number))
            ends.append(store.max_log_offset)
            store.when_confirmed(lambda number=number: done.append(number))  # type: ignore[misc]
        assert done == [0]
        store.confirm(ends[1])
        assert done == [0, 1, 2]
        store.confirm(ends[2])
        store.when_confirmed(lambda: done.append(4))
        assert done == [0, 1, 2, 3, 4]


def test_appends_go_on_behind_unconfirmed_messages(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.bound_reads()
        sent = fill(store, 20, queues=1)  # files of 8 entries
        assert [each.queue_offset for each in sent] == list(range(20))
        store.append_batch(more := [message(20), message(21)])
        assert [each.queue_offset for each in more] == [20, 21]
        store.confirm(ALL)
        assert bodies(store) == [b"body %d" % number for number in range(22)]


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 2), max_size=40), st.lists(st.integers(0, 10_000), max_size=8))
def test_each_queue_ends_with_the_last_record_that_ends_in_the_confirmed_log(
    queue_ids: list[int], steps: list[int]
) -> None:
    with TemporaryDirectory() as folder, opened(Path(folder)) as store:
        store.bound_reads()
        sent = [message(number, queue_id=queue_id) for number, queue_id in enumerate(queue_ids)]
        for each in sent:
            store.append(each)
        for confirmed in accumulate(steps):
            store.confirm(confirmed)
            for queue_id in range(3):
                seen = [each for each in sent if each.queue_id == queue_id and each.log_offset + each.size <= confirmed]
                assert store.max_offset(TOPIC, queue_id) == len(seen)
                stored = queue_ids.count(queue_id)
                assert len(store.unconfirmed_entries(TOPIC, queue_id, 100)) == (
                    stored - len(seen) if confirmed < store.max_log_offset else 0
                )
