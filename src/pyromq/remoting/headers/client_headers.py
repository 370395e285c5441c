"""Heartbeats, membership, queue locks, and requests relayed to clients."""

from __future__ import annotations

from pyromq.remoting import bodies
from pyromq.remoting.codes import RequestCode
from pyromq.remoting.header import Header, field


class Heartbeat(Header):
    """A client's producers, consumers and subscriptions."""

    code = RequestCode.HEART_BEAT
    request_body = bodies.HeartbeatBody


class UnregisterClient(Header):
    """A client leaves a producer or a consumer group."""

    code = RequestCode.UNREGISTER_CLIENT
    client_id: str = field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None
    broker_name: str | None = field(name="bname", default=None)


class ConsumerList(Header):
    """The client ids of a group's members."""

    code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
    reply_body = bodies.ConsumerIds
    consumer_group: str
    broker_name: str | None = field(name="bname", default=None)


class ConsumerIdsChanged(Header):
    """The broker notifies a member that its group has changed."""

    code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    consumer_group: str


class LockQueues(Header):
    """Lock queues for a client of a group; the response lists the locked ones."""

    code = RequestCode.LOCK_BATCH_MQ
    request_body = bodies.QueueLock
    reply_body = bodies.LockedQueues


class UnlockQueues(Header):
    """Unlock queues."""

    code = RequestCode.UNLOCK_BATCH_MQ
    request_body = bodies.QueueLock


class CheckClient(Header):
    """Check a subscription expression before a consumer starts."""

    code = RequestCode.CHECK_CLIENT_CONFIG
    request_body = bodies.ClientCheck


class ConsumerConnections(Header):
    """The members of a group and its subscriptions."""

    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    reply_body = bodies.ConsumerConnection
    consumer_group: str
    details: bool | None = None  # ours: also each member's subscriptions, and the locks; Java brokers ignore it


class ProducerConnections(Header):
    """The clients of a producer group."""

    code = RequestCode.GET_PRODUCER_CONNECTION_LIST
    reply_body = bodies.ProducerConnection
    producer_group: str


class AllProducers(Header):
    """All producer groups and their clients."""

    code = RequestCode.GET_ALL_PRODUCER_INFO
    reply_body = bodies.ProducerTable


class ConsumerRunningState(Header):
    """A member's internal state, requested through the broker."""

    code = RequestCode.GET_CONSUMER_RUNNING_INFO
    reply_body = bodies.ConsumerRunning
    consumer_group: str
    client_id: str
    stack_wanted: bool = field(name="jstackEnable", default=False)


class ConsumeDirectly(Header):
    """Run a member's listener on one message."""

    code = RequestCode.CONSUME_MESSAGE_DIRECTLY
    reply_body = bodies.ConsumeDirectlyResult
    consumer_group: str
    client_id: str | None = None
    message_id: str | None = field(name="msgId", default=None)
    broker_name: str | None = None
