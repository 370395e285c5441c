"""Tables that survive a crash between any two steps of saving."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec
import pytest

from pyromq.errors import StoreCorrupt, StoreError, StoreNotWritable
from pyromq.store.json_file import JsonFile
from pyromq.testing import SimulatedDisk
from pyromq.testing.simulated_disk import Loss


def test_content_comes_back(tmp_path: Path) -> None:
    file = JsonFile(tmp_path / "config" / "topics.json")
    assert file.load() is None
    file.save(b"{1}")
    file.save(b"{2}")
    assert file.load() == b"{2}"
    assert sorted(path.name for path in file.path.parent.iterdir()) == ["topics.json", "topics.json.bak"]


def test_saved_content_outlives_a_power_cut() -> None:
    disk = SimulatedDisk()
    file = JsonFile(Path("/config/topics.json"), disk)
    for content in (b"{1}", b"{2}"):
        file.save(content)
        assert JsonFile(file.path, disk.after_power_cut(Random(0), Loss.ALL)).load() == content


def test_content_of_an_earlier_order_replaces_no_later_one(tmp_path: Path) -> None:
    file = JsonFile(tmp_path / "topics.json")
    file.save(b"{2}", order=2)
    file.save(b"{1}", order=1)
    assert file.load() == b"{2}"


def test_saving_interns_no_new_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = JsonFile(tmp_path / "topics.json")
    file.save(b"{1}")
    file.save(b"{2}")
    interned: list[str] = []
    intern = sys.intern
    monkeypatch.setattr(sys, "intern", lambda name: interned.append(name) or intern(name))
    _ = tmp_path / "another"
    assert interned == ["another"] * (sys.version_info < (3, 12))  # as a new Path does there
    file.save(b"{3}")
    assert set(interned) <= {"another", *file.path.parts}


@pytest.mark.parametrize("damage", ["missing", "empty"])
def test_previous_content_stands_in(tmp_path: Path, damage: str) -> None:
    file = JsonFile(tmp_path / "topics.json")
    file.save(b"{1}")
    file.save(b"{2}")
    file.path.unlink()
    if damage == "empty":
        file.path.touch()
    assert file.load() == b"{1}"
    file.save(b"{3}")
    assert file.load() == b"{3}"
    assert (tmp_path / "topics.json.bak").read_bytes() == b"{1}"


@pytest.mark.parametrize("opened", [None, JsonFile.load, lambda file: file.read(bytes)], ids=["saved", "load", "read"])
def test_a_folder_that_is_lost_is_not_made_again(tmp_path: Path, opened: Callable[[JsonFile], object] | None) -> None:
    path = tmp_path / "config" / "topics.json"
    file = JsonFile(path)
    file.save(b"{1}")
    if opened is not None:
        file = JsonFile(path)
        assert opened(file) == b"{1}"
    path.parent.rename(tmp_path / "elsewhere")
    with pytest.raises(StoreNotWritable, match=r"topics\.json"):
        file.save(b"{2}")
    assert not path.parent.exists()


def test_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreNotWritable, match=r"file/topics.json"):
        JsonFile(tmp_path / "file" / "topics.json").save(b"{}")


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "topics.json").mkdir()
    with pytest.raises(StoreError, match=r"cannot read .*topics.json"):
        JsonFile(tmp_path / "topics.json").load()
    assert JsonFile(tmp_path / "absent" / "topics.json").load() is None


def test_damaged_content_is_put_aside_for_the_previous_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = JsonFile(tmp_path / "topics.json")
    file.save(b"[1]")
    file.save(b"[2]")
    file.path.write_bytes(b"[2")

    assert file.read(msgspec.json.decode) == [1]
    assert (tmp_path / "topics.json.damaged").read_bytes() == b"[2"
    assert "topics.json is damaged" in caplog.text
    assert "restore it" not in caplog.text  # nobody has to
    assert file.read(msgspec.json.decode) == [1]


@pytest.mark.parametrize("written", [b'{"a":%d}', b'{\n "a":%d\n}'])
def test_a_flipped_bit_that_leaves_it_readable_is_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, written: bytes
) -> None:
    file = JsonFile(tmp_path / "topics.json")
    file.save(written % 1)
    file.save(written % 2)
    assert file.load() == written % 2
    assert msgspec.json.decode(file.path.read_bytes())["a"] == 2  # RocketMQ reads the file with its checksum
    file.path.write_bytes(file.path.read_bytes().replace(b'"a":2', b'"a":3'))

    assert file.read(msgspec.json.decode) == {"a": 1}
    [line] = caplog.messages
    assert f"{file.path} is damaged: its checksum is" in line
    assert "after an edit by hand, remove its last field, checksum" in line


@pytest.mark.parametrize("edited", [b'{"a":3}', b'{\n  "a": 3,\n  "checksum": "00000000"\n}', b'{"a":3}\n'])
def test_what_others_write_has_no_checksum_and_is_taken_as_it_is(tmp_path: Path, edited: bytes) -> None:
    file = JsonFile(tmp_path / "topics.json")
    file.save(b'{"a":1}')
    file.path.write_bytes(edited)

    found = file.read(msgspec.json.decode)

    assert found is not None and found["a"] == 3


@pytest.mark.parametrize("previous", [None, b"["])
def test_damaged_content_without_a_better_one_is_named(tmp_path: Path, previous: bytes | None) -> None:
    file = JsonFile(tmp_path / "topics.json")
    file.path.write_bytes(b"garbage")
    if previous is not None:
        (tmp_path / "topics.json.bak").write_bytes(previous)

    with pytest.raises(StoreCorrupt, match=r"topics\.json is damaged: .*; restore it from a backup"):
        file.read(msgspec.json.decode)


def test_who_saves_later_is_told_when_it_cannot_be_done(tmp_path: Path) -> None:
    file = JsonFile(tmp_path / "topics.json")
    file.path.mkdir()  # it cannot be read, which is no matter of writing
    lost: list[bool] = []
    save = file.saving(lambda: b"{1}", failed=lambda: lost.append(True))
    assert lost == []
    with pytest.raises(StoreError):
        save()
    assert lost == [True]
    file.path.rmdir()
    file.saving(lambda: b"{2}", failed=lambda: lost.append(True))()
    assert (file.load(), lost) == (b"{2}", [True])


def test_on_a_full_disk_the_older_content_gives_its_place() -> None:
    disk, folder = SimulatedDisk(), Path("/config")
    file = JsonFile(folder / "offsets.json", disk)
    file.save(b"{1}")
    file.save(b"{2}")
    older = folder / "offsets.json.bak"
    disk.refuse = lambda kind, path: errno.ENOSPC if kind == "write" and older in disk.paths() else None

    file.save(b"{3}")

    assert file.load() == b"{3}"
    assert disk.paths() == [folder / "offsets.json"]


def test_without_any_room_the_content_stays_as_it_was() -> None:
    disk = SimulatedDisk()
    file = JsonFile(Path("/config/offsets.json"), disk)
    file.save(b"{1}")
    file.save(b"{2}")
    disk.refuse = lambda kind, path: errno.ENOSPC if kind == "write" else None
    with pytest.raises(StoreNotWritable, match=r"/config/offsets.json: No space left on device"):
        file.save(b"{3}")
    disk.refuse = lambda kind, path: None
    assert file.load() == b"{2}"


def test_a_saved_file_outlives_a_power_loss_in_folders_that_are_new() -> None:
    path, disk = Path("/srv/a/b/kv.json"), SimulatedDisk()
    JsonFile(path, disk).save(b"{1}")
    assert JsonFile(path, disk.after_power_cut(Random(1), Loss.ALL)).load() == b"{1}"
