"""Tables that a thread writes: together, the newest last, and whoever waits is told."""

import errno
import threading
from functools import partial
from pathlib import Path

import msgspec
import pytest
from tests.waiting import PATIENCE_SECONDS

from pyromq.errors import StoreNotWritable
from pyromq.remoting.bodies import DataVersion, TopicConfig, TopicConfigTable
from pyromq.store.disk import LocalDisk
from pyromq.store.json_file import JsonFile
from pyromq.store.table_file import TableFile, formatted
from pyromq.testing import SimulatedDisk


class HangingDisk(LocalDisk):
    """A disk that replaces files when it is told to, and counts that."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.begun = threading.Event()
        self.replaced = 0

    def replace(self, source: Path, target: Path) -> None:
        self.begun.set()
        self.goes_on.wait(PATIENCE_SECONDS)
        self.replaced += 1
        super().replace(source, target)


def test_changes_made_while_one_is_written_go_together(tmp_path: Path) -> None:
    disk = HangingDisk()
    file = JsonFile(tmp_path / "table.json", disk)
    table = TableFile(file, str.encode)
    saved = [table.save(lambda: "first", order=1)]
    disk.begun.wait(PATIENCE_SECONDS)
    saved += [table.save(partial(str.format, "change {}", number), order=number) for number in range(2, 100)]
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
        table.save(lambda: "lost", order=1).result(0)
    disk.refuse = lambda kind, path: None
    table.save(lambda: "kept", order=2).result(0)
    assert file.load() == b"kept"


def test_what_has_to_come_first_is_done_before_any_later_table_is_written() -> None:
    disk = SimulatedDisk()
    offsets, file = JsonFile(Path("/srv/offsets.json"), disk), JsonFile(Path("/srv/table.json"), disk)
    table = TableFile(file, str.encode)
    disk.refuse = lambda kind, path: errno.ENOSPC if path.name.startswith("offsets") else None
    with pytest.raises(StoreNotWritable, match="offsets"):
        table.save(lambda: "without it", order=1, after=lambda: offsets.save(b"without it")).result(0)
    with pytest.raises(StoreNotWritable, match="offsets"):
        table.save(lambda: "and another change", order=2).result(0)
    assert file.load() is None
    disk.refuse = lambda kind, path: None
    table.save(lambda: "and a third", order=3).result(0)
    assert (offsets.load(), file.load()) == (b"without it", b"and a third")


def test_changes_of_one_turn_are_handed_over_once_at_its_end() -> None:
    disk, turns, copies = SimulatedDisk(), [], []
    file = JsonFile(Path("/srv/table.json"), disk)
    table = TableFile(file, str.encode, turns.append)
    saved = [table.save(lambda: copies.append("one") or "all", order=number) for number in range(1, 4)]
    assert not copies
    (end_of_turn,) = turns
    end_of_turn()
    assert [each.result(0) for each in saved] == [None] * 3
    assert copies == ["one"]
    assert file.load() == b"all"


def test_what_is_not_handed_over_yet_is_written_at_the_end() -> None:
    file = JsonFile(Path("/srv/table.json"), SimulatedDisk())
    table = TableFile(file, str.encode, lambda end_of_turn: None)
    saved = table.save(lambda: "last", order=1)
    table.close()
    assert saved.done()
    assert file.load() == b"last"


@pytest.mark.parametrize("count", [0, 1, 199, 200, 201, 1000])
def test_a_table_written_in_parts_is_as_one_written_at_once(count: int) -> None:
    topics = {name: TopicConfig(name=name) for name in (f'{{"{number}' for number in range(count))}
    table = TopicConfigTable(data_version=DataVersion(counter=3), topics=topics)
    written = formatted(TopicConfigTable(data_version=table.data_version), topics)
    assert written == msgspec.json.format(msgspec.json.encode(table), indent=1)
