"""What a walk over the log yields: every sound record, and each damage with its bounds."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.store.making import fill, opened

from pyromq.message import StoredMessage
from pyromq.store.log.log_walk import Damage, LogWalk
from pyromq.store.log.segmented_log import Segment

COUNT = 100
FILE_BYTES = 4096


@pytest.fixture
def sent(tmp_path: Path) -> list[StoredMessage]:
    with opened(tmp_path) as store:
        return fill(store, COUNT)


def walk(root: Path, start: int = 0, **options: bool) -> LogWalk:
    paths = sorted((root / "commitlog").iterdir())
    return LogWalk([Segment(path, path.stat().st_size, int(path.name)) for path in paths], FILE_BYTES, start, **options)


def numbers(found: list[StoredMessage | Damage]) -> list[int]:
    return [int(each.body.split()[1]) for each in found if isinstance(each, StoredMessage)]


def damages(found: list[StoredMessage | Damage]) -> list[Damage]:
    return [each for each in found if isinstance(each, Damage)]


def overwrite(root: Path, log_offset: int, content: bytes) -> None:
    path = root / "commitlog" / f"{log_offset - log_offset % FILE_BYTES:020}"
    with path.open("r+b") as file:
        file.seek(log_offset % FILE_BYTES)
        file.write(content)


def test_a_sound_log_has_all_records_and_an_end(tmp_path: Path, sent: list[StoredMessage]) -> None:
    whole = walk(tmp_path)
    assert numbers(list(whole)) == list(range(COUNT))
    assert (whole.position, whole.last_store_ms) == (sent[-1].log_offset + sent[-1].size, sent[-1].store_ms)


def test_a_walk_begins_at_a_record(tmp_path: Path, sent: list[StoredMessage]) -> None:
    assert numbers(list(walk(tmp_path, sent[40].log_offset))) == list(range(40, COUNT))


@pytest.mark.parametrize("content", [b"\0" * 8, b"\xff" * 8, b"\0\0\0\x70\xda\xa3\x20\xa7"])
def test_damage_costs_one_record(tmp_path: Path, sent: list[StoredMessage], content: bytes) -> None:
    overwrite(tmp_path, sent[10].log_offset, content)
    found = list(walk(tmp_path))
    assert numbers(found) == [number for number in range(COUNT) if number != 10]
    [damage] = damages(found)
    assert (damage.start, damage.end, damage.is_tail) == (sent[10].log_offset, sent[11].log_offset, False)
    assert damage.store_ms == sent[9].store_ms


@pytest.mark.parametrize("check_crc", [True, False])
def test_a_body_is_compared_with_its_checksum_if_asked(
    tmp_path: Path, sent: list[StoredMessage], check_crc: bool
) -> None:
    overwrite(tmp_path, sent[10].log_offset + 89, b"\xff")
    assert len(damages(list(walk(tmp_path, check_crc=check_crc)))) == int(check_crc)


def test_a_damaged_end_is_a_tail_and_zeros_are_none(tmp_path: Path, sent: list[StoredMessage]) -> None:
    last = sent[-1]
    overwrite(tmp_path, last.log_offset + 4, b"\xff" * 4)
    [damage] = damages(list(walk(tmp_path)))
    assert (damage.start, damage.is_tail) == (last.log_offset, True)
    overwrite(tmp_path, last.log_offset, bytes(last.size))
    cut = walk(tmp_path)
    assert damages(list(cut)) == []
    assert cut.position == last.log_offset


def test_zeros_in_front_of_later_files_are_damage(tmp_path: Path, sent: list[StoredMessage]) -> None:
    first = next(each for each in sent if each.log_offset > 2000)
    overwrite(tmp_path, first.log_offset, bytes(FILE_BYTES - first.log_offset))
    [damage] = damages(list(walk(tmp_path)))
    assert (damage.start, damage.end, damage.is_empty) == (first.log_offset, FILE_BYTES, True)


def test_a_missing_and_a_short_file_are_damage(tmp_path: Path, sent: list[StoredMessage]) -> None:
    paths = sorted((tmp_path / "commitlog").iterdir())
    paths[1].unlink()
    paths[2].write_bytes(paths[2].read_bytes()[:1000])
    found = list(walk(tmp_path))
    missing, short = damages(found)
    assert (missing.path, missing.start, missing.end) == (paths[1], FILE_BYTES, 2 * FILE_BYTES)
    assert (short.path, short.end) == (paths[2], 3 * FILE_BYTES)
    assert set(numbers(found)) >= {int(each.body.split()[1]) for each in sent if each.log_offset >= 3 * FILE_BYTES}


@pytest.mark.parametrize("may_be_torn", [True, False])
def test_zeros_at_the_end_of_properties_are_a_torn_record_after_a_crash(
    tmp_path: Path, sent: list[StoredMessage], may_be_torn: bool
) -> None:
    last = sent[-1]
    overwrite(tmp_path, last.log_offset + last.size - 10, bytes(10))
    found = list(walk(tmp_path, may_be_torn=may_be_torn))
    assert len(numbers(found)) == COUNT - int(may_be_torn)
