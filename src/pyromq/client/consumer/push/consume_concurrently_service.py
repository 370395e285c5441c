"""Concurrent consumption: listeners run in parallel, failed messages are sent back to the broker.

An administrator can make a consumer call its listener with one chosen message.
Source: RocketMQ 4.9.8, ConsumeMessageConcurrentlyService with its consumeMessageDirectly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future

from pyromq.client.client_config import ConsumerConfig
from pyromq.client.cluster.namespace import Namespace
from pyromq.client.consumer.consumer_status import ConsumerInternals
from pyromq.client.consumer.push.listener import TO_DEAD_LETTERS, Ack, BoundListener, RetryLater, Verdict, reason_text
from pyromq.client.consumer.push.listener_pool import ListenerPool
from pyromq.client.consumer.push.process_queue import (
    DROPPED,
    JUDGED,
    LATE,
    RUNNING,
    WAITING,
    ConsumeRequest,
    ProcessQueue,
    consume_requests,
)
from pyromq.client.consumer.push.send_back import FIRST_RETRY_LEVEL, SendBack
from pyromq.clock import Clock
from pyromq.errors import MQError
from pyromq.logs import Tracebacks, logger_of
from pyromq.message import StoredMessage
from pyromq.net.tasks import Tasks
from pyromq.record import decode
from pyromq.remoting.bodies import ConsumeDirectlyResult, encode_body
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import ConsumeDirectly

logger = logger_of(__name__)


class ConsumeConcurrentlyService:
    """Calls listeners, at most `ConsumerConfig.concurrency` at the same time, and acts on their results.

    `listener(topic)` returns the topic's listener. `send_back` is None in broadcast consumers, which drop failed
    messages.
    """

    def __init__(
        self,
        group: str,
        config: ConsumerConfig,
        clock: Clock,
        *,
        listener: Callable[[str], BoundListener],
        send_back: SendBack | None,
    ) -> None:
        self._group = group
        self._config = config
        self._clock = clock
        self._tracebacks = Tracebacks(clock)
        self._listener = listener
        self._send_back = send_back
        self._tasks = Tasks()
        self._listeners = ListenerPool[ConsumeRequest](config.concurrency, self._finished, group=group)

    def deliver(self, process_queue: ProcessQueue, messages: list[StoredMessage], next_offset: int) -> None:
        """Add pulled messages to the process queue and schedule calls of their listeners."""
        requests = consume_requests(process_queue, messages, self._listener, self._config.batch)
        process_queue.add(requests, next_offset)
        self._listeners.submit(requests)

    async def stop(self) -> None:
        """Cancel async listeners; threads end when their listeners return. Results after this call are ignored."""
        await self._listeners.stop()
        await self._tasks.stop()

    async def rescue(self, process_queue: ProcessQueue) -> None:
        """Send back messages at the front of the queue whose listener runs longer than `consume_timeout_seconds`."""
        while process_queue.requests:
            request = process_queue.requests[0]
            late = self._clock.monotonic() - self._config.consume_timeout_seconds
            if request.state is not RUNNING or request.started is None or request.started > late:
                return
            await self._abandon(request)

    async def _abandon(self, request: ConsumeRequest) -> None:
        reason = f"the listener took longer than {self._config.consume_timeout_seconds:g} s"
        self._log(request, Verdict(0, reason=reason))
        failed = await self._give_back(
            request, request.messages, Verdict(0, reason=reason, delay_level=FIRST_RETRY_LEVEL)
        )
        if request.state is not RUNNING or failed:
            return  # the listener returned meanwhile, or no broker accepted a message: the next `rescue` retries
        self._listeners.abandon(request)
        request.process_queue.finish(request)
        request.state = LATE

    def _finished(self, request: ConsumeRequest) -> None:
        """Handle a listener's result. Called on the event loop for every consume request."""
        process_queue = request.process_queue
        if request.state is LATE:
            self._listeners.returned(request)
            return
        if process_queue.state is DROPPED:
            return
        process_queue.consumed_ms = self._clock.now_ms()
        tally = process_queue.tally
        tally.calls += 1
        tally.call_seconds += self._clock.monotonic() - (request.started or 0.0)
        if request.failure is None and request.returned is None:
            tally.consumed += len(request.messages)
            process_queue.finish(request)
        else:
            self._judge(request)

    def _judge(self, request: ConsumeRequest) -> None:
        verdict, tally = request.verdict, request.process_queue.tally
        tally.consumed += verdict.done
        tally.failed += len(request.messages) - verdict.done
        if verdict.done >= len(request.messages):
            request.process_queue.finish(request)
            return
        self._log(request, verdict)
        if verdict.done:
            request.process_queue.finish(request, verdict.done)
        request.state = JUDGED
        self._tasks.start(self._retry(request, verdict), name=f"send back to {request.process_queue.queue}")

    async def _retry(self, request: ConsumeRequest, verdict: Verdict) -> None:
        """Send the request's messages back to the broker.

        If no broker accepts a message, call the listener again with it after `local_retry_seconds`.
        """
        process_queue = request.process_queue
        try:
            failed = await self._give_back(request, request.messages, verdict)
        finally:
            request.state = WAITING
        if process_queue.dropped:
            return
        if not failed:
            process_queue.finish(request)
            return
        for message in failed:
            message.reconsume_times += 1
        process_queue.replace(request, failed)
        await self._clock.sleep(self._config.local_retry_seconds)
        self._listeners.submit([request])

    async def _give_back(
        self, request: ConsumeRequest, messages: list[StoredMessage], verdict: Verdict
    ) -> list[StoredMessage]:
        """Send failed messages back to the broker. Return, in order, the messages that no broker accepted."""
        send_back = self._send_back
        if send_back is None:
            return []
        queue = request.process_queue.queue
        outcomes = await asyncio.gather(
            *(send_back.give_back(m, queue, verdict.delay_level, verdict.reason) for m in messages),
            return_exceptions=True,
        )
        failed = []
        for message, outcome in zip(messages, outcomes, strict=True):
            if isinstance(outcome, MQError):
                logger.warning(
                    "group %s: message %s of %s cannot be sent back, retried here in %g s: %s",
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

    def _log(self, request: ConsumeRequest, verdict: Verdict) -> None:
        """Log a listener's failure in one line; with the traceback if this traceback was not logged before."""
        first = request.messages[verdict.done]
        counted, traceback = self._tracebacks.count(verdict.error)
        logger.warning(
            "group %s: listener of topic %s failed at %s, offset %d (message %s, attempt %d)%s: %s%s",
            self._group,
            first.topic,
            request.process_queue.queue,
            first.queue_offset,
            first.message_id,
            first.reconsume_times + 1,
            "; dropped, as broadcast messages are" if self._send_back is None else _end_of(verdict),
            verdict.reason,
            counted,
            exc_info=traceback,
        )


def _end_of(verdict: Verdict) -> str:
    return "; becomes a dead letter" if verdict.delay_level == TO_DEAD_LETTERS else ""


# Names of a listener's results in the reply to an administrator. Source: CMResult.
_RETURNED = {None: "CR_SUCCESS", Ack.DONE: "CR_SUCCESS", Ack.COMMIT: "CR_COMMIT", Ack.ROLLBACK: "CR_ROLLBACK"}


class ConsumeDirectlyProcessor:
    """Calls listeners for administrators, one call at a time, in parallel with the usual consumption.

    `listener(topic)` returns the topic's listener. Topic names in requests include the namespace of `names`.
    """

    def __init__(
        self,
        group: str,
        internals: ConsumerInternals,
        names: Namespace,
        clock: Clock,
        *,
        listener: Callable[[str], BoundListener],
    ) -> None:
        self._internals = internals
        self._names = names
        self._clock = clock
        self._listener = listener
        self._answers: dict[ConsumeRequest, Future[Reply]] = {}
        self._listeners = ListenerPool[ConsumeRequest](1, self._finished, group=f"{group}, directly")

    @answers(ConsumeDirectly)
    def consume(self, header: ConsumeDirectly, call: Call) -> Future[Reply]:
        """Call the listener with the message in the request, and reply with its result. Offsets do not change."""
        self._internals.check(header.consumer_group)
        message = decode(call.body, check_crc=self._internals.config.verify_checksums)
        message.broker_name = header.broker_name or ""
        message.topic = self._names.unwrap(message.original_topic)
        listener = self._listener(message.topic).of_message(message)
        request = ConsumeRequest(
            ProcessQueue(message.queue, message.queue_offset, self._clock.monotonic), listener, [message]
        )
        future = self._answers[request] = Future()
        self._listeners.submit([request])
        return future

    async def stop(self) -> None:
        await self._listeners.stop()

    def _finished(self, request: ConsumeRequest) -> None:
        assert request.started is not None
        result = ConsumeDirectlyResult(
            order=self._internals.config.orderly,
            result=_result(request),
            remark=reason_text(request.failure) if request.failure is not None else None,
            spent_ms=int((self._clock.monotonic() - request.started) * 1000),
        )
        self._answers.pop(request).set_result(Reply(body=encode_body(result)))


def _result(request: ConsumeRequest) -> str:
    if request.failure is None:
        returned = request.returned
        return _RETURNED[returned] if returned is None or isinstance(returned, Ack) else "CR_LATER"
    return "CR_LATER" if isinstance(request.failure, RetryLater) else "CR_THROW_EXCEPTION"
