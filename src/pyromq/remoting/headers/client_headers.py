"""Headers of heartbeats, membership, queue locks, and requests that brokers relay to clients."""

from __future__ import annotations

from pyromq.remoting import bodies
from pyromq.remoting.codes import RequestCode
from pyromq.remoting.header import Header, field


class Heartbeat(Header):
    """Heartbeat of a client; the body has the client's producers, consumers and subscriptions."""

    code = RequestCode.HEART_BEAT
    request_body = bodies.HeartbeatBody


class UnregisterClient(Header):
    """Request: a client leaves a producer group or a consumer group."""

    code = RequestCode.UNREGISTER_CLIENT
    client_id: str = field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None
    broker_name: str | None = field(name="bname", default=None)


class ConsumerList(Header):
    """Request for the client ids of the members of a group."""

    code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
    reply_body = bodies.ConsumerIds
    consumer_group: str
    broker_name: str | None = field(name="bname", default=None)


class ConsumerIdsChanged(Header):
    """Request from a broker to a member: the members of the group have changed."""

    code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    consumer_group: str


class LockQueues(Header):
    """Request: lock queues for a client of a group. The response lists the locked queues."""

    code = RequestCode.LOCK_BATCH_MQ
    request_body = bodies.QueueLock
    reply_body = bodies.LockedQueues


class UnlockQueues(Header):
    """Request: unlock queues of a client of a group."""

    code = RequestCode.UNLOCK_BATCH_MQ
    request_body = bodies.QueueLock


class CheckClient(Header):
    """Request: check a subscription expression before a consumer starts."""

    code = RequestCode.CHECK_CLIENT_CONFIG
    request_body = bodies.ClientCheck


class ConsumerConnections(Header):
    """Request for the members and subscriptions of a group."""

    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    reply_body = bodies.ConsumerConnection
    consumer_group: str
    # Only in pyromq: also return each member's subscriptions, and the queue locks; Java brokers ignore this field.
    details: bool | None = None


class ProducerConnections(Header):
    """Request for the clients of a producer group."""

    code = RequestCode.GET_PRODUCER_CONNECTION_LIST
    reply_body = bodies.ProducerConnection
    producer_group: str


class AllProducers(Header):
    """Request for all producer groups with their clients."""

    code = RequestCode.GET_ALL_PRODUCER_INFO
    reply_body = bodies.ProducerTable


class ConsumerRunningState(Header):
    """Request for the internal state of a member; the broker relays the request to the member."""

    code = RequestCode.GET_CONSUMER_RUNNING_INFO
    reply_body = bodies.ConsumerRunning
    consumer_group: str
    client_id: str
    stack_wanted: bool = field(name="jstackEnable", default=False)


class ConsumeDirectly(Header):
    """Request: call a member's listener with one message; the broker relays the request to the member."""

    code = RequestCode.CONSUME_MESSAGE_DIRECTLY
    reply_body = bodies.ConsumeDirectlyResult
    consumer_group: str
    client_id: str | None = None
    message_id: str | None = field(name="msgId", default=None)
    broker_name: str | None = None
