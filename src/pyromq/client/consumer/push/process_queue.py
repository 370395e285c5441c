"""Messages of one queue that are fetched and not yet consumed, and the offset up to which all are.

A consume request is what the listener gets in one call. Requests may be finished in any order; the offset that may be
committed is always that of the first message not consumed, so that a crash repeats messages and loses none.
Knows no threads and no brokers. Source: RocketMQ 4.9.8, ProcessQueue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from enum import Enum
from math import inf
from typing import cast

from pyromq.client.application_code import was_thrown_in
from pyromq.client.consumer.consumption_rates import Tally
from pyromq.client.consumer.push.listener import Listening, Verdict, judge
from pyromq.message import MessageQueue, StoredMessage


class RequestState(Enum):
    """Where a consume request stands. Only `RUNNING` and `JUDGED` keep its queue from being given away.

    | state   | its listener    | its messages              | next                                                    |
    |---------|-----------------|---------------------------|---------------------------------------------------------|
    | WAITING | is not called   | are held                  | RUNNING when called; DONE at a commit of earlier turns  |
    | RUNNING | is called       | are held                  | DONE; JUDGED or WAITING when it failed; LATE; LOST      |
    | JUDGED  | has failed      | are held, and sent back   | DONE; WAITING with those that no broker takes           |
    | LATE    | is called still | were sent back            | nothing: whatever it returns, nobody listens            |
    | LOST    | was cancelled   | are held                  | nothing, but for DONE when it hides its cancellation    |
    | DONE    | is not called   | are consumed or sent back | nothing                                                 |

    JUDGED and LATE are for concurrent consumption, LOST for orderly: the lock of its queue may be another's.
    """

    WAITING = 1
    RUNNING = 2
    JUDGED = 3
    LATE = 4
    LOST = 5
    DONE = 6


# Bound once: looking a member up in its class costs a call, on the way of every message.
WAITING, RUNNING, JUDGED, LATE, LOST, DONE = RequestState


class QueueState(Enum):
    """Whether the requests of a queue start and count.

    | state   | requests start | what listeners return counts | next                                                |
    |---------|----------------|------------------------------|-----------------------------------------------------|
    | OPEN    | yes            | yes                          | CLOSED: the queue is about to be given away         |
    | CLOSED  | no             | yes                          | DROPPED once the last offset is stored              |
    | DROPPED | no             | no                           | nothing; the queue may be consumed elsewhere by now |
    """

    OPEN = 1
    CLOSED = 2
    DROPPED = 3


OPEN, CLOSED, DROPPED = QueueState


class ConsumeRequest:
    """Messages for one call of the listener. A thread or task runs it; everything else is done by the event loop.

    `started` is the monotonic second of the latest call, None before it.
    """

    __slots__ = ("failure", "listener", "messages", "process_queue", "returned", "size", "started", "state")

    def __init__(self, process_queue: ProcessQueue, listener: Listening, messages: list[StoredMessage]) -> None:
        self.process_queue = process_queue
        self.listener = listener
        self.messages = messages
        self.size = _size(messages)
        self.started: float | None = None
        self.returned: object = None
        self.failure: BaseException | None = None
        self.state = WAITING

    @property
    def first_offset(self) -> int:
        return self.messages[0].queue_offset

    def begin(self) -> bool:
        """Note that the listener is about to be called; false when the queue is not, or no longer, ours to consume."""
        queue = self.process_queue
        self.started = queue.now()
        self.state = RUNNING  # before the look at the queue's: who closes it looks at this one afterwards
        if queue.state is not OPEN or self.started > queue.allowed_until:
            self.state = WAITING
            return False
        self.returned = self.failure = None
        return True

    def run(self) -> bool:
        """Call a plain listener here, and keep what it returns or raises. False when it was not called."""
        if not self.begin():
            return False
        try:
            self.returned = self.listener.call(self.messages)
        except BaseException as error:  # noqa: BLE001  a listener may raise anything; the verdict tells what it means
            self._fail(error)
        return True

    async def run_in_task(self) -> bool:
        """Await an async listener, and keep what it returns or raises. False when it was not called."""
        if not self.begin():
            return False
        try:
            self.returned = await cast("Awaitable[object]", self.listener.call(self.messages))
        except BaseException as error:
            if was_thrown_in(error):  # we are stopped
                raise
            self._fail(error)
        return True

    def _fail(self, error: BaseException) -> None:
        self.failure = error
        if isinstance(error, KeyboardInterrupt | SystemExit):
            self.listener.ends(error)

    @property
    def verdict(self) -> Verdict:
        return judge(len(self.messages), self.returned, self.failure)


class ProcessQueue:
    """The requests of one queue, in the order fetched; offsets are queue offsets.

    `next_offset` is where fetching goes on. `changed` is set when messages are finished, for those that wait for room
    or for the end. `now` gives monotonic seconds. Where order is kept: no request starts after `allowed_until`, when
    the queue's lock may be another's; `busy` while a turn, or the pause after it, is under way; the first `uncommitted`
    requests are consumed, but not committed.
    """

    def __init__(self, queue: MessageQueue, next_offset: int, now: Callable[[], float]) -> None:
        self.queue = queue
        self.next_offset = next_offset
        self.now = now
        self.state = OPEN
        self.allowed_until = inf
        self.busy = False
        self.uncommitted = 0
        self.changed = asyncio.Event()
        self.count = 0
        self.size = 0
        self.consumed_ms = 0  # wall clock of the latest end of a request, for those who look from outside
        self.tally = Tally()  # the topic's, once it is pulled
        self.requests: deque[ConsumeRequest] = deque()

    def add(self, requests: Iterable[ConsumeRequest], next_offset: int) -> None:
        """Take what a pull brought; without requests there was nothing wanted on the way to `next_offset`."""
        for request in requests:
            self.count += len(request.messages)
            self.size += request.size
            self.requests.append(request)
        self.next_offset = next_offset

    @property
    def dropped(self) -> bool:
        return self.state is DROPPED

    def drop(self) -> None:
        """Let nothing start, and nothing count, any more."""
        self.state = DROPPED
        self.changed.set()

    def close(self) -> None:
        """Let no further request start; those that run still count."""
        if self.state is OPEN:
            self.state = CLOSED

    async def quiet(self) -> None:
        """Start no further request, and wait until those begun are over."""
        self.close()
        while self.running:
            self.changed.clear()
            await self.changed.wait()

    def finish(self, request: ConsumeRequest, done: int | None = None) -> None:
        """The first `done` messages of a request are consumed; by default all of them."""
        self.changed.set()
        if done is not None and done < len(request.messages):
            self._shrink(request, request.messages[done:])
            return
        self.count -= len(request.messages)
        self.size -= request.size
        request.state = DONE
        requests = self.requests
        while requests and requests[0].state is DONE:
            requests.popleft()

    def replace(self, request: ConsumeRequest, messages: list[StoredMessage]) -> None:
        """Of the request's messages only these, at least one, are left to consume."""
        self._shrink(request, messages)
        self.changed.set()

    def _shrink(self, request: ConsumeRequest, messages: list[StoredMessage]) -> None:
        size = _size(messages)
        self.count -= len(request.messages) - len(messages)
        self.size -= request.size - size
        request.messages, request.size = messages, size

    @property
    def safe_offset(self) -> int:
        """The offset to commit: of the first message that is not consumed."""
        return self.requests[0].first_offset if self.requests else self.next_offset

    @property
    def span(self) -> int:
        """How far the first and the last message kept lie apart."""
        return self.requests[-1].messages[-1].queue_offset - self.requests[0].first_offset if self.requests else 0

    @property
    def running(self) -> bool:
        """Whether a listener, or what follows it, is at work on one of the requests."""
        return any(request.state in (RUNNING, JUDGED) for request in self.requests)


def _size(messages: list[StoredMessage]) -> int:
    return sum([len(message.stored_body) for message in messages])
