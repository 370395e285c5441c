"""Calls a listener with one message that an administrator chose, and replies with the listener's result.

Source: RocketMQ 4.9.8, ConsumeMessageConcurrentlyService.consumeMessageDirectly.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from pyromq.client.cluster.namespace import Namespace
from pyromq.client.consumer.consumer_status_processor import ConsumerInternals
from pyromq.client.consumer.push.listener import Ack, BoundListener, RetryLater, reason_text
from pyromq.client.consumer.push.listener_tasks import ListenerTasks
from pyromq.client.consumer.push.listener_threads import ListenerThreads
from pyromq.client.consumer.push.process_queue import ConsumeRequest, ProcessQueue
from pyromq.clock import Clock
from pyromq.record import decode
from pyromq.remoting.bodies import ConsumeDirectlyResult, encode_body
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import ConsumeDirectly

# Result names in the reply. Source: CMResult.
_RETURNED = {None: "CR_SUCCESS", Ack.DONE: "CR_SUCCESS", Ack.COMMIT: "CR_COMMIT", Ack.ROLLBACK: "CR_ROLLBACK"}


class ConsumeDirectlyProcessor:
    """Calls listeners for administrators, one at a time, beside the usual consumption.

    `listener(topic)` returns the topic's listener. Requests name topics with the namespace of `names`.
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
        self._threads = ListenerThreads[ConsumeRequest](1, self._finished, name=f"pyromq {group} directly")
        self._tasks = ListenerTasks[ConsumeRequest](1, self._finished, name=f"listener of {group}, directly")

    @answers(ConsumeDirectly)
    def consume(self, header: ConsumeDirectly, call: Call) -> Future[Reply]:
        """Call the listener with one message. Offsets and retries do not change."""
        self._internals.check(header.consumer_group)
        message = decode(call.body, check_crc=self._internals.config.verify_checksums)
        message.broker_name = header.broker_name or ""
        message.topic = self._names.unwrap(message.original_topic)
        listener = self._listener(message.topic).of_message(message)
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
