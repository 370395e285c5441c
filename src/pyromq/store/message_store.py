"""The store of a broker: appends, reads and finds messages. Opens and closes all files of the data folder.

After `append` returns, the record has its offsets, is visible to readers and survives a crash of the process. The
record survives a power loss once `flushed_to` has passed the record's end; `wait_flushed` waits for that. Only one
thread may append and read. Readers get views of the mapped file, which stay valid as long as they are referenced.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from pyromq.clock import Clock
from pyromq.errors import StoreCorrupt, StoreNotWritable, UsageError
from pyromq.logs import logger_of
from pyromq.message import StoredMessage
from pyromq.record import IPV4_BYTES, decode_labels, mark_addresses
from pyromq.slow_work import SlowWork, yield_slice
from pyromq.store.batch_appends import BatchAppends, BatchListener
from pyromq.store.checkpoint import Checkpoint
from pyromq.store.directory import Directory
from pyromq.store.disk import LOCAL_DISK, Disk, start_advice
from pyromq.store.flusher import Flusher
from pyromq.store.index.index_file import is_found_by
from pyromq.store.index.key_index import KeyIndex, KeyMatches
from pyromq.store.log.commit_log import CommitLog, LogTail, Residency
from pyromq.store.log.segmented_log import SegmentedLog
from pyromq.store.log_cut import CutRange, LogCut, LogCutter, cut_messages
from pyromq.store.log_intake import LogIntake
from pyromq.store.queue.consume_queue import FILLER_SIZE, ConsumeQueue, QueueEntry, unpack_entries
from pyromq.store.queue.entry_verifier import EntryVerifier
from pyromq.store.queue.queue_table import QueueTable
from pyromq.store.queue.reading import Reading, ReadResult, ReadStatus
from pyromq.store.queue_dispatcher import UNQUEUED, QueueDispatcher
from pyromq.store.recovery import Recovery
from pyromq.store.retention import Retention
from pyromq.store.store_config import StoreConfig
from pyromq.store.worker import worker

logger = logger_of(__name__)

__all__ = ["KeyMatches", "LogCut", "MessageStore", "QueueEntry", "ReadResult", "ReadStatus"]

_RECORD_ALLOWANCE = 64 << 10  # bytes that a record may have beyond the limit of a body. Source: CommitLog
_CUTTING = "the cut of the log is not finished"
_INDEX_ON_CLOSE_SECONDS = 5.0  # limit of the time for indexing at close; the next start indexes the other records


class MessageStore:
    """The messages of one broker on disk. `store_address` (packed IP and port) is written into each record.

    After `bound_reads` clients may read confirmed messages only: `read`, `max_offset`, `search_by_time`,
    `search_by_key`, `confirmed_record_at` and compiled pulls end at `confirmed_end`. Methods for the broker's own
    tables, for example `entries`, see all stored messages.

    The caller may correct `store_address` before the first append. Compiled code appends and reads through `log_tail`,
    `queues_of` and `queue_tail`.
    """

    def __init__(self, config: StoreConfig, clock: Clock, *, store_address: bytes, disk: Disk = LOCAL_DISK) -> None:
        self.config = config
        self.disk = disk
        self.store_address = store_address
        self._directory = Directory(config.root, disk)
        self._log = CommitLog(
            config.log_folder,
            config.segment_bytes,
            clock=clock,
            max_record_bytes=config.max_message_bytes + _RECORD_ALLOWANCE,
            disk=disk,
        )
        self._queues = QueueTable(self._directory.consume_queues, config.consume_queue_entries, disk)
        self._index = KeyIndex(
            self._directory.index, slots=config.index_slots, entries=config.index_entries, clock=clock, disk=disk
        )
        self._dispatcher = QueueDispatcher(config.delay_levels_ms)
        self._checkpoint = Checkpoint(self._directory.checkpoint, disk)
        self._flusher = Flusher(
            *(self._log, self._queues, self._index),
            checkpoint=self._checkpoint,
            directory=self._directory,
            config=config,
            clock=clock,
            disk=disk,
        )
        self.residency = Residency(self._log, clock)
        self.retention = Retention(
            self._log,
            self._queues,
            self._index,
            residency=self.residency,
            config=config,
            clock=clock,
            disk=disk,
            sync_entries=self._flusher.sync_entries,
        )
        self._verifier = EntryVerifier(self._log, self._dispatcher.tags_code)
        self.reading = Reading(self._log, self._queues, config, verifier=self._verifier, residency=self.residency)
        self.read = self.reading.read
        self.search_by_time = self.reading.search_by_time
        self.batch_appends = BatchAppends(self._log, self._queues, clock)
        self._intake = LogIntake(self._log, self._queues, self._dispatcher)
        self.append_bytes = self._intake.append
        self._loading = worker(disk, "load-log-end")
        self._clock = clock
        self._unconfirmed: deque[tuple[int, Callable[[], object]]] = deque()  # log offsets, and what waits for them
        self._open = False
        self.cutting: CutRange | None = None  # the cut of the log that `finish_cut` has not finished
        self._finish_cut: Callable[[], None] = lambda: None
        self._bind()

    def _bind(self) -> None:
        """Make methods of the parts the store's own; most of them are called for every message."""
        self._by_topic = self._queues.by_topic
        self.queues_of = self._by_topic.get
        self.queue_tail = self._queues.find
        self.log_tail: LogTail = self._log
        self.lock = self._directory.lock  # `open` does that too, unless the folder is locked
        self.flush_due = self._flusher.turn  # only for a disk without threads
        self.wait_flushed = self._flusher.wait
        self.refuse_own, self.drop_incomplete = self._log.refuse_own, self._log.drop_incomplete
        self.record_at, self.message_at = self._log.record_at, self._log.message_at
        self.records_from, self.is_cold = self._log.records_from, self.reading.is_cold
        self.drop_entries = self._queues.drop_entries
        self._append_record = self._log.append
        self._dispatch = self._dispatcher.dispatch

    # -- life

    @property
    def crashed(self) -> bool:
        """True if the last process did not stop cleanly. Known once the folder is locked."""
        return self._directory.crashed

    @property
    def lost_unflushed(self) -> bool:
        """True if bytes that the last process did not flush may be missing. Known once the folder is locked."""
        return self._directory.crashed and not self._directory.same_boot

    def open(self, cut: LogCut | None = None) -> None:
        """Lock the data folder, recover the store, and accept appends. `close` must be called, even if `open` fails.

        With `cut`, the log's last records are cut first, as for an unfinished cut of an earlier start. The store is
        then `cutting`. Raises `StoreLocked`, `StoreCorrupt` or `StoreNotWritable`, and `UsageError` for a cut that must
        not happen.
        """
        directory = self._directory
        try:
            directory.lock()
            self._checkpoint.load()
            self._cut(cut)
            lost = self.lost_unflushed
            recovery = Recovery(
                *(self._log, self._queues, self._dispatcher),
                verifier=self._verifier,
                check_crc=self.config.check_crc_on_recover,
                clock=self._clock,
                log_began=self._checkpoint.log_begin,
            )
            try:
                flushed_to = recovery.run(crashed=directory.crashed, safe_ms=self._checkpoint.safe_ms, power_loss=lost)
            except StoreNotWritable as error:
                refused = str(error).partition(";")[0]  # the rest is advice for a running broker
                raise StoreNotWritable(f"{refused}; {start_advice(error.__cause__)}") from error
            if self.config.index_enabled:
                self._index.load(self._log, flushed_ms=self._checkpoint.index_ms, power_loss=lost)
                self._checkpoint.index_ms = min(self._checkpoint.index_ms, self._index.full_ms)
                self._checkpoint.save()
            directory.mark_open()
        except OSError as error:
            place = f" ({error.filename})" if error.filename else ""
            raise StoreNotWritable(
                f"cannot open the store in {directory.root}: {error.strerror}{place}; {start_advice(error)}"
            ) from error
        if self.cutting is not None:
            self._log.refuse(_CUTTING)
        self._flusher.start(flushed_to)
        if recent := self.residency.recent():  # pages at the log's end, not in memory after a start of the machine
            self._loading.submit(self.disk.load, recent)
        self._open = True

    def _cut(self, cut: LogCut | None) -> None:
        config, disk = self.config, self.disk
        cutter = LogCutter(
            config.root,
            SegmentedLog(config.log_folder, config.segment_bytes, "mappedFileSizeCommitLog", disk=disk),
            QueueTable(self._directory.consume_queues, config.consume_queue_entries, disk),
            checkpoint=self._checkpoint,
            disk=disk,
        )
        pending = cutter.pending()
        if pending is not None and cut is not None:
            raise UsageError(f"the log of {config.root} is being cut at {pending.end}: open the store once before")
        self.cutting = pending if cut is None else cutter.begin(cut, crashed=self._directory.crashed)
        if self.cutting is not None:
            cutter.run(self.cutting)
            self._finish_cut = cutter.finish

    def finish_cut(self) -> None:
        """Record durably that all tables agree with the cut log, and accept appends.

        Until then every start cuts the log again. Raises `StoreNotWritable`.
        """
        if self.cutting is None:
            return
        try:
            self._finish_cut()
        except OSError as error:
            raise StoreNotWritable(f"cannot write to {self.config.root}: {error}; check its disk") from error
        self.cutting = None
        self._log.accept(_CUTTING)

    def kept_messages(self) -> Iterator[StoredMessage]:
        """Yield the messages that the unfinished cut has removed, in order of the log."""
        if self.cutting is not None:
            yield from cut_messages(self.config.root, self.cutting, self.disk)

    def close(self) -> None:
        """Flush everything, mark the stop as clean and unlock the data folder. May be called after a failed `open`.

        Raises `StoreNotWritable` if a flush fails: the next start then recovers as after a crash.
        """
        try:
            if self._open:
                self._open = False
                self._close_files()
        except OSError as error:
            self._directory.mark_unflushed()
            raise StoreNotWritable(f"cannot flush the store in {self._directory.root}: {error}") from error
        finally:
            self._loading.shutdown()
            self._log.close()
            self._queues.release()
            self._directory.unlock()

    def _close_files(self) -> None:
        with ExitStack() as last:
            last.callback(self._flusher.stop)  # also after an error, as the flusher's thread must not outlive the lock
            if self.config.index_enabled:
                self.index_step(_INDEX_ON_CLOSE_SECONDS)
                self._checkpoint.index_ms = max(self._checkpoint.index_ms, self._index.close())
            self._log.refuse("the store is closed")
            self._log.drop_incomplete()
            self.retention.close()
        self._directory.mark_closed()

    def tick(self) -> None:
        """Resolve the expired waits of `wait_flushed` to False. Must be called about once a second."""
        self._flusher.expire(self._clock.monotonic())

    # -- writing

    def listen(self, arrived: Callable[[StoredMessage, int], None], arrived_together: BatchListener) -> None:
        """Register two listeners. `arrived(message, tags_code)` is called after each append of a message.

        `arrived_together(topic, queue id, arrivals)` is called after each compiled append of a batch or of a master's
        bytes. Compiled sends call neither listener.
        """
        self._dispatcher.on_append = arrived
        self.batch_appends.on_append = self._intake.arrived_together = arrived_together

    def follow(self, topic: str, apply: Callable[[StoredMessage], None]) -> None:
        """Call `apply` with each record appended to an internal topic, before the append returns.

        `apply` must neither append nor raise. A topic has one follower. Compiled code never appends to such a topic.
        """
        self._dispatcher.followers[topic] = apply

    def append(self, message: StoredMessage) -> None:
        """Store a message. Sets the message's queue offset, log offset, store time, store address and size.

        Raises `MessageRefused` for a value that no record can hold, and `StoreNotWritable`.
        """
        try:
            queue = self._by_topic[message.topic][message.queue_id]
        except KeyError:
            queue = self._queues.make(message.topic, message.queue_id)
        offset = message.queue_offset = queue.max_offset
        if offset >= queue.reserved:
            queue.reserve(offset)
        message.store_address = self.store_address
        if message.sys_flag or len(message.born_address) != IPV4_BYTES or len(self.store_address) != IPV4_BYTES:
            mark_addresses(message)
            if message.sys_flag & UNQUEUED:
                message.queue_offset = 0
        self._append_record(message)
        self._dispatch(message, queue)

    def append_batch(self, messages: list[StoredMessage]) -> None:
        """Store messages back to back in one segment with one write, all or none.

        Sets the same fields, and raises the same errors, as `append`.
        """
        by_topic, address = self._by_topic, self.store_address
        queues = []
        next_offsets: dict[ConsumeQueue, int] = {}
        for message in messages:
            try:
                queue = by_topic[message.topic][message.queue_id]
            except KeyError:
                queue = self._queues.make(message.topic, message.queue_id)
            queues.append(queue)
            message.store_address = address
            if message.sys_flag or len(message.born_address) != IPV4_BYTES or len(address) != IPV4_BYTES:
                mark_addresses(message)
            if message.sys_flag & UNQUEUED:
                message.queue_offset = 0
            else:
                message.queue_offset = offset = next_offsets.get(queue) or queue.max_offset
                if offset >= queue.reserved:
                    queue.reserve(offset)
                next_offsets[queue] = offset + 1
        self._log.append_batch(messages)
        dispatch = self._dispatch
        for message, queue in zip(messages, queues, strict=True):
            dispatch(message, queue)

    @property
    def flushed_to(self) -> int:
        """Log offset up to which all records are on disk."""
        return self._flusher.flushed_to

    @property
    def refusal(self) -> str:
        """Reason why messages are refused; "" if messages are accepted."""
        return self._log.refusal

    @property
    def missing_files(self) -> tuple[Path, ...]:
        """Older log files, index files and tables that were deleted or moved while the store is open."""
        return self._flusher.missing

    # -- single records

    @property
    def min_log_offset(self) -> int:
        return self._log.min_offset

    @property
    def max_log_offset(self) -> int:
        return self._log.end

    @property
    def written_end(self) -> int:
        """Log offset after the last byte of the log. `append_bytes` may have left an incomplete record at the end."""
        return self._log.written_end

    def views(self, start: int, most: int) -> memoryview:
        """Return a read-only view of up to `most` bytes of the log from log offset `start` on.

        The view ends at the end of the file or of the last record at the latest, and is empty outside of the log.
        Raises `NotInMemory` if the bytes must be read from the disk.
        """
        view = self._log.view(start, most)
        self.residency.need(start, start + len(view))
        return view

    @property
    def confirmed_end(self) -> int:
        """Log offset before which records may be read, delivered and saved as progress: the log's end.

        After `bound_reads`, it is at most the offset passed to `confirm`."""
        return min(self._log.end, self._log.readable_to)

    @property
    def is_confirmed(self) -> bool:
        """True if all records of the log are confirmed."""
        return self._log.end <= self._log.readable_to

    def bound_reads(self) -> None:
        """Hide all records from readers until `confirm` names them. Must be called before the first read."""
        self._log.readable_to = 0

    def confirm(self, end: int) -> None:
        """Let readers see the records that end at or before log offset `end`. A lower offset than before is ignored.

        Does nothing unless `bound_reads` was called.
        """
        if end > self._log.readable_to:
            self._log.readable_to = end
            while self._unconfirmed and self._unconfirmed[0][0] <= end:
                self._unconfirmed.popleft()[1]()

    def when_confirmed(self, action: Callable[[], object]) -> None:
        """Call `action` once all records of the present log are confirmed: at once, or by `confirm`."""
        if self.is_confirmed:
            action()
        else:
            self._unconfirmed.append((self._log.end, action))

    def confirmed_record_at(self, log_offset: int) -> memoryview | None:
        """Return the record that begins at a log offset; None if no record begins there or it is not confirmed."""
        record = self._log.record_at(log_offset)
        return None if record is None or log_offset + len(record) > self._log.readable_to else record

    # -- queues

    def topics(self) -> list[str]:
        """Return the names of the topics that have queues."""
        return list(self._by_topic)

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues in ascending order; [] for an unknown topic."""
        return sorted(self._by_topic.get(topic, ()))

    def delete_topic(self, topic: str) -> Future[None]:
        """Delete the queues of a topic. The topic's records stay in the log until retention deletes them.

        The returned future resolves once the queue files are deleted durably; the flusher's thread deletes them. Until
        then appends to the topic raise `StoreNotWritable`.
        """
        self._queues.delete(topic)
        return self._flusher.note_deletion()

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of a queue's first message; 0 for an unknown queue."""
        queue = self._queues.find(topic, queue_id)
        return 0 if queue is None else queue.min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset after the last message of a queue that clients may read; 0 for an unknown queue."""
        queue = self._queues.find(topic, queue_id)
        return 0 if queue is None else self.reading.end_of(queue)

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset that the next message of a queue gets; 0 for an unknown queue.

        Above `max_offset` if messages are not confirmed.
        """
        queue = self._queues.find(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def expired_ends(self) -> dict[str, dict[int, int]]:
        """Return the next queue offset, by topic and queue id, of each queue of which the log has no message any more.

        A follower that begins with this log's first byte cannot find these offsets in the log.
        """
        ends: dict[str, dict[int, int]] = {}
        for queue in self._queues:
            if queue.max_offset and queue.covered_to <= self._log.min_offset:
                ends.setdefault(queue.topic, {})[queue.queue_id] = queue.max_offset
        return ends

    def begin_queues(self, ends: Mapping[str, Mapping[int, int]]) -> None:
        """Let queues without messages begin at the `expired_ends` of a master.

        Otherwise their next messages would get queue offsets below the committed offsets of consumers. Raises
        `StoreNotWritable`.
        """
        for topic, queues in ends.items():
            for queue_id, end in queues.items():
                queue = self._queues.make(topic, queue_id)
                if not queue.max_offset and end > 0:
                    queue.begin_at(end, 0)
                    queue.reserve(end)

    def unconfirmed_entries(self, topic: str, queue_id: int, most: int) -> list[QueueEntry]:
        """Return the first entries of a queue, up to `most`, whose messages clients may not read yet."""
        if self.is_confirmed:
            return []
        return self.entries(topic, queue_id, self.max_offset(topic, queue_id), most)

    def entries(self, topic: str, queue_id: int, first: int, count: int) -> list[QueueEntry]:
        """Return up to `count` entries of a queue from queue offset `first` on; [] for an unknown queue."""
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return []
        self._verifier.verify(queue, first, first + count)
        found = (queue.find(offset) for offset in range(first, min(first + count, queue.max_offset)))
        return [entry for entry in found if entry is not None]

    def first_behind(self, topic: str, queue_id: int, log_offset: int) -> int:
        """Return the queue offset of a queue's first message at `log_offset` or later; the maximum without one."""
        queue = self._queues.find(topic, queue_id)
        return 0 if queue is None else queue.first_behind(log_offset)

    def message(self, topic: str, queue_id: int, queue_offset: int) -> StoredMessage | None:
        """Return the message at a queue offset; None if the message does not exist.

        A lost or damaged message is logged, and None is returned.
        """
        entries = self.entries(topic, queue_id, queue_offset, 1)
        return self.message_of(entries[0], topic, queue_id, queue_offset) if entries else None

    def message_of(self, entry: QueueEntry, topic: str, queue_id: int, queue_offset: int) -> StoredMessage | None:
        """Return the message of a queue entry; None for a lost or damaged message, which is logged."""
        if entry.size == FILLER_SIZE:
            logger.error("queue %s %d: message %d is lost by damage of the log", topic, queue_id, queue_offset)
            return None
        try:
            return self.message_at(entry.log_offset)
        except StoreCorrupt as error:
            logger.warning("queue %s %d: message %d is lost: %s", topic, queue_id, queue_offset, error)
            return None

    def records(self, topic: str, queue_id: int, first: int, count: int) -> list[tuple[int, memoryview | None]]:
        """Return pairs of log offset and record for up to `count` messages from queue offset `first` on.

        The list is shorter at the end of a file of the queue, and empty at the queue's end. The record is None if it is
        deleted or lost.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None or first >= queue.max_offset or (content := queue.content(first, count)) is None:
            return []
        self._verifier.verify(queue, first, first + count)
        starts, sizes, _ = zip(*unpack_entries(content), strict=True)
        if min(starts) < self._log.min_offset or FILLER_SIZE in sizes:
            found = zip(starts, sizes, strict=True)
            return [(at, None if size == FILLER_SIZE else self._log.record_at(at)) for at, size in found]
        return list(zip(starts, self._log.views(starts, sizes), strict=True))

    def copies_of(self, starts: Sequence[int], sizes: Sequence[int], *, wait: bool = True) -> list[bytes]:
        """Return a copy of the record at each log offset; b"" for a deleted record. `starts` must ascend.

        Without `wait`, raises `NotInMemory` if a record must be read from the disk.
        """
        if min(starts) >= self._log.min_offset and starts[-1] < self._log.end:
            return self._log.copies(starts, sizes, wait=wait or self.residency.is_recent(starts[0]))
        return [bytes(self._log.record_at(start) or b"") for start in starts]

    # -- keys

    @property
    def index_behind(self) -> int:
        """Bytes of the log that are not indexed by key yet; 0 if the index is off."""
        return self._index.behind(self._log) if self.config.index_enabled else 0

    def index_step(self, budget_seconds: float) -> bool:
        """Index records for up to `budget_seconds`. Return True if no record is left to index. For idle times."""
        return not self.config.index_enabled or self._index.step(self._log, budget_seconds)

    def follow_index(self, budget_seconds: float | None = None) -> None:
        """Index records for up to `budget_seconds`; with None, up to the log's end.

        Raises `StoreNotWritable` if the disk is full.
        """
        if self.config.index_enabled:
            self._index.follow(self._log, budget_seconds)

    def search_by_key(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> SlowWork[KeyMatches]:
        """Return the log offsets of up to `max_count` messages with a key or unique id, the newest first.

        Only indexed messages stored from `begin_ms` to `end_ms` (ms since 1970) are found.
        """
        has_key = partial(self._has_key, topic, key)
        return self._index.search(topic, key, max_count, begin_ms=begin_ms, end_ms=end_ms, has_key=has_key)

    async def _has_key(self, topic: str, key: str, log_offset: int) -> bool:
        """Return True if a record has this topic and key. Other keys may have the same hash in the index."""
        await self.residency.load_record(log_offset)
        await yield_slice()  # lets the event loop run: a record may have thousands of keys
        record = self.confirmed_record_at(log_offset)
        try:
            return record is not None and is_found_by(decode_labels(record, 0), topic, key)
        except StoreCorrupt:
            return False
