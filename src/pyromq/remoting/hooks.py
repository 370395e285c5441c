"""Hooks around every remoting call, at the side that asks and at the side that answers.

What a hook raises is logged and changes nothing. Source: RocketMQ 4.9.8, RPCHook.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pyromq.errors import MQError
from pyromq.logs import Tracebacks, logger_of
from pyromq.remoting.codes import ONE_WAY
from pyromq.remoting.command import Answered, Call, FilledReply, Response
from pyromq.remoting.header import Filled, Header
from pyromq.remoting.signer import ACCESS_KEY

Completed = Callable[[Response | MQError], None]

logger = logger_of(__name__)
_tracebacks = Tracebacks()


@dataclass(frozen=True, slots=True)
class RemotingRequest:
    """A request that is about to be sent, or has come.

    `address` is the peer's, `host:port`; `incoming`: it is the peer who asks. `header` is None where what came fits no
    request that is known. `state` is for hooks: what `before_request` puts there, `after_response` finds. `account` is
    the one that the request names, where requests are judged; whether it is that one, the outcome tells.
    """

    address: str
    code: int
    header: Header | None
    body: bytes
    one_way: bool
    incoming: bool
    state: dict[object, Any]
    account: str | None = None


@dataclass(frozen=True, slots=True)
class RemotingOutcome:
    """How a request ended: the response's code and text.

    `code` is None where no response came; `remark` then says why.
    """

    code: int | None
    remark: str | None


class RemotingHook(Protocol):
    """Is told of every request of a connection; called on the event loop, so it must be quick.

    A request that nobody answers, because it is one-way, has no `after_response` at the side that sent it.
    """

    def before_request(self, request: RemotingRequest) -> None:
        """Called before a request is sent; at the other side before it is answered, whoever may refuse it."""

    def after_response(self, request: RemotingRequest, outcome: RemotingOutcome) -> None:
        """Called when the response has come, or will not come; at the other side when it is about to be sent."""


def call_hooks(calls: Sequence[Callable[..., object]], *arguments: object) -> None:
    """Call each, whatever the others raise."""
    for call in calls:
        try:
            call(*arguments)
        except Exception as error:
            name, (counted, traceback) = getattr(call, "__qualname__", call), _tracebacks.count(error)
            logger.exception("hook %s failed; what it was called for goes on%s", name, counted, exc_info=traceback)


class HookedCalls:
    """Calls the hooks around calls with the peer of this address."""

    def __init__(self, address: str, hooks: Sequence[RemotingHook]) -> None:
        self._address = address
        self._before = [hook.before_request for hook in hooks]
        self._after = [hook.after_response for hook in hooks]

    def before_answers(self, calls: Iterable[Call]) -> None:
        """Calls of the peer are about to be answered."""
        for call in calls:
            one_way = bool(call.flag & ONE_WAY)
            account = call.fields and call.fields.get(ACCESS_KEY)
            call.hooked = RemotingRequest(
                self._address, call.code, call.header, call.body, one_way, True, {}, str(account) if account else None
            )
            call_hooks(self._before, call.hooked)

    def after_answer(self, call: Call, reply: Answered) -> None:
        """A call of the peer is answered."""
        answer = reply.template if isinstance(reply, FilledReply) else reply
        call_hooks(self._after, call.hooked, RemotingOutcome(int(answer.code), answer.remark))

    def before_request(self, header: Header | Filled, body: bytes, *, one_way: bool) -> RemotingRequest:
        """We are about to ask."""
        plain = header.header if isinstance(header, Filled) else header
        request = RemotingRequest(self._address, int(header.code), plain, body, one_way, False, {})
        call_hooks(self._before, request)
        return request

    def around(self, header: Header | Filled, body: bytes, answered: Completed) -> Completed:
        """We are about to ask; return what completes the call and tells the hooks before."""
        request = self.before_request(header, body, one_way=False)

        def complete(result: Response | MQError) -> None:
            if isinstance(result, MQError):
                outcome = RemotingOutcome(None, str(result))
            else:
                outcome = RemotingOutcome(result.code, result.remark)
            call_hooks(self._after, request, outcome)
            answered(result)

        return complete
