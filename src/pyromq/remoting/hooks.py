"""Hooks that are called around every remoting request, at the sending and at the answering side.

Exceptions of hooks are logged and change nothing. Source: RocketMQ 4.9.8, RPCHook.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pyromq.errors import MQError
from pyromq.logs import Tracebacks, logger_of
from pyromq.remoting.codes import ONE_WAY
from pyromq.remoting.command import Call, Reply, Response
from pyromq.remoting.dispatch import Completed
from pyromq.remoting.header import Filled, Header
from pyromq.remoting.signer import ACCESS_KEY

logger = logger_of(__name__)
_tracebacks = Tracebacks()


@dataclass(frozen=True, slots=True)
class RemotingRequest:
    """A request that is about to be sent, or has been received (`incoming`), for hooks.

    `address` is the address of the peer, `host:port`. `header` is None if the received fields fit no known request.
    `state` is free for hooks: `before_request` may store values for `after_response`. `account` is the account that the
    request names, at servers with permissions; only the outcome shows whether the signature was valid.
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
    """The code and text of a response, for hooks.

    Without a response `code` is None and `remark` gives the reason.
    """

    code: int | None
    remark: str | None


class RemotingHook(Protocol):
    """A hook, called for every request of a connection. Hooks run on the event loop, which a slow hook blocks.

    A one-way request has no response: `after_response` is not called at the side that sent the request.
    """

    def before_request(self, request: RemotingRequest) -> None:
        """Called before a request is sent; at the answering side before permissions are checked."""

    def after_response(self, request: RemotingRequest, outcome: RemotingOutcome) -> None:
        """Called after the response or failure of a request; at the answering side before the response is sent."""


def call_hooks(calls: Sequence[Callable[..., object]], *arguments: object) -> None:
    """Call each of these functions; exceptions are logged."""
    for call in calls:
        try:
            call(*arguments)
        except Exception as error:
            name, (counted, traceback) = getattr(call, "__qualname__", call), _tracebacks.count(error)
            logger.exception("hook %s failed; its caller continues%s", name, counted, exc_info=traceback)


class HookedCalls:
    """Calls the hooks around the requests of one connection."""

    def __init__(self, address: str, hooks: Sequence[RemotingHook]) -> None:
        self._address = address
        self._before = [hook.before_request for hook in hooks]
        self._after = [hook.after_response for hook in hooks]

    def before_answer(self, call: Call) -> None:
        """Call the hooks for a received request."""
        one_way = bool(call.flag & ONE_WAY)
        account = call.fields and call.fields.get(ACCESS_KEY)
        call.hooked = RemotingRequest(
            self._address, call.code, call.header, call.body, one_way, True, {}, str(account) if account else None
        )
        call_hooks(self._before, call.hooked)

    def after_answer(self, call: Call, reply: Reply) -> None:
        """Call the hooks for a reply to the peer."""
        call_hooks(self._after, call.hooked, RemotingOutcome(int(reply.code), reply.remark))

    def before_request(self, header: Header | Filled, body: bytes, *, one_way: bool) -> RemotingRequest:
        """Call the hooks for a request to the peer."""
        plain = header.header if isinstance(header, Filled) else header
        request = RemotingRequest(self._address, int(header.code), plain, body, one_way, False, {})
        call_hooks(self._before, request)
        return request

    def around(self, header: Header | Filled, body: bytes, answered: Completed) -> Completed:
        """Call the hooks for a request.

        Return a function that calls the hooks for the response, and after them `answered`.
        """
        request = self.before_request(header, body, one_way=False)

        def complete(result: Response | MQError) -> None:
            if isinstance(result, MQError):
                outcome = RemotingOutcome(None, str(result))
            else:
                outcome = RemotingOutcome(result.code, result.remark)
            call_hooks(self._after, request, outcome)
            answered(result)

        return complete
