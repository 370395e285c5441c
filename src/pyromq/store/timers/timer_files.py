"""All scheduled messages: a bucket per hour in the folder `timers`, and a checkpoint with the sizes of their files.

Messages filed after the checkpoint are filed again from the commit log. So files are written at idle times, and bytes
after the checkpoint's sizes do not count. Files are written in rounds, and some rounds also copy records from the log.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import msgspec

from pyromq.errors import StoreCorrupt, StoreNotWritable
from pyromq.logs import logger_of
from pyromq.record import Buffer
from pyromq.store.disk import LOCAL_DISK, Disk
from pyromq.store.json_file import JsonFile
from pyromq.store.timers.growing_file import GrowingFile
from pyromq.store.timers.timer_bucket import ENTRY_BYTES, BucketSizes, TimerBucket

logger = logger_of(__name__)

_CHECKPOINT = "checkpoint.json"
_NAME_FORMAT = "%Y-%m-%dT%H"
_FILE_NAME = re.compile(r".*-.*T.*\.")
OPENING_EFFORT = 250  # records that could be copied in the time that opens the files of a bucket
WRITTEN_BYTES = 128 << 10  # bytes written, and bytes of records copied, at once
_ALL = 1 << 62
KEPT_MESSAGES = 2_000_000  # of far buckets in memory, at nine bytes each
_NAME_CHARACTERS = len("2026-01-31T23")


class TimerCheckpoint(msgspec.Struct, rename="camel"):
    """The state of all buckets at one moment.

    `moved` is the queue offset of the first message not filed, `log_end` the log's end, `needed_from` the log offset
    from which the log is needed, `pending` the number of messages by topic, `buckets` the file sizes by name.
    `uncopied` is the number of copied records, of the buckets with others.
    """

    moved: int = 0
    log_end: int = 0
    needed_from: int = 0
    pending: dict[str, int] = {}
    buckets: dict[str, BucketSizes] = {}
    uncopied: dict[str, int] = {}


def decode_checkpoint(content: bytes) -> TimerCheckpoint:
    """Decode a checkpoint. Raises `msgspec.DecodeError`."""
    return msgspec.json.decode(content, type=TimerCheckpoint)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A checkpoint to save, and the buckets to delete after that."""

    checkpoint: TimerCheckpoint
    dropped: list[TimerBucket]


class FromLog(Protocol):
    def __call__(self, log_offsets: list[int], sizes: list[int], /, *, wait: bool) -> Sequence[Buffer]: ...


class TimerFiles:
    """One writer; only `save` may run in another thread. `pending` is the number of undelivered messages by topic.

    `changed` are the buckets with unwritten bytes or uncopied records. `from_log` returns the records to copy, or
    raises `NotInMemory`.
    """

    def __init__(self, folder: Path, from_log: FromLog, *, disk: Disk = LOCAL_DISK) -> None:
        self.folder = folder
        self._from_log = from_log
        self._disk = disk
        self.buckets: dict[int, TimerBucket] = {}  # by hour
        self.pending: Counter[str] = Counter()
        self.saved = TimerCheckpoint()
        self.unwritten = 0
        self.changed: dict[TimerBucket, None] = {}
        self._round: dict[TimerBucket, int] = {}  # to write in this round, and the number of records to copy
        self._dropped: list[TimerBucket] = []  # since the last snapshot
        self._file = JsonFile(folder / _CHECKPOINT, disk)
        self._has_folder = False

    def load(self) -> bool:
        """Find the buckets of the checkpoint; False if there is no checkpoint. Raises `StoreCorrupt`."""
        found = self._file.read(decode_checkpoint)
        if found is not None:
            self.saved = found
            self.pending = Counter(found.pending)
        for name, sizes in self.saved.buckets.items():
            bucket = TimerBucket(self.folder, name, self._hour_of(name), sizes, disk=self._disk)
            self._check_sizes(bucket)
            self.buckets[bucket.hour] = bucket
            if name in self.saved.uncopied:
                bucket.resume(self.saved.uncopied[name])
                self.changed[bucket] = None
        self._remove_unknown()
        return found is not None

    def _check_sizes(self, bucket: TimerBucket) -> None:
        for file in bucket.files:
            on_disk = self._disk.size(file.path) or 0
            if on_disk < file.size:
                raise StoreCorrupt(
                    f"{file.path} has {on_disk} bytes, its checkpoint says {file.size}: restore it from a backup, or"
                    f" move the folder {self.folder} away: it is made again from what the log still has"
                )

    def _hour_of(self, name: str) -> int:
        try:
            start = datetime.strptime(name[:_NAME_CHARACTERS], _NAME_FORMAT).replace(tzinfo=UTC)
        except ValueError as error:
            raise StoreCorrupt(
                f"{self._file.path} is damaged: it names a bucket {name!r}: {error}; restore it from a backup, or"
                f" move the folder {self.folder} away: it is made again from what the log still has"
            ) from error
        return int(start.timestamp()) // 3600

    def _remove_unknown(self) -> None:
        known = {bucket.name for bucket in self.buckets.values()}
        for name in self._disk.names(self.folder):
            if _FILE_NAME.match(name) and name.rpartition(".")[0] not in known:
                try:
                    self._disk.remove(self.folder / name)
                except OSError as error:
                    logger.warning(
                        "%s belongs to no bucket, and cannot be removed: %s", self.folder / name, error.strerror
                    )

    def make(self, hour: int, queue_offset: int) -> TimerBucket:
        """Create the bucket of an hour. Its first message is part of its name.

        So a name is never used again, and files of a finished bucket may be deleted at any time.
        """
        start = datetime.fromtimestamp(hour * 3600, UTC).strftime(_NAME_FORMAT)
        bucket = self.buckets[hour] = TimerBucket(self.folder, f"{start}-{queue_offset}", hour, disk=self._disk)
        return bucket

    def count(self, by_topic: Mapping[str, int]) -> None:
        """Count messages by topic that were added to buckets of `changed`."""
        self.pending.update(by_topic)
        self.unwritten += sum(by_topic.values()) * ENTRY_BYTES

    def finish(self, bucket: TimerBucket, number: int, topic: str) -> None:
        """Mark a message as delivered or cancelled. A second call does nothing."""
        if bucket.finish(number):
            self.changed[bucket] = None
            self.unwritten += bucket.finished_bytes
            self.pending[topic] -= 1
            if not self.pending[topic]:
                del self.pending[topic]

    # -- on disk

    @property
    def is_written(self) -> bool:
        """Whether all bytes are written to the files."""
        return not self.unwritten

    @property
    def needed_from(self) -> int | None:
        """Log offset of the first record that is not copied; None if all are."""
        return min((each.needed_from for each in self.changed if each.needed_from is not None), default=None)

    def drop_finished(self, before: int) -> None:
        """Drop the buckets before an hour without undelivered messages. The next checkpoint deletes their files."""
        for hour in [hour for hour, each in self.buckets.items() if hour < before and not each.pending]:
            bucket = self.buckets.pop(hour)
            self._dropped.append(bucket)
            if bucket in self.changed:
                del self.changed[bucket]
                self.unwritten -= bucket.unwritten
            bucket.release()

    def begin_round(self, *, copy: bool) -> None:
        """Begin a round: `write_some` writes all bytes that are new by now, and with `copy` copies the records."""
        if copy:
            self._round = {bucket: bucket.count for bucket in self.changed}
        else:
            self._round = {bucket: 0 for bucket in self.changed if bucket.unwritten}

    def write_some(self, effort: int, *, keep: int, wait: bool = True) -> bool:
        """Write a part of the round that takes as long as `effort` copied records; False if there is more.

        Files of buckets up to hour `keep` stay open. Raises `StoreNotWritable`. Without `wait`, raises `NotInMemory` if
        records to copy must be read from the disk.
        """
        try:
            self._make_folder()
            while self._round and effort > 0:
                bucket, count = next(iter(self._round.items()))
                effort -= OPENING_EFFORT + self._write(bucket, min(count - bucket.copied, effort), wait=wait)
                if bucket.copied >= count and not bucket.unwritten:
                    del self._round[bucket]
                    if bucket.copied == bucket.count:
                        del self.changed[bucket]
                    if bucket.hour > keep:
                        bucket.close()
        except OSError as error:
            self._has_folder = False
            raise self._not_writable(error) from error
        return not self._round

    def _make_folder(self) -> None:
        if not self._has_folder:
            self._disk.make_folder(self.folder)
            self._has_folder = True

    def _write(self, bucket: TimerBucket, count: int, *, wait: bool) -> int:
        """Write new bytes of a bucket and copy up to `count` records, fewer large ones; return how many."""
        self._write_new(bucket, WRITTEN_BYTES)
        if count <= 0 or bucket.unwritten:
            return 0
        records = self._from_log(*bucket.uncopied(count, WRITTEN_BYTES), wait=wait)
        bucket.copy(records)
        self.unwritten += bucket.unwritten
        self._write_new(bucket, WRITTEN_BYTES)
        return len(records)

    def _write_new(self, bucket: TimerBucket, most: int) -> None:
        before = bucket.unwritten
        try:
            bucket.write(most)
        finally:
            self.unwritten -= before - bucket.unwritten

    def write_entries(self) -> None:
        """Write all new bytes, but copy no records. Raises `StoreNotWritable`."""
        try:
            self._disk.make_folder(self.folder)
            for bucket in self.changed:
                self._write_new(bucket, _ALL)
                bucket.release()
        except OSError as error:
            raise self._not_writable(error) from error

    def _not_writable(self, error: OSError) -> StoreNotWritable:
        return StoreNotWritable(f"cannot write timers to {self.folder}: {error.strerror}")

    def snapshot(self, *, moved: int, log_end: int, needed_from: int) -> Snapshot:
        """Return the state to save once all bytes that are new by now are written, and the log is on disk."""
        sizes = {bucket.name: bucket.sizes for bucket in self.buckets.values()}
        uncopied = {bucket.name: bucket.copied for bucket in self.changed if bucket.needed_from is not None}
        dropped, self._dropped = self._dropped, []
        checkpoint = TimerCheckpoint(moved, log_end, needed_from, dict(self.pending), sizes, uncopied)
        return Snapshot(checkpoint, dropped)

    def unsynced(self) -> list[GrowingFile]:
        """Return the files with written bytes that may not be on disk."""
        return [file for bucket in self.buckets.values() for file in bucket.files if file.unsynced]

    def save(self, snapshot: Snapshot, unsynced: list[GrowingFile]) -> None:
        """Flush the files, then save the checkpoint. Thread-safe. Raises `StoreNotWritable`."""
        try:
            self._disk.make_folder(self.folder)
            for file in unsynced:
                file.sync()
            self._disk.sync_folder(self.folder)
        except OSError as error:
            raise StoreNotWritable(f"cannot flush timers in {self.folder}: {error.strerror}") from error
        self._file.save(msgspec.json.encode(snapshot.checkpoint))
        self.saved = snapshot.checkpoint
        for bucket in snapshot.dropped:
            bucket.delete()

    def release(self) -> None:
        for bucket in self.buckets.values():
            bucket.release()


class BucketCache:
    """Which of the far buckets keep their keys and marks in memory: those used last, up to `KEPT_MESSAGES`.

    The last one is kept however large it is, so that a thousand cancellations of one hour read its files once; it alone
    has open files.
    """

    def __init__(self) -> None:
        self._counts: dict[TimerBucket, int] = {}  # the one asked about last is the last
        self._messages = 0

    def keep(self, bucket: TimerBucket, *, near: int) -> None:
        """Keep this bucket in memory and release the oldest others above the limit, but none up to hour `near`."""
        counts = self._counts
        if (last := next(reversed(counts), bucket)) is not bucket:
            last.close()
        self._messages += bucket.count - counts.pop(bucket, 0)
        counts[bucket] = bucket.count
        while self._messages > KEPT_MESSAGES and len(counts) > 1:
            oldest = next(iter(counts))
            self._messages -= counts.pop(oldest)
            if oldest.hour > near:
                oldest.release()
