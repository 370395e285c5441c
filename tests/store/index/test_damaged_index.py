"""Index files with garbage, with flipped bits, and without some of them: keys are found, or the damage is named."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from tests.store.making import TOPIC, StoppedClock, fill, message, opened

from pyromq.slow_work import run_blocking
from pyromq.store.message_store import MessageStore
from pyromq.store.offline.store_check import StoreCheck
from pyromq.store.store_config import StoreConfig

COUNT = 60  # messages, with 90 keys and as many ids


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """The index files of a stopped store."""
    with opened(tmp_path) as store:
        fill(store, COUNT)
    return sorted((tmp_path / "index").iterdir())


def found(store: MessageStore) -> int:
    """Return how many messages are found by their own key."""
    while not store.index_step(1.0):
        pass
    return sum(len(found_by_key(store, number)) > 0 for number in range(COUNT))


def found_by_key(store, number):
    return run_blocking(store.search_by_key(TOPIC, f"k{number}", 32, 0, 1 << 62)).log_offsets


@pytest.mark.parametrize("seed", range(10))
def test_a_file_of_garbage_is_made_again(tmp_path: Path, files: list[Path], seed: int) -> None:
    random = Random(seed)
    path = random.choice(files)
    path.write_bytes(random.randbytes(path.stat().st_size))
    assert any(finding.path == path for finding in StoreCheck(StoreConfig(tmp_path)).run().findings)
    with opened(tmp_path) as store:
        assert found(store) == COUNT


@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_missing_file_is_named_and_made_again(
    tmp_path: Path, files: list[Path], which: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert len(files) > 3
    files[which].unlink()
    with opened(tmp_path) as store:
        assert found(store) == COUNT
    assert which == -1 or f"{files[which + 1]}: " in caplog.text  # the last one: see the next test
    with opened(tmp_path) as store:
        assert found(store) == COUNT


def test_a_last_file_missing_is_named_by_the_one_before(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = StoppedClock()
    with opened(tmp_path, clock) as store:
        for number in range(COUNT):
            fill(store, 1, first=number)
            clock.ms += 10
    files = sorted((tmp_path / "index").iterdir())
    files[-1].unlink()
    assert StoreCheck(StoreConfig(tmp_path)).run().findings
    with opened(tmp_path, clock) as store:
        assert found(store) == COUNT
    assert f"{files[-2]}: the last index file is missing" in caplog.text


def test_the_only_file_missing_is_named_and_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path, index_entries=1000) as store:
        fill(store, COUNT)
    (only,) = (tmp_path / "index").iterdir()
    assert not StoreCheck(StoreConfig(tmp_path, index_entries=1000)).run().findings
    only.unlink()
    (finding,) = StoreCheck(StoreConfig(tmp_path, index_entries=1000)).run().findings
    assert (finding.path, finding.text) == (tmp_path / "index", "the last file is missing")
    with opened(tmp_path, index_entries=1000) as store:
        assert found(store) == COUNT
    assert f"{tmp_path / 'index'}: the last index file is missing" in caplog.text
    caplog.clear()
    with opened(tmp_path, index_entries=1000):
        pass
    assert not caplog.text


@pytest.mark.parametrize("seed", range(20))
def test_a_flipped_bit_raises_nothing_and_is_found_by_a_check(tmp_path: Path, files: list[Path], seed: int) -> None:
    random = Random(seed)
    path = random.choice(files)
    content = bytearray(path.read_bytes())
    content[random.choice([place for place, byte in enumerate(content) if byte])] ^= 1 << random.randrange(8)
    path.write_bytes(content)
    told = any(finding.path == path for finding in StoreCheck(StoreConfig(tmp_path)).run().findings)
    with opened(tmp_path) as store:
        assert found(store) == COUNT or told


@pytest.mark.parametrize("mask", [0xFF, 0x80, 0x04])
def test_a_record_damaged_before_it_is_indexed_costs_no_other_its_keys(
    tmp_path: Path, mask: int, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path, segment_bytes=1 << 20, consume_queue_entries=1024) as store:
        stored = [message(number, KEYS=f"k{number}") for number in range(400)]
        for each in stored:
            store.append(each)
        for number, each in enumerate(stored[1:-1:2]):  # each at another byte, behind what is needed to walk on
            record = store.record_at(each.log_offset)
            assert record is not None
            record[8 + (number - 6) % (each.size - 8)] ^= mask  # of those at a break: in its log offset
        while not store.index_step(0):  # with a break now and then
            pass
        assert store.index_behind == 0
        for number in range(0, 400, 2):
            assert stored[number].log_offset in found_by_key(store, number)
    for line in caplog.messages:
        assert str(tmp_path / "commitlog") in line
