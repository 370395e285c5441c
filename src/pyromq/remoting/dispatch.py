"""Dispatches requests: finds the method that answers a request, calls it with the peer, and passes its reply on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import cache, partial
from types import CoroutineType
from typing import Any, Protocol, TypeVar

import msgspec

from pyromq.clock import SystemClock
from pyromq.errors import MQError, ProtocolError, ResponseCode
from pyromq.excerpt import bounded
from pyromq.remoting.command import Call, Reply, Response
from pyromq.remoting.header import Filled, Header, request_headers
from pyromq.remoting.rejection_log import FAILED, UNREADABLE, UNSUPPORTED, RejectionLog
from pyromq.slow_work import NotInMemory, PagesToLoad, SlowWork, run_blocking, when_loaded

Completed = Callable[[Response | MQError], None]


class Peer(Protocol):
    """The other side of a connection: a client of a server, or the server of a client."""

    address: str  # the peer's address, host:port
    packed_address: bytes  # the peer's address in the form of stored records
    closed: bool
    on_close: tuple[Callable[[Peer], None], ...]  # listeners, called once when the connection has closed

    @property
    def takes_pushes(self) -> bool:
        """Whether requests may be sent to the peer: False while the peer does not read earlier requests."""

    def call(self, header: Header | Filled, body: bytes = b"", *, timeout: float, answered: Completed) -> None:
        """Send a request to the peer; `timeout` is in seconds.

        `answered` is called once, with the response or the error.
        """

    def notify(self, header: Header | Filled, body: bytes = b"") -> None:
        """Send a one-way request. The request is dropped if the connection is closed or the peer does not read."""


class Later(msgspec.Struct, gc=False, eq=False):
    """A future with one callback, for the event loop's thread only.

    Each waiting pull has such a future. There may be a hundred thousand, and a `concurrent.futures.Future` takes nearly
    2 kB.
    """

    _outcome: Any = None
    _callback: Any = None

    def done(self) -> bool:
        return self._outcome is not None

    def cancelled(self) -> bool:
        return False

    def result(self, timeout: float = 0) -> Any:
        """Return the result or raise the error of this future, which must be done."""
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome

    def exception(self, timeout: float = 0) -> BaseException | None:
        return self._outcome if isinstance(self._outcome, BaseException) else None

    def set_result(self, outcome: object) -> None:
        """Complete the future with a result that is not None. The callback is called before this method returns."""
        self._outcome = outcome
        if (callback := self._callback) is not None:
            self._callback = None
            callback(self)

    set_exception = set_result

    def add_done_callback(self, callback: Callable[[Later], object]) -> None:
        if self.done():
            callback(self)
        else:
            self._callback = callback


MAX_REMARK = 1000  # limit of characters in the error text of a reply: the text may quote long names

Outcome = Reply | Future[Reply] | Later
SlowReply = SlowWork[Outcome]
Answer = Callable[[Any, Call], "Outcome | SlowReply"]
A = TypeVar("A", bound=Callable[..., Any])


def answers(*requests: type[Header]) -> Callable[[A], A]:
    """Mark a method `(self, header, call) -> Reply | Future[Reply]` as answering these requests.

    A method that waits or takes more than a millisecond is a coroutine function, or returns a coroutine
    (`pyromq.slow_work`). A plain method may raise `NotInMemory` before it changes anything: the method is called again
    when the pages are loaded.

    The method also answers second spellings (subclasses) of the requests, unless another method is marked with those.
    """

    def mark(method: A) -> A:
        method.answered_requests = requests  # type: ignore[attr-defined]  # a function takes any attribute
        return method

    return mark


class Dispatching(Protocol):
    """Answers the requests of connections; `Dispatcher` is an implementation."""

    keeps_fields: bool  # whether calls keep their undecoded fields
    refusals: RejectionLog

    def dispatch(self, call: Call) -> Outcome: ...

    def refused(self, error: MQError, call: Call) -> Reply: ...

    def failure(self, error: BaseException, call: Call) -> Reply: ...


def _at_once(work: SlowReply, call: Call) -> Outcome:
    return run_blocking(work)


def _answer_here(call: Call) -> None:
    """Leave every request to the marked methods."""


class Dispatcher:
    """Calls the answering method of each request, for one server or client.

    The methods are those of `answerers` that `answers` marks. `guard` judges each request before it is answered; no
    method is called for a refused request. `refusals` logs requests that cannot be read or answered. `compute` runs the
    coroutines of slow replies.
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
        for answerer in answerers:
            _collect(answerer, self._table)
        self._own = self._table
        self._divert: Callable[[Call], Outcome | None] = _answer_here

    @property
    def allows_fast_path(self) -> bool:
        """Whether compiled code may answer requests: there is no guard, or the guard is compiled."""
        return self._guard is None or self._guard.is_compiled

    @property
    def codes(self) -> frozenset[int]:
        """The codes of the requests that are answered."""
        return frozenset(self._table)

    def override(self, *answerers: object) -> None:
        """Answer requests by the marked methods of these objects, else by those given to `__init__`.

        The objects of an earlier call are dropped.
        """
        self._table = dict(self._own)
        for answerer in answerers:
            _collect(answerer, self._table, replace=True)

    def divert(self, divert: Callable[[Call], Outcome | None] | None) -> None:
        """Let a function answer requests before the marked methods do, once the guard has permitted them.

        The function returns None for requests that it leaves to the marked methods. `None` removes the function.
        """
        self._divert = divert or _answer_here

    def dispatch(self, call: Call) -> Outcome:
        """Return the reply to a request, or a future for the reply. Never raises.

        An `MQError` becomes a reply with its code and text, any other exception a reply with code SYSTEM_ERROR.
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
            try:
                answered = self._answer(answer, call)
            except NotInMemory as lack:
                answered = self._answer_when_loaded(lack.to_load, answer, call)
            if type(answered) is CoroutineType:
                return self._compute(answered, call)
            return answered  # type: ignore[return-value]  # every coroutine is of that type
        except MQError as error:
            return self.refused(error, call)
        except Exception as error:  # noqa: BLE001  `failure` logs it
            return self.failure(error, call)

    def _answer(self, answer: Answer, call: Call) -> Outcome | SlowReply:
        if self._guard is not None and (error := self._guard.judge(call)) is not None:
            return self.refused(error, call)  # returned, not raised: error and traceback would refer to each other
        return self._divert(call) or answer(call.header, call)

    async def _answer_when_loaded(self, to_load: PagesToLoad, answer: Answer, call: Call) -> Outcome:
        answered = await when_loaded(to_load, partial(self._answer, answer, call))
        return await answered if isinstance(answered, Coroutine) else answered

    def refused(self, error: MQError, call: Call) -> Reply:
        """Return the reply that refuses a request with this error.

        Unreadable requests and reached limits are counted and logged.
        """
        if isinstance(error, ProtocolError):
            text = "request %d of %s cannot be read: %s"
            self.refusals.note(UNREADABLE, call.peer.address, text, call.code, call.peer.address, error)
        else:
            self.refusals.note_limit(error, call.code, call.peer.address)
        return refusal(error)

    def failure(self, error: BaseException, call: Call) -> Reply:
        """Log an internal error that a request caused, and return the reply."""
        text, address = "request %d from %s failed", call.peer.address
        self.refusals.note(FAILED, address, text, call.code, address, level=logging.ERROR, error=error)
        remark = bounded(f"{type(error).__name__}: {error}", MAX_REMARK)
        return Reply(code=ResponseCode.SYSTEM_ERROR, remark=remark)


def _fault_of(call: Call) -> MQError:
    """Remove and return the fault of a call.

    The fault's traceback will refer to the call, and a cycle needs the garbage collector.
    """
    fault: MQError = call.fault
    call.fault = None
    return fault


def _collect(answerer: object, table: dict[int, Answer], *, replace: bool = False) -> None:
    for code, name, is_named in _answers(type(answerer)):  # type: ignore[arg-type]  # mypy: no type is hashable
        if is_named or replace or code not in table:
            table[code] = getattr(answerer, name)


@cache
def _answers(answerer: type) -> tuple[tuple[int, str, bool], ...]:
    """Return each request code that a class answers, the method, and whether its mark names this request or a base."""
    declared = request_headers()
    return tuple(
        (code, name, header is request)
        for name in dir(answerer)
        for request in getattr(getattr(answerer, name), "answered_requests", ())
        for code, header in declared.items()
        if issubclass(header, request)
    )


def refusal(error: MQError) -> Reply:
    """Return the reply with the code and the text of an error."""
    return Reply(code=int(error.code), remark=bounded(str(error), MAX_REMARK))


class Guard(Protocol):
    """Decides whether requests are permitted.

    `judge` is called for each request with a valid header before it is answered. `reads_fields` is true if the guard
    needs the undecoded fields (`Call.fields`), which cost a second decoding of each header. `is_compiled` is true if
    compiled code applies the same permissions.
    """

    reads_fields: bool
    is_compiled: bool

    def judge(self, call: Call) -> MQError | None:
        """Return the error with which a request is refused; None if the request is permitted.

        May raise `NotInMemory`.
        """
