"""What a consumer does with messages that nobody can consume, as its settings say: passes over, stops, buries.

These are messages that are not what was stored, and such whose body cannot be unpacked.
"""

from __future__ import annotations

import asyncio

from pyromq.client.config import ConsumerConfig, Damaged
from pyromq.client.consumer.damaged_message import DAMAGED, DamagedMessage, MessageDamaged
from pyromq.client.consumer.pulling import PullResult
from pyromq.client.consumer.push.send_back import SendBack
from pyromq.client.hooks import FilterMessageHook, filtered
from pyromq.errors import BrokerError, UndecodableBody
from pyromq.excerpt import excerpt
from pyromq.logs import logger_of
from pyromq.message import StoredMessage, SysFlag

logger = logger_of(__name__)


# Bytes of bodies unpacked ahead, for each pull: those of some hundred messages, which are not unpacked once more.
_MOST_KEPT = 1 << 20


class DamagedMessagePolicy:
    """Sifts what pulls bring, and counts the messages passed over or buried: `count`.

    `send_back` is None where there are no dead letters; there messages are passed over.
    """

    def __init__(self, group: str, config: ConsumerConfig, send_back: SendBack | None) -> None:
        self.count = 0
        self._group = group
        self._config = config
        self._send_back = send_back
        self._filters = [hook for hook in config.hooks if isinstance(hook, FilterMessageHook)]

    async def sift(self, result: PullResult) -> tuple[list[StoredMessage], int, MessageDamaged | None]:
        """Return the messages to be consumed, the queue offset to go on at, and why no further than there.

        Raises `MQError` when a dead letter cannot be written now.
        """
        messages, next_offset, failure = result.messages, result.next_offset, None
        if result.damaged and self._config.damaged is Damaged.STOP:
            first = result.damaged[0]
            messages = [message for message in messages if message.queue_offset < first.queue_offset]
            next_offset, failure = first.queue_offset, MessageDamaged(first)
        else:
            for damaged in result.damaged:
                await self._pass_over(damaged)
        if not self._config.deliver_undecodable:
            messages = await self._decodable(messages)
        if self._filters and messages:
            messages = filtered(self._filters, self._group, messages)
        return messages, next_offset, failure

    async def _pass_over(self, damaged: DamagedMessage) -> None:
        fate = "passed over"
        if self._config.damaged is Damaged.DEAD_LETTER and damaged.message is not None and self._send_back is not None:
            damaged.message.properties[DAMAGED] = damaged.what
            await self._send_back.bury(damaged.message, str(damaged))
            fate = "now a dead letter"
        self.count += 1
        logger.error("group %s: damaged message in %s; it is %s", self._group, damaged, fate)

    async def _decodable(self, messages: list[StoredMessage]) -> list[StoredMessage]:
        """Return the messages without those whose body cannot be unpacked, which are buried."""
        compressed = [message for message in messages if message.sys_flag & SysFlag.COMPRESSED]
        if not compressed:
            return messages
        refused = set()
        for message, error in await asyncio.to_thread(_unpack, compressed):
            await self._bury(message, error)
            refused.add(message.queue_offset)
        return [message for message in messages if message.queue_offset not in refused] if refused else messages

    async def _bury(self, message: StoredMessage, error: UndecodableBody) -> None:
        """Make it a dead letter; passed over where no broker will ever take one, so that others are consumed."""
        fate = "passed over"
        if self._send_back is not None:
            try:
                await self._send_back.bury(message, excerpt(error))
                fate = "now a dead letter"
            except BrokerError as refusal:
                if refusal.retriable:
                    raise
                fate = f"passed over, since it cannot be made a dead letter: {refusal}"
        self.count += 1
        logger.error(
            "group %s: message %s in %s, offset %d, is %s: %s",
            *(self._group, message.message_id, message.queue, message.queue_offset, fate, error),
        )


def _unpack(compressed: list[StoredMessage]) -> list[tuple[StoredMessage, UndecodableBody]]:
    """Unpack bodies, keep the first ones, and return the messages where that cannot be, each with the reason."""
    refused = []
    left = _MOST_KEPT
    for message in compressed:
        try:
            left -= message.unpack(left)
        except UndecodableBody as error:
            refused.append((message, error))
    return refused
