"""Appending, reading and finding, on an open store."""

from __future__ import annotations

import os
import threading
import weakref
from itertools import pairwise
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_SECONDS

from pyromq.errors import MessageRefused, StoreNotWritable
from pyromq.java_hash import java_hash
from pyromq.message import StoredMessage, SysFlag, pack_address
from pyromq.names import SCHEDULE_TOPIC
from pyromq.slow_work import run_blocking
from pyromq.store.disk import LOCAL_DISK, LocalDisk
from pyromq.store.message_store import MessageStore, ReadStatus
from pyromq.store.queue import queue_table
from pyromq.store.store_config import StoreConfig

from .making import (
    ADDRESS,
    NOON_MS,
    SMALL,
    TOPIC,
    StoppedClock,
    bodies,
    crashed_copy,
    fill,
    message,
    opened,
    small_store,
)


def test_append_fills_in_place_and_time(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        first, second = message(1), message(2)
        store.append(first)
        store.append(second)
        assert (first.queue_offset, first.log_offset, first.store_ms) == (0, 0, NOON_MS)
        assert [store.message_at(each.log_offset).queue_offset for each in (first, second)] == [0, 1]
        assert (second.queue_offset, second.log_offset, second.store_address) == (1, first.size, ADDRESS)
        assert store.max_log_offset == first.size + second.size


def test_stored_message_comes_back_in_every_field(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        sent = StoredMessage(
            TOPIC, bytes(range(256)), "a\x01ü\x02TAGS\x01x", 3, -5, 2, 12345, pack_address("10.0.0.7", 80), 4, 99
        )
        store.append(sent)
        stored = store.message_at(sent.log_offset)
        assert stored is not None
        assert stored.body_crc
        stored.body_crc = 0
        stored.properties, sent.properties  # noqa: B018  # both parsed: that is kept as well
        assert stored == sent


def test_addresses_of_ipv6_are_marked_and_kept(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.store_address = pack_address("::2", 10911)
        sent = message()
        sent.born_address = pack_address("::1", 80)
        store.append(sent)
        assert sent.sys_flag == SysFlag.BORN_HOST_IPV6 | SysFlag.STORE_HOST_IPV6
        stored = store.message_at(sent.log_offset)
        assert stored is not None
        assert (stored.born_host, stored.store_host, stored.body) == ("[::1]:80", "[::2]:10911", b"body 0")
        assert stored.store_ms == NOON_MS


def test_store_times_never_decrease(tmp_path: Path) -> None:
    clock = StoppedClock()
    with opened(tmp_path, clock) as store:
        earlier, later = message(), message()
        store.append(earlier)
        clock.ms -= 5_000
        store.append(later)
        assert later.store_ms == earlier.store_ms


def test_half_and_rolled_back_records_are_in_no_queue(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for flag in (SysFlag.HALF, SysFlag.ROLLBACK, SysFlag.COMMIT):
            sent = message()
            sent.sys_flag = flag
            store.append(sent)
        assert store.max_offset(TOPIC, 0) == 1
        assert store.entries(TOPIC, 0, 0, 9)[0].log_offset == sent.log_offset


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        ("TAGS\x01TagA", 2598919),
        ("TAGS\x01TagA\x02", 2598919),
        ("a\x01b\x02TAGS\x01TagA\x02c\x01d", 2598919),
        ("XTAGS\x01no", 0),
        ("XTAGS\x01no\x02TAGS\x01TagA", 2598919),
        ("TAGS\x01TagA\x02XTAGS\x01no", 2598919),
        ("TAGS\x01old\x02TAGS\x01TagA", 2598919),
        ("TAGS\x01TagA\x02TAGS\x01", 2598919),
        ("TAGS\x01", 0),
        ("", 0),
        ("TAGS\x01a || b", java_hash("a || b")),
        ("TAGS\x01grün", java_hash("grün")),
    ],
)
def test_tags_code_is_the_hash_of_the_tags(tmp_path: Path, properties: str, code: int) -> None:
    with opened(tmp_path) as store:
        store.append(StoredMessage(TOPIC, b"x", properties))
        assert store.entries(TOPIC, 0, 0, 1)[0].tags_code == code


@pytest.mark.parametrize(("level", "delay_ms"), [("1", 1_000), ("18", 7_200_000), ("30", 7_200_000)])
def test_entry_of_a_delayed_message_says_when_it_is_due(tmp_path: Path, level: str, delay_ms: int) -> None:
    with opened(tmp_path) as store:
        store.append(message(topic=SCHEDULE_TOPIC, DELAY=level, TAGS="TagA"))
        store.append(message(DELAY=level, TAGS="TagA"))
        assert store.entries(SCHEDULE_TOPIC, 0, 0, 1)[0].tags_code == NOON_MS + delay_ms
        assert store.entries(TOPIC, 0, 0, 1)[0].tags_code == 2598919


def test_a_follower_applies_each_record_of_its_topic_before_its_append_returns(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        applied: list[tuple[int, int]] = []
        store.follow(TOPIC, lambda record: applied.append((record.queue_offset, record.log_offset)))
        store.append(first := message(1))
        assert applied == [(0, first.log_offset)]
        other = StoredMessage("other", b"body")
        store.append_batch([other, second := message(2), third := message(3)])
        assert applied[1:] == [(each.queue_offset, each.log_offset) for each in (second, third)]


def test_listener_hears_of_each_message_once_it_can_be_read(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        heard = []
        store.listen(lambda sent, code: heard.append((sent.body, code, store.max_offset(TOPIC, 0))), lambda *_: None)
        store.append(message(1, TAGS="TagA"))
        store.append_batch([message(2), message(3)])
        assert heard == [(b"body 1", 2598919, 1), (b"body 2", 0, 2), (b"body 3", 0, 3)]


def test_segments_are_closed_by_blank_records(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        sent = fill(store, 60)
        assert bodies(store) == [each.body for each in sent[::2]]
    assert len(list((tmp_path / "commitlog").iterdir())) > 2
    first = (tmp_path / "commitlog" / f"{0:020}").read_bytes()
    end = next(each.log_offset for each in reversed(sent) if each.log_offset < 4096)
    end += next(each.size for each in sent if each.log_offset == end)
    assert first[end : end + 8] == (4096 - end).to_bytes(4, "big") + bytes.fromhex("cbd43194")
    assert not any(first[end + 8 :])


def test_batch_is_never_split_over_two_segments(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 20)
        batch = [message(n, queue_id=n % 2) for n in range(15)]
        store.append_batch(batch)
        assert batch[0].log_offset == 4096
        assert all(after.log_offset == each.log_offset + each.size for each, after in pairwise(batch))
        assert [each.queue_offset for each in batch[::2]] == list(range(10, 18))
        assert bodies(store, 1)[10:] == [each.body for each in batch[1::2]]


@pytest.mark.parametrize(
    ("refused", "names"),
    [
        (StoredMessage("t" * 128, b"x"), "128 bytes, the limit is 127"),
        (StoredMessage(TOPIC, b"x", "a" * 32768), "32768 bytes"),
        (StoredMessage(TOPIC, bytes(5000)), "the limit is 4088"),
        (StoredMessage(TOPIC, b"x", queue_id=-1), "queue -1"),
        (StoredMessage("../up", b"x"), "'../up'"),
    ],
)
def test_what_a_record_cannot_hold_is_refused(tmp_path: Path, refused: StoredMessage, names: str) -> None:
    with opened(tmp_path) as store:
        store.append(message(1))
        for attempt in (store.append, lambda each: store.append_batch([message(), each])):
            with pytest.raises(MessageRefused, match=names):
                attempt(refused)
        store.append(message(2))
        assert bodies(store) == [b"body 1", b"body 2"]
        assert store.max_offset(refused.topic, refused.queue_id) == (
            2 if refused.topic == TOPIC and refused.queue_id == 0 else 0
        )


def test_closed_store_refuses(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    with pytest.raises(StoreNotWritable, match="not open"):
        store.append(message())
    store.open()
    store.close()
    with pytest.raises(StoreNotWritable, match="closed"):
        store.append(message())
    store.close()


def test_views_outlive_the_store(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        sent = fill(store, 2, queues=1)
        records = store.read(TOPIC, 0, 0, 32).records
    assert sum(map(len, records)) == sum(each.size for each in sent)
    assert sent[0].body in bytes(records[0])


def open_below(folder: Path) -> list[str]:
    paths = map(os.path.realpath, Path("/proc/self/fd").iterdir())
    return [path for path in paths if path.startswith(f"{folder}/")]


def test_queues_keep_no_descriptors(tmp_path: Path) -> None:
    with opened(tmp_path, segment_bytes=1 << 20) as store:
        store.append(message())
        for queue_id in range(1, 200):
            store.append(message(queue_id=queue_id))
            store.read(TOPIC, queue_id, 0, 32)
        # The store's threads may have one open at this very moment.
        assert any(not open_below(tmp_path / "consumequeue") for _ in range(20_000))


def test_deleted_topic_begins_anew_and_stays_deleted(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 10)
        store.append(message(topic="other"))
        deleted = store.delete_topic(TOPIC)
        assert store.topics() == ["other"]
        deleted.result(PATIENCE_SECONDS)
        assert not (tmp_path / "consumequeue" / TOPIC).exists()
    with opened(tmp_path) as store:
        assert store.topics() == ["other"]
        store.append(message(7))
        assert bodies(store) == [b"body 7"]


class SlowRemoval(LocalDisk):
    """A disk that removes folders when it is told to."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()

    def remove_folder(self, folder: Path) -> None:
        self.goes_on.wait(PATIENCE_SECONDS)
        super().remove_folder(folder)


def test_while_the_files_of_a_deleted_topic_go_others_are_stored_and_it_is_not(tmp_path: Path) -> None:
    disk = SlowRemoval()
    store = MessageStore(StoreConfig(tmp_path, **SMALL), StoppedClock(), store_address=ADDRESS, disk=disk)
    try:
        store.open()
        store.append(message(topic="gone"))
        deleted = store.delete_topic("gone")
        assert store.max_offset("gone", 0) == 0
        store.append(message(7))
        assert bodies(store) == [b"body 7"]
        with pytest.raises(StoreNotWritable, match="topic gone is being deleted"):
            store.append(message(topic="gone"))
        assert not deleted.done()
        disk.goes_on.set()
        deleted.result(PATIENCE_SECONDS)
        store.append(again := message(topic="gone"))
        assert again.queue_offset == 0
    finally:
        disk.goes_on.set()
        store.close()
    with opened(tmp_path) as store:
        assert store.max_offset("gone", 0) == 1


def test_offset_by_time_is_the_first_of_that_time_or_the_nearer_neighbour(tmp_path: Path) -> None:
    clock = StoppedClock()
    with opened(tmp_path, clock) as store:
        for ms in (0, 10, 10, 10, 20, 31):
            clock.ms = NOON_MS + ms
            store.append(message())
        asked = {-5: 0, 0: 0, 4: 0, 5: 0, 6: 1, 10: 1, 15: 3, 16: 4, 25: 4, 26: 5, 31: 5, 99: 5}
        assert {ms: run_blocking(store.search_by_time(TOPIC, 0, NOON_MS + ms)) for ms in asked} == asked
        assert run_blocking(store.search_by_time("unknown", 0, NOON_MS)) == 0


def test_record_at_gives_records_only(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        sent = fill(store, 30)
        begins = {each.log_offset for each in sent}
        found = {at for at in range(-10, store.max_log_offset + 10) if store.record_at(at) is not None}
        assert found == begins
        assert store.message_at(1) is None


def test_unknown_queue_is_empty(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        assert (store.min_offset("x", 0), store.max_offset("x", 0)) == (0, 0)
        assert store.entries("x", 0, 0, 10) == []
        assert store.queue_ids("x") == []
        assert store.read("x", 0, 0, 32).status is ReadStatus.NO_MATCHED_LOGIC_QUEUE


def test_of_many_queues_few_are_mapped_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_table, "MAX_MAPPED", 5)
    with opened(tmp_path) as store:
        for _ in range(3):
            fill(store, 40, queues=20)
        queues = list(store._queues)
        assert sum(queue.files.segments[-1].is_mapped for queue in queues) == 5
        assert [bodies(store, queue_id) for queue_id in range(20)] == [
            [b"body %d" % queue_id, b"body %d" % (queue_id + 20)] * 3 for queue_id in range(20)
        ]
        assert sum(queue.files.segments[-1].is_mapped for queue in queues) == 5
    with opened(tmp_path) as store:
        assert store.max_offset(TOPIC, 19) == 6


class CountingDisk(LocalDisk):
    """Counts the consume queues that are mapped at the same time, and all mappings of queues."""

    def __init__(self) -> None:
        self.mapped = self.most = 0
        self._views: list[weakref.ref[memoryview]] = []

    def map(self, descriptor: int, size: int, *, scattered: bool, write: bool = True) -> memoryview:  # type: ignore[override]
        memory = LOCAL_DISK.map(descriptor, size, scattered=scattered, write=write)
        if scattered:
            self._views.append(weakref.ref(memory))
            self.mapped += 1
            self.most = max(self.most, sum(view() is not None for view in self._views))
        return memory


@pytest.mark.parametrize("crashed", [False, True], ids=["stopped", "crashed"])
def test_a_start_maps_few_of_many_queues_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crashed: bool
) -> None:
    monkeypatch.setattr(queue_table, "MAX_MAPPED", 5)
    folder = root = tmp_path / "store"
    with opened(folder, consume_queue_entries=100) as store:
        fill(store, 60, queues=20)
        if crashed:
            root = crashed_copy(folder, tmp_path / "copy")
    disk = CountingDisk()
    config = StoreConfig(root, **{**SMALL, "consume_queue_entries": 100})
    store = MessageStore(config, StoppedClock(), store_address=ADDRESS, disk=disk)
    store.open()
    try:
        assert disk.most <= 5 + 1  # the next file is mapped before the oldest one is unmapped
        assert crashed or disk.mapped < 20  # the saved ends suffice after a stop
        assert [store.max_offset(TOPIC, queue_id) for queue_id in range(20)] == [3] * 20
        fill(store, 20, first=60, queues=20)
        assert bodies(store, 19) == [b"body 19", b"body 39", b"body 59", b"body 79"]
    finally:
        store.close()
