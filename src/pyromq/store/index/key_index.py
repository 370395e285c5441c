"""The key index of a store: finds messages by key.

Records are indexed after their append, at idle times or before a search.
"""

from __future__ import annotations

import contextlib
import re
import struct
from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from pyromq import speedups
from pyromq.clock import Clock
from pyromq.errors import StoreCorrupt, StoreNotWritable
from pyromq.java_hash import java_hash
from pyromq.logs import logger_of
from pyromq.message import SysFlag
from pyromq.names import TIMER_TOPIC
from pyromq.record import RecordHead, decode_labels, is_of_topic
from pyromq.slow_work import SlowWork, loaded, yield_slice
from pyromq.store.disk import LOCAL_DISK, Disk, disk_advice
from pyromq.store.index.index_file import IndexFile, IndexTail, index_file_bytes, index_hash, joined_hash, keys_of
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.log.segmented_log import Segment, sync_all

# Limit of records searched for keys between two index files; more records count as without keys.
_LOOKED_THROUGH = 10_000

logger = logger_of(__name__)

_TIMER_TOPIC = TIMER_TOPIC.encode()
_NAME = re.compile(r"\d{17}\Z")
_SLICE = 16  # records indexed by Python code between two readings of the clock
_ORDINARY_SLICE = 64  # records indexed by compiled code between two readings of the clock
_KEYS_AT_ONCE = 64  # keys indexed between two readings of the clock: a record may have thousands of keys


class KeyMatches(NamedTuple):
    """The result of a search by key: log offsets of messages, the newest first.

    The other fields are store time (ms) and log offset of the last indexed record; 0 for an empty index.
    """

    log_offsets: list[int]
    last_update_ms: int
    last_update_log_offset: int


class _PartialRecord(NamedTuple):
    """A record with many keys, of which the first `done` keys are indexed."""

    log_offset: int
    keys: list[tuple[str, str]]
    done: int


class KeyIndex:
    """The key index of one store. Records before log offset `position` are indexed. Only one thread may index."""

    def __init__(self, folder: Path, *, slots: int, entries: int, clock: Clock, disk: Disk = LOCAL_DISK) -> None:
        self.position = 0
        self.files: list[IndexFile] = []
        self._no_file = IndexTail()  # indexes records without keys, as long as there is no file
        self._unflushed: deque[IndexFile] = deque()
        self._folder = folder
        self._slots = slots
        self._entries = entries
        self._clock = clock
        self._disk = disk
        self._warning = ""
        self._partial: _PartialRecord | None = None

    # -- opening

    def load(self, log: CommitLog, *, flushed_ms: int, power_loss: bool) -> None:
        """Find the index files, delete damaged ones, and set `position`, the log offset where indexing continues.

        After a power loss, files that are not full, or that have records stored after `flushed_ms`, may be incomplete:
        these files are deleted and rebuilt from the log. Without a power loss these files are flushed again, as a
        killed process may not have flushed them. From the first file on that has another size, a damaged head or no
        previous file, all files are rebuilt too. Raises `StoreCorrupt` if all files have another size.
        """
        self._load_files()
        if not power_loss and max((file.end_ms for file in self.files), default=0) < flushed_ms:
            place = self.files[-1].file.path if self.files else self._folder
            logger.warning("%s: the last index file is missing; the index is rebuilt from here on", place)
        self._drop_damaged(log)
        while self.files and not self._is_intact(self.files[-1], log, flushed_ms if power_loss else None):
            self.files.pop().file.delete()
        while power_loss and len(self.files) > 1 and self.files[-2].end_ms == flushed_ms:
            self.files.pop().file.delete()  # of files with the same end time only the first may be on disk
        for file in self.files:
            if file.end_ms > flushed_ms or not file.is_full:
                file.file.is_fresh = True
                if file is not self.files[-1]:
                    self._unflushed.append(file)
        self.position = log.min_offset
        last = log.record_at(self.files[-1].end_log_offset) if self.files else None
        if last is not None:
            self._continue_after(self.files[-1].end_log_offset, last)

    def _continue_after(self, log_offset: int, record: memoryview) -> None:
        """Set `position` after the last indexed record.

        If full files have only some keys of that record, set `position` to its beginning.
        """
        self.position = log_offset + len(record)
        done = 0
        for file in reversed(self.files):
            done += file.last_entries_of(log_offset)
            if not file.is_full or done < file.entries - 1:
                break
        with contextlib.suppress(StoreCorrupt):
            head = decode_labels(record, 0)
            keys = keys_of(head.topic, head.property_text)
            if self.files[-1].is_full and done < len(keys):
                self.position, self._partial = log_offset, _PartialRecord(log_offset, keys, done)

    def _drop_damaged(self, log: CommitLog) -> None:
        """Delete all files from the first file on that is damaged or lacks its previous file."""
        indexed_to: int | None = log.min_offset
        for number, file in enumerate(self.files):
            if fault := _head_fault(file, log) or _gap_before(file, indexed_to, log):
                logger.warning("%s: %s; the index is rebuilt from this file on", file.file.path, fault)
                while len(self.files) > number:
                    self.files.pop().file.delete()
                return
            last = log.record_at(file.end_log_offset)
            indexed_to = None if last is None else file.end_log_offset + len(last)

    def _load_files(self) -> None:
        expected = index_file_bytes(self._slots, self._entries)
        sizes = {path: self._disk.size(path) for path in self._own_files()}
        misfit = next((path for path, size in sizes.items() if size not in (0, expected)), None)
        if misfit is not None and expected not in sizes.values():
            raise StoreCorrupt(
                f"{misfit} has {sizes[misfit]} bytes, expected {expected}: open the store with the index_slots"
                " (maxHashSlotNum) and index_entries (maxIndexNum) of its creation, or delete the index folder: the"
                " next start rebuilds it"
            )
        for path, size in sizes.items():
            if misfit is not None and path >= misfit:
                logger.warning("%s: the index is rebuilt from this file on, as %s has a wrong size", path, misfit.name)
                self._disk.remove(path)
            elif size == 0:  # left by a crash between creation and resizing of the file
                self._disk.remove(path)
            else:
                file = IndexFile(path, self._slots, self._entries, self._disk)
                file.load()
                self.files.append(file)

    def _own_files(self) -> Iterator[Path]:
        for name in self._disk.names(self._folder):
            if _NAME.match(name):
                yield self._folder / name
            else:
                logger.warning("%s is not a file of the store and is ignored", self._folder / name)

    @staticmethod
    def _is_intact(file: IndexFile, log: CommitLog, trusted_ms: int | None) -> bool:
        if trusted_ms is not None and (file.end_ms > trusted_ms or not file.is_full):
            return False
        return file.end_log_offset < log.end and not file.is_empty

    # -- following the log

    @property
    def full_ms(self) -> int:
        """End store time (ms) of the last full file; 0 if no file is full."""
        return max((file.end_ms for file in self.files if file.is_full), default=0)

    def behind(self, log: CommitLog) -> int:
        """Return the number of bytes of the log that are not indexed yet."""
        return log.end - self.position

    def follow(self, log: CommitLog, budget_seconds: float | None) -> bool:
        """Index records up to the log's end, or for `budget_seconds`. Return True if no record is left to index.

        Raises `StoreNotWritable` if the disk is full; a later call continues.
        """
        if self.position >= log.end:
            return True
        try:
            done = self._follow(log, budget_seconds)
        except OSError as error:
            raise StoreNotWritable(
                f"cannot extend the key index in {self._folder}: "
                + disk_advice(error, "messages are found by key again")
            ) from error
        self._warning = ""
        return done

    def step(self, log: CommitLog, budget_seconds: float) -> bool:
        """Index as `follow` does. An error of the disk is logged once, and True is returned."""
        try:
            return self.follow(log, budget_seconds)
        except StoreNotWritable as error:
            if str(error) != self._warning:
                self._warning = str(error)
                logger.warning("%s", error)
            return True

    def _follow(self, log: CommitLog, budget_seconds: float | None) -> bool:
        monotonic = self._clock.monotonic
        deadline = None if budget_seconds is None else monotonic() + budget_seconds
        while True:
            self.position = max(self.position, log.min_offset)
            if not speedups.is_active:
                self._enter_plainly(log, _SLICE)
            elif self._enter_ordinary(log) < _ORDINARY_SLICE:
                self._enter_plainly(log, 1)
            if self.position >= log.end:
                return True
            if deadline is not None and monotonic() >= deadline:
                return False

    def _enter_ordinary(self, log: CommitLog) -> int:
        """Index records with compiled code up to the first unusual record. Return the number of indexed records."""
        segment = log.files.find(self.position)
        if segment is None or self._partial:
            return 0
        file = self.files[-1] if self.files else self._no_file
        self.position, count = file.enter(
            segment.memory[self.position - segment.base : log.end - segment.base],
            log_offset=self.position,
            last_store_ms=log.last_store_ms,
            most=_ORDINARY_SLICE,
            skipped=_TIMER_TOPIC,
        )
        return count

    def _enter_plainly(self, log: CommitLog, most: int) -> None:
        for count, (log_offset, record) in enumerate(log.records_from(self.position), 1):
            try:
                if not is_of_topic(record, _TIMER_TOPIC):  # faster than decoding; this topic has no keys
                    head = decode_labels(record, 0)
                    if head.log_offset != log_offset or head.store_ms > log.last_store_ms:
                        raise StoreCorrupt(f"its log offset is {head.log_offset}, its store time {head.store_ms}")
                    if not self._put(head):
                        return
            except (StoreCorrupt, struct.error, IndexError) as error:
                place = log.place_of(log_offset)
                logger.warning("%s: the record is damaged and is not indexed: %s", place, error)
            self.position = min(log_offset + len(record), log.end)  # a damaged length may lead beyond the end
            if count == most:
                return
        self.position = log.end

    def _put(self, head: RecordHead) -> bool:
        """Index a record by its unique id and its keys, unless the record is a rolled back transaction message.

        Return False if the record has more keys: the caller must call again to index the next keys.
        """
        if _is_rolled_back(head):
            return True
        partial = self._partial
        if partial is None or partial.log_offset != head.log_offset:
            partial = _PartialRecord(head.log_offset, keys_of(head.topic, head.property_text), 0)
        done, end = partial.done, partial.done + _KEYS_AT_ONCE
        hashes = [index_hash(joined_hash(*key)) for key in partial.keys[done:end]]
        file = self.files[-1] if self.files else None
        if file is not None:
            file.reserve(hashes)
        for key_hash in hashes:
            if file is None or file.is_full:
                self._partial = partial._replace(done=done)  # if the disk is full, a later call continues here
                file = self._add_file()
                file.reserve(hashes)
            file.put(key_hash, head.log_offset, head.store_ms)
            done += 1
        if end < len(partial.keys):
            self._partial = partial._replace(done=done)
            return False
        self._partial = None
        if file is not None and partial.keys:
            file.write_header()  # after the last key: a process killed earlier indexes the record again
        return True

    def _add_file(self) -> IndexFile:
        last = self.files[-1] if self.files else None
        if last is not None:
            last.write_header()
        self._disk.make_folder(self._folder)
        file = IndexFile(self._fresh_path(), self._slots, self._entries, self._disk)
        try:
            file.create(end_ms=last.end_ms if last else 0, end_log_offset=last.end_log_offset if last else 0)
        except OSError:
            with contextlib.suppress(OSError):
                file.file.delete()  # the next attempt has another name, and needs the disk space
            raise
        if last is not None:
            self._unflushed.append(last)
        self.files.append(file)
        return file

    def _fresh_path(self) -> Path:
        """Return the path of a new file, named by the local time. Names must ascend, as names order the files."""
        name = int(datetime.fromtimestamp(self._clock.now_ms() / 1000).strftime("%Y%m%d%H%M%S%f")[:17])
        if self.files:
            name = max(name, int(self.files[-1].file.path.name) + 1)
        return self._folder / f"{name:017}"

    def drop_before(self, log_offset: int) -> list[Segment]:
        """Remove the files whose records all begin before `log_offset`, except the last file.

        Return the removed files, which the caller must delete.
        """
        dropped = []
        while len(self.files) > 1 and self.files[0].end_log_offset < log_offset:
            dropped.append(self.files.pop(0).file)
        return dropped

    def next_unflushed(self) -> IndexFile | None:
        """Remove a full file from the queue of unflushed files and return the file; None if the queue is empty.

        Thread-safe.
        """
        try:
            return self._unflushed.popleft()
        except IndexError:
            return None

    def close(self) -> int:
        """Flush and unmap all files.

        Return the store time (ms) up to which the index is complete on disk; 0 without files.
        """
        if not self.files:
            return 0
        last = self.files[-1]
        unflushed = [last.file]
        while (full := self.next_unflushed()) is not None:
            unflushed.append(full.file)
        sync_all(unflushed, self._disk)
        for file in self.files:
            file.file.release()
        return last.end_ms

    # -- reading

    async def search(
        self,
        topic: str,
        key: str,
        max_count: int,
        *,
        begin_ms: int,
        end_ms: int,
        has_key: Callable[[int], SlowWork[bool]],
    ) -> KeyMatches:
        """Return the log offsets of up to `max_count` records with a key, stored from `begin_ms` to `end_ms`.

        Both ends are included. `has_key` returns whether the record at a log offset has the key, as other keys may have
        the same hash.
        """
        found: list[int] = []
        looked_at, fits = -1, False
        key_hash = index_hash(java_hash(f"{topic}#{key}"))
        for file in self.files[::-1]:
            if file.overlaps(begin_ms, end_ms) and file in self.files:  # the file may have been deleted meanwhile
                for log_offset in file.search(key_hash, begin_ms=begin_ms, end_ms=end_ms):
                    if len(found) >= max_count:
                        break
                    if not isinstance(log_offset, int):
                        await (loaded(log_offset) if log_offset else yield_slice())
                        continue
                    if log_offset != looked_at:  # consecutive entries may lead to the same record
                        looked_at, fits = log_offset, await has_key(log_offset)
                    if fits:
                        found.append(log_offset)
            if file.begin_ms < begin_ms or len(found) >= max_count:
                break
        last = self.files[-1] if self.files else None
        return KeyMatches(found, last.end_ms if last else 0, last.end_log_offset if last else 0)


def _head_fault(file: IndexFile, log: CommitLog) -> str:
    if not file.has_plausible_head:
        return "its head is damaged"
    if file.is_empty:
        return ""
    for log_offset in (file.begin_log_offset, file.end_log_offset):
        if log.min_offset <= log_offset < log.end and log.record_at(log_offset) is None:
            return f"its head names log offset {log_offset}, where no record begins"
    return ""


def _gap_before(file: IndexFile, start: int | None, log: CommitLog) -> str:
    """Return a text if records with keys lie between log offset `start` and the first record of the file; else ""."""
    if start is None or file.is_empty or file.begin_log_offset <= start:
        return ""
    for log_offset, record in islice(log.records_from(start), _LOOKED_THROUGH):
        if log_offset >= file.begin_log_offset:
            break
        with contextlib.suppress(StoreCorrupt):
            head = decode_labels(record, 0)
            if not _is_rolled_back(head) and keys_of(head.topic, head.property_text):
                missing = f"no file has keys from log offset {log_offset} to {file.begin_log_offset}"
                return f"the previous file is missing: {missing}"
    return ""


def _is_rolled_back(head: RecordHead) -> bool:
    return head.sys_flag & SysFlag.ROLLBACK == SysFlag.ROLLBACK
