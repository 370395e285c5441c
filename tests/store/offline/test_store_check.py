"""What a check says about damage of every kind, and that a repair keeps all that is sound where it is."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.golden.test_stores import CLEAN, CRASHED, unpack
from tests.store.making import SMALL, TOPIC, crashed_copy, files_below, fill, message, opened
from tests.waiting import PATIENCE_SECONDS

from pyromq.errors import StoreCorrupt, StoreLocked, UsageError
from pyromq.message import StoredMessage
from pyromq.record import decode_all
from pyromq.slow_work import run_blocking
from pyromq.store.message_store import MessageStore
from pyromq.store.offline.stopped_store import Cure, check_stopped
from pyromq.store.offline.store_check import Report, StoreCheck
from pyromq.store.offline.store_repair import StoreRepair
from pyromq.store.store_config import StoreConfig

COUNT = 100  # messages of the store that is damaged: five log files, seven files of each queue


@pytest.fixture
def sent(tmp_path: Path) -> list[StoredMessage]:
    with opened(tmp_path) as store:
        messages = fill(store, COUNT)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text(f'{{"topicConfigTable":{{"{TOPIC}":{{}}}}}}')
    return messages


def checked(root: Path) -> Report:
    return StoreCheck(StoreConfig(root)).run()


def repaired(root: Path) -> Report:
    return StoreRepair(StoreConfig(root, **SMALL), lambda text: None).run()  # type: ignore[arg-type]


def place(root: Path, log_offset: int) -> tuple[Path, int]:
    return root / "commitlog" / f"{log_offset // 4096 * 4096:020}", log_offset % 4096


def flip(path: Path, position: int, *, mask: int = 0x10) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= mask
    path.write_bytes(content)


def opens_with(root: Path, expected: dict[int, list[bytes]], **changes: int) -> None:
    """Whether a broker starts and gives these messages by queue, and goes on behind the last ones."""
    with opened(root, **changes) as store:
        assert {queue_id: pulled(store, queue_id) for queue_id in expected} == expected
        ends = {queue_id: store.max_offset(TOPIC, queue_id) for queue_id in expected}
        for queue_id in expected:
            store.append(message(999, queue_id=queue_id))
            assert store.max_offset(TOPIC, queue_id) == ends[queue_id] + 1
            assert pulled(store, queue_id)[-1] == b"body 999"


def pulled(store: MessageStore, queue_id: int) -> list[bytes]:
    found: list[bytes] = []
    offset = store.min_offset(TOPIC, queue_id)
    while offset < store.max_offset(TOPIC, queue_id):
        read = store.read(TOPIC, queue_id, offset, 32)
        found += [each.body for view in read.records for each in decode_all(view)]
        offset = read.next_offset
    return found


def without(sent: list[StoredMessage], *lost: int) -> dict[int, list[bytes]]:
    return {
        queue_id: [each.body for number, each in enumerate(sent) if number not in lost and each.queue_id == queue_id]
        for queue_id in (0, 1)
    }


def test_a_sound_store_has_nothing_wrong_and_is_not_changed(tmp_path: Path, sent: list[StoredMessage]) -> None:
    before = files_below(tmp_path)
    report = checked(tmp_path)
    assert (report.records, report.findings, report.is_sound) == (COUNT, [], True)
    assert report.log_end == sent[-1].log_offset + sent[-1].size
    assert files_below(tmp_path) == before


@pytest.mark.parametrize("name", [CLEAN, CRASHED])
def test_stores_of_a_java_broker_can_be_checked(tmp_path: Path, name: str) -> None:
    root = unpack(name, tmp_path)
    before = files_below(root)
    report = StoreCheck(StoreConfig(root)).run()  # the sizes of its files are not those of the settings
    assert files_below(root) == before
    assert {finding.cure for finding in report.findings} == (set() if name == CLEAN else {Cure.START})


@pytest.mark.parametrize("name", [CLEAN, CRASHED])
def test_a_flipped_bit_in_a_java_store_is_found_and_repaired(tmp_path: Path, name: str) -> None:
    root = unpack(name, tmp_path)
    sound = checked(root).records
    segment = sorted((root / "commitlog").iterdir())[1]
    flip(segment, 95)
    report = checked(root)
    assert report.findings[0].path == segment and report.findings[0].cure is Cure.REPAIR
    mended = StoreRepair(StoreConfig(root, consume_queue_entries=30), lambda text: None).run()
    assert mended.records == sound  # one is lost, one stands in for it
    assert all(finding.cure in (Cure.NOBODY, Cure.START) for finding in mended.findings), mended.findings


@pytest.mark.parametrize("number", [0, 1, 30, COUNT - 2, COUNT - 1])
@pytest.mark.parametrize("byte", [0, 4, 8, 30, 84, 89], ids=["size", "magic", "crc", "offset", "body size", "body"])
def test_a_flipped_bit_costs_one_message(tmp_path: Path, sent: list[StoredMessage], number: int, byte: int) -> None:
    path, position = place(tmp_path, sent[number].log_offset)
    flip(path, position + byte)
    report = checked(tmp_path)
    assert f"{path} byte {position}: " in str(report.findings[0])
    assert report.records == COUNT - 1
    mended = repaired(tmp_path)
    assert mended.is_sound, mended.findings
    opens_with(tmp_path, without(sent, number))


def test_what_is_written_over_is_kept(tmp_path: Path, sent: list[StoredMessage]) -> None:
    path, position = place(tmp_path, sent[7].log_offset)
    flip(path, position + 89)
    damaged = path.read_bytes()[position : position + sent[7].size]
    repaired(tmp_path)
    assert (tmp_path / "damaged" / f"{sent[7].log_offset:020}").read_bytes() == damaged


def test_several_damaged_places_are_repaired_at_once(tmp_path: Path, sent: list[StoredMessage]) -> None:
    lost = (3, 4, 5, 40, 80, COUNT - 1)
    for number in lost:
        path, position = place(tmp_path, sent[number].log_offset)
        flip(path, position + 89)
    assert repaired(tmp_path).is_sound
    opens_with(tmp_path, without(sent, *lost))


def test_a_damaged_blank_record_is_made_again(tmp_path: Path, sent: list[StoredMessage]) -> None:
    last = max((each for each in sent if each.log_offset < 4096), key=lambda each: each.log_offset)
    flip(place(tmp_path, 0)[0], last.log_offset + last.size + 5)
    assert not checked(tmp_path).is_sound
    assert repaired(tmp_path).is_sound
    opens_with(tmp_path, without(sent))


@pytest.mark.parametrize("kind", ["short", "missing"])
def test_a_log_file_cut_short_or_missing_costs_what_it_held(
    tmp_path: Path, sent: list[StoredMessage], kind: str
) -> None:
    path = tmp_path / "commitlog" / f"{4096:020}"
    kept = 2000 if kind == "short" else 0
    if kind == "short":
        path.write_bytes(path.read_bytes()[:kept])
    else:
        path.unlink()
    with pytest.raises(StoreCorrupt, match=f"{4096:020}"), opened(tmp_path):
        pass
    assert f"{path}: the file " in str(checked(tmp_path).findings[0])
    assert repaired(tmp_path).is_sound
    lost = [
        number
        for number, each in enumerate(sent)
        if 4096 + kept < each.log_offset + each.size and each.log_offset < 8192
    ]
    lost = [number for number in lost if sent[number].log_offset >= 4096]
    opens_with(tmp_path, without(sent, *lost))


def test_without_its_last_log_file_a_queue_goes_on_counting(tmp_path: Path, sent: list[StoredMessage]) -> None:
    last = sorted((tmp_path / "commitlog").iterdir())[-1]
    last.unlink()
    with pytest.raises(StoreCorrupt, match="store repair"), opened(tmp_path):
        pass
    assert repaired(tmp_path).is_sound
    lost = [number for number, each in enumerate(sent) if each.log_offset >= int(last.name)]
    assert lost
    with opened(tmp_path) as store:
        assert store.max_offset(TOPIC, 0) == COUNT // 2
    opens_with(tmp_path, without(sent, *lost))


QUEUE_FILE = f"consumequeue/{TOPIC}/0/{160:020}"


@pytest.mark.parametrize("byte", [0, 7, 8, 11, 12, 19])
def test_a_flipped_bit_in_a_queue_is_found_and_costs_nothing(
    tmp_path: Path, sent: list[StoredMessage], byte: int
) -> None:
    before = files_below(tmp_path / "consumequeue")
    flip(tmp_path / QUEUE_FILE, 40 + byte, mask=0x80 if byte in (0, 8) else 0x01)
    report = checked(tmp_path)
    assert [(finding.path, finding.position) for finding in report.findings][:1] == [(tmp_path / QUEUE_FILE, 40)]
    assert repaired(tmp_path).is_sound
    assert files_below(tmp_path / "consumequeue") == before


def test_a_queue_file_cut_short_or_missing_is_made_again(tmp_path: Path, sent: list[StoredMessage]) -> None:
    before = files_below(tmp_path / "consumequeue")
    (tmp_path / QUEUE_FILE).unlink()
    short = tmp_path / f"consumequeue/{TOPIC}/1/{0:020}"
    short.write_bytes(short.read_bytes()[:30])
    report = checked(tmp_path)
    assert {str(finding.path) for finding in report.findings} >= {str(tmp_path / QUEUE_FILE), str(short)}
    assert repaired(tmp_path).is_sound
    assert files_below(tmp_path / "consumequeue") == before


def test_a_queue_of_one_short_file_is_left_to_the_start(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 6)
    short = tmp_path / f"consumequeue/{TOPIC}/1/{0:020}"
    short.write_bytes(short.read_bytes()[:100])
    [finding] = checked(tmp_path).findings
    assert (finding.path, finding.cure) == (short.parent, Cure.START)
    assert "100 bytes, those of other queues 160" in finding.text
    with opened(tmp_path) as store:
        assert pulled(store, 1) == [b"body 1", b"body 3", b"body 5"]
    assert checked(tmp_path).is_sound


def test_a_missing_queue_of_a_known_topic_is_made_again(tmp_path: Path, sent: list[StoredMessage]) -> None:
    before = files_below(tmp_path / "consumequeue")
    shutil.rmtree(tmp_path / "consumequeue" / TOPIC / "1")
    assert not checked(tmp_path).is_sound
    assert repaired(tmp_path).is_sound
    assert files_below(tmp_path / "consumequeue") == before


def test_queues_of_a_deleted_topic_are_not_missed(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for number in range(10):
            store.append(message(number, topic="gone"))
            store.append(message(number, topic="again"))
        store.delete_topic("gone")
        store.delete_topic("again").result(timeout=PATIENCE_SECONDS)
        store.append(message(77, topic="again"))
    report = checked(tmp_path)
    assert report.is_sound
    assert [str(finding.path.name) for finding in report.findings] == ["0"]


@pytest.mark.parametrize("where", ["header", "slot", "hash", "log offset", "chain"])
def test_a_flipped_bit_in_the_index_is_found_and_the_index_made_again(
    tmp_path: Path, sent: list[StoredMessage], where: str
) -> None:
    before = [content for _, content in sorted(files_below(tmp_path / "index").items())]
    path = sorted((tmp_path / "index").iterdir())[1]
    entry = 40 + 16 * 4 + 20 * 5
    slot = next(at for at in range(40, 104, 4) if any(path.read_bytes()[at : at + 4]))
    flip(path, {"header": 37, "slot": slot + 3, "hash": entry, "log offset": entry + 10, "chain": entry + 19}[where])
    report = checked(tmp_path)
    assert {finding.path for finding in report.findings} == {path}
    assert {finding.cure for finding in report.findings} == {Cure.REPAIR}
    assert repaired(tmp_path).is_sound
    with opened(tmp_path) as store:
        store.follow_index()
        assert run_blocking(store.search_by_key(TOPIC, "k99", 1, 0, 1 << 60)).log_offsets == [sent[99].log_offset]
    after = [content for _, content in sorted(files_below(tmp_path / "index").items())]
    assert after == before


def test_foreign_files_are_told_and_do_no_harm(tmp_path: Path, sent: list[StoredMessage]) -> None:
    for folder in ("commitlog", "index", f"consumequeue/{TOPIC}/0"):
        (tmp_path / folder / "core.4711").write_text("what is this")
    report = checked(tmp_path)
    assert [finding.cure for finding in report.findings] == [Cure.NOBODY] * 3
    assert report.is_sound
    assert repaired(tmp_path).is_sound


@pytest.mark.parametrize("content", [b"", b"\0" * 20, b"\x7f" * 4096])
def test_a_damaged_checkpoint_is_told(tmp_path: Path, sent: list[StoredMessage], content: bytes) -> None:
    (tmp_path / "checkpoint").write_bytes(content)
    assert {finding.path.name for finding in checked(tmp_path).findings} == {"checkpoint"}
    repaired(tmp_path)
    opens_with(tmp_path, without(sent))


def test_after_a_kill_only_what_no_queue_knows_is_left_to_the_start(tmp_path: Path) -> None:
    with opened(tmp_path / "first") as store:
        sent = fill(store, 20)
        root = crashed_copy(tmp_path / "first", tmp_path / "second")
    assert {finding.cure for finding in checked(root).findings} <= {Cure.START}
    path, position = place(root, sent[-1].log_offset)
    flip(path, position + 89)
    assert Cure.REPAIR in {finding.cure for finding in checked(root).findings}
    repaired(root)
    opens_with(root, without(sent, 19))


def test_a_store_in_use_is_not_looked_at(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(StoreLocked, match="in use by a broker"):
        check_stopped(tmp_path)
    check_stopped(tmp_path)


def test_a_folder_that_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a data folder of a broker"):
        checked(tmp_path)


def test_the_log_may_lie_elsewhere(tmp_path: Path) -> None:
    with opened(tmp_path / "root", commit_log_path=tmp_path / "log") as store:
        fill(store, 30)
    config = replace(StoreConfig(tmp_path / "root"), commit_log_path=tmp_path / "log")
    assert StoreCheck(config).run().records == 30


@pytest.mark.parametrize("byte", [0, 1, 5, 6])
def test_an_entry_that_leads_elsewhere_costs_no_pull_more_than_its_message(
    tmp_path: Path, sent: list[StoredMessage], byte: int
) -> None:
    flip(tmp_path / QUEUE_FILE, 40 + byte, mask=0x40)
    with opened(tmp_path) as store:
        found = pulled(store, 0)
        assert len(found) >= COUNT // 2 - 1
    before = [each.body for each in sent if each.queue_id == 0]
    assert repaired(tmp_path).is_sound
    opens_with(tmp_path, {0: before})


def test_a_record_with_an_impossible_queue_offset_is_told_and_kept(tmp_path: Path, sent: list[StoredMessage]) -> None:
    path, position = place(tmp_path, sent[10].log_offset)
    flip(path, position + 21, mask=0x40)
    report = checked(tmp_path)
    assert [(finding.position, finding.cure) for finding in report.findings] == [(position + 20, Cure.BACKUP)]
    repaired(tmp_path)
    opens_with(tmp_path, without(sent))


def test_a_queue_without_its_log_is_summed_up(tmp_path: Path, sent: list[StoredMessage]) -> None:
    for path in sorted((tmp_path / "commitlog").iterdir())[2:]:
        path.unlink()
    behind = [each for each in sent if each.log_offset >= 8192]
    of_queues = [str(each) for each in checked(tmp_path).findings if TOPIC in str(each.path)]
    assert len(of_queues) == 2
    assert f"entries {behind[0].queue_offset} to {COUNT // 2 - 1}: " in of_queues[0]

    acts: list[str] = []
    StoreRepair(StoreConfig(tmp_path, **SMALL), acts.append).run()  # type: ignore[arg-type]
    lost = [act for act in acts if "lost" in act]
    assert len(lost) == 2
    assert f"{len(behind) // 2} messages from {behind[0].queue_offset} to {COUNT // 2 - 1} are lost" in lost[0]


def test_entries_that_are_wrong_in_a_row_are_summed_up(tmp_path: Path, sent: list[StoredMessage]) -> None:
    path = tmp_path / QUEUE_FILE
    content = bytearray(path.read_bytes())
    for entry in range(1, 7):
        content[20 * entry + 19] ^= 1  # the tag's hash
    path.write_bytes(content)
    [finding] = checked(tmp_path).findings
    assert finding.text.startswith("entries 9 to 14: ")
