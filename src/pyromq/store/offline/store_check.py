"""Reports the damage of a stopped store by file and byte. Changes nothing.

One walk over the log compares every record with its checksum, its queue entry and its index entries. The content of the
tables in the folder `config` is not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from pyromq.errors import ProtocolError, StoreCorrupt
from pyromq.record import Buffer
from pyromq.store.checkpoint import CHECKPOINT_BYTES, TIMES, Checkpoint
from pyromq.store.disk import path_beside
from pyromq.store.json_file import verified
from pyromq.store.log.log_walk import Damage
from pyromq.store.offline.index_check import IndexCheck
from pyromq.store.offline.queue_check import QueueCheck
from pyromq.store.offline.stopped_store import Cure, StoppedStore, StoreFault
from pyromq.store.store_config import StoreConfig
from pyromq.store.timers.timer_bucket import (
    ENTRY_BYTES,
    MISFIT,
    BucketSizes,
    TimerEntry,
    decode_verified,
    matches_entry,
    read_entry,
    read_finished,
)
from pyromq.store.timers.timer_files import decode_checkpoint

_CHECKPOINT_SLACK_MS = 3_000
_EVERY_RECORDS = 100_000  # records between two calls of `on_progress`
_IN_LOG = "its record is not copied yet, and the log does not have it"


@dataclass(slots=True)
class Report:
    """The result of a check of a store."""

    records: int = 0
    log_begin: int = 0
    log_end: int = 0
    newest_ms: int = 0
    segment_bytes: int = 0  # size of a log file, derived from the files
    findings: list[StoreFault] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        return all(finding.cure is Cure.NOBODY for finding in self.findings)


class StoreCheck:
    """Checks a store once. `on_progress(done, total)` is called repeatedly; both are bytes of the log."""

    def __init__(self, config: StoreConfig, on_progress: Callable[[int, int], None] = lambda done, total: None) -> None:
        self.store = StoppedStore(config)
        self.queues = QueueCheck(self.store)
        self.index = IndexCheck(self.store)
        self._on_progress = on_progress

    def run(self) -> Report:
        """Check all files of the store and return the report. Raises `OSError` if a file cannot be read."""
        store = self.store
        report = Report(log_begin=store.log_begin, segment_bytes=store.segment_bytes)
        report.findings += [StoreFault(path, None, "it is not a log file", Cure.NOBODY) for path in store.foreign]
        report.findings += [StoreFault(path, None, text, Cure.REPAIR) for path, text in store.wrong_log_files()]
        if (cutting := store.root / "cutting").exists():
            report.findings.append(StoreFault(cutting, None, "a cut of the log is not finished", Cure.START))
        self._walk(report)
        of_queues = list(self.queues.findings(report.log_end, report.damages))
        report.findings += [self._of_damage(damage) for damage in report.damages]
        report.findings += of_queues
        report.findings += self.index.findings(report.log_end)
        report.findings += self._of_checkpoint(report)
        report.findings += self._of_timers()
        return report

    def _walk(self, report: Report) -> None:
        walk = self.store.walk()
        total = len(self.store.segments) * self.store.segment_bytes
        for found in walk:
            if isinstance(found, Damage):
                report.damages.append(found)
                continue
            self.queues.take(found)
            self.index.take(found)
            report.records += 1
            if report.records % _EVERY_RECORDS == 0:
                self._on_progress(found.log_offset - report.log_begin, total)
        report.log_end, report.newest_ms = walk.position, walk.last_store_ms

    def _of_damage(self, damage: Damage) -> StoreFault:
        text = f"{damage.reason}; up to byte {damage.end - damage.base} (log offset {damage.end}) no record is intact"
        # The next start truncates incomplete records at the log's end; elsewhere only a repair keeps later records.
        torn = damage.is_tail and (self.store.power_loss or self.queues.lost_end <= damage.start)
        cure = Cure.START if torn and self.store.crashed else Cure.REPAIR
        return StoreFault(damage.path, damage.start - damage.base, text, cure)

    def _of_checkpoint(self, report: Report) -> Iterator[StoreFault]:
        path = self.store.root / "checkpoint"
        if not path.exists():
            yield StoreFault(path, None, "the file is missing: after a crash the whole log would be read", Cure.START)
            return
        content = path.read_bytes()
        checkpoint = Checkpoint(path)
        checkpoint.load()
        began = checkpoint.log_begin
        # At a crash, retention may have been deleting the first log files, and index files may be incomplete.
        if not self.store.crashed and began is not None and began < self.store.log_begin:
            text = f"the file is missing, and all up to log offset {self.store.log_begin}"
            yield StoreFault(self.store.log_path(began), None, text, Cure.BACKUP)
        is_short = self.index.end_ms < min(checkpoint.index_ms, report.newest_ms)
        if is_short and not (self.store.crashed or self.index.broken):
            yield StoreFault(self.store.root / "index", None, "the last file is missing", Cure.START)
        if len(content) != CHECKPOINT_BYTES:
            yield StoreFault(path, None, f"the file has {len(content)} bytes, not {CHECKPOINT_BYTES}", Cure.START)
        if len(content) >= TIMES.size:
            for number, time_ms in enumerate(TIMES.unpack_from(content)):
                if time_ms > report.newest_ms + _CHECKPOINT_SLACK_MS or time_ms < 0:
                    text = f"its time {time_ms} is after that of the newest record, {report.newest_ms}"
                    yield StoreFault(path, 8 * number, text, Cure.REPAIR)

    def _of_timers(self) -> Iterator[StoreFault]:
        """Yield the faults of the files of scheduled messages. A store of a Java broker has no such files."""
        path = self.store.root / "timers" / "checkpoint.json"
        if not path.exists():
            return
        try:
            checkpoint = decode_checkpoint(verified(path.read_bytes()))
        except (ProtocolError, msgspec.DecodeError, UnicodeDecodeError) as error:
            beside = path_beside(path, ".bak")
            cure = (
                Cure.START
                if beside.exists()
                else self._cure_of_timers(each.stem for each in path.parent.glob("*.entries"))
            )
            yield StoreFault(path, None, f"it is damaged: {error}", cure)
            return
        cure = self._cure_of_timers(checkpoint.buckets)
        for name, sizes in checkpoint.buckets.items():
            done = path.with_name(f"{name}.done")  # file of an older broker
            done = done if done.exists() else done.with_suffix(".finished")
            for suffix, size in zip(("entries", "records", done.suffix[1:]), sizes, strict=True):
                file = path.with_name(f"{name}.{suffix}")
                on_disk = file.stat().st_size if file.exists() else 0
                if on_disk < size:
                    yield StoreFault(file, None, f"the file has {on_disk} bytes, {size} belong to it", cure)
            yield from self._of_bucket(path.with_name(f"{name}.entries"), sizes, cure)
            yield from self._of_finished(done, sizes, cure)

    def _cure_of_timers(self, names: Iterable[str]) -> Cure:
        """Return the cure for these buckets: `AWAY` if the log can rebuild them, otherwise `BACKUP`.

        The log can rebuild a bucket if the log still has the bucket's first message.
        """
        for name in names:
            path = self.store.root / "timers" / f"{name}.entries"
            first = path.read_bytes()[:ENTRY_BYTES] if path.exists() else b""
            log_offset = read_entry(first).log_offset if len(first) == ENTRY_BYTES else 0
            if log_offset < self.store.log_begin:
                return Cure.BACKUP
        return Cure.AWAY

    def _of_bucket(self, path: Path, sizes: BucketSizes, cure: Cure) -> Iterator[StoreFault]:
        records_path = path.with_suffix(".records")
        if not path.exists() or (sizes.records and not records_path.exists()):
            return
        entries, records = path.read_bytes(), records_path.read_bytes() if sizes.records else b""
        for number in range(min(sizes.entries, len(entries)) // ENTRY_BYTES):
            entry = read_entry(entries[number * ENTRY_BYTES : (number + 1) * ENTRY_BYTES])
            if entry.position < sizes.records:
                fault = _timer_fault(records[max(entry.position, 0) :][: max(entry.size, 0)], entry)
            else:
                fault = "" if self._log_has_timer(entry) else _IN_LOG
            if not fault:
                continue
            text = f"message {number} is damaged: {fault}"
            if len(records) >= sizes.records and self._log_has_timer(entry):
                yield StoreFault(path, number * ENTRY_BYTES, f"{text}; it will be taken from the log", Cure.NOBODY)
            else:
                yield StoreFault(path, number * ENTRY_BYTES, text, cure)

    def _log_has_timer(self, entry: TimerEntry) -> bool:
        return not _timer_fault(self.store.record_at(entry.log_offset, max(entry.size, 0)), entry)

    def _of_finished(self, path: Path, sizes: BucketSizes, cure: Cure) -> Iterator[StoreFault]:
        content = path.read_bytes()[: sizes.done] if path.exists() else b""
        for place, _, fault in read_finished(content, sizes.entries // ENTRY_BYTES, is_old=path.suffix == ".done"):
            if fault:
                yield StoreFault(path, place, fault, cure)


def _timer_fault(record: Buffer, entry: TimerEntry) -> str:
    """Return the fault of a scheduled message's record; "" for an intact record."""
    try:
        return "" if matches_entry(decode_verified(record, entry), entry) else MISFIT
    except StoreCorrupt as error:
        return str(error)
