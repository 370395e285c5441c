"""The received messages that are not acknowledged yet: renews their invisible times, and calls their hooks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from pyromq.client.client_hooks import ConsumeHooks, ConsumeStatus, MessageDelivery
from pyromq.client.consumer.pop.pop_requests import PopRequests
from pyromq.clock import Clock
from pyromq.errors import BrokerError, MQError
from pyromq.logs import logger_of
from pyromq.message import StoredMessage

logger = logger_of(__name__)

CHECK_SECONDS = 0.2  # interval of the checks for due renewals; the least invisible time is 1 s


@dataclass(slots=True)
class _Held:
    """A message, the call of its hooks, and the end of its invisible time (monotonic). `renew_ms`: 0 for no renewal."""

    message: StoredMessage
    delivery: MessageDelivery | None
    renew_ms: int
    ends_at: float
    renewing: asyncio.Future[None] | None = None
    is_failing: bool = False  # the last renewal failed


class HeldMessages:
    """The received messages without an outcome, by object id. Only messages with hooks or renewal are held."""

    def __init__(self, group: str, requests: PopRequests, hooks: ConsumeHooks | None, clock: Clock) -> None:
        self._group = group
        self._requests = requests
        self._hooks = hooks
        self._clock = clock
        self._held: dict[int, _Held] = {}

    def add(self, messages: Iterable[StoredMessage], *, invisible_ms: int, renew: bool) -> None:
        """Call the hooks for received messages, and hold the messages that need renewal or hooks."""
        if self._hooks is None and not renew:
            return
        ends_at = self._clock.monotonic() + invisible_ms / 1000
        for message in messages:
            delivery = self._hooks.before([message], encloses=False) if self._hooks is not None else None
            self._held[id(message)] = _Held(message, delivery, invisible_ms if renew else 0, ends_at)

    async def end(self, message: StoredMessage) -> None:
        """Stop the renewal of a message. Wait for a running renewal, because it changes the receipt handle."""
        if (held := self._held.get(id(message))) is not None:
            held.renew_ms = 0
            if held.renewing is not None:
                await asyncio.wait({held.renewing})

    def report(self, message: StoredMessage, status: ConsumeStatus) -> None:
        """Remove a message, and call its hooks with the outcome."""
        held = self._held.pop(id(message), None)
        if held is not None and held.delivery is not None and self._hooks is not None:
            self._hooks.after(held.delivery, status, done=int(status is ConsumeStatus.CONSUMED))

    async def release(self) -> None:
        """Make all renewed messages visible. Errors are ignored: these messages become visible when their time ends."""
        renewed = [held.message for held in self._held.values() if held.renew_ms]
        await asyncio.gather(*map(self.end, renewed))
        await asyncio.gather(*(self._requests.change(message, 0) for message in renewed), return_exceptions=True)
        for message in renewed:
            self.report(message, ConsumeStatus.RETRIED)

    def look(self) -> None:
        """Begin the renewals that are due, and remove messages whose invisible time is over."""
        now = self._clock.monotonic()
        for held in list(self._held.values()):
            if held.renew_ms and held.renewing is None and held.ends_at - now < held.renew_ms / 2000:
                held.renewing = asyncio.ensure_future(self._renew(held))
            elif held.ends_at <= now and held.renewing is None:
                self.report(held.message, ConsumeStatus.RETRIED)

    async def _renew(self, held: _Held) -> None:
        began_at = self._clock.monotonic()
        try:
            held.message.receipt_handle = await self._requests.change(held.message, held.renew_ms)
            held.ends_at = began_at + held.renew_ms / 1000
            held.is_failing = False
        except BrokerError as error:
            logger.warning("group %s: %s is not renewed: %s", self._group, held.message.message_id, error)
            held.renew_ms = 0
        except MQError as error:  # `look` tries again until the invisible time ends
            if not held.is_failing:
                logger.info("group %s: %s is not renewed now: %s", self._group, held.message.message_id, error)
            held.is_failing = True
        finally:
            held.renewing = None
