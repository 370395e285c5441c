"""What a message may have to wait for before consumers see it: its producer's decision, a delay level, or a time.

Decides which of them, from the properties; how each is done is `half_messages`', `delay_levels`' and `timers`' matter.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyromq.broker.config import BrokerConfig
from pyromq.broker.delays.delay_levels import DelayLevels
from pyromq.broker.delays.timer_delivery import Timers
from pyromq.broker.delays.timer_records import Ticket
from pyromq.broker.transactions.half_messages import ADDED_BY_CHECKS, HalfMessages
from pyromq.errors import MessageRefused, NoPermission
from pyromq.message import TIMER_WISHES, Property, StoredMessage, decode_properties
from pyromq.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from pyromq.record import MAX_PROPERTIES_SIZE
from pyromq.remoting.headers import SendMessage

# A property text without any of these asks for nothing.
DELAY = Property.DELAY + "\x01"
TRANSACTION = Property.TRANSACTION + "\x01"
TIMER = "TIMER_D"  # all wishes for a time begin with it


class Waits:
    """Lets messages wait that ask for it."""

    def __init__(
        self, half_messages: HalfMessages, delay_levels: DelayLevels, timers: Timers, config: BrokerConfig
    ) -> None:
        self._half_messages = half_messages
        self._delay_levels = delay_levels
        self._timers = timers
        self._config = config
        self.parked = timers.parked

    def divert_until(self, message: StoredMessage) -> Ticket | None:
        """Let a message that is about to be appended wait if it asks for a time, and nothing else; dead letters do not.

        Return the ticket of one that waits: `parked` should be told when it is appended. Raises what refuses it.
        """
        if message.topic.startswith(DEAD_LETTER_PREFIX):
            return None
        ticket = self._timers.divert(message)
        self._check_size(message.property_text)
        return ticket

    def divert(self, message: StoredMessage, header: SendMessage) -> Ticket | None:
        """The same for one that may ask for anything."""
        if message.topic.startswith(DEAD_LETTER_PREFIX):
            return None
        ticket, more = self._divert_parsed(message, header)
        self._check_size(message.property_text + more)
        return ticket

    def _check_size(self, text: str) -> None:
        if is_too_long(text):
            raise MessageRefused(too_large(self._config))

    def _divert_parsed(self, message: StoredMessage, header: SendMessage) -> tuple[Ticket | None, str]:
        """Return the ticket, and what the properties may grow by until the message is seen."""
        properties = decode_properties(header.properties or "")  # as upstream, WAIT stays in these
        properties[Property.CLUSTER] = self._config.cluster
        # Clients before 4.6.1 leave the mark of a transaction on the copies of committed messages that they retry.
        if is_half(properties) and not message.topic.startswith(RETRY_PREFIX):
            if self._config.reject_transactions:
                raise NoPermission(f"the broker[{self._config.advertised_ip}] sending transaction message is forbidden")
            properties.setdefault(Property.PRODUCER_GROUP, header.producer_group)  # without it nobody could decide
            self._half_messages.prepare(message, properties)
            return None, ADDED_BY_CHECKS
        wishes = [name for name in TIMER_WISHES if properties.pop(name, None) is not None]
        if not self._delay_levels.divert(message, properties) and wishes:  # a level wins
            return self._timers.divert(message), ""
        return None, ""


def is_half(properties: Mapping[str, str]) -> bool:
    return properties.get(Property.TRANSACTION, "").lower() == "true"


def asks_to_wait(properties: Mapping[str, str]) -> bool:
    """Whether a message wants anything of all this; batches must not."""
    wishes = properties.get(Property.DELAY, "0") != "0" or not properties.keys().isdisjoint(TIMER_WISHES)
    return wishes or is_half(properties)


def is_too_long(text: str) -> bool:
    """Whether a record cannot hold these properties. No character takes more than four bytes."""
    return len(text) > MAX_PROPERTIES_SIZE // 4 and len(text.encode()) > MAX_PROPERTIES_SIZE


def too_large(config: BrokerConfig) -> str:
    """Return upstream's words for a message that no record can hold."""
    return (
        "the message is illegal, maybe msg body or properties length not matched. msg body length limit "
        f"{config.max_message_bytes}B, msg properties length limit 32KB."
    )
