"""Diverts messages that must wait to internal topics: half messages, delay levels, delivery times.

The properties of a message show for which event the message waits. This module knows no requests or replies, and
appends nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyromq.broker.config import BrokerConfig
from pyromq.broker.delays.delay_levels import DelayLevels
from pyromq.broker.delays.timer_scheduler import TimerScheduler
from pyromq.broker.put_message import is_half, is_too_long, too_large
from pyromq.broker.statistics import Statistics
from pyromq.broker.transactions.half_messages import HalfMessages
from pyromq.errors import MessageRefused, StoreError
from pyromq.message import TIMER_PROPERTIES, Property, StoredMessage
from pyromq.names import DEAD_LETTER_PREFIX

# A message whose property text contains none of these three does not wait.
DELAY = Property.DELAY + "\x01"
TRANSACTION = Property.TRANSACTION + "\x01"
TIMER = "TIMER_D"  # the names of all properties that ask for a delivery time begin with this text

# Text that transaction checks add to the properties. A half message without room for this text is refused.
_ADDED_BY_CHECKS = f"\x02{Property.TRANSACTION_CHECK_TIMES}\x01{1 << 31}"


class InternalTopics:
    """The internal topics of one broker in which messages wait."""

    def __init__(
        self,
        half_messages: HalfMessages,
        delay_levels: DelayLevels,
        timers: TimerScheduler,
        *,
        statistics: Statistics,
        config: BrokerConfig,
    ) -> None:
        self._half_messages = half_messages
        self._delay_levels = delay_levels
        self._timers = timers
        self._statistics = statistics
        self._config = config

    def divert(self, message: StoredMessage, properties: dict[str, str] | None = None) -> bytes | None:
        """Turn a client's message that must wait into a message of an internal topic, before the append.

        Returns the recall handle of a message with a delivery time; None for other messages. `properties` are None if
        the property text asks for a delivery time at most. Dead letters do not wait. Raises `MessageRefused`,
        `LimitReached`, `StoreNotWritable`.
        """
        if message.topic.startswith(DEAD_LETTER_PREFIX):
            return None
        handle, more = None, ""
        if properties is None:
            handle = self._schedule(message)
        elif is_half(properties, message.topic):
            self._half_messages.prepare(message, properties)
            more = _ADDED_BY_CHECKS
        else:
            times = [name for name in TIMER_PROPERTIES if properties.pop(name, None) is not None]
            if not self._delay_levels.divert(message, properties) and times:
                handle = self._schedule(message)
        if is_too_long(message.property_text + more):
            raise MessageRefused(too_large(self._config))
        return handle

    def _schedule(self, message: StoredMessage) -> bytes | None:
        try:
            return self._timers.divert(message)
        except StoreError:
            self._statistics.count_put_failed()
            raise


def waits_by(properties: Mapping[str, str]) -> str:
    """Return the name of the property that asks for a delay level, delivery time or transaction; "" if there is none.

    Members of a batch may have none.
    """
    if properties.get(Property.DELAY, "0") != "0":
        return Property.DELAY
    if is_half(properties):
        return Property.TRANSACTION
    return next((name for name in TIMER_PROPERTIES if name in properties), "")
