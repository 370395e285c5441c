"""All messages that wait for their time: a bucket per hour in the folder `timers`, and a checkpoint to vouch for them.

What buckets hold can be made again from the commit log, from the checkpoint on; so files are written when it suits,
and bytes the checkpoint does not know are of no account. Once it is saved, the log before it is needed no more.
It knows no topics but by name, and not when a message is due to leave.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec

from pyromq.errors import StoreCorrupt, StoreNotWritable
from pyromq.store.disk import LOCAL_DISK, Disk
from pyromq.store.growing_file import GrowingFile
from pyromq.store.json_file import JsonFile
from pyromq.store.timer_bucket import NUMBER_BYTES, BucketSizes, TimerBucket

logger = logging.getLogger(__name__)

_CHECKPOINT = "checkpoint.json"
_NAME_FORMAT = "%Y-%m-%dT%H"
_FILE_NAME = re.compile(r".*-.*T.*\.")
_NAME_CHARACTERS = len("2026-01-31T23")


class Checkpoint(msgspec.Struct, rename="camel"):
    """A moment at which everything moved was in the files.

    `moved` is the queue offset of the first message not moved, `log_end` where the log ended, `needed_from` the log
    offset from which the log is needed to make the rest again, `pending` counts by topic, `buckets` the sizes by name.
    """

    moved: int = 0
    log_end: int = 0
    needed_from: int = 0
    pending: dict[str, int] = {}
    buckets: dict[str, BucketSizes] = {}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A checkpoint to be saved, the files it speaks of, and the buckets that nobody needs once it is saved."""

    checkpoint: Checkpoint
    files: list[GrowingFile]
    finished: list[TimerBucket]


class TimerFiles:
    """One writer; only `save` may run in another thread. `pending` counts what waits, by topic."""

    def __init__(self, folder: Path, disk: Disk = LOCAL_DISK) -> None:
        self.folder = folder
        self._disk = disk
        self.buckets: dict[int, TimerBucket] = {}  # by hour
        self.pending: Counter[str] = Counter()
        self.saved = Checkpoint()
        self.unwritten = 0
        self._changed: dict[TimerBucket, None] = {}  # with something unwritten, the longest so first
        self._file = JsonFile(folder / _CHECKPOINT, disk)

    def load(self) -> bool:
        """Find what the checkpoint vouches for; False if there is no checkpoint. Raises `StoreCorrupt`."""
        decode = partial(msgspec.json.decode, type=Checkpoint)
        found = self._file.read(decode)
        if found is not None:
            self.saved = found
            self.pending = Counter(found.pending)
        for name, sizes in self.saved.buckets.items():
            bucket = TimerBucket(self.folder, name, self._hour_of(name), sizes, disk=self._disk)
            if self._has_files(bucket):
                self.buckets[bucket.hour] = bucket
        self._remove_unknown()
        return found is not None

    def _has_files(self, bucket: TimerBucket) -> bool:
        for file in bucket.files:
            on_disk = self._disk.size(file.path) or 0
            if on_disk < file.size:
                raise StoreCorrupt(
                    f"{file.path} has {on_disk} bytes, the checkpoint beside it says {file.size}: restore it from a"
                    f" backup, or move the folder {self.folder} away: it is made again from what the log still has"
                )
        return True

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
                        "%s belongs to nothing, and cannot be removed: %s", self.folder / name, error.strerror
                    )

    def make(self, hour: int, queue_offset: int) -> TimerBucket:
        """Make the bucket of an hour, named also by the first message that comes into it.

        So a name never comes back, and the files of a bucket long finished may be deleted whenever it suits.
        """
        start = datetime.fromtimestamp(hour * 3600, UTC).strftime(_NAME_FORMAT)
        bucket = self.buckets[hour] = TimerBucket(self.folder, f"{start}-{queue_offset}", hour, disk=self._disk)
        return bucket

    def touch(self, bucket: TimerBucket, size: int) -> None:
        """Take note that so many bytes were added to a bucket. Called for every message."""
        self.unwritten += size
        self._changed[bucket] = None

    def finish(self, bucket: TimerBucket, number: int, topic: str) -> None:
        """Note that a message does not wait any more. Once more does no harm."""
        if bucket.finish(number):
            self.touch(bucket, NUMBER_BYTES)
            self.pending[topic] -= 1
            if not self.pending[topic]:
                del self.pending[topic]

    # -- on disk

    @property
    def is_written(self) -> bool:
        return not self._changed

    def write_some(self, count: int, *, keep: int | None = None) -> None:
        """Write up to `count` buckets; those up to hour `keep` stay open. Raises `StoreNotWritable`."""
        try:
            self._disk.make_folder(self.folder)
            for _ in range(min(count, len(self._changed))):
                bucket = next(iter(self._changed))
                self._write(bucket)
                del self._changed[bucket]
                if keep is None or bucket.hour > keep:
                    bucket.release()
        except OSError as error:
            raise StoreNotWritable(f"cannot write timers to {self.folder}: {error.strerror}") from error

    def _write(self, bucket: TimerBucket) -> None:
        before = bucket.unwritten
        try:
            bucket.write()
        finally:
            self.unwritten -= before - bucket.unwritten

    def snapshot(self, *, moved: int, log_end: int, needed_from: int, closed_before: int) -> Snapshot:
        """Return what to save now that everything is written. Buckets before hour `closed_before` may be dropped."""
        assert self.is_written
        done = [bucket for hour, bucket in self.buckets.items() if hour < closed_before and not bucket.pending]
        for bucket in done:
            bucket.release()
            del self.buckets[bucket.hour]
        sizes = {bucket.name: bucket.sizes for bucket in self.buckets.values()}
        files = [file for bucket in self.buckets.values() for file in bucket.files if file.unsynced]
        return Snapshot(Checkpoint(moved, log_end, needed_from, dict(self.pending), sizes), files, done)

    def save(self, snapshot: Snapshot) -> None:
        """Have the files on disk, then the checkpoint. May run in any thread. Raises `StoreNotWritable`."""
        try:
            self._disk.make_folder(self.folder)
            for file in snapshot.files:
                file.sync()
            self._disk.sync_folder(self.folder)
        except OSError as error:
            raise StoreNotWritable(f"cannot flush timers in {self.folder}: {error.strerror}") from error
        self._file.save(msgspec.json.encode(snapshot.checkpoint))
        self.saved = snapshot.checkpoint
        for bucket in snapshot.finished:
            bucket.delete()

    def release(self) -> None:
        for bucket in self.buckets.values():
            bucket.release()
