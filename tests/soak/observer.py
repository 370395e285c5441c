"""Sees every call of a listener of one group, whoever makes it, and judges by that alone. Knows no clients."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from dataclasses import dataclass

from pyromq.message import MessageQueue


@dataclass(slots=True)
class Call:
    """A listener at work: whose it is, and the queue offsets that it was given."""

    member: str
    queue: MessageQueue
    offsets: list[int]
    began: float


class Observer:
    """Of each queue, the call under way and the offset up to which everything is consumed. For all threads.

    `faults` are sentences about what must never be: two listeners at once in a queue, and a message that comes before
    the one ahead of it was consumed. `repeats` counts messages that came again although they were consumed.
    """

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.repeats = 0
        self.calls = 0
        self.consumed: dict[MessageQueue, int] = defaultdict(int)
        self._running: dict[MessageQueue, Call] = {}
        self._lock = threading.Lock()

    def begin(self, member: str, queue: MessageQueue, offsets: list[int]) -> Call:
        """A listener is called; say `end` with what this returns."""
        with self._lock:
            call = Call(member, queue, offsets, time.monotonic())
            self.calls += 1
            self._judge(call)
            self._running[queue] = call
            return call

    def end(self, call: Call, *, consumed: bool) -> None:
        """The listener returned; its messages count as consumed unless it failed or was killed."""
        with self._lock:
            if self._running.get(call.queue) is call:
                del self._running[call.queue]
            if consumed:
                self.consumed[call.queue] = max(self.consumed[call.queue], call.offsets[-1] + 1)

    def note(self, what: str) -> None:
        """Keep a fault."""
        self.faults.append(f"{time.monotonic():.3f}: {what}")

    def _judge(self, call: Call) -> None:
        first, last, consumed = call.offsets[0], call.offsets[-1], self.consumed[call.queue]
        if (other := self._running.get(call.queue)) is not None:
            self.note(
                f"{call.member} begins {call.queue} offset {first} while {other.member} is at work on offset "
                f"{other.offsets[0]}, since {other.began:.3f}"
            )
        if call.offsets != list(range(first, last + 1)):
            self.note(f"{call.member} is given offsets {call.offsets} of {call.queue} at once")
        if first > consumed:
            self.note(f"{call.member} is given {call.queue} offset {first}, but {consumed} is not consumed")
        self.repeats += max(0, min(consumed, last + 1) - first)
