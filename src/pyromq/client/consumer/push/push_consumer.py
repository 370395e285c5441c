"""The async push consumer: the group's members share the queues, and each member calls listeners with its messages.

The consumer connects these parts: the rebalance assigns queues, a pull loop per queue fetches messages, a consume
service calls the listeners, and the assignment commits offsets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, TypeVar, overload

from pyromq.client.application_code import picture_of, text_of
from pyromq.client.arguments import checked
from pyromq.client.client_config import ConsumerConfig
from pyromq.client.client_hooks import connect_hooks
from pyromq.client.cluster.cluster_client import AsyncLifespan, ClusterClient
from pyromq.client.cluster.namespace import namespace_of
from pyromq.client.cluster.topic_routes import Route
from pyromq.client.consumer.assignment import QueueLockClient
from pyromq.client.consumer.consumer_status import ConsumerInternals, ConsumerStatusProcessor
from pyromq.client.consumer.group_offsets import LocalOffsetStore, group_offsets
from pyromq.client.consumer.pulling import DamagedMessagePolicy
from pyromq.client.consumer.push.consume_concurrently_service import (
    ConsumeConcurrentlyService,
    ConsumeDirectlyProcessor,
)
from pyromq.client.consumer.push.consume_orderly_service import ConsumeOrderlyService
from pyromq.client.consumer.push.listener import UNSUBSCRIBED, BoundListener, Listener, ListenerHooks, typed
from pyromq.client.consumer.push.process_queue import ProcessQueue
from pyromq.client.consumer.push.pull_loop import PullLoops
from pyromq.client.consumer.push.push_assignment import PushAssignment
from pyromq.client.consumer.push.send_back import SendBack
from pyromq.client.consumer.rebalance import Rebalance
from pyromq.client.consumer.subscriptions import Subscriptions
from pyromq.client.producer.pending_send import check_body
from pyromq.clock import Clock, SystemClock
from pyromq.errors import MQError, NotRunning, Unavailable, UsageError
from pyromq.filter.filter import wanted_by
from pyromq.logs import logger_of
from pyromq.message import MessageQueue, Property, StoredMessage, encode_properties
from pyromq.names import AUTO_CREATE_TOPIC, INNER_PRODUCER_GROUP, REPLY_SUFFIX, RETRY_PREFIX, check_consumer_group
from pyromq.net.tasks import every
from pyromq.remoting.bodies import ConsumerEntry, HeartbeatBody, PulledQueue
from pyromq.remoting.headers import SendReplyMessageV2

REPLY_SECONDS = 3.0  # limit of an attempt to send a reply, per broker. Source: DefaultMQProducer.sendMsgTimeout
MAX_BODY_BYTES = 4 << 20  # limit of a reply's body

logger = logger_of(__name__)

L = TypeVar("L", bound=Listener)
T = TypeVar("T")
R = TypeVar("R")
FOR_EVER = (1 << 31) - 1  # retries of an orderly consumer if `max_retries` is None


class State(Enum):
    """The states of a consumer, which is started once and closed once."""

    NEW = "was not started yet"
    STARTING = "is being started"
    RUNNING = "is running"
    FAILED = "failed to start"
    CLOSED = "was closed"


@checked
class AsyncConsumer(AsyncLifespan):
    """Consumes topics as a member of a group, for programs with an event loop; `Consumer` is the blocking form.

        async with AsyncConsumer("billing") as consumer:
            @consumer.subscribe("orders", tags="paid || refunded")
            async def work(messages):
                ...
            await consumer.wait()

    A listener gets a list of at most `ConsumerConfig.batch` messages. Plain listeners run in threads, `async` ones on
    the event loop, at most `concurrency` at the same time. If a listener returns nothing, its messages count as
    consumed. After an exception they are redelivered, with a delay that grows with each of 16 retries. Then they become
    dead letters, with the reason in property RETRY_REASON. `RetryLater` and `GiveUp` give more control. After a
    `SystemExit` or `KeyboardInterrupt` the messages are redelivered too, and `wait` raises the exception. Delivery is
    at least once: duplicates occur after a crash, and when a member joins while messages are being consumed.

    With `orderly` a queue has one listener at a time in the whole group. When the queue's lock is lost, for example in
    an outage longer than half a second, an `async` listener is cancelled. A listener in a thread cannot be cancelled,
    so another member's listener may run at the same time.

    All members of a group must subscribe to the same topics with the same tags. `ConsumerConfig` has the settings, for
    example order and broadcast. `namesrv` is as for `AsyncProducer`. A consumer can be started once. Starting raises
    `NoNameServer` immediately if no name server can be reached; the consumer is unusable after that.
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
        # None: the client gets a generated name.
        self.instance = config.instance or ("DEFAULT" if config.broadcast else None)
        self._state = State.NEW
        self._failure: BaseException | None = None
        self._exit: BaseException | None = None  # the exception that `wait` raises
        self._loop: asyncio.AbstractEventLoop
        self._stopped: asyncio.Event
        self._assigned: dict[MessageQueue, ProcessQueue] = {}
        state = internals(
            self._assigned, config, entry=self._entry, reset=self._reset, wake=lambda: self._rebalance.look_again()
        )
        self._status = ConsumerStatusProcessor(state, clock, self._names)
        self._direct = ConsumeDirectlyProcessor(
            wire_group, state, self._names, clock, listener=lambda topic: self._subscriptions.listener(topic)
        )
        connect_hooks(config.hooks, config.connections, namesrv)
        self._hooks = ListenerHooks(group, config, clock, client_id=lambda: self._cluster.client_id)
        self._cluster = ClusterClient(
            namesrv,
            clock,
            announce=lambda client_id: HeartbeatBody(client_id, consumers=[self._entry()]),
            answerers=[self._status, self._direct],
            instance=self.instance,
            connections=config.connections,
            names=self._names,
            heartbeat_seconds=config.heartbeat_seconds,
            route_refresh_seconds=config.route_refresh_seconds,
        )
        self._subscriptions = Subscriptions[BoundListener](
            wire_group,
            self._cluster,
            clock,
            retries=not config.broadcast,
            absent=UNSUBSCRIBED,
            joined=lambda: self._rebalance.wake(),
        )
        self._replies = Replies(self._cluster, clock)
        retries = config.max_retries
        given_back = None if config.broadcast else SendBack(wire_group, self._cluster, clock, max_retries=retries)
        self._damage = DamagedMessagePolicy(wire_group, config, given_back)
        listener = self._subscriptions.listener
        self._service: ConsumeConcurrentlyService | ConsumeOrderlyService
        order: ConsumeOrderlyService | None = None
        if config.orderly:
            self._service = order = ConsumeOrderlyService(
                wire_group,
                config,
                clock,
                listener=listener,
                send_back=given_back,
                max_retries=FOR_EVER if retries is None else retries,
            )
        else:
            self._service = ConsumeConcurrentlyService(
                wire_group, config, clock, listener=listener, send_back=given_back
            )
        self._pulls = PullLoops(
            wire_group,
            self._cluster,
            config,
            clock=clock,
            assigned=self._assigned,
            wanted=self._subscriptions.wanted,
            deliver=self._service.deliver,
            reset_to_start=lambda queue: self._reset({queue: 0}),
            damage=self._damage,
            stops=self._end,
            rates=self._status.rates,
        )
        if (store := config.offset_store) is None and config.broadcast:
            store = LocalOffsetStore(config.offsets_folder, lambda: self._cluster.client_id)
        self._assignment = PushAssignment(
            wire_group,
            clock,
            assigned=self._assigned,
            offsets=group_offsets(wire_group, self._cluster, config, store=store),
            pulls=self._pulls,
            order=order,
            locks=None if config.broadcast else QueueLockClient(wire_group, self._cluster),
            wake=lambda: self._rebalance.wake(),
        )
        self._rebalance = Rebalance(
            self._assigned,
            wire_group,
            self._cluster,
            config,
            clock=clock,
            topics=lambda: self._subscriptions.topics,
            acquire=self._assignment.acquire,
            revoke=self._assignment.queues.revoke,
            stuck=self._assignment.stuck,
        )

    @property
    def client_id(self) -> str:
        """This member's id in its group; available after the start."""
        return self._cluster.client_id

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues assigned to this member, sorted, without those of the retry topic."""
        return sorted(queue for queue in self._assigned if not queue.topic.startswith(RETRY_PREFIX))

    @property
    def damaged_count(self) -> int:
        """The number of damaged and undecodable messages: see `ConsumerConfig.damaged` and `deliver_undecodable`."""
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
        """Pass the topic's messages with these tags (`*`, `a`, `a || b`) to a listener. Call before or after the start.

        With `sql`, pass the messages for which an expression over properties is true: `price > 5 AND region IN ('EU',
        'US')`. The start fails if a broker refuses the expression. If `listener` is omitted, return a decorator for a
        listener. A topic has one listener: the latest. After the start, call this on the event loop.

        With a `type` - a dataclass, a `msgspec.Struct`, a pydantic model - the listener gets a list of such values,
        decoded from JSON bodies. Messages that do not fit become dead letters with the reason, or are passed to the
        listener `unfit`. Raises `UsageError` for a type that cannot be decoded from JSON.
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
            bound = self._bind(function) if type is None else typed(function, type, unfit, bind=self._bind)
            self._subscriptions.add(topic, wanted, bound)
            return function

        if listener is None:
            return decorate
        decorate(listener)
        return None

    def unsubscribe(self, topic: str) -> None:
        """Stop consuming the topic. A rebalance soon revokes its queues and commits their offsets."""
        self._subscriptions.remove(self._names.unwrap(topic))

    async def start(self) -> None:
        """Join the group and begin to consume. Raises `NoNameServer` immediately if no name server can be reached.

        Raises `UsageError` if no topic is subscribed to. A block of `async with` may subscribe after its start.
        """
        self._check_new()
        self.check_subscribed()
        await self._enter()

    def _check_new(self) -> None:
        if self._state is not State.NEW:
            raise UsageError(f"the consumer of group {self.group} {self._state.value}; one is started once") from (
                self._failure
            )

    async def _enter(self) -> None:
        self._check_new()
        self._state = State.STARTING
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        try:
            await self._cluster.start()
            self._state = State.RUNNING
            self._status.start(self._cluster.tasks)
            await self._subscriptions.join()
            self._cluster.check_running()  # raises if `close` was called meanwhile
        except BaseException as error:
            await self.close()
            self._state, self._failure = State.FAILED, error
            raise
        self._cluster.on_connection_lost.append(self._assignment.connection_lost)
        # The locks of a former master are worth nothing, even if its connection lives.
        self._cluster.routes.on_master_change.append(
            lambda _, former, present: self._assignment.connection_lost(former)
        )
        self._assignment.start()
        config, start = self.config, self._cluster.tasks.start
        start(self._rebalance.run(), name=f"rebalance {self.group}")
        start(every(config.commit_seconds, self._assignment.save_all, self._clock), name=f"offsets of {self.group}")
        rescue_seconds = max(config.consume_timeout_seconds / 30, 0.001)
        start(every(rescue_seconds, self._rescue, self._clock), name=f"rescue messages of {self.group}")

    async def close(self) -> None:
        """Wait for running listeners at most `close_seconds`, commit offsets, leave the group. Idempotent."""
        if self._state is State.NEW:
            self._state = State.CLOSED
        if self._state is not State.RUNNING:
            return
        self._state = State.CLOSED
        try:
            await self._cluster.tasks.stop()  # this stops the rebalance, too
            await self._assignment.leave(self.config.close_seconds)
        finally:
            await self._service.stop()
            await self._direct.stop()
            await self._cluster.close()
            self._stopped.set()

    def stop(self) -> None:
        """Make `wait` return; for listeners, signal handlers and other threads. The caller of `wait` must close."""
        if self._state is State.NEW:
            raise NotRunning(f"the consumer of group {self.group} was not started yet")
        try:
            self._loop.call_soon_threadsafe(self._stopped.set)
        except RuntimeError:
            pass  # the event loop is closed, so the consumer is closed, too

    async def wait(self) -> None:
        """Wait until `stop` or `close` is called.

        Raises the `SystemExit` or `KeyboardInterrupt` of a listener, and `MessageDamaged` with `Damaged.STOP`. Raises
        `UsageError` immediately if no topic is subscribed to.
        """
        if (failure := await self.ended()) is not None:
            raise failure

    async def ended(self) -> BaseException | None:
        """Wait as `wait` does. Return the exception that `wait` would raise, None after `stop` or `close`."""
        if self._state is State.NEW:
            raise NotRunning(f"the consumer of group {self.group} was not started yet")
        if self._state is State.RUNNING and not self._stopped.is_set():
            self.check_subscribed()
        await self._stopped.wait()
        return self._exit

    def check_subscribed(self) -> None:
        """Raise `UsageError` if no topic is subscribed to."""
        if not self._subscriptions.topics:
            raise UsageError(
                f"the consumer of group {self.group} has no subscription; call subscribe() before start(), run() or"
                " wait()"
            )

    async def reply(self, request: StoredMessage, body: bytes) -> None:
        """Reply to a message sent by a producer's `request`. The sender has the reply when this method returns.

        Raises `UsageError` for a message that is not a request, and a `BrokerError` or `Unavailable` if the sender is
        disconnected. If the listener does not catch these errors, the request is redelivered.
        """
        await self._replies.send(request, body)

    def pause(self) -> None:
        """Stop pulling until `resume`. The assignment stays, and messages already fetched are consumed."""
        self._pulls.pause()

    def resume(self) -> None:
        """End `pause`: pull again, and rebalance soon."""
        self._pulls.resume()
        self._rebalance.wake()

    def _bind(self, listener: Listener) -> BoundListener:
        return self._hooks.around(BoundListener.of(listener, self._end))

    def _end(self, failure: BaseException) -> None:
        """Make `wait` raise `failure`: a listener's exception that ends the program, or a damage. Thread-safe."""
        if self._exit is None:
            logger.warning("group %s: the consumer ends: %s", self.group, text_of(failure))
            self._exit = failure
        self.stop()

    def _entry(self) -> ConsumerEntry:
        """Return this consumer's entry in heartbeats."""
        config = self.config
        return ConsumerEntry(
            self._wire_group,
            message_model="BROADCASTING" if config.broadcast else "CLUSTERING",
            consume_from=config.announced_start,
            subscriptions=self._subscriptions.announced(),
        )

    async def _rescue(self) -> None:
        for assigned in list(self._assigned.values()):
            await self._service.rescue(assigned)

    def _reset(self, offsets: dict[MessageQueue, int]) -> None:
        if self._state is State.RUNNING:
            self._assignment.reset(offsets)


def internals(
    assigned: Mapping[MessageQueue, ProcessQueue],
    config: ConsumerConfig,
    *,
    entry: Callable[[], ConsumerEntry],
    reset: Callable[[dict[MessageQueue, int]], None],
    wake: Callable[[], None],
) -> ConsumerInternals:
    """Return the parts of a push consumer that brokers and administrators may see and change."""
    settings = {
        "PROP_CONSUMEORDERLY": str(config.orderly).lower(),
        "PROP_THREADPOOL_CORE_SIZE": str(config.concurrency),
        "consumeMessageBatchMaxSize": str(config.batch),
        "consumeConcurrentlyMaxSpan": str(config.buffered_span),
    }
    return ConsumerInternals(
        config,
        settings,
        entry,
        positions=lambda: {queue: each.safe_offset for queue, each in assigned.items()},
        queues=lambda: {queue: _pulled(each) for queue, each in assigned.items()},
        reset=reset,
        wake=wake,
    )


def _pulled(assigned: ProcessQueue) -> PulledQueue:
    requests = assigned.requests
    return PulledQueue(
        commit_offset=assigned.safe_offset,
        cached_min_offset=requests[0].first_offset if requests else 0,
        cached_max_offset=requests[-1].messages[-1].queue_offset if requests else 0,
        cached_count=assigned.count,
        cached_mebibytes=assigned.size >> 20,
        locked=assigned.locked_ms > 0,
        last_lock_ms=assigned.locked_ms,
        dropped=assigned.dropped,
        last_pull_ms=assigned.pulled_ms,
        last_consume_ms=assigned.consumed_ms,
    )


class Replies:
    """Sends a consumer's replies to the `request` messages of producers."""

    def __init__(self, cluster: ClusterClient, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock

    async def send(self, request: StoredMessage, body: bytes) -> None:
        """Send `body` to the client that sent `request`. The client has the reply when this method returns.

        Raises `UsageError` for a message that is not a request, `IllegalMessage` for a body that cannot be sent, and a
        `BrokerError` or `Unavailable` if no broker can reach the client.
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
            f"message {request.message_id} is not a request and cannot be replied to: property {Property.CLUSTER} or "
            f"{Property.REPLY_TO_CLIENT} is missing; reply only to messages sent with a producer's request()"
        )
    return cluster + REPLY_SUFFIX


def _reply_properties(request: StoredMessage) -> str:
    names = (Property.CORRELATION_ID, Property.REPLY_TO_CLIENT, Property.TTL)
    copied = {name: request.properties[name] for name in names if name in request.properties}
    return encode_properties({**copied, Property.MESSAGE_TYPE: "reply"})


def _places(route: Route, first: str) -> Iterator[tuple[MessageQueue, str]]:
    """Yield a queue and the master's address of each broker; the request's broker first, as it may know the client."""
    queues = {queue.broker_name: queue for queue in route.writable}
    for broker_name in sorted(queues, key=lambda name: (name != first, name)):
        address = route.master(broker_name)
        if address is not None:
            yield queues[broker_name], address
