"""The store as a broker sees it: append, read, find. It opens and closes everything below its folder.

After `append` returns, the record has its offsets, is visible to readers of this process and survives a crash of the
process; it survives a crash of the machine only after `flushed_to` has passed its end, which `wait_flushed` resolves.
One thread appends and reads. Readers get views of the mapped file, valid for as long as they are kept.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial

from pyromq.clock import Clock
from pyromq.errors import StoreCorrupt, StoreNotWritable
from pyromq.logs import logger_of
from pyromq.message import StoredMessage
from pyromq.record import IPV4_BYTES, decode_labels, mark_addresses
from pyromq.store.batch_appends import BatchAppends
from pyromq.store.checkpoint import Checkpoint
from pyromq.store.config import StoreConfig
from pyromq.store.directory import Directory
from pyromq.store.disk import LOCAL_DISK, Disk
from pyromq.store.flusher import Flusher
from pyromq.store.index.key_index import KeyIndex, KeyMatches
from pyromq.store.index.record_keys import is_found_by
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.log.log_tail import LogTail
from pyromq.store.log.residency import Residency
from pyromq.store.looking import Looking
from pyromq.store.queue.consume_queue import FILLER_SIZE, ConsumeQueue, QueueEntry, unpack_entries
from pyromq.store.queue.entry_verifier import EntryVerifier
from pyromq.store.queue.queue_table import QueueTable
from pyromq.store.queue.reading import Reading, ReadResult, ReadStatus
from pyromq.store.queue.time_search import TimeSearch
from pyromq.store.queue_dispatcher import UNQUEUED, QueueDispatcher
from pyromq.store.recovery import Recovery
from pyromq.store.retention import Retention
from pyromq.store.worker import worker

logger = logger_of(__name__)

__all__ = ["KeyMatches", "MessageStore", "QueueEntry", "ReadResult", "ReadStatus"]

_RECORD_ALLOWANCE = 64 << 10  # a record may be that much larger than the largest body. Source: CommitLog
_INDEX_ON_CLOSE_SECONDS = 5.0  # the rest is indexed after the next start


class MessageStore:
    """`store_address` (packed IP and port) is written into records and may be corrected before the first append.

    `log_tail`, and the queues of `queues_of` and `queue_tail`, are what the compiled parts append and read by.
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
        self._follower = QueueDispatcher(self._queues, config.delay_levels_ms)
        self._checkpoint = Checkpoint(self._directory.checkpoint, disk)
        self._flusher = Flusher(
            *(self._log, self._queues, self._index),
            checkpoint=self._checkpoint,
            directory=self._directory,
            config=config,
            clock=clock,
            disk=disk,
        )
        self._flusher.on_failure = self._directory.mark_unflushed
        self.residency = Residency(self._log, disk=disk, clock=clock)
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
        self._proof = EntryVerifier(self._log, self._follower.tags_code)
        self.reading = Reading(self._log, self._queues, config, proof=self._proof, residency=self.residency, disk=disk)
        self.read = self.reading.read
        self.batch_appends = BatchAppends(self._log, self._queues, clock)
        self._loading = worker(disk, "load-log-end")
        self._clock = clock
        self._open = False
        # Bound once: used for every message.
        self._by_topic = self._queues.by_topic
        self.queues_of = self._by_topic.get
        self.queue_tail = self._queues.find
        self.log_tail: LogTail = self._log
        self._append_record = self._log.append
        self._follow = self._follower.follow

    # -- life

    def open(self) -> None:
        """Take the folder, recover, and accept appends. Close afterwards, also where this failed.

        Raises `StoreLocked`, `StoreCorrupt`, `StoreNotWritable`, naming folder or file and the way out.
        """
        directory = self._directory
        try:
            directory.lock()
            self._checkpoint.load()
            power_cut = directory.crashed and not directory.same_boot
            recovery = Recovery(
                *(self._log, self._queues, self._follower),
                proof=self._proof,
                check_crc=self.config.check_crc_on_recover,
                clock=self._clock,
            )
            recovery.log_began = self._checkpoint.log_begin
            flushed_to = recovery.run(crashed=directory.crashed, safe_ms=self._checkpoint.safe_ms, power_cut=power_cut)
            if self.config.index_enabled:
                self._index.load(self._log, flushed_ms=self._checkpoint.index_ms, in_doubt=power_cut)
                self._checkpoint.index_ms = min(self._checkpoint.index_ms, self._index.full_ms)
                self._checkpoint.save()
            directory.mark_open()
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            way_out = "make room on its disk" if full else "see to its permissions, or choose another folder"
            raise StoreNotWritable(f"cannot open the store in {directory.root}: {error}; {way_out}") from error
        self._flusher.start(flushed_to)
        if recent := self.residency.recent():  # after a start of the machine it is on the disk only
            self._loading.submit(self.disk.load, recent)
        self._open = True

    def close(self) -> None:
        """Flush everything, leave the folder as after a clean stop, and let it go. Safe after a failed open.

        Raises `StoreNotWritable` where the disk does not take it: the next start then treats it as a crash.
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
        if self.config.index_enabled:
            self.index_step(_INDEX_ON_CLOSE_SECONDS)
            self._checkpoint.index_ms = max(self._checkpoint.index_ms, self._index.close())
        self._log.refuse("the store is closed")
        self.retention.close()
        self._flusher.stop()
        self._directory.mark_closed()

    def tick(self) -> None:
        """Look after waiters whose time is up. Called about once a second."""
        self._flusher.expire(self._clock.monotonic())

    def flush_due(self) -> bool:
        """Flush what is due, where no thread does; False once the disk has refused."""
        return self._flusher.turn()

    # -- writing

    def listen(self, listener: Callable[[StoredMessage, int], None]) -> None:
        """Have `listener(message, tags_code)` called when a message can be read."""
        self._follower.on_append = listener

    def append(self, message: StoredMessage) -> None:
        """Store a message: sets queue offset, log offset, store time and address, size. Readable when it returns.

        Raises `MessageRefused` for what the record cannot hold, `StoreNotWritable`. Called for every message sent.
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
        self._follow(message, queue)

    def append_batch(self, messages: list[StoredMessage]) -> None:
        """Store messages back to back by one write, never split over two segments; otherwise like `append` for each.

        All or none: what is raised for one is raised for all. Called for every burst of sends.
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
        follow = self._follow
        for message, queue in zip(messages, queues, strict=True):
            follow(message, queue)

    @property
    def flushed_to(self) -> int:
        """Log offset up to which everything is on disk."""
        return self._flusher.flushed_to

    def wait_flushed(self, log_offset: int) -> Future[bool]:
        """Resolve to True once the log before `log_offset` is on disk, to False after `sync_flush_timeout_ms`.

        Resolved by the flushing thread.
        """
        return self._flusher.wait(log_offset)

    @property
    def refusal(self) -> str:
        """Why no message is taken; "" while they are."""
        return self._log.refusal

    # -- single records

    @property
    def min_log_offset(self) -> int:
        return self._log.min_offset

    @property
    def max_log_offset(self) -> int:
        return self._log.end

    def record_at(self, log_offset: int) -> memoryview | None:
        """Return the record that begins there; None where none does."""
        return self._log.record_at(log_offset)

    def message_at(self, log_offset: int, *, check_crc: bool = True) -> StoredMessage | None:
        """Return the message that begins there; None where none does. Raises `StoreCorrupt` if it is damaged."""
        return self._log.message_at(log_offset, check_crc=check_crc)

    # -- queues

    def topics(self) -> list[str]:
        """Return the names of all topics that have queues."""
        return list(self._by_topic)

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues, ascending; [] for an unknown topic."""
        return sorted(self._by_topic.get(topic, ()))

    def delete_topic(self, topic: str) -> Future[None]:
        """Remove the queues of a topic; its records stay in the log until their segment goes.

        The flushing thread removes the files, and resolves this once no crash brings them back. Until then the topic
        takes no message: `StoreNotWritable`.
        """
        self._queues.delete(topic)
        return self._flusher.note_deletion()

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the first offset with a record; 0 for an unknown queue."""
        queue = self._queues.find(topic, queue_id)
        return 0 if queue is None else queue.min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset the next message gets; 0 for an unknown queue."""
        queue = self._queues.find(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def entries(self, topic: str, queue_id: int, first: int, count: int) -> list[QueueEntry]:
        """Return up to `count` entries from queue offset `first` on, filtered by nothing."""
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return []
        self._proof.prove(queue, first, first + count)
        found = (queue.find(offset) for offset in range(first, min(first + count, queue.max_offset)))
        return [entry for entry in found if entry is not None]

    def message(self, topic: str, queue_id: int, queue_offset: int) -> StoredMessage | None:
        """Return one message of a queue; None where it is lost or damaged, which is told, or not there (any more)."""
        for entry in self.entries(topic, queue_id, queue_offset, 1):
            if entry.size == FILLER_SIZE:
                logger.error("queue %s %d: message %d is lost, as an earlier damage", topic, queue_id, queue_offset)
                return None
            try:
                return self.message_at(entry.log_offset)
            except StoreCorrupt as error:
                logger.warning("queue %s %d: message %d is lost: %s", topic, queue_id, queue_offset, error)
        return None

    def records(self, topic: str, queue_id: int, first: int, count: int) -> list[tuple[int, memoryview | None]]:
        """Return log offset and record of up to `count` messages from queue offset `first` on.

        Fewer at the end of a file of the queue, [] at the queue's end. None: the record is not there any more.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None or first >= queue.max_offset or (content := queue.content(first, count)) is None:
            return []
        self._proof.prove(queue, first, first + count)
        starts, sizes, _ = zip(*unpack_entries(content), strict=True)
        if min(starts) < self._log.min_offset or FILLER_SIZE in sizes:
            found = zip(starts, sizes, strict=True)
            return [(at, None if size == FILLER_SIZE else self._log.record_at(at)) for at, size in found]
        return list(zip(starts, self._log.views(starts, sizes), strict=True))

    def copies_of(self, starts: Sequence[int], sizes: Sequence[int], *, wait: bool = True) -> list[bytes]:
        """Return the records that begin there, ascending, read from the files; b"" for those not there any more.

        Raises `NotInMemory` where they have to come from the disk, unless it may `wait` for that.
        """
        if min(starts) >= self._log.min_offset and starts[-1] < self._log.end:
            return self._log.copies(starts, sizes, wait=wait or self.residency.is_recent(starts[0]))
        return [bytes(self._log.record_at(start) or b"") for start in starts]

    def records_from(self, log_offset: int) -> Iterator[tuple[int, memoryview]]:
        """Yield log offset and record of all topics from that one on, in order of arrival."""
        return self._log.records_from(log_offset)

    def prove(self, topic: str, queue_id: int, first: int, end: int, *, tags: bool) -> bool:
        """Compare entries of a doubted read with their records; False if it has to be read again: some were wrong.

        Safe to call from any thread.
        """
        queue = self._queues.find(topic, queue_id)
        return queue is None or self._proof.prove(queue, first, end, tags=tags)

    def is_cold(self, log_offset: int) -> bool:
        """Whether a record lies so far behind the log's end that it probably has to come from the disk."""
        return self.reading.is_cold(log_offset)

    def search_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> Looking[int]:
        """Find the offset of the first message stored at that time, or else of its nearer neighbour.

        Of two equally near ones the earlier; 0 for an empty queue.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return 0
        return (yield from TimeSearch(queue, self._log, self.residency).first_from(timestamp_ms))

    # -- keys

    @property
    def index_behind(self) -> int:
        """Bytes of the log that are not indexed yet."""
        return self._index.behind(self._log) if self.config.index_enabled else 0

    def index_step(self, budget_seconds: float) -> bool:
        """Index for that long; True if nothing is left to do now. Called when there is nothing else to do."""
        return not self.config.index_enabled or self._index.step(self._log, budget_seconds)

    def follow_index(self, budget_seconds: float | None = None) -> None:
        """Index for that long, or all that is left. Raises `StoreNotWritable` where the disk has no room for it."""
        if self.config.index_enabled:
            self._index.follow(self._log, budget_seconds)

    def search_by_key(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> Looking[KeyMatches]:
        """Find where indexed messages with that key (or unique id) lie, newest first, stored in that time."""
        has_key = partial(self._has_key, topic, key)
        return self._index.search(topic, key, max_count, begin_ms=begin_ms, end_ms=end_ms, has_key=has_key)

    def _has_key(self, topic: str, key: str, log_offset: int) -> Looking[bool]:
        """Whether the record that begins there has this topic and key: another one's may have the same hash."""
        yield from self.residency.approach(log_offset)
        yield []  # a record may have thousands of keys
        record = self._log.record_at(log_offset)
        try:
            return record is not None and is_found_by(decode_labels(record, 0), topic, key)
        except StoreCorrupt:
            return False
