"""What becomes of queue entries that were damaged between two runs: they are made again when somebody comes to them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.filter.wanting import Wanted
from tests.store.making import TOPIC, fill, opened

from pyromq import speedups
from pyromq.filter.filter import Filter
from pyromq.message import StoredMessage
from pyromq.record import decode_all
from pyromq.store import recovery
from pyromq.store.message_store import MessageStore
from pyromq.store.queue.consume_queue import ENTRY_BYTES, FILLER_SIZE, QueueEntry

COUNT = 200  # messages in two queues
QUEUE = "consumequeue/orders/0/00000000000000000000"
BIG = {"segment_bytes": 1 << 16, "consume_queue_entries": 300}


@pytest.fixture
def sent(tmp_path: Path) -> list[bytes]:
    """The bodies of a closed store's first queue."""
    with opened(tmp_path, **BIG) as store:
        return [each.body for each in fill(store, COUNT) if each.queue_id == 0]


def pulled(store: MessageStore, wanted: Filter | None = None) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    offset = store.min_offset(TOPIC, 0)
    while offset < store.max_offset(TOPIC, 0):
        read = store.read(TOPIC, 0, offset, 32, wanted=wanted)
        found += [each for view in read.records for each in decode_all(view)]
        assert read.next_offset > offset
        offset = read.next_offset
    return found


def flip(path: Path, position: int, mask: int = 1) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= mask
    path.write_bytes(content)


@pytest.mark.parametrize("byte", range(12))
@pytest.mark.parametrize("entry", [0, 31, 32, 99])
def test_a_flipped_bit_costs_nothing(
    tmp_path: Path, sent: list[bytes], entry: int, byte: int, caplog: pytest.LogCaptureFixture
) -> None:
    before = (tmp_path / QUEUE).read_bytes()
    flip(tmp_path / QUEUE, entry * ENTRY_BYTES + byte, 1 << byte % 7)
    if (entry, byte) == (99, 8):
        return  # a size below zero is where a queue ends: the start mends that
    with opened(tmp_path, **BIG) as store:
        assert [each.body for each in pulled(store)] == sent
    assert (tmp_path / QUEUE).read_bytes() == before
    if entry < 99:  # the last ones are looked at by the start
        assert f"{tmp_path / QUEUE} byte {entry * ENTRY_BYTES}: the damaged entry is rewritten" in caplog.text


@pytest.mark.parametrize("byte", range(12, 20))
def test_a_flipped_bit_hides_no_message_from_those_who_filter(tmp_path: Path, sent: list[bytes], byte: int) -> None:
    flip(tmp_path / QUEUE, 30 * ENTRY_BYTES + byte)
    with opened(tmp_path, **BIG) as store:
        wanted = {store.entries(TOPIC, 0, 0, 1)[0].tags_code}
        assert [each.body for each in pulled(store, Wanted(wanted.__contains__))] == sent[::3]


def test_a_wiped_stretch_is_made_again(tmp_path: Path, sent: list[bytes]) -> None:
    before = (tmp_path / QUEUE).read_bytes()
    begin, end = 10 * ENTRY_BYTES, 70 * ENTRY_BYTES
    (tmp_path / QUEUE).write_bytes(before[:begin] + b"\x55" * (end - begin) + before[end:])
    with opened(tmp_path, **BIG) as store:
        assert [each.body for each in pulled(store)] == sent
    assert (tmp_path / QUEUE).read_bytes() == before


@pytest.mark.parametrize("back", [1, 100, 400, 10_000, 1 << 20])
def test_a_last_entry_that_leads_too_far_back_costs_nothing(tmp_path: Path, sent: list[bytes], back: int) -> None:
    before = (tmp_path / QUEUE).read_bytes()
    content = bytearray(before)
    (log_offset,) = struct.unpack_from(">q", content, 99 * ENTRY_BYTES)
    struct.pack_into(">q", content, 99 * ENTRY_BYTES, max(log_offset - back, 0))
    (tmp_path / QUEUE).write_bytes(content)
    with opened(tmp_path, **BIG) as store:
        assert store.max_offset(TOPIC, 0) == 100
        assert [each.body for each in pulled(store)] == sent
    assert (tmp_path / QUEUE).read_bytes() == before


@pytest.mark.parametrize("count", [1, 32])
def test_an_entry_of_a_negative_size_behind_the_log_costs_nothing(
    tmp_path: Path, sent: list[bytes], count: int
) -> None:
    content = bytearray((tmp_path / QUEUE).read_bytes())
    content[40 * ENTRY_BYTES : 40 * ENTRY_BYTES + 12] = struct.pack(">qi", 1 << 30, -(1 << 30))
    (tmp_path / QUEUE).write_bytes(content)
    with opened(tmp_path, **BIG) as store:
        read = store.read(TOPIC, 0, 40, count)
        assert [each.body for view in read.records for each in decode_all(view)] == sent[40 : 40 + count]


def test_a_message_that_is_gone_from_the_log_is_passed_over_and_told(
    tmp_path: Path, sent: list[bytes], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "_VERIFIED_BYTES", 1000)
    with opened(tmp_path, **BIG) as store:
        entry = store.entries(TOPIC, 0, 5, 1)[0]
    flip(tmp_path / "commitlog" / f"{0:020}", entry.log_offset + 4)
    for _ in range(2):
        with opened(tmp_path, **BIG) as store:
            assert [each.body for each in pulled(store)] == sent[:5] + sent[6:]
    assert f"{tmp_path / QUEUE} byte {5 * ENTRY_BYTES}: the entry leads to no record" in caplog.text
    assert len([line for line in caplog.messages if "leads to no record" in line]) == 1


def test_a_queue_without_its_first_file_gets_it_again(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 40)
    first = tmp_path / QUEUE
    before = first.read_bytes()
    first.unlink()
    with opened(tmp_path) as store:
        assert store.min_offset(TOPIC, 0) == 0
        assert len(pulled(store)) == 20
    assert first.read_bytes() == before


def test_others_than_pulls_get_mended_entries_too(tmp_path: Path, sent: list[bytes]) -> None:
    flip(tmp_path / QUEUE, 7 * ENTRY_BYTES + 7)
    flip(tmp_path / QUEUE, 8 * ENTRY_BYTES + 7)
    with opened(tmp_path, **BIG) as store:
        [entry] = store.entries(TOPIC, 0, 7, 1)
        stored = store.message_at(entry.log_offset)
        assert stored is not None
        assert stored.body == sent[7]
        [(_, record)] = store.records(TOPIC, 0, 8, 1)
        assert record is not None
        assert [each.body for each in decode_all(record)] == [sent[8]]


def test_what_was_compared_once_is_not_compared_again(tmp_path: Path, sent: list[bytes]) -> None:
    with opened(tmp_path, **BIG) as store:
        queue = store._queues.find(TOPIC, 0)
        assert queue is not None
        verifier = store._verifier
        assert verifier.is_due(queue, 0, 32, tags=False)
        pulled(store)
        assert not verifier.is_due(queue, 0, COUNT, tags=False)
        assert verifier.is_due(queue, 0, 32, tags=True)
        fill(store, 2, first=COUNT)
        assert not verifier.is_due(queue, COUNT // 2, COUNT, tags=True)


@pytest.fixture(scope="module")
def store_of_many_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MessageStore]:
    with opened(tmp_path_factory.mktemp("store")) as store:
        fill(store, COUNT)
        yield store


numbers = st.sampled_from([0, 1, -1, 4096, -4096, 1 << 31, -(1 << 40), 1 << 62]) | st.integers(-5000, 50_000)


@pytest.mark.skipif(not speedups.is_active, reason="the compiled parts are not active")
@settings(max_examples=200)
@given(st.data())
def test_what_is_compared_quickly_is_compared_as_thoroughly(
    store_of_many_files: MessageStore, data: st.DataObject
) -> None:
    """Entries that are changed in any way, in files of eight of them, with records in files of a dozen."""
    queue, verifier = store_of_many_files._queues.find(TOPIC, 0), store_of_many_files._verifier
    assert queue is not None
    count = queue.max_offset
    changes = data.draw(st.dictionaries(st.integers(0, count - 1), st.tuples(numbers, numbers), max_size=3))
    before = {offset: queue.find(offset) for offset in changes}
    for offset, (moved, grown) in changes.items():
        entry = before[offset]
        assert entry is not None
        size = data.draw(st.sampled_from([FILLER_SIZE, 90, 91, (entry.size + grown) % (1 << 31), entry.size]))
        log_offset = (entry.log_offset + moved) % (1 << 63)
        queue.put(offset, QueueEntry(data.draw(st.sampled_from([entry.log_offset, log_offset])), size, 0))
    try:
        first = data.draw(st.integers(0, count - 1))
        found = verifier._count_right(queue, first, count)
        assert 0 <= found <= count - first
        assert all(verifier._is_right(queue, offset) for offset in range(first, first + found))
        wrong = [offset for offset in range(first, count) if not verifier._is_right(queue, offset)]
        assert list(verifier._wrong(queue, first, count, tags=False)) == wrong
    finally:
        for offset, entry in before.items():
            assert entry is not None
            queue.put(offset, entry)
