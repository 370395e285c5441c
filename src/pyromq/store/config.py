"""Settings of the store: sizes of its files, when they are flushed, how much one read gives."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from pyromq.errors import UsageError

_SECOND, _MINUTE, _HOUR = 1_000, 60_000, 3_600_000

# messageDelayLevel of 4.9.8: 1s 5s 10s 30s 1m .. 10m 20m 30m 1h 2h
DELAY_LEVELS_MS = (
    *(seconds * _SECOND for seconds in (1, 5, 10, 30)),
    *(minutes * _MINUTE for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
    *(hours * _HOUR for hours in (1, 2)),
)


class FlushMode(Enum):
    """ASYNC: an append is answered at once, the disk follows. SYNC: it may wait until the disk has it."""

    ASYNC = "ASYNC"
    SYNC = "SYNC"


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """A store folder is bound to its file sizes: they must never change once it holds data."""

    root: Path  # the folder; one process has it at a time
    commit_log_path: Path | None = None  # None: `commitlog` below the root
    segment_bytes: int = 1 << 30  # of a commit log file; 4.9.8's default, as are the next three
    consume_queue_entries: int = 300_000  # of a consume queue file
    index_slots: int = 5_000_000  # of an index file's hash table
    index_entries: int = 20_000_000  # of an index file
    index_enabled: bool = True  # off: no query by key, less work per message
    flush: FlushMode = FlushMode.ASYNC  # whether a confirmed message is on the disk already
    flush_interval_ms: int = 500  # what a power cut may lose when flushing is asynchronous
    flush_least_pages: int = 4  # of 4 KiB; fewer wait for the thorough flush
    flush_thorough_interval_ms: int = 10_000  # then less than `flush_least_pages` is flushed, too
    sync_flush_timeout_ms: int = 5_000  # how long a sender waits for the disk
    queue_flush_interval_ms: int = 1_000  # queues can be made again from the log, so later is no loss
    queue_flush_least_pages: int = 2  # of 4 KiB, as those of the log
    queue_flush_thorough_interval_ms: int = 10_000  # how much log must be read again after a crash
    max_message_bytes: int = 4 << 20  # of a body; a record may be 64 KiB larger
    check_crc_on_recover: bool = True  # compare bodies with their checksums after a crash
    delay_levels_ms: tuple[int, ...] = DELAY_LEVELS_MS  # of levels 1, 2 and so on
    max_transfer_bytes: int = 262_144  # of one read
    max_transfer_count: int = 32  # messages of one read
    cold_transfer_bytes: int = 65_536  # of one read of records that probably have to come from the disk
    cold_transfer_count: int = 8  # messages of such a read
    bulk_transfer_bytes: int = 4 << 20  # of one read by somebody who asks for more than `max_transfer_bytes`; ours
    bulk_transfer_count: int = 16_384  # messages of such a read
    cold_memory_percent: int = 40  # records further behind the end than this share of memory are cold
    reserved_hours: int = 72  # a log file whose newest message is older may go
    expire_hours: tuple[int, ...] = (4,)  # of the day, local time: when old files go while there is space
    retained_bytes: int | None = None  # of log files; older ones go at any hour. None: no limit. Ours
    expire_interval_ms: int = 10_000  # between two rounds of deleting
    disk_expire_percent: int = 75  # a fuller disk lets old files go at any hour
    disk_force_percent: int = 85  # a fuller disk lets the oldest files go whatever their age
    disk_refuse_percent: int = 90  # on a fuller disk no message is taken
    force_expire: bool = True  # off: above `disk_force_percent` age counts all the same

    def __post_init__(self) -> None:
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise UsageError(f"{name} is {value}, must be from {least} to {most}")
        if any(not 0 <= hour <= 23 for hour in self.expire_hours):
            raise UsageError(f"expire_hours is {self.expire_hours}, must be hours of a day, 0 to 23")
        least_retained = 2 * self.segment_bytes
        if self.retained_bytes is not None and self.retained_bytes < least_retained:
            raise UsageError(
                f"retained_bytes is {self.retained_bytes}, must be at least two log files: {least_retained}"
            )
        if not self.delay_levels_ms or min(self.delay_levels_ms) <= 0:
            raise UsageError(f"delay_levels_ms is {self.delay_levels_ms}, must be durations above 0")

    @property
    def log_folder(self) -> Path:
        return self.commit_log_path or self.root / "commitlog"


_INT_MAX = (1 << 31) - 1  # RocketMQ keeps sizes and counts in 32 bits

_RANGES = {
    "segment_bytes": (4096, _INT_MAX),
    "consume_queue_entries": (1, _INT_MAX // 20),
    "index_slots": (1, 100_000_000),
    "index_entries": (2, 80_000_000),
    "flush_interval_ms": (1, 3_600_000),
    "flush_least_pages": (0, 1 << 20),
    "flush_thorough_interval_ms": (1, 3_600_000),
    "sync_flush_timeout_ms": (1, 3_600_000),
    "queue_flush_interval_ms": (1, 3_600_000),
    "queue_flush_least_pages": (0, 1 << 20),
    "queue_flush_thorough_interval_ms": (1, 3_600_000),
    "max_message_bytes": (1, 1 << 30),
    "max_transfer_bytes": (1, 1 << 30),
    "max_transfer_count": (1, 1 << 20),
    "cold_transfer_bytes": (1, 1 << 30),
    "cold_transfer_count": (1, 1 << 20),
    "bulk_transfer_bytes": (1, 15 << 20),  # a frame has at most 16 MiB
    "bulk_transfer_count": (1, 1 << 20),
    "cold_memory_percent": (1, 100),
    "reserved_hours": (0, 24 * 366 * 100),
    "expire_interval_ms": (100, 3_600_000),
    "disk_expire_percent": (1, 100),
    "disk_force_percent": (1, 100),
    "disk_refuse_percent": (1, 100),
}
