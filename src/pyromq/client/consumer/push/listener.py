"""What applications write for a push consumer: the listener, and the words it answers with.

A listener is a function of a list of messages, plain or `async`. Returning nothing means done; raising means that the
messages come again. Knows no queues and no brokers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import groupby
from math import isnan
from typing import Any, cast

from pyromq.client.application_code import check_takes, is_async, picture_of, text_of
from pyromq.client.config import ConsumerConfig
from pyromq.client.hooks import ConsumeHooks, ConsumeStatus, MessageDelivery, connect_hooks
from pyromq.clock import Clock
from pyromq.errors import IllegalMessage, MQError, UsageError
from pyromq.json_body import json_reader
from pyromq.message import StoredMessage

ValueListener = Callable[[list[Any]], object]

Listener = Callable[[list[StoredMessage]], object]

TO_DEAD_LETTERS = -1  # the delay level that skips all retries. Source: ConsumeConcurrentlyContext
LONGEST_REASON = 500  # characters of a failure's text that are kept with the message


def _nobody_ends(failure: BaseException) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Listening:
    """How a listener is called: awaited in a task of the event loop, or in a thread.

    `ends` is told, there, of a `KeyboardInterrupt` or `SystemExit` that comes out of it. `sort` says, where a topic has
    several, which of them is for a message.
    """

    call: Listener
    in_task: bool
    ends: Callable[[BaseException], None] = _nobody_ends
    sort: Callable[[StoredMessage], Listening] | None = None

    @classmethod
    def of(cls, listener: Listener, ends: Callable[[BaseException], None] = _nobody_ends) -> Listening:
        """Raises `UsageError` for what cannot be called with a list of messages."""
        check_takes(listener, "messages", what="a listener")
        return cls(listener, is_async(listener), ends)

    def of_message(self, message: StoredMessage) -> Listening:
        """Return what is called for a message: as a rule this."""
        return self if self.sort is None else self.sort(message)

    def batches(self, messages: list[StoredMessage], size: int) -> list[tuple[Listening, list[StoredMessage]]]:
        """Return the calls for these messages, in order, each for at most `size` of them."""
        if self.sort is None:
            return [(self, messages[at : at + size]) for at in range(0, len(messages), size)]
        return [
            batch for listening, run in groupby(messages, self.sort) for batch in listening.batches(list(run), size)
        ]


def _refuse(messages: object) -> None:
    raise UsageError("nobody subscribes to this topic here any more")


NOBODY = Listening.of(_refuse)  # is called for what came before a topic was unsubscribed


class Ack(Enum):
    """What a listener may return instead of nothing.

    The last two are for orderly consumers with `ConsumerConfig.auto_commit` off: there nothing counts as consumed
    before `COMMIT`, and `ROLLBACK` brings everything since the last commit again.
    """

    DONE = "done"
    COMMIT = "commit"
    ROLLBACK = "rollback"


class RetryLater(MQError):
    """Raised by a listener: the messages come again, as with any exception, but how is said.

    `done` of the messages, from the first on, are consumed all the same. `delay_level` (1 to 18) fixes when the others
    come again; 0 leaves it to the broker, which waits longer each time. An orderly consumer repeats in place instead,
    after `seconds`.
    """

    def __init__(self, reason: str = "", *, done: int = 0, delay_level: int = 0, seconds: float | None = None) -> None:
        super().__init__(reason)
        self.done = done
        self.delay_level = delay_level
        self.seconds = seconds


class GiveUp(RetryLater):
    """Raised by a listener: the messages (but the first `done`) go to the dead letters without further attempts."""

    def __init__(self, reason: str = "", *, done: int = 0) -> None:
        super().__init__(reason, done=done, delay_level=TO_DEAD_LETTERS)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a consume request: the first `done` messages are consumed, the others come again."""

    done: int
    ack: Ack = Ack.DONE
    reason: str = ""
    error: BaseException | None = None  # to be logged; none where the listener asked for the retry itself
    delay_level: int = 0
    seconds: float | None = None


def judge(count: int, returned: object, failure: BaseException | None) -> Verdict:
    """Return what a listener's return value, or the exception it raised, means for `count` messages."""
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
    """What a listener asked for; a plain failure where that cannot be understood."""
    try:
        done, level = min(max(int(failure.done), 0), count), int(failure.delay_level)
        seconds = None if failure.seconds is None else float(failure.seconds)
        if seconds is not None and isnan(seconds):
            raise ValueError("seconds is not a number")
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        return Verdict(0, reason=f"{reason} (and says it wrongly: {error})", error=failure)
    return Verdict(done, reason=reason, delay_level=level, seconds=seconds)


def reason_text(failure: BaseException) -> str:
    """Return an exception as one short line that a property can hold."""
    printable = "".join(c if c.isprintable() else " " for c in text_of(failure)[:LONGEST_REASON])
    return printable.strip()


def typed(
    listener: ValueListener, type_: type[Any], unfit: Listener | None, *, listening: Callable[[Listener], Listening]
) -> Listening:
    """Return how a listener of such values is called; messages that do not fit go to `unfit`, else to the dead letters.

    `listening` says how a listener of messages is called. Raises `UsageError` for a type that JSON cannot be read as.
    """
    read = json_reader(type_)
    check_takes(listener, "values", what=f"a listener of {picture_of(type_)}")
    fitting = listening(_of_messages(listener))
    others = None if unfit is None else listening(unfit)

    def sort(message: StoredMessage) -> Listening:
        try:
            message.value = read(message.body)
        except IllegalMessage as error:
            return others or listening(_giving_up(str(error)))  # each with its own reason
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
