"""The key index over all its files. Records are indexed after their append, in idle time or before a search."""

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
from pyromq.slow_work import SlowWork, breathe, loaded
from pyromq.store.disk import LOCAL_DISK, Disk, complaint
from pyromq.store.index.index_file import IndexFile, index_file_bytes, index_hash, joined_hash, keys_of
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.log.segmented_log import Segment, sync_all

_LOOKED_THROUGH = 10_000  # records without keys checked between two files, before all others count as such too

logger = logger_of(__name__)

_TIMER_TOPIC = TIMER_TOPIC.encode()
_NAME = re.compile(r"\d{17}\Z")
_SLICE = 16  # records between two readings of the clock
_ORDINARY_SLICE = 64  # the same for records indexed by compiled code
_KEYS_AT_ONCE = 64  # keys of one record between two readings of the clock; a record may have thousands


class KeyMatches(NamedTuple):
    """Log offsets, newest first, with store time and log offset of the last indexed record."""

    log_offsets: list[int]
    last_update_ms: int
    last_update_log_offset: int


class _PartialRecord(NamedTuple):
    """A record with its keys, of which the first `done` are indexed."""

    log_offset: int
    keys: list[tuple[str, str]]
    done: int


class KeyIndex:
    """One writer. Records before log offset `position` are indexed."""

    def __init__(self, folder: Path, *, slots: int, entries: int, clock: Clock, disk: Disk = LOCAL_DISK) -> None:
        self.position = 0
        self.files: list[IndexFile] = []
        self._unflushed: deque[IndexFile] = deque()
        self._folder = folder
        self._slots = slots
        self._entries = entries
        self._clock = clock
        self._disk = disk
        self._complaint = ""
        self._partial: _PartialRecord | None = None

    # -- opening

    def load(self, log: CommitLog, *, flushed_ms: int, power_cut: bool) -> None:
        """Find the files and the position.

        After a power cut, files that are not full or have records stored after `flushed_ms` may be incomplete: they
        are deleted and rebuilt from the log. Otherwise these files are flushed again, as a killed process may not have
        done it. From the first file on that has another size, a damaged head or no previous file, files are rebuilt
        too. Raises `StoreCorrupt` if all files have another size.
        """
        self._load_files()
        if not power_cut and max((file.end_ms for file in self.files), default=0) < flushed_ms:
            place = self.files[-1].file.path if self.files else self._folder
            logger.warning("%s: the last index file is missing; the index is rebuilt from here on", place)
        self._drop_damaged(log)
        while self.files and not self._is_intact(self.files[-1], log, flushed_ms if power_cut else None):
            self.files.pop().file.delete()
        while power_cut and len(self.files) > 1 and self.files[-2].end_ms == flushed_ms:
            self.files.pop().file.delete()  # of files with the same end time only the first one may be flushed
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
        """Set the position after the last indexed record, or at it: full files may have only some of its keys."""
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
        """Delete the files from the first one on that is damaged or lacks its previous file."""
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
            elif size == 0:  # a crash between creation and resizing of the file
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
                logger.warning("%s is no file of the store and is ignored", self._folder / name)

    @staticmethod
    def _is_intact(file: IndexFile, log: CommitLog, trusted_ms: int | None) -> bool:
        if trusted_ms is not None and (file.end_ms > trusted_ms or not file.is_full):
            return False
        return file.end_log_offset < log.end and not file.is_empty

    # -- following the log

    @property
    def full_ms(self) -> int:
        """End store time (ms) of the last full file."""
        return max((file.end_ms for file in self.files if file.is_full), default=0)

    def behind(self, log: CommitLog) -> int:
        """Return the number of bytes of the log that are not indexed yet."""
        return log.end - self.position

    def follow(self, log: CommitLog, budget_seconds: float | None) -> bool:
        """Index records up to the log's end or for the budget; True if none is left.

        Raises `StoreNotWritable` if the disk is full; a later call continues.
        """
        if self.position >= log.end:
            return True
        try:
            done = self._follow(log, budget_seconds)
        except OSError as error:
            raise StoreNotWritable(
                f"cannot extend the key index in {self._folder}: " + complaint(error, "messages are found by key again")
            ) from error
        self._complaint = ""
        return done

    def step(self, log: CommitLog, budget_seconds: float) -> bool:
        """Index as `follow` does, but log an error once and return True."""
        try:
            return self.follow(log, budget_seconds)
        except StoreNotWritable as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                logger.warning("%s", error)
            return True

    def _follow(self, log: CommitLog, budget_seconds: float | None) -> bool:
        monotonic = self._clock.monotonic
        deadline = None if budget_seconds is None else monotonic() + budget_seconds
        while True:
            self.position = max(self.position, log.min_offset)
            if not (speedups.is_active and self.files):
                self._enter_plainly(log, _SLICE)
            elif self._enter_ordinary(log) < _ORDINARY_SLICE:
                self._enter_plainly(log, 1)
            if self.position >= log.end:
                return True
            if deadline is not None and monotonic() >= deadline:
                return False

    def _enter_ordinary(self, log: CommitLog) -> int:
        """Index records with compiled code up to the first unusual one; return their number."""
        segment = log.files.find(self.position)
        if segment is None or self._partial:
            return 0
        self.position, count = self.files[-1].enter(
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
                if not is_of_topic(record, _TIMER_TOPIC):  # they have no keys; this check takes a third of the time
                    head = decode_labels(record, 0)
                    if head.log_offset != log_offset or head.store_ms > log.last_store_ms:
                        raise StoreCorrupt(f"its log offset is {head.log_offset}, its store time {head.store_ms}")
                    if not self._put(head):
                        return
            except (StoreCorrupt, struct.error, IndexError) as error:
                place = log.place_of(log_offset)
                logger.warning("%s: the record is damaged and is not indexed: %s", place, error)
            self.position = log_offset + len(record)
            if count == most:
                return
        self.position = log.end

    def _put(self, head: RecordHead) -> bool:
        """Index a record by its unique id and its keys, unless it is rolled back.

        Return False after some of many keys: call again for the next ones.
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
                self._partial = partial._replace(done=done)  # if the disk is full, a later call continues
                file = self._add_file()
                file.reserve(hashes)
            file.put(key_hash, head.log_offset, head.store_ms)
            done += 1
        if end < len(partial.keys):
            self._partial = partial._replace(done=done)
            return False
        self._partial = None
        if file is not None and partial.keys:
            file.write_header()  # after all keys: if the process is killed before, the record is indexed again
        return True

    def _add_file(self) -> IndexFile:
        last = self.files[-1] if self.files else None
        if last is not None:
            last.write_header()
            self._unflushed.append(last)
        self._disk.make_folder(self._folder)
        file = IndexFile(self._fresh_path(), self._slots, self._entries, self._disk)
        file.create(end_ms=last.end_ms if last else 0, end_log_offset=last.end_log_offset if last else 0)
        self.files.append(file)
        return file

    def _fresh_path(self) -> Path:
        """Return a name by the local time, above the last file's name: names order the files."""
        name = int(datetime.fromtimestamp(self._clock.now_ms() / 1000).strftime("%Y%m%d%H%M%S%f")[:17])
        if self.files:
            name = max(name, int(self.files[-1].file.path.name) + 1)
        return self._folder / f"{name:017}"

    def drop_before(self, log_offset: int) -> list[Segment]:
        """Remove and return the files that lead only to records before `log_offset`, but not the last file."""
        dropped = []
        while len(self.files) > 1 and self.files[0].end_log_offset < log_offset:
            dropped.append(self.files.pop(0).file)
        return dropped

    def next_unflushed(self) -> IndexFile | None:
        """Remove and return a full file to flush; None if there is none. Thread-safe."""
        try:
            return self._unflushed.popleft()
        except IndexError:
            return None

    def close(self) -> int:
        """Flush all files. Return the store time up to which the index is complete on disk."""
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
        """Find up to `max_count` records by key, stored between two times, both included.

        `has_key` returns whether the record at a log offset has the key: other keys may have the same hash.
        """
        found: list[int] = []
        looked_at, fits = -1, False
        key_hash = index_hash(java_hash(f"{topic}#{key}"))
        for file in self.files[::-1]:
            if file.overlaps(begin_ms, end_ms) and file in self.files:  # it may be deleted during the search
                for log_offset in file.search(key_hash, begin_ms=begin_ms, end_ms=end_ms):
                    if len(found) >= max_count:
                        break
                    if not isinstance(log_offset, int):
                        await (loaded(log_offset) if log_offset else breathe())
                        continue
                    if log_offset != looked_at:  # one record may have many keys of this hash
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
    """Return the fault of a file if records with keys lie between log offset `start` and its first record."""
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
