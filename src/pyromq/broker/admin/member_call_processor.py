"""Answers administrators' requests that only members of a group can serve, by calling these members.

Source: RocketMQ 4.9.8, Broker2Client and AdminBrokerProcessor.callConsumer.
"""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import suppress
from functools import partial

from pyromq.broker.members.connections import GroupMember
from pyromq.broker.shared_state import SharedState
from pyromq.errors import BrokerError, ConsumerNotOnline, ConsumeTimeout, DeadlineExceeded, MQError
from pyromq.message import MessageQueue
from pyromq.message_id import parse_offset_id
from pyromq.remoting.bodies import REQUEST, ConsumerStatus, QueueOffset, ResetOffsets, decode_body, encode_body
from pyromq.remoting.codes import RELAY_VERSION, STATUS_VERSION, Language
from pyromq.remoting.command import Call, Reply, Response
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import (
    ConsumeDirectly,
    ConsumerRunningState,
    ConsumerStatusOfClient,
    ConsumerStatusOfGroup,
    ResetClientOffset,
    ResetOffset,
)
from pyromq.slow_work import yield_slice

RELAY_SECONDS = 10.0  # longest wait for a member's response to a relayed request
STATUS_SECONDS = 5.0  # longest wait for a member's response with its offsets
END = -1  # a reset to this timestamp means the end of each queue


class MemberCallProcessor:
    """Relays administrators' requests to consumers, and the consumers' responses back."""

    def __init__(self, state: SharedState) -> None:
        self._store = state.store
        self._topics = state.topics
        self._offsets = state.offsets
        self._connections = state.connections
        self._pops = state.pops
        self._broker_name = state.config.name

    @answers(ConsumerRunningState)
    def running_state(self, header: ConsumerRunningState, call: Call) -> Future[Reply]:
        return self._relay(header)

    @answers(ConsumeDirectly)
    def consume_directly(self, header: ConsumeDirectly, call: Call) -> Future[Reply]:
        """Have a member consume one stored message now; the request names the message by its offset message id."""
        if not header.message_id:
            return self._consume(header, call.body)
        log_offset = parse_offset_id(header.message_id).log_offset
        self._store.residency.need_record(log_offset)
        record = self._store.confirmed_record_at(log_offset)
        if record is None:
            raise BrokerError(f"can not find message by the offset, {log_offset}")
        return self._consume(header, bytes(record))

    def _consume(self, header: ConsumeDirectly, body: bytes) -> Future[Reply]:
        relayed = ConsumeDirectly(
            consumer_group=header.consumer_group,
            client_id=header.client_id,
            message_id=header.message_id,
            broker_name=self._broker_name,
        )
        return self._relay(relayed, body)

    @answers(ResetOffset)
    async def reset_offset(self, header: ResetOffset, call: Call) -> Reply:
        """Have all members of a group reset their offsets in a topic to a time; reply with these offsets.

        Without `force` no offset moves forward. The members commit the new offsets, not the broker. Members that pop
        commit none, so the broker commits the offsets of a group that pops. Raises `ConsumerNotOnline`, `LimitReached`.
        """
        topic = self._topics.find(header.topic)
        if topic is None:
            raise BrokerError(f"[reset-offset] reset offset failed, no topic in this broker, topic={header.topic}")
        members = self._members(header.group, STATUS_VERSION)
        queues = {}
        for queue_id in range(topic.write_queues):
            queue = MessageQueue(topic.name, self._broker_name, queue_id)
            queues[queue] = await self._reset_to(header, queue_id, bool(members))
            await yield_slice()
        if not members:
            raise ConsumerNotOnline(
                f"Consumer not online, so can not reset offset. Group: {header.group} Topic: {header.topic} "
                f"Timestamp: {header.timestamp}"
            )
        # As upstream: the language of the administrator's client decides the body's form, and `force` is not relayed.
        told = encode_body(ResetOffsets(offsets=_list_form(queues) if call.language == Language.CPP.name else queues))
        order = ResetClientOffset(topic=header.topic, group=header.group, timestamp=header.timestamp, force=False)
        for member in members:
            member.session.notify(order, told)
        if self._pops.in_flight.queues(header.group, header.topic):
            for queue, offset in queues.items():
                if not self._offsets.commit(header.group, header.topic, queue.queue_id, offset):
                    raise self._offsets.too_many(header.group)
        return Reply(body=encode_body(ResetOffsets(offsets=queues)))

    async def _reset_to(self, header: ResetOffset, queue_id: int, is_online: bool) -> int:
        """Return the queue offset to reset to. With `force`, an online group without a stored offset is reset too."""
        present = self._offsets.find(header.group, header.topic, queue_id)
        if present is None and not (header.force and is_online):
            raise BrokerError(f"THe consumer group <{header.group}> not exist")
        if header.timestamp == END:
            wanted = self._store.max_offset(header.topic, queue_id)
        else:
            wanted = await self._store.search_by_time(header.topic, queue_id, header.timestamp)
        return wanted if header.force or present is None else min(wanted, present)

    @answers(ConsumerStatusOfGroup)
    def status(self, header: ConsumerStatusOfGroup, call: Call) -> Future[Reply]:
        """Return the offsets that the members report; members that do not respond are omitted."""
        members = self._members(header.group, STATUS_VERSION)
        if not members:
            raise BrokerError(f"No Any Consumer online in the consumer group: [{header.group}]")
        if header.client_address:
            members = [member for member in members if member.client_id == header.client_address]
        return _collect(members, ConsumerStatusOfClient(topic=header.topic, group=header.group))

    def _members(self, group: str, least_version: int) -> list[GroupMember]:
        consumers = self._connections.consumers(group)
        members = consumers.members if consumers is not None else []
        for member in members:
            if member.version < least_version:
                raise BrokerError(f"the client does not support this feature. version={member.version}")
        return members

    def _relay(self, header: ConsumerRunningState | ConsumeDirectly, body: bytes = b"") -> Future[Reply]:
        """Call the member that the request names and return the future of its response. Raises `BrokerError`."""
        group, client_id = header.consumer_group, header.client_id
        consumers = self._connections.consumers(group)
        found = [member for member in consumers.members if member.client_id == client_id] if consumers else []
        if not found:
            raise BrokerError(f"The Consumer <{group}> <{client_id}> not online")
        if found[0].version < RELAY_VERSION:
            raise BrokerError(
                f"The Consumer <{client_id}> Version <{found[0].version}> too low to finish, "
                "please upgrade it to V3_1_8_SNAPSHOT"
            )
        relayed: Future[Reply] = Future()

        def answered(result: Response | MQError) -> None:
            if isinstance(result, Response):
                relayed.set_result(Reply(body=result.body, code=result.code, remark=result.remark))
            elif isinstance(result, DeadlineExceeded):
                relayed.set_exception(ConsumeTimeout(f"consumer <{group}> <{client_id}> Timeout: {result}"))
            else:
                relayed.set_exception(BrokerError(f"invoke consumer <{group}> <{client_id}> Exception: {result}"))

        found[0].session.call(header, body, timeout=RELAY_SECONDS, answered=answered)
        return relayed


def _collect(members: list[GroupMember], header: ConsumerStatusOfClient) -> Future[Reply]:
    """Call all members at the same time; the future completes when each one has responded or failed."""
    collected: Future[Reply] = Future()
    tables: dict[str, dict[MessageQueue, int]] = {}
    missing = len(members)

    def done() -> None:
        collected.set_result(Reply(body=encode_body(ConsumerStatus(clients=tables))))

    def answered_by(member: GroupMember, result: Response | MQError) -> None:
        nonlocal missing
        with suppress(MQError):  # an unreadable response counts as a missing one
            if isinstance(result, Response) and result.check().body:
                tables[member.client_id] = decode_body(ConsumerStatus, result.body, REQUEST).queues
        missing -= 1
        if not missing:
            done()

    for member in members:
        member.session.call(header, timeout=STATUS_SECONDS, answered=partial(answered_by, member))
    if not members:
        done()
    return collected


def _list_form(queues: dict[MessageQueue, int]) -> list[QueueOffset]:
    return [
        QueueOffset(topic=queue.topic, broker_name=queue.broker_name, queue_id=queue.queue_id, offset=offset)
        for queue, offset in queues.items()
    ]
