"""The files of all scheduled messages: one bucket per hour in the folder `timers`, and a checkpoint with file sizes.

After a crash, messages added since the checkpoint are added again from the commit log, and bytes beyond the
checkpoint's sizes are ignored. So files can be written at idle times, in rounds. Some rounds also copy records from the
commit log into the buckets.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Protocol
from zlib import crc32

import msgspec

from pyromq.errors import StoreCorrupt, StoreNotWritable
from pyromq.logs import logger_of
from pyromq.record import Buffer
from pyromq.store.disk import LOCAL_DISK, Disk
from pyromq.store.json_file import JsonFile
from pyromq.store.timers.growing_file import GrowingFile
from pyromq.store.timers.timer_bucket import ENTRY_BYTES, BucketSizes, TimerBucket, TimerEntry

logger = logger_of(__name__)

_CHECKPOINT = "checkpoint.json"
_NAME_FORMAT = "%Y-%m-%dT%H"
_FILE_NAME = re.compile(r".*-.*T.*\.")
OPENING_EFFORT = 250  # cost of opening the files of a bucket, in copied records
WRITTEN_BYTES = 128 << 10  # limit of bytes written, and of bytes of records copied, per step
_ALL = 1 << 62
KEPT_MESSAGES = 2_000_000  # limit of messages of far buckets (hours) whose key hashes stay in memory, 9 bytes each
_NAME_CHARACTERS = len("2026-01-31T23")


class TimerCheckpoint(msgspec.Struct, rename="camel"):
    """The saved state of all buckets. `moved` is the queue offset of the first message that is in no bucket.

    `log_end` is the end of the commit log at that time, and `needed_from` the log offset from which the log is still
    needed. `pending` is the number of undelivered messages by topic, `buckets` the file sizes by bucket name.
    `uncopied` is the number of copied records by bucket name, for buckets with uncopied records.
    """

    moved: int = 0
    log_end: int = 0
    needed_from: int = 0
    pending: dict[str, int] = {}
    buckets: dict[str, BucketSizes] = {}
    uncopied: dict[str, int] = {}


def decode_checkpoint(content: bytes) -> TimerCheckpoint:
    """Return the checkpoint in the file's content. Raises `msgspec.DecodeError` if the content is damaged."""
    return msgspec.json.decode(content, type=TimerCheckpoint)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A checkpoint to save, and the buckets whose files must be deleted after the save."""

    checkpoint: TimerCheckpoint
    dropped: list[TimerBucket]


class FromLog(Protocol):
    def __call__(self, log_offsets: list[int], sizes: list[int], /, *, wait: bool) -> Sequence[Buffer]: ...


class TimerFiles:
    """All buckets of scheduled messages. Only one thread may use this object; only `save` may run in another thread.

    `pending` is the number of undelivered messages by topic. `changed` holds the buckets with unwritten bytes or
    uncopied records. `from_log` returns the records to copy, or raises `NotInMemory`.
    """

    def __init__(self, folder: Path, from_log: FromLog, *, disk: Disk = LOCAL_DISK) -> None:
        self.folder = folder
        self._from_log = from_log
        self._disk = disk
        self.buckets: dict[int, TimerBucket] = {}  # buckets by hour, counted from 1970
        self.pending: Counter[str] = Counter()
        self.saved = TimerCheckpoint()
        self.unwritten = 0
        self.changed: dict[TimerBucket, None] = {}
        self._round: dict[TimerBucket, int] = {}  # buckets of this round, with the records to copy
        self._dropped: list[TimerBucket] = []  # buckets dropped since the last snapshot
        self._file = JsonFile(folder / _CHECKPOINT, disk)
        self._has_folder = False

    def load(self) -> bool:
        """Find the buckets that the checkpoint names. Return False if there is no checkpoint. Raises `StoreCorrupt`."""
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
                    f" move the folder {self.folder} away: the next start rebuilds it from the log"
                )

    def _hour_of(self, name: str) -> int:
        try:
            start = datetime.strptime(name[:_NAME_CHARACTERS], _NAME_FORMAT).replace(tzinfo=UTC)
        except ValueError as error:
            raise StoreCorrupt(
                f"{self._file.path} is damaged: it names a bucket {name!r}: {error}; restore it from a backup, or"
                f" move the folder {self.folder} away: the next start rebuilds it from the log"
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
        """Create and return the bucket of an hour. Its name contains the queue offset of its first message.

        So a name is never used again, and the files of a finished bucket may be deleted at any time.
        """
        start = datetime.fromtimestamp(hour * 3600, UTC).strftime(_NAME_FORMAT)
        bucket = self.buckets[hour] = TimerBucket(self.folder, f"{start}-{queue_offset}", hour, disk=self._disk)
        return bucket

    def count(self, by_topic: Mapping[str, int]) -> None:
        """Add the number of messages by topic that the caller has put into buckets of `changed`."""
        self.pending.update(by_topic)
        self.unwritten += sum(by_topic.values()) * ENTRY_BYTES

    def finish(self, bucket: TimerBucket, number: int, topic: str) -> None:
        """Mark a message as delivered or cancelled. Does nothing if the message is marked already."""
        if bucket.finish(number):
            self.changed[bucket] = None
            self.unwritten += bucket.finished_bytes
            self.pending[topic] -= 1
            if self.pending[topic] <= 0:  # below 0: a mark was lost, and the message was delivered again
                del self.pending[topic]

    # -- on disk

    @property
    def is_written(self) -> bool:
        """True if all bytes are written to the files."""
        return not self.unwritten

    @property
    def needed_from(self) -> int | None:
        """Log offset of the first record that is not copied into a bucket; None if all records are copied."""
        return min((each.needed_from for each in self.changed if each.needed_from is not None), default=None)

    def drop_finished(self, before: int) -> None:
        """Drop the buckets of hours before `before` that have no undelivered message.

        The next checkpoint deletes the files of dropped buckets.
        """
        for hour in [hour for hour, each in self.buckets.items() if hour < before and not each.pending]:
            bucket = self.buckets.pop(hour)
            self._dropped.append(bucket)
            if bucket in self.changed:
                del self.changed[bucket]
                self.unwritten -= bucket.unwritten
            bucket.release()

    def begin_round(self, *, copy: bool) -> None:
        """Begin a round: `write_some` then writes all bytes that are unwritten now.

        With `copy`, `write_some` also copies all records that are uncopied now.
        """
        if copy:
            self._round = {bucket: bucket.count for bucket in self.changed}
        else:
            self._round = {bucket: 0 for bucket in self.changed if bucket.unwritten}

    def write_some(self, effort: int, *, keep: int, wait: bool = True) -> bool:
        """Write a part of the round, with a cost of about `effort` copied records. Return False if more is left.

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
        """Write new bytes of a bucket and copy up to `count` records, fewer if they are large.

        Return how many were copied.
        """
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
        """Write all unwritten bytes, but copy no records. Raises `StoreNotWritable`."""
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
        """Return the state to save.

        Before `save`, the bytes of the files up to this state must be written, and the log must be on disk.
        """
        sizes = {bucket.name: bucket.sizes for bucket in self.buckets.values()}
        uncopied = {bucket.name: bucket.copied for bucket in self.changed if bucket.needed_from is not None}
        dropped, self._dropped = self._dropped, []
        checkpoint = TimerCheckpoint(moved, log_end, needed_from, dict(self.pending), sizes, uncopied)
        return Snapshot(checkpoint, dropped)

    def cut(
        self, log_end: int, *, moved: int, name: str, undone: Callable[[TimerEntry], bool], topics: dict[int, set[str]]
    ) -> None:
        """Remove the messages whose records begin at `log_end` or later, since the log was cut there, and save.

        Finished messages for which `undone` is true are unfinished. `topics` has the hours and topics where that may
        be. `name` is appended to the names of changed buckets: a kill in the middle leaves the old or the new ones.
        `moved` is the queue offset of the first message in no bucket. Raises `StoreCorrupt` and `StoreNotWritable`.
        """
        names = {crc32(topic.encode()): topic for topic in (*self.pending, *chain(*topics.values()))}
        for hour, bucket in list(self.buckets.items()):
            if hour in topics or bucket.entry(bucket.count - 1).log_offset >= log_end:
                waited = self._cut_bucket(bucket, log_end, undone, f"{bucket.name}-{name}")
                for topic_hash, more in waited.items():
                    self.pending[names.get(topic_hash, "")] += more
        self.pending = +self.pending
        self.write_entries()
        end = min(self.saved.log_end, log_end)
        needed = min(end, self.saved.needed_from, *([] if self.needed_from is None else [self.needed_from]))
        self.save(self.snapshot(moved=moved, log_end=end, needed_from=needed), self.unsynced())
        self.release()

    def _cut_bucket(
        self, bucket: TimerBucket, log_end: int, undone: Callable[[TimerEntry], bool], name: str
    ) -> Counter[int]:
        """Return by how many messages more or fewer wait, by hash of the topic."""
        entries = [bucket.entry(number) for number in range(bucket.count)]
        keep = sum(entry.log_offset < log_end or not entry.is_whole for entry in entries)
        again = {number for number, entry in enumerate(entries[:keep]) if bucket.is_finished(number) and undone(entry)}
        change = Counter(entries[number].topic_hash for number in again)
        change.subtract(
            entries[number].topic_hash for number in range(keep, bucket.count) if not bucket.is_finished(number)
        )
        if keep < bucket.count or again:
            self.changed.pop(bucket, None)
            self._dropped.append(bucket)
            del self.buckets[bucket.hour]
            if keep:
                self.buckets[bucket.hour] = other = bucket.without(name, keep=keep, undone=again)
                self.changed[other] = None
                self.unwritten += other.unwritten
        bucket.release()
        return change

    def clear(self) -> None:
        """Remove all messages, durably. Raises `StoreNotWritable`."""
        self._dropped += self.buckets.values()
        self.buckets.clear()
        self.changed.clear()
        self.pending.clear()
        self.save(self.snapshot(moved=0, log_end=0, needed_from=0), [])

    def unsynced(self) -> list[GrowingFile]:
        """Return the files whose written bytes may not be on disk yet, to be passed to `save`."""
        return [file for bucket in self.buckets.values() for file in bucket.files if file.unsynced]

    def save(self, snapshot: Snapshot, unsynced: list[GrowingFile]) -> None:
        """Flush the files, save the checkpoint, then delete the dropped buckets. Thread-safe.

        Raises `StoreNotWritable`.
        """
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
    """Limits the memory for keys and marks of far buckets: the buckets used last keep theirs, up to `KEPT_MESSAGES`.

    A mark says that a message is delivered or cancelled. The bucket used last is kept however large it is, so that many
    cancellations of one hour read its files once. Only this bucket has open files.
    """

    def __init__(self) -> None:
        self._counts: dict[TimerBucket, int] = {}  # messages by bucket, the bucket used last at the end
        self._messages = 0

    def keep(self, bucket: TimerBucket, *, near: int) -> None:
        """Keep a bucket in memory, and release the least recently used buckets above the limit.

        Buckets up to hour `near` are never released.
        """
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
