"""From a request's code to the method that answers it: the `@answers` mark and the table built from the marks."""

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

RETRY = Reply()  # what an answer that comes later is, where the call is to be answered from the start then
MAX_RETRIES = 4  # times that a call is asked again: a record's head and the rest, and both once more if they went
MOST_REMARK = 1000  # characters of an error's text in an answer: it quotes names of whatever length

Answer = Callable[[Any, Call], "Answered | Future[Answered] | Later"]
RunAnswer = Callable[[list[Call]], "list[Answered | Future[Answered] | Later]"]
A = TypeVar("A", bound=Callable[..., Any])


class RetryWhenLoaded(Exception):
    """Raised by who judges or answers a call and lacks something: `fetch` begins to fetch it, and its future resolves
    to `RETRY`. Where it was fetched `MAX_RETRIES` times and still is lacking, the call is refused with `in_vain`.

    Nothing may have been changed by then that must not be changed twice.
    """

    def __init__(self, fetch: Callable[[], Future[Answered]], in_vain: MQError) -> None:
        self.fetch = fetch
        self.in_vain = in_vain


def answers(*requests: type[Header]) -> Callable[[A], A]:
    """Mark a method `(self, header, call) -> Reply | Future[Reply]` as the answer to these requests.

    A second spelling of a request (a subclass of it) is answered by the same method, unless it is marked elsewhere.
    """

    def mark(method: A) -> A:
        method.answered_requests = requests  # type: ignore[attr-defined]  # a function takes any attribute
        return method

    return mark


def answers_runs(*requests: type[Header]) -> Callable[[A], A]:
    """Mark a method `(self, calls) -> list[Answered | Future[Answered]]` that answers several such requests at once.

    It is given the calls of a burst when all of them ask this, and only calls whose headers fit. It must refuse
    single calls by their answers, not by raising.
    """

    def mark(method: A) -> A:
        method.answered_runs = requests  # type: ignore[attr-defined]  # a function takes any attribute
        return method

    return mark


class Dispatching(Protocol):
    """What a connection needs of who answers its peer's requests."""

    keeps_fields: bool  # whether calls are to keep their fields as they came
    refusals: RejectionLog

    def dispatch(self, call: Call) -> Answered | Future[Answered] | Later: ...

    def dispatch_run(self, calls: list[Call]) -> list[Answered | Future[Answered] | Later] | None: ...

    def refused(self, error: MQError, call: Call) -> Reply: ...

    def failure(self, error: BaseException, call: Call) -> Reply: ...


class Dispatcher:
    """The table code -> answer of one server or client, collected from the marked methods of the given objects.

    `guard` is asked before calls are answered, once for a burst; what it refuses nobody else sees. `refusals` are told
    of what cannot be read or answered.
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
            self._run_table.pop(code, None)  # a second spelling that one by one is answered elsewhere, is so in runs

    @property
    def allows_express(self) -> bool:
        """Whether compiled answers may be given: nobody judges calls, or they judge themselves."""
        return self._guard is None or self._guard.is_compiled

    @property
    def codes(self) -> frozenset[int]:
        """The request codes that have an answer."""
        return frozenset(self._table)

    def dispatch(self, call: Call) -> Answered | Future[Answered] | Later:
        """Answer a call: at once, or with a future where the answer has to wait. Never raises.

        An `MQError` becomes its code and text; anything else becomes SYSTEM_ERROR.
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
                return self.refused(error, call)  # not raised, which would tie error and frame to each other
            return answer(call.header, call)
        except RetryWhenLoaded as lack:
            return self._again(lack, call)
        except ProtocolError as error:
            text = "request %d of %s cannot be read: %s"
            self.refusals.note(UNREADABLE, call.peer.address, text, call.code, call.peer.address, error)
            return refusal(error)
        except MQError as error:
            return self.refused(error, call)
        except Exception as error:  # noqa: BLE001  `failure` logs it
            return self.failure(error, call)

    def refused(self, error: MQError, call: Call) -> Reply:
        """Return the answer that tells a peer about an error; a limit that is reached is counted and logged."""
        self.refusals.note_limit(error, call.code, call.peer.address)
        return refusal(error)

    def failure(self, error: BaseException, call: Call, count: int = 1) -> Reply:
        """Log a fault of ours, in answering so many requests, and return the answer that tells a peer about it."""
        requests = "request" if count == 1 else f"{count} requests"
        text, address = "%s %d from %s failed", call.peer.address
        self.refusals.note(FAILED, address, text, requests, call.code, address, level=logging.ERROR, error=error)
        remark = bounded(f"{type(error).__name__}: {error}", MOST_REMARK)
        return Reply(code=ResponseCode.SYSTEM_ERROR, remark=remark)

    def _again(self, lack: RetryWhenLoaded, call: Call) -> Answered | Future[Answered]:
        if call.retries < MAX_RETRIES:
            call.retries += 1
            return lack.fetch()
        text, address = "request %d from %s failed: %s", call.peer.address
        self.refusals.note(FAILED, address, text, call.code, address, lack.in_vain, level=logging.ERROR)
        return refusal(lack.in_vain)

    def dispatch_run(self, calls: list[Call]) -> list[Answered | Future[Answered] | Later] | None:
        """Answer calls at once, in order, where all ask the same and that has a run answer; None: they are no run."""
        answer = self._run_table.get(calls[0].code)
        if answer is None or not _is_run(calls):
            return None
        if self._guard is not None:
            return self._judged(self._guard, calls, answer)
        return self._answer_run(calls, answer)

    def _judged(self, guard: Guard, calls: list[Call], answer: RunAnswer) -> list[Answered | Future[Answered] | Later]:
        """Answer those of a run that are not refused, and refuse the others."""
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
    """Take the fault out of a call: once raised, it has frames that hold the call, which only the collector frees."""
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
    """Return the codes of the requests that methods are marked with, second spellings not included."""
    return {
        int(request.code)
        for answerer in answerers
        for name in dir(type(answerer))
        for request in getattr(getattr(type(answerer), name), mark, ())
    }


def refusal(error: MQError) -> Reply:
    """Return the answer that tells a peer about an error."""
    return Reply(code=int(error.code), remark=bounded(str(error), MOST_REMARK))


class Guard(Protocol):
    """Judges the calls of a burst together, in order; only calls whose headers fit their codes.

    `reads_fields`: whether it needs `Call.fields`, the fields as they came, undeclared ones among them. Keeping them
    costs a second look at each header. `is_compiled`: whether compiled answers judge by it as well.
    """

    reads_fields: bool
    is_compiled: bool

    def judge(self, calls: Sequence[Call]) -> Sequence[MQError | None]:
        """Return for each call the error it is refused with, or None."""
