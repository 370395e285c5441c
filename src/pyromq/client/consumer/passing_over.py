"""What a consumer does with damaged messages, as its settings say: passes them over, stops, or buries them."""

from __future__ import annotations

import logging

from pyromq.client.config import Damaged
from pyromq.client.consumer.damage import DAMAGED, DamagedMessage, MessageDamaged
from pyromq.client.consumer.pulling import PullResult
from pyromq.client.consumer.push.send_back import SendBack
from pyromq.message import StoredMessage

logger = logging.getLogger(__name__)


class PassingOver:
    """Sifts what pulls bring, and counts the damaged messages passed over: `count`.

    `send_back` is None where there are no dead letters; there messages are passed over.
    """

    def __init__(self, group: str, setting: Damaged, send_back: SendBack | None) -> None:
        self.count = 0
        self._group = group
        self._setting = setting
        self._send_back = send_back

    async def sift(self, result: PullResult) -> tuple[list[StoredMessage], int, MessageDamaged | None]:
        """Return the messages to be consumed, the queue offset to go on at, and why no further than there.

        Raises `MQError` when a dead letter cannot be written now.
        """
        if not result.damaged:
            return result.messages, result.next_offset, None
        if self._setting is Damaged.STOP:
            first = result.damaged[0]
            before = [message for message in result.messages if message.queue_offset < first.queue_offset]
            return before, first.queue_offset, MessageDamaged(first)
        for damaged in result.damaged:
            await self._pass_over(damaged)
        return result.messages, result.next_offset, None

    async def _pass_over(self, damaged: DamagedMessage) -> None:
        fate = "passed over"
        if self._setting is Damaged.DEAD_LETTER and damaged.message is not None and self._send_back is not None:
            damaged.message.properties[DAMAGED] = damaged.what
            await self._send_back.bury(damaged.message, str(damaged))
            fate = "now a dead letter"
        self.count += 1
        logger.error("group %s: damaged message in %s; it is %s", self._group, damaged, fate)
