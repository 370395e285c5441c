"""What a check says about the messages that wait for their time: who can bring back what is damaged."""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

import pytest
from tests.store.making import NOON_MS, TOPIC, message, opened

from pyromq.errors import StoreCorrupt
from pyromq.store.offline.stopped_store import Cure, StoreFault
from pyromq.store.offline.store_check import StoreCheck
from pyromq.store.store_config import StoreConfig
from pyromq.store.timers.timer_bucket import HOUR_MS, TimerBucket
from pyromq.store.timers.timer_files import TimerFiles

COUNT = 30  # messages, in two log files
UNCOPIED = 3


@pytest.fixture
def bucket(tmp_path: Path) -> TimerBucket:
    """A store with messages that wait, all for the same hour; the last ones are not copied yet."""
    due_ms = NOON_MS + HOUR_MS
    with opened(tmp_path) as store:
        files = TimerFiles(tmp_path / "timers", store.copies_of)
        bucket = files.make(due_ms // HOUR_MS, 0)
        for number in range(COUNT):
            key = f"{number:032X}"
            each = message(number, TIMER_OUT_MS=str(due_ms), UNIQ_KEY=key, REAL_TOPIC=TOPIC, REAL_QID="0")
            store.append(each)
            key_hash, topic_hash = crc32(key.encode()), crc32(TOPIC.encode())
            bucket.add(due_ms, key_hash, topic_hash, each.log_offset, each.size)
            files.changed[bucket] = None
            if number < COUNT - UNCOPIED:
                files.begin_round(copy=True)
        files.write_some(1_000, keep=0)
        files.write_entries()
        files.save(files.snapshot(moved=COUNT, log_end=0, needed_from=0), files.unsynced())
        assert bucket.copied == COUNT - UNCOPIED
    return bucket


def found(root: Path) -> list[StoreFault]:
    return [each for each in StoreCheck(StoreConfig(root)).run().findings if each.path.parent.name == "timers"]


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def test_waiting_messages_check_out(tmp_path: Path, bucket: TimerBucket) -> None:
    assert found(tmp_path) == []


@pytest.mark.parametrize("which", [0, 1])
def test_a_cut_file_is_made_again_from_the_log(tmp_path: Path, bucket: TimerBucket, which: int) -> None:
    path = bucket.files[which].path
    cut(path, 50)
    with pytest.raises(StoreCorrupt, match=r"move the folder .* away: the next start rebuilds it from the log"):
        TimerFiles(tmp_path / "timers", lambda log_offsets, sizes: []).load()
    findings = found(tmp_path)
    assert {finding.cure for finding in findings} == {Cure.AWAY}
    assert str(findings[0]).startswith(f"{path}: the file has 50 bytes, ")
    if which == 1:
        assert "message 0 is damaged: the file ends before the record; " in str(findings[1])


def test_what_the_log_has_no_more_is_in_a_backup_only(tmp_path: Path, bucket: TimerBucket) -> None:
    sorted((tmp_path / "commitlog").iterdir())[0].unlink()
    cut(bucket.files[1].path, 50)
    assert {finding.cure for finding in found(tmp_path)} == {Cure.BACKUP}


def test_a_damaged_message_that_is_in_the_log_does_no_harm(tmp_path: Path, bucket: TimerBucket) -> None:
    path = bucket.files[1].path
    content = bytearray(path.read_bytes())
    content[89] ^= 1
    path.write_bytes(content)
    [finding] = found(tmp_path)
    assert finding.cure is Cure.NOBODY
    assert finding.text.endswith("does not match its checksum; it will be taken from the log")


def test_a_checkpoint_without_a_previous_one_is_made_again_too(tmp_path: Path, bucket: TimerBucket) -> None:
    (tmp_path / "timers" / "checkpoint.json").write_text("{")
    assert [finding.cure for finding in found(tmp_path)] == [Cure.AWAY]


def test_what_is_neither_copied_nor_in_the_log_is_named(tmp_path: Path, bucket: TimerBucket) -> None:
    sorted((tmp_path / "commitlog").iterdir())[1].unlink()
    lost = [finding for finding in found(tmp_path) if "not copied yet, and the log does not have it" in finding.text]
    assert len(lost) == UNCOPIED
