"""Orderly consumption: one listener call at a time per queue; a failed message is retried before the next message.

Source: RocketMQ 4.9.8, ConsumeMessageOrderlyService.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from itertools import islice, takewhile
from typing import Any

from pyromq.client.client_config import ConsumerConfig
from pyromq.client.consumer.push.listener import TO_DEAD_LETTERS, Ack, BoundListener, Verdict
from pyromq.client.consumer.push.listener_pool import ListenerPool
from pyromq.client.consumer.push.process_queue import (
    DROPPED,
    LOST,
    OPEN,
    RUNNING,
    WAITING,
    ConsumeRequest,
    ProcessQueue,
    consume_requests,
)
from pyromq.client.consumer.push.send_back import SendBack
from pyromq.clock import Clock
from pyromq.errors import MQError
from pyromq.logs import Tracebacks, logger_of
from pyromq.message import StoredMessage
from pyromq.net.tasks import Tasks

logger = logger_of(__name__)

# A turn (consecutive listener calls of one queue) ends after TURN_REQUESTS requests, or with the first request that
# ends after TURN_SECONDS, so that offsets advance and other queues are served.
TURN_REQUESTS = 32
TURN_SECONDS = 0.005
# Limits of the pause before a retry in place (seconds). Source: submitConsumeRequestLater.
SHORTEST_SUSPENSION, LONGEST_SUSPENSION = 0.01, 30.0


class Turn:
    """Consecutive consume requests of one queue, run by one thread or task.

    The turn ends early when a listener raises or returns a value.
    """

    def __init__(self, process_queue: ProcessQueue, requests: list[ConsumeRequest]) -> None:
        self.process_queue = process_queue
        self.in_task = requests[0].listener.in_task
        self.ran: list[ConsumeRequest] = []
        self._requests = requests
        self._ends = 0.0

    def run(self) -> bool:
        self._ends = time.monotonic() + TURN_SECONDS
        for request in self._requests:
            if not request.run() or self._is_over(request):
                break
        return True

    async def run_in_task(self) -> bool:
        self._ends = time.monotonic() + TURN_SECONDS
        for request in self._requests:
            if not await request.run_in_task() or self._is_over(request):
                break
        return True

    def _is_over(self, request: ConsumeRequest) -> bool:
        self.ran.append(request)
        return request.failure is not None or request.returned is not None or time.monotonic() > self._ends


class ConsumeOrderlyService:
    """Calls listeners, one at a time per queue, and at most `concurrency` at the same time.

    A failed message is retried in place after `suspend_seconds`, at most `max_retries` times; then it becomes a dead
    letter. `send_back` is None in broadcast consumers, which drop such a message.
    """

    def __init__(
        self,
        group: str,
        config: ConsumerConfig,
        clock: Clock,
        *,
        listener: Callable[[str], BoundListener],
        send_back: SendBack | None,
        max_retries: int,
    ) -> None:
        self._group = group
        self._config = config
        self._clock = clock
        self._tracebacks = Tracebacks(clock)
        self._listener = listener
        self._send_back = send_back
        self._max_retries = max_retries
        self._tasks = Tasks()
        self._turns: dict[ProcessQueue, Turn] = {}  # turns by queue, submitted and not finished
        self._listeners = ListenerPool[Turn](config.concurrency, self._finished, group=group)

    def deliver(self, process_queue: ProcessQueue, messages: list[StoredMessage], next_offset: int) -> None:
        """Add pulled messages to the process queue and schedule calls of their listeners."""
        requests = consume_requests(process_queue, messages, self._listener, self._config.batch)
        process_queue.add(requests, next_offset)
        self.go_on(process_queue)

    def go_on(self, process_queue: ProcessQueue) -> None:
        """Start the queue's next turn, unless the queue is busy, empty or closed, or its lock is not valid."""
        if process_queue.busy or process_queue.state is not OPEN:
            return
        if len(process_queue.requests) <= process_queue.uncommitted:
            return
        if self._clock.monotonic() > process_queue.allowed_until:
            return
        start = process_queue.uncommitted
        head = process_queue.requests[start]
        next_ones = islice(process_queue.requests, start, start + TURN_REQUESTS)
        requests = list(takewhile(lambda request: request.listener is head.listener, next_ones))
        process_queue.busy = True
        turn = self._turns[process_queue] = Turn(process_queue, requests)
        self._listeners.submit([turn])

    def lose(self, process_queue: ProcessQueue) -> None:
        """Cancel the running async listener of a queue whose lock is lost.

        A listener in a thread cannot be cancelled.
        """
        turn = self._turns.pop(process_queue, None)
        if turn is not None and turn.in_task:
            self._listeners.cancel(turn)
            for request in process_queue.requests:
                if request.state is RUNNING:
                    request.state = LOST
            process_queue.changed.set()

    async def stop(self) -> None:
        """Cancel async listeners; threads end when their listeners return. Results after this call are ignored."""
        await self._listeners.stop()
        await self._tasks.stop()

    async def rescue(self, process_queue: ProcessQueue) -> None:
        """Do nothing: sending a message back while its listener is running would break the order."""

    def _finished(self, turn: Turn) -> None:
        """Handle the results of a turn. Called on the event loop."""
        process_queue = turn.process_queue
        process_queue.busy = False
        self._turns.pop(process_queue, None)
        for request in turn.ran:
            request.state = WAITING
        process_queue.changed.set()
        if process_queue.state is DROPPED:
            return
        process_queue.consumed_ms = self._clock.now_ms()
        tally = process_queue.tally
        tally.calls += len(turn.ran)
        tally.call_seconds += self._clock.monotonic() - (turn.ran[0].started or 0.0) if turn.ran else 0.0
        for request in turn.ran:
            if request.failure is None and request.returned is None:
                tally.consumed += len(request.messages)
                self._done(request, Ack.DONE)
            else:
                self._judge(request)
        self.go_on(process_queue)

    def _judge(self, request: ConsumeRequest) -> None:
        verdict, tally = request.verdict, request.process_queue.tally
        tally.consumed += verdict.done
        tally.failed += len(request.messages) - verdict.done
        if verdict.done >= len(request.messages):
            self._done(request, verdict.ack)
            return
        self._log(request, verdict)
        if verdict.done and self._config.auto_commit:
            request.process_queue.finish(request, verdict.done)
        self._suspend(request.process_queue, self._repeat(request, verdict))

    def _done(self, request: ConsumeRequest, ack: Ack) -> None:
        process_queue = request.process_queue
        if self._config.auto_commit:
            process_queue.finish(request)
            return
        process_queue.uncommitted += 1
        if ack is Ack.COMMIT:
            for _ in range(process_queue.uncommitted):
                process_queue.finish(process_queue.requests[0])
            process_queue.uncommitted = 0
        elif ack is Ack.ROLLBACK:
            process_queue.uncommitted = 0
            self._suspend(process_queue, self._pause(None))

    def _suspend(self, process_queue: ProcessQueue, until: Coroutine[Any, Any, None]) -> None:
        """Run `until`, then start the queue's next turn."""

        async def suspended() -> None:
            try:
                await until
            finally:
                process_queue.busy = False
            self.go_on(process_queue)

        process_queue.busy = True
        self._tasks.start(suspended(), name=f"suspend {process_queue.queue}")

    async def _repeat(self, request: ConsumeRequest, verdict: Verdict) -> None:
        """Pause before the request's next attempt; messages without attempts left become dead letters."""
        left = []
        for message in request.messages:
            if self._is_last(message, verdict):
                if not await self._make_dead_letter(message, verdict.reason):
                    left.append(message)
            else:
                message.reconsume_times += 1
                left.append(message)
        if request.process_queue.dropped:
            return
        if left:
            request.process_queue.replace(request, left)
            await self._pause(verdict.seconds)
        else:
            self._done(request, Ack.DONE)

    def _is_last(self, message: StoredMessage, verdict: Verdict) -> bool:
        return verdict.delay_level == TO_DEAD_LETTERS or message.reconsume_times >= self._max_retries

    async def _pause(self, seconds: float | None) -> None:
        suspension = self._config.suspend_seconds if seconds is None else seconds
        await self._clock.sleep(min(max(suspension, SHORTEST_SUSPENSION), LONGEST_SUSPENSION))

    async def _make_dead_letter(self, message: StoredMessage, reason: str) -> bool:
        """Make a message a dead letter. Return False if no broker accepts it now."""
        if self._send_back is None:
            return True
        try:
            await self._send_back.make_dead_letter(message, reason)
        except MQError as error:
            logger.warning(
                "group %s: message %s of %s cannot be made a dead letter, retried in place: %s",
                self._group,
                message.message_id,
                message.queue,
                error,
            )
            return False
        return True

    def _log(self, request: ConsumeRequest, verdict: Verdict) -> None:
        """Log a listener's failure in one line; with the traceback if this traceback was not logged before."""
        first = request.messages[verdict.done]
        counted, traceback = self._tracebacks.count(verdict.error)
        end = "dropped, as broadcast messages are" if self._send_back is None else "now a dead letter"
        logger.warning(
            "group %s: listener failed at %s, offset %d (message %s, attempt %d), %s: %s%s",
            self._group,
            request.process_queue.queue,
            first.queue_offset,
            first.message_id,
            first.reconsume_times + 1,
            end if self._is_last(first, verdict) else "retried in place",
            verdict.reason,
            counted,
            exc_info=traceback,
        )
