"""Small stores for tests: a clock that stands still, files of a few entries, messages with little to say."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyromq.message import StoredMessage, encode_properties
from pyromq.store.message_store import MessageStore
from pyromq.store.queue.consume_queue import FILLER_SIZE
from pyromq.store.store_config import StoreConfig
from pyromq.testing import SimulatedDisk

ADDRESS = bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F))
NOON_MS = 1_700_000_000_000
TOPIC = "orders"


class StoppedClock:
    """Time passes when a test says so."""

    def __init__(self) -> None:
        self.ms = NOON_MS

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000

    async def sleep(self, seconds: float) -> None:
        self.ms += int(seconds * 1000)


SMALL = {"segment_bytes": 4096, "consume_queue_entries": 8, "index_slots": 16, "index_entries": 32}


def small_store(root: Path, clock: StoppedClock | None = None, **changes: object) -> MessageStore:
    config = StoreConfig(root, **{**SMALL, **changes})  # type: ignore[arg-type]
    return MessageStore(config, clock or StoppedClock(), store_address=ADDRESS)


@contextmanager
def opened(root: Path, clock: StoppedClock | None = None, **changes: object) -> Iterator[MessageStore]:
    store = small_store(root, clock, **changes)
    try:
        store.open()
        yield store
    finally:
        store.close()


def message(number: int = 0, *, topic: str = TOPIC, queue_id: int = 0, **properties: str) -> StoredMessage:
    return StoredMessage(
        topic, b"body %d" % number, encode_properties(properties), queue_id, born_ms=NOON_MS - 1, born_address=ADDRESS
    )


def fill(store: MessageStore, count: int, *, first: int = 0, queues: int = 2) -> list[StoredMessage]:
    """Append messages with ids, keys and tags, round robin."""
    messages = [
        message(
            n, queue_id=n % queues, UNIQ_KEY=f"{n:032X}", KEYS=f"k{n} even" if n % 2 == 0 else f"k{n}", TAGS=f"t{n % 3}"
        )
        for n in range(first, first + count)
    ]
    for each in messages:
        store.append(each)
    return messages


def bodies(store: MessageStore, queue_id: int = 0, *, topic: str = TOPIC) -> list[bytes]:
    """Return the bodies of a queue, from its first message to its last."""
    found = []
    for offset in range(store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)):
        [entry] = store.entries(topic, queue_id, offset, 1)
        if entry.size == FILLER_SIZE:  # passed over by pulls
            continue
        stored = store.message_at(entry.log_offset)
        assert stored is not None
        found.append(stored.body)
    return found


def crashed_copy(root: Path, target: Path, *, power_loss: bool = False) -> Path:
    """Copy an open store: what a killed process leaves behind. After a power cut nobody knows who was there."""
    # A thread may be writing a table: one that is not in place yet counts for nothing, and may be gone when copied.
    shutil.copytree(root, target, ignore=shutil.ignore_patterns("*.tmp"))
    if power_loss:
        (target / "abort").write_bytes(b"")
    return target


def settle(disk: SimulatedDisk) -> None:
    """Let the kernel write everything to the disk, as it does after half a minute."""
    for path in disk.paths():
        descriptor = disk.open(path)
        disk.sync(descriptor)
        disk.close(descriptor)
    for folder in {parent for path in disk.paths() for parent in path.parents}:
        disk.sync_folder(folder)


def take_away(folder: Path) -> None:
    """Delete a folder of an open store at once: while files are deleted one by one, a thread may make another."""
    shutil.rmtree(folder.rename(folder.with_name(f"{folder.name} taken away")))


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
