"""Runs a listener on one message that an administrator names, and tells what it made of it. Counts for nothing else.

Source: RocketMQ 4.9.8, ConsumeMessageConcurrentlyService.consumeMessageDirectly.
"""

from __future__ import annotations

from concurrent.futures import Future

from pyromq.client.consumer.push.listener import Ack, Listening, RetryLater, reason_text
from pyromq.client.consumer.push.listener_tasks import ListenerTasks
from pyromq.client.consumer.push.listener_threads import ListenerThreads
from pyromq.client.consumer.push.process_queue import ConsumeRequest, ProcessQueue
from pyromq.clock import Clock
from pyromq.message import StoredMessage
from pyromq.remoting.bodies import ConsumeDirectlyResult, encode_body
from pyromq.remoting.command import Reply

# What an administrator reads. Source: CMResult.
_RETURNED = {None: "CR_SUCCESS", Ack.DONE: "CR_SUCCESS", Ack.COMMIT: "CR_COMMIT", Ack.ROLLBACK: "CR_ROLLBACK"}


class DirectConsuming:
    """One call at a time, beside the usual consumption."""

    def __init__(self, group: str, clock: Clock, *, orderly: bool) -> None:
        self._clock = clock
        self._orderly = orderly
        self._answers: dict[ConsumeRequest, Future[Reply]] = {}
        self._threads = ListenerThreads[ConsumeRequest](1, self._finished, name=f"pyromq {group} directly")
        self._tasks = ListenerTasks[ConsumeRequest](1, self._finished, name=f"listener of {group}, directly")

    def consume(self, listener: Listening, message: StoredMessage) -> Future[Reply]:
        """Call the listener; the future gets the answer for the administrator."""
        listener = listener.of_message(message)
        request = ConsumeRequest(
            ProcessQueue(message.queue, message.queue_offset, self._clock.monotonic), listener, [message]
        )
        future = self._answers[request] = Future()
        (self._tasks if listener.in_task else self._threads).submit([request])
        return future

    async def stop(self) -> None:
        self._threads.stop()
        await self._tasks.stop()

    def _finished(self, request: ConsumeRequest) -> None:
        assert request.started is not None
        result = ConsumeDirectlyResult(
            order=self._orderly,
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
