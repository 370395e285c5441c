"""What every consumer answers when a broker asks: the group changed, go on elsewhere, how far are you, how are you.

Source: RocketMQ 4.9.8, ClientRemotingProcessor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyromq.client.config import ConsumerConfig
from pyromq.errors import BrokerError
from pyromq.message import MessageQueue
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
    ConsumerIdsChanged,
    ConsumerRunningState,
    ConsumerStatusOfClient,
    ResetClientOffset,
)


@dataclass(frozen=True, slots=True)
class Consumption:
    """What others may know of a consumer, and what they may have it do.

    `entry` is what heartbeats say, `settings` what its kind of consumer adds to them; `positions` is how far each queue
    is. `reset(offsets)` goes on with queues elsewhere; `wake()` shares the queues out again.
    """

    config: ConsumerConfig
    settings: dict[str, str]
    entry: Callable[[], ConsumerEntry]
    positions: Callable[[], dict[MessageQueue, int]]
    queues: Callable[[], dict[MessageQueue, PulledQueue]]
    reset: Callable[[dict[MessageQueue, int]], None]
    wake: Callable[[], None]

    def check(self, group: str) -> None:
        """Raises `BrokerError` for the question about another group."""
        if group != self.entry().group:
            raise BrokerError(f"The Consumer Group <{group}> not exist in the consumer")


class Reporting:
    """Answers for one consumer. `started_ms` is set when it starts."""

    def __init__(self, consumption: Consumption) -> None:
        self.started_ms = 0
        self._consumption = consumption

    @answers(ConsumerIdsChanged)
    def members_changed(self, header: ConsumerIdsChanged, call: Call) -> Reply:
        """Somebody came or left."""
        self._consumption.wake()
        return Reply()

    @answers(ResetClientOffset)
    def reset(self, header: ResetClientOffset, call: Call) -> Reply:
        """An administrator moves the group: go on at the given offsets. Source: ResetOffsetBody, both forms."""
        self._consumption.check(header.group)
        table = decode_body(ResetOffsets, call.body).offsets
        if isinstance(table, list):
            table = {MessageQueue(each.topic, each.broker_name, each.queue_id): each.offset for each in table}
        self._consumption.reset(table)
        return Reply()

    @answers(ConsumerStatusOfClient)
    def status(self, header: ConsumerStatusOfClient, call: Call) -> Reply:
        """How far each queue of a topic is."""
        self._consumption.check(header.group)
        positions = self._consumption.positions()
        of_topic = {queue: offset for queue, offset in sorted(positions.items()) if queue.topic == header.topic}
        return Reply(body=encode_body(ConsumerStatus(queues=of_topic)))

    @answers(ConsumerRunningState)
    def running(self, header: ConsumerRunningState, call: Call) -> Reply:
        """The consumer's settings, queues and subscriptions; there is no thread dump."""
        self._consumption.check(header.consumer_group)
        entry, config = self._consumption.entry(), self._consumption.config
        body = ConsumerRunning(
            properties={
                "PROP_CONSUME_TYPE": entry.consume_type,
                "PROP_CLIENT_VERSION": VERSION_NAME,
                "PROP_CONSUMER_START_TIMESTAMP": str(self.started_ms),
                "consumerGroup": entry.group,
                "messageModel": entry.message_model,
                "consumeFromWhere": entry.consume_from,
                "pullBatchSize": str(config.pull_count),
                "pullThresholdForQueue": str(config.buffered_messages),
                **self._consumption.settings,
            },
            subscriptions=entry.subscriptions,
            queues=dict(sorted(self._consumption.queues().items())),
        )
        return Reply(body=encode_body(body))
