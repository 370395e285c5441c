"""Messages on their way to brokers: queue and connection for each, its attempts, and what became of it.

Takes what is prepared (see `pending_send`); what a message is made of, and who sends it, is not known here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial

from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.client.cluster.routes import Route
from pyromq.client.config import ProducerConfig
from pyromq.client.producer.pending_send import STATUSES, PendingSend, SelectorRaised
from pyromq.client.producer.queue_selection import QueueChoice
from pyromq.client.retry import Retry
from pyromq.clock import Clock
from pyromq.errors import DeadlineExceeded, MQError, ProtocolError, Unavailable, from_response
from pyromq.message import MessageQueue, SendResult, SendStatus
from pyromq.net.channel import Channel
from pyromq.remoting.command import Response
from pyromq.remoting.header import Filled, HeaderTemplate
from pyromq.remoting.headers import SendBatchMessage, SendMessageResponse, SendMessageV2

_VARIABLES = ("queue_id", "sys_flag", "born_ms", "flag", "properties")


class Outbox:
    """Sends deliveries of one producer group and completes their futures; `in_flight` of them have no answer yet.

    When route and connection are known, a delivery goes out in the calling turn, without a task; otherwise it waits,
    in order with its topic's others, for both.
    """

    def __init__(self, group: str, cluster: ClusterClient, config: ProducerConfig, clock: Clock) -> None:
        self.in_flight = 0
        self._group = group
        self._cluster = cluster
        self._config = config
        self._clock = clock
        self._choice = QueueChoice(clock, avoid_slow=config.avoid_slow_brokers)
        self._templates: dict[tuple[str, str], HeaderTemplate] = {}
        self._stalled: dict[str, deque[PendingSend]] = {}
        self._room: list[tuple[int, asyncio.Future[None]]] = []

    def send(self, delivery: PendingSend) -> None:
        """Send now if everything is known; else let the message wait behind those of its topic that wait already."""
        self.in_flight += 1
        topic = delivery.topic
        if topic not in self._stalled and (route := self._cluster.routes.find(topic)) is not None:
            queue = self._choose(route, delivery)
            if queue is None:
                return
            address = route.master(queue.broker_name)
            channel = self._cluster.open_channel(address) if address else None
            if channel is not None:
                self._ask(channel, delivery, queue)
                return
            delivery.planned = queue
        if topic not in self._stalled:
            self._stalled[topic] = deque()
            self._cluster.tasks.start(self._unstall(topic), name=f"first messages of {topic}")
        self._stalled[topic].append(delivery)

    async def room_below(self, limit: int) -> None:
        """Wait until fewer than `limit` messages have no answer."""
        while self.in_flight >= limit:
            waiter = (limit, asyncio.get_running_loop().create_future())
            self._room.append(waiter)
            try:
                await waiter[1]
            finally:
                self._room.remove(waiter)

    async def route(self, topic: str) -> Route:
        """Return a topic's route, that of a topic to be made by sending included. Raises `TopicNotFound`."""
        self._cluster.check_running()
        return await self._cluster.route_for_sending(topic, self._config.template_topic, self._config.new_topic_queues)

    async def _unstall(self, topic: str) -> None:
        """Send what waits for a topic's route or a connection, in order; what cannot go is retried by itself."""
        waiting = self._stalled[topic]
        try:
            while waiting:
                delivery = waiting[0]
                try:
                    channel, queue = await self.destination(delivery)
                except MQError as error:
                    self._not_sent(delivery, error)
                else:
                    self._ask(channel, delivery, queue)
                waiting.popleft()
        finally:
            del self._stalled[topic]
            for delivery in waiting:  # only if this ended early: nobody waits for ever
                self._fail(delivery, _given_up(topic))

    async def destination(self, delivery: PendingSend) -> tuple[Channel, MessageQueue]:
        """Return where the message goes next, connected. Raises `Unavailable` or what makes sending impossible."""
        remaining = max(0.0, delivery.deadline - self._clock.monotonic())
        try:
            async with asyncio.timeout(remaining):
                route = await self.route(delivery.topic)
                queue = delivery.planned or self._pick(route, delivery)
                delivery.planned, delivery.queue = None, queue  # if this fails, the next pick avoids its broker
                return await self._channel(route, queue), queue
        except TimeoutError as error:
            raise DeadlineExceeded(f"no connection for a message to topic {delivery.topic!r} in time") from error

    async def _channel(self, route: Route, queue: MessageQueue) -> Channel:
        address = route.master(queue.broker_name)
        if address is None:
            raise Unavailable(f"broker {queue.broker_name!r} is not in the route of topic {route.topic!r}")
        try:
            return await self._cluster.channel(address)
        except Unavailable:
            self._choice.report(queue.broker_name, 0.0, failed=True)
            raise

    def _choose(self, route: Route, delivery: PendingSend) -> MessageQueue | None:
        """Return the queue; None when the message has failed for good."""
        try:
            return self._pick(route, delivery)
        except Unavailable as error:
            self._not_sent(delivery, error)
        except MQError as error:
            self._fail(delivery, error)
        return None

    def _pick(self, route: Route, delivery: PendingSend) -> MessageQueue:
        if delivery.fixed_queue is not None:
            return delivery.fixed_queue
        if not route.writable:
            raise Unavailable(f"topic {route.topic!r} has no queue that can be written: no master, or no permission")
        if delivery.choose is not None:
            delivery.fixed_queue = delivery.choose(route.writable)
            return delivery.fixed_queue
        return self._choice.pick(route.writable, last_broker=delivery.queue and delivery.queue.broker_name)

    def _ask(self, channel: Channel, delivery: PendingSend, queue: MessageQueue) -> None:
        now = self._clock.monotonic()
        delivery.queue = queue
        delivery.started = now
        delivery.attempts += 1
        ask = channel.ask_at_once if delivery.at_once else channel.ask
        ask(
            self.header(delivery, queue),
            delivery.body,
            timeout=delivery.deadline - now,
            answered=partial(self._answered, delivery),
        )

    def header(self, delivery: PendingSend, queue: MessageQueue) -> Filled:
        name = "batch " if delivery.is_batch else ""
        template = self._templates.get((name + queue.topic, queue.broker_name)) or self._template(delivery, queue)
        born_ms = self._clock.now_ms()
        return Filled(template, (queue.queue_id, delivery.sys_flag, born_ms, delivery.flag, delivery.property_text))

    def _template(self, delivery: PendingSend, queue: MessageQueue) -> HeaderTemplate:
        name = "batch " if delivery.is_batch else ""
        template = self._templates[name + queue.topic, queue.broker_name] = HeaderTemplate(
            SendBatchMessage if delivery.is_batch else SendMessageV2,
            _VARIABLES,
            formats={"properties": "%b"},
            producer_group=self._group,
            topic=queue.topic,
            default_topic=self._config.template_topic,
            default_topic_queue_count=self._config.new_topic_queues,
            reconsume_times=0,
            unit_mode=False,
            batch=delivery.is_batch,
            broker_name=queue.broker_name,
        )
        return template

    def _answered(self, delivery: PendingSend, answer: Response | MQError) -> None:
        queue = delivery.queue
        assert queue is not None
        failed = isinstance(answer, MQError) or answer.code not in STATUSES
        if self._config.avoid_slow_brokers:
            self._choice.report(queue.broker_name, self._clock.monotonic() - delivery.started, failed=failed)
        if isinstance(answer, MQError):
            self._retry_or_fail(delivery, answer)
        elif failed:
            error = from_response(answer.code, answer.remark)
            if answer.code in delivery.retry_codes:
                self._retry_or_fail(delivery, error)
            else:
                self._fail(delivery, error)
        else:
            self._stored(delivery, queue, answer)

    def _stored(self, delivery: PendingSend, queue: MessageQueue, answer: Response) -> None:
        try:
            header = answer.header(SendMessageResponse)
        except ProtocolError as error:
            self._fail(delivery, error)
            return
        if header.queue_id != queue.queue_id:
            queue = MessageQueue(queue.topic, queue.broker_name, header.queue_id)
        result = SendResult(
            STATUSES[answer.code],
            delivery.message_id,
            header.message_id,
            queue,
            header.queue_offset,
            header.transaction_id,
            header.recall_handle,
        )
        if result.status is not SendStatus.OK and self._config.retry_when_not_ok and delivery.retry_codes:
            delivery.not_ok = result
            self._retry_or_fail(delivery, Unavailable(f"stored, but {result.status.value}"))
            return
        self._leave()
        if delivery.ended is not None:
            delivery.ended(result, None)
        if not delivery.future.done():
            delivery.future.set_result(result)

    def _not_sent(self, delivery: PendingSend, error: MQError) -> None:
        """The message never reached a connection: this counts as no attempt, so only the deadline ends it."""
        if isinstance(error, Unavailable):
            self._cluster.tasks.start(self._retry(delivery, error), name="retry")
        else:
            self._fail(delivery, error)

    def _retry_or_fail(self, delivery: PendingSend, error: MQError) -> None:
        if delivery.attempts > self._config.retries or not self._cluster.running or delivery.future.done():
            self._fail(delivery, error)
        else:
            self._cluster.tasks.start(self._retry(delivery, error), name="retry")

    async def _retry(self, delivery: PendingSend, error: MQError) -> None:
        failure: MQError | None = _given_up(delivery.topic)  # what a fault of ours means: nobody waits for ever
        try:
            failure = await self._try_again(delivery, error)
        finally:
            if failure is not None:
                self._fail(delivery, failure)

    async def _try_again(self, delivery: PendingSend, error: MQError) -> MQError | None:
        """Try until the message is on a connection; a restarted broker is found within its timeout. Else, say why."""
        retry = Retry(self._clock, delivery.deadline - self._clock.monotonic())
        while self._clock.monotonic() < delivery.deadline and not delivery.future.done():
            await self._cluster.refresh(delivery.topic)
            try:
                channel, queue = await self.destination(delivery)
            except Unavailable as unavailable:
                error = unavailable
                if not await retry.pause():
                    break
            except MQError as refusal:
                error = refusal
                break
            else:
                self._ask(channel, delivery, queue)
                return None
        if isinstance(error, Unavailable):
            return type(error)(f"no broker took the message to topic {delivery.topic!r} in time: {error}")
        return error

    def _fail(self, delivery: PendingSend, error: MQError) -> None:
        self._leave()
        reason = error.reason if isinstance(error, SelectorRaised) else error
        stored = delivery.not_ok  # by an earlier attempt
        if delivery.ended is not None:
            delivery.ended(stored, reason if stored is None else None)
        if delivery.future.done():
            return
        if stored is not None:
            delivery.future.set_result(stored)
        else:
            delivery.future.set_exception(reason)

    def _leave(self) -> None:
        self.in_flight -= 1
        for waiter in self._room:
            limit, future = waiter
            if self.in_flight < limit and not future.done():
                future.set_result(None)


def _given_up(topic: str) -> MQError:
    return Unavailable(f"the message to topic {topic!r} was given up before it was sent")
