"""Answers clients and operators that ask where topics are, and operators that change what they are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future

import msgspec

from pyromq.errors import TopicNotFound
from pyromq.nameserver.config import NameServerConfig
from pyromq.nameserver.kv import ORDER_TOPICS, KvTable
from pyromq.nameserver.routes import RouteTable
from pyromq.net.slow_replies import SlowReplies, SlowReply, in_pieces
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


class QueryingRoutes:
    """Routes, clusters and names of topics; topics that go, write permissions that are taken and given back."""

    def __init__(self, routes: RouteTable, kv: KvTable, config: NameServerConfig, slow_replies: SlowReplies) -> None:
        self._long_answers = slow_replies
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
    def cluster(self, header: Cluster, call: Call) -> Reply | Future[Reply]:
        return self._long_answers.give(in_pieces(self._routes.cluster_table()), call)

    @answers(TopicNames)
    def topics(self, header: TopicNames, call: Call) -> Reply | Future[Reply]:
        return self._long_answers.give(_topic_list(self._routes.topics()), call)

    @answers(TopicNamesOfCluster)
    def topics_of_cluster(self, header: TopicNamesOfCluster, call: Call) -> Reply | Future[Reply]:
        return self._long_answers.give(_topic_list(self._routes.topics_of(header.cluster)), call)

    @answers(SystemTopicNames)
    def system_topics(self, header: SystemTopicNames, call: Call) -> Reply:
        names, address = self._routes.system_topics()
        return Reply(body=encode_body(TopicList(topics=names, broker_address=address)))

    @answers(UnitTopicNames)
    def unit_topics(self, header: UnitTopicNames, call: Call) -> Reply | Future[Reply]:
        return self._those(lambda queues: bool(queues.sys_flag & UNIT), call)

    @answers(UnitSubscriptionTopicNames)
    def unit_subscription_topics(self, header: UnitSubscriptionTopicNames, call: Call) -> Reply | Future[Reply]:
        return self._those(lambda queues: bool(queues.sys_flag & UNIT_SUBSCRIPTION), call)

    @answers(UnitSubscriptionOnlyTopicNames)
    def unit_subscription_only(self, header: UnitSubscriptionOnlyTopicNames, call: Call) -> Reply | Future[Reply]:
        both = UNIT | UNIT_SUBSCRIPTION
        return self._those(lambda queues: queues.sys_flag & both == UNIT_SUBSCRIPTION, call)

    def _those(self, wanted: Callable[[QueuesAtBroker], bool], call: Call) -> Reply | Future[Reply]:
        return self._long_answers.give(_topic_list(self._routes.topics(wanted)), call)

    @answers(DeleteTopicName)
    def delete_topic(self, header: DeleteTopicName, call: Call) -> Reply:
        self._routes.delete_topic(header.topic, header.cluster)
        return Reply()

    @answers(WipeWritePermission)
    def wipe(self, header: WipeWritePermission, call: Call) -> Reply | Future[Reply]:
        return self._long_answers.give(self._wiping(header.broker_name), call)

    def _wiping(self, broker_name: str) -> SlowReply:
        count = yield from self._routes.wipe_write_permission(broker_name)
        return Reply(WipeWritePermissionResponse(count=count))

    @answers(AddWritePermission)
    def add(self, header: AddWritePermission, call: Call) -> Reply | Future[Reply]:
        return self._long_answers.give(self._adding(header.broker_name), call)

    def _adding(self, broker_name: str) -> SlowReply:
        count = yield from self._routes.add_write_permission(broker_name)
        return Reply(AddWritePermissionResponse(count=count))


def _topic_list(names: Iterator[str | None]) -> SlowReply:
    listed = []
    for name in names:
        if name is None:
            yield None
        else:
            listed.append(name)
    return (yield from in_pieces(TopicList(topics=listed)))
