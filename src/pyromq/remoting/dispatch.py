"""From a request to its reply: the peer that sent it, the method marked to answer it, the reply or a future for it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
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
    """A client of a server, or the server of a client, until the connection closes."""

    address: str  # host:port
    packed_address: bytes  # as records hold it
    closed: bool
    on_close: tuple[Callable[[Peer], None], ...]  # called once, when the connection has closed

    @property
    def takes_pushes(self) -> bool:
        """Whether requests may be sent: False while the peer does not read earlier ones."""

    def call(self, header: Header | Filled, body: bytes = b"", *, timeout: float, answered: Completed) -> None:
        """Send a request; `timeout` is in seconds. `answered` is called once, with the response or the error."""

    def notify(self, header: Header | Filled, body: bytes = b"") -> None:
        """Send a one-way request; it is dropped if the connection is closed or the peer does not read."""


class Later(msgspec.Struct, gc=False, eq=False):
    """A future for the event loop's thread only, with one callback.

    Each waiting pull has one. There may be a hundred thousand, and a `concurrent.futures.Future` takes nearly 2 kB.
    """

    _outcome: Any = None
    _callback: Any = None

    def done(self) -> bool:
        return self._outcome is not None

    def cancelled(self) -> bool:
        return False

    def result(self, timeout: float = 0) -> Any:
        """Return the result or raise the error. It must be done."""
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome

    def exception(self, timeout: float = 0) -> BaseException | None:
        return self._outcome if isinstance(self._outcome, BaseException) else None

    def set_result(self, outcome: object) -> None:
        """Complete with a result that is not None. The callback is called before this returns."""
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


MOST_REMARK = 1000  # characters of an error's text in a reply: it may quote long names

Outcome = Reply | Future[Reply] | Later
SlowReply = SlowWork[Outcome]
Answer = Callable[[Any, Call], "Outcome | SlowReply"]
A = TypeVar("A", bound=Callable[..., Any])


def answers(*requests: type[Header]) -> Callable[[A], A]:
    """Mark a method `(self, header, call) -> Reply | Future[Reply]` as answering these requests.

    A method that waits or takes more than a millisecond is a coroutine function, or returns a coroutine
    (`pyromq.slow_work`). A plain one may raise `NotInMemory` before it changes anything: it is called again when the
    pages are loaded.

    It answers their second spellings (subclasses) as well, unless another method is marked with those.
    """

    def mark(method: A) -> A:
        method.answered_requests = requests  # type: ignore[attr-defined]  # a function takes any attribute
        return method

    return mark


class Dispatching(Protocol):
    """Answers the requests of connections."""

    keeps_fields: bool  # whether calls keep their undecoded fields
    refusals: RejectionLog

    def dispatch(self, call: Call) -> Outcome: ...

    def refused(self, error: MQError, call: Call) -> Reply: ...

    def failure(self, error: BaseException, call: Call) -> Reply: ...


def _at_once(work: SlowReply, call: Call) -> Outcome:
    return run_blocking(work)


class Dispatcher:
    """The table code -> method of one server or client, collected from the marked methods of the given objects.

    `guard` judges each call before it is answered; refused calls reach no method. `refusals` logs requests that cannot
    be read or answered. `compute` runs the coroutines of slow replies.
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
            return self.refused(error, call)  # not raised: error and traceback would refer to each other
        return answer(call.header, call)

    async def _answer_when_loaded(self, to_load: PagesToLoad, answer: Answer, call: Call) -> Outcome:
        answered = await when_loaded(to_load, partial(self._answer, answer, call))
        return await answered if isinstance(answered, Coroutine) else answered

    def refused(self, error: MQError, call: Call) -> Reply:
        """Return the reply for an error; unreadable requests and reached limits are counted and logged."""
        if isinstance(error, ProtocolError):
            text = "request %d of %s cannot be read: %s"
            self.refusals.note(UNREADABLE, call.peer.address, text, call.code, call.peer.address, error)
        else:
            self.refusals.note_limit(error, call.code, call.peer.address)
        return refusal(error)

    def failure(self, error: BaseException, call: Call) -> Reply:
        """Log an internal error, and return the reply for it."""
        text, address = "request %d from %s failed", call.peer.address
        self.refusals.note(FAILED, address, text, call.code, address, level=logging.ERROR, error=error)
        remark = bounded(f"{type(error).__name__}: {error}", MOST_REMARK)
        return Reply(code=ResponseCode.SYSTEM_ERROR, remark=remark)


def _fault_of(call: Call) -> MQError:
    """Take the fault out of a call: its traceback will hold the call, and a cycle needs the garbage collector."""
    fault: MQError = call.fault
    call.fault = None
    return fault


def _collect(answerer: object, table: dict[int, Answer]) -> None:
    declared = request_headers()
    for name in dir(type(answerer)):
        for request in getattr(getattr(type(answerer), name), "answered_requests", ()):
            for code, header in declared.items():
                if header is request or (issubclass(header, request) and code not in table):
                    table[code] = getattr(answerer, name)


def refusal(error: MQError) -> Reply:
    """Return the reply for an error."""
    return Reply(code=int(error.code), remark=bounded(str(error), MOST_REMARK))


class Guard(Protocol):
    """Decides whether calls are permitted. It gets each call with a valid header before it is answered.

    `reads_fields`: whether it needs `Call.fields`, the undecoded fields with undeclared ones. Keeping them costs a
    second decoding of each header. `is_compiled`: whether compiled parts apply the same permissions.
    """

    reads_fields: bool
    is_compiled: bool

    def judge(self, call: Call) -> MQError | None:
        """Return the error to refuse the call with, or None. May raise `NotInMemory`, as methods that answer."""
