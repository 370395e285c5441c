"""Recovery when a store is opened: finds the end of the log and makes every consume queue agree with the log.

After a clean stop only the last records are verified. After a crash all records since the checkpoint are read and
compared with their checksums, and their queue entries are written again. If a queue lacks entries, the whole log is
read, and the queue is written again.

Source: RocketMQ 4.9.8, CommitLog.recoverAbnormally, which truncates the log at the same place. Different from RocketMQ:
the walk starts at a record that a queue leads to, not at a segment's beginning. Truncated space is filled with zeros,
so that no old record can reappear.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pyromq.clock import Clock
from pyromq.errors import StoreCorrupt
from pyromq.logs import logger_of
from pyromq.message import StoredMessage
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.log.log_walk import Damage
from pyromq.store.queue.consume_queue import FILLER_SIZE, ConsumeQueue, QueueEntry
from pyromq.store.queue.entry_verifier import EntryVerifier
from pyromq.store.queue.queue_table import QueueEnds, QueueTable, is_folder_name
from pyromq.store.queue_dispatcher import UNQUEUED, QueueDispatcher

logger = logger_of(__name__)

_FIRST_SECONDS = 2.0  # a walk shorter than this logs no progress
_EVERY_SECONDS = 5.0  # time between two log lines of progress
_CHECK_RECORDS = 8_192  # records walked between two readings of the clock

_VERIFIED_BYTES = 1 << 20  # bytes at the log's end that a start after a clean stop verifies
_CLOCK_TOLERANCE_MS = 1_000  # a last message stored this far in the future causes a warning
_RECOVERED_FILES = 3  # limit of log files walked after a clean stop. Source: recoverNormally


class KnownEnd(NamedTuple):
    """The log's end according to the consume queues: the end of the last record that a queue entry leads to.

    `path` and `position` are file and byte of that entry.
    """

    log_end: int = 0
    path: Path = Path()
    position: int = 0


class Walked(NamedTuple):
    """The result of a walk over the log. `end` is the log offset after the last record before any damage.

    `following` is the next intact record after the damage, None without one.
    """

    end: int
    last_store_ms: int
    following: StoredMessage | None


class Recovery:
    """Recovers a store once, at its start. The log accepts appends after `run`.

    `log_began` is the first log offset that the checkpoint has saved; None if the checkpoint has none.
    """

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
        may_be_torn: bool = True,
    ) -> None:
        self._clock = clock
        self._verifier = verifier
        self._log = log
        self._queues = queues
        self._dispatcher = dispatcher
        self._check_crc = check_crc
        self._log_began = log_began
        self._may_be_torn = may_be_torn

    def run(self, *, crashed: bool, safe_ms: int, power_loss: bool = False) -> int:
        """Recover log and queues. Return the log offset up to which all records are known to be on disk.

        `power_loss`: the machine lost power or crashed, so the last writes may be missing. Raises `StoreCorrupt` with
        the file if starting would delete intact records.
        """
        self._log.load()
        self._check_log_begin()
        saved_ends = self._saved_ends()
        self._queues.load(saved_ends, crashed=crashed)
        self._queues.check_ends(saved_ends)
        known = self._known_end(repair=not crashed)
        if not self._log.files.segments:
            return self._begin_empty(known)
        start = self._start_after_crash(safe_ms) if crashed else self._start_after_stop(known.log_end)
        if self._log.min_offset == 0:
            self._queues.drop_without_first_file()
        complete = self._queues.is_incomplete
        entered_to = settled_to = 0 if crashed or complete else known.log_end
        entered_to = max(entered_to, saved_ends.log_end)
        if complete:
            start = self._log.min_offset
        ends = {queue: queue.max_offset for queue in self._queues}
        while (walked := self._walk(start, entered_to, settled_to, complete=complete)) is None:
            logger.warning("queue entries are missing: reading the whole log")
            start, settled_to, complete = self._log.min_offset, 0, True
            for queue in self._queues:
                queue.cut_at(ends.get(queue, 0))  # an empty queue may have begun after older messages
        self._check_cut(walked, known, trusted_ms=safe_ms if power_loss else None)
        self._finish(walked, saved_ends, crashed=crashed)
        if not crashed:
            return walked.end
        logger.warning("recovered after a crash: the log ends at %d, read from %d on", walked.end, start)
        self._log.files.mark_dirty(start, walked.end)
        for queue in self._queues:
            queue.mark_dirty()
        return start

    def _begin_empty(self, known: KnownEnd) -> int:
        if known.log_end:
            raise StoreCorrupt(
                f"{self._log.files.folder} has no log files, but the queues lead to records up to log offset"
                f" {known.log_end}: put the files back or correct storePathCommitLog; to begin with an empty store,"
                " move the folder consumequeue away"
            )
        self._queues.clear()
        self._queues.save_ends(0)
        self._log.resume(0, 0)
        return 0

    def _check_log_begin(self) -> None:
        began, begins = self._log_began, self._log.min_offset
        if began is not None and began < begins:
            logger.error(
                "%s and the log files after it up to log offset %d are missing: unless retention deleted these"
                " files, stop this broker and put the files back",
                *(self._log.files.path_of(began), begins),
            )

    def _known_end(self, *, repair: bool) -> KnownEnd:
        """Return the log's end according to the queues. With `repair`, first repair a wrong queue entry at that end."""
        while True:
            farthest = max(self._queues, key=lambda queue: queue.log_end, default=None)
            if farthest is None or not (log_end := farthest.log_end):
                return KnownEnd()
            can_repair = repair and bool(self._log.files.segments)
            if can_repair and self._verifier.repair_last(farthest) and farthest.log_end != log_end:
                continue
            return KnownEnd(log_end, *farthest.place_of(farthest.max_offset - 1))

    def _saved_ends(self) -> QueueEnds:
        """Return the saved ends of the queues; no ends if they were saved for a longer log."""
        saved_ends = self._queues.ends_file.load()
        return saved_ends if saved_ends.log_end <= self._log.files.capacity_end else QueueEnds()

    def _walk(self, start: int, entered_to: int, settled_to: int, *, complete: bool) -> Walked | None:
        """Read the log from `start` to its end and write the missing queue entries of its records.

        Return None if a queue lacks entries that may be found before `start`. Records before `entered_to` whose queue
        does not exist belong to deleted topics. Queue offsets of records before `settled_to` that have entries are
        trusted.
        """
        self._dispatcher.begin_replay(start)
        walk = self._log.walk(start, check_crc=self._check_crc, may_be_torn=self._may_be_torn)
        progress = RecoveryProgress(self._clock, start, self._log.files.capacity_end)
        last_store_ms, following, end = 0, None, None
        records = iter(walk)
        for found in records:
            if isinstance(found, Damage):
                logger.warning("log ends at %d: %s", found.start, found.reason)
                end = found.start
                following = next((each for each in records if isinstance(each, StoredMessage)), None)
                break
            last_store_ms = found.store_ms
            progress.count(found.log_offset)
            queue = self._queue_of(found, entered_to)
            if queue is None or (found.log_offset < settled_to and found.queue_offset < queue.max_offset):
                continue
            if not self._dispatcher.replay(found, queue, complete=complete):
                return None
        if not self._dispatcher.end_replay(complete=complete):
            return None
        return Walked(walk.position if end is None else end, last_store_ms, following)

    def _queue_of(self, message: StoredMessage, entered_to: int) -> ConsumeQueue | None:
        """Return the queue of a record; create the queue if necessary.

        None if the topic is deleted or has no legal name.
        """
        queue = self._queues.find(message.topic, message.queue_id)
        if queue is not None or message.log_offset < entered_to or message.sys_flag & UNQUEUED:
            return queue
        if is_folder_name(message.topic, message.queue_id):
            return self._queues.make(message.topic, message.queue_id)
        logger.error("record at %d is damaged and skipped: topic %r", message.log_offset, message.topic)
        return None

    def _check_cut(self, walked: Walked, known: KnownEnd, *, trusted_ms: int | None) -> None:
        """Raise `StoreCorrupt` if the log must not be truncated at the walk's end.

        Truncation is not allowed if later records are intact, or if queues lead to later records. Incomplete records of
        a crash may be truncated. After a power loss `trusted_ms` is the store time up to which records were on disk:
        later records may be damaged. With None, everything written exists.
        """
        files, end, following = self._log.files, walked.end, walked.following
        if trusted_ms is None and end < known.log_end:
            reason = f"{known.path} byte {known.position} leads to a record that ends at log offset {known.log_end}"
        elif following is not None and (trusted_ms is None or following.store_ms <= trusted_ms):
            reason = f"an intact one follows at log offset {following.log_offset}"
        else:
            return
        segment = files.find(end)
        if segment is None:
            place = f"{files.path_of(end)} is missing"
        else:
            place = f"{segment.path} byte {end - segment.base}: no intact record is there"
        raise StoreCorrupt(
            f"{place}, but {reason}; starting would delete records."
            " `pyromq store check` shows the damage, `pyromq store repair` keeps every intact record"
        )

    def _finish(self, walked: Walked, saved_ends: QueueEnds, *, crashed: bool) -> None:
        for queue in self._queues:
            if crashed:
                queue.cut_to_max()
            queue.cut_behind(walked.end)
        self._queues.restore_ends(saved_ends)
        for queue in self._queues:
            queue.correct_min_offset(self._log.min_offset)
            queue.unverified_end = queue.max_offset
        self._verifier.log_began = self._log.min_offset
        self._queues.release()
        self._log.resume(walked.end, walked.last_store_ms)
        ahead_ms = walked.last_store_ms - self._clock.now_ms()
        if ahead_ms > _CLOCK_TOLERANCE_MS:
            logger.warning(
                "the newest message was stored %d s after the current time of this machine's clock: until then new"
                " messages get that time too; correct the clock if it is wrong",
                ahead_ms / 1000,
            )

    def _start_after_stop(self, queues_end: int) -> int:
        """Return the log offset where the walk after a clean stop begins, about `_VERIFIED_BYTES` before the log's end.

        Without queues return the log's beginning.
        """
        begin = self._log.min_offset
        if not queues_end:
            return begin
        for queue in self._queues:
            if queue.log_end == queues_end:
                offset = queue.first_behind(queues_end - _VERIFIED_BYTES)
                begin = max(begin, self._record_of(queue, offset))
        segments = self._log.files.segments
        return begin if begin > segments[0].base else segments[max(0, len(segments) - _RECOVERED_FILES)].base

    def _start_after_crash(self, safe_ms: int) -> int:
        """Return the log offset where the walk after a crash begins. Shorten the queues to entries before that offset.

        The walk begins at the last intact record that the checkpoint covers and that a queue or a segment's beginning
        leads to.
        """
        begin = self._log.min_offset
        if not self._queues.by_topic:
            return begin  # no queue exists: all queues are rebuilt
        unsafe: dict[ConsumeQueue, int] = {}
        for segment in reversed(self._log.files.segments):
            if self._log.is_intact(segment.base) and self._is_safe(segment.base, safe_ms):
                begin = segment.base
                break
        for queue in self._queues:
            first_unsafe = queue.first(lambda entry: not self._is_safe_entry(entry, safe_ms))
            unsafe[queue] = first_unsafe
            known = self._record_of(queue, first_unsafe - 1)
            if known > begin and self._log.is_intact(known):  # of an incomplete record the store time may be wrong
                begin = known
        for queue, first_unsafe in unsafe.items():
            queue.shorten_to(_entries_before(queue, first_unsafe, begin))  # the walk writes the later entries again
        return begin

    def _is_safe_entry(self, entry: QueueEntry, safe_ms: int) -> bool:
        if entry.is_empty:
            return False
        # Entries of fillers and of expired records precede all other entries.
        if entry.is_filler or entry.log_offset < self._log.min_offset:
            return True
        return self._is_safe(entry.log_offset, safe_ms)

    def _is_safe(self, log_offset: int, safe_ms: int) -> bool:
        store_ms = self._log.store_ms_at(log_offset)
        return store_ms is not None and 0 < store_ms <= safe_ms

    def _record_of(self, queue: ConsumeQueue, queue_offset: int) -> int:
        """Return the log offset of the record of a queue entry; 0 if entry or record is missing."""
        entry = queue.find(queue_offset)
        if entry is None or entry.size == FILLER_SIZE:
            return 0
        return entry.log_offset if self._log.record_at(entry.log_offset) is not None else 0


def _entries_before(queue: ConsumeQueue, count: int, log_offset: int) -> int:
    """Return how many of the first `count` entries lead to records before `log_offset`.

    Damaged last entries do not count. A damaged entry may lead anywhere, for example to the records of previous
    entries.
    """
    while (entry := queue.find(count - 1)) is not None:
        previous = queue.find(count - 2)
        if entry.log_offset < log_offset and (previous is None or previous.log_offset <= entry.log_offset):
            break
        count -= 1
    return count


class RecoveryProgress:
    """Logs the progress of a walk over the log from log offset `start` to about `end`."""

    def __init__(self, clock: Clock, start: int, end: int) -> None:
        self._clock = clock
        self._start = start
        self._end = end
        self._began = clock.monotonic()
        self._next = self._began + _FIRST_SECONDS
        self._records = 0

    def count(self, log_offset: int) -> None:
        """Count a record. Log the progress if the last line is at least `_EVERY_SECONDS` old."""
        self._records += 1
        if self._records % _CHECK_RECORDS == 0 and (now := self._clock.monotonic()) >= self._next:
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
