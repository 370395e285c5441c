"""Promises and epochs survive crashes, and two logs find the point up to which they are equal."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pyromq.errors import StoreCorrupt, StoreNotWritable, UsageError
from pyromq.store.epoch_file import CommonPoint, EpochFile, EpochStart, common_point
from pyromq.testing.simulated_disk import Killed, SimulatedDisk

ROOT = Path("/data")


def loaded(root: Path, disk: SimulatedDisk | None = None) -> EpochFile:
    file = EpochFile(root) if disk is None else EpochFile(root, disk)
    file.load()
    return file


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    file = loaded(tmp_path)
    assert (file.promised, file.lines, file.last_epoch(100)) == (0, [], 0)
    file.promise(3)
    file.begin(3, 100)
    file.promise(7)
    file.begin(7, 250)
    again = loaded(tmp_path)
    assert again.promised == 7
    assert again.lines == [(3, 0), (7, 250)]  # the first epoch includes what was there
    assert [again.last_epoch(end) for end in (0, 249, 250)] == [3, 3, 7]
    assert (tmp_path / "epochs").read_text().splitlines()[1:] == ["promised 7", "3 0", "7 250"]


def test_a_lower_epoch_is_refused_for_ever(tmp_path: Path) -> None:
    loaded(tmp_path).promise(5)
    file = loaded(tmp_path)
    file.promise(5)
    with pytest.raises(UsageError, match="epoch 4 is refused: epoch 5 was promised"):
        file.promise(4)
    with pytest.raises(UsageError, match="epoch 4 cannot begin"):
        file.begin(4, 10)
    file.begin(5, 10)
    with pytest.raises(UsageError, match="epoch 5 cannot begin"):
        file.begin(5, 20)


def test_epochs_before_the_first_byte_are_forgotten_but_for_the_last(tmp_path: Path) -> None:
    file = loaded(tmp_path)
    for epoch in (1, 2, 3, 4):
        file.begin(epoch, 100 * epoch)
    file.begin(5, 500, log_begin=300)
    assert file.lines == [(3, 300), (4, 400), (5, 500)]
    file.begin(6, 600, log_begin=450)
    assert file.lines == [(4, 400), (5, 500), (6, 600)]


def test_a_new_master_forgets_epochs_whose_records_never_arrived(tmp_path: Path) -> None:
    file = loaded(tmp_path)
    file.adopt([EpochStart(1, 0), EpochStart(2, 100), EpochStart(4, 300)], None)
    assert file.last_epoch(200) == 2
    file.begin(5, 200)
    assert file.lines == [(1, 0), (2, 100), (5, 200)]


def test_a_follower_adopts_the_masters_epochs_from_the_common_point_on(tmp_path: Path) -> None:
    file = loaded(tmp_path)
    for line in ((1, 0), (2, 100), (3, 200)):
        file.begin(*line)
    common = common_point(file.lines, [EpochStart(2, 100), EpochStart(4, 180)], 260, 400)
    assert common == (2, 180)
    file.cut(180)
    assert file.lines == [(1, 0), (2, 100)]
    file.adopt([EpochStart(2, 100), EpochStart(4, 180)], common)
    assert loaded(tmp_path).lines == [(1, 0), (2, 100), (4, 180)]
    file.adopt([EpochStart(9, 900)], None)
    assert file.lines == [(9, 900)]


@pytest.mark.parametrize("content", [b"", b"00000000\npromised 1\n", b"promised 5\n1 0\n"])
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "epochs").write_bytes(content)
    with pytest.raises(StoreCorrupt, match=f"{tmp_path}/epochs is damaged"):
        loaded(tmp_path)


def test_a_promise_that_cannot_be_written_is_none(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    disk.make_folder(ROOT)
    file = loaded(ROOT, disk)
    file.promise(1)

    def refuse(kind: str, path: Path) -> int | None:
        raise OSError(28, "No space left on device")

    disk.refuse = refuse
    with pytest.raises(StoreNotWritable, match="cannot write /data/epochs: No space left"):
        file.promise(2)
    assert file.promised == 1


def test_a_kill_or_power_cut_at_any_write_loses_no_promise_and_no_epoch() -> None:
    at, kills = 0, 0
    while True:
        at += 1
        disk = SimulatedDisk(seed=at)
        disk.make_folder(ROOT)
        disk.sync_folder(ROOT.parent)
        disk.kill_at = disk.operations + at
        kept: list[tuple[int, list[EpochStart]]] = [(0, [])]
        try:
            file = loaded(ROOT, disk)
            for epoch in (1, 2, 5):
                kept.append((epoch, list(file.lines)))
                file.promise(epoch)
                kept[:] = kept[-1:]
                kept.append((epoch, [*file.lines, EpochStart(epoch, 100 * epoch if file.lines else 0)]))
                file.begin(epoch, 100 * epoch)
                kept[:] = kept[-1:]
        except Killed:
            kills += 1
        else:
            assert kills > 20
            return
        for left in (disk.after_kill(), disk.after_power_cut(random.Random(at))):
            again = loaded(ROOT, left)
            assert (again.promised, again.lines) in kept


def lines(*pairs: tuple[int, int]) -> list[EpochStart]:
    return [EpochStart(*pair) for pair in pairs]


@pytest.mark.parametrize(
    ("own", "own_end", "other", "other_end", "point"),
    [
        # the follower is behind, equal, or ahead in the same epoch
        (lines((1, 0)), 50, lines((1, 0)), 80, (1, 50)),
        (lines((1, 0)), 80, lines((1, 0)), 80, (1, 80)),
        (lines((1, 0)), 90, lines((1, 0)), 80, (1, 80)),
        # the old master had more of its epoch than the new one knows
        (lines((1, 0)), 90, lines((1, 0), (2, 80)), 120, (1, 80)),
        # it was master twice, without followers (KIP-279: fast leader failovers)
        (lines((1, 0), (3, 20)), 30, lines((1, 0), (2, 10), (4, 15)), 40, (1, 10)),
        (lines((1, 0), (2, 10)), 30, lines((1, 0), (3, 20)), 40, (1, 10)),
        (lines((1, 0), (2, 10), (4, 30)), 60, lines((1, 0), (2, 10), (3, 25), (5, 40)), 70, (2, 25)),
        # an epoch without records at one side: the search goes on below it
        (lines((1, 0), (2, 10), (3, 10)), 20, lines((1, 0), (2, 10), (4, 25)), 30, (1, 10)),
        (lines((1, 0), (2, 10), (3, 15)), 20, lines((1, 0), (2, 10), (3, 15)), 15, (3, 15)),
        (lines((1, 0), (3, 10), (5, 10)), 20, lines((3, 10), (4, 12)), 30, None),
        # epochs that have not arrived do not count
        (lines((1, 0), (2, 100)), 60, lines((1, 0), (2, 100)), 150, (1, 60)),
        (lines((1, 0), (2, 100)), 60, lines((1, 0), (3, 50)), 150, (1, 50)),
        # an end of which nothing is common
        (lines((1, 0)), 50, lines((2, 0)), 50, None),
        (lines((2, 10)), 50, lines((2, 12)), 50, None),
        ([], 50, lines((1, 0)), 50, None),
        (lines((1, 0)), 50, [], 50, None),
        ([], 0, [], 0, None),
    ],
)
def test_the_point_up_to_which_two_logs_are_equal(
    own: list[EpochStart],
    own_end: int,
    other: list[EpochStart],
    other_end: int,
    point: CommonPoint | None,
) -> None:
    assert common_point(own, other, own_end, other_end) == point


class Log:
    """A log of a model: the epoch and a number of each entry, and the lines that a replica would keep."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int]] = []
        self.lines: list[EpochStart] = []


def test_after_cutting_and_copying_a_follower_never_differs_from_its_master() -> None:
    """Replicas of a model elect anybody, write without followers, join, and stop anywhere while they copy."""
    rounds_that_cut = 0
    for seed in range(3_000):
        chance = random.Random(seed)
        logs = [Log() for _ in range(3)]
        for epoch in range(1, 12):
            master, *others = chance.sample(logs, 3)
            end = len(master.entries)
            known = [line for line in master.lines if line.start <= end]
            master.lines = [*known, EpochStart(epoch, end if known else 0)]
            for number in range(chance.randint(0, 4)):
                master.entries.append((epoch, number))
            for follower in others[: chance.randint(0, 2)]:
                before = list(follower.entries)
                common = common_point(follower.lines, master.lines, len(follower.entries), len(master.entries))
                to = 0 if common is None else common.end
                rounds_that_cut += to < len(before)
                equal = 0
                while equal < min(len(before), len(master.entries)) and before[equal] == master.entries[equal]:
                    equal += 1
                assert to <= equal, f"seed {seed}, epoch {epoch}"
                assert common is None or to == equal or master.lines[0].start, f"seed {seed}: cut too much"
                kept = [line for line in follower.lines if common is not None and line.epoch < common.epoch]
                follower.lines = kept + [line for line in master.lines if common is None or line.epoch >= common.epoch]
                follower.entries = before[:to]
                for entry in master.entries[to : to + chance.choice((0, 1, 3, 99))]:
                    follower.entries.append(entry)
                assert follower.entries == master.entries[: len(follower.entries)]
    assert rounds_that_cut > 1_000
