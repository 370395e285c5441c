"""Index files as compiled code writes them: byte for byte those of the plain form, whatever the log holds."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.store.making import NOON_MS, StoppedClock, files_below

from pyromq import speedups
from pyromq.java_hash import java_hash
from pyromq.message import StoredMessage, SysFlag
from pyromq.names import TIMER_TOPIC
from pyromq.record import mark_addresses
from pyromq.store.index.index_file import HEADER, key_hashes
from pyromq.store.index.key_index import KeyIndex
from pyromq.store.log.commit_log import CommitLog

pytestmark = pytest.mark.skipif(not speedups.is_active, reason="the compiled parts are not built")

FEW = 40  # each makes a log and two indexes
WORDS = ["UNIQ_KEY", "KEYS", "TAGS", "\x01", "\x02", " ", "", "k", "key-17", "é", "€", "😀", "7F0000", "\0", "x" * 40]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=14).map("".join) | st.builds(
    "UNIQ_KEY\x01{}\x02KEYS\x01{}\x02TAGS\x01a".format,
    st.text("0123456789ABCDEF", max_size=32),
    st.lists(st.text("abé€😀", max_size=3), max_size=5).map(" ".join),
)


class Sent(NamedTuple):
    topic: str = "orders"
    text: str = "KEYS\x01k"
    sys_flag: int = 0
    born_bytes: int = 8
    store_bytes: int = 8
    later_ms: int = 0
    body: bytes = b"x"


SENT = st.builds(
    Sent,
    topic=st.sampled_from(["orders", "orders", "o", "tö€", "😀", TIMER_TOPIC, TIMER_TOPIC + "x"]),
    text=TEXTS,
    sys_flag=st.sampled_from([0, 0, SysFlag.HALF, SysFlag.COMMIT, SysFlag.ROLLBACK, SysFlag.COMPRESSED]),
    born_bytes=st.sampled_from([8, 8, 20]),
    store_bytes=st.sampled_from([8, 8, 20]),
    later_ms=st.sampled_from([0, 1, 999, 1000, 1 << 42]),
    body=st.binary(max_size=30),
)
DAMAGE = st.lists(st.tuples(st.integers(0, 1500), st.integers(1, 255)), max_size=4)


@contextmanager
def log_of(messages: list[Sent], clock: StoppedClock) -> Iterator[tuple[Path, CommitLog]]:
    with tempfile.TemporaryDirectory() as folder:
        log = CommitLog(Path(folder, "log"), 1024, clock=clock, max_record_bytes=1000)
        log.load()
        log.resume(0, 0)
        for each in messages:
            append(log, each, clock)
        yield Path(folder), log
        log.close()


def append(log: CommitLog, sent: Sent, clock: StoppedClock) -> None:
    clock.ms = min(clock.ms + sent.later_ms, 1 << 61)
    message = StoredMessage(sent.topic, sent.body, sent.text, sys_flag=sent.sys_flag)
    message.born_address, message.store_address = bytes(sent.born_bytes), bytes(sent.store_bytes)
    mark_addresses(message)
    log.append(message)


def both_indexes(work: Callable[[Path], KeyIndex], folder: Path) -> None:
    """Compare what comes of the same work done in both forms: files, and how far the index is."""
    compiled = work(folder / "compiled")
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(speedups, "is_active", False)
        plain = work(folder / "plain")
    assert compiled.position == plain.position
    assert files_below(folder / "compiled") == files_below(folder / "plain")


def index_at(folder: Path, clock: StoppedClock, slots: int = 7, entries: int = 30) -> KeyIndex:
    return KeyIndex(folder, slots=slots, entries=entries, clock=clock)


@settings(max_examples=FEW)
@given(st.lists(SENT, max_size=30), DAMAGE, st.integers(1, 9), st.integers(2, 40))
@example([Sent(text="KEYS\x01a b c d")] * 8, [], 1, 10)
def test_both_forms_write_the_same_bytes(
    messages: list[Sent], damage: list[tuple[int, int]], slots: int, entries: int
) -> None:
    clock = StoppedClock()
    with log_of(messages, clock) as (folder, log):
        for at, flipped in damage:
            if at < log.end:
                log.files.find(at).memory[at % 1024] ^= flipped

        def follow(target: Path) -> KeyIndex:
            index = index_at(target, clock, slots, entries)
            while not index.follow(log, 0):
                pass
            return index

        both_indexes(follow, folder)


def test_before_the_first_file_compiled_code_indexes_records_without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = StoppedClock()
    with log_of([Sent(text="TAGS\x01a")] * 5 + [Sent()], clock) as (folder, log):
        index = index_at(folder / "index", clock)
        plainly = index._enter_plainly
        entered: list[int] = []

        def enter_plainly(log: CommitLog, most: int) -> None:
            entered.append(index.position)
            plainly(log, most)

        monkeypatch.setattr(index, "_enter_plainly", enter_plainly)
        assert index.follow(log, None)
        assert entered == [index.files[0].begin_log_offset]  # the record with a key makes the file
        assert index.position == log.end


@settings(max_examples=FEW)
@given(st.lists(SENT, min_size=1, max_size=15), st.lists(SENT, min_size=1, max_size=15), st.integers(2, 40))
def test_behind_a_kill_both_forms_go_on_alike(before: list[Sent], behind: list[Sent], entries: int) -> None:
    """The header is older than entries and slots, as where a process is killed between them."""
    clock = StoppedClock()
    with log_of(before, clock) as (folder, log):
        middle = log.end
        for each in behind:
            append(log, each, clock)
        end = log.end

        def killed_and_opened(target: Path) -> KeyIndex:
            index = index_at(target, clock, entries=entries)
            log.end = middle
            index.follow(log, None)
            path = index.files[-1].file.path if index.files else None
            head = path.read_bytes()[: HEADER.size] if path else b""
            log.end = end
            index.follow(log, None)
            if path:
                with path.open("r+b") as file:
                    file.write(head)
            index = index_at(target, clock, entries=entries)
            index.load(log, flushed_ms=0, power_loss=False)
            index.follow(log, None)
            return index

        both_indexes(killed_and_opened, folder)


ODD = {
    "says another size": (3, 1),
    "has another magic": (4, 1),
    "has another log offset": (35, 1),
    "is stored later than the last": (57, 1),
    "has a body of another size": (87, 1),
    "has a body of negative size": (84, 0x80),
    "has a topic of another size": (89, 1),
    "has a topic that is not UTF-8": (90, 0x80),
    "has properties that are no UTF-8": (110, 0x80),
}


@contextmanager
def indexed_once(
    count: int, text: str = "UNIQ_KEY\x01U1\x02KEYS\x01k", *, entries: int = 100
) -> Iterator[tuple[KeyIndex, CommitLog, int]]:
    """An index that has the first of so many equal messages, with room for more; and the size of one."""
    clock = StoppedClock()
    with log_of([Sent(text=text)], clock) as (folder, log):
        index = index_at(folder / "index", clock, entries=entries)
        index.follow(log, None)
        size = log.end
        for _ in range(count - 1):
            append(log, Sent(text=text), clock)
        yield index, log, size


def enter(index: KeyIndex, log: CommitLog, most: int = 100) -> tuple[int, int]:
    records = log.files.segments[0].memory[index.position : log.end]
    return index.files[-1].enter(
        records, log_offset=index.position, last_store_ms=NOON_MS, most=most, skipped=TIMER_TOPIC.encode()
    )


def found(index: KeyIndex, key_hash: int) -> list[object]:
    return list(index.files[-1].search(key_hash, begin_ms=0, end_ms=1 << 62))


def test_ordinary_records_are_all_entered() -> None:
    with indexed_once(8) as (index, log, _):
        assert enter(index, log) == (log.end, 7)
        assert index.files[-1].next_entry == 1 + 8 * 2
        [key_hash, _] = key_hashes("orders", "UNIQ_KEY\x01U1\x02KEYS\x01k")
        assert 0 in found(index, key_hash)


def test_no_more_records_are_entered_than_asked() -> None:
    with indexed_once(8) as (index, log, size):
        assert enter(index, log, most=3) == (4 * size, 3)


@pytest.mark.parametrize("oddity", ODD)
def test_before_a_record_that_is_odd_it_stops(oddity: str) -> None:
    with indexed_once(5) as (index, log, size):
        at, flipped = ODD[oddity]
        log.files.segments[0].memory[3 * size + at] ^= flipped
        assert enter(index, log) == (3 * size, 2)
        assert index.files[-1].next_entry == 1 + 3 * 2


@pytest.mark.parametrize("what", ["slots", "entries", "space"])
def test_where_nothing_is_ready_nothing_is_written(what: str) -> None:
    with indexed_once(5) as (index, log, size):
        file = index.files[-1]
        if what == "slots":
            file.ready[0] = 0
        elif what == "entries":
            file.next_entry = file.entries - 1  # room for one, and the message has two keys
        else:
            file.reserved_end = file.entries_at + (file.next_entry + 2) * 20 - 1
        before = bytes(file.file.memory)
        assert enter(index, log) == (size, 0)
        assert bytes(file.file.memory) == before


def test_messages_with_many_keys_count_as_several() -> None:
    with indexed_once(6, "UNIQ_KEY\x01U\x02KEYS\x01" + " ".join("k" * 15)) as (index, log, _):
        assert enter(index, log) == (log.end, 5)
    text = "UNIQ_KEY\x01U\x02KEYS\x01" + " ".join("k" * 40)
    with indexed_once(4, text, entries=1_000) as (index, log, size):
        assert enter(index, log, most=3) == (3 * size, 4)
        assert index.files[-1].next_entry == 1 + 3 * 41


def test_a_hash_without_absolute_value_becomes_zero() -> None:
    text = "KEYS\x01AFWYTOQQ"
    assert java_hash("orders#AFWYTOQQ") == -(1 << 31)
    with indexed_once(2, text) as (index, log, size):
        assert enter(index, log) == (log.end, 1)
        assert size in found(index, 0)
