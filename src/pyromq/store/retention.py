"""Which messages go, and when the store takes no more: by age, by bytes, and by how full the disk is.

Whole files go, the oldest first, never the one that is written. Age is that of a file's newest message, by the times
in the records: copying a store does not make it younger. Consume queues and key index follow in small steps. It does
not know what waits in the log to be delivered: `keep_from` says how far back that reaches, and nothing from there on
goes, for no reason. Source: RocketMQ 4.9.8, DefaultMessageStore.CleanCommitLogService and CleanConsumeQueueService,
which take the time of a file's last change, and know no bounds of bytes and no `keep_from`.
"""

from __future__ import annotations

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
from pyromq.store.config import StoreConfig
from pyromq.store.disk import LOCAL_DISK, Disk
from pyromq.store.index.key_index import KeyIndex
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.log.residency import Residency
from pyromq.store.log.segment import Segment
from pyromq.store.looking import Unread
from pyromq.store.queue.consume_queue import ConsumeQueue
from pyromq.store.queue.queue_table import QueueTable
from pyromq.store.worker import Worker, worker

logger = logger_of(__name__)


FILES_A_ROUND = 10  # Source: MappedFileQueue.deleteExpiredFileByTime
ROUNDS_BY_HAND = 20  # Source: CleanCommitLogService.MANUAL_DELETE_FILE_MAX_TIMES
MEASURE_SECONDS = 1.0
_QUEUES_A_LOOK = 8  # between two looks at the clock
_HOUR_MS = 3_600_000


class Retention:
    """One writer, the store's. `step` does what there is to do; nothing happens by itself.

    `sync_entries` has the queues on disk: without the log before them, they alone know where their offsets go on.
    `keep_from` returns the first log offset that somebody needs; `measure` how full the disk of a path is.
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
        self.keep_from: Callable[[], int] = lambda: log.end
        self.measure = measured
        self._log = log
        self._queues = queues
        self._index = index
        self._residency = residency
        self._config = config
        self._clock = clock
        self._removal = Removal(disk)
        self._removal.before = sync_entries
        self._use: DiskUse | None = None
        self._measured_at = self._round_at = float("-inf")
        self._following: Iterator[ConsumeQueue] | None = None  # queues that may lag behind the log's begin
        self._rounds_by_hand = 0
        self._age_by_hand_ms: int | None = None
        self._held = False

    def unread(self) -> Unread:
        """Return what has to come from the disk before the next look which files are old."""
        return self._residency.unread_heads(segment.base + segment.size for segment in self._candidates)

    def step(self, budget_seconds: float) -> bool:
        """Look at the disk, let files go, let the queues follow for that long; True if nothing is left to do now."""
        now = self._clock.monotonic()
        if now - self._measured_at >= MEASURE_SECONDS:
            self._measured_at = now
            self._look_at_disk()
        if (now - self._round_at) * 1000 >= self._config.expire_interval_ms:
            self._round_at = now
            self._drop(self._expired())
            self._rounds_by_hand = max(0, self._rounds_by_hand - 1)
        done = self._follow(budget_seconds)
        self._removal.start()
        return done

    def expire_now(self, age_ms: int | None = None) -> int:
        """Let what is expired go at any hour, now and in the next rounds; return how many files go now.

        `age_ms`: what is older counts as expired, instead of what the settings say.
        """
        self._age_by_hand_ms = age_ms
        self._rounds_by_hand = ROUNDS_BY_HAND
        return self._drop(self._expired())

    def close(self) -> None:
        """Finish what is on its way out."""
        while not self._follow(None):
            pass
        self._removal.close()

    # -- the disk

    def _look_at_disk(self) -> None:
        """Refuse messages while a disk is too full, and take them again when it is not."""
        paths = {self._config.root, self._config.log_folder}
        try:
            uses = [self.measure(path) for path in paths if path.is_dir()]
        except OSError as error:
            logger.warning("cannot tell how full the disk of %s is: %s", self._config.root, error)
            return
        self._use = max(uses, key=lambda use: use.percent, default=None)
        full = self._use is not None and self._use.percent > self._config.disk_refuse_percent
        text = self._refusal() if full else ""
        if full and not self._held:
            logger.warning(text)
        elif self._held and not full:
            logger.warning("there is room again: messages are taken")
        self._held = full
        self._log.hold(text)

    def _refusal(self) -> str:
        use = self._use
        assert use is not None
        return (
            f"the disk of {use.path} is {use.percent} % full ({_readable(use.used)} used, {_readable(use.free)} free);"
            f" above {self._config.disk_refuse_percent} % (diskSpaceWarningLevelRatio) no messages are taken:"
            f" {self._way_out()}"
        )

    def _way_out(self) -> str:
        """What frees space, as things are."""
        files = self._log.files.segments[:-1]
        keep_from = self.keep_from()
        waiting = sum(segment.base + segment.size > keep_from for segment in files)
        free = len(files) - waiting
        if self._is_forced and free:
            return f"log files are being deleted, the oldest of {free}, and sending goes on when that suffices"
        if free:
            return (
                f"{counted(free, 'log file is', 'log files are')} younger than fileReservedTime"
                f" ({self._config.reserved_hours} h); "
                "`pyromq store expire --older-than HOURS` deletes younger ones, or make room on that disk"
            )
        if waiting:
            could_go = (
                "the log file that could go holds" if waiting == 1 else f"all {waiting} log files that could go hold"
            )
            return f"{could_go} messages that wait for delivery, or undecided transactions; make room on that disk"
        return "nothing of the store can go, it has one log file; make room on that disk"

    @property
    def _percent(self) -> int:
        return 0 if self._use is None else self._use.percent

    @property
    def _is_forced(self) -> bool:
        return self._config.force_expire and self._percent > self._config.disk_force_percent

    # -- the log

    def _expired(self) -> int:
        """Return how many of the oldest files go in this round."""
        segments = self._log.files.segments
        keep_from, age_ms = self.keep_from(), self._age_ms()
        too_many = 0
        if (limit := self._config.retained_bytes) is not None:
            too_many = len(segments) - limit // self._config.segment_bytes
        count = 0
        for segment in self._candidates:
            end = segment.base + segment.size
            if end > keep_from or not (self._is_forced or count < too_many or self._is_older(end, age_ms)):
                break
            count += 1
        return count

    @property
    def _candidates(self) -> list[Segment]:
        return self._log.files.segments[:-1][:FILES_A_ROUND]

    def _age_ms(self) -> int | None:
        """Return from which age on files go in this round; None: age does not count now."""
        if self._rounds_by_hand and self._age_by_hand_ms is not None:
            return self._age_by_hand_ms
        hour = datetime.fromtimestamp(self._clock.now_ms() / 1000).hour
        wanted = hour in self._config.expire_hours or self._percent > self._config.disk_expire_percent
        return self._config.reserved_hours * _HOUR_MS if wanted or self._rounds_by_hand else None

    def _is_older(self, end: int, age_ms: int | None) -> bool:
        """Whether all messages before `end`, where a file begins, are older than that."""
        if age_ms is None:
            return False
        stored_ms = self._log.store_ms_at(end)
        if stored_ms is None:  # nothing is there yet, or it is damaged
            segment = self._log.files.find(end - 1)
            assert segment is not None
            stored_ms = segment.changed_ms()
        return self._clock.now_ms() - stored_ms > age_ms

    def _drop(self, count: int) -> int:
        if count:
            gone = [self._log.files.drop_first() for _ in range(count)]
            names = ", ".join(segment.path.name for segment in gone)
            logger.info("expired: %s of %s (the disk is %d %% full)", names, self._log.files.folder, self._percent)
            self._removal.add(gone)
            self._removal.add(self._index.drop_before(self._log.min_offset))
            self._following = iter(list(self._queues))
        return count

    def _follow(self, budget_seconds: float | None) -> bool:
        """Let queues drop what points to dropped files; True if none is left."""
        if self._following is None:
            return True
        deadline = None if budget_seconds is None else self._clock.monotonic() + budget_seconds
        log_begin = self._log.min_offset
        for count, queue in enumerate(self._following, 1):
            self._removal.add(queue.drop_before(log_begin))
            if count % _QUEUES_A_LOOK == 0 and deadline is not None and self._clock.monotonic() >= deadline:
                return False
        self._following = None
        return True


def _readable(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.0f} MiB"


class DiskUse(NamedTuple):
    """The disk that holds `path`, in bytes. `free` is what processes of ordinary users can have."""

    path: Path
    used: int
    free: int

    @property
    def percent(self) -> int:
        """As `df` says it: rounded up. Source: RocketMQ 4.9.8, UtilAll.getDiskPartitionSpaceUsedPercent."""
        return -(-self.used * 100 // max(self.used + self.free, 1))


def measured(path: Path) -> DiskUse:
    """Ask the file system; one short system call. Raises `OSError`."""
    usage = shutil.disk_usage(path)
    return DiskUse(path, usage.used, usage.free)


def around(folder: Path) -> tuple[int, int, int]:
    """Return bytes in all, used and free of the disk where a folder is; or was: then of the folder above."""
    return shutil.disk_usage(next(each for each in (folder, *folder.absolute().parents) if each.is_dir()))


class Removal:
    """Deletes in the order of `add`, and never a file whose predecessor is still there: a log must not get holes."""

    def __init__(self, disk: Disk) -> None:
        self.before: Callable[[], None] = lambda: None  # called by the thread before it deletes
        self._disk = disk
        self._files: deque[Segment] = deque()  # filled by the owner, emptied by the thread
        self._thread: Worker | None = None
        self._turn: Future[None] | None = None
        self._complaint = ""

    def add(self, files: Iterable[Segment]) -> None:
        self._files.extend(files)

    def start(self) -> None:
        """Let the thread delete what there is. Called again and again: what failed is tried again."""
        if self._files and (self._turn is None or self._turn.done()):
            self._thread = self._thread or worker(self._disk, "store-removal")
            self._turn = self._thread.submit(self._remove)

    def close(self) -> None:
        """Wait until the thread is done."""
        self.start()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def _remove(self) -> None:
        while self._files:
            file = self._files[0]
            try:
                self.before()
                file.delete()  # for good: a power cut could bring back a file, and not the one behind it
            except OSError as error:
                complaint = f"{file.path} is expired and cannot be deleted: {error.strerror}; see to its permissions"
                if complaint != self._complaint:
                    logger.warning(complaint)
                    self._complaint = complaint
                return
            self._files.popleft()
