"""Batches stored as they came: the same bytes in log and queues as messages made of them, or left to those."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyromq import speedups
from pyromq.errors import MessageRefused, StoreNotWritable
from pyromq.message import SysFlag, pack_address
from pyromq.record import BatchMember, decode_batch, encode_batch
from pyromq.store.batch_appends import Shape, Stored, members_of
from pyromq.store.message_store import MessageStore

from .making import ADDRESS, NOON_MS, TOPIC, StoppedClock, fill, opened

pytestmark = pytest.mark.skipif(not speedups.is_active, reason="the compiled parts are not built")

MORE = "CLUSTER\x01c"
# Texts that are nearly what a property is: names within others, doubled, cut short.
_words = st.sampled_from(
    [
        "TAGS",
        "TAGS\x01",
        "\x01",
        "\x02",
        "x",
        "WAIT\x01",
        "DELAY",
        "DELAY\x01",
        "TRAN_MSG\x01",
        "TIMER_D",
        "_",
        "ü",
        "𐍈",
    ]
)
texts = st.lists(_words, max_size=6).map("".join) | st.text(max_size=20)
members = st.builds(BatchMember, st.integers(-(1 << 31), (1 << 31) - 1), st.binary(min_size=1, max_size=40), texts)


def shape(**changes: object) -> Shape:
    fields = {
        "topic": TOPIC,
        "queue_id": 1,
        "sys_flag": 0,
        "born_ms": NOON_MS - 5,
        "born_address": ADDRESS,
        "more": MORE,
    }
    return Shape(**(fields | changes))  # type: ignore[arg-type]


def store_members(store: MessageStore, body: bytes, common: Shape, *, spare_bytes: int = 0) -> Stored | None:
    found = members_of(body, common.more)
    assert found is not None
    return store.batch_appends.append(
        found, common, first=0, count=found.count, store_address=store.store_address, spare_bytes=spare_bytes
    )


def store_messages(store: MessageStore, body: bytes, common: Shape) -> None:
    store.append_batch(list(common.messages(decode_batch(body))))


def files_after(work: Callable[[MessageStore], object], **settings: int) -> dict[str, bytes]:
    """Return what is in log and queues when a store did that and was closed."""
    with tempfile.TemporaryDirectory() as folder:
        with opened(Path(folder), StoppedClock(), **settings) as store:
            fill(store, 3)
            work(store)
            fill(store, 3)
        paths = [path for name in ("commitlog", "consumequeue") for path in (Path(folder) / name).rglob("*")]
        return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(paths) if path.is_file()}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[MessageStore, MessageStore]]:
    """Two stores that get the same: what is made of it is compared, example after example."""
    folder = tmp_path_factory.mktemp("pair")
    settings = {"segment_bytes": 1 << 16, "consume_queue_entries": 200}
    with opened(folder / "members", **settings) as one, opened(folder / "messages", **settings) as other:
        yield one, other


def check_same_again(pair: tuple[MessageStore, MessageStore], body: bytes, common: Shape) -> None:
    """As `check_same`, but for files: for what is asked often."""
    one, other = pair
    start, first = one.max_log_offset, one.max_offset(TOPIC, 1)
    store_members(one, body, common)
    store_messages(other, body, common)
    stored = [(each.max_log_offset, each.entries(TOPIC, 1, first, 100), written(each, start)) for each in pair]
    assert stored[0] == stored[1]
    assert len(stored[0][1]) == sum(1 for _ in decode_batch(body))


def written(store: MessageStore, start: int) -> bytes:
    end, files = store.max_log_offset, store.log_tail.files  # type: ignore[attr-defined]
    return b"".join(each.memory[max(start - each.base, 0) : end - each.base] for each in files.between(start, end))


def check_same(body: bytes, common: Shape, **settings: int) -> None:
    by_members = files_after(lambda store: store_members(store, body, common), **settings)
    assert by_members == files_after(lambda store: store_messages(store, body, common), **settings)


@given(st.lists(members, max_size=5), st.sampled_from([MORE, "", "own\x01x\x02" + MORE, "TAGS\x01y\x02" + MORE]))
@example([BatchMember(0, b"x", "TAGS\x01a\x02TAGS\x01b\x02")], MORE)
@example([BatchMember(0, b"x", "xTAGS\x01a")], MORE)
@example([BatchMember(0, b"x", "TAGS\x01𐍈")], MORE)
@example([BatchMember(0, b"x", "KEYS\x01k\x02TAGS\x01ü"), BatchMember(-1, b"y", "")], MORE)
def test_what_can_be_stored_as_it_came_is_stored_as_messages_are(
    pair: tuple[MessageStore, MessageStore], batch: list[BatchMember], more: str
) -> None:
    body = encode_batch(batch)
    if members_of(body, more) is not None:
        check_same_again(pair, body, shape(more=more))


@given(st.lists(members, min_size=1, max_size=3), st.integers(0, 200), st.binary(min_size=1, max_size=3))
def test_a_damaged_batch_is_read_as_the_plain_path_reads_it_or_not_at_all(
    pair: tuple[MessageStore, MessageStore], batch: list[BatchMember], at: int, damage: bytes
) -> None:
    body = bytearray(encode_batch(batch))
    body[at % len(body) : at % len(body) + len(damage)] = damage
    if members_of(bytes(body), MORE) is not None:
        check_same_again(pair, bytes(body), shape())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a\x01b",
        "a\x01b\x02",
        "TAGS\x01t",
        "TAGS\x01ü\x02a\x01b",
        "TAGS\x01𐍈",
        "WAIT\x01false",
        "UNIQ_KEY\x01" + 32 * "A",
    ],
)
def test_usual_members_need_no_messages(text: str) -> None:
    assert members_of(encode_batch([BatchMember(1, b"x", text), BatchMember(2, b"y", "")]), MORE) is not None


@pytest.mark.parametrize(
    "text",
    [
        *("DELAY\x013", "a\x01b\x02DELAY\x010", "xDELAY\x01", "TRAN_MSG\x01true", "a\x01TIMER_D"),
        *("TIMER_DELAY_MS\x015", "TAGS\x01", "xTAGS\x01y", "TAGS\x01a\x01b", "a\x01" + "v" * 32_760),
    ],
)
def test_unusual_members_are_left_to_messages(text: str) -> None:
    assert members_of(encode_batch([BatchMember(0, b"x", ""), BatchMember(0, b"x", text)]), MORE) is None


@pytest.mark.parametrize("body", [b"", b"x", bytes(100), encode_batch([BatchMember(0, b"", "")])])
def test_what_is_no_batch_is_left_to_messages(body: bytes) -> None:
    assert members_of(body, MORE) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"sys_flag": SysFlag.MULTI_TAGS | SysFlag.COMMIT | SysFlag.BORN_HOST_IPV6, "prepared_offset": 1 << 40},
        {"reconsume_times": 3, "topic": "other", "queue_id": 0},
    ],
)
def test_what_a_batch_has_in_common_is_in_every_record(changes: dict[str, object]) -> None:
    check_same(encode_batch([BatchMember(7, b"a", "k\x011"), BatchMember(8, b"b", "")]), shape(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"sys_flag": SysFlag.HALF},
        {"born_address": pack_address("::1", 80)},
        {"queue_id": 1 << 31},
        {"born_ms": 1 << 63},
        {"topic": 128 * "t"},
    ],
)
def test_records_of_another_form_are_left_to_messages(tmp_path: Path, changes: dict[str, object]) -> None:
    body = encode_batch([BatchMember(0, b"a", "")])
    with opened(tmp_path) as store:
        assert store_members(store, body, shape(**changes)) is None
        assert store.max_log_offset == 0


def test_entries_go_on_in_the_queues_next_file() -> None:
    body = encode_batch([BatchMember(0, b"%d" % number, f"TAGS\x01{number}") for number in range(20)])
    check_same(body, shape())


def test_a_batch_goes_whole_into_the_next_segment() -> None:
    body = encode_batch([BatchMember(0, bytes(900), ""), BatchMember(0, bytes(900), "")])

    def twice(store_one: Callable[[MessageStore, bytes, Shape], object]) -> Callable[[MessageStore], object]:
        return lambda store: (store_one(store, body, shape()), store_one(store, body, shape()))

    assert files_after(twice(store_members)) == files_after(twice(store_messages))


def test_room_is_kept_for_what_is_to_follow(tmp_path: Path) -> None:
    body = encode_batch([BatchMember(0, bytes(3_000), "")])
    with opened(tmp_path) as store:
        fill(store, 2)
        assert store_members(store, body, shape(), spare_bytes=900).log_offset == 4096  # type: ignore[union-attr]


def test_too_much_for_one_write_stores_nothing(tmp_path: Path) -> None:
    body = encode_batch([BatchMember(0, bytes(3_000), ""), BatchMember(0, bytes(3_000), "")])
    with opened(tmp_path) as store:
        with pytest.raises(MessageRefused, match="message takes 6"):
            store_members(store, body, shape())
        assert (store.max_log_offset, store.max_offset(TOPIC, 1)) == (0, 0)


def test_a_store_that_takes_nothing_takes_no_batch(tmp_path: Path) -> None:
    body = encode_batch([BatchMember(0, b"x", "")])
    with opened(tmp_path) as store:
        store.log_tail.suspend("no room")  # type: ignore[attr-defined]
        with pytest.raises(StoreNotWritable, match="no room"):
            store_members(store, body, shape())


def test_ids_and_arrivals_are_those_of_the_messages(tmp_path: Path) -> None:
    body = encode_batch([BatchMember(0, b"a", "TAGS\x01x"), BatchMember(0, b"bb", ""), BatchMember(0, b"c", "k\x01v")])
    heard: list[tuple[str, int, list[tuple[int, int]]]] = []
    with opened(tmp_path) as store:
        store.listen(
            lambda message, code: None,
            lambda topic, queue_id, arrivals: heard.append((topic, queue_id, list(arrivals()))),
        )
        fill(store, 3)
        stored, found = store_members(store, body, shape()), members_of(body, MORE)
        assert stored is not None
        assert found is not None
        entries = store.entries(TOPIC, 1, stored.queue_offset, 3)
        messages = [store.message_at(entry.log_offset) for entry in entries]
        ids = found.ids(len(TOPIC), store.store_address, stored.log_offset)
        assert ids.split(",") == [each.offset_message_id for each in messages if each is not None]
        assert heard == [(TOPIC, 1, [(entry.log_offset, entry.tags_code) for entry in entries])]
        assert stored.size == sum(entry.size for entry in entries)


def test_slices_end_by_number_and_by_bytes() -> None:
    found = members_of(encode_batch([BatchMember(0, bytes(100), "")] * 10), MORE)
    assert found is not None
    assert [found.next_slice(0, 4, 1 << 20), found.next_slice(8, 4, 1 << 20), found.next_slice(10, 4, 1 << 20)] == [
        4,
        2,
        0,
    ]
    assert found.next_slice(0, 10, 300) == 2


def test_memory_is_kept_where_that_can_be_said() -> None:
    from pyromq.speedups.batches import keep_memory

    assert keep_memory(speedups.KEPT_BYTES) == (platform.libc_ver()[0] == "glibc")
