"""Cuts the end off a replica's log: records that differ from the log of the replica's new master.

A cut happens while a stopped store is opened. These files belong to it:

    cutting                    exists while a cut is not finished: a checked file (see `checked_file`) of JSON
    cut/EPOCH-FROM-TO.log      the cut bytes, from one log offset to another; one file for each file of the log

The file `cutting` is written first. After a crash at any later moment, the next start continues the cut. Without
`cutting`, a start never cuts undamaged records. RocketMQ has no such files, and ignores them.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from pyromq.errors import StoreCorrupt, UsageError
from pyromq.logs import logger_of
from pyromq.message import StoredMessage
from pyromq.store.checked_file import read_checked, replace_checked
from pyromq.store.checkpoint import Checkpoint
from pyromq.store.disk import Disk, make_durable_folder, opened, path_beside, remove_file, write_all
from pyromq.store.epoch_file import EpochFile
from pyromq.store.log.log_walk import Damage, LogWalk
from pyromq.store.log.segmented_log import Segment, SegmentedLog, sync_folders
from pyromq.store.queue.consume_queue import ConsumeQueue
from pyromq.store.queue.queue_table import QueueEnds, QueueTable

logger = logger_of(__name__)

FOLDER = "cut"
_NAME = re.compile(r"([0-9]+)-([0-9]+)-([0-9]+)\.log")
_PIECE = 1 << 20  # bytes copied at once


@dataclass(frozen=True, slots=True)
class LogCut:
    """A request to cut a log at log offset `end`, where a record ends, to follow the master of an epoch.

    `confirmed` is the log offset up to which this replica knows records to be confirmed. A cut at the log's first byte
    or before it empties the store.
    """

    end: int
    epoch: int
    confirmed: int = 0


class CutRange(msgspec.Struct, frozen=True, rename="camel"):
    """An unfinished cut: the log from offset `end` to `log_end` is cut off, to follow the master of an epoch.

    `is_all`: the whole log is cut. `store_ms` is the store time of the last remaining record. `queues` has, by topic
    and queue id, the queue offset of the first cut message.
    """

    epoch: int
    end: int
    log_end: int
    is_all: bool
    store_ms: int
    queues: dict[str, dict[int, int]]


class LogCutter:
    """Cuts the log of one stopped store. The caller holds the lock of the data folder. Blocks."""

    def __init__(
        self, root: Path, log: SegmentedLog, queues: QueueTable, *, checkpoint: Checkpoint, disk: Disk
    ) -> None:
        self._root = root
        self._log = log
        self._queues = queues
        self._checkpoint = checkpoint
        self._disk = disk
        self._intent = root / "cutting"

    def pending(self) -> CutRange | None:
        """Return the unfinished cut, None if there is none. Raises `StoreCorrupt`."""
        try:
            content = read_checked(self._disk, self._intent)
            return None if content is None else msgspec.json.decode(content, type=CutRange)
        except (StoreCorrupt, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StoreCorrupt(
                f"{self._intent} cannot be read ({error}): empty the data folder; the replica then copies everything"
                " from its master"
            ) from error

    def begin(self, cut: LogCut, *, crashed: bool) -> CutRange | None:
        """Write the file `cutting` durably. Return the cut; None if the log already ends at the cut's offset.

        Raises `UsageError` if the cut is not permitted, `StoreCorrupt` if the store is damaged, and `OSError`.
        """
        if cut.end < cut.confirmed:
            raise UsageError(
                f"the log of {self._root} is not cut at {cut.end}: records up to log offset {cut.confirmed} were"
                " confirmed. The master of epoch"
                f" {cut.epoch} lacks them; look for an unclean election before you empty this data folder"
            )
        if crashed:
            raise UsageError(f"{self._root} was not closed: open the store once before its log is cut")
        self._log.load()
        saved_ends = self._queues.ends_file.load()
        self._queues.load(saved_ends, crashed=False)
        self._queues.check_ends(saved_ends)
        if self._queues.is_incomplete:
            raise StoreCorrupt(f"queues of {self._root} lack entries: open the store once before its log is cut")
        log_end = self._log_end()
        if cut.end > log_end:
            raise UsageError(f"the log of {self._root} ends at {log_end}, it cannot be cut at {cut.end}")
        begin = self._log.base
        # A file without a record, for example with a part of one, is cut: the log may begin elsewhere afterwards.
        if cut.end == log_end and (log_end > begin or not self._log.segments):
            return None
        is_all = cut.end <= begin
        queues: dict[str, dict[int, int]] = {}
        for queue in self._queues:
            if (first := queue.first_behind(cut.end)) < queue.max_offset:
                queues.setdefault(queue.topic, {})[queue.queue_id] = first
        store_ms = 0 if is_all else self._store_ms_before(cut.end)
        pending = CutRange(cut.epoch, max(cut.end, begin), log_end, is_all, store_ms, queues)
        replace_checked(self._disk, self._intent, msgspec.json.encode(pending))
        logger.warning(
            "the log is cut at %d, its records up to %d are kept in %s: the master of epoch %d does not have them",
            *(pending.end, log_end, self._root / FOLDER, cut.epoch),
        )
        return pending

    def run(self, cut: CutRange) -> None:
        """Cut log, queues, epochs and checkpoint. Can be repeated after a crash at any moment. Raises `OSError`."""
        self._queues.ends_file.delete()  # its queue ends include the cut messages
        if cut.is_all:
            self._disk.remove_folder(self._queues.folder)
            self._disk.sync_folder(self._root)
        else:
            self._queues.load(QueueEnds(), crashed=False)
            for topic, queues in cut.queues.items():
                for queue_id, first in queues.items():
                    self._cut_queue(self._queues.make(topic, queue_id), first)
        self._log.load()
        self._keep(cut)
        epochs = EpochFile(self._root, self._disk)
        epochs.load()
        epochs.cut(cut.end)
        checkpoint = self._checkpoint
        # A record appended after the cut may have an earlier store time than the cut records, and is not flushed yet.
        checkpoint.log_ms = min(checkpoint.log_ms, cut.store_ms)
        checkpoint.queues_ms = min(checkpoint.queues_ms, cut.store_ms)
        checkpoint.index_ms = min(checkpoint.index_ms, cut.store_ms)
        if cut.is_all:
            checkpoint.log_begin = None
        checkpoint.save()
        self._queues.release()

    def finish(self) -> None:
        """Delete the file `cutting` durably: the cut is finished. Raises `OSError`."""
        remove_file(self._disk, self._intent)
        self._disk.sync_folder(self._root)

    # -- where the log ends

    def _walk(self, start: int) -> LogWalk:
        return LogWalk(self._log.segments, self._log.segment_bytes, start)

    def _log_end(self) -> int:
        known = max((queue.log_end for queue in self._queues), default=0)
        walk = self._walk(max(known, self._log.base))
        for found in walk:
            if isinstance(found, Damage):
                raise _not_cut(found)
        return walk.position

    def _store_ms_before(self, end: int) -> int:
        """Return the store time (ms since 1970) of the record that ends at log offset `end`.

        Raises `UsageError` if no record ends there, and `StoreCorrupt` for a damaged log.
        """
        start = end - 1 - (end - 1) % self._log.segment_bytes
        for queue in self._queues:
            entry = queue.find(queue.first_behind(end) - 1)
            if entry is not None:
                start = max(start, entry.log_offset)
        stored_ms = position = 0
        for found in self._walk(start):
            if (found.start if isinstance(found, Damage) else found.log_offset) >= end:
                break  # after a crash in a cut, the bytes may be damaged
            if isinstance(found, Damage):
                raise _not_cut(found)
            stored_ms, position = found.store_ms, found.log_offset + found.size
        if position != end and end % self._log.segment_bytes:
            raise UsageError(f"the log of {self._root} cannot be cut at {end}: no record ends there")
        return stored_ms

    # -- cutting

    def _cut_queue(self, queue: ConsumeQueue, first: int) -> None:
        queue.shorten_to(first)
        queue.cut_to_max()  # deletes files durably, the last one first: no gap after a power loss
        for segment in queue.files.segments[-1:]:
            segment.sync()
        # After a crash of an earlier start, the names of deleted files may still be on disk.
        sync_folders([queue.files.folder], self._disk)

    def _keep(self, cut: CutRange) -> None:
        """Move the cut bytes into the folder `cut`, the last file of the log first."""
        folder = self._root / FOLDER
        make_durable_folder(self._disk, folder)
        sync_folders([self._log.folder], self._disk)  # as for the queues
        for segment in reversed(self._log.segments):
            start, end = max(segment.base, cut.end), min(segment.base + segment.size, cut.log_end)
            if segment.base + segment.size <= cut.end:
                break
            target = folder / f"{cut.epoch}-{start}-{end}.log"
            if start >= end:
                segment.delete()
            elif start > segment.base or not self._move(segment, target):
                self._copy(segment, target, start, end)
                if start == segment.base:
                    segment.delete()
                else:
                    segment.clear_from(start - segment.base)
                    segment.sync()

    def _move(self, segment: Segment, target: Path) -> bool:
        """Move a file of the log. Return False if the log is on another disk."""
        try:
            self._disk.replace(segment.path, target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            return False
        self._disk.sync_folder(target.parent)
        self._disk.sync_folder(segment.path.parent)
        return True

    def _copy(self, segment: Segment, target: Path, start: int, end: int) -> None:
        if self._disk.size(target) is not None:
            return  # a start that crashed had copied the bytes
        beside = path_beside(target, ".tmp")
        with opened(self._disk, segment.path, write=False) as source, opened(self._disk, beside, create=True) as copy:
            self._disk.resize(copy, 0)
            for at in range(start, end, _PIECE):
                content = self._disk.read(source, min(_PIECE, end - at), at - segment.base)
                write_all(self._disk, copy, content, at - start)
            self._disk.sync(copy)
        self._disk.replace(beside, target)
        self._disk.sync_folder(target.parent)


def _not_cut(damage: Damage) -> StoreCorrupt:
    return StoreCorrupt(f"{damage.path} byte {damage.start - damage.base}: {damage.reason}; the log is not cut")


class KeptFile(NamedTuple):
    """A file of cut bytes, from log offset `start` to `end`."""

    path: Path
    epoch: int
    start: int
    end: int


def kept_files(root: Path, disk: Disk) -> list[KeptFile]:
    """Return the files of cut bytes in a data folder, in order of epoch and log offset."""
    matches = filter(None, map(_NAME.fullmatch, disk.names(root / FOLDER)))
    found = [KeptFile(root / FOLDER / match[0], *map(int, match.groups())) for match in matches]
    return sorted(found, key=lambda kept: kept[1:])


def kept_messages(kept: KeptFile, disk: Disk) -> Iterator[StoredMessage]:
    """Yield the messages in a file of cut bytes. Damaged records are skipped."""
    size = disk.size(kept.path) or 0
    segment = Segment(kept.path, size, kept.start, disk=disk)
    for found in LogWalk([segment], size, kept.start):
        if isinstance(found, StoredMessage) and found.log_offset < kept.end:
            yield found


def cut_messages(root: Path, cut: CutRange, disk: Disk) -> Iterator[StoredMessage]:
    """Yield the messages that were cut off the log, in order of log offset."""
    for kept in kept_files(root, disk):
        if kept.epoch == cut.epoch and cut.end <= kept.start and kept.end <= cut.log_end:
            yield from kept_messages(kept, disk)
