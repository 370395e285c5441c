"""Groups small messages of one queue into batches, one request each (`ProducerConfig.linger_seconds`).

A batch is sent after `linger_seconds`, or when it has `batch_bytes`. All messages of a batch go to one queue. Each
message gets its own result.
"""

from __future__ import annotations

import asyncio
from functools import partial

from pyromq.client.client_config import ProducerConfig
from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.client.producer.outbox import Outbox
from pyromq.client.producer.pending_send import PendingSend, Preparation, QueueChooser, SendEnded
from pyromq.clock import Clock
from pyromq.errors import MQError
from pyromq.message import Message, MessageQueue, SendResult
from pyromq.names import RETRY_PREFIX
from pyromq.net.tasks import take_error
from pyromq.record import MEMBER_BYTES, BatchMember, encode_batch

_Place = tuple[str, MessageQueue | None, bool]  # topic, queue chosen by the caller, `wait_stored`


class _OpenBatch:
    """Messages of one topic, chosen queue and `wait_stored` that wait for more messages."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.members: list[BatchMember] = []
        self.ids: list[str] = []
        self.futures: list[asyncio.Future[SendResult]] = []
        self.ended: list[SendEnded | None] = []
        self.size = 0
        self.bodies = 0


class ProduceAccumulator:
    """The open batches of one producer; a full batch is passed to the producer's outbox."""

    def __init__(
        self, cluster: ClusterClient, config: ProducerConfig, clock: Clock, *, outbox: Outbox, preparation: Preparation
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._clock = clock
        self._outbox = outbox
        self._preparation = preparation
        self._open: dict[_Place, _OpenBatch] = {}
        self._max_bytes = min(config.batch_bytes, config.max_message_bytes)

    def add(
        self, message: Message, choose: QueueChooser | None, timeout: float | None
    ) -> asyncio.Future[SendResult] | None:
        """Add a message to a batch and return the message's future; None if the message must be sent alone.

        Raises `UsageError` for a message that cannot be sent.
        """
        topic = self._preparation.topic(message.topic)
        place = self._place(topic, message, choose) if timeout is None and self._fits(message) else None
        if place is None:
            return None
        member, ended = self._preparation.member(message)
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        size = len(member.body) + len(member.property_text) + MEMBER_BYTES
        batch = self._open.get(place)
        if batch is not None and batch.size + size > self._max_bytes:
            self._send(place, batch)
            batch = None
        if batch is None:
            batch = self._open[place] = _OpenBatch(self._preparation.deadline(None))
            due = self._clock.monotonic() + self._config.linger_seconds
            self._cluster.tasks.start(self._send_at(due, place, batch), name=f"batch for {topic}")
        assert message.message_id is not None
        batch.members.append(member)
        batch.ids.append(message.message_id)
        batch.futures.append(future)
        batch.ended.append(ended)
        batch.size += size
        batch.bodies += len(member.body)
        self._outbox.enter(1, len(member.body))
        if batch.size >= self._max_bytes:
            self._send(place, batch)
        return future

    def send_open(self, topic: str | None = None) -> None:
        """Send the open batches of `topic`, or of all topics.

        Called before a message is sent alone, so that the order is kept.
        """
        for place, batch in list(self._open.items()):
            if topic is None or place[0] == topic:
                self._send(place, batch)

    def _fits(self, message: Message) -> bool:
        """Return whether a message may be in a batch. Delayed, large and retry-topic messages may not."""
        config = self._config
        return (
            type(message.body) is bytes
            and len(message.body) < min(config.compress_from_bytes, self._max_bytes)
            and not message.delay_level
            and not message.is_timed
            and not message.topic.startswith(RETRY_PREFIX)
        )

    def _place(self, topic: str, message: Message, choose: QueueChooser | None) -> _Place | None:
        """Return topic, queue and `wait_stored` of a message's batch; None if no queue can be chosen."""
        wait_stored = message.wait_stored is not False
        if choose is None:
            return topic, None, wait_stored
        route = self._cluster.routes.find(topic)
        if route is None or not route.writable:
            return None
        try:
            return topic, choose(route.writable), wait_stored
        except MQError:
            return None  # the message is sent alone, so that its caller gets this error

    async def _send_at(self, due: float, place: _Place, batch: _OpenBatch) -> None:
        await self._clock.sleep(max(0.0, due - self._clock.monotonic()))
        if self._open.get(place) is batch:
            self._send(place, batch)

    def _send(self, place: _Place, batch: _OpenBatch) -> None:
        topic, queue, wait_stored = place
        del self._open[place]
        pending = PendingSend(
            topic,
            ",".join(batch.ids),
            0,
            encode_batch(batch.members),
            0,
            self._preparation.batch_properties(wait_stored=wait_stored),
            batch.deadline,
            self._config.retry_codes if queue is None else frozenset(),
            asyncio.get_running_loop().create_future(),
            is_batch=True,
            fixed_queue=queue,
            ended=partial(self._ended, batch),
            extra=self._preparation.failover_extra,
        )
        pending.future.add_done_callback(take_error)
        self._outbox.leave(1, batch.bodies)  # the batch counts as one message from here on
        self._outbox.send(pending)

    def _ended(self, batch: _OpenBatch, result: SendResult | None, error: BaseException | None) -> None:
        """Complete the future of each message in a batch, from the batch's result or error."""
        self._outbox.leave(len(batch.members) - 1, 0)
        offset_ids = result.offset_message_id.split(",") if result is not None else []
        for number, (future, ended) in enumerate(zip(batch.futures, batch.ended, strict=True)):
            own = None
            if result is not None:
                offset_id = offset_ids[number] if len(offset_ids) == len(batch.ids) else result.offset_message_id
                offset = result.queue_offset + number
                own = SendResult(result.status, batch.ids[number], offset_id, result.queue, offset)
            if ended is not None:
                ended(own, error)
            if future.done():
                continue
            if own is not None:
                future.set_result(own)
            elif error is not None:
                future.set_exception(error)
