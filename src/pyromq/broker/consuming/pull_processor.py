"""Answers pulls: immediately, or when a message arrives, or when the long poll expires."""

from __future__ import annotations

from functools import partial

from pyromq.broker.consuming.long_polls import MAX_UNCONFIRMED, LongPoll
from pyromq.broker.put_message import PutMessage
from pyromq.broker.role import MASTER
from pyromq.broker.shared_state import SharedState
from pyromq.broker.topics import FAQ
from pyromq.clock import Clock
from pyromq.errors import (
    BrokerError,
    GroupNotFound,
    MQError,
    NoPermission,
    ResponseCode,
    SubscriptionNotFound,
    SubscriptionNotLatest,
    TopicNotFound,
)
from pyromq.filter.filter import Filter, check_length, filter_of
from pyromq.logs import logger_of
from pyromq.message import Message, MessageQueue, StoredMessage, encode_properties, pack_address
from pyromq.names import OFFSET_MOVED_TOPIC, retry_topic
from pyromq.permissions.account import SUB, resource_name
from pyromq.permissions.authentication import denied
from pyromq.remoting.bodies import OffsetMoved, WireQueue, encode_body
from pyromq.remoting.codes import Permission, PullFlag
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import Later, Peer, answers
from pyromq.remoting.headers import PullMessage, PullMessageResponse
from pyromq.slow_work import NotInMemory, PagesToLoad, SlowWork, when_loaded
from pyromq.store.message_store import ReadResult, ReadStatus

logger = logger_of(__name__)

EVENT_SECONDS = 1.0  # shortest time between two OFFSET_MOVED_EVENT messages of one group and queue
MAX_REMEMBERED = 10_000  # limit of remembered events (by group and queue); beyond it, all are forgotten
_CODES = {
    ReadStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.NO_MATCHED_LOGIC_QUEUE: ResponseCode.PULL_NOT_FOUND,
}
# States of a queue without any message: a pull at offset 0 may wait, and a pull at another offset must move to 0.
_NEVER_WRITTEN = (ReadStatus.NO_MESSAGE_IN_QUEUE, ReadStatus.NO_MATCHED_LOGIC_QUEUE)


class PullProcessor:
    """Reads queues for consumers. Pulls that find no message, and may wait, are kept as long polls."""

    def __init__(self, state: SharedState) -> None:
        self._store = state.store
        self._topics = state.topics
        self._groups = state.groups
        self._connections = state.connections
        self._offsets = state.offsets
        self._long_polls = state.long_polls
        self._statistics = state.statistics
        self._moved = OffsetMovedEvents(state.put_message, state.config.name, state.clock)
        self._permissions = state.permissions
        self._role = state.role
        self._config = state.config
        self._clock = state.clock

    @answers(PullMessage)
    def pull(self, header: PullMessage, call: Call) -> Reply | SlowWork[Reply] | Later:
        self.check(header, call.peer)
        flags = header.sys_flag
        wanted = self.subscription(header)
        if flags & PullFlag.COMMIT_OFFSET and self._role.is_master:
            self._offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        try:
            found = self._find(header, wanted)
        except NotInMemory as lack:
            return self._reply_when_loaded(lack.to_load, header, wanted)
        reply = self._reply(header, found)
        if reply.code == ResponseCode.PULL_NOT_FOUND and flags & PullFlag.SUSPEND and header.suspend_ms > 0:
            return self._park(header, wanted, call)
        return reply

    async def _reply_when_loaded(self, to_load: PagesToLoad, header: PullMessage, wanted: Filter) -> Reply:
        began = self._clock.monotonic()
        found = await when_loaded(to_load, partial(self._find, header, wanted))
        self._statistics.note_latency(header.consumer_group, header.topic, self._clock.monotonic() - began)
        return self._reply(header, found)

    def check(self, header: PullMessage, peer: Peer | None = None) -> None:
        """Raise the error that refuses a pull. Without a `peer`, no group is created automatically."""
        if not self._config.permission & Permission.READ:
            raise NoPermission(f"the broker[{self._config.advertised_ip}] pulling message is forbidden")
        group = self._groups.find(header.consumer_group, peer)
        if group is None:
            raise GroupNotFound(f"subscription group [{header.consumer_group}] does not exist, {FAQ}")
        if not group.consume_enabled:
            raise NoPermission(f"subscription group no permission, {header.consumer_group}")
        topic = self._topics.find(header.topic)
        if topic is None:
            raise TopicNotFound(f"topic[{header.topic}] not exist, apply first please! {FAQ}")
        if not topic.permission & Permission.READ:
            raise NoPermission(f"the topic[{header.topic}] pulling message is forbidden")
        if not 0 <= header.queue_id < topic.read_queues:
            raise BrokerError(
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queues}] consumer:[/{peer and peer.address}]"
            )

    def subscription(self, header: PullMessage) -> Filter:
        """Return the filter of a pull: from the request itself, or from the group's heartbeats.

        Raises `SubscriptionNotFound`, `SubscriptionNotLatest`, `NoPermission`.
        """
        if header.sys_flag & PullFlag.SUBSCRIPTION:
            check_length(header.subscription, self._config.limits.subscription_length)
            return self._filter(header.expression_type, header.subscription)
        consumers = self._connections.consumers(header.consumer_group)
        if consumers is None:
            raise SubscriptionNotFound(f"the consumer's group info not exist{FAQ}")
        group = self._groups.find(header.consumer_group)
        if group is not None and not group.broadcast_enabled and consumers.message_model == "BROADCASTING":
            raise NoPermission(f"the consumer group[{header.consumer_group}] can not consume by broadcast way")
        subscription = consumers.subscriptions.get(header.topic)
        if subscription is None:
            raise SubscriptionNotFound(f"the consumer's subscription not exist{FAQ}")
        if subscription.version < header.subscription_version:
            raise SubscriptionNotLatest("the consumer's subscription not latest")
        return self._filter(subscription.expression_type, subscription.expression)

    def _filter(self, expression_type: str | None, expression: str | None) -> Filter:
        return filter_of(expression_type, expression, by_properties=self._config.property_filter)

    def _find(self, header: PullMessage, wanted: Filter) -> ReadResult:
        return self._store.read(
            header.topic,
            header.queue_id,
            header.queue_offset,
            header.max_count,
            max_bytes=header.max_bytes,
            wanted=wanted,
        )

    def _reply(self, header: PullMessage, found: ReadResult) -> Reply:
        bounds = (found.next_offset, found.min_offset, found.max_offset)
        suggested = self._suggested(header, found) if self._config.slave_read else MASTER
        status = found.status
        if status is ReadStatus.FOUND:
            self._statistics.count_get(header.consumer_group, header.topic, found.count, found.size)
            return Reply(PullMessageResponse(*bounds, suggested), found.records, remark=status.name)
        self._statistics.count_get_miss()
        code = _CODES[status]
        if status in _NEVER_WRITTEN and header.queue_offset:
            code = ResponseCode.PULL_OFFSET_MOVED
        if code == ResponseCode.PULL_OFFSET_MOVED:
            if not self._corrects:
                return self._uncorrected(header, found)
            if self._role.is_master:
                self._moved.tell(header, found.next_offset)
        if status is ReadStatus.NO_MATCHED_LOGIC_QUEUE:  # upstream creates a missing queue on a pull
            status = ReadStatus.NO_MESSAGE_IN_QUEUE
        return Reply(PullMessageResponse(*bounds, suggested), code=code, remark=status.name)

    def _suggested(self, header: PullMessage, found: ReadResult) -> int:
        """Return the id of the broker from which the group should pull next.

        If the last message read is probably not in memory here, return the group's `whichBrokerWhenConsumeSlowly`,
        otherwise the group's `brokerId`. Source: RocketMQ 4.9.8, DefaultMessageStore.getMessage.
        """
        group = self._groups.find(header.consumer_group)
        if group is None:
            return MASTER
        last = self._store.reading.place(header.topic, header.queue_id, found.next_offset - 1)
        begin = (
            None
            if last is None or found.next_offset <= header.queue_offset
            else self._store.reading.log_offset_of(last)
        )
        return group.slow_broker_id if begin is not None and self._store.is_cold(begin) else group.broker_id

    @property
    def _corrects(self) -> bool:
        return self._role.is_master or self._config.check_offsets_on_slave

    def _uncorrected(self, header: PullMessage, found: ReadResult) -> Reply:
        """Return a slave's reply to a pull outside of the queue: pull at the same offset again. A slave may be behind.

        Source: RocketMQ 4.9.8, DefaultMessageStore.nextOffsetCorrection, PullMessageProcessor.
        """
        group = self._groups.find(header.consumer_group)
        suggested = MASTER if group is None else group.broker_id
        bounds = PullMessageResponse(header.queue_offset, found.min_offset, found.max_offset, suggested)
        return Reply(bounds, code=ResponseCode.PULL_RETRY_IMMEDIATELY, remark=found.status.name)

    def _park(self, header: PullMessage, wanted: Filter, call: Call) -> Later:
        suspend_ms = header.suspend_ms if self._config.long_polling else self._config.short_polling_ms
        poll = LongPoll(
            header.topic,
            header.queue_id,
            wanted,
            partial(self._read_again, header, wanted, call),
            Later(),
            call.peer,
        )
        unconfirmed = self._store.unconfirmed_entries(header.topic, header.queue_id, MAX_UNCONFIRMED)
        return self._long_polls.park_behind(unconfirmed, poll, suspend_ms / 1000)

    def _read_again(self, header: PullMessage, wanted: Filter, call: Call) -> Reply:
        """Read the queue again and return the reply to a long poll.

        Topic, group and the account's rights are checked again.
        """
        self.check(header, call.peer)
        if call.account is not None:
            self._check_rights(header, call.account)
        try:
            found = self._find(header, wanted)
        except NotInMemory:  # the reply is empty; the consumer's next pull loads the pages
            queue = (header.topic, header.queue_id)
            bounds = (self._store.min_offset(*queue), self._store.max_offset(*queue))
            found = ReadResult(ReadStatus.NO_MATCHED_MESSAGE, header.queue_offset, *bounds, [], 0, 0)
        return self._reply(header, found)

    def _check_rights(self, header: PullMessage, account: str) -> None:
        needs = [(header.topic, SUB), (retry_topic(header.consumer_group), SUB)]
        if (lacking := self._permissions.lacks(account, needs)) is not None:
            raise denied(f"account {account} has no SUB on {resource_name(lacking[0])} any more")


class OffsetMovedEvents:
    """Stores a message in topic OFFSET_MOVED_EVENT for each pull at an offset where the queue has no messages.

    At most one event per second is stored for a group and queue, so that repeated pulls do not fill the log.
    Source: RocketMQ 4.9.8, PullMessageProcessor.generateOffsetMovedEvent.
    """

    def __init__(self, put_message: PutMessage, broker_name: str, clock: Clock) -> None:
        self._put_message = put_message
        self._broker_name = broker_name
        self._clock = clock
        self._told: dict[tuple[str, str, int], float] = {}

    def tell(self, header: PullMessage, new_offset: int) -> None:
        """Store the event that a group's pull must resume at queue offset `new_offset`. An error is only logged."""
        key, now = (header.consumer_group, header.topic, header.queue_id), self._clock.monotonic()
        if now - self._told.get(key, -EVENT_SECONDS) < EVENT_SECONDS:
            return
        if len(self._told) >= MAX_REMEMBERED:
            self._told.clear()
        self._told[key] = now
        queue = MessageQueue(header.topic, self._broker_name, header.queue_id)
        event = OffsetMoved(header.consumer_group, WireQueue.of(queue), header.queue_offset, new_offset)
        try:
            self._put_message.put(self._message(header.consumer_group, encode_body(event)))
        except MQError as error:
            logger.warning(
                "no event is stored for the moved offset of group %s in %s: %s", header.consumer_group, queue, error
            )

    def _message(self, group: str, body: bytes) -> StoredMessage:
        properties = Message(OFFSET_MOVED_TOPIC, body, tags=group, keys=group).all_properties()
        return StoredMessage(
            OFFSET_MOVED_TOPIC,
            body,
            encode_properties(properties),
            born_ms=self._clock.now_ms(),
            born_address=pack_address("127.0.0.1", 0),
        )
