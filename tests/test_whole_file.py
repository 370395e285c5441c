"""Small files that are replaced as a whole: what a power loss and other programs see of them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from tests.store.synced_names import SyncedNames, only_on_linux

from pyromq.whole_file import make_private_folder, remove_file, replace_file, version_of


def test_a_replaced_file_has_the_new_content_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "accounts.json"
    replace_file(path, b"first")
    replace_file(path, b"second")
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("accounts.json", b"second")]


def test_the_version_of_a_file_changes_with_each_change(tmp_path: Path) -> None:
    path = tmp_path / "accounts.json"
    versions = [version_of(path), replace_file(path, b"first"), replace_file(path, b"other")]
    assert version_of(path) == versions[-1]
    path.write_bytes(b"longer")
    versions.append(version_of(path))
    os.utime(path, ns=(0, 0))
    versions.append(version_of(path))
    assert len(set(versions)) == len(versions)
    assert versions[0] is None


def test_files_and_folders_are_for_their_owner_unless_a_mode_is_given(tmp_path: Path) -> None:
    path = tmp_path / "own" / "accounts.json"
    replace_file(path, b"")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    replace_file(path, b"", mode=0o640)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_what_a_crash_left_is_written_over(tmp_path: Path) -> None:
    (tmp_path / ".accounts.json.tmp").write_bytes(b"the half of")
    replace_file(tmp_path / "accounts.json", b"whole")
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("accounts.json", b"whole")]


@only_on_linux
def test_names_that_appear_change_and_disappear_are_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = SyncedNames(tmp_path, monkeypatch)
    path = tmp_path / "new" / "folder" / "accounts.json"
    replace_file(path, b"first")
    assert names.missing() == set()
    replace_file(path, b"second")
    assert names.missing() == set()
    remove_file(path)
    assert names.missing() == set()
    assert list(path.parent.iterdir()) == []
    make_private_folder(tmp_path / "another" / "one")
    assert names.missing() == set()


def test_a_missing_file_may_be_deleted(tmp_path: Path) -> None:
    remove_file(tmp_path / "nothing")
