"""Records that a pull brought and that are not what was stored: each is found, and named, and those behind it are read.

A broker sends records as it finds them on its disk. Of a record, a checksum covers the body as stored; its head is
compared with the place in the queue that the record was pulled from.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import lt

from pyromq.errors import StoreCorrupt
from pyromq.message import MessageQueue, StoredMessage
from pyromq.record import MAGIC_AT, MAGIC_BYTES, decode, said_log_offset

DAMAGED = "DAMAGED"  # property of a dead letter: what is wrong with the record it was copied from


@dataclass(frozen=True, slots=True)
class DamagedMessage:
    """A record that is not what was stored: where it is, and what is wrong with it.

    `message` is what it holds, for rescue only; None where not even that can be read. Then `log_offset` is what is
    left in its place, and `queue_offset` the first it may have.
    """

    queue: MessageQueue
    queue_offset: int
    log_offset: int
    what: str
    message: StoredMessage | None

    def __str__(self) -> str:
        return f"{self.queue}, queue offset {self.queue_offset}, log offset {self.log_offset}: {self.what}"


class MessageDamaged(StoreCorrupt):
    """A message is not what was stored; `damaged` says which and how. Seek behind it to go on."""

    def __init__(self, damaged: DamagedMessage) -> None:
        super().__init__(f"damaged message in {damaged}")
        self.damaged = damaged


def are_in_place(messages: list[StoredMessage], begin: int, end: int) -> bool:
    """Whether queue offsets ascend and lie between those of a pull. Called for every pull."""
    offsets = [message.queue_offset for message in messages]
    return not offsets or (begin <= offsets[0] and offsets[-1] < end and all(map(lt, offsets, offsets[1:])))


def examine(
    raw: bytes, queue: MessageQueue, begin: int, end: int, *, verify: bool
) -> tuple[list[StoredMessage], list[DamagedMessage]]:
    """Return the sound messages among records pulled from `begin` on, up to before `end`, and those that are not."""
    found = _records(raw, queue, begin, end)
    whole = len(found) == end - begin  # nothing filtered out: each record's queue offset is known
    sound: list[StoredMessage] = []
    damaged: list[DamagedMessage] = []
    expected = begin
    for message, what, log_offset in found:
        if message is None:
            damaged.append(DamagedMessage(queue, expected, log_offset, what, None))
        else:
            last = expected if whole else end - 1
            if verify and not expected <= message.queue_offset <= last:
                what = f"its record says queue offset {message.queue_offset}"
            elif verify and message.is_damaged:
                what, expected = "its body does not match its checksum", message.queue_offset
            else:
                expected = message.queue_offset
            if what:
                damaged.append(DamagedMessage(queue, expected, log_offset, what, message))
            else:
                sound.append(message)
        expected += 1
    return sound, damaged


def _records(raw: bytes, queue: MessageQueue, begin: int, end: int) -> list[tuple[StoredMessage | None, str, int]]:
    """Return of each record the message, or why there is none, and its log offset."""
    found: list[tuple[StoredMessage | None, str, int]] = []
    position = 0
    while position < len(raw):
        try:
            message = decode(raw, position)
        except StoreCorrupt as error:
            found.append((None, f"its record cannot be read ({error})", said_log_offset(raw, position)))
            position = _next_record(raw, position, queue, range(begin, end))
        else:
            found.append((message, "", message.log_offset))
            position += message.size
    return found


def _next_record(raw: bytes, position: int, queue: MessageQueue, offsets: range) -> int:
    """Return where the first sound record of this pull begins behind one that cannot be read; else where all ends."""
    while (position := raw.find(MAGIC_BYTES, position + MAGIC_AT + 1) - MAGIC_AT) >= 0:
        try:
            message = decode(raw, position, check_crc=True)
        except StoreCorrupt:
            continue
        if (message.topic, message.queue_id) == (queue.topic, queue.queue_id) and message.queue_offset in offsets:
            return position
    return len(raw)
