"""Deletes old log files by age, by bytes and by disk use, and refuses messages while the disk is too full.

Whole files are deleted, the oldest first, never the file being written. The age of a file is the age of its newest
message by store time, so a copied store keeps its age. Consume queues and key index follow in small steps. No file with
bytes from log offset `keep_from` on is deleted, as such files hold messages to deliver. Bytes that were cut off a
replica's log (`log_cut`) are deleted by age.

Source: RocketMQ 4.9.8, CleanCommitLogService and CleanConsumeQueueService of DefaultMessageStore. RocketMQ uses the
modification time, and has no limit of bytes and no `keep_from`.
"""

from __future__ import annotations

import contextlib
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from pyromq.clock import Clock
from pyromq.logs import logger_of
from pyromq.plural import counted
from pyromq.slow_work import PagesToLoad
from pyromq.store.disk import LOCAL_DISK, Disk
from pyromq.store.index.key_index import KeyIndex
from pyromq.store.log.commit_log import CommitLog, Residency
from pyromq.store.log.segmented_log import Segment
from pyromq.store.log_cut import kept_files
from pyromq.store.queue.consume_queue import ConsumeQueue
from pyromq.store.queue.queue_table import QueueTable
from pyromq.store.store_config import StoreConfig
from pyromq.store.worker import Worker, worker

logger = logger_of(__name__)


FILES_A_ROUND = 10  # limit of files deleted in a round. Source: MappedFileQueue.deleteExpiredFileByTime
MANUAL_ROUNDS = 20  # rounds that `expire_now` starts. Source: CleanCommitLogService.MANUAL_DELETE_FILE_MAX_TIMES
MEASURE_SECONDS = 1.0  # time between two measurements of the disk use
_QUEUES_PER_CHECK = 8  # queues trimmed between two readings of the clock
_HOUR_MS = 3_600_000


class Retention:
    """Deletes expired log files and what leads to them. Only the store's thread may call `step` and `expire_now`.

    `sync_entries` flushes the queues before log files are deleted: afterwards only queue entries know the queue
    offsets. Each function of `needs` returns the log offset from which a table still needs the log. `measure` returns
    the disk use of a path.
    """

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        index: KeyIndex,
        *,
        residency: Residency,
        config: StoreConfig,
        clock: Clock,
        disk: Disk = LOCAL_DISK,
        sync_entries: Callable[[], None] = lambda: None,
    ) -> None:
        self.needs: list[Callable[[], int]] = []
        # Log offset before which the master has deleted its log. A replica deletes whole files up to it at any age.
        self.expired_to = 0
        self.measure = measured
        self.trims = 0  # how often all queues were trimmed, after log files were deleted
        self._log = log
        self._queues = queues
        self._index = index
        self._residency = residency
        self.config = config  # may be replaced by a configuration with other settings of retention
        self._clock = clock
        self._disk = disk
        self._removal = Removal(disk, before=sync_entries, is_used=self._is_used)
        self._use: DiskUse | None = None
        self._measured_at = self._round_at = float("-inf")
        self._to_trim: Iterator[ConsumeQueue] | None = None  # queues that are left to trim
        self._rounds_by_hand = 0
        self._age_by_hand_ms: int | None = None
        self._is_suspended = False

    def to_load(self) -> PagesToLoad:
        """Return the pages to load before the next check of file ages: record heads that are not resident."""
        try:
            return self._residency.heads_to_load(segment.base + segment.size for segment in self._candidates)
        except FileNotFoundError:  # an operator deleted a log file by hand
            return []

    def step(self, budget_seconds: float) -> bool:
        """Measure the disk, delete expired files and trim queues for up to `budget_seconds`.

        Return True if no queue is left to trim.
        """
        now = self._clock.monotonic()
        if now - self._measured_at >= MEASURE_SECONDS:
            self._measured_at = now
            self._measure_disk()
        if (now - self._round_at) * 1000 >= self.config.expire_interval_ms:
            self._round_at = now
            self._drop(self._expired())
            self._removal.add(self._expired_cuts())
            self._rounds_by_hand = max(0, self._rounds_by_hand - 1)
        done = self._trim_queues(budget_seconds)
        self._removal.start()
        return done

    def expire_now(self, age_ms: int | None = None) -> int:
        """Delete expired files at any hour, now and in the next rounds. Return the number of files deleted now.

        With `age_ms`, files older than `age_ms` are deleted, instead of files older than `reserved_hours`.
        """
        self._age_by_hand_ms = age_ms
        self._rounds_by_hand = MANUAL_ROUNDS
        return self._drop(self._expired())

    def close(self) -> None:
        """Trim all queues and finish all deletions. Blocks."""
        while not self._trim_queues(None):
            pass
        self._removal.close()

    # -- the disk

    def _measure_disk(self) -> None:
        """Measure the disk use. Refuse messages while the use exceeds `disk_refuse_percent`."""
        paths = {self.config.root, self.config.log_folder}
        try:
            uses = [self.measure(path) for path in paths if path.is_dir()]
        except OSError as error:
            logger.warning("cannot measure the disk of %s: %s", self.config.root, error)
            return
        self._use = max(uses, key=lambda use: use.percent, default=None)
        full = self._use is not None and self._use.percent > self.config.disk_refuse_percent
        text = self._refusal() if full else ""
        if full and not self._is_suspended:
            logger.warning(text)
        elif self._is_suspended and not full:
            logger.warning("the disk has enough free space again: messages are accepted")
        self._is_suspended = full
        self._log.suspend(text)

    def _refusal(self) -> str:
        use = self._use
        assert use is not None
        return (
            f"the disk of {use.path} is {use.percent} % full ({_readable(use.used)} used, {_readable(use.free)} free);"
            f" above {self.config.disk_refuse_percent} % (diskSpaceWarningLevelRatio) messages are refused:"
            f" {self._advice()}"
        )

    def keep_from(self) -> int:
        """Return the first log offset that is still needed to deliver messages; the log's end if nothing is needed."""
        return min((need() for need in self.needs), default=self._log.end)

    def _advice(self) -> str:
        """Return advice for the operator on how to free disk space."""
        files = self._log.files.segments[:-1]
        keep_from = self.keep_from()
        waiting = sum(segment.base + segment.size > keep_from for segment in files)
        free = len(files) - waiting
        if self._is_forced and free:
            return f"the oldest of {free} log files are being deleted; messages are accepted once enough space is free"
        if free:
            return (
                f"{counted(free, 'log file is', 'log files are')} younger than fileReservedTime"
                f" ({self.config.reserved_hours} h); "
                "`pyromq store expire --older-than HOURS` deletes younger ones, or free space on that disk"
            )
        if waiting:
            needed = counted(waiting, "older log file holds", "older log files hold")
            return f"{needed} scheduled messages or undecided transactions; free space on that disk"
        return "the store has one log file only, which cannot be deleted; free space on that disk"

    @property
    def _percent(self) -> int:
        return 0 if self._use is None else self._use.percent

    @property
    def _is_forced(self) -> bool:
        return self.config.force_expire and self._percent > self.config.disk_force_percent

    # -- the log

    def _expired(self) -> int:
        """Return the number of oldest log files that this round deletes."""
        segments = self._log.files.segments
        keep_from, age_ms = self.keep_from(), self._age_ms()
        too_many = 0
        if (limit := self.config.retained_bytes) is not None:
            too_many = len(segments) - limit // self.config.segment_bytes
        count, to_free = 0, self._bytes_to_free()
        for segment in self._candidates:
            end = segment.base + segment.size
            is_due = end <= self.expired_to or to_free > 0 or count < too_many or self._is_older(end, age_ms)
            if end > keep_from or not is_due:
                break
            count += 1
            to_free -= segment.size
        return count

    def _bytes_to_free(self) -> int:
        """Return the bytes to delete at any age, so that the disk use is `disk_force_percent`; 0 if it is lower.

        RocketMQ deletes ten files in this case, also if one would be enough.
        """
        if self._use is None or not self._is_forced:
            return 0
        return self._use.used - (self._use.used + self._use.free) * self.config.disk_force_percent // 100

    def _expired_cuts(self) -> list[Segment]:
        """Return the files of cut bytes that were last written more than `reserved_hours` ago."""
        latest_ms = self._clock.now_ms() - self.config.reserved_hours * _HOUR_MS
        paths = [kept.path for kept in kept_files(self.config.root, self._disk)]
        with contextlib.suppress(OSError):  # a file that was deleted meanwhile
            return [Segment(path, 0, disk=self._disk) for path in paths if self._disk.changed_ms(path) < latest_ms]
        return []

    @property
    def _candidates(self) -> list[Segment]:
        return self._log.files.segments[:-1][:FILES_A_ROUND]

    def _age_ms(self) -> int | None:
        """Return the age (ms) above which this round deletes files; None if this round deletes no file for its age."""
        if self._rounds_by_hand and self._age_by_hand_ms is not None:
            return self._age_by_hand_ms
        hour = datetime.fromtimestamp(self._clock.now_ms() / 1000).hour
        wanted = hour in self.config.expire_hours or self._percent > self.config.disk_expire_percent
        return self.config.reserved_hours * _HOUR_MS if wanted or self._rounds_by_hand else None

    def _is_older(self, end: int, age_ms: int | None) -> bool:
        """Return True if all messages before log offset `end`, where a file begins, are older than `age_ms`."""
        if age_ms is None:
            return False
        stored_ms = None
        with contextlib.suppress(FileNotFoundError):  # an operator deleted the next file by hand
            stored_ms = self._log.store_ms_at(end)
        if stored_ms is None:  # no record begins there yet, or the record is damaged or lost
            segment = self._log.files.find(end - 1)
            assert segment is not None
            try:
                stored_ms = segment.changed_ms()
            except FileNotFoundError:
                return True
        return self._clock.now_ms() - stored_ms > age_ms

    def _drop(self, count: int) -> int:
        if count:
            expired = [self._log.files.drop_first() for _ in range(count)]
            names = ", ".join(segment.path.name for segment in expired)
            logger.info("expired: %s of %s (the disk is %d %% full)", names, self._log.files.folder, self._percent)
            self._removal.add(expired)
            self._removal.add(self._index.drop_before(self._log.min_offset))
            self._to_trim = iter(list(self._queues))
        return count

    def _trim_queues(self, budget_seconds: float | None) -> bool:
        """Drop queue entries of deleted records for up to `budget_seconds`. Return True if no queue is left."""
        if self._to_trim is None:
            return True
        deadline = None if budget_seconds is None else self._clock.monotonic() + budget_seconds
        log_begin = self._log.min_offset
        for count, queue in enumerate(self._to_trim, 1):
            self._removal.add(queue.drop_before(log_begin))
            if count % _QUEUES_PER_CHECK == 0 and deadline is not None and self._clock.monotonic() >= deadline:
                return False
        self._to_trim = None
        self.trims += 1
        return True

    def _is_used(self, file: Segment) -> bool:
        """Return True if a queue has a new file at the path of an expired file. Thread-safe.

        The topic was deleted and created again, or the master's log lets the queue begin again.
        """
        topic, queue_id = file.path.parent.parent.name, file.path.parent.name
        queue = self._queues.find(topic, int(queue_id)) if queue_id.isdecimal() else None
        new = None if queue is None else queue.files.find(file.base)
        return new is not None and new.path == file.path


def _readable(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.0f} MiB"


class DiskUse(NamedTuple):
    """The use of the disk that holds `path`: `used` and `free` bytes. `free` excludes space reserved for root."""

    path: Path
    used: int
    free: int

    @property
    def percent(self) -> int:
        """Used space in percent, rounded up as `df` does.

        Source: RocketMQ 4.9.8, UtilAll.getDiskPartitionSpaceUsedPercent.
        """
        return -(-self.used * 100 // max(self.used + self.free, 1))


def measured(path: Path) -> DiskUse:
    """Return the use of the disk that holds a path. Raises `OSError`."""
    usage = shutil.disk_usage(path)
    return DiskUse(path, usage.used, usage.free)


def around(folder: Path) -> tuple[int, int, int]:
    """Return total, used and free bytes of the disk that holds a folder.

    If the folder is missing, its nearest existing parent folder is measured.
    """
    return shutil.disk_usage(next(each for each in (folder, *folder.absolute().parents) if each.is_dir()))


class Removal:
    """Deletes files in a thread, in the order of `add`. A file that cannot be deleted delays the later files.

    So a log never gets holes. The thread calls `before` before each deletion. A file for which `is_used` returns True
    stays.
    """

    def __init__(self, disk: Disk, *, before: Callable[[], None], is_used: Callable[[Segment], bool]) -> None:
        self._before = before
        self._is_used = is_used
        self._disk = disk
        self._files: deque[Segment] = deque()  # the store's thread adds, the deleting thread removes
        self._thread: Worker | None = None
        self._turn: Future[None] | None = None
        self._warning = ""

    def add(self, files: Iterable[Segment]) -> None:
        self._files.extend(files)

    def start(self) -> None:
        """Start the thread if files are left to delete.

        Must be called repeatedly, as a failed deletion ends the thread.
        """
        if self._files and (self._turn is None or self._turn.done()):
            self._thread = self._thread or worker(self._disk, "store-removal")
            self._turn = self._thread.submit(self._remove)

    def close(self) -> None:
        """Delete the expired files passed to `add` that are not deleted yet, then join the thread. Blocks."""
        self.start()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def _remove(self) -> None:
        while self._files:
            file = self._files[0]
            try:
                self._before()
                if not self._is_used(file):
                    file.delete()  # durable: a power loss must not restore a file without the next file
            except OSError as error:
                warning = f"{file.path} is expired and cannot be deleted: {error.strerror}; check its permissions"
                if warning != self._warning:
                    logger.warning(warning)
                    self._warning = warning
                return
            self._files.popleft()
