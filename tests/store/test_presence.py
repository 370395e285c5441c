"""Files that are taken from an open store: it refuses by name, and confirms nothing that would be lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_SECONDS, wait_until

from pyromq.errors import StoreNotWritable
from pyromq.store.config import FlushMode

from .making import bodies, message, opened, small_store


def replace(path: Path, *, content: bool = False) -> None:
    """Put an empty folder, or a copy, in the place of a folder that is moved away."""
    moved = path.rename(path.with_name("moved"))
    if content:
        shutil.copytree(moved, path)
    else:
        path.mkdir()


def switch(root: Path) -> None:
    """Let a symbolic link lead to a copy."""
    target = root.readlink()
    copy = Path(shutil.copytree(target, target.with_name("copy")))
    root.unlink()
    root.symlink_to(copy)


LOSSES: list[tuple[str, Callable[[Path], object]]] = [
    ("", shutil.rmtree),
    ("", replace),
    ("", lambda root: replace(root, content=True)),
    ("", lambda root: root.rename(root.with_name("elsewhere"))),
    ("lock", lambda root: (root / "lock").unlink()),
    ("commitlog", lambda root: shutil.rmtree(root / "commitlog")),
    ("commitlog", lambda root: replace(root / "commitlog", content=True)),
    (f"commitlog/{0:020d}", lambda root: (root / "commitlog" / f"{0:020d}").unlink()),
    ("consumequeue", lambda root: replace(root / "consumequeue")),
    ("consumequeue", lambda root: shutil.rmtree(root / "consumequeue")),
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
    shutil.rmtree(tmp_path / "data")
    store.append(message())
    assert not store.wait_flushed(store.max_log_offset).result(PATIENCE_SECONDS)
    with pytest.raises(StoreNotWritable):
        store.close()


def test_a_loss_just_before_the_stop_is_told_then(tmp_path: Path) -> None:
    store = small_store(tmp_path / "data", flush_interval_ms=3_600_000)
    store.open()
    store.append(message())
    shutil.rmtree(tmp_path / "data")
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
