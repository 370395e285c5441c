"""Settings of the store: file sizes, flush intervals, retention, and limits of reads."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from pyromq.errors import UsageError
from pyromq.server_settings import Change, check_ranges, parse_number, parse_path, setting, settings_of
from pyromq.store.queue.consume_queue import ENTRY_BYTES

_UNIT_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000}


def _parse_delays(text: str) -> tuple[int, ...]:
    delays = []
    for word in text.split():
        if word[-1] not in _UNIT_MS or not word[:-1].isdigit():
            raise ValueError(f"{word!r} is not a delay; write a number and s, m, h or d")
        delays.append(int(word[:-1]) * _UNIT_MS[word[-1]])
    return tuple(delays)


def _write_delays(levels: tuple[int, ...]) -> str:
    words = []
    for milliseconds in levels:
        unit = next((unit for unit, ms in _UNIT_MS.items() if milliseconds % ms == 0), "s")
        words.append(f"{milliseconds // _UNIT_MS[unit]}{unit}")
    return " ".join(words)


# Delay in ms of each delay level, from level 1 on: the default messageDelayLevel of RocketMQ 4.9.8.
DELAY_LEVELS_MS = _parse_delays("1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h")


class FlushMode(Enum):
    """When a stored message is flushed to disk. ASYNC: the reply to a send does not wait for the flush.

    SYNC: the reply waits for the flush, unless the message's property WAIT is false.
    """

    ASYNC = "ASYNC"
    SYNC = "SYNC"


def _parse_flush(text: str) -> FlushMode:
    if text not in ("ASYNC_FLUSH", "SYNC_FLUSH"):
        raise ValueError("write ASYNC_FLUSH or SYNC_FLUSH")
    return FlushMode[text.removesuffix("_FLUSH")]


def _write_flush(flush: FlushMode) -> str:
    return f"{flush.name}_FLUSH"


def _parse_entries(text: str) -> int:
    """Return the entries of a queue file of this many bytes, rounded up to whole entries, as Java does."""
    return -(-parse_number(text) // ENTRY_BYTES)


def _write_entries(entries: int) -> str:
    return str(entries * ENTRY_BYTES)


def _parse_hours(text: str) -> tuple[int, ...]:
    return tuple(parse_number(word.strip()) for word in text.split(";") if word.strip())


def _write_hours(hours: tuple[int, ...]) -> str:
    return ";".join(f"{hour:02}" for hour in hours)


_NEXT, _LIVE = Change.NEXT_START, Change.AT_ONCE  # only `Retention` reads its settings again
_INT_MAX = (1 << 31) - 1  # limit of a size or count: RocketMQ keeps them in 32 bits
_TIME = (1, 3_600_000)
_PAGES = (0, 1 << 20)
_BYTES = (1, 1 << 30)
_COUNT = (1, 1 << 20)
_PERCENT = (1, 100)


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Settings of a store. The file sizes of a data folder must never change once the folder holds data."""

    root: Path  # data folder of the store; only one process at a time can open the folder
    # Folder of the commit log; None: `commitlog` in the data folder.
    commit_log_path: Path | None = setting(None, "storePathCommitLog", read=parse_path)
    # Size of a commit log file. Default of RocketMQ 4.9.8, like the next three.
    segment_bytes: int = setting(1 << 30, "mappedFileSizeCommitLog", range=(4096, _INT_MAX), change=_NEXT)
    # Entries in a consume queue file. In a properties file the value is the file size in bytes.
    consume_queue_entries: int = setting(
        300_000,
        "mappedFileSizeConsumeQueue",
        range=(1, _INT_MAX // ENTRY_BYTES),
        change=_NEXT,
        read=_parse_entries,
        write=_write_entries,
    )
    # Slots in the hash table of a key index file.
    index_slots: int = setting(5_000_000, "maxHashSlotNum", range=(1, 100_000_000), change=_NEXT)
    # Entries in a key index file.
    index_entries: int = setting(20_000_000, "maxIndexNum", range=(2, 80_000_000), change=_NEXT)
    # Whether messages are indexed by key. False: queries by key find nothing, and a message costs less work.
    index_enabled: bool = setting(True, "messageIndexEnable", change=_NEXT)
    # Whether the reply to a send waits until the message is on disk.
    flush: FlushMode = setting(FlushMode.ASYNC, "flushDiskType", change=_NEXT, read=_parse_flush, write=_write_flush)
    # Time between two flushes of the commit log. With ASYNC a power loss loses the messages since the last flush.
    flush_interval_ms: int = setting(500, "flushIntervalCommitLog", range=_TIME, change=_NEXT)
    # Least unflushed pages (4 KiB) for a flush of the log; fewer wait for `flush_thorough_interval_ms`.
    flush_least_pages: int = setting(4, "flushCommitLogLeastPages", range=_PAGES, change=_NEXT)
    # Time after which the log is flushed even if fewer than `flush_least_pages` pages are unflushed.
    flush_thorough_interval_ms: int = setting(10_000, "flushCommitLogThoroughInterval", range=_TIME, change=_NEXT)
    # Limit of a sender's wait for a flush. After this time the reply reports FLUSH_DISK_TIMEOUT.
    sync_flush_timeout_ms: int = setting(5_000, "syncFlushTimeout", range=_TIME, change=_NEXT)
    # Time between two flushes of consume queues. A late flush loses nothing: the log can rebuild queues.
    queue_flush_interval_ms: int = setting(1_000, range=_TIME)
    queue_flush_least_pages: int = setting(2, range=_PAGES)  # least unflushed pages (4 KiB) for a flush of a queue
    # Time between two flushes of all consume queues: a start after a crash reads the log of this time again.
    queue_flush_thorough_interval_ms: int = setting(10_000, range=_TIME)
    max_message_bytes: int = setting(4 << 20, range=_BYTES)  # limit of a message's body; a record may be 64 KiB larger
    # Whether a start compares the message bodies that it reads with their checksums.
    check_crc_on_recover: bool = setting(True, "checkCRCOnRecover", change=_NEXT)
    # Delays of the delay levels 1, 2 and so on.
    delay_levels_ms: tuple[int, ...] = setting(
        DELAY_LEVELS_MS, "messageDelayLevel", change=_NEXT, read=_parse_delays, write=_write_delays
    )
    max_transfer_bytes: int = setting(262_144, range=_BYTES)  # limit of one read, such as a pull
    max_transfer_count: int = setting(32, range=_COUNT)  # limit of messages of one read
    cold_transfer_bytes: int = setting(65_536, range=_BYTES)  # limit of one read of records probably not in memory
    cold_transfer_count: int = setting(8, range=_COUNT)  # messages of one read of records probably not in memory
    # Limit of one read for a client that asks for more than `max_transfer_bytes`; a frame has at most 16 MiB.
    # RocketMQ has no such setting: a client that finds this setting may ask for large pulls.
    bulk_transfer_bytes: int = setting(4 << 20, "bulkTransferBytes", range=(1, 15 << 20), change=_NEXT)
    # Limit of messages of one read for a client that asks for more than `max_transfer_bytes`.
    bulk_transfer_count: int = setting(16_384, "bulkTransferCount", range=_COUNT, change=_NEXT)
    # Share of the machine's memory: records further from the log's end count as probably not in memory.
    cold_memory_percent: int = setting(40, range=_PERCENT)
    # Retention may delete a log file whose newest message is older than this.
    reserved_hours: int = setting(72, "fileReservedTime", range=(0, 24 * 366 * 100), change=_LIVE)
    # Hours of the day (local time) at which files older than `reserved_hours` are deleted.
    expire_hours: tuple[int, ...] = setting((4,), "deleteWhen", change=_LIVE, read=_parse_hours, write=_write_hours)
    # Limit of all log files: the oldest files are deleted at any hour. None: no limit. RocketMQ has no such setting.
    retained_bytes: int | None = setting(None, "retentionBytes", change=_LIVE, read=parse_number)
    # Time between two rounds in which retention deletes files.
    expire_interval_ms: int = setting(10_000, "cleanResourceInterval", range=(100, 3_600_000), change=_LIVE)
    # Disk use above which files older than `reserved_hours` are deleted at any hour.
    disk_expire_percent: int = setting(75, "diskMaxUsedSpaceRatio", range=_PERCENT, change=_LIVE)
    # Disk use above which the oldest files are deleted at any age. RocketMQ reads a system property, as a fraction.
    disk_force_percent: int = setting(85, "diskSpaceCleanForciblyRatio", range=_PERCENT, change=_LIVE)
    # Disk use above which messages are refused. RocketMQ reads a system property, as a fraction.
    disk_refuse_percent: int = setting(90, "diskSpaceWarningLevelRatio", range=_PERCENT, change=_LIVE)
    # False: above `disk_force_percent` only files older than `reserved_hours` are deleted.
    force_expire: bool = setting(True, "cleanFileForciblyEnable", change=_LIVE)

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
