"""Files that are taken from an open store: it refuses by name, and confirms nothing that would be lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_SECONDS, wait_until

from pyromq.errors import StoreNotWritable
from pyromq.store.disk import LocalDisk
from pyromq.store.flusher import Presence
from pyromq.store.json_file import JsonFile
from pyromq.store.retention import DiskUse
from pyromq.store.store_config import FlushMode

from .making import StoppedClock, bodies, crashed_copy, message, opened, small_store, take_away


def replace(path: Path, *, content: bool = False) -> None:
    """Put an empty folder, or a copy, in the place of a folder that is moved away."""
    moved = path.rename(path.with_name("moved"))
    if content:
        shutil.copytree(moved, path, dirs_exist_ok=True)
    else:
        path.mkdir(exist_ok=True)  # a thread of the store may have made it again


def switch(root: Path) -> None:
    """Let a symbolic link lead to a copy."""
    target = root.readlink()
    copy = crashed_copy(target, target.with_name("copy"))
    root.unlink()
    root.symlink_to(copy)


LOSSES: list[tuple[str, Callable[[Path], object]]] = [
    ("", take_away),
    ("", replace),
    ("", lambda root: replace(root, content=True)),
    ("", lambda root: root.rename(root.with_name("elsewhere"))),
    ("lock", lambda root: (root / "lock").unlink()),
    ("commitlog", lambda root: take_away(root / "commitlog")),
    ("commitlog", lambda root: replace(root / "commitlog", content=True)),
    (f"commitlog/{0:020d}", lambda root: (root / "commitlog" / f"{0:020d}").unlink()),
    ("consumequeue", lambda root: replace(root / "consumequeue")),
    ("consumequeue", lambda root: take_away(root / "consumequeue")),
]


@pytest.mark.parametrize(("lost", "lose"), LOSSES)
def test_a_store_whose_files_are_taken_away_refuses_and_names_them(
    tmp_path: Path, lost: str, lose: Callable[[Path], object]
) -> None:
    root = tmp_path / "data"
    store = small_store(root, segment_bytes=1 << 20, flush_interval_ms=1)
    store.open()
    store.append(message())
    store.wait_flushed(store.max_log_offset).result(PATIENCE_SECONDS)
    lose(root)
    wait_until(lambda: store.refusal)
    assert str(root / lost).removesuffix("/lock") in store.refusal
    with pytest.raises(StoreNotWritable, match="deleted, moved, replaced or unmounted"):
        store.append(message())
    assert bodies(store) == [b"body 0"]
    with pytest.raises(StoreNotWritable, match="deleted, moved, replaced or unmounted"):
        store.close()


def test_a_link_that_is_switched_to_another_folder_is_a_loss_and_nothing_is_written_there(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    root = tmp_path / "data"
    root.symlink_to(tmp_path / "target")
    store = small_store(root, flush_interval_ms=1)
    store.open()
    store.append(message())
    store.wait_flushed(store.max_log_offset).result(PATIENCE_SECONDS)
    switch(root)
    wait_until(lambda: store.refusal)
    with pytest.raises(StoreNotWritable):
        store.close()
    assert "unflushed" not in (root / "abort").read_text()


def test_a_message_whose_file_is_lost_before_its_flush_is_not_confirmed(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data", flush=FlushMode.SYNC, flush_interval_ms=3_600_000)
    store.open()
    store.append(message())
    assert store.wait_flushed(store.max_log_offset).result(PATIENCE_SECONDS)
    take_away(tmp_path / "data")
    store.append(message())
    assert not store.wait_flushed(store.max_log_offset).result(PATIENCE_SECONDS)
    with pytest.raises(StoreNotWritable):
        store.close()


def test_a_loss_just_before_the_stop_is_told_then(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data", flush_interval_ms=3_600_000)
    store.open()
    store.append(message())
    take_away(tmp_path / "data")
    with pytest.raises(StoreNotWritable, match="deleted, moved, replaced or unmounted"):
        store.close()


def test_deleting_topics_and_rolling_files_is_no_loss(tmp_path: Path) -> None:
    with opened(tmp_path, flush_interval_ms=1) as store:
        for _ in range(60):  # several files
            store.append(message())
            store.wait_flushed(store.max_log_offset).result(PATIENCE_SECONDS)
        store.delete_topic("orders").result(PATIENCE_SECONDS)
        store.append(message())
        assert store.wait_flushed(store.max_log_offset).result(PATIENCE_SECONDS)


@pytest.mark.parametrize("folder", ["commitlog", "index"])
def test_an_older_file_that_is_deleted_is_named_and_sends_go_on(
    tmp_path: Path, folder: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = StoppedClock()
    with opened(tmp_path, clock, flush_interval_ms=1) as store:
        for number in range(60):  # several files
            store.append(message(number, KEYS="k"))
        store.follow_index(None)
        lost = sorted((tmp_path / folder).iterdir())[0]
        content = lost.read_bytes()
        lost.unlink()
        clock.ms += 1_000
        wait_until(lambda: store.missing_files)
        assert store.missing_files == (lost,)
        assert str(lost) in caplog.text
        store.append(message(60))
        assert store.wait_flushed(store.max_log_offset).result(PATIENCE_SECONDS)
        assert len(bodies(store)) == 61
        lost.write_bytes(content)
        clock.ms += 1_000
        wait_until(lambda: not store.missing_files)


def test_a_table_that_is_deleted_is_named_until_it_is_written_again(tmp_path: Path) -> None:
    clock = StoppedClock()
    table = JsonFile(tmp_path / "config" / "topics.json")
    table.save(b"{}")
    with opened(tmp_path, clock, flush_interval_ms=1) as store:
        for number in range(2):  # the flusher looks before it flushes; its first flush may have begun before
            clock.ms += 1_000
            store.append(message(number))
            assert store.wait_flushed(store.max_log_offset).result(PATIENCE_SECONDS)
        assert not store.missing_files
        table.path.unlink()
        clock.ms += 1_000
        wait_until(lambda: store.missing_files == (table.path,))
        table.save(b"{}")
        clock.ms += 1_000
        wait_until(lambda: not store.missing_files)


def test_files_that_retention_deletes_are_not_missing(tmp_path: Path) -> None:
    clock = StoppedClock()
    with opened(tmp_path, clock, flush_interval_ms=1) as store:
        for number in range(60):
            store.append(message(number))
        clock.ms += 80 * 3_600_000
        store.append(message(60))
        before = store.min_log_offset
        store.retention.measure = lambda path: DiskUse(path, 80 << 20, 20 << 20)
        assert store.retention.step(1.0)
        assert store.min_log_offset > before
        clock.ms += 1_000
        assert store.wait_flushed(store.max_log_offset).result(PATIENCE_SECONDS)
        assert not store.missing_files


def test_a_file_that_retention_deletes_between_two_looks_is_not_missing(tmp_path: Path) -> None:
    clock, disk = StoppedClock(), LocalDisk()
    with opened(tmp_path, clock, flush_interval_ms=60_000) as store:
        store.append(message(0))
        presence = Presence(store._log.files, store._index, store._directory, disk)
        presence.check()

        def later(descriptor: int, path: Path) -> bool:
            if path.parent.name == "commitlog" and store.min_log_offset == 0:
                for number in range(60):
                    store.append(message(number))
                clock.ms += 80 * 3_600_000
                store.append(message(60))
                store.retention.measure = lambda path: DiskUse(path, 80 << 20, 20 << 20)
                assert store.retention.step(1.0)
                wait_until(lambda: not path.exists())
            return LocalDisk.is_at(disk, descriptor, path)

        disk.is_at = later  # type: ignore[method-assign]
        presence.check()
        assert store.min_log_offset > 0
        presence.close()
