"""Hooks around every remoting call, at the side that asks and at the side that answers.

What a hook raises is logged and changes nothing. Source: RocketMQ 4.9.8, RPCHook.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pyromq.logs import Tracebacks, logger_of
from pyromq.remoting.header import Header

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
