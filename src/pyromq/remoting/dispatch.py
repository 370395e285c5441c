"""Finds the method that answers a request: the `@answers` mark and the table of marked methods."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from pyromq.clock import SystemClock
from pyromq.errors import MQError, ProtocolError, ResponseCode
from pyromq.excerpt import bounded
from pyromq.remoting.command import Answered, Call, Reply
from pyromq.remoting.header import Header, request_headers
from pyromq.remoting.later import Later
from pyromq.remoting.rejection_log import FAILED, UNREADABLE, UNSUPPORTED, RejectionLog

RETRY = Reply()  # the result of a future after which the call is dispatched again
MAX_RETRIES = 4  # a request is retried after each page load: head and body, twice if they were evicted meanwhile
MOST_REMARK = 1000  # characters of an error's text in a reply: it may quote long names

Answer = Callable[[Any, Call], "Answered | Future[Answered] | Later"]
RunAnswer = Callable[[list[Call]], "list[Answered | Future[Answered] | Later]"]
A = TypeVar("A", bound=Callable[..., Any])


class RetryWhenLoaded(Exception):
    """Raised by a guard or an answering method that needs pages which are not resident.

    `fetch` begins to load them; its future resolves to `RETRY`. After `MAX_RETRIES` the call is refused with `in_vain`.
    The method runs again from its beginning, so it must raise this before it changes anything.
    """

    def __init__(self, fetch: Callable[[], Future[Answered]], in_vain: MQError) -> None:
        self.fetch = fetch
        self.in_vain = in_vain


def answers(*requests: type[Header]) -> Callable[[A], A]:
    """Mark a method `(self, header, call) -> Reply | Future[Reply]` as answering these requests.

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

    def dispatch(self, call: Call) -> Answered | Future[Answered] | Later: ...

    def dispatch_run(self, calls: list[Call]) -> list[Answered | Future[Answered] | Later] | None: ...

    def refused(self, error: MQError, call: Call) -> Reply: ...

    def failure(self, error: BaseException, call: Call) -> Reply: ...


class Dispatcher:
    """The table code -> method of one server or client, collected from the marked methods of the given objects.

    `guard` judges calls before they are answered, a burst at once; refused calls reach no method. `refusals` logs
    requests that cannot be read or answered.
    """

    def __init__(self, *answerers: object, guard: Guard | None = None, refusals: RejectionLog | None = None) -> None:
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
    def allows_express(self) -> bool:
        """Whether compiled parts may answer: there is no guard, or a compiled one."""
        return self._guard is None or self._guard.is_compiled

    @property
    def codes(self) -> frozenset[int]:
        """The request codes that are answered."""
        return frozenset(self._table)

    def dispatch(self, call: Call) -> Answered | Future[Answered] | Later:
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
                return self.refused(error, call)  # not raised: error and traceback would refer to each other
            return answer(call.header, call)
        except RetryWhenLoaded as lack:
            return self._retry(lack, call)
        except ProtocolError as error:
            text = "request %d of %s cannot be read: %s"
            self.refusals.note(UNREADABLE, call.peer.address, text, call.code, call.peer.address, error)
            return refusal(error)
        except MQError as error:
            return self.refused(error, call)
        except Exception as error:  # noqa: BLE001  `failure` logs it
            return self.failure(error, call)

    def refused(self, error: MQError, call: Call) -> Reply:
        """Return the reply for an error; a reached limit is counted and logged."""
        self.refusals.note_limit(error, call.code, call.peer.address)
        return refusal(error)

    def failure(self, error: BaseException, call: Call, count: int = 1) -> Reply:
        """Log an internal error in answering `count` requests, and return the reply for it."""
        requests = "request" if count == 1 else f"{count} requests"
        text, address = "%s %d from %s failed", call.peer.address
        self.refusals.note(FAILED, address, text, requests, call.code, address, level=logging.ERROR, error=error)
        remark = bounded(f"{type(error).__name__}: {error}", MOST_REMARK)
        return Reply(code=ResponseCode.SYSTEM_ERROR, remark=remark)

    def _retry(self, lack: RetryWhenLoaded, call: Call) -> Answered | Future[Answered]:
        if call.retries < MAX_RETRIES:
            call.retries += 1
            return lack.fetch()
        text, address = "request %d from %s failed: %s", call.peer.address
        self.refusals.note(FAILED, address, text, call.code, address, lack.in_vain, level=logging.ERROR)
        return refusal(lack.in_vain)

    def dispatch_run(self, calls: list[Call]) -> list[Answered | Future[Answered] | Later] | None:
        """Return the replies to calls of one code, in order; None if codes differ or no method answers runs."""
        answer = self._run_table.get(calls[0].code)
        if answer is None or not _is_run(calls):
            return None
        if self._guard is not None:
            return self._judged(self._guard, calls, answer)
        return self._answer_run(calls, answer)

    def _judged(self, guard: Guard, calls: list[Call], answer: RunAnswer) -> list[Answered | Future[Answered] | Later]:
        """Answer the calls that the guard allows, and refuse the others."""
        try:
            errors = guard.judge(calls)
        except Exception as error:  # noqa: BLE001  `failure` logs it
            return [self.failure(error, calls[0], len(calls))] * len(calls)
        passed = [call for call, error in zip(calls, errors, strict=True) if error is None]
        answered = iter(self._answer_run(passed, answer) if passed else [])
        return [next(answered) if error is None else refusal(error) for error in errors]

    def _answer_run(self, calls: list[Call], answer: RunAnswer) -> list[Answered | Future[Answered] | Later]:
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

    def judge(self, calls: Sequence[Call]) -> Sequence[MQError | None]:
        """Return for each call the error to refuse it with, or None."""
