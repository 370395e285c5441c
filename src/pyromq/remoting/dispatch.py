"""From a request's code to the method that answers it: the `@answers` mark and the table built from the marks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from pyromq.errors import MQError, ProtocolError, ResponseCode
from pyromq.remoting.command import Answered, Call, Reply
from pyromq.remoting.guard import Guard
from pyromq.remoting.header import Header, request_headers

logger = logging.getLogger(__name__)

Answer = Callable[[Any, Call], "Answered | Future[Answered]"]
RunAnswer = Callable[[list[Call]], "list[Answered | Future[Answered]]"]
A = TypeVar("A", bound=Callable[..., Any])


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


class Dispatcher:
    """The table code -> answer of one server or client, collected from the marked methods of the given objects.

    `guard` is asked before calls are answered, once for a burst; what it refuses nobody else sees.
    """

    def __init__(self, *answerers: object, guard: Guard | None = None) -> None:
        self.keeps_fields = guard is not None and guard.reads_fields
        self._guard = guard
        self._table: dict[int, Answer] = {}
        self._run_table: dict[int, RunAnswer] = {}
        for answerer in answerers:
            _collect(answerer, "answered_requests", self._table)
            _collect(answerer, "answered_runs", self._run_table)

    @property
    def codes(self) -> frozenset[int]:
        """The request codes that have an answer."""
        return frozenset(self._table)

    def dispatch(self, call: Call) -> Answered | Future[Answered]:
        """Answer a call: at once, or with a future where the answer has to wait. Never raises.

        An `MQError` becomes its code and text; anything else becomes SYSTEM_ERROR. What cannot be read or answered is
        logged, once.
        """
        try:
            answer = self._table.get(call.code)
            if answer is None:
                logger.info("request %d of %s is not supported", call.code, call.peer.address)
                return Reply(
                    code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {call.code} not supported"
                )
            if call.header is None:
                raise call.fault
            if self._guard is not None and (error := self._guard.judge([call])[0]) is not None:
                raise error
            return answer(call.header, call)
        except ProtocolError as error:
            logger.warning("request %d of %s cannot be read: %s", call.code, call.peer.address, error)
            return refusal(error)
        except MQError as error:
            return refusal(error)
        except Exception as error:  # noqa: BLE001  `failure` logs it
            return failure(error, call)

    def dispatch_burst(self, calls: list[Call]) -> list[Answered | Future[Answered]]:
        """Answer the calls that came together, in order; at once where all ask the same and that has a run answer."""
        answer = self._run_table.get(calls[0].code)
        if answer is None or not _is_run(calls):
            return [self.dispatch(call) for call in calls]
        if self._guard is not None:
            return self._judged(self._guard, calls, answer)
        return self._answer_run(calls, answer)

    def _judged(self, guard: Guard, calls: list[Call], answer: RunAnswer) -> list[Answered | Future[Answered]]:
        """Answer those of a run that are not refused, and refuse the others."""
        try:
            errors = guard.judge(calls)
        except Exception as error:  # noqa: BLE001  `failure` logs it
            return [failure(error, call) for call in calls]
        passed = [call for call, error in zip(calls, errors, strict=True) if error is None]
        answered = iter(self._answer_run(passed, answer) if passed else [])
        return [next(answered) if error is None else refusal(error) for error in errors]

    def _answer_run(self, calls: list[Call], answer: RunAnswer) -> list[Answered | Future[Answered]]:
        try:
            return answer(calls)
        except Exception as error:
            logger.exception("%d requests %d from %s failed", len(calls), calls[0].code, calls[0].peer.address)
            remark = f"{type(error).__name__}: {error}"
            return [Reply(code=ResponseCode.SYSTEM_ERROR, remark=remark) for _ in calls]


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


def refusal(error: MQError) -> Reply:
    """Return the answer that tells a peer about an error."""
    return Reply(code=int(error.code), remark=str(error))


def failure(error: BaseException, call: Call) -> Reply:
    """Log a fault of ours and return the answer that tells a peer about it."""
    logger.error("request %d from %s failed", call.code, call.peer.address, exc_info=error)
    return Reply(code=ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")
