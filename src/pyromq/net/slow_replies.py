"""Answers that take long: worked out in slices, between which others are served.

Such an answer is a generator that yields wherever it may be left for a while, and returns the reply; it may yield a
future to be gone on with when that is done. What it speaks of may change meanwhile, so it takes a list of what it goes
through before the first `yield`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

import msgspec

from pyromq.clock import Clock
from pyromq.errors import BrokerError, MQError
from pyromq.net.alarm import Alarm
from pyromq.remoting.bodies import body_pieces
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.frame import MAX_FRAME_BYTES
from pyromq.remoting.remoting_session import RemotingSession

SLICE_SECONDS = 0.001  # of work between two turns of the loop: everybody else waits as long
CHUNK_PIECES = 1_000  # of a body, put together at once
MOST_BYTES = MAX_FRAME_BYTES - (64 << 10)  # of a body; there is a header as well
UNREAD_BYTES = 4 << 20  # of answers: a connection that leaves more gets no further one
UNREAD_SECONDS = 0.01  # between two looks whether it has read them

SlowReply = Generator[Future[Any] | None, None, Reply]


class _Begun(NamedTuple):
    work: SlowReply
    peer: RemotingSession
    answered: Future[Reply]


class SlowReplies:
    """The answers of one server that are being worked out, in turns. `alarm` rings when `step` has something to do.

    Connections take turns, not answers, and one that leaves its answers unread waits: so nobody gets more than its
    share of the time, and no more of the memory than one answer. `run_soon` runs a function in the loop's thread; it
    is called by those that complete futures.
    """

    def __init__(self, clock: Clock) -> None:
        self.alarm = Alarm(clock)
        self.run_soon: Callable[[Callable[[], None]], object] = lambda work: work()
        self._clock = clock
        self._begun: dict[RemotingSession, deque[_Begun]] = {}  # by connection, the one whose turn it is first
        self._spent = 0.0  # seconds, on what was answered at once since the last step

    def __len__(self) -> int:
        """How many answers are being worked out."""
        return sum(map(len, self._begun.values()))

    def give(self, work: SlowReply, call: Call) -> Reply | Future[Reply]:
        """Return the reply where a slice suffices for it, else what it will come by; its errors likewise.

        While others are being worked out it waits for its turn: many that come at once must not all begin.
        """
        outcome: Reply | Future[Any] | None = None
        if not self._begun and self._spent < SLICE_SECONDS:
            outcome = self._advance(work)
        if isinstance(outcome, Reply):
            return outcome
        begun = _Begun(work, call.peer, Future())
        self._lay_by(begun, outcome)
        return begun.answered

    def step(self) -> float | None:
        """Work for a slice on one answer; return in how many seconds to go on, None when there is nothing to do."""
        self._spent = 0.0
        begun = self._next()
        if begun is not None:
            try:
                outcome = self._advance(begun.work)
            except MQError as error:
                begun.answered.set_exception(error.with_traceback(None))  # whose frames hold the answer
            except Exception as error:  # noqa: BLE001  who waits for the answer logs it
                begun.answered.set_exception(error)
            else:
                if isinstance(outcome, Reply):
                    begun.answered.set_result(outcome)
                else:
                    self._lay_by(begun, outcome, first=True)
        if not self._begun:
            return None
        return 0 if begun is not None else UNREAD_SECONDS

    def _next(self) -> _Begun | None:
        """Take an answer of the next connection that reads those it gets."""
        for peer in list(self._begun):
            waiting = self._begun.pop(peer)
            if peer.unread > UNREAD_BYTES:
                self._begun[peer] = waiting
                continue
            begun = waiting.popleft()
            if waiting:
                self._begun[peer] = waiting  # behind the others
            return begun
        return None

    def _advance(self, work: SlowReply) -> Reply | Future[Any] | None:
        """Work for a slice; return the reply if it is ready, or what has to be waited for."""
        begin = self._clock.monotonic()
        end = begin + SLICE_SECONDS
        try:
            while True:
                awaited = next(work)
                if awaited is not None and not awaited.done():
                    return awaited
                if self._clock.monotonic() >= end:
                    return None
        except StopIteration as done:
            reply: Reply = done.value
            return reply
        finally:
            self._spent += self._clock.monotonic() - begin

    def _lay_by(self, begun: _Begun, awaited: Future[Any] | None, *, first: bool = False) -> None:
        if awaited is None:
            self._go_on(begun, first=first)
        else:
            awaited.add_done_callback(lambda _: self.run_soon(partial(self._go_on, begun)))

    def _go_on(self, begun: _Begun, *, first: bool = True) -> None:
        waiting = self._begun.setdefault(begun.peer, deque())
        waiting.appendleft(begun) if first else waiting.append(begun)
        self.alarm.ring_within(0)


def in_pieces(body: msgspec.Struct) -> SlowReply:
    """Work out the reply that has this body."""
    chunks: list[bytes] = []
    pieces: list[str] = []
    for piece in body_pieces(body):
        pieces.append(piece)
        if len(pieces) == CHUNK_PIECES:
            chunks.append("".join(pieces).encode())
            pieces.clear()
        yield None
    chunks.append("".join(pieces).encode())
    if (size := sum(map(len, chunks))) > MOST_BYTES:
        raise BrokerError(f"the answer has {size} bytes, and no client reads more than {MAX_FRAME_BYTES}: ask for less")
    return Reply(body=b"".join(chunks))
