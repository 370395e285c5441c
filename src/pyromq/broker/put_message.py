"""The one way into the log: every message is appended and counted here.

It knows neither requests nor replies. After the append a message has its place: offsets and size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyromq.broker.config import BrokerConfig
from pyromq.broker.statistics import Statistics
from pyromq.errors import MessageRefused, MQError, StoreError
from pyromq.message import Property, StoredMessage
from pyromq.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from pyromq.record import MAX_PROPERTIES_SIZE
from pyromq.store.batch_appends import Shape, Stored
from pyromq.store.message_store import MessageStore

if TYPE_CHECKING:
    from pyromq.speedups.batches import Members

_SENT_ON = (RETRY_PREFIX, DEAD_LETTER_PREFIX)  # prefixes of topics of messages whose consumption failed


class PutMessage:
    """Puts the messages of one broker into its log."""

    def __init__(self, store: MessageStore, statistics: Statistics) -> None:
        self._store = store
        self._statistics = statistics
        self._count_put = statistics.count_put  # bound once: used for every message

    def put(self, message: StoredMessage) -> None:
        """Append one message. Raises `MessageRefused`, `StoreNotWritable`."""
        try:
            self._store.append(message)
        except StoreError:
            self._statistics.count_put_failed()
            raise
        self._count_put(message.topic, 1, message.size)

    def put_each(self, messages: list[StoredMessage]) -> Sequence[MQError | None]:
        """Append independent messages, by one write if they fit; return for each its error, None if it is stored.

        After a `StoreNotWritable` no later message is stored.
        """
        try:
            self._store.append_batch(messages)
        except MessageRefused:  # too large for one write, or one of them for a record; nothing is stored yet
            return self._put_singly(messages)
        except StoreError as error:
            self._statistics.count_put_failed(len(messages))
            return [error] * len(messages)
        count_put = self._count_put
        for message in messages:
            count_put(message.topic, 1, message.size)
        return [None] * len(messages)

    def _put_singly(self, messages: list[StoredMessage]) -> list[MQError | None]:
        outcomes: list[MQError | None] = []
        for message in messages:
            try:
                self.put(message)
                outcomes.append(None)
            except MessageRefused as error:
                outcomes.append(error)
            except StoreError as error:
                rest = len(messages) - len(outcomes)
                self._statistics.count_put_failed(rest - 1)
                return outcomes + [error] * rest
        return outcomes

    def put_batch(
        self,
        messages: Sequence[StoredMessage],
        *,
        before: Sequence[StoredMessage] = (),
        behind: Sequence[StoredMessage] = (),
    ) -> None:
        """Append messages of one topic by one write: all or none. Raises `MessageRefused`, `StoreNotWritable`.

        `before` and `behind` are records of the broker's own, which are not counted.
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
        """Append `count` members of a batch from `first` on, without decoding them.

        Return None, with nothing stored, for unusual members: then `put_batch` must append their messages.
        `spare_bytes` more fit after them into the same segment. Raises as `put_batch` does.
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
        """Append a record that statistics do not count: the broker's own, or one that is no message yet."""
        try:
            self._store.append(record)
        except StoreError:
            self._statistics.count_put_failed()
            raise


def is_half(properties: Mapping[str, str], topic: str = "") -> bool:
    """Return whether a message is a half message.

    Clients before 4.6.1 leave the property on copies of committed messages that they send back.
    """
    return properties.get(Property.TRANSACTION, "").lower() == "true" and not topic.startswith(_SENT_ON)


def is_too_long(text: str) -> bool:
    """Return whether a record cannot hold these properties. A character takes at most four bytes."""
    return len(text) > MAX_PROPERTIES_SIZE // 4 and len(text.encode()) > MAX_PROPERTIES_SIZE


def too_large(config: BrokerConfig) -> str:
    """Return upstream's error text for a message that no record can hold."""
    return (
        "the message is illegal, maybe msg body or properties length not matched. msg body length limit "
        f"{config.max_message_bytes}B, msg properties length limit 32KB."
    )
