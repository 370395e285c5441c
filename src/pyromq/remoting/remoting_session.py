"""One connection's state, without a socket: frames in, answers and requests out, calls waiting for their answers.

Whoever owns the socket feeds `receive`, writes what `take_output` gives, and calls `expire` now and then. Both peers
may ask over one connection; each numbers its own requests.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, cast

from pyromq import speedups
from pyromq.clock import Clock
from pyromq.errors import ConnectionLost, DeadlineExceeded, MQError, ProtocolError, Unavailable
from pyromq.logs import logger_of
from pyromq.message import pack_address
from pyromq.remoting.budget import Budget, Writer
from pyromq.remoting.codes import ONE_WAY
from pyromq.remoting.command import (
    Answered,
    Call,
    Response,
    decode_request,
    decode_request_with_fields,
    decode_response,
    encode_request,
    own_bytes,
    write_reply,
)
from pyromq.remoting.dispatch import ASK_AGAIN, Dispatching
from pyromq.remoting.frame import JSON, MAX_FRAME_BYTES, Frame, FrameSplitter, run_length
from pyromq.remoting.header import Filled, Header
from pyromq.remoting.hooked_calls import Completed, HookedCalls, WaitingCall
from pyromq.remoting.hooks import RemotingHook
from pyromq.remoting.later import Later
from pyromq.remoting.signer import Signer, frame_signer

if speedups.is_active:
    from pyromq.speedups.requests import AnswerReader

logger = logger_of(__name__)

SLICE_SECONDS = 0.002  # of answering one connection's requests before others have their turn
WRITTEN_BYTES = 1 << 20  # of answers that are made before they are written
PUSHED_BYTES = 1 << 20  # of requests of ours to a client that has not taken those before
RUN_CALLS = 64  # requests that are read before the first of them is answered

# Completes the calls whose answers received bytes begin with, if brokers wrote them, and says where the rest begins.
deliver_answers = AnswerReader(Response, MAX_FRAME_BYTES).deliver if speedups.is_active else None


_NOTHING_ASKED: dict[int, WaitingCall] = {}  # over connections that were accepted, so far
_NONE: Any = ()  # a list from the first entry on


class RemotingSession:
    """The state of one connection.

    `wake` is called when there is output that no `receive` is about to deliver; `run_soon(function, *arguments)` runs
    a function on the owner's thread, for answers that other threads complete, after the end too: it holds no owner.
    `initiator`: it is this side that opened the connection, and mostly receives answers. `hooks` see every call, ours
    and the peer's; `signer` signs ours. `budget` is that of the server's connections; without one the peer is trusted:
    nothing is `behind` then; else what is not answered in a slice, or while the peer reads little, is until `go_on`.
    """

    # There may be tens of thousands: no dict of so many names, and no list before something is in it.
    # fmt: off
    __slots__ = (
        "_budget", "_calls", "_clock", "_decode", "_deliver", "_dispatcher", "_error", "_failure", "_finished",
        "_frames", "_hooks", "_made", "_most_in_flight", "_output", "_pushed", "_run_soon", "_serialization",
        "_signer", "_waiting", "_wake", "address", "behind_bytes", "closed", "finished_bytes", "is_behind", "is_unread",
        "last_heard", "on_close", "opaque", "packed_address", "parked", "splitter", "writer",
    )
    # fmt: on

    def __init__(
        self,
        dispatcher: Dispatching,
        clock: Clock,
        *,
        address: tuple[str, int],
        wake: Callable[[], None],
        run_soon: Callable[..., Any],
        initiator: bool = False,
        serialization: int = JSON,
        hooks: Sequence[RemotingHook] = (),
        signer: Signer | None = None,
        budget: Budget | None = None,
    ) -> None:
        host, port = address[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.packed_address = pack_address(host, port)
        self.closed = False
        self._failure: ConnectionLost | None = None  # what calls on a closed connection fail with, if not the usual
        self.last_heard = clock.monotonic()
        self.on_close: tuple[Callable[[RemotingSession], None], ...] = ()
        self._dispatcher, self._clock = dispatcher, clock
        self._wake, self._run_soon = wake, run_soon
        self._decode = decode_response if initiator else decode_request
        if dispatcher.keeps_fields:
            self._decode = decode_request_with_fields
        self._deliver = deliver_answers if self._decode is decode_response else None
        self._serialization = serialization
        self._hooks = HookedCalls(self.address, hooks) if hooks else None
        self._signer = signer
        self._budget = budget
        if budget is None:
            self.splitter = FrameSplitter()
            self._most_in_flight = sys.maxsize
        else:
            self.splitter = FrameSplitter(header_bytes=budget.limits.header_bytes, admit=self._admit)
            self._most_in_flight = budget.most_in_flight()
        self._output: list[bytes | memoryview] = []
        self._made = 0  # bytes of answers in it
        self._waiting: dict[int, WaitingCall] = {} if initiator else _NOTHING_ASKED
        self._pushed = self.opaque = self.parked = 0  # bytes of requests not taken; the number of our latest one
        self.writer: Writer | None = None  # whose unwritten bytes count as unread
        self.is_behind = False  # whether any of the next three holds something
        self._frames: list[Frame] = _NONE
        self._calls: list[Call] = _NONE
        self._finished: list[tuple[Call, Answered]] = _NONE
        self.is_unread = False  # set by the owner: no more answers for the time being
        self.behind_bytes = 0  # at most, of frames and calls
        self.finished_bytes = 0  # of answers' own bodies; those that are views of files are not ours
        self._error: ProtocolError | None = None  # what ends the connection once all before it is answered

    def receive(self, data: bytes, *, is_next: bool = True) -> None:
        """Take bytes of the peer, answer its requests in order, complete our calls; others are first if not `is_next`.

        Raises `ProtocolError` when the bytes are no frames: the connection must be closed.
        """
        self.last_heard = self._clock.monotonic()
        splitter = self.splitter
        if self._deliver is not None and not splitter.unfinished:
            position = self._deliver(data, self._waiting, self._complete)
            if position == len(data):
                return
            data = data[position:]
        had = splitter.unfinished
        try:
            frames = splitter.split(data)
        except ProtocolError as error:
            if not self.is_behind:
                raise
            self._error, frames = error, []
        if frames:
            self._frames = [*self._frames, *frames] if self._frames else frames
            self.behind_bytes += had + len(data)
        elif not splitter.broken:
            return
        if is_next:
            self.go_on(self.last_heard + SLICE_SECONDS)
        else:
            self.is_behind = True

    def go_on(self, until: float) -> None:
        """Answer what is behind, until then (monotonic seconds), or until as much is answered as is written at once.

        Raises `ProtocolError` where bytes that are no frames come next.
        """
        has_budget = self._budget is not None
        while self._frames or self._calls or self._finished:
            if has_budget and (self.is_unread or self._made > WRITTEN_BYTES):
                break
            if self._finished:
                self._write_finished()
            elif not self._calls:
                self._decode_some()
                if len(calls := self._calls) > 1:
                    self._answer_run(calls)
            else:
                self._answer(self._calls.pop(0))
            if has_budget and self._clock.monotonic() >= until:
                break
        self.is_behind = bool(self._calls or self._frames or self._finished)
        if not (self._calls or self._frames):
            self.behind_bytes = 0
            if self._error is not None:
                try:
                    raise self._error
                finally:  # kept, it would keep us for good: its traceback has calls, which no collector sees
                    self._error = None
            if self.splitter.broken:
                self.splitter.split(b"")

    def _decode_some(self) -> None:
        """Make calls of the next frames, and complete ours; an error waits until what came before is answered."""
        decode = self._decode
        calls: list[Call] = []
        frames, self._frames = self._frames, _NONE
        if (count := run_length(frames, RUN_CALLS)) < len(frames):
            frames, self._frames = frames[:count], frames[count:]
        try:
            for serialization, header, body in frames:
                command = decode(serialization, header, body)
                if type(command) is Response:
                    self._complete(command)
                else:
                    call = cast(Call, command)
                    call.peer = self
                    calls.append(call)
        except ProtocolError as error:
            self._error = error
            self._frames = _NONE
        self._calls = calls
        if self._hooks:
            self._hooks.before_answers(calls)

    def _answer_run(self, calls: list[Call]) -> None:
        """Answer all calls at once, where they are a run."""
        if self.parked + len(calls) > self._most_in_flight or (replies := self._dispatcher.dispatch_run(calls)) is None:
            return
        self._calls = _NONE
        for call, reply in zip(calls, replies, strict=True):
            self._reply(call, reply)

    def _answer(self, call: Call) -> None:
        refused = None
        if self.parked >= self._most_in_flight and self._budget is not None:
            self._most_in_flight = self._budget.most_in_flight()
            refused = self._budget.too_many_in_flight(self.parked, self.address)
        self._reply(call, refused or self._dispatcher.dispatch(call))

    def _reply(self, call: Call, reply: Answered | Future[Answered] | Later) -> None:
        if type(reply) is Later:
            self._count_parked(1)
            reply.add_done_callback(partial(self._unpark, call))
            return
        if type(reply) is Future:
            self._count_parked(1)
            reply.add_done_callback(partial(self._run_soon, self._unpark, call))
            return
        if self._hooks:
            self._hooks.after_answer(call, cast(Answered, reply))
        if not call.flag & ONE_WAY:
            self._made += write_reply(cast(Answered, reply), call, self._output)

    def take_output(self) -> list[bytes | memoryview]:
        """Return and forget the bytes to write, in order."""
        self._made = 0
        output = self._output[:]
        self._output.clear()  # the list itself stays: `receive` holds it
        return output

    def call(self, header: Header | Filled, body: bytes = b"", *, timeout: float, answered: Completed) -> None:
        """Ask the peer; `answered` gets its response, or `DeadlineExceeded`, `ConnectionLost`, or `Unavailable` where a
        server's client does not read. Seconds."""
        if not self.takes_pushes:
            lost = self._failure or ConnectionLost(f"connection to {self.address} is closed")
            answered(lost if self.closed else Unavailable(f"{self.address} does not read what it was sent before"))
            return
        if self._hooks:
            answered = self._hooks.around(header, body, answered)
        opaque = self.opaque = (self.opaque + 1) & 0x7FFFFFFF  # never negative: C++ masks the sign away
        if self._waiting is _NOTHING_ASKED:
            self._waiting = {}
        self._waiting[opaque] = WaitingCall(self._clock.monotonic() + timeout, answered, header.code, timeout)
        self._request(header, body, opaque=opaque, flag=0)

    def notify(self, header: Header | Filled, body: bytes = b"") -> None:
        """Send a one-way request. Lost without a word when the connection is closed, or the peer does not read."""
        if not self.takes_pushes:
            return
        if self._hooks:
            self._hooks.before_request(header, body, one_way=True)
        self.opaque = (self.opaque + 1) & 0x7FFFFFFF
        self._request(header, body, opaque=self.opaque, flag=ONE_WAY)

    def _request(self, header: Header | Filled, body: bytes, *, opaque: int, flag: int) -> None:
        frame = encode_request(
            header, body, opaque=opaque, flag=flag, serialization=self._serialization, signer=self._signer
        )
        self._output.append(frame)
        self._pushed += len(frame)
        if len(self._output) == 1:  # else it is known that there is output
            self._wake()

    @property
    def takes_pushes(self) -> bool:
        """Whether more may be sent unasked: a server's client gets no more while a mebibyte of that is unread."""
        if self._budget is None or self.closed:
            return not self.closed
        if not self._output and self.writer is not None and not self.writer.get_write_buffer_size():
            self._pushed = 0
        return self._pushed < PUSHED_BYTES

    def for_express(self) -> tuple[dict[int, Any], list[bytes | memoryview], Callable[[], None], Any] | None:
        """Return the calls by opaque, the output, what tells that there is some, and what signs frames, or None.

        None where a call takes more than its frame: hooks, a signer of another kind, another serialization.
        """
        sign = frame_signer(self._signer)
        if self._hooks or (self._signer is not None and sign is None) or self._serialization != JSON:
            return None
        return self._waiting, self._output, self._wake, sign

    @property
    def unread(self) -> int:
        """Bytes of answers that the peer has not taken yet."""
        return (self.writer.get_write_buffer_size() if self.writer else 0) + self._made + self.finished_bytes

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
        if self._budget is not None:
            self._budget.in_flight -= self.parked
        self.closed, self.is_behind = True, False
        self._failure, self._error = failure, None
        self._frames = self._calls = self._finished = _NONE
        # What refers to the owner, and back to us: without it both are gone as soon as nobody knows them.
        self.splitter, self.writer, self._wake = FrameSplitter(), None, _nobody
        waiting = list(self._waiting.values())
        self._waiting.clear()
        for call in waiting:
            call.answered(failure or ConnectionLost(f"connection to {self.address} broke: {reason}"))
        for tell in self.on_close:
            tell(self)
        self.on_close = ()

    def _complete(self, response: Response) -> None:
        waiting = self._waiting.pop(response.opaque, None)
        if waiting is None:
            logger.debug("%s answered request %d, which nobody waits for", self.address, response.opaque)
        else:
            waiting.answered(response)

    def _unpark(self, call: Call, future: Future[Answered] | Later) -> None:
        self._count_parked(-1)
        if future.cancelled():
            return
        dispatcher, error = self._dispatcher, future.exception()
        reply: Answered | Future[Answered] | Later
        if error is not None:
            reply = dispatcher.refused(error, call) if isinstance(error, MQError) else dispatcher.failure(error, call)
        elif (reply := future.result()) is ASK_AGAIN:
            if self._budget is not None and self._budget.is_over:
                return
            reply = dispatcher.dispatch(call)
            if isinstance(reply, Future | Later):
                self._reply(call, reply)
                return
        if self._hooks:
            self._hooks.after_answer(call, reply)
        if self.closed or call.flag & ONE_WAY:
            return
        if self._budget is not None and (self._finished or self.is_unread or self._made > WRITTEN_BYTES):
            self._finished = self._finished or []
            self._finished.append((call, reply))
            self.finished_bytes += own_bytes(reply)
            self.is_behind = True
        else:
            self._made += write_reply(reply, call, self._output)
        self._wake()

    def _write_finished(self) -> None:
        call, reply = self._finished.pop(0)
        self.finished_bytes -= own_bytes(reply)
        self._made += write_reply(reply, call, self._output)

    def _count_parked(self, change: int) -> None:
        self.parked += change
        if self._budget is not None and not self.closed:
            self._budget.in_flight += change
            self._most_in_flight = self._budget.most_in_flight()

    def _admit(self, serialization: int, header: bytes, size: int) -> bool:
        """Return whether a large frame is taken; who sent another is told. Raises `ProtocolError` for no header."""
        command = self._decode(serialization, header, b"")
        if self._budget is None or not isinstance(command, Call):  # an answer: we have asked for it
            return True
        refused = self._budget.too_large(command.code, size, self.address)
        if refused is not None:
            self._reply(command, refused)
        return refused is None


def _nobody(*_: object) -> None:
    pass
