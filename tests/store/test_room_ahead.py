"""What a log keeps in memory of what was written: little, and nothing is lost by that."""

import mmap
import re
from pathlib import Path

from pyromq.store import room_ahead
from pyromq.store.disk import LOCAL_DISK
from pyromq.store.segment import Segment

from .making import bodies, fill, opened

PAGE = mmap.PAGESIZE


def resident(path: Path) -> int:
    """KiB of a mapped file that this process has in memory."""
    found = re.findall(rf"{re.escape(str(path))}\n(?:.*\n)*?Rss: +(\d+) kB", Path("/proc/self/smaps").read_text())
    return sum(map(int, found))


def test_forgotten_pages_come_back_as_they_were(tmp_path: Path) -> None:
    segment = Segment(tmp_path / "0", 64 * PAGE, disk=LOCAL_DISK)
    segment.create()
    content = bytes(range(256)) * (64 * PAGE // 256)
    segment.memory[:] = content
    assert resident(segment.path) == 64 * PAGE // 1024

    segment.forget(PAGE // 2, 40 * PAGE + 1)  # whole pages only

    assert resident(segment.path) == (64 - 39) * PAGE // 1024
    assert segment.memory == content
    segment.forget(0, -5)
    segment.forget(0, 1 << 40)
    assert resident(segment.path) == 0
    assert segment.memory == content


def test_a_log_keeps_only_its_end_in_memory(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(room_ahead, "KEPT_BEHIND", 4 * PAGE)
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


def test_pages_read_again_are_let_go_again(tmp_path: Path) -> None:
    with opened(tmp_path, segment_bytes=1 << 18) as store:
        fill(store, 2_000)
        bodies(store)
        store._log.files.forget_before(store.max_log_offset)
        assert resident(tmp_path / "commitlog" / f"{0:020}") == 0
        assert len(bodies(store)) == 1_000
