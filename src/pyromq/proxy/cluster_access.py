"""The proxy as a client of the cluster: connections, routes and sends of one account, and heartbeats of its clients.

Requests are signed with the account's keys, so brokers check its rights.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from pyromq.client.client_config import ProducerConfig
from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.client.cluster.topic_routes import Route
from pyromq.client.producer.outbox import Outbox
from pyromq.clock import Clock
from pyromq.errors import MQError, ResponseCode, TopicNotFound, Unavailable
from pyromq.filter.filter import TAG_TYPES
from pyromq.message import SendResult
from pyromq.net.connection_config import ConnectionConfig
from pyromq.net.tasks import every
from pyromq.proxy.client_table import ClientTable, GrpcClient
from pyromq.proxy.proto import definition_pb2 as proto
from pyromq.proxy.sent_messages import ALL_TYPES, TopicTypes
from pyromq.remoting.bodies import (
    ConsumerEntry,
    GroupConfig,
    GroupConfigTable,
    HeartbeatBody,
    ProducerEntry,
    Subscription,
    TopicConfig,
)
from pyromq.remoting.command import Response
from pyromq.remoting.header import Header
from pyromq.remoting.headers import AllGroups, Heartbeat, TopicSettings, UnregisterClient
from pyromq.remoting.json_quirks import decode_body, encode_body
from pyromq.remoting.signer import Signer

SENDING_GROUP = "PYROMQ_PROXY"  # producer group in the proxy's sends
# The proxy's sends create no topics, as no broker has this template topic. Source: RocketMQ 5's proxy.
NO_TEMPLATE = "NOT_CREATED_BY_SENDING"
REFRESH_SECONDS = 30.0  # age at which settings of topics and groups are read again, as routes are
UNKNOWN_GROUP_SECONDS = 1.0  # age at which the groups are read again if the requested group was not among them
MEMBER_SECONDS = 30.0  # interval of the consumers' heartbeats to brokers
TIMEOUT_SECONDS = 3.0

_TYPES = {
    "normal": (proto.NORMAL,),
    "fifo": (proto.FIFO,),
    "delay": (proto.DELAY,),
    "transaction": (proto.TRANSACTION,),
}


@dataclass(slots=True)
class KnownTopic:
    """The message types that a topic accepts, and when they were read."""

    types: TopicTypes
    read_at: float


class ClusterAccess:
    """One account's connections to the cluster. `answerers` handle brokers' requests, like transaction checks."""

    def __init__(
        self,
        namesrv: str | None,
        clock: Clock,
        *,
        connections: ConnectionConfig,
        signer: Signer | None = None,
        answerers: Callable[[ClusterAccess], Sequence[object]] = lambda access: (),
    ) -> None:
        self.clients = ClientTable(clock)
        self.clock = clock
        if signer is not None:
            connections = replace(connections, access_key=None, secret_key=None, signer=signer)
        self.cluster = ClusterClient(
            namesrv,
            clock,
            announce=self._announce,
            answerers=answerers(self),
            connections=connections,
            forget_deleted=True,
        )
        config = ProducerConfig(timeout=TIMEOUT_SECONDS, template_topic=NO_TEMPLATE, connections=connections)
        self.outbox = Outbox(SENDING_GROUP, self.cluster, config, clock)
        self.sent: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        # Sends report by callback: all share one future that is done. So the outbox retries none, as the clients do.
        self.sent.cancel()
        self._topics: dict[str, KnownTopic] = {}
        self.cluster.deleted_topics.on_forgotten.append(lambda topic: self._topics.pop(topic, None))
        self._groups: dict[str, GroupConfig] = {}
        self._groups_read_at = float("-inf")
        self._reading_groups = asyncio.Lock()
        self._starting: asyncio.Lock = asyncio.Lock()
        self._announced: frozenset[str] = frozenset()

    async def start(self) -> None:
        """Connect. Raises `NoNameServer`. Idempotent."""
        async with self._starting:
            if not self.cluster.running:
                await self.cluster.start()
                tasks = self.cluster.tasks
                tasks.start(
                    every(MEMBER_SECONDS, self._announce_all_members, self.clock), name="heartbeats of consumers"
                )
                tasks.start(every(MEMBER_SECONDS, self._expire, self.clock), name="forget silent clients")

    async def close(self) -> None:
        if self.cluster.running:
            await self.forget(*self.clients)
            await self.cluster.close()

    # -- topics and groups

    def known_types(self, topic: str) -> TopicTypes | None:
        """Return the message types of a topic whose route and types are known and fresh; else None."""
        known = self._topics.get(topic)
        if known is None or self.clock.monotonic() - known.read_at > REFRESH_SECONDS:
            return None
        return known.types if self.cluster.routes.find(topic) is not None else None

    async def route(self, topic: str) -> Route:
        """Return a topic's route, at most 30 s old. Raises `TopicNotFound` with a command that helps."""
        await self.start()
        try:
            return await self.cluster.route(topic)
        except TopicNotFound as error:
            text = f"topic {topic!r} does not exist; create it first: `pyromq topic create {topic}`"
            raise TopicNotFound(text) from error

    async def types(self, topic: str) -> TopicTypes:
        """Return the message types of a topic; all four for a topic without a type. Raises `TopicNotFound`."""
        route = await self.route(topic)
        if (types := self.known_types(topic)) is None:
            types = await self._read_types(topic, route)
            self._topics[topic] = KnownTopic(types, self.clock.monotonic())
        return types

    async def _read_types(self, topic: str, route: Route) -> TopicTypes:
        failure: Unavailable | None = None
        for name in route.addresses:
            if (address := route.replica(name)) is None:
                continue
            try:
                response = await self.cluster.ask(address, TopicSettings(topic=topic), timeout=TIMEOUT_SECONDS)
            except Unavailable as error:  # the topic's next broker knows the type, too
                failure = error
                continue
            if response.code == 0:
                kind = decode_body(TopicConfig, response.body).message_type
                return TopicTypes(_TYPES.get(kind or "", ALL_TYPES))
            if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:  # brokers of 4.9 have no types and no timers
                return TopicTypes(has_timers=False)
        if failure is not None:
            raise failure
        return TopicTypes()

    async def group(self, group: str) -> GroupConfig:
        """Return the settings of a consumer group, at most 30 s old; the defaults for an unknown group."""
        async with self._reading_groups:
            age = self.clock.monotonic() - self._groups_read_at
            if age > (REFRESH_SECONDS if group in self._groups else UNKNOWN_GROUP_SECONDS):
                await self.start()
                self._groups = await self._read_groups()
                self._groups_read_at = self.clock.monotonic()
        return self._groups.get(group) or GroupConfig(name=group)

    async def _read_groups(self) -> dict[str, GroupConfig]:
        """Return the settings of all groups. If a broker is out of reach, settings that were read before stay known."""
        masters = (await self.cluster.masters()).values()
        responses = await self.cluster.ask_reachable(masters, self._ask_groups)
        groups: dict[str, GroupConfig] = {}
        for response in responses.values():
            if response.code == 0:
                groups = decode_body(GroupConfigTable, response.body).groups | groups
        return groups if len(responses) == len(masters) else self._groups | groups

    async def _ask_groups(self, address: str) -> Response:
        return await self.cluster.ask(address, AllGroups(), timeout=TIMEOUT_SECONDS)

    # -- registrations of clients

    async def announce_producers(self) -> None:
        """Register the producers' topics at brokers if there is a new topic.

        Brokers send their checks of half messages to registered producers.
        """
        topics = frozenset(self.clients.produced_topics)
        if topics - self._announced:
            self._announced = topics
            for topic in topics:
                with suppress(MQError):
                    await self.cluster.route(topic)
            await self.cluster.heartbeat()

    def _announce(self, client_id: str) -> HeartbeatBody:
        topics = self.clients.produced_topics
        return HeartbeatBody(client_id, producers=[ProducerEntry(topic) for topic in sorted(topics)])

    async def announce_members(self, *clients: GrpcClient) -> None:
        """Send heartbeats of consumers to the brokers of their topics.

        So the brokers count the consumers as members of their groups.
        """
        await self._send_to_brokers(
            [
                (each, Heartbeat(), encode_body(HeartbeatBody(each.client_id, consumers=[consumer_entry(each)])))
                for each in clients
                if each.is_consumer
            ]
        )

    async def forget(self, *clients: GrpcClient) -> None:
        """Remove clients here and, unless they have registered again, at brokers."""
        for client in clients:
            self.clients.remove(client)
        await self._send_to_brokers(
            [
                (each, UnregisterClient(client_id=each.client_id, consumer_group=each.group), b"")
                for each in clients
                if each.is_consumer and self.clients.find(each.client_id) is None
            ]
        )

    async def _send_to_brokers(self, requests: Sequence[tuple[GrpcClient, Header, bytes]]) -> None:
        """Send each client's request to the brokers of its topics. A broker that hangs delays no other broker."""
        by_address: dict[str, list[tuple[Header, bytes]]] = {}
        for client, header, body in requests:
            addresses: set[str] = set()
            for topic in list(client.subscriptions):
                with suppress(MQError):
                    route = await self.cluster.route(topic)
                    addresses.update(filter(None, (route.master(name) for name in route.addresses)))
            for address in addresses:
                by_address.setdefault(address, []).append((header, body))
        await asyncio.gather(*(self._send_all(*each) for each in by_address.items()))

    async def _send_all(self, address: str, requests: Sequence[tuple[Header, bytes]]) -> None:
        for header, body in requests:
            try:
                await self.cluster.ask(address, header, body, timeout=TIMEOUT_SECONDS)
            except Unavailable:  # the next heartbeats are sent again; a broker forgets a member without heartbeats
                return
            except MQError:
                pass

    async def _announce_all_members(self) -> None:
        await self.announce_members(*self.clients)

    async def _expire(self) -> None:
        await self.forget(*self.clients.expired())


def consumer_entry(client: GrpcClient) -> ConsumerEntry:
    """Return the entry of a consumer's heartbeat."""
    return ConsumerEntry(
        client.group,
        consume_type="CONSUME_POP" if client.kind == proto.PUSH_CONSUMER else "CONSUME_ACTIVELY",
        subscriptions=[
            Subscription(topic, each.expression, expression_type="SQL92" if each.type == proto.SQL else "TAG")
            for topic, each in client.subscriptions.items()
        ],
    )


def expression_type(expression: proto.FilterExpression) -> str:
    """Return the expression type of 4.9 for a filter expression."""
    return "SQL92" if expression.type == proto.SQL else str(TAG_TYPES[-1])
