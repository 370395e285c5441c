"""From files as they were found to a store that can go on: where the log ends, and that every queue agrees with it.

After a clean stop only the last records are verified. After a crash everything stored since the checkpoint is read
again, checksums included, and led into the queues again. Source: RocketMQ 4.9.8, CommitLog.recoverAbnormally, with
the same cut; but the walk begins at a record known from a queue instead of a segment's begin, what is behind the cut
becomes zero (so an old record can never be taken for a new one), and lost queue entries are looked for further back.
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
from pyromq.store.queue.queue_ends_file import NotedQueues
from pyromq.store.queue.queue_table import QueueTable
from pyromq.store.queue_dispatcher import UNQUEUED, QueueDispatcher

logger = logger_of(__name__)

_FIRST_SECONDS = 2.0
_EVERY_SECONDS = 5.0
_LOOK_RECORDS = 8_192  # between two looks at the clock

_VERIFIED_BYTES = 1 << 20  # of the log's end after a clean stop
_CLOCK_TOLERANCE_MS = 1_000
_RECOVERED_FILES = 3  # walked after a clean stop where no queue tells more. Source: CommitLog.recoverNormally


class Recovery:
    """One start. Loads, verifies, cuts and mends; the log accepts appends afterwards."""

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        dispatcher: QueueDispatcher,
        *,
        proof: EntryVerifier,
        check_crc: bool,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._proof = proof
        self._log = log
        self._queues = queues
        self._follower = dispatcher
        self._check_crc = check_crc
        self.log_began: int | None = None  # where the log began as long as somebody looked after it

    def run(self, *, crashed: bool, safe_ms: int, power_cut: bool = False) -> int:
        """Bring log and queues together; return the log offset up to which all is known to be on disk.

        `power_cut`: what was written shortly before may be missing. Raises `StoreCorrupt` naming the file where a
        human has to decide.
        """
        self._log.load()
        self._look_for_begin()
        self._queues.load(crashed=crashed)
        noted = self._noted()
        self._queues.miss(noted)
        claim = self._claim(mend=not crashed)
        queues_end = claim.log_end
        if not self._log.files.segments:
            if queues_end:
                raise StoreCorrupt(
                    f"{self._log.files.folder} has no log files, but the queues know records up to log offset"
                    f" {queues_end}: put the files back or correct storePathCommitLog; or move the folder consumequeue"
                    " away to begin with an empty store"
                )
            self._queues.clear()
            self._queues.write_note(0)
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
        scan = self._walk(start, replay_from, entered_to=noted.log_end)
        check_cut(self._log.files, scan.position, claim=claim, vouched_ms=safe_ms if power_cut else None)
        self._finish(scan, noted, crashed=crashed)
        if not crashed:
            return scan.position
        logger.warning("recovered after a crash: the log ends at %d, read from %d on", scan.position, start)
        self._log.files.distrust(start, scan.position)
        for queue in self._queues:
            queue.distrust()
        return start

    def _look_for_begin(self) -> None:
        began, begins = self.log_began, self._log.min_offset
        if began is not None and began < begins:
            logger.error(
                "%s and what follows up to log offset %d is missing: unless it was expired meanwhile, stop this broker"
                " and put the files back before they are missed",
                *(self._log.files.path_of(began), begins),
            )

    def _claim(self, *, mend: bool) -> TruncationGuard:
        """Return where the log ends by its queues; with `mend` the entry that says so is put right, if it can be."""
        while True:
            farthest = max(self._queues, key=lambda queue: queue.log_end, default=None)
            if farthest is None or not (known := farthest.log_end):
                return TruncationGuard()
            if mend and self._log.files.segments and self._proof.mend_last(farthest) and farthest.log_end != known:
                continue
            return TruncationGuard(known, *farthest.place_of(farthest.max_offset - 1))

    def _noted(self) -> NotedQueues:
        """Return how far the queues were, if that was noted beside this log."""
        noted = self._queues.note.load()
        return noted if noted.log_end <= self._log.files.capacity_end else NotedQueues()

    def _walk(self, start: int, replay_from: int, *, entered_to: int) -> Scan:
        """Read the log from `start` to its end, and lead the records from `replay_from` on into their queues.

        What lies before `entered_to` is in its queue, but for queues that lost entries.
        """
        complete = self._queues.is_incomplete
        while True:
            self._follower.begin_replay()
            scan = self._log.scan(start, check_crc=self._check_crc)
            progress = ProgressLine(self._clock, start, self._log.files.capacity_end)
            for message in scan:
                progress.passed(message.log_offset)
                if message.log_offset < replay_from:
                    if (queue_end := self._end_of_cut_queue(message)) is not None:
                        entered_to, start, replay_from = max(entered_to, replay_from), queue_end, queue_end
                        break
                elif message.log_offset < entered_to and self._queues.find(message.topic, message.queue_id) is None:
                    continue  # its topic was deleted
                elif not self._follower.replay(message, complete=complete):
                    logger.warning("queue entries are missing: reading the whole log")
                    start = replay_from = self._log.min_offset
                    complete = True
                    break
            else:
                self._follower.end_replay()
                return scan

    def _end_of_cut_queue(self, message: StoredMessage) -> int | None:
        """Return where the log ends for the queue of a message that should have an entry there, and has none.

        None: it has one, or none is missed, as for topics that were deleted, or made again since.
        """
        queue = self._queues.find(message.topic, message.queue_id)
        if queue is None or message.queue_offset < queue.max_offset or message.sys_flag & UNQUEUED:
            return None
        queue_end = max(queue.log_end, self._log.min_offset)
        if message.log_offset < queue_end:
            return None
        logger.warning("%s has lost entries from %d on: they are made again", queue.files.folder, queue.max_offset)
        return queue_end

    def _finish(self, scan: Scan, noted: NotedQueues, *, crashed: bool) -> None:
        end = scan.position
        for queue in self._queues:
            if crashed:
                queue.cut_forgotten()
            queue.cut_behind(end)
        self._queues.reach(noted)
        for queue in self._queues:
            queue.forget_before(self._log.min_offset)
            queue.unverified_end = queue.max_offset
        self._proof.log_began = self._log.min_offset
        self._queues.release()
        self._log.resume(end, scan.last_store_ms)
        ahead_ms = scan.last_store_ms - self._clock.now_ms()
        if ahead_ms > _CLOCK_TOLERANCE_MS:
            logger.warning(
                "the newest message was stored %d s later than it is now by this machine's clock: until then new ones"
                " get that time too; correct the clock if it is wrong",
                ahead_ms / 1000,
            )

    def _start_after_stop(self, queues_end: int) -> int:
        """Return a record's begin, about `_VERIFIED_BYTES` before the log's end."""
        begin = self._log.min_offset
        for queue in self._queues:
            if queue.log_end == queues_end:
                offset = queue.first(lambda entry: entry.log_offset >= queues_end - _VERIFIED_BYTES)
                begin = max(begin, self._record_of(queue, offset))
        segments = self._log.files.segments
        return begin if begin > segments[0].base else segments[max(0, len(segments) - _RECOVERED_FILES)].base

    def _start_after_crash(self, safe_ms: int) -> int:
        """Return the begin of the last record that the checkpoint vouches for, as far as segments and queues tell."""
        begin = self._log.min_offset
        if not self._queues.by_topic:
            return begin  # the queues are made again
        unsafe: dict[ConsumeQueue, int] = {}
        for segment in reversed(self._log.files.segments):
            if self._log.is_sound(segment.base) and self._is_safe(segment.base, safe_ms):
                begin = segment.base
                break
        for queue in self._queues:
            first_unsafe = queue.first(lambda entry: not self._is_safe_entry(entry, safe_ms))
            unsafe[queue] = first_unsafe
            known = self._record_of(queue, first_unsafe - 1)
            if known > begin and self._log.is_sound(known):  # else it is torn, and so its time may be any
                begin = known
        for queue, first_unsafe in unsafe.items():
            queue.forget_from(_entries_before(queue, first_unsafe, begin))  # the walk leads to them again
        return begin

    def _is_safe_entry(self, entry: QueueEntry, safe_ms: int) -> bool:
        # What fillers and expired records stood for is before everything that counts.
        if entry.is_filler or entry.log_offset < self._log.min_offset:
            return True
        return self._is_safe(entry.log_offset, safe_ms)

    def _is_safe(self, log_offset: int, safe_ms: int) -> bool:
        store_ms = self._log.store_ms_at(log_offset)
        return store_ms is not None and 0 < store_ms <= safe_ms

    def _record_of(self, queue: ConsumeQueue, queue_offset: int) -> int:
        """Return where the record of an entry begins; 0 if it is not there (any more)."""
        entry = queue.find(queue_offset)
        if entry is None or entry.size == FILLER_SIZE:
            return 0
        return entry.log_offset if self._log.record_at(entry.log_offset) is not None else 0


def _entries_before(queue: ConsumeQueue, count: int, log_offset: int) -> int:
    """Return how many of the first `count` entries lead to records before `log_offset`; torn ones at their end do not.

    A torn one may lead anywhere, also to where its predecessors come from.
    """
    while (entry := queue.find(count - 1)) is not None:
        before = queue.find(count - 2)
        if entry.log_offset < log_offset and (before is None or before.log_offset <= entry.log_offset):
            break
        count -= 1
    return count


class ProgressLine:
    """One walk over the log, from `start` to about `end`. Begins when it is made."""

    def __init__(self, clock: Clock, start: int, end: int) -> None:
        self._clock = clock
        self._start = start
        self._end = end
        self._began = clock.monotonic()
        self._next = self._began + _FIRST_SECONDS
        self._records = 0

    def passed(self, log_offset: int) -> None:
        """Take note of a record. Called for every one."""
        self._records += 1
        if self._records % _LOOK_RECORDS == 0 and (now := self._clock.monotonic()) >= self._next:
            self._next = now + _EVERY_SECONDS
            self._tell(log_offset, now - self._began)

    def _tell(self, log_offset: int, seconds: float) -> None:
        done, total = log_offset - self._start, self._end - self._start
        logger.warning(
            "reading the log: %.1f of %.1f GiB, %d messages a second, about %d s left",
            done / (1 << 30),
            total / (1 << 30),
            self._records / seconds,
            seconds * (total - done) / max(done, 1),
        )
