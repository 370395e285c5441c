"""Consumption where order does not matter: pieces go to listeners side by side, failed messages are sent back.

Source: RocketMQ 4.9.8, ConsumeMessageConcurrentlyService.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from itertools import groupby
from operator import attrgetter

from pyromq.client.config import ConsumerConfig
from pyromq.client.consumer.push.listener import Listening, Verdict
from pyromq.client.consumer.push.listener_tasks import ListenerTasks
from pyromq.client.consumer.push.listener_threads import ListenerThreads
from pyromq.client.consumer.push.process_queue import ConsumeRequest, ProcessQueue
from pyromq.client.consumer.push.send_back import FIRST_RETRY_LEVEL, SendBack
from pyromq.clock import Clock
from pyromq.errors import MQError
from pyromq.message import StoredMessage
from pyromq.names import RETRY_PREFIX
from pyromq.net.tasks import Tasks

logger = logging.getLogger(__name__)

_topic = attrgetter("topic")


class ConcurrentConsuming:
    """Gives messages to listeners, at most `ConsumerConfig.concurrency` calls at once, and judges what comes out.

    `listener(topic)` is the application's; `send_back` is None for broadcast consumers, which repeat nothing.
    """

    def __init__(
        self,
        group: str,
        config: ConsumerConfig,
        clock: Clock,
        *,
        listener: Callable[[str], Listening],
        send_back: SendBack | None,
    ) -> None:
        self._group = group
        self._config = config
        self._clock = clock
        self._listener = listener
        self._send_back = send_back
        self._tasks = Tasks()
        self._threads = ListenerThreads[ConsumeRequest](config.concurrency, self._finished, name=f"pyromq {group}")
        self._async = ListenerTasks[ConsumeRequest](config.concurrency, self._finished, name=f"listener of {group}")

    def deliver(self, in_flight: ProcessQueue, messages: list[StoredMessage], next_offset: int) -> None:
        """Take what a pull brought; the listeners are called soon."""
        if in_flight.queue.topic.startswith(RETRY_PREFIX):
            for message in messages:
                message.topic = message.original_topic
        size = self._config.batch
        pieces = []
        for topic, group in groupby(messages, _topic):
            listener, run = self._listener(topic), list(group)
            pieces += [ConsumeRequest(in_flight, listener, run[at : at + size]) for at in range(0, len(run), size)]
        in_flight.add(pieces, next_offset)
        self._submit(pieces)

    async def stop(self) -> None:
        """Cancel async listeners; threads end when their listeners return. Nothing is judged any more."""
        self._threads.stop()
        await self._async.stop()
        await self._tasks.stop()

    async def rescue(self, in_flight: ProcessQueue) -> None:
        """Send back the messages of listeners that take too long, first ones first, so that the queue moves on."""
        while in_flight.pieces:
            piece = in_flight.pieces[0]
            late = self._clock.monotonic() - self._config.consume_timeout_seconds
            if piece.over or piece.started is None or piece.started > late or piece.abandoned:
                return
            await self._abandon(piece)

    async def _abandon(self, piece: ConsumeRequest) -> None:
        reason = f"the listener took longer than {self._config.consume_timeout_seconds:g} s"
        self._log(piece, Verdict(0, reason=reason))
        failed = await self._give_back(piece, piece.messages, Verdict(0, reason=reason, delay_level=FIRST_RETRY_LEVEL))
        if piece.over or failed:
            return  # it came to its end meanwhile, or has to wait until the broker takes it
        piece.abandoned = True
        if piece.listener.in_task:
            self._async.cancel(piece)
        else:
            self._threads.replace()
        piece.in_flight.finish(piece)

    def _submit(self, pieces: Iterable[ConsumeRequest]) -> None:
        for in_task, group in groupby(pieces, _in_task):
            (self._async if in_task else self._threads).submit(list(group))

    def _finished(self, piece: ConsumeRequest) -> None:
        """A listener is through with a piece. Called on the loop, for every piece."""
        in_flight = piece.in_flight
        if piece.abandoned and not piece.listener.in_task:
            self._threads.shrink()
        if in_flight.dropped or piece.done:
            return
        in_flight.consumed_ms = self._clock.now_ms()
        if piece.failure is None and piece.returned is None:
            piece.over = True
            in_flight.finish(piece)
        else:
            self._judge(piece)

    def _judge(self, piece: ConsumeRequest) -> None:
        verdict = piece.verdict
        if verdict.done >= len(piece.messages):
            piece.over = True
            piece.in_flight.finish(piece)
            return
        self._log(piece, verdict)
        if verdict.done:
            piece.in_flight.finish(piece, verdict.done)
        self._tasks.start(self._retry(piece, verdict), name=f"send back to {piece.in_flight.queue}")

    async def _retry(self, piece: ConsumeRequest, verdict: Verdict) -> None:
        """Have the piece's messages delivered again by the broker; what it does not take, by ourselves."""
        in_flight = piece.in_flight
        try:
            failed = await self._give_back(piece, piece.messages, verdict)
        finally:
            piece.over = True
        if in_flight.dropped:
            return
        if not failed:
            in_flight.finish(piece)
            return
        for message in failed:
            message.reconsume_times += 1
        in_flight.replace(piece, failed)
        await self._clock.sleep(self._config.local_retry_seconds)
        if not in_flight.dropped:
            self._submit([piece])

    async def _give_back(
        self, piece: ConsumeRequest, messages: list[StoredMessage], verdict: Verdict
    ) -> list[StoredMessage]:
        """Return the messages that could not be sent back, in order."""
        send_back = self._send_back
        if send_back is None:
            return []
        queue = piece.in_flight.queue
        outcomes = await asyncio.gather(
            *(send_back.give_back(m, queue, verdict.delay_level, verdict.reason) for m in messages),
            return_exceptions=True,
        )
        failed = []
        for message, outcome in zip(messages, outcomes, strict=True):
            if isinstance(outcome, MQError):
                logger.warning(
                    "group %s: message %s of %s cannot be sent back, tried again here in %g s: %s",
                    self._group,
                    message.message_id,
                    queue,
                    self._config.local_retry_seconds,
                    outcome,
                )
                failed.append(message)
            elif isinstance(outcome, BaseException):
                raise outcome
        return failed

    def _log(self, piece: ConsumeRequest, verdict: Verdict) -> None:
        """Tell what failed: with the traceback at a message's first attempt, in a line at the others."""
        first = piece.messages[verdict.done]
        logger.warning(
            "group %s: listener of topic %s failed at %s, offset %d (message %s, attempt %d)%s: %s",
            self._group,
            first.topic,
            piece.in_flight.queue,
            first.queue_offset,
            first.message_id,
            first.reconsume_times + 1,
            "; dropped, as broadcast messages are" if self._send_back is None else "",
            verdict.reason,
            exc_info=verdict.error if verdict.error is not None and not first.reconsume_times else None,
        )


def _in_task(piece: ConsumeRequest) -> bool:
    return piece.listener.in_task
