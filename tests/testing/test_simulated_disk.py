"""The simulated disk: which names are there after a power loss."""

from pathlib import Path
from random import Random

import pytest

from pyromq.testing import SimulatedDisk
from pyromq.testing.simulated_disk import Loss

FOLDER = Path("/srv/folder")


@pytest.fixture
def disk() -> SimulatedDisk:
    """A disk with a file in a folder, all of it on disk."""
    disk = SimulatedDisk()
    disk.make_folder(FOLDER)
    disk.open(FOLDER / "file", create=True)
    for each in (FOLDER, *FOLDER.parents):
        disk.sync_folder(each)
    return disk


def names_left(disk: SimulatedDisk, folder: Path = FOLDER) -> list[str]:
    return disk.after_power_cut(Random(1), Loss.ALL).names(folder)


def test_a_deletion_is_undone_unless_the_folder_is_synced(disk: SimulatedDisk) -> None:
    disk.remove(FOLDER / "file")
    assert names_left(disk) == ["file"]
    disk.sync_folder(FOLDER)
    assert names_left(disk) == []


def test_a_deleted_folder_is_restored_with_its_files_unless_its_parent_is_synced(disk: SimulatedDisk) -> None:
    disk.remove_folder(FOLDER)
    assert names_left(disk) == ["file"]
    disk.sync_folder(FOLDER.parent)
    assert names_left(disk, FOLDER.parent) == []
