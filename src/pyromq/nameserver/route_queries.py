"""Answers clients and operators that ask where topics are, and operators that change what they are told."""

from __future__ import annotations

import msgspec

from pyromq.errors import TopicNotFound
from pyromq.nameserver.config import NameServerConfig
from pyromq.nameserver.kv import ORDER_TOPICS, KvTable
from pyromq.nameserver.routes import RouteTable
from pyromq.remoting.bodies import TopicList, encode_body
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
    def cluster(self, header: Cluster, call: Call) -> Reply:
        return Reply(body=encode_body(self._routes.cluster_table()))

    @answers(TopicNames)
    def topics(self, header: TopicNames, call: Call) -> Reply:
        return _topic_list(self._routes.topics())

    @answers(TopicNamesOfCluster)
    def topics_of_cluster(self, header: TopicNamesOfCluster, call: Call) -> Reply:
        return _topic_list(self._routes.topics_of(header.cluster))

    @answers(SystemTopicNames)
    def system_topics(self, header: SystemTopicNames, call: Call) -> Reply:
        names, address = self._routes.system_topics()
        return Reply(body=encode_body(TopicList(topics=names, broker_address=address)))

    @answers(UnitTopicNames)
    def unit_topics(self, header: UnitTopicNames, call: Call) -> Reply:
        return _topic_list(self._routes.topics(lambda queues: bool(queues.sys_flag & UNIT)))

    @answers(UnitSubscriptionTopicNames)
    def unit_subscription_topics(self, header: UnitSubscriptionTopicNames, call: Call) -> Reply:
        return _topic_list(self._routes.topics(lambda queues: bool(queues.sys_flag & UNIT_SUBSCRIPTION)))

    @answers(UnitSubscriptionOnlyTopicNames)
    def unit_subscription_only_topics(self, header: UnitSubscriptionOnlyTopicNames, call: Call) -> Reply:
        both = UNIT | UNIT_SUBSCRIPTION
        return _topic_list(self._routes.topics(lambda queues: queues.sys_flag & both == UNIT_SUBSCRIPTION))

    @answers(DeleteTopicName)
    def delete_topic(self, header: DeleteTopicName, call: Call) -> Reply:
        self._routes.delete_topic(header.topic, header.cluster)
        return Reply()

    @answers(WipeWritePermission)
    def wipe(self, header: WipeWritePermission, call: Call) -> Reply:
        return Reply(WipeWritePermissionResponse(count=self._routes.wipe_write_permission(header.broker_name)))

    @answers(AddWritePermission)
    def add(self, header: AddWritePermission, call: Call) -> Reply:
        return Reply(AddWritePermissionResponse(count=self._routes.add_write_permission(header.broker_name)))


def _topic_list(names: list[str]) -> Reply:
    return Reply(body=encode_body(TopicList(topics=names)))
