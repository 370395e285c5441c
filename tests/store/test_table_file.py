"""Tables that a thread writes: together, the newest last, and whoever waits is told."""

import errno
import threading
from pathlib import Path

import pytest

from pyromq.errors import StoreNotWritable
from pyromq.store.disk import LocalDisk
from pyromq.store.json_file import JsonFile
from pyromq.store.table_file import TableFile
from pyromq.testing import SimulatedDisk


class HangingDisk(LocalDisk):
    """A disk that replaces files when it is told to, and counts that."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.begun = threading.Event()
        self.replaced = 0

    def replace(self, source: Path, target: Path) -> None:
        self.begun.set()
        self.goes_on.wait(5)
        self.replaced += 1
        super().replace(source, target)


def test_changes_made_while_one_is_written_go_together(tmp_path: Path) -> None:
    disk = HangingDisk()
    file = JsonFile(tmp_path / "table.json", disk)
    table = TableFile(file, str.encode)
    saved = [table.save("first", order=1)]
    disk.begun.wait(5)
    saved += [table.save(f"change {number}", order=number) for number in range(2, 100)]
    assert not any(each.done() for each in saved)
    disk.goes_on.set()
    table.close()
    assert all(each.exception(0) is None for each in saved)
    assert disk.replaced == 2
    assert file.load() == b"change 99"


def test_whoever_waits_is_told_what_the_disk_said_and_the_next_change_is_written() -> None:
    disk = SimulatedDisk()
    file = JsonFile(Path("/srv/table.json"), disk)
    table = TableFile(file, str.encode)
    disk.refuse = lambda kind, path: errno.ENOSPC if path.name.startswith("table.json") else None
    with pytest.raises(StoreNotWritable, match=r"table\.json: No space left"):
        table.save("lost", order=1).result(0)
    disk.refuse = lambda kind, path: None
    table.save("kept", order=2).result(0)
    assert file.load() == b"kept"
