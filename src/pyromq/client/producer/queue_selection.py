"""Which queue a message goes to: in turns, by key, away from brokers that failed or were slow.

Pure: takes queues and figures, gives queues. Source: RocketMQ 4.9.8, MQFaultStrategy, LatencyFaultToleranceImpl,
TopicPublishInfo, SelectMessageQueueByHash.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from pyromq.clock import Clock
from pyromq.errors import UsageError
from pyromq.java_hash import java_hash
from pyromq.message import MessageQueue

OrderingKey = str | int | bytes

FAILURE_SECONDS = 30.0  # the latency a failure counts as

# From this latency on (seconds), a broker is left alone for so long (seconds). Source: MQFaultStrategy.
PENALTIES = ((15.0, 600.0), (3.0, 180.0), (2.0, 120.0), (1.0, 60.0), (0.55, 30.0))


def queue_for_key(queues: Sequence[MessageQueue], key: OrderingKey) -> MessageQueue:
    """Return the queue that every message with this key goes to, as long as the list stays the same.

    Equal to Java's `Math.abs(key.hashCode()) % n`; the one hash whose absolute value is negative counts as 0.
    Whole numbers go where their digits go, bytes where the text goes of which they are the UTF-8. Raises `UsageError`
    for any other key.
    """
    distance = abs(java_hash(key if isinstance(key, str) else _key_text(key)))
    return queues[0 if distance == 1 << 31 else distance % len(queues)]


def check_key(key: OrderingKey) -> None:
    """Raise `UsageError` for what is no ordering key."""
    if not isinstance(key, str):
        _key_text(key)


def _key_text(key: int | bytes) -> str:
    if isinstance(key, bytes):
        return key.decode(errors="surrogateescape")
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key)
    raise UsageError(f"ordering_key={key!r:.80} is {type(key).__name__}; it is a text, a whole number or bytes")


@dataclass(slots=True)
class Fault:
    """What is known of a broker that was asked: how slow it was, and from when on it may be asked again."""

    broker_name: str
    latency: float
    available_at: float


class QueueSelection:
    """Takes queues in turns, each topic from a random start; a retry goes to another broker if there is one.

    With `avoid_slow`, brokers whose last answer took long or failed are left out for a while.
    """

    def __init__(self, clock: Clock, *, avoid_slow: bool = False) -> None:
        self._clock = clock
        self._avoid_slow = avoid_slow
        self.turns: dict[str, int] = {}
        self._faults: dict[str, Fault] = {}

    def pick(self, queues: Sequence[MessageQueue], *, last_broker: str | None = None) -> MessageQueue:
        """Return the next queue of a topic's non-empty list; `last_broker` has just failed."""
        if self._avoid_slow:
            return self._pick_available(queues)
        queue = queues[self._turn(queues[0].topic) % len(queues)]
        if last_broker is None or queue.broker_name != last_broker:
            return queue
        for _ in queues:
            queue = queues[self._turn(queue.topic) % len(queues)]
            if queue.broker_name != last_broker:
                break
        return queue

    def report(self, broker_name: str, seconds: float, *, failed: bool = False) -> None:
        """Tell how long an attempt took; a failed one counts as `FAILURE_SECONDS`."""
        if not self._avoid_slow:
            return
        latency = FAILURE_SECONDS if failed else seconds
        penalty = next((rest for least, rest in PENALTIES if latency >= least), 0.0)
        self._faults[broker_name] = Fault(broker_name, latency, self._clock.monotonic() + penalty)

    def _turn(self, topic: str) -> int:
        turn = self.turns.get(topic)
        if turn is None:
            turn = random.randrange(1 << 16)  # so that many producers do not all begin at queue 0
        self.turns[topic] = turn + 1
        return turn

    def _pick_available(self, queues: Sequence[MessageQueue]) -> MessageQueue:
        turn = self._turn(queues[0].topic)
        now = self._clock.monotonic()
        for step in range(len(queues)):
            queue = queues[(turn + step) % len(queues)]
            fault = self._faults.get(queue.broker_name)
            if fault is None or fault.available_at <= now:
                return queue
        return self._pick_least_bad(queues, turn, now) or queues[turn % len(queues)]

    def _pick_least_bad(self, queues: Sequence[MessageQueue], turn: int, now: float) -> MessageQueue | None:
        """Take turns over the better half of the faulty brokers; None if the chosen one has no queue to write."""
        faults = sorted(self._faults.values(), key=lambda f: (f.available_at > now, f.latency, f.available_at))
        better = faults[: max(1, len(faults) // 2)]
        broker_name = better[turn % len(better)].broker_name
        own = [queue for queue in queues if queue.broker_name == broker_name]
        if own:
            return own[turn % len(own)]
        del self._faults[broker_name]
        return None
