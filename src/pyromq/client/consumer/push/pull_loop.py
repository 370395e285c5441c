"""Pulls messages of assigned queues within limits, with one task per queue, and passes the messages to `deliver`.

Source: RocketMQ 4.9.8, DefaultMQPushConsumerImpl.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from pyromq.client.client_config import ConsumerConfig
from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.client.cluster.known_masters import MASTER
from pyromq.client.consumer.consumer_status import ConsumptionRates
from pyromq.client.consumer.pulling import (
    DamagedMessagePolicy,
    MessageDamaged,
    PullRequest,
    PullResult,
    PullStatus,
    pull,
)
from pyromq.client.consumer.push.process_queue import ProcessQueue
from pyromq.client.consumer.queue_offsets import QueueOffsets
from pyromq.clock import Clock
from pyromq.errors import FlowControl, MQError, TopicNotFound
from pyromq.filter.filter import Wanted
from pyromq.logs import logger_of
from pyromq.message import MessageQueue, StoredMessage
from pyromq.names import RETRY_PREFIX

logger = logger_of(__name__)

STUCK_SECONDS = 120.0  # a queue not pulled for this long is acquired again. Source: ProcessQueue.isPullExpired
FLOW_CONTROL_SECONDS = 0.02  # pause after a broker reported overload. Source: PULL_TIME_DELAY_MILLS_WHEN_FLOW_CONTROL


class PullLoops:
    """The pull loops of one consumer with the queues in `assigned`. `wanted(topic)` returns a topic's filter.

    `reset_to_start(queue)` is called for a queue of a deleted topic, since a new topic of this name starts at offset 0.
    `stops(error)` is called for a damaged message that stops the consumer, after all messages before it are consumed.
    """

    def __init__(
        self,
        group: str,
        cluster: ClusterClient,
        config: ConsumerConfig,
        *,
        clock: Clock,
        assigned: Mapping[MessageQueue, ProcessQueue],
        wanted: Callable[[str], Wanted],
        deliver: Callable[[ProcessQueue, list[StoredMessage], int], None],
        reset_to_start: Callable[[MessageQueue], None],
        damage: DamagedMessagePolicy,
        stops: Callable[[MessageDamaged], None],
        rates: ConsumptionRates,
    ) -> None:
        self._group = group
        self._cluster = cluster
        self._config = config
        self._commits = not config.broadcast and config.offset_store is None  # True if brokers keep the offsets
        self._clock = clock
        self._assigned = assigned
        self._wanted = wanted
        self._deliver = deliver
        self._reset_to_start = reset_to_start
        self._damage = damage
        self._stops = stops
        self._rates = rates
        self._offsets = QueueOffsets(cluster, timeout=config.timeout)
        self._resumed = asyncio.Event()
        self._resumed.set()

    @property
    def paused(self) -> bool:
        return not self._resumed.is_set()

    def pause(self) -> None:
        """Stop pulling until `resume`; responses to running pulls are still delivered."""
        self._resumed.clear()

    def resume(self) -> None:
        self._resumed.set()

    def is_stuck(self, assigned: ProcessQueue) -> bool:
        """Return whether a queue was not pulled for `STUCK_SECONDS` or longer without a reason.

        Reasons are paused pulling and a reached limit of messages in flight.
        """
        longest = max(STUCK_SECONDS, 2 * (self._config.long_poll_seconds + self._config.timeout))
        return not assigned.full and not self.paused and self._clock.monotonic() - assigned.pulled_at > longest

    async def run(self, assigned: ProcessQueue) -> None:
        """Pull one queue until it is dropped or the task is cancelled."""
        tally = assigned.tally = self._rates.tally(assigned.queue.topic)
        while not assigned.dropped:
            await self._resumed.wait()
            limit = self._share(self._config.buffered_messages, self._config.topic_buffered_messages)
            await self._wait_for_room(assigned, limit)
            at_master = self._cluster.has_master(assigned.queue)
            try:
                result = await self._pull(assigned, limit)
                messages, next_offset, failure = await self._damage.sift(result)
            except MQError as error:
                await self._after_refusal(assigned, error)
                continue
            if assigned.is_failing:
                assigned.is_failing = False
                logger.info("group %s: pulling %s works again", self._group, assigned.queue)
            if result.status is not PullStatus.OFFSET_MOVED:
                assigned.broker_id = result.suggested_broker_id
                if messages:
                    assigned.latest_ms = messages[-1].store_ms
                    tally.pull(len(messages), self._clock.monotonic() - assigned.pulled_at)
                if not assigned.dropped:
                    self._deliver(assigned, self._renamed(assigned, messages), next_offset)
                if messages and self._config.pull_interval_seconds:
                    await self._clock.sleep(self._config.pull_interval_seconds)
                if failure is not None:
                    await self._stop_at(assigned, failure)
            elif assigned.broker_id != MASTER:
                assigned.broker_id = MASTER  # the replica may lack the latest messages: the master decides
            elif at_master and self._cluster.has_master(assigned.queue):
                await self._correct(assigned, result)
            else:
                await self._clock.sleep(self._config.retry_seconds)

    async def _after_refusal(self, assigned: ProcessQueue, error: MQError) -> None:
        """Wait before the next pull. The queue of a deleted topic is reset, since a new topic starts at offset 0."""
        if isinstance(error, TopicNotFound) and assigned.next_offset:
            # A pyromq broker has requested this reset already; other brokers do not.
            self._reset_to_start(assigned.queue)
        else:
            self._warn_once(assigned, error)
        await self._pause(error)

    async def _stop_at(self, assigned: ProcessQueue, damage: MessageDamaged) -> None:
        """Report a damaged message once all earlier messages are consumed, and wait before the next pull."""
        await self._wait_until_consumed(assigned)
        self._stops(damage)
        self._warn_once(assigned, damage)
        await self._pause(damage)

    def _renamed(self, assigned: ProcessQueue, messages: list[StoredMessage]) -> list[StoredMessage]:
        """Give redelivered messages their original topic. Return the messages. Source: resetRetryAndNamespace."""
        if assigned.queue.topic.startswith(RETRY_PREFIX):
            for message in messages:
                message.topic = self._cluster.names.unwrap(message.original_topic)
        return messages

    async def _pause(self, error: MQError) -> None:
        """Wait before a queue whose pull failed is pulled again."""
        await self._clock.sleep(FLOW_CONTROL_SECONDS if isinstance(error, FlowControl) else self._config.retry_seconds)

    def _share(self, limit: int, topic_limit: int | None) -> int:
        """Return the limit of one queue; a limit per topic is divided among all queues. Source: messageQueueChanged."""
        return limit if topic_limit is None else min(limit, max(1, topic_limit // max(1, len(self._assigned))))

    async def _wait_for_room(self, assigned: ProcessQueue, limit: int) -> None:
        """Wait while `limit` messages of a queue, or as many bytes or offsets as configured, are in flight."""
        config = self._config
        size = self._share(config.buffered_bytes, config.topic_buffered_bytes)
        while (
            assigned.count >= limit
            or assigned.size >= size
            or (not config.orderly and assigned.span > config.buffered_span)
        ):
            assigned.full = True
            assigned.changed.clear()
            await assigned.changed.wait()
        if assigned.full:
            assigned.full, assigned.pulled_at = False, self._clock.monotonic()

    async def _wait_until_consumed(self, assigned: ProcessQueue) -> None:
        """Wait until all messages of a queue in flight are consumed, or the queue is dropped."""
        while assigned.requests and not assigned.dropped:
            assigned.changed.clear()
            await assigned.changed.wait()

    async def _pull(self, assigned: ProcessQueue, limit: int) -> PullResult:
        config = self._config
        safe = assigned.safe_offset
        commit = None
        if self._commits and safe > 0 and assigned.broker_id == MASTER and self._cluster.has_master(assigned.queue):
            commit = safe  # a replica would not store it
        assigned.pulled_at, assigned.pulled_ms = self._clock.monotonic(), self._clock.now_ms()
        request = PullRequest.ahead(
            config,
            self._wanted(assigned.queue.topic),
            room=limit,
            wait_seconds=config.long_poll_seconds,
            broker_id=assigned.broker_id,
            commit_offset=commit,
        )
        result = await pull(self._cluster, self._group, assigned.queue, assigned.next_offset, request=request)
        if commit is not None and assigned.committed >= 0:  # the first commit is sent alone, see QueueOffsets.commit
            assigned.committed = commit
        return result

    async def _correct(self, assigned: ProcessQueue, result: PullResult) -> None:
        """Continue pulling at an offset inside the queue; messages in flight stay.

        There is no pause before: the corrected offset would skip messages that arrive during a pause.
        """
        asked = assigned.next_offset
        try:
            offset = await self._offsets.corrected(self._group, result, asked=asked, latest_ms=assigned.latest_ms)
        except MQError as error:
            self._warn_once(assigned, error)
            await self._clock.sleep(self._config.retry_seconds)
        else:
            assigned.next_offset = offset

    def _warn_once(self, assigned: ProcessQueue, error: MQError) -> None:
        if not assigned.is_failing:
            assigned.is_failing = True
            logger.warning("group %s: pulling %s fails, retrying: %s", self._group, assigned.queue, error)
