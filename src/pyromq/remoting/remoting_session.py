"""The state of one connection without a socket: frames in, replies and requests out, calls that wait for responses.

The owner of the socket passes received bytes to `receive`, writes the result of `take_output`, and calls `expire`
regularly. Both peers may send requests over one connection; each peer numbers its own requests.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, cast

import msgspec

from pyromq import speedups
from pyromq.clock import Clock
from pyromq.errors import ConnectionLost, DeadlineExceeded, MQError, ProtocolError, Unavailable
from pyromq.logs import logger_of
from pyromq.message import join_address, pack_address
from pyromq.remoting.codes import ONE_WAY
from pyromq.remoting.command import (
    JSON,
    MAX_FRAME_BYTES,
    Call,
    Frame,
    FrameSplitter,
    Reply,
    Response,
    decode_request,
    decode_request_with_fields,
    decode_response,
    encode_request,
    own_bytes,
    write_reply,
)
from pyromq.remoting.connection_limits import Budget, Writer
from pyromq.remoting.dispatch import Completed, Dispatching, Later, Peer
from pyromq.remoting.header import Filled, Header
from pyromq.remoting.hooks import HookedCalls, RemotingHook
from pyromq.remoting.signer import Signer, frame_signer

if speedups.is_active:
    from pyromq.speedups.requests import AnswerReader

logger = logger_of(__name__)

SLICE_SECONDS = 0.002  # limit of time for answering one connection's requests in a row: other connections wait as long
OUTPUT_BYTES = 1 << 20  # limit of replies encoded before the next write, for the memory of one burst
PUSHED_BYTES = 1 << 20  # limit of a server's requests that the client has not read; further requests are refused

# Function that completes calls from responses at the beginning of received bytes; returns where other bytes begin.
deliver_answers = AnswerReader(Response, MAX_FRAME_BYTES).deliver if speedups.is_active else None


class WaitingCall(msgspec.Struct, gc=False):
    """A call that waits for its response until `deadline` (monotonic seconds)."""

    deadline: float
    answered: Completed
    code: int
    timeout: float


_NO_CALLS: dict[int, WaitingCall] = {}  # shared by accepted connections until their first call
_NONE: Any = ()  # used instead of an empty list, which would take memory


class RemotingSession:
    """The state of one connection; a `Peer` for the processors of its requests.

    `wake` is called when there is output outside `receive`. `run_soon(function, *arguments)` runs a function on the
    owner's thread, also after the end; other threads call it, so it must not refer to the owner. `writer` reports its
    unsent bytes. `initiator` is true for the side that opened the connection and mostly receives responses. `hooks` are
    called for requests of both peers; `signer` signs the requests of this side. The connections of a server share a
    `budget`. With a budget, requests not answered within a slice, or while the peer does not read, are pending until
    `answer_pending`.
    """

    # A server may have tens of thousands: slots save memory, and lists exist only with an entry.
    # fmt: off
    __slots__ = (
        "_budget", "_clock", "_decode", "_deliver", "_dispatcher", "_error", "_failure", "_frames", "_hooks",
        "_max_in_flight", "_output", "_output_bytes", "_pending_replies", "_pushed_bytes", "_run_soon",
        "_serialization", "_signer", "_waiting", "_wake", "_writer", "address", "closed", "has_pending", "in_flight",
        "is_output_full", "last_heard", "on_close", "opaque", "packed_address", "pending_reply_bytes",
        "pending_request_bytes", "splitter",
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
        writer: Writer | None = None,
        initiator: bool = False,
        serialization: int = JSON,
        hooks: Sequence[RemotingHook] = (),
        signer: Signer | None = None,
        budget: Budget | None = None,
    ) -> None:
        host, port = address[:2]
        self.address = join_address(host, port)
        self.packed_address = pack_address(host, port)
        self.closed = False
        self._failure: ConnectionLost | None = None  # error of calls on the closed connection; None: a general error
        self.last_heard = clock.monotonic()
        self.on_close: tuple[Callable[[Peer], None], ...] = ()
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
            self._max_in_flight = sys.maxsize
        else:
            self.splitter = FrameSplitter(header_bytes=budget.limits.header_bytes, admit=self._admit)
            self._max_in_flight = budget.in_flight.share_of(self)
        self._output: list[bytes | memoryview] = []
        self._output_bytes = 0  # bytes of the replies in `_output`
        self._waiting: dict[int, WaitingCall] = {} if initiator else _NO_CALLS
        self._writer = writer
        self._pushed_bytes = 0  # bytes of requests that the peer has not read
        self.opaque = 0  # number of the latest request sent
        self.in_flight = 0  # requests of the peer whose replies are futures
        # Pending work: replies are written before requests are answered. See `net.connection.BackPressure`.
        self.has_pending = False  # whether one of these lists has an entry
        self._frames: deque[Frame] = _NONE
        self._pending_replies: list[tuple[Call, Reply]] = _NONE  # replies of completed futures, not encoded yet
        self.pending_request_bytes = 0  # at least the bytes of the requests in `_frames`
        self.pending_reply_bytes = 0  # bytes of pending replies, without memory views of files
        self.is_output_full = False  # set by the owner: encode no replies, the peer does not read
        self._error: ProtocolError | None = None  # raised after everything before the invalid bytes is answered

    def receive(self, data: bytes, *, at_once: bool = True) -> None:
        """Process received bytes: answer the peer's requests in order, and complete calls.

        Unless `at_once`, requests become pending, because other connections are scheduled first. Raises `ProtocolError`
        for bytes that are no frames; the connection must be closed then.
        """
        self.last_heard = self._clock.monotonic()
        splitter = self.splitter
        if self._deliver is not None and not splitter.incomplete_bytes:
            position = self._deliver(data, self._waiting, self._complete)
            if position == len(data):
                return
            data = data[position:]
        received_before = splitter.incomplete_bytes
        try:
            frames = splitter.split(data)
        except ProtocolError as error:
            if not self.has_pending:
                raise
            self._error, frames = error, []
        if frames:
            self._frames = self._frames or deque()
            self._frames += frames
            self.pending_request_bytes += received_before + len(data)
        elif not splitter.broken:
            return
        if at_once:
            self.answer_pending(self.last_heard + SLICE_SECONDS)
        else:
            self.has_pending = True

    def answer_pending(self, until: float) -> None:
        """Answer pending requests until the monotonic time `until` (seconds), or until the output is full.

        Raises `ProtocolError` when invalid bytes come next.
        """
        has_budget = self._budget is not None
        while self._frames or self._pending_replies:
            if has_budget and (self.is_output_full or self._output_bytes > OUTPUT_BYTES):
                break
            if self._pending_replies:
                self._write_pending_reply()
            else:
                self._take(*self._frames.popleft())
            if has_budget and self._clock.monotonic() >= until:
                break
        self.has_pending = bool(self._frames or self._pending_replies)
        if not self._frames:
            self._frames = _NONE
            self.pending_request_bytes = 0
            if self._error is not None:
                try:
                    raise self._error
                finally:  # the error's traceback holds calls, which hold this session, unseen by the garbage collector
                    self._error = None
            if self.splitter.broken:
                self.splitter.split(b"")

    def _take(self, serialization: int, header: bytes, body: bytes) -> None:
        """Answer a request or complete a call. After an invalid header nothing more is taken."""
        try:
            command = self._decode(serialization, header, body)
        except ProtocolError as error:
            self._error, self._frames = error, _NONE
            return
        if type(command) is Response:
            self._complete(command)
            return
        call = cast(Call, command)
        call.peer = self
        if self._hooks:
            self._hooks.before_answer(call)
        self._answer(call)

    def _answer(self, call: Call) -> None:
        refused = None
        if self.in_flight >= self._max_in_flight and self._budget is not None:
            self._max_in_flight = self._budget.in_flight.share_of(self)
            refused = self._budget.too_many_in_flight(self, self.address)
        self._reply(call, refused or self._dispatcher.dispatch(call))

    def _reply(self, call: Call, reply: Reply | Future[Reply] | Later) -> None:
        if isinstance(reply, Reply):
            if self._hooks:
                self._hooks.after_answer(call, reply)
            if not call.flag & ONE_WAY:
                self._output_bytes += write_reply(reply, call, self._output)
            return
        self._count_in_flight(1)
        completed = partial(self._reply_completed, call)
        if isinstance(reply, Future):  # the future may complete in any thread
            reply.add_done_callback(partial(self._run_soon, completed))
        else:
            reply.add_done_callback(completed)

    def take_output(self) -> list[bytes | memoryview]:
        """Return the bytes to write, in order, and clear the output."""
        self._output_bytes = 0
        output = self._output[:]
        self._output.clear()  # cleared in place: the compiled outbox refers to this list
        return output

    def call(self, header: Header | Filled, body: bytes = b"", *, timeout: float, answered: Completed) -> None:
        """Send a request; `timeout` is in seconds.

        `answered` is called with the response, `DeadlineExceeded`, `ConnectionLost`, or, at a server whose client does
        not read, `Unavailable`.
        """
        if not self.takes_pushes:
            lost = self._failure or ConnectionLost(f"connection to {self.address} is closed")
            answered(lost if self.closed else Unavailable(f"{self.address} has not read earlier requests"))
            return
        if self._hooks:
            answered = self._hooks.around(header, body, answered)
        opaque = self.opaque = (self.opaque + 1) & 0x7FFFFFFF  # never negative: C++ clients mask the sign
        if self._waiting is _NO_CALLS:
            self._waiting = {}
        self._waiting[opaque] = WaitingCall(self._clock.monotonic() + timeout, answered, header.code, timeout)
        self._request(header, body, opaque=opaque, flag=0)

    def notify(self, header: Header | Filled, body: bytes = b"") -> None:
        """Send a one-way request.

        The request is dropped without an error if the connection is closed or the peer does not read.
        """
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
        self._pushed_bytes += len(frame)
        if len(self._output) == 1:  # with more output, `wake` was called before
            self._wake()

    @property
    def takes_pushes(self) -> bool:
        """Whether requests may be sent to the peer.

        A server sends no request while its client has `PUSHED_BYTES` of requests to read.
        """
        if self._budget is None or self.closed:
            return not self.closed
        if not self._output and self._writer is not None and not self._writer.get_write_buffer_size():
            self._pushed_bytes = 0
        return self._pushed_bytes < PUSHED_BYTES

    def for_fast_path(self) -> tuple[dict[int, Any], list[bytes | memoryview], Callable[[], None], Any] | None:
        """Return calls by opaque, output, `wake` and the signer of frames, for compiled senders.

        Return None for a session with hooks, another kind of signer, or binary headers: compiled senders lack these.
        """
        sign = None if self._signer is None else frame_signer(self._signer)
        if self._hooks or (self._signer is not None and sign is None) or self._serialization != JSON:
            return None
        return self._waiting, self._output, self._wake, sign

    @property
    def unsent_bytes(self) -> int:
        """Number of bytes of replies that the socket has not taken yet; 0 once the connection is closed."""
        if self.closed:
            return 0
        written = self._writer.get_write_buffer_size() if self._writer else 0
        return written + self._output_bytes + self.pending_reply_bytes

    @property
    def waiting(self) -> int:
        """The number of calls that wait for a response."""
        return len(self._waiting)

    def oldest_wait(self, held: Collection[int]) -> float:
        """Return the seconds since the oldest waiting call was sent; calls with a code of `held` do not count."""
        calls = (each for each in self._waiting.values() if each.code not in held)  # in the order of sending
        oldest = next(calls, None)
        return 0.0 if oldest is None else self._clock.monotonic() - (oldest.deadline - oldest.timeout)

    def expire(self) -> None:
        """Fail the calls whose deadline has passed."""
        now = self._clock.monotonic()
        late = [opaque for opaque, waiting in self._waiting.items() if waiting.deadline <= now]
        for opaque in late:
            waiting = self._waiting.pop(opaque)
            text = f"{self.address} did not answer request {waiting.code} within {waiting.timeout:g} s"
            waiting.answered(DeadlineExceeded(text))

    def close(self, reason: str, failure: ConnectionLost | None = None) -> None:
        """Fail all calls and call the listeners of `on_close`. Idempotent.

        Present and later calls fail with `failure`; without `failure`, with an error that gives the reason.
        """
        if self.closed:
            return
        if self._budget is not None:
            self._budget.in_flight.end(self)
        self.closed, self.has_pending = True, False
        self._failure, self._error = failure, None
        self._frames = self._pending_replies = _NONE
        # These attributes refer to the owner, which refers back: removing them frees both without garbage collection.
        self.splitter, self._writer, self._wake = FrameSplitter(), None, _do_nothing
        waiting = list(self._waiting.values())
        self._waiting.clear()
        for call in waiting:
            call.answered(failure or ConnectionLost(f"connection to {self.address} broke: {reason}"))
        for listener in self.on_close:
            listener(self)
        self.on_close = ()

    def _complete(self, response: Response) -> None:
        waiting = self._waiting.pop(response.opaque, None)
        if waiting is None:
            logger.debug("%s answered request %d, which no call waits for", self.address, response.opaque)
        else:
            waiting.answered(response)

    def _reply_completed(self, call: Call, future: Future[Reply] | Later) -> None:
        self._count_in_flight(-1)
        if future.cancelled():
            return
        dispatcher, error = self._dispatcher, future.exception()
        reply: Reply
        if error is None:
            reply = future.result()
        elif isinstance(error, MQError):
            reply = dispatcher.refused(error, call)
        else:
            reply = dispatcher.failure(error, call)
        if self._hooks:
            self._hooks.after_answer(call, reply)
        if self.closed or call.flag & ONE_WAY:
            return
        is_full = self.is_output_full or self._output_bytes > OUTPUT_BYTES
        if self._budget is not None and (is_full or self._pending_replies):
            self._pending_replies = self._pending_replies or []
            self._pending_replies.append((call, reply))
            self.pending_reply_bytes += own_bytes(reply)
            self.has_pending = True
        else:
            self._output_bytes += write_reply(reply, call, self._output)
        self._wake()

    def _write_pending_reply(self) -> None:
        call, reply = self._pending_replies.pop(0)
        self.pending_reply_bytes -= own_bytes(reply)
        self._output_bytes += write_reply(reply, call, self._output)

    def _count_in_flight(self, change: int) -> None:
        self.in_flight += change
        if self._budget is not None and not self.closed:
            self._budget.in_flight.hold(self, self.in_flight)
            self._max_in_flight = self._budget.in_flight.share_of(self)

    def _admit(self, serialization: int, header: bytes, size: int) -> bool:
        """Return whether a large frame is taken. A refused request gets a reply.

        Raises `ProtocolError` for an invalid header.
        """
        command = self._decode(serialization, header, b"")
        # Responses are always taken, since this side requested them.
        if self._budget is None or not isinstance(command, Call):
            return True
        refused = self._budget.too_large(command.code, size, self.address)
        if refused is not None:
            self._reply(command, refused)
        return refused is None


def _do_nothing(*_: object) -> None:
    pass
