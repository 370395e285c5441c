"""From a request's code to the method that answers it: the `@answers` mark and the table built from the marks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from pyromq.errors import MQError, ResponseCode
from pyromq.remoting.command import Answered, Call, Reply
from pyromq.remoting.header import Header, request_headers

logger = logging.getLogger(__name__)

Answer = Callable[[Any, Call], "Answered | Future[Answered]"]
A = TypeVar("A", bound=Callable[..., Any])


def answers(*requests: type[Header]) -> Callable[[A], A]:
    """Mark a method `(self, header, call) -> Reply | Future[Reply]` as the answer to these requests.

    A second spelling of a request (a subclass of it) is answered by the same method, unless it is marked elsewhere.
    """

    def mark(method: A) -> A:
        method.answered_requests = requests  # type: ignore[attr-defined]  # a function takes any attribute
        return method

    return mark


class Dispatcher:
    """The table code -> answer of one server or client, collected from the marked methods of the given objects.

    `guard` is called before each answer and refuses by raising an `MQError`.
    """

    def __init__(self, *answerers: object, guard: Callable[[Call], None] | None = None) -> None:
        self._guard = guard
        self._table: dict[int, Answer] = {}
        for answerer in answerers:
            self._collect(answerer)

    def _collect(self, answerer: object) -> None:
        declared = request_headers()
        for name in dir(type(answerer)):
            requests = getattr(getattr(type(answerer), name), "answered_requests", ())
            for request in requests:
                for code, header in declared.items():
                    if header is request or (issubclass(header, request) and code not in self._table):
                        self._table[code] = getattr(answerer, name)

    @property
    def codes(self) -> frozenset[int]:
        """The request codes that have an answer."""
        return frozenset(self._table)

    def dispatch(self, call: Call) -> Answered | Future[Answered]:
        """Answer a call: at once, or with a future where the answer has to wait. Never raises.

        An `MQError` becomes its code and text; anything else is logged and becomes SYSTEM_ERROR.
        """
        try:
            answer = self._table.get(call.code)
            if answer is None:
                return Reply(
                    code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {call.code} not supported"
                )
            if call.header is None:
                raise call.fault
            if self._guard is not None:
                self._guard(call)
            return answer(call.header, call)
        except MQError as error:
            return refusal(error)
        except Exception as error:
            logger.exception("request %d from %s failed", call.code, call.peer.address)
            return Reply(code=ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")


def refusal(error: MQError) -> Reply:
    """Return the answer that tells a peer about an error."""
    return Reply(code=int(error.code), remark=str(error))
