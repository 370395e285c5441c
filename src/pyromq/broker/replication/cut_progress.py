"""Lowers a broker's saved progress after its log was cut, so that the effects of the cut messages do not count.

The progress covers consumer offsets, delay levels, scheduled messages and transactions. Progress is lowered only for
the cut messages: deliveries, decisions, cancels, and messages of queues. So no message is skipped, and few are
redelivered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar
from zlib import crc32

import msgspec

from pyromq.broker.batches import batch_coordinator
from pyromq.broker.delays.delay_levels import LOOKED_AHEAD, Likeness, first_of, level_of_copy, likeness_of
from pyromq.broker.delays.timer_records import LATEST_MS
from pyromq.broker.transactions import half_messages
from pyromq.logs import logger_of
from pyromq.message import Property, StoredMessage
from pyromq.names import HALF_RUN_TOPIC, HALF_TOPIC, LEDGER_TOPIC, OP_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from pyromq.remoting.bodies import FILE, ConsumerOffsetTable, DelayOffsetTable, decode_body
from pyromq.store.json_file import JsonFile
from pyromq.store.log_cut import CutRange, LogCut
from pyromq.store.message_store import MessageStore
from pyromq.store.timers.timer_bucket import HOUR_MS, TimerEntry
from pyromq.store.timers.timer_files import TimerFiles

logger = logger_of(__name__)

T = TypeVar("T")

_NO_OFFSET = 1 << 62


def cut_log(store: MessageStore, cut: LogCut, folder: Path) -> None:
    """Cut the log of a stopped broker with this data folder. `store` must not be open; it is closed afterwards.

    The next start finds the log and the progress without the cut records. Raises the errors of `MessageStore.open`.
    """
    try:
        store.open(cut)
        lower_progress(store, folder)
    finally:
        store.close()


def lower_progress(store: MessageStore, folder: Path) -> None:
    """Lower the saved progress in a data folder after the store's log was cut; then finish the cut.

    Does nothing if the log was not cut. Can be repeated after a crash at any moment. Must be called before the progress
    is loaded. Blocks. Raises `StoreNotWritable` and `StoreCorrupt`.
    """
    if (cut := store.cutting) is None:
        return
    undone = _Undone()
    if not cut.is_all:  # after a cut of the whole log, all progress is deleted
        for message in store.kept_messages():
            undone.take(message)
    _rewrite(store, folder / "config" / "delayOffset.json", DelayOffsetTable, partial(_lowered_levels, store, undone))
    _rewrite(store, folder / "config" / "consumerOffset.json", ConsumerOffsetTable, partial(_lowered, store, undone))
    _lower_timers(store, folder / "timers", undone)
    store.finish_cut()


def _rewrite(store: MessageStore, path: Path, kind: type[T], lowered: Callable[[CutRange, T], T]) -> None:
    file = JsonFile(path, store.disk)
    table = file.read(partial(decode_body, kind, bounds=FILE))
    if table is not None and store.cutting is not None:
        content = msgspec.json.encode(lowered(store.cutting, table))
        file.save(content)
        file.save(content)  # saved twice: a reader of a damaged file uses the previous content, `.bak`


@dataclass(slots=True)
class _Undone:
    """The deliveries, decisions and cancels to be undone, because their messages were cut from the log.

    `copies`: by delay level, the cut copies of delayed messages that are still in the log.
    `waited`: the cut messages of the delay levels.
    `half_offset`: queue offset of the first half message whose decision was cut.
    `delivered`: by hour, the log offsets of scheduled messages whose delivery was cut.
    `cancelled`: due time and key hash of scheduled messages whose cancel was cut.
    `topics`: by hour, the topics of these scheduled messages.
    """

    copies: dict[int, list[StoredMessage]] = field(default_factory=dict)
    waited: set[Likeness] = field(default_factory=set)
    half_offset: int = _NO_OFFSET
    delivered: dict[int, set[int]] = field(default_factory=dict)
    cancelled: set[tuple[int, int]] = field(default_factory=set)
    topics: dict[int, set[str]] = field(default_factory=dict)

    def take(self, message: StoredMessage) -> None:
        """Add what must be undone because this message was cut from the log, for example a delivery or a decision."""
        if message.topic == OP_TOPIC:
            named = [int(word) for word in message.stored_body.split(b",") if word.isdigit()]
            self.half_offset = min([self.half_offset, *named])
        elif message.topic == TIMER_TOPIC:
            self._take_parked(message)
        elif message.prepared_offset < 0 and (due_ms := _due_ms(message)) is not None:
            self.delivered.setdefault(due_ms // HOUR_MS, set()).add(~message.prepared_offset)
            self.topics.setdefault(due_ms // HOUR_MS, set()).add(message.topic)
        elif message.topic == SCHEDULE_TOPIC:
            self.waited.add(likeness_of(message))
        elif (level := level_of_copy(message)) is not None and likeness_of(message) not in self.waited:
            self.copies.setdefault(level, []).append(message)

    def _take_parked(self, message: StoredMessage) -> None:
        properties, due_ms = message.properties, _due_ms(message)
        if due_ms is not None and Property.TIMER_CANCELS in properties:
            self.cancelled.add((due_ms, crc32(properties.get(Property.UNIQUE_KEY, "").encode())))
            self.topics.setdefault(due_ms // HOUR_MS, set()).add(properties.get(Property.REAL_TOPIC, ""))

    def was_undone(self, entry: TimerEntry) -> bool:
        """Return True if a cut message may have delivered or cancelled the scheduled message of this entry."""
        delivered = self.delivered.get(entry.due_ms // HOUR_MS, ())
        return entry.log_offset in delivered or (entry.due_ms, entry.key_hash) in self.cancelled


def _due_ms(message: StoredMessage) -> int | None:
    due = message.properties.get(Property.TIMER_OUT_MS, "")
    return int(due) if due.isdecimal() and int(due) < LATEST_MS else None


def _lowered_levels(store: MessageStore, undone: _Undone, cut: CutRange, table: DelayOffsetTable) -> DelayOffsetTable:
    if cut.is_all:
        return DelayOffsetTable()
    offsets = {
        level: min(offset, store.next_offset(SCHEDULE_TOPIC, level - 1)) for level, offset in table.offsets.items()
    }
    log_end = min(table.log_end or 0, cut.end)
    for queue_id, copies in undone.copies.items():
        offset = offsets.get(queue_id + 1, 0)
        found = first_of(store, queue_id, copies[0], near=offset, within=len(copies) + LOOKED_AHEAD)
        if found is None:  # log end 0 makes the next start search the whole log for delivered copies
            found = log_end = 0
        offsets[queue_id + 1] = min(offset, found)
    return DelayOffsetTable(offsets, log_end)


def _lowered(store: MessageStore, undone: _Undone, cut: CutRange, table: ConsumerOffsetTable) -> ConsumerOffsetTable:
    lowered: dict[str, dict[int, int]] = {}
    for key, offsets in table.offsets.items():
        topic, _, group = key.partition("@")
        ends = cut.queues.get(topic, {})
        lowered[key] = {queue_id: min(offset, ends.get(queue_id, offset)) for queue_id, offset in offsets.items()}
        if group in (half_messages.GROUP, batch_coordinator.GROUP) and cut.is_all:
            lowered[key] = {}
    if not cut.queues.keys().isdisjoint((HALF_RUN_TOPIC, LEDGER_TOPIC)):
        for topic in (HALF_RUN_TOPIC, LEDGER_TOPIC):
            lowered[f"{topic}@{batch_coordinator.GROUP}"] = {}
    if not cut.queues.keys().isdisjoint((HALF_TOPIC, OP_TOPIC)):
        halves, ops = (lowered.setdefault(f"{topic}@{half_messages.GROUP}", {}) for topic in (HALF_TOPIC, OP_TOPIC))
        halves[0] = min(halves.get(0, 0), undone.half_offset)
        first = store.entries(HALF_TOPIC, 0, halves[0], 1)
        if first:  # the decision on a half message has a higher log offset than the half message
            ops[0] = min(ops.get(0, 0), store.first_behind(OP_TOPIC, 0, first[0].log_offset))
    return ConsumerOffsetTable(lowered)


def _lower_timers(store: MessageStore, folder: Path, undone: _Undone) -> None:
    files = TimerFiles(folder, store.copies_of, disk=store.disk)
    cut = store.cutting
    if cut is None or not files.load():
        return
    if cut.is_all:
        files.clear()
        return
    for hour, origins in undone.delivered.items():
        if hour not in files.buckets:
            _file_again(store, files, hour, origins)
    moved = min(files.saved.moved, store.next_offset(TIMER_TOPIC, 0))
    files.cut(cut.end, moved=moved, name=f"cut{cut.epoch}", undone=undone.was_undone, topics=undone.topics)


def _file_again(store: MessageStore, files: TimerFiles, hour: int, origins: set[int]) -> None:
    """Make entries again for scheduled messages whose bucket was deleted, because all its messages were delivered."""
    for origin in sorted(origins):
        parked = store.message_at(origin) if origin < store.max_log_offset else None
        if parked is None or (due_ms := _due_ms(parked)) is None:
            logger.error(
                "the timer at log offset %d is lost: its delivery was cut, and the log no longer has it", origin
            )
            continue
        bucket = files.buckets.get(hour) or files.make(hour, parked.queue_offset)
        topic, key = (parked.properties.get(each, "") for each in (Property.REAL_TOPIC, Property.UNIQUE_KEY))
        bucket.add(due_ms, crc32(key.encode()), crc32(topic.encode()), parked.log_offset, parked.size)
        files.changed[bucket] = None
        files.count({topic: 1})
