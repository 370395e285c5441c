"""Consumption in order: of each queue one message, or batch, after the other, a failed one again before the next.

Source: RocketMQ 4.9.8, ConsumeMessageOrderlyService.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine
from itertools import groupby, islice, takewhile
from typing import Any

from pyromq.client.config import ConsumerConfig
from pyromq.client.consumer.push.listener import TO_DEAD_LETTERS, Ack, Listening, Verdict
from pyromq.client.consumer.push.listener_tasks import ListenerTasks
from pyromq.client.consumer.push.listener_threads import ListenerThreads
from pyromq.client.consumer.push.process_queue import ConsumeRequest, ProcessQueue
from pyromq.client.consumer.push.send_back import SendBack
from pyromq.clock import Clock
from pyromq.errors import MQError
from pyromq.message import StoredMessage
from pyromq.net.tasks import Tasks

logger = logging.getLogger(__name__)

TURN_PIECES = 32  # a turn ends after so many pieces,
TURN_SECONDS = 0.005  # or with the first piece that ends after so long, so that offsets and other queues get theirs
SHORTEST_SUSPENSION, LONGEST_SUSPENSION = 0.01, 30.0  # seconds. Source: submitConsumeRequestLater


class Turn:
    """Consecutive pieces of one queue, run by one thread or task one after the other, until one is not plainly done."""

    def __init__(self, in_flight: ProcessQueue, pieces: list[ConsumeRequest]) -> None:
        self.in_flight = in_flight
        self.in_task = pieces[0].listener.in_task
        self.ran: list[ConsumeRequest] = []
        self._pieces = pieces
        self._ends = 0.0

    def run(self) -> bool:
        self._ends = time.monotonic() + TURN_SECONDS
        for piece in self._pieces:
            if not piece.run() or self._is_over(piece):
                break
        return True

    async def run_in_task(self) -> bool:
        self._ends = time.monotonic() + TURN_SECONDS
        for piece in self._pieces:
            if not await piece.run_in_task() or self._is_over(piece):
                break
        return True

    def _is_over(self, piece: ConsumeRequest) -> bool:
        self.ran.append(piece)
        return piece.failure is not None or piece.returned is not None or time.monotonic() > self._ends


class OrderlyConsuming:
    """Gives messages to listeners, one call at a time per queue and at most `concurrency` at once.

    A failing message is repeated in place after `suspend_seconds`, up to `max_retries` times, then it becomes a dead
    letter. `send_back` is None for broadcast consumers, where it is dropped then.
    """

    def __init__(
        self,
        group: str,
        config: ConsumerConfig,
        clock: Clock,
        *,
        listener: Callable[[str], Listening],
        send_back: SendBack | None,
        max_retries: int,
    ) -> None:
        self._group = group
        self._config = config
        self._clock = clock
        self._listener = listener
        self._send_back = send_back
        self._max_retries = max_retries
        self._tasks = Tasks()
        self._turns: dict[ProcessQueue, Turn] = {}  # under way
        self._threads = ListenerThreads[Turn](config.concurrency, self._finished, name=f"pyromq {group}")
        self._async = ListenerTasks[Turn](config.concurrency, self._finished, name=f"listener of {group}")

    def deliver(self, in_flight: ProcessQueue, messages: list[StoredMessage], next_offset: int) -> None:
        """Take what a pull brought; the listeners are called soon."""
        size = self._config.batch
        pieces = []
        for topic, group in groupby(messages, lambda message: message.original_topic):
            listener, run = self._listener(topic), list(group)
            pieces += [ConsumeRequest(in_flight, listener, run[at : at + size]) for at in range(0, len(run), size)]
        in_flight.add(pieces, next_offset)
        self.go_on(in_flight)

    def go_on(self, in_flight: ProcessQueue) -> None:
        """Begin the queue's next turn, unless one is under way, nothing is left, or it is not ours to consume now."""
        if in_flight.busy or in_flight.closed or len(in_flight.pieces) <= in_flight.uncommitted:
            return
        if self._clock.monotonic() > in_flight.allowed_until:
            return
        start = in_flight.uncommitted
        head = in_flight.pieces[start]
        next_ones = islice(in_flight.pieces, start, start + TURN_PIECES)
        pieces = list(takewhile(lambda piece: piece.listener is head.listener, next_ones))
        in_flight.busy = True
        turn = self._turns[in_flight] = Turn(in_flight, pieces)
        (self._async if head.listener.in_task else self._threads).submit([turn])

    def lose(self, in_flight: ProcessQueue) -> None:
        """The queue may be another's by now: cancel an async listener that runs. One in a thread cannot be ended."""
        turn = self._turns.pop(in_flight, None)
        if turn is not None and turn.in_task:
            self._async.cancel(turn)
            for piece in in_flight.pieces:
                piece.abandoned = True
            in_flight.changed.set()

    async def stop(self) -> None:
        """Cancel async listeners; threads end when their listeners return. Nothing is judged any more."""
        self._threads.stop()
        await self._async.stop()
        await self._tasks.stop()

    async def rescue(self, in_flight: ProcessQueue) -> None:
        """Nothing: giving a message to a retry while its listener still works on it would break the order."""

    def _finished(self, turn: Turn) -> None:
        """A turn has come to its end. Called on the loop."""
        in_flight = turn.in_flight
        in_flight.busy = False
        self._turns.pop(in_flight, None)
        for piece in turn.ran:
            piece.over = True
        in_flight.changed.set()
        if in_flight.dropped:
            return
        in_flight.consumed_ms = self._clock.now_ms()
        for piece in turn.ran:
            if piece.failure is None and piece.returned is None:
                self._done(piece, Ack.DONE)
            else:
                self._judge(piece)
        self.go_on(in_flight)

    def _judge(self, piece: ConsumeRequest) -> None:
        verdict = piece.verdict
        if verdict.done >= len(piece.messages):
            self._done(piece, verdict.ack)
            return
        self._log(piece, verdict)
        if verdict.done and self._config.auto_commit:
            piece.in_flight.finish(piece, verdict.done)
        self._suspend(piece.in_flight, self._repeat(piece, verdict))

    def _done(self, piece: ConsumeRequest, ack: Ack) -> None:
        in_flight = piece.in_flight
        if self._config.auto_commit:
            in_flight.finish(piece)
            return
        in_flight.uncommitted += 1
        if ack is Ack.COMMIT:
            for _ in range(in_flight.uncommitted):
                in_flight.finish(in_flight.pieces[0])
            in_flight.uncommitted = 0
        elif ack is Ack.ROLLBACK:
            in_flight.uncommitted = 0
            self._suspend(in_flight, self._pause(None))

    def _suspend(self, in_flight: ProcessQueue, until: Coroutine[Any, Any, None]) -> None:
        """Go on with the queue when `until` has ended."""

        async def suspended() -> None:
            try:
                await until
            finally:
                in_flight.busy = False
            self.go_on(in_flight)

        in_flight.busy = True
        self._tasks.start(suspended(), name=f"suspend {in_flight.queue}")

    async def _repeat(self, piece: ConsumeRequest, verdict: Verdict) -> None:
        """Wait before the piece's next attempt; messages that had their last one become dead letters."""
        left = []
        for message in piece.messages:
            if verdict.delay_level == TO_DEAD_LETTERS or message.reconsume_times >= self._max_retries:
                if not await self._bury(message, verdict.reason):
                    left.append(message)
            else:
                message.reconsume_times += 1
                left.append(message)
        if piece.in_flight.dropped:
            return
        if left:
            piece.in_flight.replace(piece, left)
            await self._pause(verdict.seconds)
        else:
            self._done(piece, Ack.DONE)

    async def _pause(self, seconds: float | None) -> None:
        wished = self._config.suspend_seconds if seconds is None else seconds
        await self._clock.sleep(min(max(wished, SHORTEST_SUSPENSION), LONGEST_SUSPENSION))

    async def _bury(self, message: StoredMessage, reason: str) -> bool:
        """Make a message a dead letter; false when that is not possible now."""
        if self._send_back is None:
            return True
        try:
            await self._send_back.bury(message, reason)
        except MQError as error:
            logger.warning(
                "group %s: message %s of %s cannot be made a dead letter, repeated in place: %s",
                self._group,
                message.message_id,
                message.queue,
                error,
            )
            return False
        return True

    def _log(self, piece: ConsumeRequest, verdict: Verdict) -> None:
        """Tell what failed: with the traceback at a message's first attempt, in a line at the others."""
        first = piece.messages[verdict.done]
        logger.warning(
            "group %s: listener failed at %s, offset %d (message %s, attempt %d), repeated in place: %s",
            self._group,
            piece.in_flight.queue,
            first.queue_offset,
            first.message_id,
            first.reconsume_times + 1,
            verdict.reason,
            exc_info=verdict.error if verdict.error is not None and not first.reconsume_times else None,
        )
