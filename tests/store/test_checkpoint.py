"""Damage must not make the checkpoint vouch for more than is there."""

from __future__ import annotations

import struct
from pathlib import Path
from random import Random

import pytest

from pyromq.store.checkpoint import Checkpoint
from pyromq.testing import SimulatedDisk
from pyromq.testing.simulated_disk import Loss


@pytest.fixture
def path(tmp_path: Path) -> Path:
    saved = Checkpoint(tmp_path / "checkpoint")
    saved.log_ms, saved.queues_ms, saved.index_ms = 1_700_000_000_000, 1_600_000_000_000, 1_500_000_000_000
    saved.save()
    return tmp_path / "checkpoint"


def times(path: Path) -> tuple[int, int, int]:
    loaded = Checkpoint(path)
    loaded.load()
    return loaded.log_ms, loaded.queues_ms, loaded.index_ms


def test_times_come_back(path: Path) -> None:
    assert times(path) == (1_700_000_000_000, 1_600_000_000_000, 1_500_000_000_000)
    assert path.stat().st_size == 4096


def test_the_log_s_begin_comes_back_if_it_is_whole(path: Path) -> None:
    saved = Checkpoint(path)
    saved.load()
    assert saved.log_begin is None
    saved.log_begin = 1 << 30
    saved.save()
    content = bytearray(path.read_bytes())
    for byte in (None, *range(468, 480)):
        if byte is not None:
            content[byte] ^= 4
        path.write_bytes(content)
        loaded = Checkpoint(path)
        loaded.load()
        assert loaded.log_begin == (1 << 30 if byte is None else None)
        if byte is not None:
            content[byte] ^= 4


@pytest.mark.parametrize("byte", [*range(24), *range(480, 508)])
def test_a_flipped_bit_makes_no_time_later(path: Path, byte: int) -> None:
    before = times(path)
    content = bytearray(path.read_bytes())
    for bit in range(8):
        content[byte] ^= 1 << bit
        path.write_bytes(content)
        assert all(after <= time for after, time in zip(times(path), before, strict=True))
        content[byte] ^= 1 << bit


def test_of_a_java_broker_s_times_the_earlier_count(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(struct.pack(">qqq", 1_800_000_000_000, 1_550_000_000_000, 0) + content[24:])
    assert times(path) == (1_700_000_000_000, 1_550_000_000_000, 0)
    path.write_bytes(struct.pack(">qqq", 1_800_000_000_000, 1_550_000_000_000, 0).ljust(4096, b"\0"))
    assert times(path) == (1_800_000_000_000, 1_550_000_000_000, 0)


@pytest.mark.parametrize("size", [0, 23, 24, 100, 507])
def test_a_file_cut_short_makes_no_time_later(path: Path, size: int) -> None:
    before = times(path)
    path.write_bytes(path.read_bytes()[:size])
    assert all(after <= time for after, time in zip(times(path), before, strict=True))


@pytest.mark.parametrize(("log_ms", "queues_ms"), [(20_000, 60_000), (60_000, 20_000)])
def test_neither_log_nor_queues_are_trusted_beyond_their_own_flush(log_ms: int, queues_ms: int) -> None:
    checkpoint = Checkpoint(Path("/checkpoint"))
    checkpoint.log_ms, checkpoint.queues_ms = log_ms, queues_ms
    assert 0 < checkpoint.safe_ms < 20_000


def test_earlier_times_that_are_saved_outlive_a_power_cut() -> None:
    disk, path = SimulatedDisk(), Path("/checkpoint")
    checkpoint = Checkpoint(path, disk)
    for log_ms in (60_000, 20_000):  # a cut of a replica's log saves earlier times
        checkpoint.log_ms = log_ms
        checkpoint.save()
        disk.sync_folder(path.parent)
        loaded = Checkpoint(path, disk.after_power_cut(Random(0), Loss.ALL))
        loaded.load()
        assert loaded.log_ms == log_ms
