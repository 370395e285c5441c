"""What a pull consumer answers when a broker asks: the group changed, go on elsewhere, how far are you, how are you."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyromq.client.config import ConsumerConfig
from pyromq.client.consumer.pull.assigned_queue import AssignedQueue
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


class Reporting:
    """Reads the assigned queues; moving them is left to `go_on_at(queue, offset)`, sharing them out again to `wake()`.

    `started_ms` is set when the consumer starts.
    """

    def __init__(
        self,
        assigned: Mapping[MessageQueue, AssignedQueue],
        config: ConsumerConfig,
        *,
        entry: Callable[[], ConsumerEntry],
        go_on_at: Callable[[AssignedQueue, int], None],
        wake: Callable[[], None],
    ) -> None:
        self.started_ms = 0
        self._assigned = assigned
        self._config = config
        self._entry = entry
        self._go_on_at = go_on_at
        self._wake = wake

    @answers(ConsumerIdsChanged)
    def members_changed(self, header: ConsumerIdsChanged, call: Call) -> Reply:
        """Somebody came or left."""
        self._wake()
        return Reply()

    @answers(ResetClientOffset)
    def reset(self, header: ResetClientOffset, call: Call) -> Reply:
        """An administrator moves the group: go on at the given offsets. Source: ResetOffsetBody, both forms."""
        self._check(header.group)
        table = decode_body(ResetOffsets, call.body).offsets
        if isinstance(table, list):
            table = {MessageQueue(each.topic, each.broker_name, each.queue_id): each.offset for each in table}
        for queue, offset in table.items():
            if queue in self._assigned and not self._assigned[queue].leaving:
                self._go_on_at(self._assigned[queue], offset)
        return Reply()

    @answers(ConsumerStatusOfClient)
    def status(self, header: ConsumerStatusOfClient, call: Call) -> Reply:
        """How far each queue of a topic is."""
        self._check(header.group)
        positions = {queue: a.position for queue, a in self._assigned.items() if queue.topic == header.topic}
        return Reply(body=encode_body(ConsumerStatus(queues=positions)))

    @answers(ConsumerRunningState)
    def running(self, header: ConsumerRunningState, call: Call) -> Reply:
        """The consumer's settings, queues and subscriptions; there is no thread dump."""
        self._check(header.consumer_group)
        entry, config = self._entry(), self._config
        body = ConsumerRunning(
            properties={
                "PROP_CONSUME_TYPE": entry.consume_type,
                "PROP_CLIENT_VERSION": VERSION_NAME,
                "PROP_CONSUMEORDERLY": "false",
                "PROP_CONSUMER_START_TIMESTAMP": str(self.started_ms),
                "consumerGroup": entry.group,
                "messageModel": entry.message_model,
                "consumeFromWhere": entry.consume_from,
                "pullBatchSize": str(config.pull_count),
                "pullThresholdForQueue": str(config.buffered_messages),
                "autoCommit": str(config.auto_commit).lower(),
                "autoCommitIntervalMillis": str(int(config.auto_commit_seconds * 1000)),
            },
            subscriptions=entry.subscriptions,
            queues={queue: _pulled(assigned) for queue, assigned in self._assigned.items()},
        )
        return Reply(body=encode_body(body))

    def _check(self, group: str) -> None:
        if group != self._entry().group:
            raise BrokerError(f"The Consumer Group <{group}> not exist in the consumer")


def _pulled(assigned: AssignedQueue) -> PulledQueue:
    return PulledQueue(
        commit_offset=max(assigned.committed, 0),
        cached_min_offset=assigned.position if assigned.ready_count else 0,
        cached_max_offset=assigned.fetch_offset - 1 if assigned.ready_count else 0,
        cached_count=assigned.ready_count,
        cached_mebibytes=assigned.ready_bytes >> 20,
        dropped=assigned.leaving,
        last_pull_ms=assigned.pulled_ms,
        last_consume_ms=assigned.polled_ms,
    )
