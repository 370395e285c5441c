"""Recovery at start: finds the end of the log and makes every queue agree with it.

After a clean stop only the last records are verified. After a crash all records since the checkpoint are read, with
their checksums, and their queue entries are written again. Source: RocketMQ 4.9.8, CommitLog.recoverAbnormally, which
truncates at the same place. Ours starts at a record known from a queue instead of a segment's begin, fills truncated
space with zeros, so that no old record can reappear, and searches earlier records for lost queue entries.
"""

from __future__ import annotations

from pyromq.clock import Clock
from pyromq.errors import StoreCorrupt
from pyromq.logs import logger_of
from pyromq.message import StoredMessage
from pyromq.store.log.commit_log import CommitLog, Scan
from pyromq.store.log.truncation_guard import TruncationGuard, check_cut
from pyromq.store.queue.consume_queue import FILLER_SIZE, ConsumeQueue, QueueEntry
from pyromq.store.queue.entry_verifier import EntryVerifier
from pyromq.store.queue.queue_ends_file import QueueEnds
from pyromq.store.queue.queue_table import QueueTable
from pyromq.store.queue_dispatcher import UNQUEUED, QueueDispatcher

logger = logger_of(__name__)

_FIRST_SECONDS = 2.0  # a shorter walk logs no progress
_EVERY_SECONDS = 5.0  # between two lines of progress
_LOOK_RECORDS = 8_192  # records between two readings of the clock

_VERIFIED_BYTES = 1 << 20  # bytes at the log's end verified after a clean stop
_CLOCK_TOLERANCE_MS = 1_000  # a newer last message causes a warning
_RECOVERED_FILES = 3  # files walked after a clean stop if no queue gives a later start. Source: recoverNormally


class Recovery:
    """One start of a store. The log accepts appends after `run`. `log_began` is the log's begin by the checkpoint."""

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        dispatcher: QueueDispatcher,
        *,
        verifier: EntryVerifier,
        check_crc: bool,
        clock: Clock,
        log_began: int | None,
    ) -> None:
        self._clock = clock
        self._verifier = verifier
        self._log = log
        self._queues = queues
        self._dispatcher = dispatcher
        self._check_crc = check_crc
        self._log_began = log_began

    def run(self, *, crashed: bool, safe_ms: int, power_cut: bool = False) -> int:
        """Recover log and queues; return the log offset up to which all records are known to be on disk.

        `power_cut`: the last writes may be missing. Raises `StoreCorrupt` with the file if a user must decide.
        """
        self._log.load()
        self._check_log_begin()
        self._queues.load(crashed=crashed)
        saved_ends = self._saved_ends()
        self._queues.check_ends(saved_ends)
        guard = self._truncation_guard(repair=not crashed)
        queues_end = guard.log_end
        if not self._log.files.segments:
            if queues_end:
                raise StoreCorrupt(
                    f"{self._log.files.folder} has no log files, but the queues lead to records up to log offset"
                    f" {queues_end}: put the files back or correct storePathCommitLog; to begin with an empty store,"
                    " move the folder consumequeue away"
                )
            self._queues.clear()
            self._queues.save_ends(0)
            self._log.resume(0, 0)
            return 0
        if crashed:
            start = replay_from = self._start_after_crash(safe_ms)
        else:
            replay_from = max(queues_end, self._log.min_offset)
            start = min(self._start_after_stop(queues_end), replay_from)
        if self._log.min_offset == 0:
            self._queues.drop_headless()
        if self._queues.is_incomplete:
            start = replay_from = self._log.min_offset
        scan = self._walk(start, replay_from, entered_to=saved_ends.log_end)
        check_cut(self._log.files, scan.position, guard=guard, trusted_ms=safe_ms if power_cut else None)
        self._finish(scan, saved_ends, crashed=crashed)
        if not crashed:
            return scan.position
        logger.warning("recovered after a crash: the log ends at %d, read from %d on", scan.position, start)
        self._log.files.mark_dirty(start, scan.position)
        for queue in self._queues:
            queue.mark_dirty()
        return start

    def _check_log_begin(self) -> None:
        began, begins = self._log_began, self._log.min_offset
        if began is not None and began < begins:
            logger.error(
                "%s and the log files after it up to log offset %d are missing: unless retention deleted them, stop"
                " this broker and put them back",
                *(self._log.files.path_of(began), begins),
            )

    def _truncation_guard(self, *, repair: bool) -> TruncationGuard:
        """Return the end of the log by its queues. With `repair`, a wrong entry at that end is repaired first."""
        while True:
            farthest = max(self._queues, key=lambda queue: queue.log_end, default=None)
            if farthest is None or not (known := farthest.log_end):
                return TruncationGuard()
            can_repair = repair and bool(self._log.files.segments)
            if can_repair and self._verifier.repair_last(farthest) and farthest.log_end != known:
                continue
            return TruncationGuard(known, *farthest.place_of(farthest.max_offset - 1))

    def _saved_ends(self) -> QueueEnds:
        """Return the saved ends of the queues; none if they were saved for a longer log."""
        saved_ends = self._queues.ends_file.load()
        return saved_ends if saved_ends.log_end <= self._log.files.capacity_end else QueueEnds()

    def _walk(self, start: int, replay_from: int, *, entered_to: int) -> Scan:
        """Read the log from `start` to its end, and replay the records from `replay_from` on into their queues.

        Records before `entered_to` have their entries, unless a queue lost some.
        """
        complete = self._queues.is_incomplete
        while True:
            self._dispatcher.begin_replay()
            scan = self._log.scan(start, check_crc=self._check_crc)
            progress = ProgressLine(self._clock, start, self._log.files.capacity_end)
            for message in scan:
                progress.count(message.log_offset)
                if message.log_offset < replay_from:
                    if (queue_end := self._end_of_cut_queue(message)) is not None:
                        entered_to, start, replay_from = max(entered_to, replay_from), queue_end, queue_end
                        break
                elif message.log_offset < entered_to and self._queues.find(message.topic, message.queue_id) is None:
                    continue  # its topic is deleted
                elif not self._dispatcher.replay(message, complete=complete):
                    logger.warning("queue entries are missing: reading the whole log")
                    start = replay_from = self._log.min_offset
                    complete = True
                    break
            else:
                self._dispatcher.end_replay()
                return scan

    def _end_of_cut_queue(self, message: StoredMessage) -> int | None:
        """Return the end of the log by the queue of a message if that queue lacks the message's entry, else None.

        None also if the topic was deleted, or created again since.
        """
        queue = self._queues.find(message.topic, message.queue_id)
        if queue is None or message.queue_offset < queue.max_offset or message.sys_flag & UNQUEUED:
            return None
        queue_end = max(queue.log_end, self._log.min_offset)
        if message.log_offset < queue_end:
            return None
        logger.warning("%s has lost entries from %d on: they are rebuilt", queue.files.folder, queue.max_offset)
        return queue_end

    def _finish(self, scan: Scan, saved_ends: QueueEnds, *, crashed: bool) -> None:
        end = scan.position
        for queue in self._queues:
            if crashed:
                queue.cut_to_max()
            queue.cut_behind(end)
        self._queues.restore_ends(saved_ends)
        for queue in self._queues:
            queue.correct_min_offset(self._log.min_offset)
            queue.unverified_end = queue.max_offset
        self._verifier.log_began = self._log.min_offset
        self._queues.release()
        self._log.resume(end, scan.last_store_ms)
        ahead_ms = scan.last_store_ms - self._clock.now_ms()
        if ahead_ms > _CLOCK_TOLERANCE_MS:
            logger.warning(
                "the newest message was stored %d s after the current time of this machine's clock: until then new"
                " messages get that time too; correct the clock if it is wrong",
                ahead_ms / 1000,
            )

    def _start_after_stop(self, queues_end: int) -> int:
        """Return the begin of a record about `_VERIFIED_BYTES` before the log's end."""
        begin = self._log.min_offset
        for queue in self._queues:
            if queue.log_end == queues_end:
                offset = queue.first(lambda entry: entry.log_offset >= queues_end - _VERIFIED_BYTES)
                begin = max(begin, self._record_of(queue, offset))
        segments = self._log.files.segments
        return begin if begin > segments[0].base else segments[max(0, len(segments) - _RECOVERED_FILES)].base

    def _start_after_crash(self, safe_ms: int) -> int:
        """Return the begin of the last record known from a segment or queue and covered by the checkpoint."""
        begin = self._log.min_offset
        if not self._queues.by_topic:
            return begin  # the queues are rebuilt
        unsafe: dict[ConsumeQueue, int] = {}
        for segment in reversed(self._log.files.segments):
            if self._log.is_intact(segment.base) and self._is_safe(segment.base, safe_ms):
                begin = segment.base
                break
        for queue in self._queues:
            first_unsafe = queue.first(lambda entry: not self._is_safe_entry(entry, safe_ms))
            unsafe[queue] = first_unsafe
            known = self._record_of(queue, first_unsafe - 1)
            if known > begin and self._log.is_intact(known):  # the store time of an incomplete record may be wrong
                begin = known
        for queue, first_unsafe in unsafe.items():
            queue.shorten_to(_entries_before(queue, first_unsafe, begin))  # the walk writes the others again
        return begin

    def _is_safe_entry(self, entry: QueueEntry, safe_ms: int) -> bool:
        # Messages of fillers and expired records precede all others.
        if entry.is_filler or entry.log_offset < self._log.min_offset:
            return True
        return self._is_safe(entry.log_offset, safe_ms)

    def _is_safe(self, log_offset: int, safe_ms: int) -> bool:
        store_ms = self._log.store_ms_at(log_offset)
        return store_ms is not None and 0 < store_ms <= safe_ms

    def _record_of(self, queue: ConsumeQueue, queue_offset: int) -> int:
        """Return the log offset of an entry's record; 0 if there is no record."""
        entry = queue.find(queue_offset)
        if entry is None or entry.size == FILLER_SIZE:
            return 0
        return entry.log_offset if self._log.record_at(entry.log_offset) is not None else 0


def _entries_before(queue: ConsumeQueue, count: int, log_offset: int) -> int:
    """Return how many of the first `count` entries lead to records before `log_offset`, without damaged last entries.

    A damaged entry may lead anywhere, also to the records of previous entries.
    """
    while (entry := queue.find(count - 1)) is not None:
        previous = queue.find(count - 2)
        if entry.log_offset < log_offset and (previous is None or previous.log_offset <= entry.log_offset):
            break
        count -= 1
    return count


class ProgressLine:
    """Logs the progress of a walk over the log from `start` to about `end`."""

    def __init__(self, clock: Clock, start: int, end: int) -> None:
        self._clock = clock
        self._start = start
        self._end = end
        self._began = clock.monotonic()
        self._next = self._began + _FIRST_SECONDS
        self._records = 0

    def count(self, log_offset: int) -> None:
        """Count a record; log progress if a line is due."""
        self._records += 1
        if self._records % _LOOK_RECORDS == 0 and (now := self._clock.monotonic()) >= self._next:
            self._next = now + _EVERY_SECONDS
            self._log_progress(log_offset, now - self._began)

    def _log_progress(self, log_offset: int, seconds: float) -> None:
        done, total = log_offset - self._start, self._end - self._start
        logger.warning(
            "reading the log: %.1f of %.1f GiB, %d messages a second, about %d s left",
            done / (1 << 30),
            total / (1 << 30),
            self._records / seconds,
            seconds * (total - done) / max(done, 1),
        )
