"""The state of one queue assigned to a push consumer: fetched messages, offsets, pulling and lock.

A consume request holds the messages of one listener call. Requests may finish in any order. The offset to commit is
that of the first message not consumed, so that a crash redelivers messages and loses none.
This module uses no threads and no network. Source: RocketMQ 4.9.8, ProcessQueue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from enum import Enum
from itertools import groupby
from math import inf
from operator import attrgetter
from typing import cast

from pyromq.client.application_code import was_thrown_in
from pyromq.client.consumer.pulling import Tally
from pyromq.client.consumer.push.listener import BoundListener, Verdict, judge
from pyromq.message import MessageQueue, StoredMessage

_topic = attrgetter("topic")


class RequestState(Enum):
    """The state of a consume request. A queue is drained when no request is `RUNNING` or `JUDGED`.

    | state   | listener        | messages              | next                                                  |
    |---------|-----------------|-----------------------|-------------------------------------------------------|
    | WAITING | not called      | held                  | RUNNING when called; DONE at a commit of earlier ones |
    | RUNNING | running         | held                  | DONE; JUDGED or WAITING if it failed; LATE; LOST      |
    | JUDGED  | failed          | held, being sent back | DONE; WAITING with the messages no broker accepted    |
    | LATE    | still running   | sent back             | none: its result is ignored                           |
    | LOST    | cancelled       | held                  | none, or DONE if it suppresses its cancellation       |
    | DONE    | returned        | consumed or sent back | none                                                  |

    JUDGED and LATE occur in concurrent consumers, LOST in orderly ones after the queue's lock was lost.
    """

    WAITING = 1
    RUNNING = 2
    JUDGED = 3
    LATE = 4
    LOST = 5
    DONE = 6


# Module constants, because every message reads them and an enum lookup costs a call.
WAITING, RUNNING, JUDGED, LATE, LOST, DONE = RequestState


class QueueState(Enum):
    """Whether consume requests of a queue start, and whether their results count.

    | state   | requests start | results count | next                                              |
    |---------|----------------|---------------|---------------------------------------------------|
    | OPEN    | yes            | yes           | CLOSED when the queue is being revoked            |
    | CLOSED  | no             | yes           | DROPPED after the last commit                     |
    | DROPPED | no             | no            | none: another member may consume the queue by now |
    """

    OPEN = 1
    CLOSED = 2
    DROPPED = 3


OPEN, CLOSED, DROPPED = QueueState


class ConsumeRequest:
    """The messages of one listener call. A thread or task calls the listener; all else happens on the event loop.

    `started` is the time of the latest call (monotonic seconds), None before the first call.
    """

    __slots__ = ("failure", "listener", "messages", "process_queue", "returned", "size", "started", "state")

    def __init__(self, process_queue: ProcessQueue, listener: BoundListener, messages: list[StoredMessage]) -> None:
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

    @property
    def in_task(self) -> bool:
        return self.listener.in_task

    def begin(self) -> bool:
        """Mark the request as running. Return False if the queue is closed or the queue's lock is not valid."""
        queue = self.process_queue
        self.started = queue.now()
        self.state = RUNNING  # set before the queue's state is read; closing a queue first sets that state
        if queue.state is not OPEN or self.started > queue.allowed_until:
            self.state = WAITING
            return False
        self.returned = self.failure = None
        return True

    def run(self) -> bool:
        """Call a plain listener and store its result. Return False if the listener was not called."""
        if not self.begin():
            return False
        try:
            self.returned = self.listener.call(self.messages.copy())  # a listener may change the list that it gets
        except BaseException as error:  # noqa: BLE001  a listener may raise anything; the verdict tells what it means
            self._fail(error)
        return True

    async def run_in_task(self) -> bool:
        """Await an async listener and store its result. Return False if the listener was not called."""
        if not self.begin():
            return False
        try:
            self.returned = await cast("Awaitable[object]", self.listener.call(self.messages.copy()))
        except BaseException as error:
            if was_thrown_in(error):  # the consumer cancels this task: no failure of the listener
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


def consume_requests(
    process_queue: ProcessQueue,
    messages: list[StoredMessage],
    listener: Callable[[str], BoundListener],
    size: int,
) -> list[ConsumeRequest]:
    """Divide pulled messages, in order, into requests of at most `size` messages with the same listener."""
    requests = []
    for topic, group in groupby(messages, _topic):
        bound, of_topic = listener(topic), list(group)
        runs = [(bound, of_topic)]
        if bound.sort is not None:
            runs = [(each, list(run)) for each, run in groupby(of_topic, bound.sort)]
        for each, run in runs:
            requests += [ConsumeRequest(process_queue, each, run[at : at + size]) for at in range(0, len(run), size)]
    return requests


class ProcessQueue:
    """One assigned queue and its consume requests in fetch order; offsets are queue offsets.

    `next_offset` is the offset to pull next. `changed` is set when messages are finished. `now()` returns monotonic
    seconds.
    """

    def __init__(self, queue: MessageQueue, next_offset: int, now: Callable[[], float]) -> None:
        self.queue = queue
        self.next_offset = next_offset
        self.now = now
        self.state = OPEN
        self.revoked = False  # True from the beginning of its revocation on: another member may consume it next
        self.changed = asyncio.Event()
        self.requests: deque[ConsumeRequest] = deque()
        self.count = 0  # messages in `requests`
        self.size = 0  # bytes of the stored bodies in `requests`
        self.committed = -1  # offset committed last; -1: none yet
        self.tally = Tally()  # replaced by the topic's tally when pulling starts
        self.consumed_ms = 0  # time (ms since 1970) of the latest finished request, for administrators
        # State of pulling.
        self.broker_id = 0  # broker to pull from, suggested by the latest pull response
        self.is_failing = False  # True while pulling fails; the first failure is logged
        self.full = False  # True while pulling waits, because a limit of messages in flight is reached
        self.pulled_at = now()  # monotonic seconds of the latest pull
        self.pulled_ms = 0  # time (ms since 1970) of the latest pull, for administrators
        self.latest_ms = 0  # store time (ms since 1970) of the latest message pulled
        # State of the lock. Concurrent consumers also lock queues, but consume without a valid lock.
        self.lock_address = ""  # the broker that keeps the queue's lock
        self.locked_ms = 0  # time (ms since 1970) of the latest confirmation of the lock
        self.lock_lost = False  # another member holds the lock, or may hold it
        self.breaks = 0  # number of losses of the connection to which the lock is tied
        # State of orderly consumption.
        self.allowed_until = inf  # monotonic seconds; no request starts later, because the lock may have expired
        self.busy = False  # True while requests run, and during the pause after a failed request
        self.uncommitted = 0  # number of requests at the front that are consumed and not committed

    def add(self, requests: Iterable[ConsumeRequest], next_offset: int) -> None:
        """Append the consume requests of a pull response, which may have none. Pull next from `next_offset`."""
        for request in requests:
            self.count += len(request.messages)
            self.size += request.size
            self.requests.append(request)
        self.next_offset = next_offset

    @property
    def dropped(self) -> bool:
        return self.state is DROPPED

    def drop(self) -> None:
        """Start no further consume request, and ignore the results of running ones."""
        self.state = DROPPED
        self.changed.set()

    def close(self) -> None:
        """Start no further consume request; results of running requests still count."""
        if self.state is OPEN:
            self.state = CLOSED

    async def drain(self) -> None:
        """Start no further consume request, and wait until no request is running."""
        self.close()
        while self.running:
            self.changed.clear()
            await self.changed.wait()

    def finish(self, request: ConsumeRequest, done: int | None = None) -> None:
        """Mark the first `done` messages of a request as consumed; all messages if `done` is None."""
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
        """Replace a request's messages by those left to consume, at least one."""
        self._shrink(request, messages)
        self.changed.set()

    def _shrink(self, request: ConsumeRequest, messages: list[StoredMessage]) -> None:
        size = _size(messages)
        self.count -= len(request.messages) - len(messages)
        self.size -= request.size - size
        request.messages, request.size = messages, size

    @property
    def safe_offset(self) -> int:
        """The offset to commit: that of the first message not consumed; `next_offset` if all are consumed."""
        return self.requests[0].first_offset if self.requests else self.next_offset

    @property
    def span(self) -> int:
        """The distance between the offsets of the first and the last message held; 0 without messages."""
        return self.requests[-1].messages[-1].queue_offset - self.requests[0].first_offset if self.requests else 0

    @property
    def running(self) -> bool:
        """True while a listener is running or its failed messages are being sent back."""
        return any(request.state in (RUNNING, JUDGED) for request in self.requests)


def _size(messages: list[StoredMessage]) -> int:
    return sum([len(message.stored_body) for message in messages])
