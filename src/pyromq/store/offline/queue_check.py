"""Compares the consume queues of a stopped store with the entries that a rebuild from the log would write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pyromq.message import StoredMessage
from pyromq.names import SCHEDULE_TOPIC, is_system_topic
from pyromq.plural import counted
from pyromq.record import FIELD_AT
from pyromq.store.log.log_walk import Damage
from pyromq.store.offline.stopped_store import Cure, StoppedQueue, StoppedStore, StoreFault, usual
from pyromq.store.queue.consume_queue import ENTRY_BYTES, FILLER_SIZE, ConsumeQueue, QueueEntry
from pyromq.store.queue.queue_table import QueueEndsFile, is_folder_name
from pyromq.store.queue_dispatcher import UNQUEUED, QueueDispatcher


class ComparedQueue:
    """A `RebuiltQueue` that compares the entries of a rebuild with the stored entries, and writes nothing.

    `wrong` are the queue offsets of entries that do not lead to their records. `lost` are the queue offsets without
    records.
    """

    def __init__(self, stored: ConsumeQueue) -> None:
        self.topic, self.queue_id = stored.topic, stored.queue_id
        self.stored = stored
        self.first = stored.files.base // ENTRY_BYTES
        self.max_offset = self.covered_to = 0
        self.wrong: list[range] = []
        self.lost: list[range] = []
        self._has_tags = stored.topic != SCHEDULE_TOPIC  # otherwise tags codes are due times

    def append(self, log_offset: int, size: int, tags_code: int) -> None:
        entry = self.stored.find(self.max_offset)
        is_right = entry is not None and (entry.log_offset, entry.size) == (log_offset, size)
        if entry is None or not is_right or (self._has_tags and entry.tags_code != tags_code):
            _extend(self.wrong, self.max_offset)
        self.max_offset += 1
        self.covered_to = log_offset + size

    def begin_at(self, queue_offset: int, lost_at: int) -> None:
        self.lost.append(range(self.max_offset or self.first, queue_offset))
        self.max_offset = queue_offset

    def cut_at(self, queue_offset: int) -> None:
        self.max_offset = queue_offset
        for ranges in (self.wrong, self.lost):
            ranges[:] = [
                range(each.start, min(each.stop, queue_offset)) for each in ranges if each.start < queue_offset
            ]

    def place_of(self, queue_offset: int) -> tuple[Path, int]:
        """Return file and byte position of the entry at a queue offset. The entry need not exist."""
        position, files = queue_offset * ENTRY_BYTES, self.stored.files
        return files.path_of(position - position % files.segment_bytes), position % files.segment_bytes

    def without_record(self, log_begin: int) -> Iterator[tuple[int, QueueEntry]]:
        """Yield queue offset and entry of each message whose record is neither in the log nor expired."""
        for offsets in (*self.lost, range(self.max_offset, self.stored.max_offset)):
            for offset in offsets:
                entry = self.stored.find(offset)
                if entry is not None and entry.size != FILLER_SIZE and not 0 <= entry.log_offset < log_begin:
                    yield offset, entry


class QueueCheck:
    """Checks all consume queues.

    `take` gets every intact record of the log in order. Then `findings` yields the faults.

    Afterwards `broken` holds the queues to rebuild, and `ends` the maximum offsets of all queues. `lost` holds the
    queue offsets of messages whose records are damaged or missing.
    """

    def __init__(self, store: StoppedStore) -> None:
        self.broken: set[tuple[str, int]] = set()
        self.ends: dict[tuple[str, int], int] = {}
        self.lost: dict[tuple[str, int], list[range]] = {}
        self._store = store
        self._dispatcher = QueueDispatcher(store.config.delay_levels_ms)
        self._dispatcher.begin_replay(store.log_begin)
        self._stored = list(store.queues())
        self._queues = {
            (each.entries.topic, each.entries.queue_id): ComparedQueue(each.entries) for each in self._stored
        }
        self.lost_end = 0  # log offset after the last damaged record that a queue leads to
        self.file_bytes = usual(each.file_bytes for each in self._stored if each.file_bytes)  # 0: no queue has files
        table = store.root / "config" / "topics.json"
        self._topics = table.read_bytes() if table.exists() else b""
        saved_ends = QueueEndsFile(store.root / "queues").load().ends
        self._saved = {(topic, queue_id): end for topic, ends in saved_ends.items() for queue_id, end in ends.items()}
        self._unknown: dict[tuple[str, int], int] = {}  # number of records by queue, for queues that are not on disk

    def take(self, message: StoredMessage) -> None:
        """Compare an intact record of the log with the queue entry of its message."""
        key = (message.topic, message.queue_id)
        if message.sys_flag & UNQUEUED or not is_folder_name(*key):
            return
        if (queue := self._queues.get(key)) is None:
            self._unknown[key] = self._unknown.get(key, 0) + 1
        else:
            self._dispatcher.replay(message, queue, complete=True)

    def findings(self, log_end: int, damages: list[Damage]) -> Iterator[StoreFault]:
        """Yield the faults of all queues, queue by queue. `log_end` is the log offset where the log ends."""
        self._dispatcher.end_replay(complete=True)
        for log_offset, queue_offset in self._dispatcher.damaged_heads:
            place = self._store.place_of(log_offset)
            assert place is not None  # the record was read there
            text = f"the header of the record is damaged: its queue offset, {queue_offset}, does not fit its queue"
            yield StoreFault(place[0].path, place[1] + FIELD_AT["queue_offset"], text, Cure.BACKUP)
        for stored, (key, queue) in zip(self._stored, self._queues.items(), strict=True):
            found = [*self._of_files(stored), *self._of_wrong(queue), *self._of_lost(queue, log_end, damages)]
            if any(finding.cure in (Cure.REPAIR, Cure.BACKUP) for finding in found):
                self.broken.add(key)
            lost_end = self.lost[key][-1].stop if key in self.lost else 0
            last = queue.stored.find(queue.stored.max_offset - 1)
            has_expired = last is not None and last.log_offset < self._store.log_begin
            self.ends[key] = max(queue.max_offset, lost_end, queue.stored.max_offset if has_expired else 0)
            yield from found
        yield from self._of_missing()

    def _of_files(self, queue: StoppedQueue) -> Iterator[StoreFault]:
        for path in queue.foreign:
            yield StoreFault(path, None, "it is not a file of a consume queue", Cure.NOBODY)
        for path, text in queue.wrong_files:
            yield StoreFault(path, None, text, Cure.REPAIR)
        if queue.file_bytes not in (0, self.file_bytes):
            text = f"its files have {queue.file_bytes} bytes, those of other queues {self.file_bytes}"
            yield StoreFault(queue.entries.files.folder, None, text, Cure.START)

    def _of_wrong(self, queue: ComparedQueue) -> Iterator[StoreFault]:
        for offsets in queue.wrong:
            # Entries that were not on disk at a crash are at the queue's end.
            cure = Cure.START if self._store.crashed and offsets[0] >= queue.stored.max_offset else Cure.REPAIR
            yield StoreFault(*queue.place_of(offsets[0]), f"{_numbers(offsets)}: missing or not as in the log", cure)

    def _of_lost(self, queue: ComparedQueue, log_end: int, damages: list[Damage]) -> Iterator[StoreFault]:
        """Yield a fault for each range of consecutive entries without records and with the same cure."""
        runs: list[tuple[Cure, range]] = []
        for offset, entry in queue.without_record(self._store.log_begin):
            at = entry.log_offset
            if entry.size > 0 and at >= log_end and self._store.power_loss:
                cure = Cure.START
            elif entry.size > 0 and any(damage.start <= at < damage.end for damage in damages):
                cure = Cure.BACKUP
                self.lost_end = max(self.lost_end, at + entry.size)
            elif entry.size > 0 and at >= log_end:
                cure = Cure.BACKUP
            else:
                cure = Cure.REPAIR
            if runs and runs[-1][0] is cure and runs[-1][1].stop == offset:
                runs[-1] = cure, range(runs[-1][1].start, offset + 1)
            else:
                runs.append((cure, range(offset, offset + 1)))
        for cure, offsets in runs:
            if cure is Cure.BACKUP:
                self.lost.setdefault((queue.topic, queue.queue_id), []).append(offsets)
            first, last = queue.stored.find(offsets[0]), queue.stored.find(offsets[-1])
            assert first is not None
            assert last is not None
            text = f"{_numbers(offsets)}: no records at log offsets {first.log_offset} to {last.log_offset}"
            yield StoreFault(*queue.place_of(offsets[0]), text, cure)

    def _of_missing(self) -> Iterator[StoreFault]:
        """Yield a fault for each queue without files, and for each queue that ends before its saved end."""
        for key, count in self._unknown.items():
            if key in self._saved or self._is_known(key[0]):
                self.broken.add(key)
                text = f"the queue is missing, the log has {counted(count, 'message')} of it"
                yield StoreFault(self._path_of(*key), None, text, Cure.REPAIR)
            else:
                text = f"the log has {counted(count, 'message')} of a topic that is deleted"
                yield StoreFault(self._path_of(*key), None, text, Cure.NOBODY)
        for key, saved_end in self._saved.items():
            end = self._queues[key].stored.max_offset if key in self._queues else 0
            if end < saved_end and key not in self.broken:
                text = f"the queue had {counted(saved_end, 'entry', 'entries')}, its files end at entry {end}"
                yield StoreFault(self._path_of(*key), None, text, Cure.START)
            self.ends[key] = max(self.ends.get(key, 0), saved_end)

    def _path_of(self, topic: str, queue_id: int) -> Path:
        return self._store.root / "consumequeue" / topic / str(queue_id)

    def _is_known(self, topic: str) -> bool:
        """Return True if the topic has settings, or is a system topic, which needs none.

        The topic table is searched, not decoded, as its format may vary.
        """
        return is_system_topic(topic) or f'"{topic}"'.encode() in self._topics


def _extend(ranges: list[range], offset: int) -> None:
    """Add an offset to the last range if the offset follows that range, otherwise as a new range."""
    if ranges and ranges[-1].stop == offset:
        ranges[-1] = range(ranges[-1].start, offset + 1)
    else:
        ranges.append(range(offset, offset + 1))


def _numbers(offsets: range) -> str:
    return f"entry {offsets[0]}" if len(offsets) == 1 else f"entries {offsets[0]} to {offsets[-1]}"
