"""The journal of pops. With it, the messages in flight survive a kill of the process.

A segment is a file of records, named by its sequence number. A new segment begins with a description of all queues.
After the description, the previous segments are deleted. The journal is flushed only where queue offsets may become
those of other messages: after a power loss has shortened a queue or damaged the journal, and after the deletion of a
topic or group. Any other power loss loses the last records, and their messages are redelivered.

record       CRC-32 of the rest, begun with the segment's number (4), size of the payload (2), kind (1), payload
QUEUE        number (4), next offset (8), bytes of the following records that describe the messages in flight (4),
             then group, topic and queue id, separated by zeros. It is valid only with all of these records
POP          number (4), start (8), next offset (8), pop time (8), due time (8), orderly (1), bytes of the bits (2),
             bits, client id
FINISHED     number (4), start (8), pop time (8), bits: these messages need not be delivered again
MOVED        number (4), start (8), pop time (8), offset (8), new pop time (8), due time (8)
RELEASED     number (4), start (8), pop time (8): the messages of an orderly pop are visible again
TRIES        number (4), offset (8), how often the message was handed out before (4)
DROPPED      number (4): the queue of a deleted topic or group
CLOSED       the broker was stopped: later changes of committed offsets are from other programs

Numbers are big-endian, times are ms since 1970, bits are little-endian and relative to the start.
"""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from pyromq.broker.popping.in_flight import InFlight, Pop, PoppedQueue
from pyromq.clock import Clock
from pyromq.errors import StoreNotWritable
from pyromq.logs import logger_of
from pyromq.remoting.receipt_handle import offsets_in
from pyromq.store.disk import Disk, disk_advice, make_durable_folder, opened, read_file, remove_file, write_all
from pyromq.store.log.segmented_log import sync_folders

logger = logger_of(__name__)

# Size of the records after a segment's description, at which a new segment begins. A starting broker reads them in half
# a second. After a longer description, a new segment begins at twice the size of the description.
SEGMENT_BYTES = 4 << 20
SLICE_SECONDS = 0.001  # longest time in which `step` describes queues before requests are answered

_HEAD = struct.Struct(">IHB")
_QUEUE = struct.Struct(">IQI")
_POP = struct.Struct(">IQQQQBH")
_FINISHED = _RELEASED = struct.Struct(">IQQ")
_MOVED = struct.Struct(">IQQQQQ")
_TRIES = struct.Struct(">IQI")
_DROPPED = struct.Struct(">I")
_KINDS = range(1, 9)
QUEUE, POP, FINISHED, MOVED, RELEASED, TRIES, DROPPED, CLOSED = _KINDS


class PopJournal:
    """Writes and reads the journal in a folder. `load` must be called before any other method."""

    def __init__(self, folder: Path, disk: Disk, clock: Clock, in_flight: InFlight) -> None:
        self._folder = folder
        self._disk = disk
        self._clock = clock
        self._in_flight = in_flight
        self._sequence = 0
        self._descriptor: int | None = None
        self._position = 0
        self._full_at = SEGMENT_BYTES
        self._earlier_bytes = 0  # bytes of the earlier segments
        self._oldest = 1  # sequence number of the oldest segment that may exist
        self._has_unread = False  # True if `load` has left out records, which must not return after a power loss
        self._to_describe: Iterator[PoppedQueue] | None = None  # queues that the current segment does not describe yet

    def load(self) -> bool:
        """Read the messages in flight into the table. Return False if the previous broker was killed or crashed.

        Reading ends at the first damaged record; messages that were popped later are redelivered. Raises
        `StoreNotWritable` if the disk cannot be read.
        """
        is_closed = True
        try:
            names = [name for name in self._disk.names(self._folder) if name.isdecimal()]
            contents = [read_file(self._disk, self._folder / name) or b"" for name in names]
        except OSError as error:
            raise StoreNotWritable(
                f"{self._folder} cannot be read: {error.strerror}; check its permissions and the disk, or move the"
                " folder away"
            ) from error
        for at, name in enumerate(names):
            if int(name) != int(names[0]) + at:
                self._has_unread = True
                break
            content = contents[at]
            reader = _Reader(content, int(name))
            for kind, payload in reader.records():
                is_closed = kind == CLOSED
                _replay(self._in_flight, kind, payload)
            if reader.position < len(content):
                logger.warning(
                    "%s is damaged at byte %d: messages that were popped since are redelivered",
                    *(self._folder / name, reader.position),
                )
                self._has_unread = True
                break
        self._oldest, self._sequence = (int(names[0]), int(names[-1])) if names else (1, 0)
        self._earlier_bytes = sum(map(len, contents))
        return is_closed

    def begin(self, *, lasting: bool = False) -> None:
        """Begin a segment that describes all queues, and delete the earlier segments. Raises `StoreNotWritable`.

        With `lasting`, or if `load` has left out records, both are on disk when this returns: a power loss does not
        bring the earlier segments back.
        """
        self._begin_segment()
        while not self._describe(float("inf")):
            pass
        if lasting or self._has_unread:
            self.flush()
            self._has_unread = False

    def discard(self) -> None:
        """Delete the journal durably, because the queues' offsets may become those of other messages.

        Raises `StoreNotWritable`.
        """
        try:
            for name in self._disk.names(self._folder):
                remove_file(self._disk, self._folder / name)
            sync_folders([self._folder], self._disk)  # also without files: a killed process may have deleted them
        except OSError as error:
            raise StoreNotWritable(f"{self._folder} cannot be emptied: {error.strerror}") from error

    def step(self) -> float | None:
        """Begin the next segment if the current segment is full, and describe queues in it, for up to 1 ms.

        Return the seconds until the next call; None if a later record decides when it is due.
        """
        if self._to_describe is None:
            if self._position < self._full_at:
                return None
            self._begin_segment()
        return None if self._describe(self._clock.monotonic() + SLICE_SECONDS) else 0.0

    def flush(self) -> None:
        """Flush all records, and the names of the segments, to disk; blocks. Thread-safe. Raises `StoreNotWritable`."""
        try:
            for sequence in range(self._oldest, self._sequence + 1):
                # A segment that is deleted meanwhile is described by the next one.
                with contextlib.suppress(FileNotFoundError), opened(self._disk, self._path_of(sequence)) as descriptor:
                    self._disk.sync(descriptor)
            sync_folders([self._folder], self._disk)
        except OSError as error:
            raise self._refusal(error) from error

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return self._earlier_bytes + self._position

    @property
    def is_behind(self) -> bool:
        """Whether `step` must be called."""
        return self._position >= self._full_at or self._to_describe is not None

    def expect_new_segment(self) -> None:
        """Let `step` begin the next segment, because the current segment lacks a record."""
        self._full_at = 0

    def close(self) -> None:
        """Record that the broker is stopped, and close the file. Raises `StoreNotWritable`."""
        if self._descriptor is None:
            return
        try:
            if not self._full_at:
                self.begin()
            self._write(_record(self._sequence, CLOSED, b""))
        finally:
            self._disk.close(self._descriptor)
            self._descriptor = None

    # -- records

    def note_queue(self, queue: PoppedQueue) -> None:
        """Record a queue without messages in flight. Like the methods below, raises `StoreNotWritable`."""
        self._write(self._queue_record(queue))

    def note_pop(self, pop: Pop, next_offset: int) -> None:
        self._write(self._pop_record(pop, next_offset))

    def note_finished(self, pop: Pop, bits: int) -> None:
        payload = _FINISHED.pack(pop.queue.number, pop.start, pop.pop_ms) + _bytes_of(bits)
        self._write(_record(self._sequence, FINISHED, payload))

    def note_moved(self, pop: Pop, moved: Pop) -> None:
        self._write(self._moved_record(pop, moved.start, moved.pop_ms, moved.due_ms))

    def note_released(self, pop: Pop) -> None:
        self._write(self._released_record(pop.queue, pop.start, pop.pop_ms))

    def note_dropped(self, queue: PoppedQueue) -> None:
        self._write(_record(self._sequence, DROPPED, _DROPPED.pack(queue.number)))

    def _queue_record(self, queue: PoppedQueue, in_flight_bytes: int = 0) -> bytes:
        name = f"{queue.group}\0{queue.topic}\0{queue.queue_id}".encode()
        return _record(self._sequence, QUEUE, _QUEUE.pack(queue.number, queue.next_offset, in_flight_bytes) + name)

    def _pop_record(self, pop: Pop, next_offset: int) -> bytes:
        bits = _bytes_of(pop.unfinished)
        times = (pop.pop_ms, pop.due_ms, pop.is_orderly, len(bits))
        payload = _POP.pack(pop.queue.number, pop.start, next_offset, *times) + bits
        if pop.client_id is not None:
            payload += pop.client_id.encode()
        return _record(self._sequence, POP, payload)

    def _moved_record(self, pop: Pop, offset: int, pop_ms: int, due_ms: int) -> bytes:
        payload = _MOVED.pack(pop.queue.number, pop.start, pop.pop_ms, offset, pop_ms, due_ms)
        return _record(self._sequence, MOVED, payload)

    def _released_record(self, queue: PoppedQueue, start: int, pop_ms: int) -> bytes:
        return _record(self._sequence, RELEASED, _RELEASED.pack(queue.number, start, pop_ms))

    def _description(self, queue: PoppedQueue) -> bytes:
        """Return the records that describe a queue and its messages in flight."""
        records = []
        for pop in queue.order:
            if not pop.unfinished:
                continue
            records.append(self._pop_record(pop, queue.next_offset))
            for offset in () if pop.leased == pop.unfinished else offsets_in(pop.unfinished & ~pop.leased, pop.start):
                moved = queue.moved.get(offset)
                if moved is not None:
                    records.append(self._moved_record(pop, offset, moved.pop_ms, moved.due_ms))
                else:  # a message of an orderly pop that is visible
                    records.append(self._moved_record(pop, offset, pop.pop_ms + 1, 0))
                    records.append(self._released_record(queue, offset, pop.pop_ms + 1))
        for offset, count in queue.tries.items():
            records.append(_record(self._sequence, TRIES, _TRIES.pack(queue.number, offset, count)))
        in_flight = b"".join(records)
        return self._queue_record(queue, len(in_flight)) + in_flight

    def _begin_segment(self) -> None:
        try:
            make_durable_folder(self._disk, self._folder)
            descriptor = self._disk.open(self._path_of(self._sequence + 1), create=True)
            self._disk.resize(descriptor, 0)
        except OSError as error:
            raise self._refusal(error) from error
        if self._descriptor is not None:
            self._disk.close(self._descriptor)
        self._earlier_bytes += self._position
        self._descriptor, self._position = descriptor, 0
        self._sequence += 1
        self._to_describe = iter(self._in_flight)

    def _describe(self, end: float) -> bool:
        """Describe queues until `end`. After the last queue, delete the previous segments and return True."""
        assert self._to_describe is not None
        for queue in self._to_describe:
            if self._in_flight.numbered(queue.number) is queue:
                self._write(self._description(queue))
            if self._clock.monotonic() >= end:
                return False
        self._to_describe = None
        self._full_at = self._position + max(SEGMENT_BYTES, self._position)  # else most writes would be descriptions
        try:
            for sequence in range(self._oldest, self._sequence):
                remove_file(self._disk, self._path_of(sequence))
                self._oldest = sequence + 1
            self._earlier_bytes = 0
        except OSError as error:
            logger.warning("%s: an old file of pops cannot be deleted: %s", self._folder, error.strerror)
        return True

    def _path_of(self, sequence: int) -> Path:
        return self._folder / f"{sequence:020d}"

    def _write(self, records: bytes) -> None:
        try:
            if self._descriptor is None:
                self.begin()
            assert self._descriptor is not None
            write_all(self._disk, self._descriptor, records, self._position)
        except OSError as error:
            raise self._refusal(error) from error
        self._position += len(records)

    def _refusal(self, error: OSError) -> StoreNotWritable:
        return StoreNotWritable(f"{self._folder} cannot be written: {disk_advice(error, 'pops are recorded again')}")


class _Reader:
    """Reads the records of one segment. `position` is the end of the undamaged records."""

    def __init__(self, content: bytes, sequence: int) -> None:
        self.position = 0
        self._content = content
        self._sequence = sequence

    def records(self) -> Iterator[tuple[int, bytes]]:
        while (record := self._record_at(self.position)) is not None:
            kind, payload, end = record
            if kind == QUEUE and not self._is_sound(end, end + _QUEUE.unpack_from(payload)[2]):
                return  # with an incomplete description, messages in flight would be skipped
            yield kind, payload
            self.position = end

    def _record_at(self, position: int) -> tuple[int, bytes, int] | None:
        """Return kind, payload and end of a record; None if the record is damaged or incomplete."""
        content = self._content
        if len(content) - position < _HEAD.size:
            return None
        crc, size, kind = _HEAD.unpack_from(content, position)
        end = position + _HEAD.size + size
        if end > len(content) or kind not in _KINDS or crc != zlib.crc32(content[position + 4 : end], self._sequence):
            return None
        return kind, content[position + _HEAD.size : end], end

    def _is_sound(self, position: int, end: int) -> bool:
        while position < end:
            if (record := self._record_at(position)) is None:
                return False
            position = record[2]
        return True


def _record(sequence: int, kind: int, payload: bytes) -> bytes:
    rest = _HEAD.pack(0, len(payload), kind)[4:] + payload
    return zlib.crc32(rest, sequence).to_bytes(4, "big") + rest


def _replay(table: InFlight, kind: int, payload: bytes) -> None:
    """Apply a record to the table. Records of a queue without a QUEUE record are ignored."""
    if kind == QUEUE:
        number, next_offset, _ = _QUEUE.unpack_from(payload)
        group, topic, queue_id = payload[_QUEUE.size :].decode().split("\0")
        queue = table.numbered(number)
        if queue is not None:
            table.reset(queue, next_offset)
        else:
            table.add(group, topic, int(queue_id), next_offset, number=number)
    elif kind != CLOSED and (queue := table.numbered(int.from_bytes(payload[:4], "big"))) is not None:
        _replay_in(queue, table, kind, payload)


def _replay_in(queue: PoppedQueue, table: InFlight, kind: int, payload: bytes) -> None:
    if kind == POP:
        _, start, next_offset, pop_ms, due_ms, is_orderly, size = _POP.unpack_from(payload)
        rest = payload[_POP.size :]
        bits, client_id = int.from_bytes(rest[:size], "little"), rest[size:].decode() or None
        pop = Pop(
            *(queue, start, bits),
            pop_ms=pop_ms, due_ms=due_ms, is_orderly=bool(is_orderly), client_id=client_id,
        )  # fmt: skip
        table.hand_out(pop, next_offset)
    elif kind == DROPPED:
        table.drop(queue)
    elif kind == TRIES:
        _, offset, count = _TRIES.unpack(payload)
        queue.tries[offset] = count
    else:
        _, start, pop_ms = _FINISHED.unpack_from(payload)
        popped = queue.pop_at(start, pop_ms)
        if popped is None:
            return
        if kind == FINISHED:
            table.finish(popped, int.from_bytes(payload[_FINISHED.size :], "little"))
        elif kind == RELEASED:
            table.release(popped)
        else:
            _, _, _, offset, new_ms, due_ms = _MOVED.unpack(payload)
            table.move(popped, offset, pop_ms=new_ms, due_ms=due_ms)


def _bytes_of(bits: int) -> bytes:
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")
