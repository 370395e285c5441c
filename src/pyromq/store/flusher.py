"""Flushes log, queues and index to disk: at intervals, or immediately if a request waits for the flush.

One thread calls fdatasync. Records written during a flush belong to the next flush, so many waiting requests share one
flush. Source: RocketMQ 4.9.8, GroupCommitService, FlushRealTimeService, FlushConsumeQueueService.
"""

from __future__ import annotations

import errno
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

from pyromq.clock import Clock
from pyromq.logs import logger_of
from pyromq.store.checkpoint import Checkpoint
from pyromq.store.directory import Directory
from pyromq.store.disk import LOCAL_DISK, Disk
from pyromq.store.index.key_index import KeyIndex
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.log.preallocation import MAPPED_BEFORE_END
from pyromq.store.log.segmented_log import Segment, SegmentedLog, sync_all, sync_folders
from pyromq.store.queue.consume_queue import ENTRY_BYTES, ConsumeQueue
from pyromq.store.queue.queue_table import QueueTable
from pyromq.store.store_config import FlushMode, StoreConfig

logger = logger_of(__name__)

CHECK_SECONDS = 0.5  # longest time between checks for lost files: a loss stops appends within a second
UNMAP_SECONDS = 2.0  # time between two rounds that unmap pages far from the log's end

WRITE_OUT_BYTES = 2 << 20  # unflushed bytes of the log from which `_write_out` writes before a flush
MAX_ROUNDS = 3  # rounds of `_write_out` before a flush: a disk may be slower than the producers

_PAGE = 4096


class _Waiter(NamedTuple):
    log_offset: int
    deadline: float
    flushed: Future[bool]


class Flusher:
    """Owns the flushing thread and the requests that wait for a flush. The log before `flushed_to` is on disk.

    After a failed flush the log refuses appends until the next start: a later flush could succeed although pages were
    lost.
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
        self._disk = disk
        self._log = log
        self._queues = queues
        self._index = index
        self._checkpoint = checkpoint
        self._directory = directory
        self._presence = Presence(log.files, index, directory, disk)
        self._config = config
        self._clock = clock
        self._wake = threading.Event()
        self._started = self._stopping = False
        self._failure: OSError | None = None
        self._thread: threading.Thread | None = None
        # The lock guards `_waiters` and `_deletions`, which the flushing and the appending thread change.
        self._lock = threading.Lock()
        self._waiters: deque[_Waiter] = deque()
        self._deletions: list[Future[None]] = []
        self._dropped_at = 0.0
        self.missing: tuple[Path, ...] = ()  # older files and tables deleted while the store is open
        self._checked_at = 0.0
        self._log_flushed_at = self._queues_flushed_at = self._queues_synced_at = 0.0

    def start(self, flushed_to: int) -> None:
        """Start to flush from log offset `flushed_to` on, in a thread if the disk allows threads."""
        self.flushed_to = flushed_to
        self._log_flushed_at = self._queues_flushed_at = self._queues_synced_at = self._clock.monotonic()
        self._started = True
        if self._disk.in_threads:
            self._thread = threading.Thread(target=self._run, name="store-flush", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Join the thread and flush everything. Waits that remain resolve to False. Raises `OSError` if a flush fails.

        If an earlier flush failed, its error is raised again: a second flush could succeed although pages were lost.
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
            deletions = self._take_deletions()
            try:
                self._queues.remove_deleted()
            finally:
                self._resolve(deletions)

    def wait(self, log_offset: int) -> Future[bool]:
        """Return a future that resolves to True once the log before `log_offset` is on disk.

        The future resolves to False after `sync_flush_timeout_ms`, or if a flush fails. The flusher's thread resolves
        the future.
        """
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
        """Delete the files of queues that the caller has removed from the table.

        The returned future resolves once the deletion is durable, or after an error of the disk.
        """
        noted: Future[None] = Future()
        with self._lock:
            if waits := self._started and self._failure is None:  # otherwise no thread resolves the future
                self._deletions.append(noted)
        if not (waits and self._disk.in_threads):
            try:
                self._queues.remove_deleted()
            except OSError as error:
                self._fail(error)
        if waits:
            self._wake.set()
        else:
            noted.set_result(None)
        return noted

    def expire(self, now: float) -> None:
        """Resolve waits whose deadline is before `now` (monotonic seconds) to False.

        The flushing thread cannot resolve these waits while a stuck disk blocks the thread.
        """
        self._answer(self._take(lambda waiter: waiter.deadline <= now), False)

    # -- called by the flushing thread, and by `stop` after that thread has ended

    def flush_log(self) -> None:
        self._write_out()
        last_store_ms = self._log.last_store_ms  # read first: its record must lie before `end`
        end = self._log.end
        sync_all(self._log.files.between(self.flushed_to, end), self._disk)
        self._presence.check()  # needed, as a flush of a deleted file succeeds
        self.flushed_to = end
        self._log_flushed_at = self._clock.monotonic()
        self._checkpoint.log_ms = max(self._checkpoint.log_ms, last_store_ms)
        self._answer(self._take(lambda waiter: waiter.log_offset <= end), True)

    def _write_out(self) -> None:
        """Write unflushed log bytes to disk in small steps, so that the flush is short.

        Ends if a request waits for a flush.
        """
        start = self.flushed_to
        for _ in range(MAX_ROUNDS):
            end = self._log.end
            if self._waiters or self._stopping or end - start < WRITE_OUT_BYTES:
                break
            for segment in self._log.files.between(start, end):
                segment.write_out(start, end)
            start = end

    def flush_queues(self, least_pages: int) -> None:
        """Flush queues with at least `least_pages` unflushed pages; 0 flushes all queues and saves the checkpoint.

        The log is flushed between two queues if its flush is due: flushing thousands of queues on a slow disk takes
        long.
        """
        last_store_ms = self._log.last_store_ms
        segments: list[Segment] = []
        flushed: list[tuple[ConsumeQueue, int, int]] = []
        for queue in self._queues:
            cuts, end = queue.cuts, queue.max_offset
            dirty = (end - queue.flushed_offset) * ENTRY_BYTES
            if dirty > 0 and dirty >= least_pages * _PAGE:
                segments += queue.unflushed(end)
                flushed.append((queue, end, cuts))
            elif not least_pages:
                segments += queue.files.fresh()  # a queue without new entries may have a new file
        sync_all(segments, self._disk, between=self._flush_log_if_due)
        for queue, end, cuts in flushed:
            if queue.cuts == cuts:  # otherwise the topic was created again meanwhile
                queue.flushed_offset = end
        self._queues_flushed_at = self._clock.monotonic()
        if not least_pages:
            self._queues_synced_at = self._queues_flushed_at
            self._checkpoint.queues_ms = max(self._checkpoint.queues_ms, last_store_ms)
            self._checkpoint.log_begin = self._log.min_offset if self._log.files.segments else None
            self._checkpoint.save()
            if self._queues.has_new or self._stopping:
                self._save_ends()

    def _save_ends(self) -> None:
        """Save the ends of queues after a flush of the log. Deletes the files of deleted queues first.

        Without the flush, a start after a power loss would report entries beyond the log's end as lost.
        """
        deletions = self._take_deletions()
        try:
            self._queues.remove_deleted(self._flush_log_if_due)
            self.flush_log()
            self._queues.save_ends(self.flushed_to)
        finally:
            self._resolve(deletions)

    def _take_deletions(self) -> list[Future[None]]:
        with self._lock:
            taken, self._deletions = self._deletions, []
        return taken

    @staticmethod
    def _resolve(deletions: list[Future[None]]) -> None:
        for deletion in deletions:
            deletion.set_result(None)

    def sync_entries(self) -> None:
        """Flush all queue entries now; blocks. Raises `OSError`. Thread-safe: does not change `flushed_offset`."""
        if self._failure is not None:
            raise self._failure  # a second flush could succeed although pages were lost in the first
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
            self._wake.wait(min(self._config.flush_interval_ms / 1000, CHECK_SECONDS))
            self._wake.clear()
            if not self.turn():
                return

    def turn(self) -> bool:
        """Flush the data whose flush is due. Return False if a flush has failed.

        Called by the flushing thread, or by the store if the disk allows no threads.
        """
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
            self._directory.mark_unflushed()
            logger.exception("a flush failed; the store refuses messages until the next start")
            self._log.refuse(f"a flush failed: {error}; check the disk, then restart the broker")
        self._answer(self._take(lambda _: True), False)
        self._resolve(self._take_deletions())

    def _flush_due(self) -> None:
        if self._waiters or self._log_is_due():
            self.flush_log()
        else:
            self._presence.check()
        self._look_for_missing()
        self._drop_pages()
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
            self._save_ends()

    def _look_for_missing(self) -> None:
        """Log each older file or table that was deleted. Sends continue, as the deletion endangers no new message."""
        now = self._clock.monotonic()
        if now - self._checked_at < CHECK_SECONDS:
            return
        self._checked_at = now
        missing = tuple(self._presence.missing())
        if new := [path for path in missing if path not in self.missing]:
            logger.error(
                "files were deleted or moved while the broker runs: %s (%d in all); their content can be read until"
                " the broker stops. Put the files back before a stop",
                *(new[0], len(new)),
            )
        self.missing = missing

    def _drop_pages(self) -> None:
        """Unmap log pages far from the log's end. The key index reads the whole log and so maps such pages."""
        now = self._clock.monotonic()
        if now - self._dropped_at >= UNMAP_SECONDS:
            self._dropped_at = now
            self._log.files.drop_pages_before(self._log.end - MAPPED_BEFORE_END)

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
        """Remove and return the first waiters that `chosen` accepts. Offsets and deadlines of the waiters ascend."""
        taken = []
        with self._lock:
            while self._waiters and chosen(self._waiters[0]):
                taken.append(self._waiters.popleft())
        return taken

    @staticmethod
    def _answer(waiters: list[_Waiter], flushed: bool) -> None:
        for waiter in waiters:
            waiter.flushed.set_result(flushed)


class FilesLost(OSError):
    """Raised if a file or folder of an open store was deleted, moved, replaced or unmounted."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            errno.ENOENT,
            f"{path} was deleted, moved, replaced or unmounted while the broker runs; the store refuses messages."
            " Consume the messages you need before the broker stops, then put it back and restart",
        )

    def __str__(self) -> str:
        return str(self.strerror)


class Presence:
    """Detects that files of an open store were deleted, moved or replaced: data folder, tables, queues, log, index.

    Writes to a mapped file succeed after the file's deletion, and are lost when the process ends. So the files at the
    known paths are compared with the opened files. Each opened file stays open, so that no other file can get its
    inode.
    """

    def __init__(self, log: SegmentedLog, index: KeyIndex, directory: Directory, disk: Disk) -> None:
        self._log = log
        self._index = index
        self._directory = directory
        self._disk = disk
        self._opened: dict[Path, int] = {}
        self._tables: set[Path] = set()  # all tables seen so far; a deleted table that is saved again is not missing

    def check(self) -> None:
        """Raise `FilesLost` with the lost path, or another `OSError`.

        A path that is new since the last check is opened.
        """
        watched = self._watched()
        for path in self._opened.keys() - watched.keys():
            self._disk.close(self._opened.pop(path))
        for path, reported in watched.items():
            if not self._is_unchanged(path) and path in self._watched():  # not deleted by retention meanwhile
                raise FilesLost(reported)

    def _is_unchanged(self, path: Path) -> bool:
        """Return True if the path still leads to the file that was opened, or opens it now. Raises `OSError`."""
        try:
            if path not in self._opened:
                self._opened[path] = self._disk.open(path, write=False)
            return self._disk.is_at(self._opened[path], path)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def missing(self) -> list[Path]:
        """Return older log files, index files and tables that are deleted or moved.

        No new message depends on these files.
        """
        older = [segment.path for segment in self._log.segments[:-1]]
        gone = [path for path in (*older, *self._index_paths()) if self._disk.size(path) is None]
        if gone:  # ignore files that retention has deleted meanwhile
            kept = {*(segment.path for segment in self._log.segments), *self._index_paths()}
            gone = [path for path in gone if path in kept]
        config = self._directory.config
        tables = {config / name for name in self._disk.names(config) if name.endswith(".json")}
        self._tables |= tables
        return [*gone, *sorted(self._tables - tables)]

    def _index_paths(self) -> list[Path]:
        return [file.file.path for file in list(self._index.files)]

    def _watched(self) -> dict[Path, Path]:
        """Return a dict from each path to check to the path that an error reports."""
        directory, opened = self._directory, self._opened
        watched = {directory.lock_file: directory.root}
        watched |= {segment.path: segment.path for segment in self._log.segments[-1:]}
        made_later = (self._log.folder, directory.consume_queues, directory.config, directory.timers)
        return watched | {each: each for each in made_later if each in opened or self._disk.is_folder(each)}

    def close(self) -> None:
        while self._opened:
            self._disk.close(self._opened.popitem()[1])
