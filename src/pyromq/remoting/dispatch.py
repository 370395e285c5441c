"""Finds the method that answers a request: the `@answers` mark and the table of marked methods."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from types import CoroutineType
from typing import Any, Protocol, TypeVar

from pyromq.clock import SystemClock
from pyromq.errors import MQError, ProtocolError, ResponseCode
from pyromq.excerpt import bounded
from pyromq.remoting.command import Answered, Call, Reply
from pyromq.remoting.header import Header, request_headers
from pyromq.remoting.later import Later
from pyromq.remoting.rejection_log import FAILED, UNREADABLE, UNSUPPORTED, RejectionLog
from pyromq.slow_work import SlowWork, run_blocking

MOST_REMARK = 1000  # characters of an error's text in a reply: it may quote long names

Outcome = Answered | Future[Answered] | Later
SlowReply = SlowWork[Outcome]
Answer = Callable[[Any, Call], "Outcome | SlowReply"]
RunAnswer = Callable[[list[Call]], "list[Outcome]"]
Judgement = MQError | None | SlowWork[MQError | None]
A = TypeVar("A", bound=Callable[..., Any])


def answers(*requests: type[Header]) -> Callable[[A], A]:
    """Mark a method `(self, header, call) -> Reply | Future[Reply]` as answering these requests.

    A method that waits or takes more than a millisecond is a coroutine function, or returns a coroutine
    (`pyromq.slow_work`).

    It answers their second spellings (subclasses) as well, unless another method is marked with those.
    """

    def mark(method: A) -> A:
        method.answered_requests = requests  # type: ignore[attr-defined]  # a function takes any attribute
        return method

    return mark


def answers_runs(*requests: type[Header]) -> Callable[[A], A]:
    """Mark a method `(self, calls) -> list[Answered | Future[Answered]]` that answers several such requests at once.

    It gets the calls of a burst if all have one of these codes and valid headers. It refuses single calls by their
    replies, not by raising.
    """

    def mark(method: A) -> A:
        method.answered_runs = requests  # type: ignore[attr-defined]  # a function takes any attribute
        return method

    return mark


class Dispatching(Protocol):
    """Answers the requests of connections."""

    keeps_fields: bool  # whether calls keep their undecoded fields
    refusals: RejectionLog

    def dispatch(self, call: Call) -> Outcome: ...

    def dispatch_run(self, calls: list[Call]) -> list[Outcome] | None: ...

    def refused(self, error: MQError, call: Call) -> Reply: ...

    def failure(self, error: BaseException, call: Call) -> Reply: ...


def _at_once(work: SlowReply, call: Call) -> Outcome:
    return run_blocking(work)


class Dispatcher:
    """The table code -> method of one server or client, collected from the marked methods of the given objects.

    `guard` judges calls before they are answered, a burst at once; refused calls reach no method. `refusals` logs
    requests that cannot be read or answered. `compute` runs the coroutines of slow replies.
    """

    def __init__(
        self,
        *answerers: object,
        guard: Guard | None = None,
        refusals: RejectionLog | None = None,
        compute: Callable[[SlowReply, Call], Outcome] = _at_once,
    ) -> None:
        self._compute = compute
        self.refusals = refusals or RejectionLog(SystemClock())
        self.keeps_fields = guard is not None and guard.reads_fields
        self._guard = guard
        self._table: dict[int, Answer] = {}
        self._run_table: dict[int, RunAnswer] = {}
        for answerer in answerers:
            _collect(answerer, "answered_requests", self._table)
            _collect(answerer, "answered_runs", self._run_table)
        for code in _marked(answerers, "answered_requests") - _marked(answerers, "answered_runs"):
            self._run_table.pop(code, None)  # another method is marked with this second spelling

    @property
    def allows_fast_path(self) -> bool:
        """Whether compiled parts may answer: there is no guard, or a compiled one."""
        return self._guard is None or self._guard.is_compiled

    @property
    def codes(self) -> frozenset[int]:
        """The request codes that are answered."""
        return frozenset(self._table)

    def dispatch(self, call: Call) -> Outcome:
        """Return the reply to a call, or a future for it. Never raises.

        An `MQError` becomes a reply with its code and text, any other exception a SYSTEM_ERROR.
        """
        try:
            answer = self._table.get(call.code)
            if answer is None:
                text = "request %d of %s is not supported"
                self.refusals.note(
                    UNSUPPORTED, call.peer.address, text, call.code, call.peer.address, level=logging.INFO
                )
                return Reply(
                    code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {call.code} not supported"
                )
            if call.header is None:
                raise _fault_of(call)
            if self._guard is not None and (error := self._guard.judge([call])[0]) is not None:
                if isinstance(error, MQError):
                    return self.refused(error, call)  # not raised: error and traceback would refer to each other
                return self._compute(self._answer_when_judged(error, answer, call), call)
            answered = answer(call.header, call)
            if type(answered) is CoroutineType:
                return self._compute(answered, call)
            return answered  # type: ignore[return-value]  # every coroutine is of that type
        except MQError as error:
            return self.refused(error, call)
        except Exception as error:  # noqa: BLE001  `failure` logs it
            return self.failure(error, call)

    async def _answer_when_judged(self, judging: SlowWork[MQError | None], answer: Answer, call: Call) -> Outcome:
        if (error := await judging) is not None:
            return self.refused(error, call)
        answered = answer(call.header, call)
        return await answered if isinstance(answered, Coroutine) else answered

    def refused(self, error: MQError, call: Call) -> Reply:
        """Return the reply for an error; unreadable requests and reached limits are counted and logged."""
        if isinstance(error, ProtocolError):
            text = "request %d of %s cannot be read: %s"
            self.refusals.note(UNREADABLE, call.peer.address, text, call.code, call.peer.address, error)
        else:
            self.refusals.note_limit(error, call.code, call.peer.address)
        return refusal(error)

    def failure(self, error: BaseException, call: Call, count: int = 1) -> Reply:
        """Log an internal error in answering `count` requests, and return the reply for it."""
        requests = "request" if count == 1 else f"{count} requests"
        text, address = "%s %d from %s failed", call.peer.address
        self.refusals.note(FAILED, address, text, requests, call.code, address, level=logging.ERROR, error=error)
        remark = bounded(f"{type(error).__name__}: {error}", MOST_REMARK)
        return Reply(code=ResponseCode.SYSTEM_ERROR, remark=remark)

    def dispatch_run(self, calls: list[Call]) -> list[Outcome] | None:
        """Return the replies to calls of one code, in order; None if codes differ or no method answers runs."""
        answer = self._run_table.get(calls[0].code)
        if answer is None or not _is_run(calls):
            return None
        if self._guard is not None:
            return self._judged(self._guard, calls, answer)
        return self._answer_run(calls, answer)

    def _judged(self, guard: Guard, calls: list[Call], answer: RunAnswer) -> list[Outcome]:
        """Answer the calls that the guard allows, and refuse the others."""
        try:
            errors = guard.judge(calls)
        except Exception as error:  # noqa: BLE001  `failure` logs it
            return [self.failure(error, calls[0], len(calls))] * len(calls)
        passed = [call for call, error in zip(calls, errors, strict=True) if error is None]
        answered = iter(self._answer_run(passed, answer) if passed else [])
        return [
            next(answered) if error is None else refusal(error) if isinstance(error, MQError) else self.dispatch(call)
            for call, error in zip(calls, errors, strict=True)
        ]

    def _answer_run(self, calls: list[Call], answer: RunAnswer) -> list[Outcome]:
        try:
            return answer(calls)
        except Exception as error:  # noqa: BLE001  `failure` logs it
            return [self.failure(error, calls[0], len(calls))] * len(calls)


def _fault_of(call: Call) -> MQError:
    """Take the fault out of a call: its traceback will hold the call, and a cycle needs the garbage collector."""
    fault: MQError = call.fault
    call.fault = None
    return fault


def _is_run(calls: list[Call]) -> bool:
    code = calls[0].code
    return all(call.code == code and call.header is not None for call in calls)


def _collect(answerer: object, mark: str, table: dict[int, Any]) -> None:
    declared = request_headers()
    for name in dir(type(answerer)):
        for request in getattr(getattr(type(answerer), name), mark, ()):
            for code, header in declared.items():
                if header is request or (issubclass(header, request) and code not in table):
                    table[code] = getattr(answerer, name)


def _marked(answerers: Iterable[object], mark: str) -> set[int]:
    """Return the codes of the requests that methods are marked with, without second spellings."""
    return {
        int(request.code)
        for answerer in answerers
        for name in dir(type(answerer))
        for request in getattr(getattr(type(answerer), name), mark, ())
    }


def refusal(error: MQError) -> Reply:
    """Return the reply for an error."""
    return Reply(code=int(error.code), remark=bounded(str(error), MOST_REMARK))


class Guard(Protocol):
    """Decides whether calls are permitted. It gets the calls of a burst together, in order, with valid headers only.

    `reads_fields`: whether it needs `Call.fields`, the undecoded fields with undeclared ones. Keeping them costs a
    second decoding of each header. `is_compiled`: whether compiled parts apply the same permissions.
    """

    reads_fields: bool
    is_compiled: bool

    def judge(self, calls: Sequence[Call]) -> Sequence[Judgement]:
        """Return for each call the error to refuse it with, or None; a coroutine if that needs a record on disk."""
