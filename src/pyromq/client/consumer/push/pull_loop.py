"""Pulls messages of owned queues, each queue in a task of its own, within bounds, for ever.

Hands what it gets to `deliver`; decides nothing about consumption. Source: RocketMQ 4.9.8, DefaultMQPushConsumerImpl.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.client.cluster.routes import MASTER
from pyromq.client.config import ConsumerConfig
from pyromq.client.consumer.consumption_rates import ConsumptionRates
from pyromq.client.consumer.damage import MessageDamaged
from pyromq.client.consumer.damaged_message_policy import DamagedMessagePolicy
from pyromq.client.consumer.pulling import PullRequest, PullResult, PullStatus, pull
from pyromq.client.consumer.push.owned_queue import OwnedQueue
from pyromq.client.consumer.push.process_queue import ProcessQueue
from pyromq.client.consumer.queue_offsets import QueueOffsets
from pyromq.clock import Clock
from pyromq.errors import FlowControl, MQError, TopicNotFound
from pyromq.filter.subscribed import Wanted
from pyromq.logs import logger_of
from pyromq.message import MessageQueue, StoredMessage
from pyromq.names import RETRY_PREFIX

logger = logger_of(__name__)

STUCK_SECONDS = 120.0  # a queue that was not pulled for so long is taken again. Source: ProcessQueue.isPullExpired
FLOW_CONTROL_SECONDS = 0.02  # after the broker asked to slow down. Source: PULL_TIME_DELAY_MILLS_WHEN_FLOW_CONTROL


@dataclass(slots=True)
class Limits:
    """How much may be in flight per queue; lower than configured where a limit per topic is shared by its queues."""

    count: int
    size: int
    span: int | None


class PullLoops:
    """The pull loops of one consumer. `subscription(topic)` is asked for filter and limits before each pull.

    `begin_anew(queue)` is called when the queue's topic is gone: one made later by its name begins at 0. `stops` is
    told of a damage that a queue is not to go beyond, once what is before it is consumed.
    """

    def __init__(
        self,
        group: str,
        cluster: ClusterClient,
        config: ConsumerConfig,
        *,
        clock: Clock,
        subscription: Callable[[str], tuple[Wanted, Limits]],
        deliver: Callable[[ProcessQueue, list[StoredMessage], int], None],
        begin_anew: Callable[[MessageQueue], None],
        damage: DamagedMessagePolicy,
        stops: Callable[[MessageDamaged], None],
        rates: ConsumptionRates,
    ) -> None:
        self._group = group
        self._cluster = cluster
        self._config = config
        self._commits = not config.broadcast and config.offset_store is None  # brokers keep the offsets
        self._clock = clock
        self._subscription = subscription
        self._deliver = deliver
        self._begin_anew = begin_anew
        self._damage = damage
        self._stops = stops
        self._rates = rates
        self._offsets = QueueOffsets(cluster, timeout=config.timeout)
        self._going = asyncio.Event()
        self._going.set()

    @property
    def paused(self) -> bool:
        return not self._going.is_set()

    def pause(self) -> None:
        """Pull nothing until `resume`; what is on its way is delivered."""
        self._going.clear()

    def resume(self) -> None:
        self._going.set()

    def is_stuck(self, owned: OwnedQueue) -> bool:
        """Whether a queue was not pulled for long, though there is room and nobody paused."""
        patience = max(STUCK_SECONDS, 2 * (self._config.long_poll_seconds + self._config.timeout))
        return not owned.full and not self.paused and self._clock.monotonic() - owned.pulled > patience

    async def run(self, owned: OwnedQueue) -> None:
        """Pull one queue until it is dropped or the task is cancelled."""
        tally = owned.process_queue.tally = self._rates.tally(owned.topic)
        while not owned.dropped:
            wanted, limits = self._subscription(owned.topic)
            await self._going.wait()
            await self._room(owned, limits)
            try:
                result = await self._pull(owned, wanted, limits)
                messages, next_offset, failure = await self._damage.sift(result)
            except MQError as error:
                if isinstance(error, TopicNotFound) and owned.process_queue.next_offset:
                    self._begin_anew(owned.queue)  # brokers of ours have said so before
                else:
                    self._tell(owned, error)
                await self._pause(error)
                continue
            if owned.troubled:
                owned.troubled = False
                logger.info("group %s: pulling %s works again", self._group, owned.queue)
            if result.status is not PullStatus.OFFSET_MOVED:
                owned.broker_id = result.suggested_broker_id
                if messages:
                    owned.latest_ms = messages[-1].store_ms
                    tally.pull(len(messages), self._clock.monotonic() - owned.pulled)
                if not owned.dropped:
                    self._deliver(owned.process_queue, self._renamed(owned, messages), next_offset)
                if messages and self._config.pull_interval_seconds:
                    await self._clock.sleep(self._config.pull_interval_seconds)
                if failure is not None:
                    await self._empty(owned)
                    self._stops(failure)
                    self._tell(owned, failure)
                    await self._pause(failure)
            elif owned.broker_id != MASTER:
                owned.broker_id = MASTER  # a replica is not believed
            else:
                await self._correct(owned, result)

    def _renamed(self, owned: OwnedQueue, messages: list[StoredMessage]) -> list[StoredMessage]:
        """Let messages that come again have the topic that they were sent to. Source: resetRetryAndNamespace."""
        if owned.topic.startswith(RETRY_PREFIX):
            for message in messages:
                message.topic = self._cluster.names.unwrap(message.original_topic)
        return messages

    async def _pause(self, error: MQError) -> None:
        """Wait before a queue is pulled again."""
        await self._clock.sleep(FLOW_CONTROL_SECONDS if isinstance(error, FlowControl) else self._config.retry_seconds)

    async def _room(self, owned: OwnedQueue, limits: Limits) -> None:
        """Wait while as much is in flight as may be."""
        process_queue = owned.process_queue
        while (
            process_queue.count >= limits.count
            or process_queue.size >= limits.size
            or (limits.span is not None and process_queue.span > limits.span)
        ):
            owned.full = True
            process_queue.changed.clear()
            await process_queue.changed.wait()
        if owned.full:
            owned.full, owned.pulled = False, self._clock.monotonic()

    async def _empty(self, owned: OwnedQueue) -> None:
        """Wait until all that is in flight is consumed."""
        process_queue = owned.process_queue
        while process_queue.requests and not owned.dropped:
            process_queue.changed.clear()
            await process_queue.changed.wait()

    async def _pull(self, owned: OwnedQueue, wanted: Wanted, limits: Limits) -> PullResult:
        config = self._config
        safe = owned.process_queue.safe_offset
        commit = safe if self._commits and safe > 0 and owned.broker_id == MASTER else None
        owned.pulled, owned.pulled_ms = self._clock.monotonic(), self._clock.now_ms()
        request = PullRequest.ahead(
            config,
            wanted,
            room=limits.count,
            wait_seconds=config.long_poll_seconds,
            broker_id=owned.broker_id,
            commit_offset=commit,
        )
        result = await pull(self._cluster, self._group, owned.queue, owned.process_queue.next_offset, request=request)
        if commit is not None and owned.committed >= 0:  # the first one may get lost, see QueueOffsets.commit
            owned.committed = commit
        return result

    async def _correct(self, owned: OwnedQueue, result: PullResult) -> None:
        """Go on where the queue has messages; what is in flight stays.

        Done at once: messages that arrive while one waits would be taken for consumed.
        """
        asked = owned.process_queue.next_offset
        try:
            offset = await self._offsets.corrected(self._group, result, asked=asked, latest_ms=owned.latest_ms)
        except MQError as error:
            self._tell(owned, error)
            await self._clock.sleep(self._config.retry_seconds)
        else:
            owned.process_queue.next_offset = offset

    def _tell(self, owned: OwnedQueue, error: MQError) -> None:
        """A trouble is logged once, until the queue works again."""
        if not owned.troubled:
            owned.troubled = True
            logger.warning("group %s: pulling %s fails, trying again: %s", self._group, owned.queue, error)
