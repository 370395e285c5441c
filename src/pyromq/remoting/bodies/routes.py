"""Routes and clusters of a name server. Source: RocketMQ 4.9.8, TopicRouteData, ClusterInfo."""

from __future__ import annotations

from msgspec import field

from pyromq.remoting.bodies.body import Body


class QueuesAtBroker(Body):
    """The queues of a topic at one broker, and their permission."""

    broker_name: str
    permission: int = field(name="perm", default=6)
    read_queues: int = field(name="readQueueNums", default=0)
    write_queues: int = field(name="writeQueueNums", default=0)
    sys_flag: int = field(name="topicSysFlag", default=0)


class BrokerAddresses(Body):
    """A broker's addresses by broker id; 0 is the master."""

    broker_name: str
    cluster: str = ""
    addresses: dict[int, str] = field(name="brokerAddrs", default_factory=dict)


class TopicRoute(Body):
    """The brokers and queues of a topic."""

    brokers: list[BrokerAddresses] = field(name="brokerDatas", default_factory=list)
    filter_servers: dict[str, list[str]] = field(name="filterServerTable", default_factory=dict)
    order_conf: str | None = field(name="orderTopicConf", default=None)
    queues: list[QueuesAtBroker] = field(name="queueDatas", default_factory=list)


class ClusterTable(Body):
    """All brokers by name, and the broker names of each cluster.

    `absent` are the topics of each broker that left; ours, and ignored by Java's clients.
    """

    brokers: dict[str, BrokerAddresses] = field(name="brokerAddrTable", default_factory=dict)
    clusters: dict[str, list[str]] = field(name="clusterAddrTable", default_factory=dict)
    absent: dict[str, list[str]] | None = field(name="absentTopics", default=None)
