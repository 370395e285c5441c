"""Answers heartbeats, clients that unregister, and checks of a subscription before a consumer starts."""

from __future__ import annotations

from pyromq.broker.members.connections import ConsumerGroup, GroupMember, wanted
from pyromq.broker.shared_state import SharedState
from pyromq.errors import BrokerError, LimitReached
from pyromq.filter.filter import TAG_TYPES, check_length, filter_of
from pyromq.filter.subscription_differences import differences, in_words
from pyromq.logs import logger_of
from pyromq.names import MAX_GROUP_LENGTH, is_system_group, retry_topic
from pyromq.remoting.bodies import REQUEST, ClientCheck, ConsumerEntry, HeartbeatBody, decode_body
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import CheckClient, Heartbeat, UnregisterClient
from pyromq.slow_work import yield_slice

logger = logger_of(__name__)


class HeartbeatProcessor:
    """Registers and unregisters clients. Logs when members of a group subscribe differently."""

    def __init__(self, state: SharedState) -> None:
        self._connections = state.connections
        self._groups = state.groups
        self._role = state.role
        self._topics = state.topics
        self._config = state.config
        self._clock = state.clock

    @answers(Heartbeat)
    async def note(self, header: Heartbeat, call: Call) -> Reply:
        """Register the client's producers and consumers; create missing groups and their retry topics.

        Raises `BrokerError` for a refused consumer, `LimitReached` at a limit; the client's other groups are registered
        nevertheless.
        """
        heartbeat = decode_body(HeartbeatBody, call.body, REQUEST)
        check_heartbeat(heartbeat, self._config.limits.subscription_length)
        member = GroupMember(
            heartbeat.client_id,
            call.peer,
            call.language,
            call.version,
            self._clock.monotonic(),
            self._clock.now_ms(),
            call.account,
        )
        refused: dict[str, None] = {}
        for producer in heartbeat.producers:
            if call.peer.closed:  # a connection closed meanwhile must not be registered
                return Reply()
            self._connections.register_producer(producer.group, member)
            await yield_slice()
        reached: LimitReached | None = None
        for consumer in heartbeat.consumers:
            if call.peer.closed:
                return Reply()
            try:
                if (refusal := self._note_consumer(consumer, member)) is not None:
                    refused[refusal] = None
            except LimitReached as error:
                reached = error
            await yield_slice()
        if reached is not None:
            raise reached
        if refused:
            raise BrokerError("; ".join(refused))
        return Reply()

    def _note_consumer(self, entry: ConsumerEntry, member: GroupMember) -> str | None:
        """Register a consumer; return the reason if the consumer is refused, None otherwise."""
        members = self._connections.consumers(entry.group)
        if members is not None and (refusal := self._refusal(members, entry, member)):
            return refusal
        before = members.wanted_by.get((member.session, member.client_id)) if members is not None else None
        group = self._groups.find(entry.group, member.session)
        # Members are registered even if their group may not be created; their pulls are refused.
        if group is not None and group.retry_queues > 0 and self._role.is_master:
            self._topics.for_group_retry(retry_topic(entry.group), group.retry_queues)
        self._connections.register_consumer(entry, member, notify=group is None or group.notify_changes)
        members = self._connections.consumers(entry.group)
        if members is not None and (members.differing or wanted(entry) != before):
            self._compare(members)
        return None

    def _refusal(self, members: ConsumerGroup, entry: ConsumerEntry, member: GroupMember) -> str | None:
        """Return the reason to refuse a new member; None to accept it.

        With the setting on, a member is refused if its subscriptions differ from those of all members.
        """
        if not self._config.refuse_different_subscriptions or is_system_group(entry.group):
            return None
        others, own = members.wanted, wanted(entry)
        if member.client_id in others:
            return None
        unlike = [
            differences({member.client_id: own, name: each}, entry.consume_type)
            for name, each in others.items()
            if each
        ]
        if not unlike or not all(unlike):
            return None
        found = in_words(differences({**others, member.client_id: own}, entry.consume_type))
        text = f"group {entry.group}: {member.client_id} is refused, since members subscribe differently: {found}"
        if member.client_id not in members.refused:
            members.refused.add(member.client_id)
            logger.warning("%s", text)
        return text

    def _compare(self, members: ConsumerGroup) -> None:
        """Log when a group's members begin or cease to subscribe differently, not at each heartbeat."""
        if is_system_group(members.name):
            return
        if not members.differing and members.subscribes_alike():
            return
        found = differences(members.wanted, members.consume_type)
        now = {topic: sorted(by_expression) for topic, by_expression in found.items()}
        if now == members.differing:
            return
        members.differing = now
        if found:
            logger.warning(
                "group %s: members subscribe differently and miss messages: %s", members.name, in_words(found)
            )
        else:
            logger.info("group %s: members subscribe alike again", members.name)

    @answers(UnregisterClient)
    def leave(self, header: UnregisterClient, call: Call) -> Reply:
        if header.producer_group is not None:
            self._connections.unregister_producer(header.producer_group, call.peer)
        if header.consumer_group is not None:
            group = self._groups.find(header.consumer_group)
            notify = group is None or group.notify_changes
            self._connections.unregister_consumer(header.consumer_group, call.peer, header.client_id, notify=notify)
        return Reply()

    @answers(CheckClient)
    def check(self, header: CheckClient, call: Call) -> Reply:
        """Raise the error that refuses an unsupported filter type or a faulty expression.

        Tags always pass, as upstream.
        """
        subscription = decode_body(ClientCheck, call.body, REQUEST).subscription
        if subscription is None:
            return Reply()
        if subscription.expression_type not in TAG_TYPES:
            by_properties = self._config.property_filter
            filter_of(subscription.expression_type, subscription.expression, by_properties=by_properties)
        return Reply()


def check_heartbeat(heartbeat: HeartbeatBody, max_length: int) -> None:
    """Raise `BrokerError` if a client id, a group name or an expression in the heartbeat is too long."""
    groups = [entry.group for entry in heartbeat.producers] + [entry.group for entry in heartbeat.consumers]
    if long := next((name for name in (heartbeat.client_id, *groups) if len(name) > MAX_GROUP_LENGTH), None):
        raise BrokerError(f"the name {long[:80]}... is longer than {MAX_GROUP_LENGTH} characters")
    for consumer in heartbeat.consumers:
        for subscription in consumer.subscriptions:
            check_length(subscription.expression, max_length)
