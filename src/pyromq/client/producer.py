"""The async producer: takes messages, chooses queues, retries, and tells where each message went.

The way of a message: check and prepare -> queue -> connection -> answer -> result. When route and connection are known
all of it happens in the calling turn, without a task; otherwise the message waits, in order, for both.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self

from pyromq.client.config import ProducerConfig
from pyromq.client.delivery import (
    STATUSES,
    Delivery,
    QueueChooser,
    Selector,
    check_topic_for_sending,
    prepare,
    prepare_batch,
    queue_chooser,
)
from pyromq.client.membership import FIRST_PAUSE, LONGEST_PAUSE, Membership
from pyromq.client.queue_choice import QueueChoice
from pyromq.client.recalling import recall
from pyromq.client.requests import Requests
from pyromq.client.routes import Route
from pyromq.clock import Clock, SystemClock
from pyromq.errors import (
    DeadlineExceeded,
    IllegalName,
    MQError,
    NoReply,
    ProtocolError,
    Unavailable,
    UsageError,
    from_response,
)
from pyromq.message import Message, MessageQueue, SendResult, SendStatus, StoredMessage
from pyromq.message_id import UniqueIds
from pyromq.names import DEFAULT_PRODUCER_GROUP, check_group
from pyromq.net.channel import Channel
from pyromq.remoting.bodies import HeartbeatBody, ProducerEntry
from pyromq.remoting.command import Response
from pyromq.remoting.header import Filled, HeaderTemplate
from pyromq.remoting.headers import SendBatchMessage, SendMessageResponse, SendMessageV2

_VARIABLES = ("queue_id", "sys_flag", "born_ms", "flag", "properties")


class AsyncProducer:
    """Sends messages, for programs with an event loop; `Producer` is the same without one.

        async with AsyncProducer("orders-service") as producer:
            result = await producer.send(Message("orders", b"...", keys="order-7"), ordering_key="customer-3")

    `group` names what this producer is part of; `namesrv` is `host:port`, several joined by `;`. Times are seconds.
    Entering (or `start`) raises `NoNameServer` at once when no name server can be reached.

    Sending raises `UsageError` (and its kinds `IllegalMessage`, `IllegalName`, `NotRunning`) for what can never be
    sent, `TopicNotFound` when no broker has or creates the topic, a `BrokerError` for an answer that says no, and
    `Unavailable` or `DeadlineExceeded` when no broker took the message within the timeout - after those two it may
    still have been stored. A message retried may be stored twice, with the same `message_id`.
    """

    def __init__(
        self,
        group: str,
        namesrv: str = "127.0.0.1:9876",
        *,
        config: ProducerConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        check_group(group)
        if group == DEFAULT_PRODUCER_GROUP:
            raise IllegalName(f"producerGroup can not equal {DEFAULT_PRODUCER_GROUP}, please specify another one.")
        self.group = group
        self.config = config or ProducerConfig()
        self._clock = clock or SystemClock()
        self._requests = Requests(self._clock)
        self._membership = Membership(
            namesrv,
            self._clock,
            announce=lambda client_id: HeartbeatBody(client_id, producers=[ProducerEntry(group)]),
            answerers=self._answerers(),
            instance=self.config.instance,
            heartbeat_seconds=self.config.heartbeat_seconds,
            route_refresh_seconds=self.config.route_refresh_seconds,
        )
        self._choice = QueueChoice(self._clock, avoid_slow=self.config.avoid_slow_brokers)
        self._ids: UniqueIds
        self._templates: dict[tuple[str, str], HeaderTemplate] = {}
        self._checked_topics: set[str] = set()
        self._requested_topics: set[str] = set()
        self._stalled: dict[str, deque[Delivery]] = {}
        self._room: list[tuple[int, asyncio.Future[None]]] = []
        self.in_flight = 0

    async def start(self) -> None:
        """Connect. Raises `NoNameServer` at once when no name server can be reached."""
        await self._membership.start()
        self._ids = UniqueIds(self._membership.ip, self._clock)

    async def close(self) -> None:
        """Wait for the answers to what was sent, leave the group, close the connections. Idempotent."""
        if self._membership.running:
            await self.flush()
            await self._membership.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        ordering_key: str | None = None,
        selector: Selector | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send a message and return where it went.

        Messages with the same `ordering_key` go to the same queue; `selector(queues, message)` chooses freely; `queue`
        is one of `queues(topic)`; without any of them queues take turns. `timeout` (seconds) covers all attempts.
        Retried at another broker: network failures, and the answers in `ProducerConfig.retry_codes`; with a chosen
        queue only network failures, at the same broker.
        """
        await self.room_below(self.config.max_in_flight)
        return await self.begin(message, queue_chooser(message, queue, ordering_key, selector), timeout)

    def send_soon(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        ordering_key: str | None = None,
        selector: Selector | None = None,
        timeout: float | None = None,
    ) -> asyncio.Future[SendResult]:
        """Send without waiting: the future gets what `send` would return or raise. Call it on the event loop.

        What is sent in one turn travels together, and to one queue in order. Network failures are retried, which may
        change the order; answers that say no are not. Raises `UsageError` while `max_in_flight` messages have no
        answer yet: await some of the futures, or `flush()`.
        """
        if self.in_flight >= self.config.max_in_flight:
            raise UsageError(
                f"{self.in_flight} messages have no answer yet (max_in_flight); await some futures or flush() first"
            )
        delivery = self._prepare(message, queue_chooser(message, queue, ordering_key, selector), timeout)
        self._dispatch(delivery)
        return delivery.future

    def begin(
        self, message: Message, choose: QueueChooser | None, timeout: float | None, *, at_once: bool = False
    ) -> asyncio.Future[SendResult]:
        """Begin what `send` waits for. `at_once` writes in this call instead of with what else this turn brings."""
        delivery = self._prepare(message, choose, timeout)
        delivery.at_once = at_once
        if choose is None:
            delivery.retry_codes = self.config.retry_codes
        self._dispatch(delivery)
        return delivery.future

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        ordering_key: str | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send messages of one topic in one request to one queue; their queue offsets are consecutive.

        They must agree in `wait_stored`, have no delay, and be at most `max_message_bytes` together.
        """
        await self.room_below(self.config.max_in_flight)
        self._membership.check_running()
        body, ids, text = prepare_batch(messages, self.config, self._ids)
        topic = self._checked(messages[0].topic)
        choose = queue_chooser(messages[0], queue, ordering_key, None)
        codes = self.config.retry_codes if choose is None else frozenset()
        delivery = Delivery(topic, ids, 0, body, 0, text, self._deadline(timeout), codes, self._new_future())
        delivery.is_batch, delivery.choose = True, choose
        self._dispatch(delivery)
        return await delivery.future

    async def send_one_way(
        self, message: Message, *, queue: MessageQueue | None = None, ordering_key: str | None = None
    ) -> None:
        """Write a message to a broker's connection and return; nobody says whether it was stored."""
        delivery = self._prepare(message, queue_chooser(message, queue, ordering_key, None), None)
        channel, chosen = await self._destination(delivery)
        channel.notify(self._header(delivery, chosen), delivery.body)
        await channel.writable()

    async def request(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        ordering_key: str | None = None,
        selector: Selector | None = None,
        timeout: float | None = None,
    ) -> StoredMessage:
        """Send a message and return the reply that a consumer gives with its `reply` method.

        `timeout` (seconds) covers sending and waiting. Raises `NoReply` when the message was stored but no reply came
        in time, and what `send` raises. The reply comes to this client alone, in any process of the cluster.
        """
        choose = queue_chooser(message, queue, ordering_key, selector)
        seconds = self.config.timeout if timeout is None else timeout
        deadline = self._deadline(seconds)
        await self.room_below(self.config.max_in_flight)
        self._membership.check_running()
        await self._be_known(self._checked(message.topic), seconds)
        with self._requests.waiting(self._membership.client_id, seconds) as request:
            delivery = self._prepare(message, choose, deadline - self._clock.monotonic(), more=request.properties)
            delivery.retry_codes = frozenset() if choose else self.config.retry_codes
            self._dispatch(delivery)
            await delivery.future
            try:
                async with asyncio.timeout(max(0.0, deadline - self._clock.monotonic())):
                    return await request.reply
            except TimeoutError as error:
                raise NoReply(
                    f"send request message to <{message.topic}> OK, but wait reply message timeout, {seconds:g} s; "
                    "is a consumer there that replies?"
                ) from error

    async def _be_known(self, topic: str, seconds: float) -> None:
        """Tell every broker of the topic who is here, once: a reply may come by any of them."""
        if topic in self._requested_topics:
            return
        with suppress(TimeoutError):  # the request itself will say so
            async with asyncio.timeout(seconds):
                await self._route(topic)
                await self._membership.heartbeat()
                self._requested_topics.add(topic)

    async def cancel(self, recall_handle: str) -> str:
        """Cancel a message sent with `deliver_at` or `delay`, by its send result's `recall_handle`; return its id.

        Any producer may, in any process. Once this returns, nobody gets the message. Raises `RecallRefused` when it was
        delivered or cancelled before, `Unavailable` when its broker does not answer: it may be cancelled all the same.
        """
        return await recall(self._membership, recall_handle, group=self.group, timeout=self.config.timeout)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that messages of a topic can be sent to now, in order of broker name and queue id."""
        return list((await self._route(self._checked(topic))).writable)

    async def flush(self) -> None:
        """Wait until every message sent so far has its answer or has failed."""
        await self.room_below(1)

    async def room_below(self, limit: int) -> None:
        """Wait until fewer than `limit` messages have no answer."""
        while self.in_flight >= limit:
            waiter = (limit, asyncio.get_running_loop().create_future())
            self._room.append(waiter)
            try:
                await waiter[1]
            finally:
                self._room.remove(waiter)

    def _answerers(self) -> list[object]:
        """What answers the brokers' questions; transaction producers are asked about half messages, too."""
        return [self._requests]

    def _prepare(
        self,
        message: Message,
        choose: QueueChooser | None,
        timeout: float | None,
        *,
        half: bool = False,
        more: Mapping[str, str] | None = None,
    ) -> Delivery:
        self._membership.check_running()
        topic = message.topic
        if topic not in self._checked_topics:
            self._checked(topic)
        body, sys_flag, text = prepare(message, self.config, self._ids, half_of=self.group if half else None, more=more)
        assert message.message_id is not None
        return Delivery(
            topic,
            message.message_id,
            message.flag,
            body,
            sys_flag,
            text,
            self._deadline(timeout),
            frozenset(),
            self._new_future(),
            False,
            None,
            choose,
        )

    def _checked(self, topic: str) -> str:
        check_topic_for_sending(topic)
        self._checked_topics.add(topic)
        return topic

    def _deadline(self, timeout: float | None) -> float:
        return self._clock.monotonic() + (self.config.timeout if timeout is None else timeout)

    def _new_future(self) -> asyncio.Future[SendResult]:
        return asyncio.get_running_loop().create_future()

    def _dispatch(self, delivery: Delivery) -> None:
        """Send now if everything is known; else let the message wait behind those of its topic that wait already."""
        self.in_flight += 1
        topic = delivery.topic
        if topic not in self._stalled and (route := self._membership.routes.find(topic)) is not None:
            queue = self._choose(route, delivery)
            if queue is None:
                return
            address = route.master(queue.broker_name)
            channel = self._membership.open_channel(address) if address else None
            if channel is not None:
                self._ask(channel, delivery, queue)
                return
            delivery.planned = queue
        if topic not in self._stalled:
            self._stalled[topic] = deque()
            self._membership.tasks.start(self._unstall(topic), name=f"first messages of {topic}")
        self._stalled[topic].append(delivery)

    async def _unstall(self, topic: str) -> None:
        """Send what waits for a topic's route or a connection, in order; what cannot go is retried by itself."""
        waiting = self._stalled[topic]
        try:
            while waiting:
                delivery = waiting[0]
                try:
                    channel, queue = await self._destination(delivery)
                except MQError as error:
                    self._not_sent(delivery, error)
                else:
                    self._ask(channel, delivery, queue)
                waiting.popleft()
        finally:
            del self._stalled[topic]

    async def _destination(self, delivery: Delivery) -> tuple[Channel, MessageQueue]:
        """Return where the message goes next, connected. Raises `Unavailable` or what makes sending impossible."""
        remaining = max(0.0, delivery.deadline - self._clock.monotonic())
        try:
            async with asyncio.timeout(remaining):
                route = await self._route(delivery.topic)
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
            return await self._membership.channel(address)
        except Unavailable:
            self._choice.report(queue.broker_name, 0.0, failed=True)
            raise

    async def _route(self, topic: str) -> Route:
        self._membership.check_running()
        return await self._membership.route_for_sending(topic, self.config.template_topic, self.config.new_topic_queues)

    def _choose(self, route: Route, delivery: Delivery) -> MessageQueue | None:
        """Return the queue; None when the message has failed for good."""
        try:
            return self._pick(route, delivery)
        except Unavailable as error:
            self._not_sent(delivery, error)
        except MQError as error:
            self._fail(delivery, error)
        return None

    def _pick(self, route: Route, delivery: Delivery) -> MessageQueue:
        if delivery.fixed_queue is not None:
            return delivery.fixed_queue
        if not route.writable:
            raise Unavailable(f"topic {route.topic!r} has no queue that can be written: no master, or no permission")
        if delivery.choose is not None:
            delivery.fixed_queue = delivery.choose(route.writable)
            return delivery.fixed_queue
        return self._choice.pick(route.writable, last_broker=delivery.queue and delivery.queue.broker_name)

    def _ask(self, channel: Channel, delivery: Delivery, queue: MessageQueue) -> None:
        now = self._clock.monotonic()
        delivery.queue = queue
        delivery.started = now
        delivery.attempts += 1
        ask = channel.ask_at_once if delivery.at_once else channel.ask
        ask(
            self._header(delivery, queue),
            delivery.body,
            timeout=delivery.deadline - now,
            answered=partial(self._answered, delivery),
        )

    def _header(self, delivery: Delivery, queue: MessageQueue) -> Filled:
        name = "batch " if delivery.is_batch else ""
        template = self._templates.get((name + queue.topic, queue.broker_name)) or self._template(delivery, queue)
        born_ms = self._clock.now_ms()
        return Filled(template, (queue.queue_id, delivery.sys_flag, born_ms, delivery.flag, delivery.property_text))

    def _template(self, delivery: Delivery, queue: MessageQueue) -> HeaderTemplate:
        name = "batch " if delivery.is_batch else ""
        template = self._templates[name + queue.topic, queue.broker_name] = HeaderTemplate(
            SendBatchMessage if delivery.is_batch else SendMessageV2,
            _VARIABLES,
            formats={"properties": "%b"},
            producer_group=self.group,
            topic=queue.topic,
            default_topic=self.config.template_topic,
            default_topic_queue_count=self.config.new_topic_queues,
            reconsume_times=0,
            unit_mode=False,
            batch=delivery.is_batch,
            broker_name=queue.broker_name,
        )
        return template

    def _answered(self, delivery: Delivery, answer: Response | MQError) -> None:
        queue = delivery.queue
        assert queue is not None
        failed = isinstance(answer, MQError) or answer.code not in STATUSES
        if self.config.avoid_slow_brokers:
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

    def _stored(self, delivery: Delivery, queue: MessageQueue, answer: Response) -> None:
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
        if result.status is not SendStatus.OK and self.config.retry_when_not_ok and delivery.retry_codes:
            delivery.not_ok = result
            self._retry_or_fail(delivery, Unavailable(f"stored, but {result.status.value}"))
            return
        self._leave(delivery)
        if not delivery.future.done():
            delivery.future.set_result(result)

    def _not_sent(self, delivery: Delivery, error: MQError) -> None:
        """The message never reached a connection: this counts as no attempt, so only the deadline ends it."""
        if isinstance(error, Unavailable):
            self._membership.tasks.start(self._retry(delivery, error), name="retry")
        else:
            self._fail(delivery, error)

    def _retry_or_fail(self, delivery: Delivery, error: MQError) -> None:
        if delivery.attempts > self.config.retries or not self._membership.running or delivery.future.done():
            self._fail(delivery, error)
        else:
            self._membership.tasks.start(self._retry(delivery, error), name="retry")

    async def _retry(self, delivery: Delivery, error: MQError) -> None:
        """Try again until the message is on a connection; a restarted broker is found within its timeout."""
        pause = FIRST_PAUSE
        while self._clock.monotonic() < delivery.deadline and not delivery.future.done():
            await self._membership.refresh(delivery.topic)
            try:
                channel, queue = await self._destination(delivery)
            except Unavailable as unavailable:
                error = unavailable
                await self._clock.sleep(min(pause, max(0.0, delivery.deadline - self._clock.monotonic())))
                pause = min(2 * pause, LONGEST_PAUSE)
            except MQError as refusal:
                error = refusal
                break
            else:
                self._ask(channel, delivery, queue)
                return
        if isinstance(error, Unavailable):
            error = type(error)(f"no broker took the message to topic {delivery.topic!r} in time: {error}")
        self._fail(delivery, error)

    def _fail(self, delivery: Delivery, error: MQError) -> None:
        self._leave(delivery)
        if delivery.future.done():
            return
        if delivery.not_ok is not None:  # an earlier attempt did store the message
            delivery.future.set_result(delivery.not_ok)
        else:
            delivery.future.set_exception(error)

    def _leave(self, delivery: Delivery) -> None:
        self.in_flight -= 1
        for waiter in self._room:
            limit, future = waiter
            if self.in_flight < limit and not future.done():
                future.set_result(None)
