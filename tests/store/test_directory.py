"""Who may open a folder, and what opening says when it cannot be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyromq.errors import StoreCorrupt, StoreLocked, StoreNotWritable, StoreTooNew, UsageError
from pyromq.store.checked_file import read_checked, replace_checked
from pyromq.store.disk import LOCAL_DISK
from pyromq.store.offline.stopped_store import check_stopped
from pyromq.store.store_config import StoreConfig

from .making import files_below, fill, message, opened, small_store

# As a Java broker locks it: a lock of the process on byte 0.
_JAVA_LIKE = """
import fcntl, sys
file = open(sys.argv[1], "w+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
print("locked", flush=True)
sys.stdin.read()
"""


def test_folder_in_use_is_refused_naming_it_and_the_process(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.append(message())
        second = small_store(tmp_path)
        with pytest.raises(StoreLocked, match=rf"{tmp_path} is in use by process {os.getpid()}"):
            second.open()
        second.close()
        assert (tmp_path / "lock").read_bytes() == b"lock"
        assert (tmp_path / "abort").exists()
    with opened(tmp_path):
        pass


def test_folder_locked_by_another_process_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-S", "-c", _JAVA_LIKE, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        other.stdout.readline()
        with pytest.raises(StoreLocked, match=f"by process {other.pid}"), opened(tmp_path):
            pass
        other.stdin.close()
    with opened(tmp_path):
        pass


def test_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreNotWritable, match="file/store"), opened(tmp_path / "file" / "store"):
        pass


def test_wrong_segment_size_is_explained(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 5)
    with pytest.raises(StoreCorrupt) as caught, opened(tmp_path, segment_bytes=8192):
        pass
    text = str(caught.value)
    assert str(tmp_path / "commitlog" / f"{0:020}") in text
    assert "has 4096 bytes, expected 8192" in text
    assert "mappedFileSizeCommitLog" in text


def test_the_size_of_all_segments_is_advised(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 60)
    assert len(list((tmp_path / "commitlog").iterdir())) > 1
    advice = r"all files have this size: set segment_bytes \(mappedFileSizeCommitLog\) to 4096$"
    with pytest.raises(StoreCorrupt, match=advice), opened(tmp_path, segment_bytes=8192):
        pass
    os.truncate(max((tmp_path / "commitlog").iterdir()), 2048)  # this file was cut short
    with pytest.raises(StoreCorrupt, match="of its creation; if the file was cut short"):
        small_store(tmp_path, segment_bytes=8192).open()


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"consume_queue_entries": 9}, "mappedFileSizeConsumeQueue"),
        ({"index_slots": 17}, "maxHashSlotNum"),
        ({"index_entries": 33}, "maxIndexNum"),
    ],
)
def test_other_wrong_sizes_name_their_setting(tmp_path: Path, changes: dict[str, int], setting: str) -> None:
    with opened(tmp_path) as store:
        fill(store, 5)
    with pytest.raises(StoreCorrupt, match=setting), opened(tmp_path, **changes):
        pass
    with opened(tmp_path) as store:
        assert store.max_offset("orders", 0) == 3


def test_a_missing_segment_is_named(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 80)
    log = tmp_path / "commitlog"
    (log / f"{4096:020}").rename(tmp_path / "kept")
    with pytest.raises(StoreCorrupt, match=f"lacks file {4096:020}.*store repair"), opened(tmp_path):
        pass
    (tmp_path / "kept").rename(log / f"{4096:020}")
    with opened(tmp_path) as store:
        assert store.max_offset("orders", 0) == 40


def test_foreign_files_are_named_and_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path) as store:
        fill(store, 80)
    foreign = [tmp_path / "commitlog" / "notes", tmp_path / "consumequeue" / "orders" / "0" / ".nfs0001"]
    for path in foreign:
        path.write_text("what is this")
    with opened(tmp_path) as store:
        assert store.max_offset("orders", 0) == 40
    assert caplog.messages == [f"{path} is not a file of the store and is ignored" for path in foreign]
    assert all(path.read_text() == "what is this" for path in foreign)


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize("kind", ["short", "missing"])
def test_a_queue_with_a_file_short_or_missing_is_made_again(
    tmp_path: Path, kind: str, crashed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as store:
        fill(store, 80)
    before = files_below(tmp_path / "consumequeue")
    path = tmp_path / "consumequeue" / "orders" / "1" / f"{160:020}"
    if kind == "short":
        path.write_bytes(path.read_bytes()[:50])
    else:
        path.unlink()
    if crashed:
        (tmp_path / "abort").touch()
    with opened(tmp_path) as store:
        assert store.max_offset("orders", 1) == 40
    assert files_below(tmp_path / "consumequeue") == before
    assert "This queue is rebuilt from the log" in caplog.text


def test_log_folder_can_lie_elsewhere(tmp_path: Path) -> None:
    with opened(tmp_path / "store", commit_log_path=tmp_path / "fast") as store:
        fill(store, 2)
    assert [path.name for path in (tmp_path / "fast").iterdir()] == [f"{0:020}"]
    assert not (tmp_path / "store" / "commitlog").exists()


@pytest.mark.parametrize(
    ("field", "value"), [("segment_bytes", 100), ("flush_interval_ms", 0), ("delay_levels_ms", ())]
)
def test_settings_out_of_range_name_field_and_value(tmp_path: Path, field: str, value: object) -> None:
    with pytest.raises(UsageError, match=field):
        StoreConfig(tmp_path, **{field: value})  # type: ignore[arg-type]


def test_a_folder_of_a_newer_version_is_refused_by_broker_and_tools_and_stays_as_it_is(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 3)
    assert read_checked(LOCAL_DISK, tmp_path / "format") == b"1\n"
    replace_checked(LOCAL_DISK, tmp_path / "format", b"2\n")
    before = files_below(tmp_path)
    store = small_store(tmp_path)
    with pytest.raises(StoreTooNew, match=rf"newer pyromq: {tmp_path}/format says format 2, .* up to 1; start a newer"):
        store.open()
    store.close()
    with pytest.raises(StoreTooNew, match="format 2"):
        check_stopped(tmp_path)
    assert files_below(tmp_path) == before


@pytest.mark.parametrize("damage", [b"", b"1\n", b"00000000\n1\n", b"\xff"])
def test_a_damaged_mark_is_named_and_written_again(
    tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as store:
        fill(store, 3)
    (tmp_path / "format").write_bytes(damage)
    with opened(tmp_path) as store:
        assert store.max_offset("orders", 0) == 2
    assert f"{tmp_path}/format is damaged" in caplog.text
    assert read_checked(LOCAL_DISK, tmp_path / "format") == b"1\n"


def test_a_folder_without_a_mark_as_java_writes_it_is_opened_and_marked(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 3)
    (tmp_path / "format").unlink()
    with opened(tmp_path) as store:
        assert store.max_offset("orders", 0) == 2
        assert (tmp_path / "format").exists()
