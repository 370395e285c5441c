"""What a repair makes of a log of which only a part of one file is left, or nothing at all."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.store.making import TOPIC, crashed_copy, fill, message, opened
from tests.store.offline.test_store_check import flip, opens_with, without
from tests.store.synced_names import SyncedNames, only_on_linux

from pyromq.errors import StoreCorrupt
from pyromq.message import StoredMessage
from pyromq.store.offline.stopped_store import Cure, StoppedStore
from pyromq.store.offline.store_check import Report
from pyromq.store.offline.store_repair import StoreRepair
from pyromq.store.store_config import StoreConfig

COUNT = 100
ONE_FILE = {"segment_bytes": 1 << 20}


@pytest.fixture
def sent(tmp_path: Path) -> list[StoredMessage]:
    """A store whose log is one file, mostly empty."""
    with opened(tmp_path, **ONE_FILE) as store:
        return fill(store, COUNT)


def log_file(root: Path) -> Path:
    return root / "commitlog" / f"{0:020}"


def cut(root: Path, size: int) -> None:
    log_file(root).write_bytes(log_file(root).read_bytes()[:size])


def repaired(root: Path, **changes: int) -> Report:
    return StoreRepair(StoreConfig(root, **{"consume_queue_entries": 8, **changes}), lambda text: None).run()  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [30, 7000, 8192])
def test_the_only_log_file_is_made_whole_again(tmp_path: Path, sent: list[StoredMessage], size: int) -> None:
    cut(tmp_path, size)
    with pytest.raises(StoreCorrupt, match="store repair"), opened(tmp_path, **ONE_FILE):
        pass
    mended = repaired(tmp_path, **ONE_FILE)
    assert {finding.cure for finding in mended.findings} <= {Cure.START}, mended.findings  # of the checkpoint
    assert log_file(tmp_path).stat().st_size == 1 << 20
    lost = [number for number, each in enumerate(sent) if each.log_offset + each.size > size]
    opens_with(tmp_path, without(sent, *lost), **ONE_FILE)


def test_a_large_gap_is_filled_by_several_records(tmp_path: Path) -> None:
    large = {"segment_bytes": 16 << 20}
    with opened(tmp_path, **large) as store:
        sent = fill(store, 2)
        for number in range(2, 5):
            sent.append(message(number, queue_id=number % 2))
            sent[-1].stored_body = bytes(3 << 20)
            store.append(sent[-1])
    cut(tmp_path, sent[2].log_offset + 1000)
    mended = repaired(tmp_path, **large)
    assert mended.is_sound, mended.findings
    assert mended.records == 2 + 3  # of 4, 4 and 1 MiB
    opens_with(tmp_path, without(sent, 2, 3, 4), **large)


@pytest.mark.parametrize("size", [4096, 1_000_000])
def test_the_only_file_of_a_log_of_small_files_keeps_its_size(tmp_path: Path, size: int) -> None:
    with opened(tmp_path, segment_bytes=size) as store:
        fill(store, 10)
    assert repaired(tmp_path).is_sound
    assert log_file(tmp_path).stat().st_size == size


def test_a_full_file_without_those_behind_it_keeps_its_size(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, COUNT)
    for path in sorted((tmp_path / "commitlog").iterdir())[1:]:
        path.unlink()
    assert StoppedStore(StoreConfig(tmp_path)).segment_bytes == 4096


@pytest.mark.parametrize("left", ["no file", "an empty file", "no folder"])
@pytest.mark.parametrize("crashed", [False, True])
def test_without_any_log_file_queues_go_on_counting(tmp_path: Path, left: str, crashed: bool) -> None:
    with opened(tmp_path / "first") as store:
        fill(store, COUNT)
        root = crashed_copy(tmp_path / "first", tmp_path / "second")
    if not crashed:
        root = tmp_path / "first"
    for path in (root / "commitlog").iterdir():
        path.unlink()
    if left == "an empty file":
        log_file(root).touch()
    elif left == "no folder":
        (root / "commitlog").rmdir()
    with pytest.raises(StoreCorrupt, match="has no log files"), opened(root):
        pass
    mended = repaired(root, segment_bytes=4096)
    assert {finding.cure for finding in mended.findings} <= {Cure.START, Cure.BACKUP}, mended.findings
    with opened(root) as store:
        assert [store.max_offset(TOPIC, queue_id) for queue_id in (0, 1)] == [COUNT // 2] * 2
    opens_with(root, {0: [], 1: []})


def test_a_damaged_queue_whose_records_are_gone_goes_on_counting(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, COUNT)
    for path in (tmp_path / "commitlog").iterdir():
        path.unlink()
    (tmp_path / "consumequeue" / TOPIC / "0" / f"{0:020}").unlink()
    (tmp_path / "consumequeue" / TOPIC / "0" / f"{320:020}").unlink()
    repaired(tmp_path, segment_bytes=4096)
    with opened(tmp_path) as store:
        assert store.max_offset(TOPIC, 0) == COUNT // 2


def test_an_empty_log_file_is_replaced_by_one_where_the_log_continues(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        end = fill(store, COUNT)[-1].log_offset
    for path in (tmp_path / "commitlog").iterdir():
        path.unlink()
    log_file(tmp_path).touch()
    assert {finding.cure for finding in repaired(tmp_path, segment_bytes=4096).findings} <= {Cure.START}
    [path] = (tmp_path / "commitlog").iterdir()
    assert int(path.name) > end


@only_on_linux
def test_a_power_loss_after_a_repair_undoes_nothing(
    tmp_path: Path, sent: list[StoredMessage], monkeypatch: pytest.MonkeyPatch
) -> None:
    damages = {
        "record": log_file(tmp_path),
        "queue": tmp_path / "consumequeue" / TOPIC / "1" / f"{0:020}",
        "index": min((tmp_path / "index").iterdir()),
        "checkpoint": tmp_path / "checkpoint",
    }
    flip(damages["record"], sent[10].log_offset + 89)
    damages["queue"].unlink()
    flip(damages["index"], 37)
    damages["checkpoint"].write_bytes(b"")
    names = SyncedNames(tmp_path, monkeypatch)
    repaired(tmp_path, **ONE_FILE)
    assert (tmp_path / "damaged").is_dir()
    assert damages["queue"].exists()
    assert not damages["index"].exists()
    assert not damages["checkpoint"].exists()
    assert names.missing() == set()


@only_on_linux
def test_a_power_loss_after_a_repair_leaves_the_log_where_it_continues(
    tmp_path: Path, sent: list[StoredMessage], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(tmp_path / "commitlog")
    names = SyncedNames(tmp_path, monkeypatch)
    repaired(tmp_path, segment_bytes=4096)
    assert list((tmp_path / "commitlog").iterdir())
    assert names.missing() == set()


def test_a_repair_takes_a_record_with_zeros_in_its_properties_as_sound(tmp_path: Path) -> None:
    """Whether a crash or a client has put them there, a start decides."""
    with opened(tmp_path, **ONE_FILE) as store:
        sent = fill(store, COUNT)
    content = bytearray(log_file(tmp_path).read_bytes())
    ends = (each.log_offset + each.size for each in sent)
    sector_end = next(end - end % 512 for end in ends if 0 < end % 512 < 20)  # in the properties of a record
    content[sector_end - 4 : sector_end] = bytes(4)
    log_file(tmp_path).write_bytes(content)
    (tmp_path / "consumequeue" / TOPIC / "1" / f"{0:020}").unlink()
    repaired(tmp_path, **ONE_FILE)
    assert {finding.cure for finding in repaired(tmp_path, **ONE_FILE).findings} <= {Cure.START}
