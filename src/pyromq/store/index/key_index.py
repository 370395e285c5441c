"""Message key -> log offsets, over all index files. It follows the log on its own position, as time allows.

Nothing waits for it when a message is stored; whoever asks by key brings it up to date first.
"""

from __future__ import annotations

import re
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
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
from pyromq.store.disk import LOCAL_DISK, Disk, complaint
from pyromq.store.index.index_file import IndexFile, index_file_bytes
from pyromq.store.index.record_keys import index_hash, joined_hash, key_hashes, keys_of
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.log.segment import Segment, sync_all
from pyromq.store.looking import Looking

_LOOKED_THROUGH = 10_000  # records without keys between two files, before it is taken for granted that all are

logger = logger_of(__name__)

_TIMER_TOPIC = TIMER_TOPIC.encode()
_NAME = re.compile(r"\d{17}\Z")
_SLICE = 16  # records between two looks at the clock
_ORDINARY_SLICE = 64  # the same of those that the compiled part enters
_KEYS_AT_ONCE = 64  # keys of one record between two looks at the clock; it may have thousands


class KeyMatches(NamedTuple):
    """Log offsets, newest first, and how far the index reaches."""

    log_offsets: list[int]
    last_update_ms: int
    last_update_log_offset: int


class _Begun(NamedTuple):
    """A record of which only some keys are entered: where it is, its keys, and how many of them are entered."""

    log_offset: int
    keys: list[tuple[str, str]]
    done: int


class KeyIndex:
    """One writer. `position` is the log offset up to which records are indexed."""

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
        self._in_doubt: int | None = None  # log offset of a record of which some keys may be there already
        self._begun: _Begun | None = None

    # -- opening

    def load(self, log: CommitLog, *, flushed_ms: int, in_doubt: bool) -> None:
        """Find the files and where to go on.

        `in_doubt`, after a power cut: files that are not full, or have records stored after `flushed_ms`, may be
        incomplete, and are deleted and made again from the log. Else the full ones of these are flushed again, since
        a killed process may not have. Files from the first one on that has another size, or a head that cannot be, or
        lacks the one before it, are made again, too. Raises `StoreCorrupt` where all have another size.
        """
        self._load_files()
        if not in_doubt and max((file.end_ms for file in self.files), default=0) < flushed_ms:
            place = self.files[-1].file.path if self.files else self._folder
            logger.warning("%s: the last index file is missing, and made again behind this", place)
        self._drop_doubtful(log)
        while self.files and not self._is_sound(self.files[-1], log, flushed_ms if in_doubt else None):
            self.files.pop().file.delete()
        while in_doubt and len(self.files) > 1 and self.files[-2].end_ms == flushed_ms:
            self.files.pop().file.delete()  # of files that end at the same time the first one was flushed, perhaps
        for file in self.files:
            if file.end_ms > flushed_ms or not file.is_full:
                file.file.is_fresh = True
                if file is not self.files[-1]:
                    self._unflushed.append(file)
        self.position = log.min_offset
        last = log.record_at(self.files[-1].end_log_offset) if self.files else None
        if last is not None:
            try:
                self._begin_at(decode_labels(last, 0))
            except StoreCorrupt as error:
                logger.warning("%s: the record is damaged: %s", log.place_of(self.files[-1].end_log_offset), error)
                self.position = self.files[-1].end_log_offset + len(last)

    def _begin_at(self, last: RecordHead) -> None:
        """Go on behind a record, or with it: whoever was killed may have put some of its keys."""
        hashes = key_hashes(last.topic, last.property_text)
        missing = [each for each in hashes if not self._leads_to(each, last.log_offset)]
        self.position = last.log_offset if missing else last.log_offset + last.size
        self._in_doubt = last.log_offset

    def _drop_doubtful(self, log: CommitLog) -> None:
        """Delete the files from the first one on that cannot be believed."""
        first, fault = first_fault(self.files, log, _has_keys)
        if fault:
            logger.warning("%s: %s; the index is made again from here on", self.files[first].file.path, fault)
            while len(self.files) > first:
                self.files.pop().file.delete()

    def _load_files(self) -> None:
        expected = index_file_bytes(self._slots, self._entries)
        sizes = {path: self._disk.size(path) for path in self._own_files()}
        misfit = next((path for path, size in sizes.items() if size not in (0, expected)), None)
        if misfit is not None and expected not in sizes.values():
            raise StoreCorrupt(
                f"{misfit} has {sizes[misfit]} bytes, expected {expected}: open the store with the index_slots"
                " (maxHashSlotNum) and index_entries (maxIndexNum) it was made with, or delete the index folder: it is"
                " made again"
            )
        for path, size in sizes.items():
            if misfit is not None and path >= misfit:
                logger.warning("%s: the index is made again from here on, as %s has been cut", path, misfit.name)
                self._disk.remove(path)
            elif size == 0:  # a crash came between making the file and giving it its size
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
                logger.warning("%s does not belong there, and is left alone", self._folder / name)

    @staticmethod
    def _is_sound(file: IndexFile, log: CommitLog, trusted_ms: int | None) -> bool:
        if trusted_ms is not None and (file.end_ms > trusted_ms or not file.is_full):
            return False
        return file.end_log_offset < log.end and not file.is_empty

    # -- following the log

    @property
    def full_ms(self) -> int:
        """End store time (ms) of the last full file; what was written behind it since the start may not be on disk."""
        return max((file.end_ms for file in self.files if file.is_full), default=0)

    def behind(self, log: CommitLog) -> int:
        """Return how many bytes of the log are not indexed yet."""
        return log.end - self.position

    def follow(self, log: CommitLog, budget_seconds: float | None) -> bool:
        """Index records until the log's end or the budget is reached; True if nothing is left.

        Raises `StoreNotWritable` where the disk has no room; what is missing is indexed later.
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
        """Index as `follow` does; where the disk has no room, say so once and count that as nothing left to do."""
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
        """Have the compiled part enter records up to one that is not ordinary; return how many."""
        segment = log.files.find(self.position)
        if segment is None or (self._in_doubt is not None and self.position <= self._in_doubt) or self._begun:
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
                if not is_of_topic(record, _TIMER_TOPIC):  # they have no keys; said here, they cost a third
                    labels = decode_labels(record, 0)
                    if labels.log_offset != log_offset or labels.store_ms > log.last_store_ms:
                        raise StoreCorrupt(f"it says log offset {labels.log_offset}, stored at {labels.store_ms}")
                    if not self._put(labels):
                        return
            except (StoreCorrupt, struct.error, IndexError) as error:
                place = log.place_of(log_offset)
                logger.warning("%s: the record is damaged, and not found by key: %s", place, error)
            self.position = log_offset + len(record)
            if count == most:
                return
        self.position = log.end

    def _put(self, labels: RecordHead) -> bool:
        """Enter a record under its unique id and each of its keys; not a rolled back one.

        False if it has many keys and was entered under some of them only: to be called again.
        """
        if labels.sys_flag & SysFlag.ROLLBACK == SysFlag.ROLLBACK:
            return True
        begun = self._begun
        if begun is None or begun.log_offset != labels.log_offset:
            begun = _Begun(labels.log_offset, keys_of(labels.topic, labels.property_text), 0)
        end = begun.done + _KEYS_AT_ONCE
        hashes = [index_hash(joined_hash(*key)) for key in begun.keys[begun.done : end]]
        if labels.log_offset == self._in_doubt:
            hashes = [each for each in hashes if not self._leads_to(each, labels.log_offset)]
        file = self.files[-1] if self.files else None
        if file is not None:
            file.reserve(hashes)
        for key_hash in hashes:
            if file is None or file.is_full:
                self._in_doubt = labels.log_offset
                file = self._add_file()
                file.reserve(hashes)
            file.put(key_hash, labels.log_offset, labels.store_ms)
        if end < len(begun.keys):
            self._begun = begun._replace(done=end)
            return False
        self._in_doubt = self._begun = None
        if file is not None and begun.keys:
            file.write_header()  # once all are in: whoever is killed before has to begin with the record again
        return True

    def _leads_to(self, key_hash: int, log_offset: int) -> bool:
        return any(file.leads_to(key_hash, log_offset) for file in self.files[-2:])

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
        """Name after the local time, later than the last one's: the order of names is the order of files."""
        name = int(datetime.fromtimestamp(self._clock.now_ms() / 1000).strftime("%Y%m%d%H%M%S%f")[:17])
        if self.files:
            name = max(name, int(self.files[-1].file.path.name) + 1)
        return self._folder / f"{name:017}"

    def drop_before(self, log_offset: int) -> list[Segment]:
        """Take out the files that lead only to records before `log_offset`, but for the last file."""
        gone = []
        while len(self.files) > 1 and self.files[0].end_log_offset < log_offset:
            gone.append(self.files.pop(0).file)
        return gone

    def next_unflushed(self) -> IndexFile | None:
        """Hand over a full file that is to be flushed; None if there is none. Safe to call from any thread."""
        try:
            return self._unflushed.popleft()
        except IndexError:
            return None

    def close(self) -> int:
        """Flush what is not flushed. Return the store time up to which the index is complete on disk."""
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

    def search(
        self,
        topic: str,
        key: str,
        max_count: int,
        *,
        begin_ms: int,
        end_ms: int,
        has_key: Callable[[int], Looking[bool]],
    ) -> Looking[KeyMatches]:
        """Look for records stored in that time, both ends included, under that key; at most `max_count`.

        `has_key` tells whether the record at a log offset has the key itself: others have the same hash.
        """
        found: list[int] = []
        looked_at, fits = -1, False
        key_hash = index_hash(java_hash(f"{topic}#{key}"))
        for file in self.files[::-1]:
            if file.overlaps(begin_ms, end_ms) and file in self.files:  # one may be deleted while others are searched
                for log_offset in file.search(key_hash, begin_ms=begin_ms, end_ms=end_ms):
                    if len(found) >= max_count:
                        break
                    if not isinstance(log_offset, int):
                        yield log_offset
                        continue
                    if log_offset != looked_at:  # one record may have many such keys
                        looked_at, fits = log_offset, (yield from has_key(log_offset))
                    if fits:
                        found.append(log_offset)
            if file.begin_ms < begin_ms or len(found) >= max_count:
                break
        last = self.files[-1] if self.files else None
        return KeyMatches(found, last.end_ms if last else 0, last.end_log_offset if last else 0)


def _has_keys(record: memoryview) -> bool:
    try:
        labels = decode_labels(record, 0)
    except StoreCorrupt:
        return False
    is_rolled_back = labels.sys_flag & SysFlag.ROLLBACK == SysFlag.ROLLBACK
    return not is_rolled_back and bool(key_hashes(labels.topic, labels.property_text))


def first_fault(files: Sequence[IndexFile], log: CommitLog, has_keys: Callable[[memoryview], bool]) -> tuple[int, str]:
    """Return which file is the first that cannot be believed, and why; the number of files and "" if all can.

    `has_keys` tells whether a record has to be in the index.
    """
    indexed_to: int | None = log.min_offset
    for number, file in enumerate(files):
        if fault := _head_fault(file, log) or _gap_before(file, indexed_to, log, has_keys):
            return number, fault
        last = log.record_at(file.end_log_offset)
        indexed_to = None if last is None else file.end_log_offset + len(last)
    return len(files), ""


def _head_fault(file: IndexFile, log: CommitLog) -> str:
    if not file.has_plausible_head:
        return "its head is damaged"
    if file.is_empty:
        return ""
    for log_offset in (file.begin_log_offset, file.end_log_offset):
        if log.min_offset <= log_offset < log.end and log.record_at(log_offset) is None:
            return f"it speaks of log offset {log_offset}, where no record begins"
    return ""


def _gap_before(file: IndexFile, start: int | None, log: CommitLog, has_keys: Callable[[memoryview], bool]) -> str:
    if start is None or file.is_empty or file.begin_log_offset <= start:
        return ""
    for log_offset, record in islice(log.records_from(start), _LOOKED_THROUGH):
        if log_offset >= file.begin_log_offset:
            break
        if has_keys(record):
            return (
                f"the file before is missing: keys from log offset {log_offset} to {file.begin_log_offset} are in none"
            )
    return ""
