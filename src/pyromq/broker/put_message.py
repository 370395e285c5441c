"""The one way into the log: whoever stores a message does it here.

    divert, delay   let a message wait that asks for it: it becomes one of an internal topic
    put ...         append it, and count it; what the store does not take is counted as well

Here is decided what a message waits for, by its properties: its producer's decision, a delay level, or a time. How that
is done is a matter of hooks, which the parts that do it set. Knows neither requests nor answers: who answers makes
messages, puts them, and says "done" as `confirmation` lets it. A message that is put has its place: offsets and size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pyromq.broker.config import BrokerConfig
from pyromq.broker.delays.timer_records import ScheduledMessage
from pyromq.broker.statistics import Statistics
from pyromq.errors import MessageRefused, MQError, StoreError
from pyromq.message import TIMER_PROPERTIES, Property, StoredMessage
from pyromq.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from pyromq.record import MAX_PROPERTIES_SIZE
from pyromq.store.batch_appends import Shape, Stored
from pyromq.store.message_store import MessageStore

if TYPE_CHECKING:
    from pyromq.speedups.batches import Members

# A property text without any of these asks for nothing.
DELAY = Property.DELAY + "\x01"
TRANSACTION = Property.TRANSACTION + "\x01"
TIMER = "TIMER_D"  # every property that asks for a time begins with it

_SENT_ON = (RETRY_PREFIX, DEAD_LETTER_PREFIX)  # how the topics of messages begin that were consumed without success

# What transaction checks add to the properties; a half message without room for it could not be checked.
_ADDED_BY_CHECKS = f"\x02{Property.TRANSACTION_CHECK_TIMES}\x01{1 << 31}"


class PutMessage:
    """Puts the messages of one broker into its log.

    Hooks, each set by the part that does it: `prepare` makes a half message; `delay` lets a message wait for a delay
    level if its properties name one, and tells whether they do; `park` for a time, if its text names one: then it
    returns a ticket, and `parked` has to be told when the message is put, in order.
    """

    def __init__(self, store: MessageStore, statistics: Statistics, config: BrokerConfig) -> None:
        self.prepare: Callable[[StoredMessage, Mapping[str, str]], None]
        self.delay: Callable[[StoredMessage, Mapping[str, str]], bool]
        self.park: Callable[[StoredMessage], ScheduledMessage | None]
        self.parked: Callable[[StoredMessage, ScheduledMessage], None]
        self._store = store
        self._statistics = statistics
        self._config = config
        self._count_put = statistics.count_put  # bound once: used for every message

    def divert(self, message: StoredMessage, properties: dict[str, str] | None = None) -> ScheduledMessage | None:
        """Let a message from a client wait if it asks for anything; dead letters do not.

        `properties` are those that may ask, None if the text asks for a time at most. Return the ticket of one that
        waits for a time: `parked` is told with it. Raises what refuses the message.
        """
        if message.topic.startswith(DEAD_LETTER_PREFIX):
            return None
        ticket, more = None, ""
        if properties is not None and is_half(properties, message.topic):
            self.prepare(message, properties)
            more = _ADDED_BY_CHECKS
        elif properties is None or self._is_left_to_time(message, properties):
            ticket = self._park(message)
        if is_too_long(message.property_text + more):
            raise MessageRefused(too_large(self._config))
        return ticket

    def _is_left_to_time(self, message: StoredMessage, properties: dict[str, str]) -> bool:
        """Whether it asks for a time and does not wait for a level: that wins, and times are forgotten."""
        times = [name for name in TIMER_PROPERTIES if properties.pop(name, None) is not None]
        return not self.delay(message, properties) and bool(times)

    def _park(self, message: StoredMessage) -> ScheduledMessage | None:
        try:
            return self.park(message)
        except StoreError:
            self._statistics.count_put_failed()
            raise

    def put(self, message: StoredMessage) -> None:
        """Append a message. Raises `MessageRefused`, `StoreNotWritable`. Called for every one that comes by itself."""
        try:
            self._store.append(message)
        except StoreError:
            self._statistics.count_put_failed()
            raise
        self._count_put(message.topic, 1, message.size)

    def put_each(self, messages: list[StoredMessage]) -> Sequence[MQError | None]:
        """Append messages that have nothing to do with each other, by one write if there is one that takes them.

        Return for each why it is not stored, None if it is. Behind one with `StoreNotWritable` none is stored.
        """
        try:
            self._store.append_batch(messages)
        except MessageRefused:  # too much for one write, or one that fits nowhere; nothing is stored yet
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

        `before` and `behind` them are records as `put_record` takes them.
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
        """Append `count` members of a batch from `first` on, as `put_batch` appends messages made of them.

        None, nothing stored, where that has to do it. So many bytes more fit behind them into the same segment.
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
        """Append what is not counted: a note that the broker writes for itself, or what is no message yet."""
        try:
            self._store.append(record)
        except StoreError:
            self._statistics.count_put_failed()
            raise


def is_half(properties: Mapping[str, str], topic: str = "") -> bool:
    """Whether a message waits for its producer's decision.

    Clients before 4.6.1 leave the mark of a transaction on the copies of committed messages that they retry.
    """
    return properties.get(Property.TRANSACTION, "").lower() == "true" and not topic.startswith(_SENT_ON)


def waits_by(properties: Mapping[str, str]) -> str:
    """Return the property that asks for a delay, a time or a transaction; "" if none does. No member of a batch may."""
    if properties.get(Property.DELAY, "0") != "0":
        return Property.DELAY
    if is_half(properties):
        return Property.TRANSACTION
    return next((name for name in TIMER_PROPERTIES if name in properties), "")


def is_too_long(text: str) -> bool:
    """Whether a record cannot hold these properties. No character takes more than four bytes."""
    return len(text) > MAX_PROPERTIES_SIZE // 4 and len(text.encode()) > MAX_PROPERTIES_SIZE


def too_large(config: BrokerConfig) -> str:
    """Return upstream's words for a message that no record can hold."""
    return (
        "the message is illegal, maybe msg body or properties length not matched. msg body length limit "
        f"{config.max_message_bytes}B, msg properties length limit 32KB."
    )
