"""Hooks of an application around sends, listener calls and ends of transactions.

An error raised by a hook is logged and has no effect, except an error of `CheckForbiddenHook`. Hooks are called in
order before the event and in reverse order after it. Source: RocketMQ 4.9.8, SendMessageHook, CheckForbiddenHook,
FilterMessageHook, ConsumeMessageHook, EndTransactionHook.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, runtime_checkable

from pyromq.client.application_code import check_takes, is_async, picture_of
from pyromq.clock import Clock
from pyromq.errors import UsageError
from pyromq.logs import Tracebacks, logger_of
from pyromq.message import Message, SendResult, StoredMessage, check_property
from pyromq.net.connection_config import ConnectionConfig
from pyromq.remoting.hooks import call_hooks

logger = logger_of(__name__)


class Decision(Enum):
    """The decision on a half message. After `UNKNOWN` the broker asks again later. Values are those of the protocol."""

    COMMIT = 8
    ROLLBACK = 12
    UNKNOWN = 0


_tracebacks = Tracebacks()


class SendKind(Enum):
    """The way in which messages are sent. Whether they are delayed is a property of each message."""

    SINGLE = "single"  # `send` and `send_soon`
    BATCH = "batch"
    ONE_WAY = "one way"
    REQUEST = "request"
    HALF = "half"  # the half message of a transaction


@dataclass(frozen=True, slots=True, eq=False)
class MessageSend:
    """A send that begins: the application's message, or the messages of a batch, with their ids.

    `started` is in seconds of a monotonic clock. `state` is for hooks: `before_send` writes it, `after_send` reads it.
    """

    group: str
    client_id: str
    kind: SendKind
    messages: Sequence[Message]
    started: float
    state: dict[object, Any] = field(default_factory=dict)
    added: Sequence[dict[str, str]] = ()  # properties added by hooks, one dict per message

    def add_property(self, name: str, value: str, *, message: Message | None = None) -> None:
        """Send `message`, or all messages, with a further property. The application's `Message` does not change.

        Call this in `before_send`. Raises `IllegalMessage` or `UnicodeEncodeError` for an illegal name or value.
        """
        check_property(name, value)
        (name + value).encode()  # raises `UnicodeEncodeError` for a lone surrogate
        for each, properties in zip(self.messages, self.added, strict=True):
            if message is None or each is message:
                properties[name] = value


@dataclass(frozen=True, slots=True)
class SendOutcome:
    """The end of a send after all attempts: the `result`, or the `error` raised; `seconds` is its duration.

    Both are None for a one-way send that raised nothing.
    """

    result: SendResult | None
    error: BaseException | None
    seconds: float


@runtime_checkable
class SendMessageHook(Protocol):
    """A hook called around every send of a producer, except those that the client refuses immediately.

    It must be quick, because it blocks the event loop. `before_send` is called in the context (`contextvars`) of the
    caller, `after_send` when the reply arrives, even if the caller no longer waits.
    """

    def before_send(self, send: MessageSend) -> None:
        """Called before the messages are encoded, so that properties can be added."""

    def after_send(self, send: MessageSend, outcome: SendOutcome) -> None:
        """Called once for each send, before the caller gets the same result or error."""


@runtime_checkable
class CheckForbiddenHook(Protocol):
    """A hook that may refuse each send of a producer. Must be quick: it blocks the event loop."""

    def check_forbidden(self, send: MessageSend) -> None:
        """Called before `before_send`. If it raises an error, the caller gets this error and nothing is sent."""


@dataclass(frozen=True, slots=True, eq=False)
class TransactionEnd:
    """The decision of a producer on a half message.

    `message` is the message sent; after a check by the broker (`from_check`), the message stored; None if the
    application decided without the message. `broker` is the `host:port` of the half message's broker. `confirmed` tells
    whether that broker acknowledged the decision; brokers do not acknowledge decisions after a check.
    """

    group: str
    client_id: str
    message: Message | StoredMessage | None
    transaction_id: str  # unique id of the half message
    decision: Decision
    broker: str
    from_check: bool = False
    confirmed: bool = False


@runtime_checkable
class EndTransactionHook(Protocol):
    """A hook called for every decision of a transaction producer. Must be quick: it blocks the event loop."""

    def end_transaction(self, end: TransactionEnd) -> None:
        """Called after the decision was sent. `Decision.UNKNOWN` is not sent: the broker will ask again."""


class ConsumeStatus(Enum):
    """The outcome of messages that a listener got.

    If `ConsumerConfig.max_retries` is None, only the broker knows which retry is the last: a message that becomes a
    dead letter after that retry is reported as RETRIED.
    """

    CONSUMED = "consumed"
    RETRIED = "retried"  # the message will be redelivered
    DEAD_LETTERED = "dead-lettered"
    DROPPED = "dropped"  # the message is lost: a broadcast consumer has no retries


@runtime_checkable
class FilterMessageHook(Protocol):
    """A hook that filters pulled messages, called on the event loop of push and pull consumers."""

    def filter_messages(self, group: str, messages: Sequence[StoredMessage]) -> Iterable[StoredMessage]:
        """Return those of these messages of one queue that are wanted. The others count as consumed."""


@dataclass(frozen=True, slots=True, eq=False)
class MessageDelivery:
    """A listener call that begins, with its messages.

    `started` is in seconds of a monotonic clock. `encloses` is True if the listener runs between the two hook calls, in
    the same context (`contextvars`); it is False for pull consumers. `state` is for hooks: `before_consume` writes it,
    `after_consume` reads it.
    """

    group: str
    client_id: str
    messages: Sequence[StoredMessage]
    started: float
    encloses: bool = True
    state: dict[object, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConsumeOutcome:
    """The end of a listener call: the first `done` messages are consumed, `status` is the outcome of the others.

    `error` is the error raised by the listener, `RetryLater` and `GiveUp` included. `seconds` is the call's duration.
    """

    status: ConsumeStatus
    done: int
    error: BaseException | None
    seconds: float


@runtime_checkable
class ConsumeMessageHook(Protocol):
    """A hook called around every listener call, in the listener's thread or task: several calls may run in parallel.

    Pull consumers call the hook around the messages of each poll, which end with the next poll.
    """

    def before_consume(self, delivery: MessageDelivery) -> None:
        """Called before the listener, in the context (`contextvars`) in which the listener runs."""

    def after_consume(self, delivery: MessageDelivery, outcome: ConsumeOutcome) -> None:
        """Called when the listener has ended, before offsets change and failed messages are sent back."""


class SendHooks:
    """Calls the hooks of one producer around its sends."""

    def __init__(self, hooks: Iterable[object], group: str, client_id: Callable[[], str], *, clock: Clock) -> None:
        hooks = list(hooks)
        self._forbidding = [hook for hook in hooks if isinstance(hook, CheckForbiddenHook)]
        self._hooks = [hook for hook in hooks if isinstance(hook, SendMessageHook)]
        self._group = group
        self._client_id = client_id
        self._clock = clock

    def before(self, kind: SendKind, messages: Sequence[Message]) -> MessageSend:
        """Call the hooks and return the beginning send with the properties they added. Raises a hook's refusal."""
        added: list[dict[str, str]] = [{} for _ in messages]
        send = MessageSend(self._group, self._client_id(), kind, messages, self._clock.monotonic(), added=added)
        for hook in self._forbidding:
            hook.check_forbidden(send)
        call_hooks([hook.before_send for hook in self._hooks], send)
        return send

    def __bool__(self) -> bool:
        """Return whether the producer has hooks for sends."""
        return bool(self._hooks or self._forbidding)

    def after(self, send: MessageSend, result: SendResult | None, error: BaseException | None) -> None:
        outcome = SendOutcome(result, error, self._clock.monotonic() - send.started)
        call_hooks([hook.after_send for hook in reversed(self._hooks)], send, outcome)


class ConsumeHooks:
    """Calls the hooks of one consumer around its listener calls. Thread-safe."""

    def __init__(self, hooks: Iterable[object], group: str, client_id: Callable[[], str], *, clock: Clock) -> None:
        self._hooks = [hook for hook in hooks if isinstance(hook, ConsumeMessageHook)]
        self._group = group
        self._client_id = client_id
        self._clock = clock

    def before(self, messages: Iterable[StoredMessage], *, encloses: bool = True) -> MessageDelivery:
        started = self._clock.monotonic()
        delivery = MessageDelivery(self._group, self._client_id(), tuple(messages), started, encloses)
        call_hooks([hook.before_consume for hook in self._hooks], delivery)
        return delivery

    def after(
        self, delivery: MessageDelivery, status: ConsumeStatus, *, done: int, error: BaseException | None = None
    ) -> None:
        outcome = ConsumeOutcome(status, done, error, self._clock.monotonic() - delivery.started)
        call_hooks([hook.after_consume for hook in reversed(self._hooks)], delivery, outcome)


def filtered(hooks: Iterable[FilterMessageHook], group: str, messages: list[StoredMessage]) -> list[StoredMessage]:
    """Return the messages that all hooks want, in order. A hook that raises an error filters nothing."""
    for hook in hooks:
        try:
            wanted = {id(message) for message in hook.filter_messages(group, messages)}
        except Exception as error:
            name, (counted, traceback) = type(hook).__qualname__, _tracebacks.count(error)
            logger.exception(
                "group %s: hook %s failed and filters nothing here%s", group, name, counted, exc_info=traceback
            )
        else:
            messages = [message for message in messages if id(message) in wanted]
    return messages


@runtime_checkable
class ConnectingHook(Protocol):
    """A hook that has its own connections to the cluster, for example for trace records."""

    def connect_as(self, connections: ConnectionConfig | None, namesrv: str | None = None) -> None:
        """Called by each client with its `connections` and `namesrv`; a hook uses them if it was given none."""


def connect_hooks(hooks: Iterable[object], connections: ConnectionConfig | None, namesrv: str | None) -> None:
    """Pass a client's TLS settings, account and name servers to those of its hooks that connect to the cluster."""
    for hook in hooks:
        if isinstance(hook, ConnectingHook):
            hook.connect_as(connections, namesrv)


def check_hooks(hooks: Iterable[object], *protocols: type) -> None:
    """Raise `UsageError` if a hook has the methods of none of these protocols, or a method is async."""
    for hook in hooks:
        if not isinstance(hook, protocols):
            names = " or ".join(protocol.__name__ for protocol in protocols)
            raise UsageError(f"hooks: {hook!r:.100} has not the methods of a {names}")
        for protocol in protocols:
            if isinstance(hook, protocol):
                _check_methods(hook, protocol)


def _check_methods(hook: object, protocol: type) -> None:
    for name, method in vars(protocol).items():
        if not name.startswith("_") and inspect.isfunction(method):
            what, called = f"{name} of hook {picture_of(hook)}", getattr(hook, name)
            check_takes(called, *list(inspect.signature(method).parameters)[1:], what=what)
            if is_async(called):
                raise UsageError(f"{what} is async: hooks are not awaited; write a plain function")
