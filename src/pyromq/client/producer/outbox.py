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
from pyromq.client.producer.queue_selection import QueueSelection
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
    """Sends the messages of one producer group and completes their futures; `in_flight` of them have no answer yet.

    When route and connection are known, a message goes out in the calling turn, without a task; otherwise it waits,
    in order with its topic's others, for both.
    """

    def __init__(self, group: str, cluster: ClusterClient, config: ProducerConfig, clock: Clock) -> None:
        self.in_flight = 0
        self._group = group
        self._cluster = cluster
        self._config = config
        self._clock = clock
        self._selection = QueueSelection(clock, avoid_slow=config.avoid_slow_brokers)
        self._templates: dict[tuple[str, str], HeaderTemplate] = {}
        self._stalled: dict[str, deque[PendingSend]] = {}
        self._room: list[tuple[int, asyncio.Future[None]]] = []

    def send(self, pending: PendingSend) -> None:
        """Send now if everything is known; else let the message wait behind those of its topic that wait already."""
        self.in_flight += 1
        topic = pending.topic
        if topic not in self._stalled and (route := self._cluster.routes.find(topic)) is not None:
            queue = self._choose(route, pending)
            if queue is None:
                return
            address = route.master(queue.broker_name)
            channel = self._cluster.open_channel(address) if address else None
            if channel is not None:
                self._ask(channel, pending, queue)
                return
            pending.planned = queue
        if topic not in self._stalled:
            self._stalled[topic] = deque()
            self._cluster.tasks.start(self._unstall(topic), name=f"first messages of {topic}")
        self._stalled[topic].append(pending)

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
            for pending in waiting:  # only if this ended early: nobody waits for ever
                self._fail(pending, _given_up(topic))

    async def destination(self, pending: PendingSend) -> tuple[Channel, MessageQueue]:
        """Return where the message goes next, connected. Raises `Unavailable` or what makes sending impossible."""
        remaining = max(0.0, pending.deadline - self._clock.monotonic())
        try:
            async with asyncio.timeout(remaining):
                route = await self.route(pending.topic)
                queue = pending.planned or self._pick(route, pending)
                pending.planned, pending.queue = None, queue  # if this fails, the next pick avoids its broker
                return await self._channel(route, queue), queue
        except TimeoutError as error:
            raise DeadlineExceeded(f"no connection for a message to topic {pending.topic!r} in time") from error

    async def _channel(self, route: Route, queue: MessageQueue) -> Channel:
        address = route.master(queue.broker_name)
        if address is None:
            raise Unavailable(f"broker {queue.broker_name!r} is not in the route of topic {route.topic!r}")
        try:
            return await self._cluster.channel(address)
        except Unavailable:
            self._selection.report(queue.broker_name, 0.0, failed=True)
            raise

    def _choose(self, route: Route, pending: PendingSend) -> MessageQueue | None:
        """Return the queue; None when the message has failed for good."""
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

    def header(self, pending: PendingSend, queue: MessageQueue) -> Filled:
        name = "batch " if pending.is_batch else ""
        template = self._templates.get((name + queue.topic, queue.broker_name)) or self._template(pending, queue)
        born_ms = self._clock.now_ms()
        return Filled(template, (queue.queue_id, pending.sys_flag, born_ms, pending.flag, pending.property_text))

    def _template(self, pending: PendingSend, queue: MessageQueue) -> HeaderTemplate:
        name = "batch " if pending.is_batch else ""
        template = self._templates[name + queue.topic, queue.broker_name] = HeaderTemplate(
            SendBatchMessage if pending.is_batch else SendMessageV2,
            _VARIABLES,
            formats={"properties": "%b"},
            producer_group=self._group,
            topic=queue.topic,
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
        failed = isinstance(answer, MQError) or answer.code not in STATUSES
        if self._config.avoid_slow_brokers:
            self._selection.report(queue.broker_name, self._clock.monotonic() - pending.started, failed=failed)
        if isinstance(answer, MQError):
            self._retry_or_fail(pending, answer)
        elif failed:
            error = from_response(answer.code, answer.remark)
            if answer.code in pending.retry_codes:
                self._retry_or_fail(pending, error)
            else:
                self._fail(pending, error)
        else:
            self._stored(pending, queue, answer)

    def _stored(self, pending: PendingSend, queue: MessageQueue, answer: Response) -> None:
        try:
            header = answer.header(SendMessageResponse)
        except ProtocolError as error:
            self._fail(pending, error)
            return
        if header.queue_id != queue.queue_id:
            queue = MessageQueue(queue.topic, queue.broker_name, header.queue_id)
        result = SendResult(
            STATUSES[answer.code],
            pending.message_id,
            header.message_id,
            queue,
            header.queue_offset,
            header.transaction_id,
            header.recall_handle,
        )
        if result.status is not SendStatus.OK and self._config.retry_when_not_ok and pending.retry_codes:
            pending.not_ok = result
            self._retry_or_fail(pending, Unavailable(f"stored, but {result.status.value}"))
            return
        self._leave()
        if pending.ended is not None:
            pending.ended(result, None)
        if not pending.future.done():
            pending.future.set_result(result)

    def _not_sent(self, pending: PendingSend, error: MQError) -> None:
        """The message never reached a connection: this counts as no attempt, so only the deadline ends it."""
        if isinstance(error, Unavailable):
            self._cluster.tasks.start(self._retry(pending, error), name="retry")
        else:
            self._fail(pending, error)

    def _retry_or_fail(self, pending: PendingSend, error: MQError) -> None:
        if pending.attempts > self._config.retries or not self._cluster.running or pending.future.done():
            self._fail(pending, error)
        else:
            self._cluster.tasks.start(self._retry(pending, error), name="retry")

    async def _retry(self, pending: PendingSend, error: MQError) -> None:
        failure: MQError | None = _given_up(pending.topic)  # what a fault of ours means: nobody waits for ever
        try:
            failure = await self._try_again(pending, error)
        finally:
            if failure is not None:
                self._fail(pending, failure)

    async def _try_again(self, pending: PendingSend, error: MQError) -> MQError | None:
        """Try until the message is on a connection; a restarted broker is found within its timeout. Else, say why."""
        retry = Retry(self._clock, pending.deadline - self._clock.monotonic())
        while self._clock.monotonic() < pending.deadline and not pending.future.done():
            await self._cluster.refresh(pending.topic)
            try:
                channel, queue = await self.destination(pending)
            except Unavailable as unavailable:
                error = unavailable
                if not await retry.pause():
                    break
            except MQError as refusal:
                error = refusal
                break
            else:
                self._ask(channel, pending, queue)
                return None
        if isinstance(error, Unavailable):
            return type(error)(f"no broker took the message to topic {pending.topic!r} in time: {error}")
        return error

    def _fail(self, pending: PendingSend, error: MQError) -> None:
        self._leave()
        reason = error.reason if isinstance(error, SelectorRaised) else error
        stored = pending.not_ok  # by an earlier attempt
        if pending.ended is not None:
            pending.ended(stored, reason if stored is None else None)
        if pending.future.done():
            return
        if stored is not None:
            pending.future.set_result(stored)
        else:
            pending.future.set_exception(reason)

    def _leave(self) -> None:
        self.in_flight -= 1
        for waiter in self._room:
            limit, future = waiter
            if self.in_flight < limit and not future.done():
                future.set_result(None)


def _given_up(topic: str) -> MQError:
    return Unavailable(f"the message to topic {topic!r} was given up before it was sent")
