"""What a push consumer answers when a broker asks: the group changed, go on elsewhere, how far are you, how are you.

Source: RocketMQ 4.9.8, ClientRemotingProcessor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from pyromq.client.config import ConsumerConfig
from pyromq.client.consumer.push.consume_directly import DirectConsuming
from pyromq.client.consumer.push.listener import Listening
from pyromq.client.consumer.push.owned_queue import OwnedQueue
from pyromq.errors import BrokerError
from pyromq.message import MessageQueue
from pyromq.record import decode
from pyromq.remoting.bodies import (
    ConsumerEntry,
    ConsumerRunning,
    ConsumerStatus,
    PulledQueue,
    ResetOffsets,
    decode_body,
    encode_body,
)
from pyromq.remoting.codes import VERSION_NAME
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import (
    ConsumeDirectly,
    ConsumerIdsChanged,
    ConsumerRunningState,
    ConsumerStatusOfClient,
    ResetClientOffset,
)


@dataclass(frozen=True, slots=True)
class Consumption:
    """What others may know of a consumer, and what they may have it do.

    `entry` is what heartbeats say; `reset(offsets)` goes on with queues elsewhere; `wake()` shares queues out again.
    """

    group: str
    config: ConsumerConfig
    owned: Mapping[MessageQueue, OwnedQueue]
    entry: Callable[[], ConsumerEntry]
    listening: Callable[[str], Listening]
    reset: Callable[[dict[MessageQueue, int]], None]
    wake: Callable[[], None]


class ConsumerReporting:
    """Answers for one consumer. `started_ms` is set when it starts."""

    def __init__(self, consumption: Consumption, direct: DirectConsuming) -> None:
        self.started_ms = 0
        self._consumption = consumption
        self._direct = direct

    @answers(ConsumerIdsChanged)
    def members_changed(self, header: ConsumerIdsChanged, call: Call) -> Reply:
        """Somebody came or left."""
        self._consumption.wake()
        return Reply()

    @answers(ResetClientOffset)
    def reset(self, header: ResetClientOffset, call: Call) -> Reply:
        """An administrator moves the group: go on at the given offsets. Source: ResetOffsetBody, both forms."""
        self._check(header.group)
        table = decode_body(ResetOffsets, call.body).offsets
        if isinstance(table, list):
            table = {MessageQueue(each.topic, each.broker_name, each.queue_id): each.offset for each in table}
        self._consumption.reset(table)
        return Reply()

    @answers(ConsumerStatusOfClient)
    def status(self, header: ConsumerStatusOfClient, call: Call) -> Reply:
        """How far each queue of a topic is."""
        self._check(header.group)
        offsets = {q: owned.process_queue.safe_offset for q, owned in self._owned() if q.topic == header.topic}
        return Reply(body=encode_body(ConsumerStatus(queues=offsets)))

    @answers(ConsumerRunningState)
    def running(self, header: ConsumerRunningState, call: Call) -> Reply:
        """The consumer's settings, queues and subscriptions; there is no thread dump."""
        self._check(header.consumer_group)
        entry, config = self._consumption.entry(), self._consumption.config
        body = ConsumerRunning(
            properties={
                "PROP_CONSUME_TYPE": entry.consume_type,
                "PROP_CLIENT_VERSION": VERSION_NAME,
                "PROP_CONSUMEORDERLY": str(config.orderly).lower(),
                "PROP_CONSUMER_START_TIMESTAMP": str(self.started_ms),
                "PROP_THREADPOOL_CORE_SIZE": str(config.concurrency),
                "consumerGroup": entry.group,
                "messageModel": entry.message_model,
                "consumeFromWhere": entry.consume_from,
                "consumeMessageBatchMaxSize": str(config.batch),
                "pullBatchSize": str(config.pull_count),
                "pullThresholdForQueue": str(config.buffered_messages),
                "consumeConcurrentlyMaxSpan": str(config.buffered_span),
            },
            subscriptions=entry.subscriptions,
            queues={queue: _pulled(owned) for queue, owned in self._owned()},
        )
        return Reply(body=encode_body(body))

    @answers(ConsumeDirectly)
    def consume_directly(self, header: ConsumeDirectly, call: Call) -> Future[Reply]:
        """Run the listener on one message; offsets and retries are not touched."""
        self._check(header.consumer_group)
        message = decode(call.body, check_crc=self._consumption.config.verify_checksums)
        message.broker_name = header.broker_name or ""
        return self._direct.consume(self._consumption.listening(message.original_topic), message)

    def _owned(self) -> Iterable[tuple[MessageQueue, OwnedQueue]]:
        return sorted(self._consumption.owned.items())

    def _check(self, group: str) -> None:
        if group != self._consumption.group:
            raise BrokerError(f"The Consumer Group <{group}> not exist in the consumer")


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
