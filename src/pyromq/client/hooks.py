"""Hooks around what clients do for an application: sending, consuming, ending a transaction.

What a hook raises is logged and changes nothing, but where it is asked whether a message may be sent. The hooks are
called in their order before, and in the opposite order after, so that each encloses the next. Source: RocketMQ 4.9.8,
SendMessageHook, CheckForbiddenHook, FilterMessageHook, ConsumeMessageHook, EndTransactionHook.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, runtime_checkable

from pyromq.client.application_code import check_takes, is_async, picture_of
from pyromq.client.decision import Decision
from pyromq.clock import Clock
from pyromq.errors import UsageError
from pyromq.logs import Tracebacks, logger_of
from pyromq.message import Message, SendResult, StoredMessage, check_property
from pyromq.net.connection_config import ConnectionConfig
from pyromq.remoting.hooks import call_hooks

logger = logger_of(__name__)
_tracebacks = Tracebacks()


class SendKind(Enum):
    """How messages are sent. Whether they are delayed is said by themselves."""

    SINGLE = "single"  # `send` and `send_soon`
    BATCH = "batch"
    ONE_WAY = "one way"
    REQUEST = "request"
    HALF = "half"  # of a transaction


@dataclass(frozen=True, slots=True, eq=False)
class MessageSend:
    """A send that begins: one message, or those of a batch. They have their ids and are the application's own.

    `started` is in seconds of a clock that nobody sets. `state` is for hooks: what `before_send` puts there,
    `after_send` finds.
    """

    group: str
    client_id: str
    kind: SendKind
    messages: Sequence[Message]
    started: float
    state: dict[object, Any] = field(default_factory=dict)
    added: Sequence[dict[str, str]] = ()  # for each message, the properties that hooks have added

    def add_property(self, name: str, value: str, *, message: Message | None = None) -> None:
        """Let a message, or all of them, travel with a property; the application's `Message` stays as it is.

        To be called in `before_send`. Raises `IllegalMessage`, or `UnicodeEncodeError`, for what cannot be a property.
        """
        check_property(name, value)
        (name + value).encode()  # raises for half a character
        for each, properties in zip(self.messages, self.added, strict=True):
            if message is None or each is message:
                properties[name] = value


@dataclass(frozen=True, slots=True)
class SendOutcome:
    """How a send ended, after all its attempts: `result`, or the `error` that the caller gets.

    Both are None for what was sent one-way: nobody says what became of it.
    """

    result: SendResult | None
    error: BaseException | None
    seconds: float


@runtime_checkable
class SendMessageHook(Protocol):
    """Is told of every send of a producer that is not refused at once; must be quick, for other sends wait for it.

    `before_send` is called in the context (`contextvars`) of the caller, `after_send` with the answer, also where
    nobody waits for it any more.
    """

    def before_send(self, send: MessageSend) -> None:
        """Called before the messages are encoded: properties can be added."""

    def after_send(self, send: MessageSend, outcome: SendOutcome) -> None:
        """Called once for each send, before the caller gets the same outcome."""


@runtime_checkable
class CheckForbiddenHook(Protocol):
    """Is asked before each send of a producer whether it may be; must be quick, for other sends wait for it."""

    def check_forbidden(self, send: MessageSend) -> None:
        """Called before `before_send`. What it raises, the caller gets, and nothing is sent."""


@dataclass(frozen=True, slots=True, eq=False)
class TransactionEnd:
    """What a half message has become, as its producer says.

    `message` is what was sent; where the broker has asked for the decision (`from_check`) it is as stored; None where
    the application told the decision without it. `broker` is the address of the broker that keeps it, `host:port`.
    `confirmed` says whether that broker has acknowledged the decision: never after a check, which it does not do.
    """

    group: str
    client_id: str
    message: Message | StoredMessage | None
    transaction_id: str  # the message's id
    decision: Decision
    broker: str
    from_check: bool = False
    confirmed: bool = False


@runtime_checkable
class EndTransactionHook(Protocol):
    """Is told of every decision of a transaction producer, on its event loop, so it must be quick."""

    def end_transaction(self, end: TransactionEnd) -> None:
        """Called when the broker was told, and for `Decision.UNKNOWN`, which it is not told: it will ask."""


class ConsumeStatus(Enum):
    """What becomes of messages that a listener got.

    Without `ConsumerConfig.max_retries` only the broker knows which retry is the last: a message that becomes a dead
    letter because it had all of them is told as RETRIED.
    """

    CONSUMED = "consumed"
    RETRIED = "retried"  # they come again
    DEAD_LETTERED = "dead-lettered"
    DROPPED = "dropped"  # a broadcast consumer repeats nothing


@runtime_checkable
class FilterMessageHook(Protocol):
    """Chooses among the messages that a pull has brought, on the event loop of push and pull consumers."""

    def filter_messages(self, group: str, messages: Sequence[StoredMessage]) -> Iterable[StoredMessage]:
        """Return those of the messages, which are of one queue, that are wanted. The others count as consumed."""


@dataclass(frozen=True, slots=True, eq=False)
class MessageDelivery:
    """Messages that a listener is about to get in one call.

    `started` is in seconds of a clock that nobody sets. `encloses`: the application's code runs between the two calls,
    in the same context (`contextvars`); not so with pull consumers. `state` is for hooks: what `before_consume` puts
    there, `after_consume` finds.
    """

    group: str
    client_id: str
    messages: Sequence[StoredMessage]
    started: float
    encloses: bool = True
    state: dict[object, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConsumeOutcome:
    """What a listener made of its messages: the first `done` are consumed, `status` tells what becomes of the others.

    `error` is what it raised, `RetryLater` and `GiveUp` included.
    """

    status: ConsumeStatus
    done: int
    error: BaseException | None
    seconds: float


@runtime_checkable
class ConsumeMessageHook(Protocol):
    """Is told of every call of a listener: in the thread, or the task, that calls it, so at several places at once.

    With pull consumers, of what is handed out; that has ended when the application asks for more.
    """

    def before_consume(self, delivery: MessageDelivery) -> None:
        """Called before the listener, in the same context (`contextvars`)."""

    def after_consume(self, delivery: MessageDelivery, outcome: ConsumeOutcome) -> None:
        """Called when the listener has ended, before offsets move and messages are sent back."""


class SendHooks:
    """Calls the hooks of one producer's sends."""

    def __init__(self, hooks: Iterable[object], group: str, client_id: Callable[[], str], *, clock: Clock) -> None:
        hooks = list(hooks)
        self._forbidding = [hook for hook in hooks if isinstance(hook, CheckForbiddenHook)]
        self._hooks = [hook for hook in hooks if isinstance(hook, SendMessageHook)]
        self._group = group
        self._client_id = client_id
        self._clock = clock

    def before(self, kind: SendKind, messages: Sequence[Message]) -> MessageSend:
        """Return the send that begins, with what the hooks have added to it. Raises what forbids it."""
        added: list[dict[str, str]] = [{} for _ in messages]
        send = MessageSend(self._group, self._client_id(), kind, messages, self._clock.monotonic(), added=added)
        for hook in self._forbidding:
            hook.check_forbidden(send)
        call_hooks([hook.before_send for hook in self._hooks], send)
        return send

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._hooks or self._forbidding)

    def after(self, send: MessageSend, result: SendResult | None, error: BaseException | None) -> None:
        outcome = SendOutcome(result, error, self._clock.monotonic() - send.started)
        call_hooks([hook.after_send for hook in reversed(self._hooks)], send, outcome)


class ConsumeHooks:
    """Calls the hooks of one consumer, in any thread."""

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
    """Return the messages that all hooks want, in order; one that fails wants all of them."""
    for hook in hooks:
        try:
            wanted = {id(message) for message in hook.filter_messages(group, messages)}
        except Exception as error:
            name, (counted, traceback) = type(hook).__qualname__, _tracebacks.count(error)
            logger.exception(
                "group %s: hook %s failed; it filters nothing here%s", group, name, counted, exc_info=traceback
            )
        else:
            messages = [message for message in messages if id(message) in wanted]
    return messages


@runtime_checkable
class ConnectingHook(Protocol):
    """Connects to the cluster itself."""

    def connect_as(self, connections: ConnectionConfig) -> None:
        """Called by each client that is given connections; for a hook that has none of its own."""


def connect_hooks(hooks: Iterable[object], connections: ConnectionConfig | None) -> None:
    """Let hooks that connect to the cluster use the TLS settings and the account of their client."""
    if connections is not None:
        for hook in hooks:
            if isinstance(hook, ConnectingHook):
                hook.connect_as(connections)


def check_hooks(hooks: Iterable[object], *protocols: type) -> None:
    """Raise `UsageError` for a hook that would never be called, because it fits none of the protocols."""
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
