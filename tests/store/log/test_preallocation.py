"""What a log keeps in memory of what was written: little, and nothing is lost by that."""

import mmap
import re
import resource
import threading
import time
from concurrent.futures import Future
from pathlib import Path

import pytest
from tests.platforms.marks import only_linux
from tests.store.making import ADDRESS, SMALL, StoppedClock, bodies, fill, opened
from tests.waiting import PATIENCE_SECONDS, wait_until

from pyromq import speedups
from pyromq.message import StoredMessage
from pyromq.store.disk import LOCAL_DISK, Content, LocalDisk
from pyromq.store.log import preallocation as room_ahead
from pyromq.store.log.segmented_log import Segment
from pyromq.store.message_store import MessageStore
from pyromq.store.store_config import StoreConfig
from pyromq.testing import SimulatedDisk

pytestmark = pytest.mark.on_disk

PAGE = mmap.PAGESIZE


def resident(path: Path) -> int:
    """KiB of a mapped file that this process has in memory."""
    found = re.findall(rf"{re.escape(str(path))}\n(?:.*\n)*?Rss: +(\d+) kB", Path("/proc/self/smaps").read_text())
    return sum(map(int, found))


@only_linux
def test_forgotten_pages_come_back_as_they_were(tmp_path: Path) -> None:
    segment = Segment(tmp_path / "0", 64 * PAGE, disk=LOCAL_DISK)
    segment.create()
    content = bytes(range(256)) * (64 * PAGE // 256)
    segment.memory[:] = content
    assert resident(segment.path) == 64 * PAGE // 1024

    segment.drop_pages(PAGE // 2, 40 * PAGE + 1)  # whole pages only

    assert resident(segment.path) == (64 - 39) * PAGE // 1024
    assert segment.memory == content
    segment.drop_pages(0, -5)
    segment.drop_pages(0, 1 << 40)
    assert resident(segment.path) == 0
    assert segment.memory == content


@only_linux
def test_a_log_keeps_only_its_end_in_memory(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(room_ahead, "MAPPED_BEFORE_END", 4 * PAGE)
    monkeypatch.setattr(room_ahead, "FIRST_STRETCH", PAGE)
    monkeypatch.setattr(room_ahead, "LAST_STRETCH", PAGE)
    with opened(tmp_path, segment_bytes=1 << 18) as store:
        fill(store, 1_000)
        first = tmp_path / "commitlog" / f"{0:020}"
        assert store.max_log_offset < 1 << 18
        assert resident(first) < 100
        fill(store, 1_000, first=1_000)
        assert store.max_log_offset > 1 << 18
        assert resident(first) == 0
        assert bodies(store) == [b"body %d" % number for number in range(0, 2_000, 2)]


@only_linux
def test_pages_read_again_are_let_go_again(tmp_path: Path) -> None:
    with opened(tmp_path, segment_bytes=1 << 18) as store:
        fill(store, 2_000)
        bodies(store)
        store._log.files.drop_pages_before(store.max_log_offset)
        assert resident(tmp_path / "commitlog" / f"{0:020}") == 0
        assert len(bodies(store)) == 1_000


# -- the next file


class HangingDisk(LocalDisk):
    """A disk on which flushing the log's folder takes until `goes_on` is set."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.goes_on.set()

    def sync_folder(self, folder: Path) -> None:
        if folder.name == "commitlog":
            self.goes_on.wait()
        super().sync_folder(folder)


def test_the_next_file_is_made_from_the_middle_on_and_nobody_waits_for_its_name(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(room_ahead, "FIRST_STRETCH", 64 << 10)
    monkeypatch.setattr(room_ahead, "LAST_STRETCH", 64 << 10)
    disk = HangingDisk()
    config = StoreConfig(tmp_path, **{**SMALL, "segment_bytes": 1 << 20})  # type: ignore[arg-type]
    store = MessageStore(config, StoppedClock(), store_address=ADDRESS, disk=disk)
    store.open()
    try:
        store.append(StoredMessage("orders", bytes(8_000), born_address=ADDRESS))
        disk.goes_on.clear()
        while store.max_log_offset < 900 << 10:  # stands still where somebody waits
            store.append(StoredMessage("orders", bytes(8_000), born_address=ADDRESS))
        wait_until((tmp_path / "commitlog" / f"{1 << 20:020}").exists)  # a thread makes the file
    finally:
        disk.goes_on.set()
        store.close()


def test_a_roll_flushes_the_folder_of_the_log_and_none_above() -> None:
    disk = SimulatedDisk()
    root = Path("/srv/deep/down/store")
    config = StoreConfig(root, **{**SMALL, "segment_bytes": 16 << 10})  # type: ignore[arg-type]
    store = MessageStore(config, StoppedClock(), store_address=ADDRESS, disk=disk)
    store.open()
    fill(store, 1)
    flushed: list[Path] = []
    disk.refuse = lambda kind, path: flushed.append(path) if kind.startswith("sync") else None
    while store.max_log_offset < 20 << 10:
        store.append(StoredMessage("orders", bytes(1_000), born_address=ADDRESS))
    log = root / "commitlog"
    assert [path for path in flushed if path in (log, *log.parents)] == [log]


def test_a_file_made_soon_after_a_start_is_written_only_where_it_has_disk_space(monkeypatch) -> None:
    monkeypatch.setattr(room_ahead, "FIRST_STRETCH", 8 << 10)
    monkeypatch.setattr(room_ahead, "LAST_STRETCH", 64 << 10)
    disk = SimulatedDisk()
    config = StoreConfig(Path("/srv/store"), **{**SMALL, "segment_bytes": 256 << 10})  # type: ignore[arg-type]
    for end in (150 << 10, 320 << 10):  # the second start begins behind the middle of the first file
        store = MessageStore(config, StoppedClock(), store_address=ADDRESS, disk=disk)
        store.open()
        while store.max_log_offset < end:
            store.append(StoredMessage("orders", bytes(1_000), born_address=ADDRESS))
            assert disk.written_without_room() is None
        store.close()


def test_an_unwritten_stretch_is_zeros_in_memory_and_what_is_beside_it_stays(tmp_path: Path) -> None:
    segment = Segment(tmp_path / "0", 64 << 10)
    segment.create()
    segment.memory[:] = b"x" * segment.size
    segment.prepare_unwritten(5_000, 20_000)
    assert bytes(segment.memory) == b"x" * 5_000 + bytes(15_000) + b"x" * (segment.size - 20_000)
    segment.prepare_unwritten(segment.size - 10, segment.size + 4096)
    assert bytes(segment.memory[-11:]) == b"x" + bytes(10)
    assert segment.path.stat().st_size == segment.size


class SlowWriting(LocalDisk):
    """A disk that writes a few bytes at a time."""

    write = staticmethod(lambda descriptor, content, position: LOCAL_DISK.write(descriptor, content[:1_000], position))


def test_a_cut_leaves_nothing_on_a_disk_that_writes_a_part_of_what_it_is_given(tmp_path: Path) -> None:
    segment = Segment(tmp_path / "0", 64 << 10, disk=SlowWriting())
    segment.create()
    segment.memory[:] = b"x" * segment.size
    segment.clear_from(5_000)
    assert bytes(segment.memory) == b"x" * 5_000 + bytes(segment.size - 5_000)


def test_what_a_disk_refuses_to_make_ready_is_told(tmp_path: Path) -> None:
    path = tmp_path / "0"
    path.write_bytes(bytes(4 * PAGE))
    writing, reading = LOCAL_DISK.open(path), LOCAL_DISK.open(path, write=False)
    memory = LOCAL_DISK.map(writing, 4 * PAGE, scattered=False)
    LOCAL_DISK.make_ready(writing, memory, 0, 4 * PAGE)
    with pytest.raises(OSError, match="Bad file descriptor"):
        LOCAL_DISK.make_ready(reading, memory, 0, PAGE)
    LOCAL_DISK.write_out(writing, 0, 4 * PAGE)
    LOCAL_DISK.close(writing)
    LOCAL_DISK.close(reading)


@pytest.mark.skipif(not speedups.is_active, reason="only compiled parts pause without the interpreter's lock")
def test_a_helper_leaves_the_processor_to_others_again_and_again(tmp_path: Path) -> None:
    segment = Segment(tmp_path / "0", 8 << 20)
    segment.create()
    assert segment.memory is not None
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    segment.prepare_unwritten(0, 8 << 20)
    pauses = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before
    assert pauses >= 4
    segment.prepare_unwritten(0, 8 << 20, b"\1")  # an append waits
    assert resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before - pauses < pauses
    assert resident(segment.path) == 8 << 10


class WaitingDisk(LocalDisk):
    """A disk that prepares pages only while an append waits for them, or once `is_closing` is set."""

    def __init__(self) -> None:
        self.is_closing = False
        self.has_hurried: list[bool] = []

    def make_ready(
        self, descriptor: int, memory: memoryview, position: int, size: int, urgent: Content = b"\0"
    ) -> None:
        give_up = time.monotonic() + PATIENCE_SECONDS
        while not (urgent[0] or self.is_closing) and time.monotonic() < give_up:
            time.sleep(0.0001)
        self.has_hurried.append(bool(urgent[0]))
        super().make_ready(descriptor, memory, position, size, urgent)


def test_an_append_that_waits_for_pages_ends_the_pauses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room_ahead, "FIRST_STRETCH", 16 << 10)
    monkeypatch.setattr(room_ahead, "LAST_STRETCH", 16 << 10)
    disk = WaitingDisk()
    config = StoreConfig(tmp_path, **{**SMALL, "segment_bytes": 256 << 10})  # type: ignore[arg-type]
    store = MessageStore(config, StoppedClock(), store_address=ADDRESS, disk=disk)
    store.open()
    try:
        while store.max_log_offset < 300 << 10:  # into the second file
            store.append(StoredMessage("orders", bytes(8_000), born_address=ADDRESS))
        hurried = disk.has_hurried[:]
    finally:
        disk.is_closing = True
        store.close()
    assert len(hurried) > 10
    assert all(hurried)


def test_after_an_append_has_waited_the_next_steps_are_prepared_without_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room_ahead, "FIRST_STRETCH", 16 << 10)
    monkeypatch.setattr(room_ahead, "LAST_STRETCH", 16 << 10)
    monkeypatch.setattr(room_ahead, "URGENT_STEPS", 3)
    config = StoreConfig(tmp_path, **{**SMALL, "segment_bytes": 512 << 10})  # type: ignore[arg-type]
    disk = WaitingDisk()
    store = MessageStore(config, StoppedClock(), store_address=ADDRESS, disk=disk)
    store.open()
    preallocation = store._log._preallocation

    def next_step() -> Future[None]:
        before = preallocation._allocation
        while preallocation._allocation is before:
            store.append(StoredMessage("orders", bytes(1_000), born_address=ADDRESS))
        assert preallocation._allocation is not None
        return preallocation._allocation

    try:
        next_step()
        step = next_step()  # an append has waited for the step before
        for _ in range(3):
            step.result(PATIENCE_SECONDS)
            assert all(disk.has_hurried)
            step = next_step()
        with pytest.raises(TimeoutError):  # the appends are slow enough for pauses
            step.result(0.02)
    finally:
        disk.is_closing = True
        store.close()
