"""Sends prepared messages (`pending_send`) to brokers: chooses queue and connection, retries, completes futures."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

from pyromq import speedups
from pyromq.client.client_config import ProducerConfig
from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.client.cluster.retry import Retry
from pyromq.client.cluster.topic_routes import Route
from pyromq.client.producer.pending_send import STATUSES, PendingSend, QueueSelection, SelectorRaised, plain_properties
from pyromq.clock import Clock
from pyromq.errors import (
    DeadlineExceeded,
    MQError,
    NotTheMaster,
    ProtocolError,
    ServiceNotAvailable,
    Unavailable,
    from_response,
)
from pyromq.message import MessageQueue, SendResult, SendStatus
from pyromq.message_id import UniqueIds
from pyromq.net.channel import Channel
from pyromq.remoting.command import Response
from pyromq.remoting.header import Filled, HeaderTemplate
from pyromq.remoting.headers import SendBatchMessage, SendMessageResponse, SendMessageV2

if TYPE_CHECKING or speedups.is_active:
    from pyromq.speedups.requests import FastOutbox, FastSend, ResultMaker

    _results = ResultMaker(SendResult, SendStatus.OK)

SET_PAUSE = 0.05  # first pause between attempts at a replica set; each pause is twice the previous one, up to 0.5 s

_VARIABLES = ("queue_id", "sys_flag", "born_ms", "flag", "properties")


class Outbox:
    """Sends the messages of one producer group and completes their futures.

    `in_flight` is the number of messages that wait for replies. If route and connection are known, a message is sent in
    the calling turn of the event loop, without a task. Otherwise it waits for both, in order with other messages of its
    topic.
    """

    def __init__(self, group: str, cluster: ClusterClient, config: ProducerConfig, clock: Clock) -> None:
        self.in_flight = 0
        self.pending_bytes = 0  # bytes of bodies in flight; counted only if they are limited
        self.max_bytes = sys.maxsize if config.max_pending_bytes is None else config.max_pending_bytes
        self._counts_bytes = config.max_pending_bytes is not None
        self._group = group
        self._cluster = cluster
        self._config = config
        self._clock = clock
        self._selection = QueueSelection(clock, avoid_slow=config.avoid_slow_brokers)
        self._templates: dict[tuple[bool, str, str], HeaderTemplate] = {}
        self._channels: dict[str, tuple[Route, Channel]] = {}  # latest route and connection, by broker name
        self._stalled: dict[str, deque[PendingSend]] = {}
        self._room: list[tuple[int, asyncio.Future[None]]] = []
        self._fast_outbox: FastOutbox | None = None
        self._extra = max(0.0, config.failover_seconds - config.timeout)
        cluster.deleted_topics.on_forgotten.append(self._forget)

    def open_fast_outbox(
        self, ids: UniqueIds, create_future: Callable[[], asyncio.Future[SendResult]]
    ) -> FastOutbox | None:
        """Return the compiled outbox for plain messages, opened now; None if it is not available."""
        if speedups.is_active and not self._config.avoid_slow_brokers:
            self._fast_outbox = FastOutbox(
                self,
                self._config,
                clock=self._clock,
                tables=(self._cluster.routes.known, self._stalled, self._selection.turns),
                room=self._room,
                properties=plain_properties,
                results=_results,
                ids=ids,
                create_future=create_future,
            )
        return self._fast_outbox

    def _forget(self, topic: str) -> None:
        """Forget what was prepared for the messages of a deleted topic."""
        self._selection.turns.pop(topic, None)
        for place in [place for place in self._templates if place[1] == topic]:
            del self._templates[place]
        if self._fast_outbox is not None:
            self._fast_outbox.forget(topic)

    def take_over(self, sent: FastSend, answer: Response | MQError) -> None:
        """Handle a reply that the compiled outbox leaves to this class, for example an error."""
        queue = sent.queue
        pending = PendingSend(
            queue.topic,
            sent.message_id,
            0,
            sent.body,
            0,
            sent.property_text,
            sent.deadline,
            sent.retry_codes,
            sent.future,
            at_once=sent.at_once,
            queue=queue,
            started=sent.started,
            attempts=1,
        )
        self._answered(pending, answer)

    def send(self, pending: PendingSend) -> None:
        """Send a message now if route and connection are known; else queue it behind the waiting ones of its topic."""
        self.enter(1, len(pending.body))
        topic = pending.topic
        if topic not in self._stalled and (route := self._cluster.routes.find(topic)) is not None:
            queue = self._choose(route, pending)
            if queue is None:
                return
            if route.epochs:
                _extend(pending, route, queue)
            known, channel = self._channels.get(queue.broker_name) or (None, None)
            if channel is None or known is not route or channel.closed:
                channel = self._open_channel(route, queue)
            if channel is not None:
                self._ask(channel, pending, queue)
                return
            pending.planned = queue
        if topic not in self._stalled:
            self._stalled[topic] = deque()
            self._cluster.tasks.start(self._unstall(topic), name=f"first messages of {topic}")
        self._stalled[topic].append(pending)

    def _open_channel(self, route: Route, queue: MessageQueue) -> Channel | None:
        """Return the open connection to a queue's broker and keep it until the route changes; None if none is open."""
        address = route.master(queue.broker_name)
        channel = self._cluster.open_channel(self._cluster.sending_address(address)) if address else None
        if channel is not None:
            self._channels[queue.broker_name] = route, channel
        return channel

    async def room_below(self, limit: int) -> None:
        """Wait until fewer than `limit` messages, and fewer than `max_bytes` bytes, are in flight."""
        while self.in_flight >= limit or self.pending_bytes >= self.max_bytes:
            waiter = (limit, asyncio.get_running_loop().create_future())
            self._room.append(waiter)
            try:
                await waiter[1]
            finally:
                self._room.remove(waiter)

    async def route(self, topic: str) -> Route:
        """Return a topic's route, also for the first message of an auto-created topic. Raises `TopicNotFound`."""
        self._cluster.check_running()
        return await self._cluster.route_for_sending(topic, self._config.template_topic, self._config.new_topic_queues)

    async def _unstall(self, topic: str) -> None:
        """Send a topic's messages that wait for a route or a connection, in order. A failed one is retried alone."""
        waiting = self._stalled[topic]
        try:
            while waiting:
                pending = waiting[0]
                try:
                    channel, queue = await self.destination(pending)
                except MQError as error:
                    self._not_sent(pending, error)
                else:
                    self._ask(channel, pending, queue)
                waiting.popleft()
        finally:
            del self._stalled[topic]
            for pending in waiting:  # not empty only if this task failed: no caller may wait without end
                self._fail(pending, _given_up(topic))

    async def destination(self, pending: PendingSend) -> tuple[Channel, MessageQueue]:
        """Return connection and queue of the message's next attempt, at most until the message's deadline.

        Raises `Unavailable` (`DeadlineExceeded` at the deadline), or the `MQError` that makes sending impossible.
        """
        remaining = max(0.0, pending.deadline - self._clock.monotonic())
        try:
            async with asyncio.timeout(remaining):
                route = await self.route(pending.topic)
                queue = pending.planned or self._pick(route, pending)
                # If connecting fails, the next pick avoids this queue's broker.
                pending.planned, pending.queue = None, queue
                _extend(pending, route, queue)
                return await self._channel(route, queue), queue
        except TimeoutError as error:
            raise DeadlineExceeded(f"no connection for a message to topic {pending.topic!r} in time") from error

    async def reach(self, pending: PendingSend) -> tuple[Channel, MessageQueue]:
        """Return the destination of a message that is sent once. Retries while a replica set has no master in reach."""
        retry: Retry | None = None
        while True:
            try:
                return await self.destination(pending)
            except Unavailable:
                if pending.queue is None or not self._cluster.is_set(pending.queue):
                    raise
                retry = retry or Retry(self._clock, pending.deadline - self._clock.monotonic(), first_pause=SET_PAUSE)
                if not await retry.pause():
                    raise
            await self._cluster.refresh(pending.topic)

    async def _channel(self, route: Route, queue: MessageQueue) -> Channel:
        address = route.master(queue.broker_name)
        if address is None:
            raise Unavailable(f"broker {queue.broker_name!r} is not in the route of topic {route.topic!r}")
        try:
            return await self._cluster.channel_for_sending(address)
        except Unavailable:
            self._selection.report(queue.broker_name, 0.0, failed=True)
            raise

    def _choose(self, route: Route, pending: PendingSend) -> MessageQueue | None:
        """Return the message's queue; None if there is none: the message is retried, or its future has failed."""
        try:
            return self._pick(route, pending)
        except Unavailable as error:
            self._not_sent(pending, error)
        except MQError as error:
            self._fail(pending, error)
        return None

    def _pick(self, route: Route, pending: PendingSend) -> MessageQueue:
        if pending.fixed_queue is not None:
            return pending.fixed_queue
        if not route.writable:
            raise Unavailable(f"topic {route.topic!r} has no queue that can be written: no master, or no permission")
        if pending.choose is not None:
            pending.fixed_queue = pending.choose(route.writable)
            return pending.fixed_queue
        return self._selection.pick(route.writable, last_broker=pending.queue and pending.queue.broker_name)

    def _ask(self, channel: Channel, pending: PendingSend, queue: MessageQueue) -> None:
        now = self._clock.monotonic()
        pending.queue = queue
        pending.started = now
        pending.attempts += 1
        ask = channel.ask_at_once if pending.at_once else channel.ask
        ask(
            self.header(pending, queue),
            pending.body,
            timeout=pending.deadline - now,
            answered=partial(self._answered, pending),
        )
        if self._fast_outbox is not None and pending.choose is None and not pending.is_batch:
            route, writer = self._cluster.routes.find(queue.topic), self._template(pending, queue).request_writer
            if route is not None and writer is not None:
                extra = self._extra if queue.broker_name in route.epochs else 0.0
                self._fast_outbox.learn(route, queue, channel, writer, self._config.timeout + extra)

    def header(self, pending: PendingSend, queue: MessageQueue) -> Filled:
        template = self._template(pending, queue)
        born_ms = self._clock.now_ms()
        return Filled(template, (queue.queue_id, pending.sys_flag, born_ms, pending.flag, pending.property_text))

    def _template(self, pending: PendingSend, queue: MessageQueue) -> HeaderTemplate:
        place = pending.is_batch, queue.topic, queue.broker_name
        if (template := self._templates.get(place)) is not None:
            return template
        template = self._templates[place] = HeaderTemplate(
            SendBatchMessage if pending.is_batch else SendMessageV2,
            _VARIABLES,
            formats={"properties": "%b"},
            producer_group=self._group,
            topic=self._cluster.names.wrap(queue.topic),
            default_topic=self._config.template_topic,
            default_topic_queue_count=self._config.new_topic_queues,
            reconsume_times=0,
            unit_mode=False,
            batch=pending.is_batch,
            broker_name=queue.broker_name,
        )
        return template

    def _answered(self, pending: PendingSend, answer: Response | MQError) -> None:
        queue = pending.queue
        assert queue is not None
        failed = type(answer) is not Response or answer.code not in STATUSES
        if self._config.avoid_slow_brokers:
            self._selection.report(queue.broker_name, self._clock.monotonic() - pending.started, failed=failed)
        if not failed:
            self._stored(pending, queue, cast(Response, answer))
        elif isinstance(answer, MQError):
            self._retry_or_fail(pending, answer)
        else:
            error = from_response(answer.code, answer.remark)
            if isinstance(error, NotTheMaster):
                self._cluster.routes.redirect(queue.broker_name, error.master)
            if answer.code in pending.retry_codes or self._is_free(queue, error):
                self._retry_or_fail(pending, error)
            else:
                self._fail(pending, error)

    def _stored(self, pending: PendingSend, queue: MessageQueue, answer: Response) -> None:
        try:
            result = send_result(answer, pending.message_id, queue)
        except ProtocolError as error:
            self._fail(pending, error)
            return
        if result.status is not SendStatus.OK and self._config.retry_when_not_ok and pending.retry_codes:
            pending.not_ok = result
            self._retry_or_fail(pending, Unavailable(f"stored, but {result.status.value}"))
            return
        self.leave(1, len(pending.body))
        if pending.ended is not None:
            pending.ended(result, None)
        if not pending.future.done():
            pending.future.set_result(result)

    def _not_sent(self, pending: PendingSend, error: MQError) -> None:
        """Retry a message that was written to no connection: this is not an attempt, only the deadline limits it."""
        if isinstance(error, Unavailable):
            self._cluster.tasks.start(self._retry(pending, error), name="retry")
        else:
            self._fail(pending, error)

    def _is_free(self, queue: MessageQueue, error: MQError) -> bool:
        """Return whether a failed attempt does not count in `retries`: only the deadline limits such attempts.

        A replica's refusal is not an attempt. A replica set elects another master, which takes some seconds.
        """
        if isinstance(error, NotTheMaster):
            return True
        return isinstance(error, Unavailable | ServiceNotAvailable) and self._cluster.is_set(queue)

    def _retry_or_fail(self, pending: PendingSend, error: MQError) -> None:
        if pending.queue is not None and self._is_free(pending.queue, error):
            pending.attempts -= 1
        if pending.attempts > self._config.retries or not self._cluster.running or pending.future.done():
            self._fail(pending, error)
        else:
            self._cluster.tasks.start(self._retry(pending, error), name="retry")

    async def _retry(self, pending: PendingSend, error: MQError) -> None:
        # Used after a fault in this task: no caller may wait forever.
        failure: MQError | None = _given_up(pending.topic)
        try:
            failure = await self._try_again(pending, error)
        finally:
            if failure is not None:
                self._fail(pending, failure)

    async def _try_again(self, pending: PendingSend, error: MQError) -> MQError | None:
        """Retry until the message is written to a connection, at most until its deadline.

        Return None if it was written, else the last error.
        """
        is_again = pending.retry is not None
        if pending.retry is None:
            pending.retry = Retry(self._clock, pending.deadline - self._clock.monotonic(), first_pause=SET_PAUSE)
        retry = pending.retry
        if is_again and pending.queue is not None and self._is_free(pending.queue, error) and not await retry.pause():
            return _late(pending, error)
        while self._clock.monotonic() < pending.deadline and not pending.future.done():
            await self._cluster.find_master(pending.topic, error)
            try:
                channel, queue = await self.destination(pending)
            except Unavailable as unavailable:
                # An attempt that the deadline cuts off says less than the error of the attempt before.
                is_cut = isinstance(unavailable, DeadlineExceeded) and self._clock.monotonic() >= pending.deadline
                error = error if is_cut else unavailable
                if not await retry.pause():
                    break
            except MQError as refusal:
                error = refusal
                break
            else:
                self._ask(channel, pending, queue)
                return None
        return _late(pending, error)

    def _fail(self, pending: PendingSend, error: MQError) -> None:
        self.leave(1, len(pending.body))
        reason = error.reason if isinstance(error, SelectorRaised) else error
        stored = pending.not_ok  # result of an earlier attempt that was stored
        if pending.ended is not None:
            pending.ended(stored, reason if stored is None else None)
        if pending.future.done():
            return
        if stored is not None:
            pending.future.set_result(stored)
        else:
            pending.future.set_exception(reason)

    def enter(self, messages: int, size: int) -> None:
        """Count `messages` as in flight, with `size` bytes of bodies."""
        self.in_flight += messages
        if self._counts_bytes:
            self.pending_bytes += size

    def leave(self, messages: int, size: int) -> None:
        """Count messages and their bytes as no longer in flight, and wake callers that wait for room."""
        self.in_flight -= messages
        if self._counts_bytes:
            self.pending_bytes -= size
        if self._room:
            self.tell_room()

    def tell_room(self) -> None:
        """Wake the callers of `room_below` for which there is room now."""
        for limit, future in self._room:
            if self.in_flight < limit and self.pending_bytes < self.max_bytes and not future.done():
                future.set_result(None)


def _extend(pending: PendingSend, route: Route, queue: MessageQueue) -> None:
    """Give a message without a timeout of its own the time that a replica set may take to elect a master."""
    if pending.extra and queue.broker_name in route.epochs:
        pending.deadline += pending.extra
        pending.extra = 0.0


def _late(pending: PendingSend, error: MQError) -> MQError:
    if isinstance(error, Unavailable):
        return type(error)(f"no broker took the message to topic {pending.topic!r} in time: {error}")
    return error


def send_result(answer: Response, message_id: str, queue: MessageQueue) -> SendResult:
    """Return the send result in a broker's response to a message for `queue`. Raises `ProtocolError`."""
    status = STATUSES[answer.code]
    header = answer.header(SendMessageResponse)
    if header.queue_id != queue.queue_id:
        queue = MessageQueue(queue.topic, queue.broker_name, header.queue_id)
    return SendResult(
        status,
        message_id,
        header.message_id,
        queue,
        header.queue_offset,
        header.transaction_id,
        header.recall_handle,
    )


def _given_up(topic: str) -> MQError:
    return Unavailable(f"the message to topic {topic!r} was not sent: an internal error ended its retries")
