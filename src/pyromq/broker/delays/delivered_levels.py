"""After a crash: how far each delay level was delivered, as the log tells.

The note of it is some seconds old. What was delivered since stands in the log behind the place that the note names, as
a copy of the parked message, in the order of its level; the copy says which level, for it keeps the property.
It delivers nothing, and does not know when anything is due.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from pyromq.errors import StoreCorrupt
from pyromq.logs import logger_of
from pyromq.message import NAME_VALUE, Property, StoredMessage, SysFlag
from pyromq.names import SCHEDULE_TOPIC
from pyromq.record import decode, texts_at
from pyromq.store.message_store import MessageStore

logger = logger_of(__name__)

_LOOKED_AHEAD = 200  # parked messages: so many in a row may have been left out when they should have been delivered
_MARK = f"{Property.REAL_TOPIC}{NAME_VALUE}".encode()


class _Likeness(NamedTuple):
    """What a parked message and its copy have in common."""

    topic: str
    queue_id: str
    properties: str
    born_ms: int
    born_address: bytes
    body_crc: int
    body_size: int
    reconsume_times: int


class _Pending:
    """The parked messages of one level, from the first that is not noted as delivered."""

    def __init__(self, store: MessageStore, queue_id: int, offset: int) -> None:
        self.offset = offset  # of the next one to deliver, as far as seen
        self._store = store
        self._queue_id = queue_id
        self._read_to = offset
        self._ahead: deque[tuple[int, _Likeness]] = deque()

    def take(self, copy: _Likeness) -> None:
        """Note one as delivered, and those before it, which were left out."""
        self._read()
        for place, (offset, likeness) in enumerate(self._ahead):
            if likeness == copy:
                self.offset = offset + 1
                for _ in range(place + 1):
                    self._ahead.popleft()
                return

    def _read(self) -> None:
        while len(self._ahead) < _LOOKED_AHEAD:
            entries = self._store.entries(SCHEDULE_TOPIC, self._queue_id, self._read_to, _LOOKED_AHEAD)
            if not entries:
                return
            for offset, entry in enumerate(entries, self._read_to):
                parked = self._store.message_at(entry.log_offset)
                if parked is not None:
                    self._ahead.append((offset, _likeness(parked)))
            self._read_to += len(entries)


def delivered_since(store: MessageStore, noted: Mapping[int, int], log_offset: int) -> dict[int, int]:
    """Return by level's queue id the queue offset of the next message to deliver.

    `noted`: those offsets as they were when the log ended at `log_offset`, of the levels where messages wait.
    """
    pending = {queue_id: _Pending(store, queue_id, offset) for queue_id, offset in noted.items()}
    if pending:
        for at, record in store.records_from(max(log_offset, store.min_log_offset)):
            try:
                if _may_be_copy(record):
                    _take(pending, decode(record))
            except StoreCorrupt as error:
                logger.warning("the record at log offset %d is damaged: %s", at, error)
    return {queue_id: each.offset for queue_id, each in pending.items()}


def _take(pending: Mapping[int, _Pending], message: StoredMessage) -> None:
    properties = message.properties
    level = properties.get(Property.DELAY, "")
    likeness = _likeness(message)
    went_there = message.topic == likeness.topic  # and not always to its queue: the topic may have lost that
    if message.sys_flag & SysFlag.HALF:  # a client sent it marked so: no level delivers such a message
        return
    if went_there and level.isdecimal() and (waiting := pending.get(int(level) - 1)) is not None:
        waiting.take(likeness)


def _may_be_copy(record: memoryview) -> bool:
    """Whether a record names a real topic. Called for every one that was stored since the note."""
    return _MARK in bytes(record[texts_at(record)[1] :])


def _likeness(message: StoredMessage) -> _Likeness:
    properties = message.properties
    return _Likeness(
        properties.get(Property.REAL_TOPIC, ""),
        properties.get(Property.REAL_QUEUE_ID, ""),
        message.property_text,
        message.born_ms,
        message.born_address,
        message.body_crc,
        len(message.stored_body),
        message.reconsume_times,
    )
