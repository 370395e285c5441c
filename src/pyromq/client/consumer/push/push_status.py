"""What a push consumer shows of itself, and running its listener on one message that an administrator names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future

from pyromq.client.cluster.namespace import Namespace
from pyromq.client.config import ConsumerConfig
from pyromq.client.consumer.consumer_status import Consumption
from pyromq.client.consumer.push.consume_directly import DirectConsuming
from pyromq.client.consumer.push.listener import Listening
from pyromq.client.consumer.push.owned_queue import OwnedQueue
from pyromq.message import MessageQueue
from pyromq.record import decode
from pyromq.remoting.bodies import ConsumerEntry, PulledQueue
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import ConsumeDirectly


def consumption(
    owned: Mapping[MessageQueue, OwnedQueue],
    config: ConsumerConfig,
    *,
    entry: Callable[[], ConsumerEntry],
    reset: Callable[[dict[MessageQueue, int]], None],
    wake: Callable[[], None],
) -> Consumption:
    """Return what others may know and do of a consumer that owns these queues."""
    settings = {
        "PROP_CONSUMEORDERLY": str(config.orderly).lower(),
        "PROP_THREADPOOL_CORE_SIZE": str(config.concurrency),
        "consumeMessageBatchMaxSize": str(config.batch),
        "consumeConcurrentlyMaxSpan": str(config.buffered_span),
    }
    return Consumption(
        config,
        settings,
        entry,
        positions=lambda: {queue: each.process_queue.safe_offset for queue, each in owned.items()},
        queues=lambda: {queue: _pulled(each) for queue, each in owned.items()},
        reset=reset,
        wake=wake,
    )


class ConsumingDirectly:
    """Answers for the listeners: `listening(topic)`. Who asks says names as `names` wraps them."""

    def __init__(
        self,
        consumption: Consumption,
        direct: DirectConsuming,
        names: Namespace,
        *,
        listening: Callable[[str], Listening],
    ) -> None:
        self._consumption = consumption
        self._direct = direct
        self._names = names
        self._listening = listening

    @answers(ConsumeDirectly)
    def consume(self, header: ConsumeDirectly, call: Call) -> Future[Reply]:
        """Run the listener on one message; offsets and retries are not touched."""
        self._consumption.check(header.consumer_group)
        message = decode(call.body, check_crc=self._consumption.config.verify_checksums)
        message.broker_name = header.broker_name or ""
        message.topic = self._names.unwrap(message.original_topic)
        return self._direct.consume(self._listening(message.topic), message)


def _pulled(owned: OwnedQueue) -> PulledQueue:
    requests = owned.process_queue.requests
    return PulledQueue(
        commit_offset=owned.process_queue.safe_offset,
        cached_min_offset=requests[0].first_offset if requests else 0,
        cached_max_offset=requests[-1].messages[-1].queue_offset if requests else 0,
        cached_count=owned.process_queue.count,
        cached_mebibytes=owned.process_queue.size >> 20,
        locked=owned.locked_ms > 0,
        last_lock_ms=owned.locked_ms,
        dropped=owned.dropped,
        last_pull_ms=owned.pulled_ms,
        last_consume_ms=owned.process_queue.consumed_ms,
    )
