"""One client's connection to a cluster: client id, name servers, connections, routes, heartbeats.

Producers, consumers and admin clients send their requests through `ClusterClient`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from pyromq.client.cluster.deleted_topics import DeletedTopics
from pyromq.client.cluster.environment import connections_of
from pyromq.client.cluster.known_masters import MASTER
from pyromq.client.cluster.name_servers import NameServers, addresses_of
from pyromq.client.cluster.namespace import NO_NAMESPACE, Namespace
from pyromq.client.cluster.replica_set_watch import WATCH_SECONDS, ReplicaSetWatch
from pyromq.client.cluster.retry import Retry, may_be_taken
from pyromq.client.cluster.shared_connections import Member, SharedConnections, join, leave, new_instance
from pyromq.client.cluster.topic_routes import Route, Routes, read_route, route_for_new_topic
from pyromq.clock import Clock
from pyromq.errors import (
    REFUSALS_OF_REPLICAS,
    DeadlineExceeded,
    MQError,
    NoNameServer,
    NotRunning,
    NotTheMaster,
    SilentServer,
    TopicNotFound,
    Unavailable,
    from_response,
)
from pyromq.logs import PARTIAL_RESULTS, logger_of
from pyromq.message import MessageQueue, StoredMessage, SysFlag, encode_properties
from pyromq.names import AUTO_CREATE_TOPIC, INNER_PRODUCER_GROUP
from pyromq.net.address_server import REFRESH_SECONDS
from pyromq.net.channel import Channel, Pool
from pyromq.net.connection_config import ConnectionConfig
from pyromq.net.server_probes import keep_probing
from pyromq.net.tasks import Tasks, every, take_error
from pyromq.remoting.bodies import ClusterTable, HeartbeatBody, TopicRoute
from pyromq.remoting.command import Response
from pyromq.remoting.dispatch import Dispatcher, Peer
from pyromq.remoting.header import Filled, Header
from pyromq.remoting.headers import BrokerClusterInfo, Heartbeat, RouteOfTopic, SendMessageV2, UnregisterClient
from pyromq.remoting.json_quirks import decode_body, encode_body

logger = logger_of(__name__)


class AsyncLifespan(ABC):
    """A client that is started when an `async with` block is entered and closed when the block is left."""

    @abstractmethod
    async def start(self) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...

    async def _enter(self) -> None:
        """Start as `async with` does; a push consumer may be without subscriptions then."""
        await self.start()

    async def __aenter__(self) -> Self:
        await self._enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


partial_results = logger_of(PARTIAL_RESULTS)

T = TypeVar("T")

API_SECONDS = 3.0  # limit of heartbeats and route requests. Source: ClientConfig.mqClientApiTimeout
OUT_OF_REACH_SECONDS = 10.0  # time for which a broker that did not answer is left out of partial results
# SysFlag bits that a copy of a message does not keep.
COPY_DROPS = SysFlag.BORN_HOST_IPV6 | SysFlag.STORE_HOST_IPV6 | SysFlag.ROLLBACK
REFRESH_PAUSE = 0.2  # shortest time between two refreshes of a route, so that failed sends of a topic share one


class ClusterClient:
    """Routes, connections and requests of one client, between `start` and `close`.

    `announce(client_id)` returns the body of heartbeats, or None for a client without heartbeats. `answerers` handle
    brokers' requests. `instance` is part of the client id, see `shared_connections`. A producer's client id ends with
    its `producer_group`: when any producer of an id unregisters, a broker forgets the connection for replies to that id
    (Source: RocketMQ 4.9.8, ProducerManager.unregisterProducer). With `vip_channel`, messages go to each broker's port
    minus 2. `connections` None means those of the environment. Topics in arguments and results have the application's
    names, without the namespace of `names`. With `forget_deleted`, routes of deleted topics are forgotten. A consumer
    keeps them: the topic may be created again.
    """

    def __init__(
        self,
        namesrv: str | None,
        clock: Clock,
        *,
        announce: Callable[[str], HeartbeatBody | None] = lambda client_id: None,
        answerers: Sequence[object] = (),
        instance: str | None = None,
        producer_group: str | None = None,
        names: Namespace = NO_NAMESPACE,
        heartbeat_seconds: float = 30.0,
        route_refresh_seconds: float = 30.0,
        vip_channel: bool = False,
        connections: ConnectionConfig | None = None,
        forget_deleted: bool = False,
    ) -> None:
        self.names = names
        self.routes = Routes()
        self.deleted_topics = DeletedTopics(self.routes, self._broker_names)
        self._forgets_deleted = forget_deleted
        self.client_id = ""
        self.ip = "127.0.0.1"
        self.tasks = Tasks()
        self.running = False
        self.on_route_change: list[Callable[[str], None]] = []  # called with the topic of a new or changed route
        self.on_connection_lost: list[Callable[[str], None]] = []  # called with a broker's address
        self._addresses = addresses_of(namesrv)
        self._clock = clock
        self._announce = announce
        self._instance = instance
        self._producer_group = producer_group
        self._vip_channel = vip_channel
        self._heartbeat_seconds = heartbeat_seconds
        self._route_refresh_seconds = route_refresh_seconds
        self._member = Member(lambda: announce(self.client_id), Dispatcher(*answerers))
        self._shared: SharedConnections | None = None
        self._connections = connections_of(connections)
        self._pool = Pool(self._member.dispatcher, clock, self._connections)
        self.name_servers = self._name_servers()
        self._set_watch = ReplicaSetWatch(self, clock)
        self._fetching: dict[str, asyncio.Lock] = {}
        self._fetched: dict[str, float] = {}
        self._greeted: dict[str, Channel] = {}
        # Reply to the latest heartbeat to each broker, by address.
        self._beats: dict[str, asyncio.Future[Response]] = {}
        self._silent: set[str] = set()
        self._everywhere = False
        # By address: when to ask the broker again, and its error.
        self._out_of_reach: dict[str, tuple[float, Unavailable]] = {}

    async def start(self) -> None:
        """Connect to a name server and start the background tasks. Raises `NoNameServer` immediately on failure."""
        addresses = tuple(self._addresses)
        self._shared = join(addresses, self._instance, self._member, self._clock, self._connections)
        if self._shared is not None:
            self._pool = self._shared.pool
            self.name_servers = self._name_servers()
        try:
            self.ip = (await self.name_servers.connect()).local_address[0]
        except BaseException as error:
            if not (isinstance(error, NoNameServer) and self.name_servers.is_replaced):
                await self._close_pool()
                raise
        instance = self._shared.key.instance if self._shared is not None else new_instance()
        self.client_id = "@".join(filter(None, (self.ip, instance, self._producer_group)))
        self.running = True
        self.tasks.start(every(self._heartbeat_seconds, self.heartbeat, self._clock), name="heartbeat")
        if self.name_servers.address_server is not None:
            self.tasks.start(
                every(REFRESH_SECONDS, self.name_servers.look_up, self._clock), name="look up name servers"
            )
        self.tasks.start(every(self._route_refresh_seconds, self.refresh_all, self._clock), name="refresh routes")
        if (silent := self._connections.silent) is not None:
            self.tasks.start(keep_probing(silent, self._connections, self._clock), name="look for silent servers")
        self.tasks.start(every(WATCH_SECONDS, self._set_watch.look, self._clock), name="watch replica sets")

    def _name_servers(self) -> NameServers:
        return NameServers(self._addresses, self._pool, timeout=API_SECONDS, stand_in=self._connections.stand_in)

    async def close(self) -> None:
        """Stop the background tasks, unregister at every broker that got a heartbeat, close the connections.

        Waits at most `API_SECONDS` for the replies, also to unanswered heartbeats. Java's brokers handle requests in
        parallel: a heartbeat handled after the unregistering would register the client again.
        """
        self.running = False
        try:
            await self.tasks.stop()
            await asyncio.gather(*(self._unregister(*greeted) for greeted in self._greeted.items()))
        finally:  # also if this call is cancelled
            for channel in self._greeted.values():  # other clients may use the connections for long
                listeners = channel.session.on_close
                channel.session.on_close = tuple(each for each in listeners if each != self._connection_closed)
            self._greeted.clear()
            await self._close_pool()

    async def _close_pool(self) -> None:
        if self._shared is None:
            await self._pool.close()
        else:
            await leave(self._shared, self._member)

    def check_running(self) -> None:
        """Raise `NotRunning` before `start` and after `close`."""
        if not self.running:
            raise NotRunning("the client is not running: start it with `with` or start(); make a new one after close()")

    def open_channel(self, address: str) -> Channel | None:
        """Return the open connection to the broker at `address`; None if there is none now."""
        return self._pool.open_channel(address)

    async def channel(self, address: str) -> Channel:
        """Return the connection to a broker, opened if necessary: a heartbeat is sent first. Raises `Unavailable`."""
        try:
            channel = await self._pool.channel(address)
        except Unavailable:
            self.routes.unreachable(address)
            raise
        if self._greeted.get(address) is not channel:
            self._greeted[address] = channel
            self._silent.discard(address)
            channel.session.on_close += (self._connection_closed,)
            self._beat_now(address, channel)
        return channel

    def sending_address(self, address: str) -> str:
        """Return the address for sending messages to a broker: with `vip_channel` the port is 2 lower.

        Source: RocketMQ 4.9.8, MixAll.brokerVIPChannel.
        """
        if not self._vip_channel:
            return address
        host, _, port = address.rpartition(":")
        return f"{host}:{int(port) - 2}"

    async def channel_for_sending(self, address: str) -> Channel:
        """Return the connection for sending messages to a broker. Raises `Unavailable`.

        With `vip_channel`, heartbeats still go to the broker's ordinary port.
        """
        channel = await self.channel(address)
        if not self._vip_channel:
            return channel
        try:
            return await self._pool.channel(self.sending_address(address))
        except Unavailable as error:
            raise Unavailable(
                f"the VIP channel of broker {address} cannot be used: {error}; switch it on there "
                "(vipChannelEnable=true), or leave out vip_channel"
            ) from error

    async def route(self, topic: str) -> Route:
        """Return the known route of a topic, or fetch the route. Raises `TopicNotFound` and `NoNameServer`."""
        return self.routes.find(topic) or await self._fetch_once(topic, self._fetch)

    async def route_for_sending(self, topic: str, template_topic: str, new_queues: int) -> Route:
        """Return a topic's route; for an unknown topic, the route at which its first message creates it.

        Raises `TopicNotFound` if no broker creates topics by itself.
        """
        fetch = partial(self._fetch_or_template, template_topic=template_topic, new_queues=new_queues)
        return self.routes.find(topic) or await self._fetch_once(topic, fetch)

    async def refresh(self, topic: str) -> None:
        """Fetch a topic's route again. The known route stays if no name server gives one or the topic was deleted."""
        if self.route_age(topic) < REFRESH_PAUSE:
            return
        self._fetched[topic] = self._clock.monotonic()
        self._set_watch.compare_soon(topic)
        self.deleted_topics.absent.discard(topic)
        try:
            await self._fetch(topic)
        except (Unavailable, TopicNotFound) as error:
            logger.debug("route of %s stays as it was: %s", topic, error)
            if isinstance(error, TopicNotFound) and self._forgets_deleted:
                self.deleted_topics.absent.add(topic)
        except MQError as error:  # an illegal answer, or the refusal of a busy name server
            logger.warning("route of %s stays as it was: %s", topic, error)

    def route_age(self, topic: str) -> float:
        """Return the seconds since a topic's route was refreshed; a large number if it never was."""
        return self._clock.monotonic() - self._fetched.get(topic, float("-inf"))

    async def refresh_all(self) -> None:
        for topic in self.routes.topics:
            await self.refresh(topic)
        if self._forgets_deleted:
            await self.deleted_topics.forget()
        self._fetched = {topic: at for topic, at in self._fetched.items() if topic in self.routes.known}

    async def _broker_names(self) -> set[str]:
        return set((await self.cluster_table()).brokers)

    async def ask(
        self, address: str, header: Header | Filled, body: bytes = b"", *, timeout: float = API_SECONDS
    ) -> Response:
        """Return a broker's response, with any response code. Raises `Unavailable` after `timeout` seconds."""
        self.check_running()
        channel = self._pool.open_channel(address)
        if channel is not None and self._greeted.get(address) is channel:
            return await channel.call(header, body, timeout=timeout)  # `call` applies the timeout itself
        try:
            async with asyncio.timeout(timeout):
                channel = await self.channel(address)
                return await channel.call(header, body, timeout=timeout)
        except TimeoutError as error:
            raise DeadlineExceeded(f"{address} did not answer within {timeout:g} s") from error

    async def ask_reachable(self, addresses: Iterable[str], ask: Callable[[str], Awaitable[T]]) -> dict[str, T]:
        """Call `ask(address)` for all brokers in parallel, and return the results by address, in order.

        A broker out of reach is left out and logged. Raises `Unavailable` if no broker can be reached.
        """
        wanted = list(addresses)
        found = dict(zip(wanted, await asyncio.gather(*(self._reach(each, ask) for each in wanted)), strict=True))
        reached = {address: each for address, each in found.items() if not isinstance(each, Unavailable)}
        if wanted and not reached:
            raise next(each for each in found.values() if isinstance(each, Unavailable))
        return reached

    def leave_out(self, address: str, error: Unavailable) -> None:
        """Log that partial results lack a broker: one line until that broker answers again."""
        if address not in self._out_of_reach:
            partial_results.warning("broker %s is left out, it cannot be reached: %s", address, error)
        again_in = OUT_OF_REACH_SECONDS if error.retriable else 0.0  # a silent server's error comes immediately
        self._out_of_reach[address] = self._clock.monotonic() + again_in, error

    async def _reach(self, address: str, ask: Callable[[str], Awaitable[T]]) -> T | Unavailable:
        again_at, failure = self._out_of_reach.get(address, (0.0, None))
        if failure is not None and self._clock.monotonic() < again_at:
            return failure
        try:
            answer = await ask(address)
        except Unavailable as error:
            self.leave_out(address, error)
            return error
        self._out_of_reach.pop(address, None)
        return answer

    async def ask_queue(
        self,
        queue: MessageQueue,
        header: Header | Filled,
        *,
        timeout: float,
        broker_id: int = MASTER,
        retried: Filled | None = None,
    ) -> Response:
        """Return the response, with any code, of a broker that has the queue. Retries for `timeout` seconds.

        `retried` is the request to retry with: a broker must not hold it longer than the time that is left.
        For idempotent requests only: a broker that restarts may get the same request twice. Raises `Unavailable`.
        """
        retry = Retry(self._clock, timeout)
        while True:
            try:
                route = await self.route(queue.topic)
                address = route.replica(queue.broker_name, broker_id)
                if address is None:
                    raise Unavailable(f"broker {queue.broker_name!r} is not in the route of topic {queue.topic!r}")
                return self._taken(queue, await self.ask(address, header, timeout=retry.left))
            except SilentServer:
                raise
            except (Unavailable, NotTheMaster) as error:
                if not await retry.pause():
                    raise
                await self.find_master(queue.topic, error)
                header = retried or header

    async def ask_master(
        self,
        queue: MessageQueue,
        header: Header | Filled,
        body: bytes = b"",
        *,
        timeout: float,
        idempotent: bool = False,
    ) -> Response:
        """Return the response, with any code, of a queue's master.

        For `timeout` seconds, retries a request that a replica refused. If the broker is a replica set, retries also
        while its master cannot be reached, and with `idempotent` after a lost connection. Raises `Unavailable`.
        """
        retry = Retry(self._clock, timeout)
        while True:
            try:
                return self._taken(queue, await self.ask(await self.master(queue), header, body, timeout=retry.left))
            except NotTheMaster as refusal:
                error: MQError = refusal
            except Unavailable as unavailable:
                is_silent = isinstance(unavailable, SilentServer)
                if is_silent or not self.is_set(queue) or (may_be_taken(unavailable) and not idempotent):
                    raise
                error = unavailable
            if not await retry.pause():
                raise error
            await self.find_master(queue.topic, error)

    def has_master(self, queue: MessageQueue) -> bool:
        """Return whether the known route has a master of the queue's broker. Otherwise a replica is read."""
        route = self.routes.find(queue.topic)
        return route is not None and route.master(queue.broker_name) is not None

    def is_set(self, queue: MessageQueue) -> bool:
        """Return whether a known route says that the queue's broker is a replica set, which elects another master."""
        route = self.routes.find(queue.topic)
        return route is not None and queue.broker_name in route.epochs

    async def find_master(self, topic: str, error: MQError) -> None:
        """Refresh a topic's route after `error`, unless the error has named the master."""
        if not isinstance(error, NotTheMaster) or error.master is None:
            await self.refresh(topic)

    def _taken(self, queue: MessageQueue, response: Response) -> Response:
        """Return the response. If it is a replica's refusal, note the master that it names and raise it."""
        if response.code in REFUSALS_OF_REPLICAS:
            error = from_response(response.code, response.remark)
            if isinstance(error, NotTheMaster):
                self.routes.redirect(queue.broker_name, error.master)
                raise error
        return response

    async def send_copy(
        self,
        queue: MessageQueue,
        message: StoredMessage,
        properties: Mapping[str, str],
        *,
        born_ms: int,
        attempts: int,
        max_attempts: int | None = None,
        timeout: float,
    ) -> Response:
        """Store a copy of a message, with these properties and number of attempts, and return the broker's response.

        Body, flag and sysFlag stay as stored. A copy with `max_attempts` attempts or more is stored as a dead letter.
        Raises the broker's refusal, or `Unavailable`.
        """
        order = SendMessageV2(
            producer_group=INNER_PRODUCER_GROUP,
            topic=self.names.wrap(queue.topic),
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_count=4,
            queue_id=queue.queue_id,
            sys_flag=message.sys_flag & ~COPY_DROPS,
            born_ms=born_ms,
            flag=message.flag,
            properties=encode_properties(properties),
            reconsume_times=attempts,
            unit_mode=False,
            batch=False,
            max_reconsume_times=max_attempts,
        )
        response = await self.ask_master(queue, order, message.stored_body, timeout=timeout)
        response.check()
        return response

    async def master(self, queue: MessageQueue) -> str:
        """Return the address of a queue's master. Raises `TopicNotFound`, or `Unavailable` if none is registered."""
        address = (await self.route(queue.topic)).master(queue.broker_name)
        if address is None:
            raise Unavailable(f"broker {queue.broker_name!r} is not in the route of topic {queue.topic!r}")
        return address

    async def masters(self) -> dict[str, str]:
        """Return the addresses of all masters by broker name, fetched from a name server now."""
        brokers = (await self.cluster_table()).brokers
        found = {name: self.routes.believed(each).get(MASTER) for name, each in sorted(brokers.items())}
        return {name: address for name, address in found.items() if address is not None}

    async def cluster_table(self) -> ClusterTable:
        """Return the brokers and clusters that a name server knows now."""
        response = await self.name_servers.ask(BrokerClusterInfo())
        return decode_body(ClusterTable, response.check().body)

    async def absent_topics(self) -> dict[str, list[str]]:
        """Return the topics of each broker that left the cluster, by broker name, from all name servers' answers."""
        found: dict[str, set[str]] = {}
        for response in await self.name_servers.ask_reachable(BrokerClusterInfo()):
            for broker, topics in (decode_body(ClusterTable, response.check().body).absent or {}).items():
                found.setdefault(broker, set()).update(topics)
        return {broker: sorted(topics) for broker, topics in found.items()}

    def join_everywhere(self) -> None:
        """Send heartbeats to every master, not only to those in known routes; the first heartbeat is sent soon."""
        self._everywhere = True
        self.tasks.start(self.heartbeat(), name="first heartbeat")

    async def heartbeat(self) -> None:
        """Send heartbeats to the brokers of known routes; only to masters if this client has no consumer."""
        body = self._announce(self.client_id)
        if body is None or not (body.consumers or body.producers):
            return
        addresses = self.routes.broker_addresses(masters_only=not body.consumers)
        if self._everywhere:
            with suppress(MQError):  # if no name server answers now, only brokers of known routes get a heartbeat
                addresses.update((await self.masters()).values())
        await asyncio.gather(*map(self._beat, addresses))

    def _connection_closed(self, session: Peer) -> None:
        if self.running:
            for address in [each for each, channel in self._greeted.items() if channel.session is session]:
                for tell in self.on_connection_lost:
                    tell(address)

    def _beat_now(self, address: str, channel: Channel) -> asyncio.Future[Response] | None:
        """Begin a heartbeat to a broker and return its future; None if this client sends no heartbeats."""
        if (body := self._announce(self.client_id)) is None:
            return None
        beat = self._beats[address] = channel.call_soon(Heartbeat(), encode_body(body), timeout=API_SECONDS)
        beat.add_done_callback(take_error)
        return beat

    async def _beat(self, address: str) -> None:
        """Send a heartbeat to a broker after the reply to the previous one.

        Java's brokers handle heartbeats in parallel: of two unanswered heartbeats, the older could be handled last.
        Source: RocketMQ 4.9.8, MQClientInstance.lockHeartbeat.
        """
        try:
            channel = await self.channel(address)
            while (before := self._beats.get(address)) is not None and not before.done():
                await asyncio.wait({before})
            if (beat := self._beat_now(address, channel)) is not None:
                (await beat).check()
        except MQError as error:
            if self.running and address not in self._silent:  # once until the broker answers again; not while closing
                logger.warning("no heartbeat to broker %s: %s", address, error)
            self._silent.add(address)
        else:
            self._silent.discard(address)

    async def _fetch_once(self, topic: str, fetch: Callable[[str], Awaitable[None]]) -> Route:
        """Return a topic's route. Callers that wait at the same time share one fetch."""
        try:
            async with self._fetching.setdefault(topic, asyncio.Lock()):
                if (route := self.routes.find(topic)) is None:
                    await fetch(topic)
                    route = self.routes.find(topic)
        finally:
            self._fetching.pop(topic, None)
        assert route is not None, "fetching learns the route or raises"
        return route

    async def _fetch(self, topic: str) -> None:
        try:
            body = await self.ask_route(self.names.wrap(topic))
        except TopicNotFound:
            self.routes.miss(topic)
            raise
        self.learn_route(topic, body)

    def learn_route(self, topic: str, body: TopicRoute) -> None:
        """Store the route in a name server's answer, and tell listeners if it is new."""
        if self.routes.learn(read_route(topic, body)):
            logger.debug("route of %s: %s", topic, body)
            for tell in self.on_route_change:
                tell(topic)

    async def _fetch_or_template(self, topic: str, *, template_topic: str, new_queues: int) -> None:
        try:
            await self._fetch(topic)
        except TopicNotFound:
            try:
                template = await self.ask_route(template_topic)
            except TopicNotFound as error:
                raise TopicNotFound(
                    f"topic {topic!r} does not exist, and no broker creates topics by itself; create it first"
                ) from error
            self.routes.learn(route_for_new_topic(topic, template, new_queues))

    async def ask_route(self, topic: str) -> TopicRoute:
        response = await self.name_servers.ask(RouteOfTopic(topic=topic, standard_json_only=True))
        return decode_body(TopicRoute, response.check().body)

    async def _unregister(self, address: str, channel: Channel) -> None:
        body = self._announce(self.client_id)
        if body is None or channel.closed:
            return
        producers = (UnregisterClient(client_id=self.client_id, producer_group=each.group) for each in body.producers)
        consumers = (UnregisterClient(client_id=self.client_id, consumer_group=each.group) for each in body.consumers)
        with suppress(MQError, TimeoutError):  # the broker removes a client that sends no heartbeats
            async with asyncio.timeout(API_SECONDS):
                if (beat := self._beats.get(address)) is not None and not beat.done():
                    await asyncio.wait({beat})
                for header in (*producers, *consumers):
                    await channel.call(header, timeout=API_SECONDS)
