"""Answers clients' signs of life: heartbeats, leaving, and the check of a subscription before a consumer starts."""

from __future__ import annotations

from pyromq.broker.connections import Connections, Member
from pyromq.broker.groups import Groups
from pyromq.broker.topics import Topics
from pyromq.clock import Clock
from pyromq.errors import BrokerError
from pyromq.names import retry_topic
from pyromq.remoting.bodies import ClientCheck, ConsumerEntry, HeartbeatBody, decode_body
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import CheckClient, Heartbeat, UnregisterClient


class Heartbeating:
    """Keeps the registry of clients true."""

    def __init__(self, connections: Connections, groups: Groups, *, topics: Topics, clock: Clock) -> None:
        self._connections = connections
        self._groups = groups
        self._topics = topics
        self._clock = clock

    @answers(Heartbeat)
    def note(self, header: Heartbeat, call: Call) -> Reply:
        """Register the client's producers and consumers; creates a group's settings and retry topic when absent."""
        heartbeat = decode_body(HeartbeatBody, call.body)
        member = Member(
            heartbeat.client_id,
            call.peer,
            call.language,
            call.version,
            self._clock.monotonic(),
            self._clock.now_ms(),
        )
        for consumer in heartbeat.consumers:
            self._note_consumer(consumer, member)
        for producer in heartbeat.producers:
            self._connections.register_producer(producer.group, member)
        return Reply()

    def _note_consumer(self, entry: ConsumerEntry, member: Member) -> None:
        group = self._groups.find(entry.group)
        # A group that may not be created is registered all the same; its pulls are refused.
        if group is not None and group.retry_queues > 0:
            self._topics.for_group_retry(retry_topic(entry.group), group.retry_queues)
        self._connections.register_consumer(entry, member, notify=group is None or group.notify_changes)

    @answers(UnregisterClient)
    def leave(self, header: UnregisterClient, call: Call) -> Reply:
        if header.producer_group is not None:
            self._connections.unregister_producer(header.producer_group, call.peer)
        if header.consumer_group is not None:
            group = self._groups.find(header.consumer_group)
            notify = group is None or group.notify_changes
            self._connections.unregister_consumer(header.consumer_group, call.peer, notify=notify)
        return Reply()

    @answers(CheckClient)
    def check(self, header: CheckClient, call: Call) -> Reply:
        """Refuse kinds of subscriptions that are not served; tags always pass, as upstream."""
        subscription = decode_body(ClientCheck, call.body).subscription
        if subscription is None:
            return Reply()
        if subscription.expression_type not in ("", "TAG"):
            raise BrokerError(
                f"The broker does not support consumer to filter message by {subscription.expression_type}"
            )
        return Reply()
