"""Answers clients and operators that ask where topics are, and operators that change what they are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from pyromq.errors import TopicNotFound
from pyromq.nameserver.config import NameServerConfig
from pyromq.nameserver.kv import ORDER_TOPICS, KvTable
from pyromq.nameserver.routes import RouteTable
from pyromq.net.slow_replies import in_pieces
from pyromq.remoting.bodies import QueuesAtBroker, TopicList, encode_body
from pyromq.remoting.codes import UNIT, UNIT_SUBSCRIPTION
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import (
    AddWritePermission,
    AddWritePermissionResponse,
    Cluster,
    DeleteTopicName,
    RouteOfTopic,
    SystemTopicNames,
    TopicNames,
    TopicNamesOfCluster,
    UnitSubscriptionOnlyTopicNames,
    UnitSubscriptionTopicNames,
    UnitTopicNames,
    WipeWritePermission,
    WipeWritePermissionResponse,
)
from pyromq.slow_work import breathe


class QueryingRoutes:
    """Routes, clusters and names of topics; topics that go, write permissions that are taken and given back."""

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

    @answers(Cluster)
    async def cluster(self, header: Cluster, call: Call) -> Reply:
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
            await breathe()
        else:
            listed.append(name)
    return await in_pieces(TopicList(topics=listed))
