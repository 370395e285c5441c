"""Headers of requests to a name server."""

from __future__ import annotations

from pyromq.remoting import bodies
from pyromq.remoting.codes import RequestCode
from pyromq.remoting.header import Header, field


class RegisterBrokerResponse(Header):
    """Response to a registration: for a slave, the addresses of its master."""

    ha_address: str | None = field(name="haServerAddr", default=None)
    master_address: str | None = field(name="masterAddr", default=None)


class RegisterBroker(Header):
    """Request to a name server: register a broker and its topics.

    Replicas of a set name their `epoch`, which only pyromq has; Java's name servers ignore it.
    """

    code = RequestCode.REGISTER_BROKER
    reply_header = RegisterBrokerResponse
    request_body = bodies.BrokerRegistration
    reply_body = bodies.KeyValues
    broker_name: str
    broker_address: str = field(name="brokerAddr")
    cluster: str = field(name="clusterName")
    broker_id: int
    ha_address: str | None = field(name="haServerAddr", default=None)
    compressed: bool = False
    body_crc: int = field(name="bodyCrc32", default=0)
    epoch: int | None = None


class UnregisterBroker(Header):
    """Request to a name server: unregister a broker. Replicas of a set name their `epoch`, as in `RegisterBroker`."""

    code = RequestCode.UNREGISTER_BROKER
    broker_name: str
    broker_address: str = field(name="brokerAddr")
    cluster: str = field(name="clusterName")
    broker_id: int
    epoch: int | None = None


class QueryDataVersionResponse(Header):
    """Response: whether the name server knows another version of the broker's topics."""

    changed: bool


class QueryDataVersion(Header):
    """Request from a broker: must the broker register its topics again?"""

    code = RequestCode.QUERY_DATA_VERSION
    reply_header = QueryDataVersionResponse
    request_body = bodies.DataVersion
    reply_body = bodies.DataVersion
    broker_name: str
    broker_address: str = field(name="brokerAddr")
    cluster: str = field(name="clusterName")
    broker_id: int


class RouteOfTopic(Header):
    """Request for the brokers and queues of a topic."""

    code = RequestCode.GET_ROUTEINFO_BY_TOPIC
    reply_body = bodies.TopicRoute
    topic: str
    standard_json_only: bool | None = field(name="acceptStandardJsonOnly", default=None)


class BrokerClusterInfo(Header):
    """Request for all brokers by cluster."""

    code = RequestCode.GET_BROKER_CLUSTER_INFO
    reply_body = bodies.ClusterTable


class TopicNames(Header):
    """Request for all topic names."""

    code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
    reply_body = bodies.TopicList


class TopicNamesOfCluster(Header):
    """Request for the topic names of a cluster."""

    code = RequestCode.GET_TOPICS_BY_CLUSTER
    reply_body = bodies.TopicList
    cluster: str


class SystemTopicNames(Header):
    """Request for the topics that clusters and brokers have under their own names."""

    code = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS
    reply_body = bodies.TopicList


class UnitTopicNames(Header):
    """Request for the topics with the unit flag."""

    code = RequestCode.GET_UNIT_TOPIC_LIST
    reply_body = bodies.TopicList


class UnitSubscriptionTopicNames(Header):
    """Request for the topics with the unit subscription flag."""

    code = RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST
    reply_body = bodies.TopicList


class UnitSubscriptionOnlyTopicNames(Header):
    """Request for the topics with the unit subscription flag and without the unit flag."""

    code = RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST
    reply_body = bodies.TopicList


class DeleteTopicName(Header):
    """Request: delete a topic from the routes, everywhere or in one cluster."""

    code = RequestCode.DELETE_TOPIC_IN_NAMESRV
    topic: str
    cluster: str | None = field(name="clusterName", default=None)


class WipeWritePermissionResponse(Header):
    """Response with the number of topics whose permission changed."""

    count: int = field(name="wipeTopicCount")


class WipeWritePermission(Header):
    """Request: take a broker out of the routes of producers."""

    code = RequestCode.WIPE_WRITE_PERM_OF_BROKER
    reply_header = WipeWritePermissionResponse
    broker_name: str


class AddWritePermissionResponse(Header):
    """Response with the number of topics whose permission changed."""

    count: int = field(name="addTopicCount")


class AddWritePermission(Header):
    """Request: put a broker back into the routes of producers."""

    code = RequestCode.ADD_WRITE_PERM_OF_BROKER
    reply_header = AddWritePermissionResponse
    broker_name: str


class PutKv(Header):
    """Request: store a value under a namespace and a key."""

    code = RequestCode.PUT_KV_CONFIG
    value: str
    namespace: str | None = None  # required, like `key`, but a name server has its own error text for absent fields
    key: str | None = None


class KvValueResponse(Header):
    """Response with the value stored under a namespace and a key."""

    value: str | None = None


class KvValue(Header):
    """Request for the value stored under a namespace and a key."""

    code = RequestCode.GET_KV_CONFIG
    reply_header = KvValueResponse
    namespace: str
    key: str


class DeleteKv(Header):
    """Request: delete the value under a namespace and a key."""

    code = RequestCode.DELETE_KV_CONFIG
    namespace: str
    key: str


class KvNamespace(Header):
    """Request for all values of a namespace."""

    code = RequestCode.GET_KVLIST_BY_NAMESPACE
    reply_body = bodies.KeyValues
    namespace: str


class SaveNamesrvSettings(Header):
    """Request: change settings of a name server. The body has `key=value` lines."""

    code = RequestCode.UPDATE_NAMESRV_CONFIG


class NamesrvSettings(Header):
    """Request for the settings of a name server, as `key=value` lines."""

    code = RequestCode.GET_NAMESRV_CONFIG
