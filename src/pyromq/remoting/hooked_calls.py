"""The hooks of one connection: told of its peer's calls and of ours, where somebody wants to know of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from pyromq.errors import MQError
from pyromq.remoting.codes import ONE_WAY
from pyromq.remoting.command import Answered, Call, FilledReply, Response
from pyromq.remoting.header import Filled, Header
from pyromq.remoting.hooks import RemotingHook, RemotingOutcome, RemotingRequest, call_hooks
from pyromq.remoting.signer import ACCESS_KEY

Completed = Callable[[Response | MQError], None]


class WaitingCall(msgspec.Struct, gc=False):
    """A call of ours that waits for its answer until the deadline; monotonic seconds."""

    deadline: float
    answered: Completed
    code: int
    timeout: float


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
