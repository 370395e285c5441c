"""A full disk refuses; it never ends the process, which writing a page without room does (SIGBUS)."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyromq.errors import StoreNotWritable
from pyromq.store.disk import LOCAL_DISK, Content
from pyromq.store.message_store import MessageStore
from pyromq.store.store_config import StoreConfig
from pyromq.testing import SimulatedDisk
from pyromq.testing.simulated_disk import BLOCK

from .making import ADDRESS, StoppedClock, bodies, message

TOOLS = ("mkfs.ext4", "tune2fs", "mount", "umount", "setpriv")


def test_an_entry_that_lies_on_two_pages_has_room_for_both() -> None:
    disk = SimulatedDisk()
    config = StoreConfig(Path("/srv/store"), segment_bytes=1 << 20, consume_queue_entries=3_000, index_enabled=False)
    store = MessageStore(config, StoppedClock(), store_address=ADDRESS, disk=disk)
    store.open()
    for _ in range(205):  # the last one lies at bytes 4080 to 4099
        store.append(message(TAGS="all of the hash is in the last four"))
    assert disk.written_without_room() is None
    store.close()


class FullDisk(SimulatedDisk):
    """A disk that is full after `fill`: existing blocks can be written, and no file gets another block."""

    is_full = False

    def fill(self) -> FullDisk:
        """Return this disk as the next process finds it after a kill, full."""
        full = FullDisk()
        full.__dict__.update(self.after_kill().__dict__)
        full.is_full = True
        return full

    def allocate(self, descriptor: int, position: int, size: int) -> None:
        blocks = self._open[descriptor][1].blocks
        if self.is_full and not blocks.issuperset(range(position // BLOCK, (position + size - 1) // BLOCK + 1)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().allocate(descriptor, position, size)

    def write(self, descriptor: int, content: Content, position: int) -> int:
        path, file = self._open[descriptor]
        if self.is_full and position + len(content) > file.size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return super().write(descriptor, content, position)


def a_store(disk: SimulatedDisk, clock: StoppedClock) -> MessageStore:
    config = StoreConfig(Path("/srv/store"), segment_bytes=1 << 20, consume_queue_entries=3_000, index_enabled=False)
    return MessageStore(config, clock, store_address=ADDRESS, disk=disk)


@pytest.mark.parametrize("is_flushed", [True, False])
@pytest.mark.parametrize("ends", [True, False])
def test_a_store_on_a_full_disk_opens_for_reading(*, ends: bool, is_flushed: bool) -> None:
    """A queue's replay at the start begins at another entry than the appends did, and needs no other block."""
    disk, clock = FullDisk(), StoppedClock()
    store = a_store(disk, clock)
    store.open()
    for number in range(300):  # of 409 on two blocks
        store.append(message(number))
        clock.ms += 10_000 if number == 240 else 0
        if number == 250 and is_flushed:
            clock.ms += 61_000
            store.flush_due()  # saves a checkpoint: a start after a kill reads from number 240 on
    if ends:
        store.close()
    store = a_store(disk.fill(), clock)
    store.open()
    assert bodies(store) == [b"body %d" % number for number in range(300)]
    with pytest.raises(StoreNotWritable, match="No space left"):
        for number in range(200):
            store.append(message(number))
    assert disk.written_without_room() is None


def test_a_start_that_needs_another_block_says_what_to_do() -> None:
    disk, clock = FullDisk(), StoppedClock()
    store = a_store(disk, clock)
    store.open()
    store.append(message())
    full = disk.fill()
    full.remove(Path("/srv/store/consumequeue/orders/0/00000000000000000000"))
    store = a_store(full, clock)
    with pytest.raises(StoreNotWritable) as refused:
        store.open()
    assert str(refused.value) == (
        "cannot extend the queue in /srv/store/consumequeue/orders/0: No space left on device;"
        " free space on its disk, or choose another folder"
    )
    store.close()


def test_pages_that_cannot_be_written_are_refused_beforehand(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(4096))
    descriptor = LOCAL_DISK.open(path)
    memory = LOCAL_DISK.map(descriptor, 8192, scattered=False)
    LOCAL_DISK.close(descriptor)
    if not LOCAL_DISK.populate(memory, 0, 4096):
        pytest.skip("this kernel cannot make pages ready")
    with pytest.raises(OSError, match="No space left"):
        LOCAL_DISK.populate(memory, 4096, 4096)  # behind the file's end: touched, it would be a SIGBUS


@pytest.fixture
def small_ext4(tmp_path: Path) -> Iterator[Path]:
    """A file system whose reserved blocks are nobody's."""
    if os.geteuid() or not all(map(shutil.which, TOOLS)):
        pytest.skip("needs root, mount and ext4")
    image, folder = tmp_path / "image", tmp_path / "mounted"
    with image.open("wb") as file:
        file.truncate(48 << 20)
    folder.mkdir()
    subprocess.run(["mkfs.ext4", "-q", "-m", "10", image], check=True)
    subprocess.run(["tune2fs", "-u", "12345", image], check=True, capture_output=True)
    if subprocess.run(["mount", "-o", "loop", image, folder], capture_output=True).returncode:
        pytest.skip("cannot mount")
    yield folder
    subprocess.run(["umount", folder], check=True)


SENDS = """
    import random, sys
    from pathlib import Path
    from pyromq.clock import SystemClock
    from pyromq.errors import StoreNotWritable
    from pyromq.message import StoredMessage
    from pyromq.store.store_config import StoreConfig
    from pyromq.store.message_store import MessageStore

    root, random = Path(sys.argv[1]), random.Random(1)
    config = StoreConfig(root / "data", segment_bytes=1 << 20, index_slots=5_000, index_entries=20_000)
    store = MessageStore(config, SystemClock(), store_address=bytes(8))
    store.open()
    refused = sent = 0
    for fill in range(3):
        for number in range(20_000):
            if number == 5_000:
                with open(root / "fill", "wb", buffering=0) as other:
                    for size in (65536, 1024, 1):
                        try:
                            while other.write(bytes(size)):
                                pass
                        except OSError:
                            pass
            try:
                topic, queue_id = f"topic-{random.randrange(25)}", random.randrange(2)
                store.append(StoredMessage(topic, b"x", f"KEYS\\x01{number}", queue_id, born_address=bytes(8)))
                sent += 1
            except StoreNotWritable:
                refused += 1
            if number % 100 == 0:
                store.index_step(0.001)
        (root / "fill").unlink()
    store.close()
    print(sent > 15_000, refused > 1_000)
"""


@pytest.mark.slow
def test_another_program_that_takes_all_room_ends_no_broker(small_ext4: Path) -> None:
    unprivileged = ["setpriv", "--bounding-set", "-sys_resource", "--inh-caps", "-sys_resource"]
    program = [*unprivileged, sys.executable, "-c", textwrap.dedent(SENDS), str(small_ext4)]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout) == (0, "True True\n"), ended.stderr[-2_000:]


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "mounted"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "none", folder]
    if os.geteuid() or shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs root and mount")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


STARTS = """
    import sys
    from pathlib import Path
    from pyromq.clock import SystemClock
    from pyromq.errors import StoreNotWritable
    from pyromq.message import StoredMessage
    from pyromq.store.store_config import StoreConfig
    from pyromq.store.message_store import MessageStore

    config = StoreConfig(Path(sys.argv[1]), segment_bytes=1 << 20, index_slots=5_000, index_entries=20_000)
    store = MessageStore(config, SystemClock(), store_address=bytes(8))
    try:
        store.open()
    except StoreNotWritable as error:
        print(error)
    for number in range(int(sys.argv[2])):
        store.append(StoredMessage("orders", bytes(300), "KEYS\\x01k", number % 2, born_address=bytes(8)))
    if sys.argv[3] == "close":
        store.close()
    else:
        import os
        os.kill(os.getpid(), 9)
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", ["close", "kill"])
def test_a_start_without_any_room_reads_no_hole(small_tmpfs: Path, end: str) -> None:
    """On tmpfs even reading a mapped page that was never written takes room."""

    def start(count: int, how: str) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-c", textwrap.dedent(STARTS), str(small_tmpfs / "data"), str(count), how]
        return subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)

    start(408, end)  # entries up to a page's end
    with (small_tmpfs / "fill").open("wb", buffering=0) as other, pytest.raises(OSError, match="No space"):
        while other.write(bytes(4096)):
            pass
    started = start(0, "close")
    assert (started.returncode, started.stdout) == (0, ""), started.stderr[-1_000:]
    (small_tmpfs / "fill").unlink()
    assert start(1, "close").stdout == ""
