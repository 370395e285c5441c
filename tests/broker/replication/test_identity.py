"""A replica keeps number and incarnation until reported bytes may be gone."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pyromq.broker.replication.identity import Identity
from pyromq.errors import StoreCorrupt, StoreNotWritable, UsageError
from pyromq.store.message_store import MessageStore
from pyromq.store.store_config import FlushMode, StoreConfig
from pyromq.testing import FakeClock
from pyromq.testing.simulated_disk import Killed, SimulatedDisk

ROOT = Path("/data")


def started(disk: SimulatedDisk, flush: FlushMode) -> tuple[Identity, MessageStore]:
    """A replica that has opened its folder, and has not stopped yet."""
    store = MessageStore(
        StoreConfig(ROOT, segment_bytes=4096, consume_queue_entries=8, index_enabled=False, flush=flush),
        FakeClock(),
        store_address=bytes(8),
        disk=disk,
    )
    store.lock()
    identity = Identity(ROOT, disk)
    identity.load(crashed=store.crashed, lost_unflushed=store.lost_unflushed, flush_async=flush is FlushMode.ASYNC)
    store.open()
    return identity, store


def test_a_new_folder_has_an_incarnation_and_no_number() -> None:
    identity, _ = started(SimulatedDisk(), FlushMode.ASYNC)
    assert identity.number is None
    assert 0 < identity.incarnation < 1 << 48
    other, _ = started(SimulatedDisk(), FlushMode.ASYNC)
    assert other.incarnation != identity.incarnation


def test_a_number_is_kept_for_ever() -> None:
    disk = SimulatedDisk()
    identity, store = started(disk, FlushMode.ASYNC)
    identity.take_number(3)
    store.close()
    again, _ = started(disk.after_power_cut(random.Random(1)), FlushMode.ASYNC)
    assert again.number == 3
    again.take_number(3)
    with pytest.raises(UsageError, match=r"/data is the data folder of replica 3, and replicaId .--replica. is 4"):
        again.take_number(4)


ASYNC, SYNC = FlushMode.ASYNC, FlushMode.SYNC


@pytest.mark.parametrize(
    ("starts", "is_kept"),
    [
        ([(ASYNC, "stop"), ASYNC], True),
        ([(ASYNC, "kill"), ASYNC], True),
        ([(ASYNC, "stop, power"), ASYNC], True),
        ([(ASYNC, "power"), ASYNC], False),
        ([(ASYNC, "power"), SYNC], False),
        ([(SYNC, "power"), ASYNC], True),
        ([(SYNC, "kill"), (SYNC, "power"), ASYNC], True),
        # what was reported before the kill may still not be on disk
        ([(ASYNC, "kill"), (SYNC, "power"), SYNC], False),
        ([(ASYNC, "stop"), (SYNC, "power"), SYNC], True),
        ([(SYNC, "stop"), (ASYNC, "kill"), (ASYNC, "power"), SYNC], False),
        # a flush failed: the system may have dropped pages without a power loss
        ([(ASYNC, "failed flush"), ASYNC], False),
    ],
)
def test_an_incarnation_ends_when_reported_bytes_may_be_gone(
    starts: list[tuple[FlushMode, str] | FlushMode], is_kept: bool
) -> None:
    disk, first = SimulatedDisk(), 0
    for start in starts:
        if isinstance(start, FlushMode):
            assert (started(disk, start)[0].incarnation == first) is is_kept
            return
        flush, end = start
        identity, store = started(disk, flush)
        first = first or identity.incarnation
        if end == "failed flush":
            store._directory.mark_unflushed()
        if end.startswith("stop"):
            store.close()
        disk = disk.after_power_cut(random.Random(2)) if end.endswith("power") else disk.after_kill()


def test_a_kill_at_any_write_of_the_start_after_a_power_cut_does_not_keep_the_incarnation() -> None:
    disk = SimulatedDisk()
    before = started(disk, ASYNC)[0].incarnation
    disk = disk.after_power_cut(random.Random(3))
    kills = 0
    while True:
        attempt = disk.after_kill()
        attempt.kill_at = attempt.operations + kills + 1
        try:
            started(attempt, ASYNC)
        except Killed:
            kills += 1
        else:
            assert kills > 10
            return
        assert started(attempt.after_kill(), ASYNC)[0].incarnation != before


def test_a_damaged_file_is_refused_by_name() -> None:
    disk = SimulatedDisk()
    _, store = started(disk, ASYNC)
    store.close()
    descriptor = disk.open(ROOT / "replica")
    disk.write(descriptor, b"x", 12)
    with pytest.raises(StoreCorrupt, match=r"/data/replica cannot be read \(.*wrong checksum"):
        started(disk, ASYNC)


def test_a_full_disk_is_named() -> None:
    disk = SimulatedDisk()

    def refuse(kind: str, path: Path) -> int | None:
        if path.name.startswith("replica") and kind != "open":
            raise OSError(28, "No space left on device")
        return None

    disk.refuse = refuse
    with pytest.raises(StoreNotWritable, match="cannot write /data/replica: No space left"):
        started(disk, ASYNC)
