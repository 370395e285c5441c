"""What becomes of an application's messages before they are sent: checked, seen by hooks, encoded.

Knows no network; `pending_send` has the pieces.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ParamSpec, TypeVar

from pyromq.client.cluster.namespace import Namespace
from pyromq.client.config import ProducerConfig
from pyromq.client.hooks import MessageSend, SendHooks, SendKind, connect_hooks
from pyromq.client.producer.pending_send import (
    PendingSend,
    QueueChooser,
    SendEnded,
    batch_properties,
    check_message,
    check_topic_for_sending,
    prepare,
    prepare_batch,
    prepare_member,
)
from pyromq.clock import Clock
from pyromq.errors import MQError, UsageError
from pyromq.message import Message
from pyromq.message_id import UniqueIds
from pyromq.record import BatchMember

P = ParamSpec("P")
T = TypeVar("T")


class Preparation:
    """Prepares the messages of one producer. Raises `UsageError`, and its kinds, for what can never be sent.

    `client_id` is asked once the client has one.
    """

    def __init__(
        self, group: str, config: ProducerConfig, names: Namespace, clock: Clock, *, client_id: Callable[[], str]
    ) -> None:
        connect_hooks(config.hooks, config.connections)
        self.hooks = SendHooks(config.hooks, group, client_id, clock=clock) or None
        self._wire_group = names.wrap(group)
        self._config = config
        self._names = names
        self._clock = clock
        self._topics: dict[str, str] = {}  # as messages name them, checked: without their namespace
        self._ids: UniqueIds
        self._loop: asyncio.AbstractEventLoop

    def begin(self, ids: UniqueIds) -> None:
        """Prepare for the loop that runs now."""
        self._ids = ids
        self._loop = asyncio.get_running_loop()

    def topic(self, name: str) -> str:
        """Return the application's name of a topic that messages may be sent to."""
        found = self._topics.get(name)
        if found is None:
            found = self._names.checked_topic(name)
            check_topic_for_sending(found)
            self._topics[name] = found
        return found

    def deadline(self, timeout: float | None) -> float:
        """Return until when (monotonic) a message must be stored that may take `timeout` seconds from now on."""
        if timeout is None:
            timeout = self._config.timeout
        elif not isinstance(timeout, int | float):
            raise UsageError(f"timeout={timeout!r:.80} is {type(timeout).__name__}; it must be a number, of seconds")
        elif not timeout > 0:  # NaN, too
            raise UsageError(f"timeout={timeout!r} leaves no time; it must be a number of seconds above 0")
        return self._clock.monotonic() + timeout

    def message(
        self,
        message: Message,
        choose: QueueChooser | None,
        timeout: float | None,
        *,
        kind: SendKind = SendKind.SINGLE,
        more: Mapping[str, str] | None = None,
    ) -> PendingSend:
        """Return a message ready to be sent; `more` are properties of this sending."""
        topic, deadline = self.topic(message.topic), self.deadline(timeout)
        ended = None
        if self.hooks is not None:
            send = self._before(kind, [message])
            more, ended = {**send.added[0], **(more or {})}, partial(self.hooks.after, send)
        if self._names.name:
            more = {**self._names.properties, **(more or {})}
        half_of = self._wire_group if kind is SendKind.HALF else None
        body, sys_flag, text = _telling(ended, prepare, message, self._config, self._ids, half_of=half_of, more=more)
        assert message.message_id is not None
        return PendingSend(
            topic,
            message.message_id,
            message.flag,
            body,
            sys_flag,
            text,
            deadline,
            frozenset(),
            self._loop.create_future(),
            False,
            None,
            choose,
            ended,
        )

    def batch(self, members: Sequence[Message], choose: QueueChooser | None, timeout: float | None) -> PendingSend:
        """Return messages of one topic ready to be sent as one batch."""
        topic, deadline = self.topic(members[0].topic), self.deadline(timeout)
        more, ended = None, None
        if self.hooks is not None:
            send = self._before(SendKind.BATCH, members)
            more, ended = send.added, partial(self.hooks.after, send)
        own = self._names.properties
        body, ids, text = _telling(ended, prepare_batch, members, self._config, self._ids, more=more, own=own)
        codes = self._config.retry_codes if choose is None else frozenset()
        pending = PendingSend(topic, ids, 0, body, 0, text, deadline, codes, self._loop.create_future())
        pending.is_batch, pending.choose, pending.ended = True, choose, ended
        return pending

    def member(self, message: Message) -> tuple[BatchMember, SendEnded | None]:
        """Return a message as a batch of others has it, and who is told its outcome."""
        more, ended = None, None
        if self.hooks is not None:
            send = self._before(SendKind.SINGLE, [message])
            more, ended = send.added[0], partial(self.hooks.after, send)
        return _telling(ended, prepare_member, message, self._config, self._ids, more), ended

    def batch_properties(self, *, wait_stored: bool) -> bytes:
        """Return the property text of a batch itself."""
        return batch_properties(self._names.properties, wait_stored=wait_stored)

    def _before(self, kind: SendKind, messages: Sequence[Message]) -> MessageSend:
        """Tell the hooks of messages that are about to be sent, once they are seen to be messages."""
        assert self.hooks is not None
        for message in messages:
            check_message(message, self._config)
            if message.message_id is None:
                message.message_id = self._ids.next()
        return self.hooks.before(kind, messages)


def _telling(ended: SendEnded | None, prepare: Callable[P, T], *arguments: P.args, **more: P.kwargs) -> T:
    """Return what `prepare` makes of these; if it refuses, `ended` is told."""
    try:
        return prepare(*arguments, **more)
    except MQError as error:
        if ended is not None:
            ended(None, error)
        raise
