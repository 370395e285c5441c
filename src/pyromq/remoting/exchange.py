"""One connection's state, without a socket: frames in, answers and requests out, calls waiting for their answers.

Whoever owns the socket feeds `receive`, writes what `take_output` gives, and calls `expire` now and then. Both peers
may ask over one connection; each numbers its own requests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, cast

import msgspec

from pyromq.clock import Clock
from pyromq.errors import ConnectionLost, DeadlineExceeded, MQError
from pyromq.message import pack_address
from pyromq.remoting.codes import ONE_WAY
from pyromq.remoting.command import (
    Answered,
    Call,
    FilledReply,
    Response,
    decode_request,
    decode_request_with_fields,
    decode_response,
    encode_request,
    write_reply,
)
from pyromq.remoting.dispatch import Dispatcher, failure, refusal
from pyromq.remoting.frame import JSON, FrameSplitter
from pyromq.remoting.header import Filled, Header
from pyromq.remoting.hooks import RemotingHook, RemotingOutcome, RemotingRequest, call_hooks
from pyromq.remoting.signer import Signer

logger = logging.getLogger(__name__)

Completed = Callable[[Response | MQError], None]


class _Waiting(msgspec.Struct, gc=False):
    """A call of ours that waits for its answer."""

    deadline: float
    answered: Completed
    code: int
    timeout: float


class Exchange:
    """The state of one connection.

    `wake` is called when there is output that no `receive` is about to deliver; `run_soon(function, *arguments)` runs
    a function on the owner's thread, for answers that other threads complete. `initiator` is true at the side that
    opened the connection, which mostly receives answers. `hooks` see every call, ours and
    the peer's; `signer` signs ours.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        clock: Clock,
        *,
        address: tuple[str, int],
        wake: Callable[[], None],
        run_soon: Callable[..., Any],
        initiator: bool = False,
        serialization: int = JSON,
        hooks: Sequence[RemotingHook] = (),
        signer: Signer | None = None,
    ) -> None:
        host, port = address[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.packed_address = pack_address(host, port)
        self.closed = False
        self._failure: ConnectionLost | None = None  # what calls on a closed connection fail with, if not the usual
        self.last_heard = clock.monotonic()
        self.on_close: list[Callable[[Exchange], None]] = []
        self._dispatch = dispatcher.dispatch
        self._dispatch_burst = dispatcher.dispatch_burst
        self._clock = clock
        self._wake = wake
        self._run_soon = run_soon
        self._decode = decode_response if initiator else decode_request
        if dispatcher.keeps_fields:
            self._decode = decode_request_with_fields
        self._serialization = serialization
        self._hooks = hooks
        self._signer = signer
        self._splitter = FrameSplitter()
        self._output: list[bytes | memoryview] = []
        self._waiting: dict[int, _Waiting] = {}
        self._opaque = 0
        self.parked = 0

    def receive(self, data: bytes) -> None:
        """Take bytes of the peer, answer its requests in order, complete our calls.

        Raises `ProtocolError` when the bytes are no frames: the connection must be closed.
        """
        self.last_heard = self._clock.monotonic()
        decode = self._decode
        calls: list[Call] = []
        splitter = self._splitter
        try:
            for serialization, header, body in splitter.split(data):
                command = decode(serialization, header, body)
                if type(command) is Response:
                    self._complete(command)
                else:
                    call = cast(Call, command)
                    call.peer = self
                    calls.append(call)
            if splitter.broken:
                splitter.split(b"")
        finally:  # what came before bytes that are no frame counts
            if self._hooks:
                self._before_answers(calls)
            if len(calls) == 1:
                self._reply(calls[0], self._dispatch(calls[0]))
            elif calls:
                for call, reply in zip(calls, self._dispatch_burst(calls), strict=True):
                    self._reply(call, reply)

    def _reply(self, call: Call, reply: Answered | Future[Answered]) -> None:
        if type(reply) is Future:
            self._park(call, reply)
            return
        if self._hooks:
            self._after_answer(call, cast(Answered, reply))
        if not call.flag & ONE_WAY:
            write_reply(cast(Answered, reply), call, self._output)

    def take_output(self) -> list[bytes | memoryview]:
        """Return and forget the bytes to write, in order."""
        output = self._output[:]
        self._output.clear()  # the list itself stays: `receive` holds it
        return output

    def call(self, header: Header | Filled, body: bytes = b"", *, timeout: float, answered: Completed) -> None:
        """Ask the peer; `answered` gets its response, or `DeadlineExceeded` or `ConnectionLost`. Seconds."""
        if self.closed:
            answered(self._failure or ConnectionLost(f"connection to {self.address} is closed"))
            return
        if self._hooks:
            answered = self._told(self._before_request(header, body, one_way=False), answered)
        opaque = self._opaque = (self._opaque + 1) & 0x7FFFFFFF  # never negative: C++ masks the sign away
        self._waiting[opaque] = _Waiting(self._clock.monotonic() + timeout, answered, header.code, timeout)
        self._request(header, body, opaque=opaque, flag=0)

    def notify(self, header: Header | Filled, body: bytes = b"") -> None:
        """Send a one-way request. Lost without a word when the connection is closed."""
        if self.closed:
            return
        if self._hooks:
            self._before_request(header, body, one_way=True)
        self._opaque = (self._opaque + 1) & 0x7FFFFFFF
        self._request(header, body, opaque=self._opaque, flag=ONE_WAY)

    def _request(self, header: Header | Filled, body: bytes, *, opaque: int, flag: int) -> None:
        frame = encode_request(
            header, body, opaque=opaque, flag=flag, serialization=self._serialization, signer=self._signer
        )
        self._output.append(frame)
        self._wake()

    @property
    def unfinished(self) -> int:
        """Bytes received of a frame that is not complete."""
        return self._splitter.unfinished

    @property
    def waiting(self) -> int:
        """Calls of ours without an answer yet."""
        return len(self._waiting)

    def expire(self) -> None:
        """Fail the calls whose deadline has passed."""
        now = self._clock.monotonic()
        late = [opaque for opaque, waiting in self._waiting.items() if waiting.deadline <= now]
        for opaque in late:
            waiting = self._waiting.pop(opaque)
            text = f"{self.address} did not answer request {waiting.code} within {waiting.timeout:g} s"
            waiting.answered(DeadlineExceeded(text))

    def close(self, reason: str, failure: ConnectionLost | None = None) -> None:
        """The connection is gone: fail our calls, tell those who asked to know. Idempotent.

        Calls fail with `failure`, also later ones, else with an error that gives the reason.
        """
        if self.closed:
            return
        self.closed = True
        self._failure = failure
        waiting, self._waiting = self._waiting, {}
        for call in waiting.values():
            call.answered(failure or ConnectionLost(f"connection to {self.address} broke: {reason}"))
        for tell in self.on_close:
            tell(self)
        self.on_close.clear()

    def _complete(self, response: Response) -> None:
        waiting = self._waiting.pop(response.opaque, None)
        if waiting is None:
            logger.debug("%s answered request %d, which nobody waits for", self.address, response.opaque)
        else:
            waiting.answered(response)

    def _park(self, call: Call, future: Future[Answered]) -> None:
        self.parked += 1
        future.add_done_callback(partial(self._run_soon, self._unpark, call))

    def _unpark(self, call: Call, future: Future[Answered]) -> None:
        self.parked -= 1
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            reply: Answered = future.result()
        else:
            reply = refusal(error) if isinstance(error, MQError) else failure(error, call)
        if self._hooks:
            self._after_answer(call, reply)
        if not (self.closed or call.flag & ONE_WAY):
            write_reply(reply, call, self._output)
            self._wake()

    # --- hooks

    def _before_answers(self, calls: list[Call]) -> None:
        for call in calls:
            one_way = bool(call.flag & ONE_WAY)
            call.hooked = RemotingRequest(self.address, call.code, call.header, call.body, one_way, True, {})
            call_hooks([hook.before_request for hook in self._hooks], call.hooked)

    def _after_answer(self, call: Call, reply: Answered) -> None:
        answer = reply.template if isinstance(reply, FilledReply) else reply
        outcome = RemotingOutcome(int(answer.code), answer.remark)
        call_hooks([hook.after_response for hook in self._hooks], call.hooked, outcome)

    def _before_request(self, header: Header | Filled, body: bytes, *, one_way: bool) -> RemotingRequest:
        plain = header.header if isinstance(header, Filled) else header
        request = RemotingRequest(self.address, int(header.code), plain, body, one_way, False, {})
        call_hooks([hook.before_request for hook in self._hooks], request)
        return request

    def _told(self, request: RemotingRequest, answered: Completed) -> Completed:
        """Return what completes a call and tells the hooks before."""

        def complete(result: Response | MQError) -> None:
            if isinstance(result, MQError):
                outcome = RemotingOutcome(None, str(result))
            else:
                outcome = RemotingOutcome(result.code, result.remark)
            call_hooks([hook.after_response for hook in self._hooks], request, outcome)
            answered(result)

        return complete
