"""Pulls messages ahead into the `AssignedQueue`s of a pull consumer: one task per queue, within the limits."""

from __future__ import annotations

import asyncio

from pyromq.client.client_config import ConsumerConfig
from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.client.cluster.known_masters import MASTER
from pyromq.client.consumer.consumer_status import ConsumptionRates
from pyromq.client.consumer.pull.assigned_queue import AssignedQueue
from pyromq.client.consumer.pulling import DamagedMessagePolicy, PullRequest, PullStatus, pull
from pyromq.client.consumer.push.send_back import SendBack
from pyromq.client.consumer.queue_offsets import QueueOffsets
from pyromq.errors import MQError, TopicNotFound
from pyromq.logs import logger_of
from pyromq.message import MessageQueue

logger = logger_of(__name__)

GONE_SECONDS = 3.0  # limit up to which a missing topic counts as being created again: polls raise no error


class Prefetch:
    """The tasks that pull ahead, one per queue; they end with the client's tasks.

    `changed` is set when there are messages to hand out or an error to raise. The consumer sets `room` when messages
    were handed out or a queue was resumed.
    """

    def __init__(
        self,
        group: str,
        cluster: ClusterClient,
        *,
        offsets: QueueOffsets,
        config: ConsumerConfig,
        rates: ConsumptionRates,
    ) -> None:
        self.changed = asyncio.Event()
        self.room = asyncio.Event()
        self._group = group
        self._cluster = cluster
        self._offsets = offsets
        self._config = config
        self._clock = rates.clock
        self._rates = rates
        self._tasks: dict[MessageQueue, asyncio.Task[None]] = {}
        # Refusals of pulls, until raised by a poll or until pulling works.
        self._failures: dict[MessageQueue, MQError] = {}
        given_back = SendBack(group, cluster, rates.clock, max_retries=None)
        self._damage = DamagedMessagePolicy(group, config, given_back)
        self._troubled: set[MessageQueue] = set()

    @property
    def damaged_count(self) -> int:
        """The number of damaged and undecodable messages."""
        return self._damage.count

    def begin(self, assigned: AssignedQueue) -> None:
        """Pull from the queue's `fetch_offset` on. The response to a running pull is ignored."""
        self.end(assigned)
        self._tasks[assigned.queue] = self._cluster.tasks.start(
            self._fetch_for_ever(assigned), name=f"pull {assigned.queue}"
        )

    def begin_once(self, assigned: AssignedQueue) -> None:
        """Pull from the queue's `fetch_offset` on, unless a task pulls the queue already."""
        if assigned.queue not in self._tasks:
            self.begin(assigned)

    def end(self, assigned: AssignedQueue) -> None:
        """Stop pulling a queue and forget a refusal of its pulls."""
        self._failures.pop(assigned.queue, None)
        running = self._tasks.pop(assigned.queue, None)
        if running is not None:
            running.cancel()

    def take_failure(self) -> MQError | None:
        """Return and forget a broker's refusal of a pull; None if there is none."""
        return self._failures.popitem()[1] if self._failures else None

    async def _fetch_for_ever(self, assigned: AssignedQueue) -> None:
        while True:
            while self._is_full(assigned):
                self.room.clear()
                await self.room.wait()
            try:
                await self._fetch(assigned)
            except MQError as error:
                if not isinstance(error, TopicNotFound) or self._is_gone(assigned):
                    self._tell(assigned.queue, error)
                await self._clock.sleep(self._config.retry_seconds)

    def _is_gone(self, assigned: AssignedQueue) -> bool:
        """Restart a queue at 0, as its topic is missing. Return whether the topic is missing for `GONE_SECONDS`."""
        assigned.reset_to_start(forgotten=self._config.offset_store is None)
        now = self._clock.monotonic()
        if assigned.gone_since is None:
            assigned.gone_since = now
        return now - assigned.gone_since >= GONE_SECONDS

    def _is_full(self, assigned: AssignedQueue) -> bool:
        config = self._config
        return (
            assigned.paused
            or assigned.ready_count >= config.buffered_messages
            or assigned.ready_bytes >= config.buffered_bytes
        )

    async def _fetch(self, assigned: AssignedQueue) -> None:
        config = self._config
        # A pull of a missing topic does not wait: it only asks whether the topic is back.
        wait_seconds = config.long_poll_seconds if assigned.gone_since is None else 0.0
        request = PullRequest.ahead(
            config,
            assigned.wanted,
            room=config.buffered_messages,
            wait_seconds=wait_seconds,
            broker_id=assigned.broker_id,
        )
        began = self._clock.monotonic()
        at_master = self._cluster.has_master(assigned.queue)
        result = await pull(self._cluster, self._group, assigned.queue, assigned.fetch_offset, request=request)
        if result.status is PullStatus.OFFSET_MOVED and assigned.broker_id != MASTER:
            assigned.broker_id = MASTER  # a replica may be behind: the master decides
            return
        if result.status is PullStatus.OFFSET_MOVED and not (at_master and self._cluster.has_master(assigned.queue)):
            await self._clock.sleep(config.retry_seconds)  # a replica stands in for the master
            return
        self._failures.pop(assigned.queue, None)
        assigned.gone_since = None
        assigned.broker_id = result.suggested_broker_id
        assigned.pulled_ms = self._clock.now_ms()
        if result.status is PullStatus.OFFSET_MOVED:
            asked, latest_ms = assigned.fetch_offset, assigned.latest_ms
            assigned.correct(await self._offsets.corrected(self._group, result, asked=asked, latest_ms=latest_ms))
        else:
            messages, next_offset, failure = await self._damage.sift(result)
            if messages:
                tally = self._rates.tally(assigned.queue.topic)
                tally.pull(len(messages), self._clock.monotonic() - began)
            if assigned.add(messages, next_offset):
                self.changed.set()
            if failure is not None:
                raise failure
        if assigned.queue in self._troubled:
            self._troubled.discard(assigned.queue)
            logger.info("group %s: pulling %s works again", self._group, assigned.queue)

    def _tell(self, queue: MessageQueue, error: MQError) -> None:
        """Keep a broker's refusal for the next poll to raise. Log a retriable error once, until pulling works again."""
        if not error.retriable:
            self._failures[queue] = error
            self.changed.set()
        elif queue not in self._troubled:
            self._troubled.add(queue)
            logger.warning("group %s: pulling %s fails, retrying: %s", self._group, queue, error)
