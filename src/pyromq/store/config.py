"""Settings of the store: sizes of its files, when they are flushed and deleted, how much one read returns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from pyromq.errors import UsageError
from pyromq.settings import Change, check_ranges, parse_number, parse_path, setting, settings_of
from pyromq.store.queue.consume_queue import ENTRY_BYTES

_UNIT_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000}


def _parse_delays(text: str) -> tuple[int, ...]:
    delays = []
    for word in text.split():
        if word[-1] not in _UNIT_MS or not word[:-1].isdigit():
            raise ValueError(f"{word!r} is no delay; write a number and s, m, h or d")
        delays.append(int(word[:-1]) * _UNIT_MS[word[-1]])
    return tuple(delays)


def _write_delays(levels: tuple[int, ...]) -> str:
    words = []
    for milliseconds in levels:
        unit = next((unit for unit, ms in _UNIT_MS.items() if milliseconds % ms == 0), "s")
        words.append(f"{milliseconds // _UNIT_MS[unit]}{unit}")
    return " ".join(words)


# messageDelayLevel of 4.9.8.
DELAY_LEVELS_MS = _parse_delays("1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h")


class FlushMode(Enum):
    """ASYNC: an append is answered at once, the disk follows. SYNC: the answer may wait for the disk."""

    ASYNC = "ASYNC"
    SYNC = "SYNC"


def _parse_flush(text: str) -> FlushMode:
    if text not in ("ASYNC_FLUSH", "SYNC_FLUSH"):
        raise ValueError("write ASYNC_FLUSH or SYNC_FLUSH")
    return FlushMode[text.removesuffix("_FLUSH")]


def _write_flush(flush: FlushMode) -> str:
    return f"{flush.name}_FLUSH"


def _parse_entries(text: str) -> int:
    """Java rounds the file size up to whole entries."""
    return -(-parse_number(text) // ENTRY_BYTES)


def _write_entries(entries: int) -> str:
    return str(entries * ENTRY_BYTES)


def _parse_hours(text: str) -> tuple[int, ...]:
    return tuple(parse_number(word.strip()) for word in text.split(";") if word.strip())


def _write_hours(hours: tuple[int, ...]) -> str:
    return ";".join(f"{hour:02}" for hour in hours)


_NEXT = Change.NEXT_START
_INT_MAX = (1 << 31) - 1  # RocketMQ keeps sizes and counts in 32 bits
_TIME = (1, 3_600_000)
_PAGES = (0, 1 << 20)
_BYTES = (1, 1 << 30)
_COUNT = (1, 1 << 20)
_PERCENT = (1, 100)


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """A store folder is bound to its file sizes: they must never change once it holds data."""

    root: Path  # the folder; one process has it at a time
    # None: `commitlog` below the root.
    commit_log_path: Path | None = setting(None, "storePathCommitLog", read=parse_path)
    # Of a commit log file; 4.9.8's default, as are the next three.
    segment_bytes: int = setting(1 << 30, "mappedFileSizeCommitLog", range=(4096, _INT_MAX), change=_NEXT)
    # Of a consume queue file; in properties its size in bytes.
    consume_queue_entries: int = setting(
        300_000,
        "mappedFileSizeConsumeQueue",
        range=(1, _INT_MAX // ENTRY_BYTES),
        change=_NEXT,
        read=_parse_entries,
        write=_write_entries,
    )
    # Of an index file's hash table.
    index_slots: int = setting(5_000_000, "maxHashSlotNum", range=(1, 100_000_000), change=_NEXT)
    index_entries: int = setting(20_000_000, "maxIndexNum", range=(2, 80_000_000), change=_NEXT)  # of an index file
    # Off: no query by key, less work per message.
    index_enabled: bool = setting(True, "messageIndexEnable", change=_NEXT)
    # Whether a confirmed message is on the disk already.
    flush: FlushMode = setting(FlushMode.ASYNC, "flushDiskType", change=_NEXT, read=_parse_flush, write=_write_flush)
    # What a power loss may take when flushing is asynchronous.
    flush_interval_ms: int = setting(500, "flushIntervalCommitLog", range=_TIME, change=_NEXT)
    # Of 4 KiB; fewer wait for the thorough flush.
    flush_least_pages: int = setting(4, "flushCommitLogLeastPages", range=_PAGES, change=_NEXT)
    # Then less than `flush_least_pages` is flushed, too.
    flush_thorough_interval_ms: int = setting(10_000, "flushCommitLogThoroughInterval", range=_TIME, change=_NEXT)
    sync_flush_timeout_ms: int = setting(5_000, "syncFlushTimeout", range=_TIME, change=_NEXT)  # of a waiting sender
    queue_flush_interval_ms: int = setting(1_000, range=_TIME)  # late is no loss: queues can be rebuilt from the log
    queue_flush_least_pages: int = setting(2, range=_PAGES)  # of 4 KiB, as those of the log
    queue_flush_thorough_interval_ms: int = setting(10_000, range=_TIME)  # how much log is read again after a crash
    max_message_bytes: int = setting(4 << 20, range=_BYTES)  # of a body; a record may be 64 KiB larger
    # Compare bodies with their checksums after a crash.
    check_crc_on_recover: bool = setting(True, "checkCRCOnRecover", change=_NEXT)
    # Of levels 1, 2 and so on.
    delay_levels_ms: tuple[int, ...] = setting(
        DELAY_LEVELS_MS, "messageDelayLevel", change=_NEXT, read=_parse_delays, write=_write_delays
    )
    max_transfer_bytes: int = setting(262_144, range=_BYTES)  # of one read
    max_transfer_count: int = setting(32, range=_COUNT)  # messages of one read
    cold_transfer_bytes: int = setting(65_536, range=_BYTES)  # of one read of records that are probably not resident
    cold_transfer_count: int = setting(8, range=_COUNT)  # messages of such a read
    # Of one read by a client that asks for more than `max_transfer_bytes`; a frame has at most 16 MiB. Ours: a client
    # that finds this setting may ask for large pulls.
    bulk_transfer_bytes: int = setting(4 << 20, "bulkTransferBytes", range=(1, 15 << 20), change=_NEXT)
    bulk_transfer_count: int = setting(16_384, "bulkTransferCount", range=_COUNT, change=_NEXT)  # of such a read
    cold_memory_percent: int = setting(40, range=_PERCENT)  # records further behind the end than this share are cold
    # Retention may delete a log file whose newest message is older.
    reserved_hours: int = setting(72, "fileReservedTime", range=(0, 24 * 366 * 100), change=_NEXT)
    # Hours of the day, local time, at which old files are deleted while there is space.
    expire_hours: tuple[int, ...] = setting((4,), "deleteWhen", change=_NEXT, read=_parse_hours, write=_write_hours)
    # Of log files; older ones are deleted at any hour. None: no limit. Ours.
    retained_bytes: int | None = setting(None, "retentionBytes", change=_NEXT, read=parse_number)
    # Between two rounds of deleting.
    expire_interval_ms: int = setting(10_000, "cleanResourceInterval", range=(100, 3_600_000), change=_NEXT)
    # Of the disk that is used. Above it old files are deleted at any hour.
    disk_expire_percent: int = setting(75, "diskMaxUsedSpaceRatio", range=_PERCENT, change=_NEXT)
    # Above it the oldest files are deleted whatever their age. A system property upstream, in parts of 1.
    disk_force_percent: int = setting(85, "diskSpaceCleanForciblyRatio", range=_PERCENT, change=_NEXT)
    # Above it no message is taken. A system property upstream, in parts of 1.
    disk_refuse_percent: int = setting(90, "diskSpaceWarningLevelRatio", range=_PERCENT, change=_NEXT)
    # Off: above `disk_force_percent` age counts all the same.
    force_expire: bool = setting(True, "cleanFileForciblyEnable", change=_NEXT)

    def __post_init__(self) -> None:
        check_ranges(self)
        called = {field: each.called for field, each in settings_of(StoreConfig).items()}
        if any(not 0 <= hour <= 23 for hour in self.expire_hours):
            raise UsageError(f"{called['expire_hours']} is {self.expire_hours}, must be hours of a day, 0 to 23")
        least = 2 * self.segment_bytes
        if self.retained_bytes is not None and self.retained_bytes < least:
            raise UsageError(
                f"{called['retained_bytes']} is {self.retained_bytes}, must be at least two log files: {least}"
            )
        if not self.delay_levels_ms or min(self.delay_levels_ms) <= 0:
            raise UsageError(f"{called['delay_levels_ms']} is {self.delay_levels_ms}, must be durations above 0")

    @property
    def log_folder(self) -> Path:
        return self.commit_log_path or self.root / "commitlog"
