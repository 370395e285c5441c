"""Listeners of push consumers: how they are called, and what their results mean.

A listener is a function of a list of messages, plain or `async`. If a listener returns nothing, the
messages count as consumed. If it raises an exception, the messages are redelivered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import isnan
from typing import Any, cast

from pyromq.client.application_code import check_takes, is_async, picture_of, text_of
from pyromq.client.client_config import ConsumerConfig
from pyromq.client.client_hooks import ConsumeHooks, ConsumeStatus, MessageDelivery
from pyromq.clock import Clock
from pyromq.errors import IllegalMessage, MQError, UsageError
from pyromq.json_body import json_reader
from pyromq.message import StoredMessage

ValueListener = Callable[[list[Any]], object]

Listener = Callable[[list[StoredMessage]], object]

TO_DEAD_LETTERS = -1  # the delay level that skips all retries. Source: ConsumeConcurrentlyContext
LONGEST_REASON = 500  # limit of the characters of a failure's text in property RETRY_REASON


def _ignore(failure: BaseException) -> None:
    pass


@dataclass(frozen=True, slots=True)
class BoundListener:
    """A listener and how to call it: in a task of the event loop, or in a thread.

    `ends` is called, in the same task or thread, with a `KeyboardInterrupt` or `SystemExit` that the listener raised.
    `sort(message)` chooses the listener of each message if a topic has several.
    """

    call: Listener
    in_task: bool
    ends: Callable[[BaseException], None] = _ignore
    sort: Callable[[StoredMessage], BoundListener] | None = None

    @classmethod
    def of(cls, listener: Listener, ends: Callable[[BaseException], None] = _ignore) -> BoundListener:
        """Return a listener bound to its way of being called: async ones in a task, plain ones in a thread.

        Raises `UsageError` if `listener` cannot be called with a list of messages.
        """
        check_takes(listener, "messages", what="a listener")
        return cls(listener, is_async(listener), ends)

    def of_message(self, message: StoredMessage) -> BoundListener:
        """Return the listener to call with a message: the one that `sort` chooses, else this listener."""
        return self if self.sort is None else self.sort(message)


def _refuse(messages: object) -> None:
    raise UsageError("this consumer has unsubscribed from the topic")


UNSUBSCRIBED = BoundListener.of(_refuse)  # called for messages pulled before their topic was unsubscribed


class Ack(Enum):
    """A listener's return value; returning None means `DONE`.

    `COMMIT` and `ROLLBACK` are for orderly consumers with `ConsumerConfig.auto_commit` off. For these, messages
    count as consumed only after `COMMIT`, and `ROLLBACK` redelivers all messages since the last commit.
    """

    DONE = "done"
    COMMIT = "commit"
    ROLLBACK = "rollback"


class RetryLater(MQError):
    """Raised by a listener to have messages redelivered, with a chosen delay.

    The first `done` messages of the call count as consumed. `delay_level` (1 to 18) is the delay of all others; with 0
    the broker chooses a delay that grows with each attempt. An orderly consumer retries in place after `seconds`
    instead.
    """

    def __init__(self, reason: str = "", *, done: int = 0, delay_level: int = 0, seconds: float | None = None) -> None:
        super().__init__(reason)
        self.done = done
        self.delay_level = delay_level
        self.seconds = seconds


class GiveUp(RetryLater):
    """Raised by a listener to make messages dead letters without further attempts.

    All messages of the call except the first `done` become dead letters, the ones after the failed message too. With
    `ConsumerConfig.batch=1`, the default, a call has one message.
    """

    def __init__(self, reason: str = "", *, done: int = 0) -> None:
        super().__init__(reason, done=done, delay_level=TO_DEAD_LETTERS)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a consume request: the first `done` messages are consumed, the others are redelivered."""

    done: int
    ack: Ack = Ack.DONE
    reason: str = ""
    error: BaseException | None = None  # exception to log; None if the listener raised `RetryLater`
    delay_level: int = 0
    seconds: float | None = None


def judge(count: int, returned: object, failure: BaseException | None) -> Verdict:
    """Return the verdict on a listener call with `count` messages, from its return value or exception."""
    if failure is None:
        if returned is None:
            return Verdict(count)
        if isinstance(returned, Ack):
            return Verdict(count, returned)
        text = f"the listener returned {picture_of(returned)}; it must return nothing or an Ack, or raise"
        return Verdict(0, reason=text, error=UsageError(text))
    reason = reason_text(failure)
    if isinstance(failure, RetryLater):
        return _asked(failure, count, reason)
    return Verdict(0, reason=reason, error=failure)


def _asked(failure: RetryLater, count: int, reason: str) -> Verdict:
    """Return the verdict that a `RetryLater` asks for; with invalid attributes, that of an ordinary exception."""
    try:
        done, level = min(max(int(failure.done), 0), count), int(failure.delay_level)
        seconds = None if failure.seconds is None else float(failure.seconds)
        if seconds is not None and isnan(seconds):
            raise ValueError("seconds is not a number")
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        return Verdict(0, reason=f"{reason} (invalid {type(failure).__name__}: {error})", error=failure)
    return Verdict(done, reason=reason, delay_level=level, seconds=seconds)


def reason_text(failure: BaseException) -> str:
    """Return an exception's text as one line of at most `LONGEST_REASON` printable characters."""
    printable = "".join(c if c.isprintable() else " " for c in text_of(failure)[:LONGEST_REASON])
    return printable.strip()


def typed(
    listener: ValueListener, type_: type[Any], unfit: Listener | None, *, bind: Callable[[Listener], BoundListener]
) -> BoundListener:
    """Bind a listener of values decoded from JSON bodies.

    Messages whose body does not fit `type_` are passed to `unfit`, or become dead letters without it. `bind` binds a
    listener of messages. Raises `UsageError` for a type that cannot be decoded from JSON.
    """
    read = json_reader(type_)
    check_takes(listener, "values", what=f"a listener of {picture_of(type_)}")
    fitting = bind(_of_messages(listener))
    others = None if unfit is None else bind(unfit)

    def sort(message: StoredMessage) -> BoundListener:
        try:
            message.value = read(message.body)
        except IllegalMessage as error:
            return others or bind(_giving_up(str(error)))
        return fitting

    return replace(fitting, sort=sort)


def _of_messages(listener: ValueListener) -> Listener:
    if not is_async(listener):
        return lambda messages: listener([message.value for message in messages])

    async def call(messages: list[StoredMessage]) -> object:
        return await cast("Awaitable[object]", listener([message.value for message in messages]))

    return call


def _giving_up(reason: str) -> Listener:
    def call(messages: list[StoredMessage]) -> None:
        raise GiveUp(reason)

    return call


class ListenerHooks:
    """Calls the hooks of one consumer before and after its listeners."""

    def __init__(self, group: str, config: ConsumerConfig, clock: Clock, *, client_id: Callable[[], str]) -> None:
        self._config = config
        self._hooks = ConsumeHooks(config.hooks, group, client_id, clock=clock)

    def around(self, listener: BoundListener) -> BoundListener:
        """Return a listener that also calls the hooks; the same listener if there are no hooks."""
        if not self._config.hooks:
            return listener
        return replace(listener, call=(self._in_task if listener.in_task else self._in_thread)(listener.call))

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
