"""Finding messages by key, and the index files behind it."""

from __future__ import annotations

import tracemalloc
from errno import ENOSPC
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.consuming.cold import forget, waits_of_this_thread
from tests.slow_work import steps_of
from tests.store.making import (
    ADDRESS,
    NOON_MS,
    SMALL,
    TOPIC,
    StoppedClock,
    crashed_copy,
    files_below,
    fill,
    message,
    opened,
)

from pyromq.errors import StoreCorrupt
from pyromq.java_hash import java_hash
from pyromq.message import StoredMessage, SysFlag
from pyromq.names import TIMER_TOPIC
from pyromq.record import encode, is_of_topic, log_offset_of
from pyromq.slow_work import PagesToLoad, run_blocking
from pyromq.store.disk import LOCAL_DISK
from pyromq.store.index import index_file
from pyromq.store.index.index_file import key_hashes
from pyromq.store.message_store import MessageStore
from pyromq.store.store_config import StoreConfig
from pyromq.testing import SimulatedDisk

EVER = (0, (1 << 63) - 1)


def load_in_thread(unread: PagesToLoad) -> None:
    if unread:
        thread = Thread(target=LOCAL_DISK.load, args=(unread,))
        thread.start()
        thread.join()


def found(store: MessageStore, key: str, most: int = 64, *, topic: str = TOPIC) -> list[bytes]:
    """Bodies of the matches that really have the key, newest first."""
    store.follow_index()
    messages = [store.message_at(at) for at in run_blocking(store.search_by_key(topic, key, most, *EVER)).log_offsets]
    assert all(each is not None for each in messages)
    return [each.body for each in messages if each is not None and key in (*each.keys, each.message_id)]


def test_messages_are_found_by_key_and_by_id(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 50)
        assert found(store, "k17") == [b"body 17"]
        assert found(store, f"{31:032X}") == [b"body 31"]
        assert found(store, "even", 3) == [b"body 48", b"body 46", b"body 44"]
        assert found(store, "k50") == found(store, "k17", topic="other") == []


def test_query_finds_what_was_stored_a_moment_ago(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for number in range(20):
            store.append(message(number, KEYS="same"))
            assert len(found(store, "same")) == number + 1


def test_index_follows_in_steps(tmp_path: Path) -> None:
    with opened(tmp_path, segment_bytes=1 << 20) as store:
        fill(store, 500)
        assert store.index_behind == store.max_log_offset
        assert not store.index_step(0)
        assert 0 < store.index_behind < store.max_log_offset
        while not store.index_step(0):
            pass
        assert store.index_behind == 0


WORDS = [str(number) for number in range(6_000)]


def test_a_message_with_thousands_of_keys_is_entered_in_slices(tmp_path: Path) -> None:
    with opened(tmp_path / "store", segment_bytes=1 << 20, index_entries=10_000) as store:
        store.append(message(1, KEYS=" ".join(WORDS)))
        assert not store.index_step(0)
        assert store.index_behind == store.max_log_offset
        copy = crashed_copy(tmp_path / "store", tmp_path / "copy")
        steps = 2
        while not store.index_step(0):
            steps += 1
        assert steps == -(-len(WORDS) // 64)
        store.append(message(2, KEYS=" ".join(WORDS)))  # begins the next file
        for key in (WORDS[0], WORDS[63], WORDS[64], WORDS[-1]):
            assert found(store, key) == [b"body 2", b"body 1"]
        assert [file.next_entry for file in store._index.files] == [10_000, 1 + 12_000 - 9_999]
    with opened(copy, segment_bytes=1 << 20, index_entries=10_000) as store:
        assert [found(store, key) for key in (WORDS[0], WORDS[64], WORDS[-1])] == [[b"body 1"]] * 3
        assert store._index.files[0].next_entry == 1 + 6_000


def test_a_query_looks_once_at_a_message_that_has_a_key_a_thousand_times(tmp_path: Path) -> None:
    with opened(tmp_path, segment_bytes=1 << 20, index_entries=10_000) as store:
        store.append(message(1, topic="TB", KEYS="salary-7"))
        store.append(message(2, topic="TA", KEYS=" ".join(["038DG7D8"] * 3_000)))  # with the same hash
        store.follow_index()
        search = steps_of(store.search_by_key("TB", "salary-7", 1, *EVER))
        assert sum(1 for _ in search) < 40
        assert found(store, "salary-7", topic="TB") == [b"body 1"]


def test_time_bounds_a_query(tmp_path: Path) -> None:
    clock = StoppedClock()
    with opened(tmp_path, clock) as store:
        for number in range(40):
            clock.ms = NOON_MS + number * 10_000
            store.append(message(number, KEYS="same"))
        store.follow_index()
        matches = run_blocking(store.search_by_key(TOPIC, "same", 64, NOON_MS + 95_000, NOON_MS + 200_000))
        stored = [store.message_at(at) for at in matches.log_offsets]
        assert [each.body for each in stored if each] == [b"body %d" % n for n in range(20, 9, -1)]
        assert matches.last_update_ms == clock.ms


@pytest.mark.on_disk
def test_a_search_says_what_it_is_about_to_read_from_the_disk(tmp_path: Path) -> None:
    with opened(tmp_path, index_slots=100_000, index_entries=100_000) as store:
        fill(store, 3_000)
        store.follow_index()
    forget((tmp_path / "index").iterdir())
    with opened(tmp_path, index_slots=100_000, index_entries=100_000) as store:
        search = store.search_by_key(TOPIC, "k17", 64, *EVER)
        pages: PagesToLoad = []
        waited = waits_of_this_thread()

        def load(some: PagesToLoad) -> None:
            pages.extend(some)
            load_in_thread(some)

        matches = run_blocking(search, load)
        assert waits_of_this_thread() == waited
        if not pages:
            pytest.skip("this file system keeps its files in memory")
        assert [store.message_at(at).body for at in matches.log_offsets] == [b"body 17"]


def test_a_search_through_many_of_another_time_may_be_left_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_file, "LOOKED_AT", 10)
    clock = StoppedClock()
    with opened(tmp_path, clock) as store:
        for number in range(50):
            clock.ms = NOON_MS + (10_000 if number else 0)
            store.append(message(number, KEYS="same"))
        store.follow_index()
        search = store.search_by_key(TOPIC, "same", 64, NOON_MS + 5_000, NOON_MS + 9_000)
        assert len(list(steps_of(search))) >= 3


def test_a_search_goes_on_over_files_that_are_deleted_meanwhile(tmp_path: Path) -> None:
    with opened(tmp_path, index_slots=10, index_entries=20) as store:
        for number in range(100):
            store.append(message(number, KEYS="same"))
        store.follow_index()
        files = store._index.files
        search = steps_of(store.search_by_key(TOPIC, "same", 64, *EVER))
        next(search)  # in the last file
        newest = files[-1]
        for file in files[:]:
            files.remove(file)
            file.file.delete()
        with pytest.raises(StopIteration) as done:
            while True:
                next(search)
        bodies = [store.message_at(at).body for at in done.value.value.log_offsets]
        assert bodies == [b"body %d" % number for number in range(99, 99 - len(bodies), -1)]
        assert 0 < len(bodies) < 64
        files.append(newest)


def test_reopened_index_goes_on_where_it_was(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 30)
    before = files_below(tmp_path / "index")
    with opened(tmp_path) as store:
        assert store.index_behind == 0
    assert files_below(tmp_path / "index") == before
    with opened(tmp_path) as store:
        fill(store, 1, first=99)
        assert found(store, "k99") == [b"body 99"]


def contents(root: Path) -> list[bytes]:
    return list(files_below(root / "index").values())


def test_deleted_index_is_made_again_byte_for_byte(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 100)
    before = contents(tmp_path)
    assert len(before) > 3
    for path in (tmp_path / "index").iterdir():
        path.unlink()
    with opened(tmp_path) as store:
        assert found(store, "k7") == [b"body 7"]
    assert contents(tmp_path) == before


@pytest.mark.parametrize("power_loss", [False, True])
def test_crash_loses_no_key(tmp_path: Path, power_loss: bool) -> None:
    with opened(tmp_path / "first") as store:
        fill(store, 30)
        store.index_step(0)
        fill(store, 30, first=30)
        copy = crashed_copy(tmp_path / "first", tmp_path / "second", power_loss=power_loss)
        store.index_step(1)
    with opened(copy) as store:
        assert found(store, "even") == [b"body %d" % n for n in range(58, -1, -2)]
    assert contents(copy) == contents(tmp_path / "first")


@pytest.mark.parametrize("entered", [0, 31])
def test_a_full_disk_keeps_no_part_of_an_index_file(entered: int) -> None:
    disk, clock = SimulatedDisk(), StoppedClock()
    config = StoreConfig(Path("/srv/store"), **SMALL)  # type: ignore[arg-type]
    store = MessageStore(config, clock, store_address=ADDRESS, disk=disk)
    store.open()
    for number in range(entered):
        store.append(message(number, KEYS=f"k{number}"))
    assert store.index_step(60)
    store.append(message(entered, KEYS="last"))
    before = disk.paths()
    disk.refuse = lambda kind, path: ENOSPC if kind == "allocate" and path.parent.name == "index" else None
    for _ in range(3):
        clock.ms += 500
        assert store.index_step(60)  # nothing can be done now
    assert disk.paths() == before
    disk.refuse = lambda kind, path: None
    assert found(store, "last") == [b"body %d" % entered]
    store.close()


def test_index_can_be_switched_off(tmp_path: Path) -> None:
    with opened(tmp_path, index_enabled=False) as store:
        fill(store, 5)
        assert store.index_step(0)
        assert store.index_behind == 0
        assert run_blocking(store.search_by_key(TOPIC, "k1", 64, *EVER)).log_offsets == []
    assert not (tmp_path / "index").exists()


def test_index_files_of_another_size_are_named(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "20260101000000000").write_bytes(bytes(10))
    with pytest.raises(StoreCorrupt, match="20260101000000000 has 10 bytes"), opened(tmp_path):
        pass


def test_a_foreign_file_in_the_index_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "notes.txt").write_text("what is this")
    with opened(tmp_path) as store:
        fill(store, 5)
        assert found(store, "k3") == [b"body 3"]
    assert "notes.txt is not a file of the store" in caplog.text


@pytest.mark.parametrize("place", [0, 2])
def test_from_an_index_file_that_was_cut_on_the_index_is_made_again(tmp_path: Path, place: int) -> None:
    with opened(tmp_path) as store:
        fill(store, 60)
    before = contents(tmp_path)
    path = sorted((tmp_path / "index").iterdir())[place]
    path.write_bytes(path.read_bytes()[:100])
    with opened(tmp_path) as store:
        assert found(store, "k3") == [b"body 3"]
        assert found(store, "k59") == [b"body 59"]
    assert contents(tmp_path) == before


def test_rolled_back_messages_have_no_keys(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        sent = message(1, KEYS="k")
        sent.sys_flag = SysFlag.ROLLBACK
        store.append(sent)
        assert found(store, "k") == []


def test_messages_that_wait_for_their_time_have_no_keys(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        waits = message(1, KEYS="k")
        waits.topic = TIMER_TOPIC
        store.append(waits)
        assert found(store, "k", topic=TIMER_TOPIC) == []
        store.append(message(1, KEYS="k"))
        assert found(store, "k") == [b"body 1"]


def test_index_steps_over_waiting_messages_alone(tmp_path: Path) -> None:
    with opened(tmp_path, segment_bytes=1 << 16) as store:
        for number in range(500):
            store.append(message(number, topic=TIMER_TOPIC))
        store.append(message(500, KEYS="k"))
        steps = 1
        while not store.index_step(0):
            steps += 1
        assert 500 / 64 <= steps <= 500 / 16 + 2  # compiled code takes up to 64 records in a step, plain code 16
        assert found(store, "k") == [b"body 500"]


@given(
    st.sampled_from(["orders", "order", TIMER_TOPIC, TIMER_TOPIC + "x"]),
    st.binary(max_size=200),
    st.sampled_from([4, 16]),
    st.sampled_from([4, 16]),
)
def test_records_tell_their_topic_without_being_decoded(topic: str, body: bytes, born: int, store: int) -> None:
    flags = SysFlag.BORN_HOST_IPV6 * (born == 16) | SysFlag.STORE_HOST_IPV6 * (store == 16)
    sent = StoredMessage(topic, body, "", sys_flag=flags, born_address=bytes(born + 4), store_address=bytes(store + 4))
    sent.log_offset = 1 << 40
    record = encode(sent)
    assert is_of_topic(record, TIMER_TOPIC.encode()) == (topic == TIMER_TOPIC)
    assert log_offset_of(record) == 1 << 40


@given(st.text("0123456789ABCDEFü", max_size=40), st.lists(st.text("abcö", min_size=1, max_size=5), max_size=3))
def test_key_hashes_are_java_s(unique: str, keys: list[str]) -> None:
    text = f"UNIQ_KEY\x01{unique}\x02KEYS\x01{'  '.join(keys)}"
    wanted = [f"topic#{key}" for key in ([unique] if unique else []) + keys]
    assert key_hashes("topic", text) == [abs(java_hash(text)) for text in wanted]


def test_hashes_of_many_keys_take_little_memory() -> None:
    tracemalloc.start()
    try:
        for number in range(1 << 16):
            key_hashes("topic", f"UNIQ_KEY\x017F00000100002A139A55{number // 16:08X}{number:04X}")
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()
