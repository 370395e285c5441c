"""Hooks around listeners: called where the listener is called, in its thread or task and just before and after it.

They are told what the listener decided. Whether that counts - the queue may be another's by then - is not known here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import cast

from pyromq.client.config import ConsumerConfig
from pyromq.client.consumer.push.listener import TO_DEAD_LETTERS, Ack, Listener, Listening, Verdict, judge
from pyromq.client.hooks import ConsumeHooks, ConsumeStatus, MessageDelivery, connect_hooks
from pyromq.clock import Clock
from pyromq.message import StoredMessage


class ListenerHooks:
    """Puts the hooks of one consumer around its listeners."""

    def __init__(self, group: str, config: ConsumerConfig, clock: Clock, *, client_id: Callable[[], str]) -> None:
        self._config = config
        connect_hooks(config.hooks, config.connections)
        self._hooks = ConsumeHooks(config.hooks, group, client_id, clock=clock)

    def around(self, listening: Listening) -> Listening:
        """Return the listener that calls the hooks as well; the same one where there are none."""
        if not self._config.hooks:
            return listening
        return replace(listening, call=(self._in_task if listening.in_task else self._in_thread)(listening.call))

    def _in_thread(self, listener: Listener) -> Listener:
        def call(messages: list[StoredMessage]) -> object:
            delivery = self._hooks.before(messages)
            try:
                returned = listener(messages)
            except BaseException as error:
                self._after(delivery, None, error)
                raise
            self._after(delivery, returned, None)
            return returned

        return call

    def _in_task(self, listener: Listener) -> Listener:
        async def call(messages: list[StoredMessage]) -> object:
            delivery = self._hooks.before(messages)
            try:
                returned = await cast("Awaitable[object]", listener(messages))
            except BaseException as error:
                self._after(delivery, None, error)
                raise
            self._after(delivery, returned, None)
            return returned

        return call

    def _after(self, delivery: MessageDelivery, returned: object, failure: BaseException | None) -> None:
        verdict = judge(len(delivery.messages), returned, failure)
        status = self._status(delivery.messages[verdict.done :], verdict)
        self._hooks.after(delivery, status, done=verdict.done, error=failure or verdict.error)

    def _status(self, left: Sequence[StoredMessage], verdict: Verdict) -> ConsumeStatus:
        config = self._config
        if not left:
            rolled_back = verdict.ack is Ack.ROLLBACK and config.orderly and not config.auto_commit
            return ConsumeStatus.RETRIED if rolled_back else ConsumeStatus.CONSUMED
        most = config.max_retries
        is_last = most is not None and all(message.reconsume_times >= most for message in left)
        if is_last or verdict.delay_level == TO_DEAD_LETTERS:
            return ConsumeStatus.DROPPED if config.broadcast else ConsumeStatus.DEAD_LETTERED
        return ConsumeStatus.DROPPED if config.broadcast and not config.orderly else ConsumeStatus.RETRIED
