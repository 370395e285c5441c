"""Compares consume queues with the log they were made from: every entry has its record, every record its entry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pyromq.errors import StoreCorrupt
from pyromq.message import StoredMessage
from pyromq.names import SCHEDULE_TOPIC, is_system_topic
from pyromq.plural import counted
from pyromq.record import FIELD_AT, FIXED_SIZE, decode
from pyromq.store.offline.log_walk import Damage
from pyromq.store.offline.stopped_store import Cure, Finding, StoppedQueue, StoppedStore, usual
from pyromq.store.queue.consume_queue import FILLER_SIZE
from pyromq.store.queue.queue_ends_file import QueueEndsFile
from pyromq.store.queue.queue_table import is_folder_name
from pyromq.store.queue_dispatcher import UNQUEUED, QueueDispatcher

_FEWEST_BEFORE = 1 << 32  # a log that was begun again beside old queues may say more than its length allows


@dataclass(slots=True)
class _Progress:
    """One queue while the log is walked. `first_live_at`: log offset of its first entry that has a record."""

    queue: StoppedQueue
    first_live_at: int
    matched: int = 0
    missing: list[range] = field(default_factory=list)
    claimed: set[int] = field(default_factory=set)  # queue offsets of records whose entries lead further
    wrong: list[range] = field(default_factory=list)


class _Astray(NamedTuple):
    """An entry that leads to no record of its own; `log_offset` None: nowhere."""

    offset: int
    log_offset: int | None
    more: str
    cure: Cure

    @property
    def kind(self) -> tuple[bool, str, Cure]:
        return self.log_offset is None, self.more, self.cure


class QueueCheck:
    """Give it every record of the log in order, then ask for `findings`. `broken` holds the queues to be made again."""

    def __init__(self, store: StoppedStore) -> None:
        self.broken: set[tuple[str, int]] = set()
        self.lost: dict[tuple[str, int], list[tuple[int, int]]] = {}  # queue offsets and log offsets of damaged records
        self._store = store
        self._tags_code = QueueDispatcher(store.config.delay_levels_ms).tags_code
        self._queues = {
            (queue.topic, queue.queue_id): _Progress(queue, _first_live_at(queue, store.log_begin))
            for queue in store.queues()
        }
        sizes = [progress.queue.file_bytes for progress in self._queues.values()]
        self.file_bytes = usual(size for size in sizes if size)  # of the files of most queues; 0 without any
        table = store.root / "config" / "topics.json"
        self._topics = table.read_bytes() if table.exists() else b""
        noted = QueueEndsFile(store.root / "queues").load().ends
        self._noted = {(topic, queue_id): end for topic, ends in noted.items() for queue_id, end in ends.items()}
        self._odd: list[StoredMessage] = []
        self._unknown: dict[tuple[str, int], int] = {}
        self.log_ends_at = 0  # by the queues

    def queue(self, topic: str, queue_id: int) -> StoppedQueue:
        return self._queues[topic, queue_id].queue

    @property
    def ends(self) -> dict[tuple[str, int], int]:
        """The queue offsets behind the last entries."""
        return {key: progress.queue.end for key, progress in self._queues.items()}

    def take(self, message: StoredMessage) -> None:
        """Look for the entry of a sound record. Called for every one."""
        if message.sys_flag & UNQUEUED or not is_folder_name(message.topic, message.queue_id):
            return
        key = (message.topic, message.queue_id)
        progress = self._queues.get(key)
        if progress is None:  # lost, or its topic was deleted: nobody can tell
            self._unknown[key] = self._unknown.get(key, 0) + 1
            return
        entry = progress.queue.entry(message.queue_offset)
        if entry is None and _is_impossible(message):
            self._odd.append(message)
            return
        if entry is None or entry.size <= 0 or entry.log_offset < message.log_offset or entry.size == FILLER_SIZE:
            if not self._is_of_deleted_topic(message, progress):
                _extend(progress.missing, message.queue_offset)
            return
        if entry.log_offset > message.log_offset:  # of a topic that was deleted and made again, or damaged
            progress.claimed.add(message.queue_offset)
            return
        progress.matched += 1
        wanted_tags = entry.tags_code if message.topic == SCHEDULE_TOPIC else self._tags_code(message)
        if (entry.size, entry.tags_code) != (message.size, wanted_tags):
            _extend(progress.wrong, message.queue_offset)

    @staticmethod
    def _is_of_deleted_topic(message: StoredMessage, progress: _Progress) -> bool:
        queue = progress.queue
        return message.log_offset < progress.first_live_at and message.queue_offset >= queue.first

    def findings(self, log_end: int, damages: list[Damage]) -> Iterator[Finding]:
        """Yield what is wrong, queue by queue."""
        for message in self._odd:
            place = self._store.record_at(message.log_offset)
            assert place is not None  # it came from there
            text = f"the record says queue offset {message.queue_offset}, which cannot be; its queue leads to it"
            yield Finding(place[0].path, place[1] + FIELD_AT["queue_offset"], text, Cure.BACKUP)
        for key, progress in self._queues.items():
            found = [*self._of_files(progress), *self._of_queue(key, progress, log_end, damages)]
            if any(finding.cure is Cure.REPAIR for finding in found):
                self.broken.add(key)
            yield from found
        for (topic, queue_id), count in self._unknown.items():
            path = self._path_of(topic, queue_id)
            if (topic, queue_id) in self._noted or self._is_known(topic):
                self.broken.add((topic, queue_id))
                yield Finding(
                    path, None, f"the queue is missing, the log has {counted(count, 'message')} of it", Cure.REPAIR
                )
            else:
                yield Finding(
                    path, None, f"the log has {counted(count, 'message')} of a topic that is deleted", Cure.NOBODY
                )
        for key, noted_end in self._noted.items():
            end = self._queues[key].queue.end if key in self._queues else 0
            if end < noted_end and key not in self.broken:
                text = f"the queue had come to queue offset {noted_end}, its entries end at {end}"
                yield Finding(self._path_of(*key), None, text, Cure.START)

    def _path_of(self, topic: str, queue_id: int) -> Path:
        return self._store.root / "consumequeue" / topic / str(queue_id)

    def _is_known(self, topic: str) -> bool:
        """Whether the topic has settings, or needs none. The table is searched, not read: any form of it will do."""
        return is_system_topic(topic) or f'"{topic}"'.encode() in self._topics

    def _of_files(self, progress: _Progress) -> Iterator[Finding]:
        for path in progress.queue.foreign:
            yield Finding(path, None, "it is no file of a consume queue", Cure.NOBODY)
        for path, text in progress.queue.wrong_files():
            yield Finding(path, None, text, Cure.REPAIR)
        if progress.queue.file_bytes not in (0, self.file_bytes):
            text = f"its files have {progress.queue.file_bytes} bytes, those of other queues {self.file_bytes}"
            yield Finding(progress.queue.folder, None, text, Cure.START)

    def _of_queue(
        self, key: tuple[str, int], progress: _Progress, log_end: int, damages: list[Damage]
    ) -> Iterator[Finding]:
        queue = progress.queue
        for offsets in progress.missing:
            path, position = queue.path_of(offsets[0])
            missing = f"{_numbers(offsets)} {'is' if len(offsets) == 1 else 'are'} missing"
            text = f"{missing}: the log has the messages, the queue has not"
            # What a crash kept from the disk lies at the queue's end, and is made again.
            cure = Cure.START if self._store.crashed and offsets[0] >= queue.end else Cure.REPAIR
            yield Finding(path, position, text, cure)
        for offsets in progress.wrong:
            path, position = queue.path_of(offsets[0])
            several = f"{_numbers(offsets)} have another size or tags code than their records"
            one = f"{_numbers(offsets)} has another size or tags code than its record"
            yield Finding(path, position, one if len(offsets) == 1 else several, Cure.REPAIR)
        if self._live(queue) != progress.matched:
            yield from self._of_entries(key, queue, log_end, damages)

    def _live(self, queue: StoppedQueue) -> int:
        """Return how many entries ought to have records."""
        count = 0
        for offset in range(queue.first, queue.end):
            entry = queue.entry(offset)
            if entry is not None and entry.size != FILLER_SIZE and entry.log_offset >= self._store.log_begin:
                count += 1
        return count

    def _of_entries(
        self, key: tuple[str, int], queue: StoppedQueue, log_end: int, damages: list[Damage]
    ) -> Iterator[Finding]:
        """Look for the entries that have no record. Those one behind the other with the same fault are one finding."""
        run: list[_Astray] = []
        for astray in self._astray(key, queue, log_end, damages):
            if run and (astray.offset != run[-1].offset + 1 or astray.kind != run[-1].kind):
                yield _finding(queue, run)
                run = []
            run.append(astray)
        if run:
            yield _finding(queue, run)

    def _astray(
        self, key: tuple[str, int], queue: StoppedQueue, log_end: int, damages: list[Damage]
    ) -> Iterator[_Astray]:
        for offset in range(queue.first, queue.end):
            entry = queue.entry(offset)
            if entry is None or entry.size == FILLER_SIZE or 0 <= entry.log_offset < self._store.log_begin:
                continue
            at = entry.log_offset
            if self._leads_to_its_record(queue, offset, at):
                continue
            if entry.size <= 0 or at < 0:
                yield _Astray(offset, None, "", Cure.REPAIR)
            elif offset in self._queues[key].claimed:
                yield _Astray(offset, at, "", Cure.REPAIR)
            elif at >= log_end and self._store.power_cut:
                yield _Astray(offset, at, ": behind the log's end", Cure.START)
            elif any(damage.start <= at < damage.end for damage in damages):
                self.lost.setdefault(key, []).append((offset, at))
                self.log_ends_at = max(self.log_ends_at, at + entry.size)
                yield _Astray(offset, at, ": there is damage", Cure.BACKUP)
            elif at >= log_end:
                # New records will be there: the entry must lead before them.
                self.lost.setdefault(key, []).append((offset, max(log_end - 1, 0)))
                yield _Astray(offset, at, f": the log ends at {log_end}", Cure.BACKUP)
            else:
                yield _Astray(offset, at, "", Cure.REPAIR)

    def _leads_to_its_record(self, queue: StoppedQueue, queue_offset: int, log_offset: int) -> bool:
        place = self._store.record_at(log_offset)
        if place is None:
            return False
        try:
            message = decode(place[0].view, place[1], check_crc=True)
        except StoreCorrupt:
            return False
        if (message.topic, message.queue_id, message.log_offset) != (queue.topic, queue.queue_id, log_offset):
            return False
        return message.queue_offset == queue_offset or _is_impossible(message)


def _is_impossible(message: StoredMessage) -> bool:
    """Whether a queue offset is larger than there can be messages before: that field is in no checksum."""
    return message.queue_offset > _FEWEST_BEFORE + message.log_offset // FIXED_SIZE


def _first_live_at(queue: StoppedQueue, log_begin: int) -> int:
    for offset in range(queue.first, queue.end):
        entry = queue.entry(offset)
        if entry is not None and entry.size not in (0, FILLER_SIZE) and entry.log_offset >= log_begin:
            return entry.log_offset
    return 0


def _extend(ranges: list[range], offset: int) -> None:
    """Add an offset to ranges of offsets that follow each other."""
    if ranges and ranges[-1].stop == offset:
        ranges[-1] = range(ranges[-1].start, offset + 1)
    else:
        ranges.append(range(offset, offset + 1))


def _numbers(offsets: range) -> str:
    return f"entry {offsets[0]}" if len(offsets) == 1 else f"entries {offsets[0]} to {offsets[-1]}"


def _finding(queue: StoppedQueue, run: list[_Astray]) -> Finding:
    """Tell of entries one behind the other."""
    first, last = run[0], run[-1]
    who = _numbers(range(first.offset, last.offset + 1))
    if first.log_offset is None:
        text = f"{who} {'is' if first is last else 'are'} damaged"
    elif first is last:
        text = f"{who} leads to log offset {first.log_offset}, where its record is not{first.more}"
    else:
        span = f"{first.log_offset} to {last.log_offset}"
        text = f"{who} lead to log offsets {span}, where their records are not{first.more}"
    return Finding(*queue.path_of(first.offset), text, first.cure)
