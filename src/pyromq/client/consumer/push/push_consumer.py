"""The async push consumer: the group's members share the queues, and each gives its messages to listeners.

This file wires and orders: rebalance says which queues are ours, a pull loop per queue fetches, consuming calls the
listeners, offsets are stored. Each of them is in a file of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from enum import Enum
from typing import Any, TypeVar, overload

from pyromq.client.application_code import picture_of, text_of
from pyromq.client.arguments import checked
from pyromq.client.async_lifespan import AsyncLifespan
from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.client.cluster.namespace import Namespace, namespace_of
from pyromq.client.cluster.routes import Route
from pyromq.client.config import ConsumerConfig
from pyromq.client.consumer.allocation import averaging
from pyromq.client.consumer.consumer_status import Consumption, Reporting
from pyromq.client.consumer.damaged_message_policy import DamagedMessagePolicy
from pyromq.client.consumer.group_offsets import group_offsets
from pyromq.client.consumer.push.concurrent import ConcurrentConsuming
from pyromq.client.consumer.push.consume_directly import DirectConsuming
from pyromq.client.consumer.push.listener import NOBODY, Listener, ListenerHooks, Listening, typed
from pyromq.client.consumer.push.local_offset_store import LocalOffsetStore
from pyromq.client.consumer.push.orderly import OrderlyConsuming
from pyromq.client.consumer.push.owned_queue import OwnedQueue
from pyromq.client.consumer.push.pull_loop import Limits, PullLoops
from pyromq.client.consumer.push.push_assignment import PushAssignment
from pyromq.client.consumer.push.send_back import SendBack
from pyromq.client.consumer.queue_locks import QueueLocks
from pyromq.client.consumer.rebalance import Rebalance
from pyromq.client.consumer.subscriptions import Subscriptions
from pyromq.client.producer.pending_send import check_body
from pyromq.clock import Clock, SystemClock
from pyromq.errors import MQError, NotRunning, Unavailable, UsageError
from pyromq.filter.subscribed import wanted_by
from pyromq.logs import logger_of
from pyromq.message import MessageQueue, Property, StoredMessage, encode_properties
from pyromq.names import AUTO_CREATE_TOPIC, INNER_PRODUCER_GROUP, REPLY_SUFFIX, RETRY_PREFIX, check_consumer_group
from pyromq.net.tasks import every
from pyromq.record import decode
from pyromq.remoting.bodies import ConsumerEntry, HeartbeatBody, PulledQueue
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import ConsumeDirectly, SendReplyMessageV2

REPLY_SECONDS = 3.0  # per broker. Source: DefaultMQProducer.sendMsgTimeout
MAX_BODY_BYTES = 4 << 20

logger = logger_of(__name__)

L = TypeVar("L", bound=Listener)
T = TypeVar("T")
R = TypeVar("R")
FOR_EVER = (1 << 31) - 1


class State(Enum):
    """A consumer is started once and closed once."""

    NEW = "was not started yet"
    STARTING = "is being started"
    RUNNING = "is running"
    FAILED = "failed to start"
    CLOSED = "was closed"


@checked
class AsyncConsumer(AsyncLifespan):
    """Consumes topics as a member of a group, for programs with an event loop; `Consumer` is the same without one.

        async with AsyncConsumer("billing") as consumer:
            @consumer.subscribe("orders", tags="paid || refunded")
            async def work(messages):
                ...
            await consumer.wait()

    A listener gets a list of at most `ConsumerConfig.batch` messages. A plain function runs in a thread, an `async` one
    on the event loop, at most `concurrency` of them at once. Returning nothing means consumed. An exception means that
    the messages come again: after a delay that grows with each of 16 further attempts, then they are dead letters,
    which tell why in property RETRY_REASON; `RetryLater` and `GiveUp` say more. After a `SystemExit` or
    `KeyboardInterrupt` they come again too, and `wait` raises it. Messages come at least once: more than once after a
    crash, and when a member joins while they are worked on.

    With `orderly` a queue has one listener at a time in the whole group. When its lock is lost, as in an outage longer
    than half a second, an `async` listener is cancelled; one in a thread cannot be, and another member may begin.

    All members of a group must subscribe to the same topics with the same tags. Settings, among them order and
    broadcast, are in `ConsumerConfig`. `namesrv` is as for `AsyncProducer`. A consumer is started once:
    `NoNameServer` is raised at once when no name server can be reached, and leaves it unusable.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | None = None,
        *,
        config: ConsumerConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        check_consumer_group(group)
        self.config = config = config or ConsumerConfig()
        self._names = namespace_of(config.namespace, namesrv)
        self._wire_group = wire_group = self._names.checked_group(group)
        self.group = group
        self._clock = clock = clock or SystemClock()
        self.instance = config.instance or ("DEFAULT" if config.broadcast else None)  # None: one of its own
        self._state = State.NEW
        self._failure: BaseException | None = None
        self._exit: BaseException | None = None  # what ended it, if nobody stopped it
        self._loop: asyncio.AbstractEventLoop
        self._stopped: asyncio.Event
        self._owned: dict[MessageQueue, OwnedQueue] = {}
        self._direct = DirectConsuming(wire_group, clock, orderly=config.orderly)
        status = consumption(self._owned, config, entry=self._entry, reset=self._reset, wake=self._look_again)
        self._reporting = Reporting(status, clock, self._names)
        self._hooks = ListenerHooks(group, config, clock, client_id=lambda: self._cluster.client_id)
        directly = ConsumingDirectly(status, self._direct, self._names, listening=self._listening)
        self._cluster = ClusterClient(
            namesrv,
            clock,
            announce=lambda client_id: HeartbeatBody(client_id, consumers=[self._entry()]),
            answerers=[self._reporting, directly],
            instance=self.instance,
            connections=config.connections,
            names=self._names,
            heartbeat_seconds=config.heartbeat_seconds,
            route_refresh_seconds=config.route_refresh_seconds,
        )
        self._subscriptions = Subscriptions[Listening](
            wire_group, self._cluster, clock, retries=not config.broadcast, joined=self._wake
        )
        self._replies = Replies(self._cluster, clock)
        retries = config.max_retries
        given_back = None if config.broadcast else SendBack(wire_group, self._cluster, clock, max_retries=retries)
        self._damage = DamagedMessagePolicy(wire_group, config, given_back)
        self._consuming: ConcurrentConsuming | OrderlyConsuming
        order: OrderlyConsuming | None = None
        if config.orderly:
            self._consuming = order = OrderlyConsuming(
                wire_group,
                config,
                clock,
                listener=self._listening,
                send_back=given_back,
                max_retries=FOR_EVER if retries is None else retries,
            )
        else:
            self._consuming = ConcurrentConsuming(
                wire_group, config, clock, listener=self._listening, send_back=given_back
            )
        self._pulls = PullLoops(
            wire_group,
            self._cluster,
            config,
            clock=clock,
            subscription=lambda topic: (self._subscriptions.wanted(topic), self._limits()),
            deliver=self._consuming.deliver,
            begin_anew=lambda queue: self._reset({queue: 0}),
            damage=self._damage,
            stops=self._end,
            rates=self._reporting.rates,
        )
        if (store := config.offset_store) is None and config.broadcast:
            store = LocalOffsetStore(config.offsets_folder, lambda: self._cluster.client_id)
        self._ownership = PushAssignment(
            wire_group,
            clock,
            owned=self._owned,
            offsets=group_offsets(wire_group, self._cluster, config, store=store),
            pulls=self._pulls,
            order=order,
            locks=None if config.broadcast else QueueLocks(wire_group, self._cluster),
            wake=self._wake,
        )
        self._rebalance = Rebalance(
            self._owned,
            wire_group,
            self._cluster,
            config,
            clock=clock,
            strategy=config.strategy or averaging,
            topics=lambda: self._subscriptions.topics,
            take=self._ownership.take,
            give=self._ownership.queues.give,
            stuck=self._ownership.stuck,
        )

    @property
    def client_id(self) -> str:
        """This member's name in its group, known once started."""
        return self._cluster.client_id

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues this member consumes now, in order; those of the retry topic are left out."""
        return sorted(queue for queue in self._owned if not queue.topic.startswith(RETRY_PREFIX))

    @property
    def damaged_count(self) -> int:
        """How many messages nobody could consume: see `ConsumerConfig.damaged` and `deliver_undecodable`."""
        return self._damage.count

    @overload
    def subscribe(self, topic: str, listener: Listener, *, tags: str = "*", sql: str | None = None) -> None: ...
    @overload
    def subscribe(
        self, topic: str, listener: None = None, *, tags: str = "*", sql: str | None = None
    ) -> Callable[[L], L]: ...
    @overload
    def subscribe(
        self,
        topic: str,
        *,
        tags: str = "*",
        sql: str | None = None,
        type: type[T],
        unfit: Listener | None = None,
    ) -> Callable[[Callable[[list[T]], R]], Callable[[list[T]], R]]: ...
    def subscribe(
        self,
        topic: str,
        listener: Listener | None = None,
        *,
        tags: str = "*",
        sql: str | None = None,
        type: Any = None,
        unfit: Listener | None = None,
    ) -> Any:
        """Give the topic's messages with these tags (`*`, `a`, `a || b`) to a listener, before or after the start.

        Or, with `sql`, those of which an expression over properties is true: `price > 5 AND region IN ('EU', 'US')`.
        Brokers look at it when they hear of it; what they refuse fails the start.
        Without a listener, returns a decorator for one. A topic has one listener: the latest. Call it on the event
        loop, once the consumer runs.

        With a `type` - a dataclass, a `msgspec.Struct`, a pydantic model - the listener gets the bodies, which are
        JSON, as a list of such values. Messages that do not fit become dead letters that tell why, or are given to
        `unfit`, a listener like any other. Raises `UsageError` for a type that no JSON can be read as.
        """
        topic = self._names.checked_topic(topic)
        wanted = wanted_by(tags, sql)
        if self._state in (State.FAILED, State.CLOSED):
            raise NotRunning(f"the consumer of group {self.group} {self._state.value}; make a new one")
        if type is None and unfit is not None:
            raise UsageError(
                f"topic {topic!r}: unfit={picture_of(unfit)} is for bodies that do not fit type=; give that too"
            )

        def decorate(function: Any) -> Any:
            listening = (
                self._as_called(function) if type is None else typed(function, type, unfit, listening=self._as_called)
            )
            self._subscriptions.add(topic, wanted, listening)
            return function

        if listener is None:
            return decorate
        decorate(listener)
        return None

    def unsubscribe(self, topic: str) -> None:
        """Consume the topic no more; its queues are given away with their offsets stored, soon."""
        self._subscriptions.remove(self._names.unwrap(topic))

    async def start(self) -> None:
        """Join the group and begin to consume. Raises `NoNameServer` at once when no name server can be reached."""
        if self._state is not State.NEW:
            raise UsageError(f"the consumer of group {self.group} {self._state.value}; one is started once") from (
                self._failure
            )
        self._state = State.STARTING
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        try:
            await self._cluster.start()
        except BaseException as error:
            self._state, self._failure = State.FAILED, error
            raise
        self._state = State.RUNNING
        self._reporting.start(self._cluster.tasks)
        await self._subscriptions.join()
        self._cluster.on_connection_lost.append(self._ownership.connection_lost)
        self._ownership.start()
        config, start = self.config, self._cluster.tasks.start
        start(self._rebalance.run(), name=f"rebalance {self.group}")
        start(every(config.commit_seconds, self._ownership.save_all, self._clock), name=f"offsets of {self.group}")
        rescue_seconds = max(config.consume_timeout_seconds / 30, 0.001)
        start(every(rescue_seconds, self._rescue, self._clock), name=f"rescue messages of {self.group}")

    async def close(self) -> None:
        """Let running listeners finish (`close_seconds`), store offsets, leave the group. Idempotent."""
        if self._state is State.NEW:
            self._state = State.CLOSED
        if self._state is not State.RUNNING:
            return
        self._state = State.CLOSED
        try:
            await self._cluster.tasks.stop()  # the rebalance among them
            await self._ownership.leave(self.config.close_seconds)
        finally:
            await self._consuming.stop()
            await self._direct.stop()
            await self._cluster.close()
            self._stopped.set()

    def stop(self) -> None:
        """Let `wait` return; for listeners, signal handlers and other threads. Closing is left to who waits."""
        if self._state is State.NEW:
            raise NotRunning(f"the consumer of group {self.group} was not started yet")
        try:
            self._loop.call_soon_threadsafe(self._stopped.set)
        except RuntimeError:
            pass  # the loop is closed, and so is the consumer

    async def wait(self) -> None:
        """Wait until somebody calls `stop` or `close`.

        Raises the `SystemExit` or `KeyboardInterrupt` of a listener, `MessageDamaged` with `Damaged.STOP`, and
        `UsageError` at once when no topic is subscribed to: such a consumer would wait for nothing.
        """
        if (failure := await self.ended()) is not None:
            raise failure

    async def ended(self) -> BaseException | None:
        """Wait as `wait` does, and return what that raises; None when somebody called `stop` or `close`."""
        if self._state is State.NEW:
            raise NotRunning(f"the consumer of group {self.group} was not started yet")
        if self._state is State.RUNNING and not self._stopped.is_set():
            self.check_subscribed()
        await self._stopped.wait()
        return self._exit

    def check_subscribed(self) -> None:
        """Raise `UsageError` when no topic is subscribed to."""
        if not self._subscriptions.topics:
            raise UsageError(f"the consumer of group {self.group} has no subscription; call subscribe() first")

    async def reply(self, request: StoredMessage, body: bytes) -> None:
        """Answer a message sent with a producer's `request`: its sender has the reply when this returns.

        Raises `UsageError` for a message that is no request, and a `BrokerError` or `Unavailable` when its sender is
        gone: an exception that leaves the listener lets the request come again, so catch it where that is no use.
        """
        await self._replies.send(request, body)

    def pause(self) -> None:
        """Pull nothing until `resume`, and keep our share of the queues; what is fetched already is still consumed."""
        self._pulls.pause()

    def resume(self) -> None:
        """Pull again, and share the queues out again."""
        self._pulls.resume()
        self._rebalance.wake()

    def _as_called(self, listener: Listener) -> Listening:
        return self._hooks.around(Listening.of(listener, self._end))

    def _end(self, failure: BaseException) -> None:
        """Let `wait` raise what a listener wants the program to end with, or a damage. Called in any thread."""
        if self._exit is None:
            logger.warning("group %s: the consumer ends: %s", self.group, text_of(failure))
            self._exit = failure
        self.stop()

    def _listening(self, topic: str) -> Listening:
        return self._subscriptions.listener(topic) or NOBODY

    def _limits(self) -> Limits:
        """How much may be in flight in a queue; a topic's limit is shared by all queues. Source: messageQueueChanged"""
        config, queues = self.config, max(1, len(self._owned))
        count, size = config.buffered_messages, config.buffered_bytes
        if config.topic_buffered_messages is not None:
            count = min(count, max(1, config.topic_buffered_messages // queues))
        if config.topic_buffered_bytes is not None:
            size = min(size, max(1, config.topic_buffered_bytes // queues))
        return Limits(count, size, None if config.orderly else config.buffered_span)

    def _entry(self) -> ConsumerEntry:
        """What heartbeats say about this consumer."""
        config = self.config
        return ConsumerEntry(
            self._wire_group,
            message_model="BROADCASTING" if config.broadcast else "CLUSTERING",
            consume_from=config.announced_start,
            subscriptions=self._subscriptions.announced(),
        )

    async def _rescue(self) -> None:
        """Send back the messages of listeners that take too long."""
        for owned in list(self._owned.values()):
            await self._consuming.rescue(owned.process_queue)

    def _wake(self) -> None:
        self._rebalance.wake()

    def _look_again(self) -> None:
        self._rebalance.look_again()

    def _reset(self, offsets: dict[MessageQueue, int]) -> None:
        if self._state is State.RUNNING:
            self._ownership.reset(offsets)


def consumption(
    owned: Mapping[MessageQueue, OwnedQueue],
    config: ConsumerConfig,
    *,
    entry: Callable[[], ConsumerEntry],
    reset: Callable[[dict[MessageQueue, int]], None],
    wake: Callable[[], None],
) -> Consumption:
    """Return what others may know and do of a consumer that owns these queues."""
    settings = {
        "PROP_CONSUMEORDERLY": str(config.orderly).lower(),
        "PROP_THREADPOOL_CORE_SIZE": str(config.concurrency),
        "consumeMessageBatchMaxSize": str(config.batch),
        "consumeConcurrentlyMaxSpan": str(config.buffered_span),
    }
    return Consumption(
        config,
        settings,
        entry,
        positions=lambda: {queue: each.process_queue.safe_offset for queue, each in owned.items()},
        queues=lambda: {queue: _pulled(each) for queue, each in owned.items()},
        reset=reset,
        wake=wake,
    )


class ConsumingDirectly:
    """Answers for the listeners: `listening(topic)`. Who asks says names as `names` wraps them."""

    def __init__(
        self,
        consumption: Consumption,
        direct: DirectConsuming,
        names: Namespace,
        *,
        listening: Callable[[str], Listening],
    ) -> None:
        self._consumption = consumption
        self._direct = direct
        self._names = names
        self._listening = listening

    @answers(ConsumeDirectly)
    def consume(self, header: ConsumeDirectly, call: Call) -> Future[Reply]:
        """Run the listener on one message; offsets and retries are not touched."""
        self._consumption.check(header.consumer_group)
        message = decode(call.body, check_crc=self._consumption.config.verify_checksums)
        message.broker_name = header.broker_name or ""
        message.topic = self._names.unwrap(message.original_topic)
        return self._direct.consume(self._listening(message.topic), message)


def _pulled(owned: OwnedQueue) -> PulledQueue:
    requests = owned.process_queue.requests
    return PulledQueue(
        commit_offset=owned.process_queue.safe_offset,
        cached_min_offset=requests[0].first_offset if requests else 0,
        cached_max_offset=requests[-1].messages[-1].queue_offset if requests else 0,
        cached_count=owned.process_queue.count,
        cached_mebibytes=owned.process_queue.size >> 20,
        locked=owned.locked_ms > 0,
        last_lock_ms=owned.locked_ms,
        dropped=owned.dropped,
        last_pull_ms=owned.pulled_ms,
        last_consume_ms=owned.process_queue.consumed_ms,
    )


class Replies:
    """Sends replies for one consumer."""

    def __init__(self, cluster: ClusterClient, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock

    async def send(self, request: StoredMessage, body: bytes) -> None:
        """Hand `body` to the client that sent `request`: true when this returns.

        Raises `UsageError` for a message that is no request, `IllegalMessage` for a body that cannot be sent, and a
        `BrokerError` or `Unavailable` when no broker reaches the client: it does not wait any more.
        """
        check_body(body, MAX_BODY_BYTES)
        topic, text = _reply_topic(request), _reply_properties(request)
        failure: MQError = Unavailable(f"no broker takes messages for topic {topic!r} now")
        for queue, address in _places(await self._cluster.route(topic), request.broker_name):
            order = SendReplyMessageV2(
                producer_group=INNER_PRODUCER_GROUP,
                topic=topic,
                default_topic=AUTO_CREATE_TOPIC,
                default_topic_queue_count=4,
                queue_id=queue.queue_id,
                sys_flag=0,
                born_ms=self._clock.now_ms(),
                flag=0,
                properties=text,
                reconsume_times=0,
                unit_mode=False,
                batch=False,
            )
            try:
                (await self._cluster.ask(address, order, body, timeout=REPLY_SECONDS)).check()
            except MQError as error:
                failure = error
            else:
                return
        raise failure


def _reply_topic(request: StoredMessage) -> str:
    cluster = request.properties.get(Property.CLUSTER)
    if not cluster or Property.REPLY_TO_CLIENT not in request.properties:
        raise UsageError(
            f"message {request.message_id} is no request, nobody waits for a reply: it has no {Property.CLUSTER} or "
            f"no {Property.REPLY_TO_CLIENT}"
        )
    return cluster + REPLY_SUFFIX


def _reply_properties(request: StoredMessage) -> str:
    names = (Property.CORRELATION_ID, Property.REPLY_TO_CLIENT, Property.TTL)
    copied = {name: request.properties[name] for name in names if name in request.properties}
    return encode_properties({**copied, Property.MESSAGE_TYPE: "reply"})


def _places(route: Route, first: str) -> Iterator[tuple[MessageQueue, str]]:
    """Yield a queue and the address of each broker, one after the other: the request's own knows the client best."""
    queues = {queue.broker_name: queue for queue in route.writable}
    for broker_name in sorted(queues, key=lambda name: (name != first, name)):
        address = route.master(broker_name)
        if address is not None:
            yield queues[broker_name], address
