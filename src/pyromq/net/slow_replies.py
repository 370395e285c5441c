"""Computes replies that take longer than a slice: coroutines that run in slices between other requests.

`pyromq.slow_work` has the functions that such coroutines await.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from inspect import CORO_CREATED, getcoroutinestate
from typing import Any, NamedTuple

import msgspec

from pyromq.clock import Clock
from pyromq.errors import BrokerError, MQError
from pyromq.net.tasks import Alarm, soon_in_this_loop
from pyromq.remoting.bodies import body_pieces
from pyromq.remoting.command import MAX_FRAME_BYTES, Call, Reply
from pyromq.remoting.dispatch import Later, Outcome, SlowReply
from pyromq.remoting.remoting_session import RemotingSession
from pyromq.slow_work import PagesToLoad, yield_slice

SLICE_SECONDS = 0.001  # limit of work between two turns of the event loop: other requests wait as long
CHUNK_PIECES = 1_000  # number of pieces of a body that are joined in one step
MAX_BYTES = MAX_FRAME_BYTES - (64 << 10)  # limit of a body, which leaves room for the header
MAX_UNSENT_BYTES = 4 << 20  # limit of a connection's unsent bytes, above which its next slow reply is not begun
UNSENT_SECONDS = 0.01  # time between checks whether the peer of a waiting connection has read


class _Started(NamedTuple):
    work: SlowReply
    peer: RemotingSession
    answered: Future[Reply]


def _without_pages(pages: PagesToLoad) -> Future[None]:
    raise AssertionError("this server reads no pages")


class SlowReplies:
    """The slow replies of one server. `alarm` calls `step` when a reply must be computed further.

    Connections take turns. A connection with many unsent bytes waits, so each connection holds the memory of about one
    reply. `load` loads pages in a thread.
    """

    def __init__(self, clock: Clock, load: Callable[[PagesToLoad], Future[None]] = _without_pages) -> None:
        self.alarm = Alarm(clock)
        self._load = load
        self._clock = clock
        # Unfinished replies by connection, in order of the turns.
        self._started: dict[RemotingSession, deque[_Started]] = {}
        self._spent = 0.0  # seconds on replies finished by `submit` since the last step

    def __len__(self) -> int:
        """Return the number of unfinished replies."""
        return sum(map(len, self._started.values()))

    def submit(self, work: SlowReply, call: Call) -> Outcome:
        """Return the reply if one slice of computing suffices, otherwise a future for the reply.

        Errors are raised, or set on the future. While other replies are unfinished, the new reply waits for its turn,
        so that only a few replies are in progress at a time.
        """
        awaited: Future[Any] | None = None
        if not self._started and self._spent < SLICE_SECONDS:
            try:
                awaited = self._advance(work)
            except StopIteration as done:
                outcome: Outcome = done.value
                return outcome
        started = _Started(work, call.peer, Future())
        self._suspend(started, awaited)
        return started.answered

    def step(self) -> float | None:
        """Compute one reply for one slice.

        Return the seconds until the next step; None if there is nothing to compute.
        """
        self._spent = 0.0
        started = self._next()
        if started is not None:
            try:
                awaited = self._advance(started.work)
            except StopIteration as done:
                _complete(started.answered, done.value)
            except MQError as error:
                started.answered.set_exception(error.with_traceback(None))  # the traceback's frames hold the reply
            except Exception as error:  # noqa: BLE001  the waiting session logs it
                started.answered.set_exception(error)
            else:
                self._suspend(started, awaited, first=True)
        if not self._started:
            return None
        return 0 if started is not None else UNSENT_SECONDS

    def close(self) -> None:
        """Close the coroutines of unfinished replies, without replies: the connections are closed."""
        for waiting in self._started.values():
            for started in waiting:
                started.work.close()
        self._started.clear()

    def _next(self) -> _Started | None:
        """Remove and return a reply of the next connection whose unsent bytes are within the limit.

        A reply that is begun does not wait for its peer: other replies may wait for its turn. Return None if no
        connection has a reply to compute now.
        """
        for peer in list(self._started):
            waiting = self._started.pop(peer)
            if peer.unsent_bytes > MAX_UNSENT_BYTES and getcoroutinestate(waiting[0].work) == CORO_CREATED:
                self._started[peer] = waiting
                continue
            started = waiting.popleft()
            if waiting:
                self._started[peer] = waiting  # this connection is now the last one
            return started
        return None

    def _advance(self, work: SlowReply) -> Future[Any] | None:
        """Run the coroutine for a slice; return a future that the coroutine waits for, else None.

        Raises `StopIteration` with the reply at the end.
        """
        begin = self._clock.monotonic()
        end = begin + SLICE_SECONDS
        try:
            while True:
                awaited = work.send(None)
                if awaited is not None:
                    future = self._load(awaited) if isinstance(awaited, list) else awaited
                    if not future.done():
                        return future
                if self._clock.monotonic() >= end:
                    return None
        finally:
            self._spent += self._clock.monotonic() - begin

    def _suspend(self, started: _Started, awaited: Future[Any] | None, *, first: bool = False) -> None:
        if awaited is None:
            self._resume(started, first=first)
        else:
            run_soon = soon_in_this_loop()
            awaited.add_done_callback(lambda _: run_soon(partial(self._resume, started)))

    def _resume(self, started: _Started, *, first: bool = True) -> None:
        waiting = self._started.setdefault(started.peer, deque())
        waiting.appendleft(started) if first else waiting.append(started)
        self.alarm.schedule_within(0)


def _complete(answered: Future[Reply], outcome: Outcome) -> None:
    if isinstance(outcome, Future | Later):
        outcome.add_done_callback(partial(_copy, answered))
    else:
        answered.set_result(outcome)


def _copy(answered: Future[Reply], outcome: Future[Reply] | Later) -> None:
    error = outcome.exception()
    answered.set_result(outcome.result()) if error is None else answered.set_exception(error)


async def in_pieces(body: msgspec.Struct) -> Reply:
    """Return the reply with this body, which is encoded in pieces, so that other requests are answered meanwhile."""
    chunks: list[bytes] = []
    pieces: list[str] = []
    for piece in body_pieces(body):
        pieces.append(piece)
        if len(pieces) == CHUNK_PIECES:
            chunks.append("".join(pieces).encode())
            pieces.clear()
        await yield_slice()
    chunks.append("".join(pieces).encode())
    if (size := sum(map(len, chunks))) > MAX_BYTES:
        raise BrokerError(f"the response has {size} bytes; clients read at most {MAX_FRAME_BYTES}: request less")
    return Reply(body=b"".join(chunks))
