"""When what was written reaches the disk: at intervals, or as soon as possible for those who wait.

One thread calls fdatasync; everything that was written meanwhile is in its next turn, so many waiters share one call.
It reads the positions the writer has reached and touches nothing else of the store. Source: RocketMQ 4.9.8,
GroupCommitService, FlushRealTimeService, FlushConsumeQueueService.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

from pyromq.clock import Clock
from pyromq.logs import logger_of
from pyromq.store.checkpoint import Checkpoint
from pyromq.store.config import FlushMode, StoreConfig
from pyromq.store.directory import Directory
from pyromq.store.disk import LOCAL_DISK, Disk
from pyromq.store.index.key_index import KeyIndex
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.log.preallocation import KEPT_BEHIND
from pyromq.store.log.segment import Segment, sync_all, sync_folders
from pyromq.store.presence import FilesLost, Presence
from pyromq.store.queue.consume_queue import ENTRY_BYTES, ConsumeQueue
from pyromq.store.queue.queue_table import QueueTable

logger = logger_of(__name__)

LOOK_SECONDS = 0.5  # longest time between two looks for lost files: a broker refuses within a second of the loss
FORGET_SECONDS = 2.0  # between two rounds of letting go of pages

MUCH_BYTES = 2 << 20  # of the log: handing more to the disk at once takes half a millisecond of the processor
MOST_ROUNDS = 3  # of doing that before a flush: a disk may be slower than those who write

_PAGE = 4096


class _Waiter(NamedTuple):
    log_offset: int
    deadline: float
    flushed: Future[bool]


class Flusher:
    """Owns the flushing thread and those who wait for it; `flushed_to` is the log offset known to be on disk.

    An error of the disk ends everything: the log refuses appends from then on, since lost pages never come back.
    """

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        index: KeyIndex,
        *,
        checkpoint: Checkpoint,
        directory: Directory,
        config: StoreConfig,
        clock: Clock,
        disk: Disk = LOCAL_DISK,
    ) -> None:
        self.flushed_to = 0
        self.on_failure: Callable[[], None] = lambda: None  # called by the thread when the disk has refused
        self._disk = disk
        self._log = log
        self._queues = queues
        self._index = index
        self._checkpoint = checkpoint
        self._presence = Presence(log.files, directory, disk)
        self._config = config
        self._clock = clock
        self._wake = threading.Event()
        self._started = self._stopping = False
        self._failure: OSError | None = None
        self._thread: threading.Thread | None = None
        # The waiters are the one thing both threads change: those who ask, and the flushing thread.
        self._lock = threading.Lock()
        self._waiters: deque[_Waiter] = deque()
        self._deletions: list[Future[None]] = []
        self._forgotten_at = 0.0
        self._log_flushed_at = self._queues_flushed_at = self._queues_synced_at = 0.0

    def start(self, flushed_to: int) -> None:
        """Begin to flush, from that log offset on; in a thread where there may be one."""
        self.flushed_to = flushed_to
        self._log_flushed_at = self._queues_flushed_at = self._queues_synced_at = self._clock.monotonic()
        self._started = True
        if self._disk.in_threads:
            self._thread = threading.Thread(target=self._run, name="store-flush", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread, then flush everything. Raises `OSError`; whoever still waits is told False.

        After an error it raises that one again: a second try could succeed without the pages lost in the first.
        """
        if not self._started:
            return
        self._started = False
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        try:
            if self._failure is not None:
                raise self._failure
            self.flush_log()
            self.flush_queues(least_pages=0)
        finally:
            self._presence.close()
            self._answer(self._take(lambda _: True), False)
            self._queues.remove_deleted()
            self._end(self._take_deletions())

    def wait(self, log_offset: int) -> Future[bool]:
        """Resolve to True once the log before `log_offset` is on disk, to False after the timeout."""
        flushed: Future[bool] = Future()
        if log_offset <= self.flushed_to or self._failure is not None:
            flushed.set_result(log_offset <= self.flushed_to)
            return flushed
        deadline = self._clock.monotonic() + self._config.sync_flush_timeout_ms / 1000
        with self._lock:
            self._waiters.append(_Waiter(log_offset, deadline, flushed))
        self._wake.set()
        return flushed

    def note_deletion(self) -> Future[None]:
        """Have the files of queues removed that were just deleted.

        Resolves once no crash brings them back, or the disk has refused.
        """
        noted: Future[None] = Future()
        with self._lock:
            if waits := self._started and self._failure is None:  # else nobody takes it
                self._deletions.append(noted)
        if not (waits and self._disk.in_threads):
            self._queues.remove_deleted()
        if waits:
            self._wake.set()
        else:
            noted.set_result(None)
        return noted

    def expire(self, now: float) -> None:
        """Tell those whose patience has ended: a stuck disk holds the flushing thread, which cannot."""
        self._answer(self._take(lambda waiter: waiter.deadline <= now), False)

    # -- in the flushing thread, and once more when it has ended

    def flush_log(self) -> None:
        self._write_out()
        last_store_ms = self._log.last_store_ms  # read before the end: what it speaks of lies before the end
        end = self._log.end
        sync_all(self._log.files.between(self.flushed_to, end), self._disk)
        self._presence.check()  # the flush of a lost file succeeds
        self.flushed_to = end
        self._log_flushed_at = self._clock.monotonic()
        self._checkpoint.log_ms = max(self._checkpoint.log_ms, last_store_ms)
        self._answer(self._take(lambda waiter: waiter.log_offset <= end), True)

    def _write_out(self) -> None:
        """Hand the log to the disk with pauses, and what came meanwhile too, while nobody waits for it to be there."""
        start = self.flushed_to
        for _ in range(MOST_ROUNDS):
            end = self._log.end
            if self._waiters or self._stopping or end - start < MUCH_BYTES:
                break
            for segment in self._log.files.between(start, end):
                segment.write_out(start)
            start = end

    def flush_queues(self, least_pages: int) -> None:
        """Flush the queues with that many dirty pages; with 0 all, and then say so in the checkpoint.

        There may be thousands on a slow disk: the log, for which somebody waits, is flushed between them.
        """
        last_store_ms = self._log.last_store_ms
        segments: list[Segment] = []
        flushed: list[tuple[ConsumeQueue, int]] = []
        for queue in self._queues:
            end = queue.max_offset
            dirty = (end - queue.flushed_offset) * ENTRY_BYTES
            if dirty > 0 and dirty >= least_pages * _PAGE:
                segments += queue.unflushed(end)
                flushed.append((queue, end))
            elif not least_pages:
                segments += queue.files.fresh()  # without entries so far
        sync_all(segments, self._disk, between=self._flush_log_if_due)
        for queue, end in flushed:
            queue.flushed_offset = end
        self._queues_flushed_at = self._clock.monotonic()
        if not least_pages:
            self._queues_synced_at = self._queues_flushed_at
            self._checkpoint.queues_ms = max(self._checkpoint.queues_ms, last_store_ms)
            self._checkpoint.log_begin = self._log.min_offset
            self._checkpoint.save()
            if self._queues.has_new or self._stopping:
                self._note_queues()

    def _note_queues(self) -> None:
        """Note how far the queues are, once the log has that on disk too: else they would miss what it never kept."""
        noted = self._take_deletions()
        try:
            self._queues.remove_deleted(self._flush_log_if_due)
            self.flush_log()
            self._queues.write_note(self.flushed_to)
        finally:
            self._end(noted)

    def _take_deletions(self) -> list[Future[None]]:
        with self._lock:
            noted, self._deletions = self._deletions, []
        return noted

    @staticmethod
    def _end(deletions: list[Future[None]]) -> None:
        for noted in deletions:
            noted.set_result(None)

    def sync_entries(self) -> None:
        """Have all entries of queues on disk now. Safe to call from any thread; changes nothing that `turn` knows."""
        if self._failure is not None:
            raise self._failure  # a second try could succeed without what the first has lost
        segments = [segment for queue in self._queues for segment in queue.unflushed(queue.max_offset)]
        folders: dict[Path, None] = {}
        try:
            for segment in segments:
                segment.sync()
                folders.update(dict.fromkeys(segment.folders))
            sync_folders(folders, self._disk)
        except OSError as error:
            self._fail(error)
            raise

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait(min(self._config.flush_interval_ms / 1000, LOOK_SECONDS))
            self._wake.clear()
            if not self.turn():
                return

    def turn(self) -> bool:
        """Flush what is due; False, for ever, once the disk has refused. Called by the thread, or instead of it."""
        if self._failure is not None:
            return False
        try:
            self._flush_due()
        except OSError as error:
            self._fail(error)
            return False
        return True

    def _fail(self, error: OSError) -> None:
        self._failure = error
        if isinstance(error, FilesLost):
            logger.error("%s", error)
            self._log.refuse(str(error))
        else:
            self.on_failure()
            logger.exception("the disk refuses to store; no more messages are taken")
            self._log.refuse(f"the disk refuses to store: {error}; see to it and restart")
        self._answer(self._take(lambda _: True), False)
        self._end(self._take_deletions())

    def _flush_due(self) -> None:
        self._presence.check()
        self._forget()
        self._flush_log_if_due()
        now = self._clock.monotonic()
        config = self._config
        if (now - self._queues_synced_at) * 1000 >= config.queue_flush_thorough_interval_ms:
            if self._checkpoint.queues_ms < self._log.last_store_ms:
                self.flush_queues(least_pages=0)
        elif (now - self._queues_flushed_at) * 1000 >= config.queue_flush_interval_ms:
            self.flush_queues(least_pages=config.queue_flush_least_pages)
        if (file := self._index.next_unflushed()) is not None:
            sync_all([file.file], self._disk)
            self._checkpoint.index_ms = max(self._checkpoint.index_ms, file.end_ms)
        if self._queues.has_deleted or self._deletions:
            self._note_queues()

    def _forget(self) -> None:
        """Let go of pages that somebody has read far behind the writer: the key index reads all of the log."""
        now = self._clock.monotonic()
        if now - self._forgotten_at >= FORGET_SECONDS:
            self._forgotten_at = now
            self._log.files.forget_before(self._log.end - KEPT_BEHIND)

    def _flush_log_if_due(self) -> None:
        if self._waiters or self._log_is_due():
            self.flush_log()

    def _log_is_due(self) -> bool:
        dirty = self._log.end - self.flushed_to
        passed_ms = (self._clock.monotonic() - self._log_flushed_at) * 1000
        if passed_ms >= self._config.flush_thorough_interval_ms:
            return dirty > 0
        enough = self._config.flush is FlushMode.SYNC or dirty >= self._config.flush_least_pages * _PAGE
        return dirty > 0 and enough and passed_ms >= self._config.flush_interval_ms

    def _take(self, chosen: Callable[[_Waiter], bool]) -> list[_Waiter]:
        """Remove the chosen waiters, all of them at the front: offsets and deadlines only grow."""
        taken = []
        with self._lock:
            while self._waiters and chosen(self._waiters[0]):
                taken.append(self._waiters.popleft())
        return taken

    @staticmethod
    def _answer(waiters: list[_Waiter], flushed: bool) -> None:
        for waiter in waiters:
            waiter.flushed.set_result(flushed)
