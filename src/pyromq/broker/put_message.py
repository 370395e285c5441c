"""Appends all messages of a broker to the commit log, and counts them.

This module has no requests or replies. After an append, a message has its offsets and its size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyromq.broker.config import BrokerConfig
from pyromq.broker.statistics import Statistics
from pyromq.errors import MessageRefused, StoreError
from pyromq.message import Property, StoredMessage
from pyromq.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from pyromq.record import MAX_PROPERTIES_SIZE
from pyromq.store.batch_appends import Shape, Stored
from pyromq.store.message_store import MessageStore

if TYPE_CHECKING:
    from pyromq.speedups.batches import Members

_SENT_ON = (RETRY_PREFIX, DEAD_LETTER_PREFIX)  # prefixes of the topics of messages that failed to be consumed


class PutMessage:
    """Appends messages to the commit log of one broker, and counts them."""

    def __init__(self, store: MessageStore, statistics: Statistics) -> None:
        self._store = store
        self._statistics = statistics
        self._count_put = statistics.count_put  # looked up once, since it is called for every message

    def put(self, message: StoredMessage) -> None:
        """Append one message and count it. Raises `MessageRefused`, `StoreNotWritable`."""
        try:
            self._store.append(message)
        except StoreError:
            self._statistics.count_put_failed()
            raise
        self._count_put(message.topic, 1, message.size)

    def put_each(self, messages: list[StoredMessage]) -> list[MessageRefused | None]:
        """Append independent messages, by one write if they fit. Return an error or None (stored) for each message.

        The list is shorter if the store accepts no more messages after the first ones. Raises `StoreNotWritable` if the
        store takes none.
        """
        try:
            self._store.append_batch(messages)
        except MessageRefused:  # the messages exceed one write, or a message exceeds a record; no message is stored
            return self._put_singly(messages)
        except StoreError:
            self._statistics.count_put_failed(len(messages))
            raise
        count_put = self._count_put
        for message in messages:
            count_put(message.topic, 1, message.size)
        return [None] * len(messages)

    def _put_singly(self, messages: list[StoredMessage]) -> list[MessageRefused | None]:
        outcomes: list[MessageRefused | None] = []
        for message in messages:
            try:
                self.put(message)
            except MessageRefused as error:
                # The frames of its traceback hold this list: together they would wait for the collector of garbage.
                outcomes.append(error.with_traceback(None))
            except StoreError:
                self._statistics.count_put_failed(len(messages) - len(outcomes) - 1)
                if not outcomes:
                    raise
                break
            else:
                outcomes.append(None)
        return outcomes

    def put_batch(
        self,
        messages: Sequence[StoredMessage],
        *,
        before: Sequence[StoredMessage] = (),
        behind: Sequence[StoredMessage] = (),
    ) -> None:
        """Append messages of one topic by one write: all or none. Raises `MessageRefused`, `StoreNotWritable`.

        `before` and `behind` are the broker's own records in the same write, before and after the messages. They are
        not counted.
        """
        try:
            self._store.append_batch([*before, *messages, *behind])
        except StoreError:
            self._statistics.count_put_failed(len(messages))
            raise
        if messages:
            first, last = messages[0], messages[-1]
            self._count_put(last.topic, len(messages), last.log_offset + last.size - first.log_offset)

    def put_members(
        self, members: Members, shape: Shape, *, first: int = 0, count: int, spare_bytes: int = 0
    ) -> Stored | None:
        """Append `count` members of a batch, from number `first` on, without decoding them.

        Return None, with nothing stored, for unusual members: `put_batch` must append these. `spare_bytes` more bytes
        fit after the members into the same segment. Raises `MessageRefused`, `StoreNotWritable`.
        """
        try:
            stored = self._store.batch_appends.append(
                *(members, shape),
                first=first,
                count=count,
                store_address=self._store.store_address,
                spare_bytes=spare_bytes,
            )
        except StoreError:
            self._statistics.count_put_failed(count)
            raise
        if stored is not None:
            self._count_put(shape.topic, count, stored.size)
        return stored

    def put_record(self, record: StoredMessage) -> None:
        """Append a record without counting it: the broker's own record, or a message that is not visible yet."""
        try:
            self._store.append(record)
        except StoreError:
            self._statistics.count_put_failed()
            raise


def is_half(properties: Mapping[str, str], topic: str = "") -> bool:
    """Return whether a message for `topic` is a half message, by its transaction property.

    In retry and dead-letter topics the property has no effect. Clients before 4.6.1 do not remove it from copies of
    committed messages that they send back.
    """
    return properties.get(Property.TRANSACTION, "").lower() == "true" and not topic.startswith(_SENT_ON)


def is_too_long(text: str) -> bool:
    """Return whether these properties exceed `MAX_PROPERTIES_SIZE`, the limit of a record.

    A character takes at most four bytes.
    """
    return len(text) > MAX_PROPERTIES_SIZE // 4 and len(text.encode()) > MAX_PROPERTIES_SIZE


def too_large(config: BrokerConfig) -> str:
    """Return upstream's error text for a message that is too large for a record."""
    return (
        "the message is illegal, maybe msg body or properties length not matched. msg body length limit "
        f"{config.max_message_bytes}B, msg properties length limit 32KB."
    )
