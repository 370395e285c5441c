"""Answers brokers that register or leave, clients that look routes up, and operators that change routes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from pyromq.clock import Clock
from pyromq.errors import BrokerError, TopicNotFound
from pyromq.logs import logger_of
from pyromq.nameserver.kv_config import ORDER_TOPICS, KvTable
from pyromq.nameserver.name_server_config import NameServerConfig
from pyromq.nameserver.routes import MASTER, BrokerIdentity, RouteTable
from pyromq.net.slow_replies import in_pieces
from pyromq.net.tasks import Alarm
from pyromq.remoting.bodies import (
    REQUEST,
    BrokerRegistration,
    DataVersion,
    KeyValues,
    QueuesAtBroker,
    TopicList,
    decode_body,
    encode_body,
    read_compressed,
    read_plain,
)
from pyromq.remoting.codes import UNIT, UNIT_SUBSCRIPTION
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import Peer, answers
from pyromq.remoting.headers import (
    AddWritePermission,
    AddWritePermissionResponse,
    BrokerClusterInfo,
    DeleteTopicName,
    QueryDataVersion,
    QueryDataVersionResponse,
    RegisterBroker,
    RegisterBrokerResponse,
    RouteOfTopic,
    SystemTopicNames,
    TopicNames,
    TopicNamesOfCluster,
    UnitSubscriptionOnlyTopicNames,
    UnitSubscriptionTopicNames,
    UnitTopicNames,
    UnregisterBroker,
    WipeWritePermission,
    WipeWritePermissionResponse,
)
from pyromq.slow_work import Turns, yield_slice


class RegistrationProcessor:
    """Registers brokers, and removes brokers that unregister or whose connection closes."""

    def __init__(self, routes: RouteTable, kv: KvTable, clock: Clock) -> None:
        self.alarm = Alarm(clock)  # calls `remove_some` when topics of removed brokers are left
        self._routes = routes
        self._kv = kv
        self._clock = clock
        self._turns = Turns()

    @answers(RegisterBroker)
    async def register(self, header: RegisterBroker, call: Call) -> Reply:
        """Register a broker.

        Registrations are entered one at a time: an older one must not replace a newer one of the same broker.
        """
        if header.body_crc and zlib.crc32(call.body) & 0x7FFFFFFF != header.body_crc:
            raise BrokerError("crc32 not match")
        return await self._turns.run(partial(self._registered, header, call))

    async def _registered(self, header: RegisterBroker, call: Call) -> Reply:
        broker = _identity(header)
        registration = BrokerRegistration()
        if call.body:
            registration = await (read_compressed if header.compressed else read_plain)(call.body)
            call.body = b""  # frees the body, which may have megabytes, while the topics are entered
        is_new = broker.address not in self._routes.addresses()
        if call.peer.closed:
            return Reply()
        if self._forget not in call.peer.on_close:
            call.peer.on_close += (self._forget,)
        await self._routes.registering(
            broker,
            registration,
            now=self._clock.monotonic(),
            ha_address=header.ha_address,
            connection=call.peer,
        )
        if is_new:
            logger.info("broker %s (%s) registers", broker.address, broker.name)
        if call.peer.closed:
            self._forget(call.peer)
        master, ha_address = (None, None) if broker.broker_id == MASTER else self._routes.master_of(broker.name)
        order = self._kv.namespace(ORDER_TOPICS)
        body = encode_body(KeyValues(table=order)) if order is not None else b""
        return Reply(RegisterBrokerResponse(ha_address=ha_address, master_address=master), body)

    def _forget(self, connection: Peer) -> None:
        for address in self._routes.connection_closed(connection):
            logger.info("broker %s is removed: its connection closed", address)
        self.alarm.schedule_within(0)

    def remove_some(self) -> float | None:
        """Remove some topics of brokers that left.

        Return the seconds until the next call, None if no topic is left to remove.
        """
        if self._routes.is_leaving:
            self._routes.remove_some()
        return 0 if self._routes.is_leaving else None

    @answers(UnregisterBroker)
    def unregister(self, header: UnregisterBroker, call: Call) -> Reply:
        self._routes.unregister(_identity(header))
        logger.info("broker %s unregisters", header.broker_address)
        self.alarm.schedule_within(0)
        return Reply()

    @answers(QueryDataVersion)
    def query_version(self, header: QueryDataVersion, call: Call) -> Reply:
        known = self._routes.version_of(header.broker_address, self._clock.monotonic())
        changed = known is None or known != decode_body(DataVersion, call.body, REQUEST)
        return Reply(QueryDataVersionResponse(changed=changed), encode_body(known) if known is not None else b"")


def _identity(header: RegisterBroker | UnregisterBroker) -> BrokerIdentity:
    return BrokerIdentity(
        header.cluster, header.broker_name, header.broker_id, header.broker_address, epoch=header.epoch
    )


class RouteProcessor:
    """Returns routes, clusters and topic names; removes topics, removes and restores write permissions."""

    def __init__(self, routes: RouteTable, kv: KvTable, config: NameServerConfig) -> None:
        self._routes = routes
        self._kv = kv
        self._config = config

    @answers(RouteOfTopic)
    def route(self, header: RouteOfTopic, call: Call) -> Reply:
        route = self._routes.route(header.topic)
        if route is None:
            raise TopicNotFound(
                f"No topic route info in name server for the topic: {header.topic}\n"
                "See http://rocketmq.apache.org/docs/faq/ for further details."
            )
        if self._config.order_message_enabled:
            route = msgspec.structs.replace(route, order_conf=self._kv.find(ORDER_TOPICS, header.topic))
        return Reply(body=encode_body(route))

    @answers(BrokerClusterInfo)
    async def cluster(self, header: BrokerClusterInfo, call: Call) -> Reply:
        return await in_pieces(self._routes.cluster_table())

    @answers(TopicNames)
    async def topics(self, header: TopicNames, call: Call) -> Reply:
        return await _topic_list(self._routes.topics())

    @answers(TopicNamesOfCluster)
    async def topics_of_cluster(self, header: TopicNamesOfCluster, call: Call) -> Reply:
        return await _topic_list(self._routes.topics_of(header.cluster))

    @answers(SystemTopicNames)
    def system_topics(self, header: SystemTopicNames, call: Call) -> Reply:
        names, address = self._routes.system_topics()
        return Reply(body=encode_body(TopicList(topics=names, broker_address=address)))

    @answers(UnitTopicNames)
    async def unit_topics(self, header: UnitTopicNames, call: Call) -> Reply:
        return await self._those(lambda queues: bool(queues.sys_flag & UNIT))

    @answers(UnitSubscriptionTopicNames)
    async def unit_subscription_topics(self, header: UnitSubscriptionTopicNames, call: Call) -> Reply:
        return await self._those(lambda queues: bool(queues.sys_flag & UNIT_SUBSCRIPTION))

    @answers(UnitSubscriptionOnlyTopicNames)
    async def unit_subscription_only(self, header: UnitSubscriptionOnlyTopicNames, call: Call) -> Reply:
        both = UNIT | UNIT_SUBSCRIPTION
        return await self._those(lambda queues: queues.sys_flag & both == UNIT_SUBSCRIPTION)

    async def _those(self, wanted: Callable[[QueuesAtBroker], bool]) -> Reply:
        return await _topic_list(self._routes.topics(wanted))

    @answers(DeleteTopicName)
    def delete_topic(self, header: DeleteTopicName, call: Call) -> Reply:
        self._routes.delete_topic(header.topic, header.cluster)
        return Reply()

    @answers(WipeWritePermission)
    async def wipe(self, header: WipeWritePermission, call: Call) -> Reply:
        count = await self._routes.wipe_write_permission(header.broker_name)
        return Reply(WipeWritePermissionResponse(count=count))

    @answers(AddWritePermission)
    async def add(self, header: AddWritePermission, call: Call) -> Reply:
        count = await self._routes.add_write_permission(header.broker_name)
        return Reply(AddWritePermissionResponse(count=count))


async def _topic_list(names: Iterator[str | None]) -> Reply:
    listed = []
    for name in names:
        if name is None:
            await yield_slice()
        else:
            listed.append(name)
    return await in_pieces(TopicList(topics=listed))


logger = logger_of(__name__)
