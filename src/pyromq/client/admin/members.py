"""Requests to members of groups through brokers: running state, offsets, consuming one message; producers' clients."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from pyromq.client.admin.admin_client import ClusterBrokers
from pyromq.client.admin.cluster_groups import ClusterGroups
from pyromq.client.admin.cluster_offsets import ClusterOffsets
from pyromq.client.admin.messages.message_search import find_message
from pyromq.client.arguments import checked
from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.clock import Clock
from pyromq.errors import BrokerError, ConsumerNotOnline, MQError, Unavailable
from pyromq.message import MessageQueue, StoredMessage
from pyromq.message_id import parse_offset_id
from pyromq.plural import counted
from pyromq.remoting.bodies import (
    ConsumeDirectlyResult,
    ConsumerRunning,
    ConsumerStatus,
    GroupList,
    ProducerClient,
    ProducerTable,
    decode_body,
)
from pyromq.remoting.headers import (
    AllProducers,
    ConsumeDirectly,
    ConsumerRunningState,
    ConsumerStatusOfGroup,
    TopicConsumers,
)

RELAY_SECONDS = 12.0  # limit of a request that a broker relays to a member; brokers wait 10 s for the member
# Time without progress after which a queue with messages counts as blocked. Source: analyzeProcessQueue.
BLOCKED_SECONDS = 60.0


class TrackState(Enum):
    """The state of a message in a group. Source: TrackType.

    Brokers do not know the state in pulling and in broadcasting groups: it is PULL or CONSUME_BROADCASTING there.
    """

    CONSUMED = "CONSUMED"
    CONSUMED_BUT_FILTERED = "CONSUMED_BUT_FILTERED"
    PULL = "PULL"
    NOT_CONSUME_YET = "NOT_CONSUME_YET"
    NOT_ONLINE = "NOT_ONLINE"
    CONSUME_BROADCASTING = "CONSUME_BROADCASTING"


@checked
class Members:
    """The object `admin.members`: sends requests to members of groups through the brokers they are connected to."""

    def __init__(
        self,
        cluster: ClusterClient,
        brokers: ClusterBrokers,
        groups: ClusterGroups,
        offsets: ClusterOffsets,
        *,
        timeout: float,
        clock: Clock,
    ) -> None:
        self._cluster = cluster
        self._brokers = brokers
        self._groups = groups
        self._offsets = offsets
        self._timeout = timeout
        self._clock = clock

    async def running(self, group: str, client_id: str, *, stacks: bool = False) -> ConsumerRunning:
        """Return a member's settings, queues, subscriptions and rates, and with `stacks` also its thread dump.

        Raises `BrokerError` if the member is not connected, `ConsumeTimeout` if the member does not answer.
        """
        question = ConsumerRunningState(consumer_group=group, client_id=client_id, stack_wanted=stacks)
        refusal: MQError | None = None
        for address in (await self._brokers.masters()).values():
            try:
                response = await self._cluster.ask(address, question, timeout=RELAY_SECONDS)
                return decode_body(ConsumerRunning, response.check().body)
            except (BrokerError, Unavailable) as error:
                refusal = error
        assert refusal is not None, "there is a master, else `masters` has raised"
        raise refusal

    async def all_running(self, group: str, *, stacks: bool = False) -> dict[str, ConsumerRunning | MQError]:
        """Return each member's running state, or the error of its request, by client id.

        Raises `ConsumerNotOnline` if no member is connected.
        """
        found: dict[str, ConsumerRunning | MQError] = {}
        for connection in (await self._groups.consumer_connection(group)).connections:
            try:
                found[connection.client_id] = await self.running(group, connection.client_id, stacks=stacks)
            except MQError as error:
                found[connection.client_id] = error
        return found

    async def offsets(self, group: str, topic: str, client_id: str | None = None) -> dict[str, dict[MessageQueue, int]]:
        """Return by client id the offsets that members will consume next in a topic's queues, committed or not.

        With `client_id`, only this member is asked. Raises `ConsumerNotOnline` if the group has no member.
        """
        question = ConsumerStatusOfGroup(topic=topic, group=group, client_address=client_id or "")

        async def offsets_at(address: str) -> ConsumerStatus | None:
            response = await self._cluster.ask(address, question, timeout=RELAY_SECONDS)
            try:
                return decode_body(ConsumerStatus, response.check().body)
            except BrokerError:
                return None  # brokers have no separate response code for a group without members

        masters = (await self._brokers.masters()).values()
        answers = (await self._cluster.ask_reachable(masters, offsets_at)).values()
        if not any(answer is not None for answer in answers):
            raise ConsumerNotOnline(f"consumer group {group!r} has no member online")
        found: dict[str, dict[MessageQueue, int]] = {}
        for answer in filter(None, answers):
            for each, queues in answer.clients.items():
                found.setdefault(each, {}).update(queues)
        return found

    async def consume(
        self, group: str, client_id: str, message_id: str, *, topic: str | None = None
    ) -> ConsumeDirectlyResult:
        """Let a member's listener consume one message now. `message_id` is any id that `AsyncAdmin.view` accepts.

        Offsets and retries do not change. Raises `BrokerError` if the member is not connected.
        """
        found = await find_message(self._cluster, message_id, topic, timeout=self._timeout)
        offset_id = found.offset_message_id
        order = ConsumeDirectly(consumer_group=group, client_id=client_id, message_id=offset_id)
        masters = await self._brokers.masters()
        address = masters.get(found.broker_name) or parse_offset_id(offset_id).address
        response = await self._cluster.ask(address, order, timeout=RELAY_SECONDS)
        return decode_body(ConsumeDirectlyResult, response.check().body)

    async def producers(self, address: str | None = None) -> dict[str, list[ProducerClient]]:
        """Return the connected producer clients by group, at the broker at `host:port` or at all brokers."""
        found: dict[str, dict[str, ProducerClient]] = {}
        if address is not None:
            tables = [await self._brokers.read(address, AllProducers(), ProducerTable)]
        else:
            masters = (await self._brokers.masters()).values()
            tables = [*(await self._brokers.read_each(masters, AllProducers(), ProducerTable, partial=True)).values()]
        for table in tables:
            for group, clients in table.groups.items():
                found.setdefault(group, {}).update((each.client_id, each) for each in clients)
        return {group: [found[group][client_id] for client_id in sorted(found[group])] for group in sorted(found)}

    async def groups_of_topic(self, topic: str) -> list[str]:
        """Return the names of groups that consume a topic now, or have offsets in the topic, sorted."""
        masters = (await self._brokers.masters()).values()
        found = await self._brokers.read_each(masters, TopicConsumers(topic=topic), GroupList, partial=True)
        return sorted({group for each in found.values() for group in each.groups})

    async def tracks(self, message: StoredMessage) -> dict[str, TrackState]:
        """Return the state of a stored message in each group that consumes the message's topic, by group name.

        Source: RocketMQ 4.9.8, DefaultMQAdminExtImpl.messageTrackDetail.
        """
        at = message.broker_name or await self._broker_at(parse_offset_id(message.offset_message_id).address)
        queue = MessageQueue(message.topic, at, message.queue_id)
        return {group: await self._track(group, queue, message) for group in await self.groups_of_topic(message.topic)}

    async def _broker_at(self, address: str) -> str:
        """Return the name of the broker registered with this address; "" if there is none."""
        return next((name for name, each in (await self._brokers.masters()).items() if each == address), "")

    async def _track(self, group: str, queue: MessageQueue, message: StoredMessage) -> TrackState:
        try:
            members = await self._groups.consumer_connection(group)
        except ConsumerNotOnline:
            return TrackState.NOT_ONLINE
        if members.consume_type == "CONSUME_ACTIVELY":
            return TrackState.PULL
        if members.message_model == "BROADCASTING":
            return TrackState.CONSUME_BROADCASTING
        offsets = {
            each.queue: each.consumer_offset
            for each in await self._offsets.group_progress(group, queue.topic, partial=True)
        }
        if offsets.get(queue, 0) <= message.queue_offset:
            return TrackState.NOT_CONSUME_YET
        wanted = members.subscriptions.get(queue.topic)
        is_filtered = wanted is not None and bool(wanted.tags) and message.tags not in wanted.tags
        return TrackState.CONSUMED_BUT_FILTERED if is_filtered else TrackState.CONSUMED

    def troubles(self, states: Mapping[str, ConsumerRunning | MQError]) -> list[str]:
        """Return the problems in a result of `all_running`, one line each.

        Problems are different subscriptions, members that do not answer, and blocked queues. Source: RocketMQ 4.9.8,
        ConsumerRunningInfo.analyzeSubscription, analyzeProcessQueue.
        """
        told = {client_id: state for client_id, state in states.items() if isinstance(state, ConsumerRunning)}
        wanted = {tuple(sorted((s.topic, s.expression) for s in state.subscriptions)) for state in told.values()}
        found = [f"members have {len(wanted)} different subscriptions, and miss messages"] if len(wanted) > 1 else []
        found += [
            f"{client_id} does not answer: {error}" for client_id, error in states.items() if client_id not in told
        ]
        for client_id, state in told.items():
            if state.properties.get("PROP_CONSUME_TYPE") == "CONSUME_PASSIVELY":
                found += self._standing(client_id, state)
        return found

    def _standing(self, client_id: str, state: ConsumerRunning) -> list[str]:
        """Return one line for each blocked queue of a push consumer: no lock, or no progress for `BLOCKED_SECONDS`."""
        now = self._clock.now_ms()
        orderly = state.properties.get("PROP_CONSUMEORDERLY") == "true"
        found = []
        for queue, each in state.queues.items():
            seconds = (now - each.last_consume_ms) / 1000
            if orderly and not each.locked:
                found.append(f"{client_id} has not got the lock of {queue}")
            elif not orderly and each.cached_count and each.last_consume_ms and seconds > BLOCKED_SECONDS:
                found.append(
                    f"{client_id} has consumed nothing of {queue} for {seconds:.0f} s, with "
                    f"{counted(each.cached_count, 'message')} in memory"
                )
        return found
