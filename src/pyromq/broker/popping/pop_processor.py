"""Answers pops and notifications: hands out messages of a topic now, or when messages arrive.

Source: RocketMQ 5.3.3, PopMessageProcessor, NotificationProcessor, PollingInfoProcessor.
"""

from __future__ import annotations

from functools import partial

import msgspec

from pyromq.broker.consuming.long_polls import LONGEST_SECONDS
from pyromq.broker.popping.in_flight import Pop, PoppedQueue
from pyromq.broker.popping.pop_admission import ANY_QUEUE, PopAdmission, check_count, check_ids, check_invisible
from pyromq.broker.popping.pop_table import RENEWED_MS, PopTable
from pyromq.broker.popping.pop_waiting import PopWaiting
from pyromq.broker.shared_state import SharedState
from pyromq.errors import ResponseCode, StoreCorrupt, StoreError
from pyromq.filter.filter import Filter, check_length, filter_of
from pyromq.message import Property, StoredMessage, encode_properties
from pyromq.names import pop_retry_topic, retry_topic
from pyromq.permissions.account import SUB, resource_name
from pyromq.permissions.authentication import denied
from pyromq.record import MAX_PROPERTIES_SIZE, decode_all, encode, queue_offset_of, unpack_size
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import Later, Peer, answers
from pyromq.remoting.headers import (
    Notification,
    NotificationResponse,
    PollingInfo,
    PollingInfoResponse,
    PopMessage,
    PopMessageResponse,
)
from pyromq.remoting.receipt_handle import (
    NORMAL,
    ORDERLY_REVIVE_QUEUE,
    RETRY,
    ReceiptHandle,
    bits_of,
    join_counts,
    join_offsets,
    join_starts,
)
from pyromq.slow_work import NotInMemory, PagesToLoad, SlowWork, when_loaded, yield_slice
from pyromq.store.message_store import ReadResult, ReadStatus

_RETRIES_FIRST = 5  # every fifth pop reads the retry topic first, the other pops read it last
_MAX_ROUNDS = 10_000  # limit of `rounds`, which is cleared at this size
_FROM_END = 1  # init mode: a new group begins at the end
MAX_BYTES = 1 << 18  # bytes behind which a pop reads no further queue: a reply must fit a frame of 16 MiB
# Results of a read without messages, after which the queue may still have messages behind `next_offset`.
_PASSED = (
    *(ReadStatus.NO_MATCHED_MESSAGE, ReadStatus.MESSAGE_WAS_REMOVING, ReadStatus.OFFSET_FOUND_NULL),
    *(ReadStatus.OFFSET_TOO_SMALL, ReadStatus.OFFSET_OVERFLOW_BADLY),
)


class PopProcessor:
    """Hands out messages. `PopWaiting` keeps the pops that find no message and may wait."""

    def __init__(self, state: SharedState, table: PopTable, waiting: PopWaiting, admission: PopAdmission) -> None:
        self._store = state.store
        self._topics = state.topics
        self._statistics = state.statistics
        self._permissions = state.permissions
        self._config = state.config
        self._clock = state.clock
        self._table = table
        self._waiting = waiting
        self._admission = admission
        # group, topic -> number of pops, which decides the order of queues
        self.rounds: dict[tuple[str, str], int] = {}

    @answers(PopMessage)
    def pop(self, header: PopMessage, call: Call) -> Reply | SlowWork[Reply | Later] | Later:
        check_count(header.max_count)
        check_invisible(header.invisible_ms)
        check_ids(header.renewed_for, header.attempt_id)
        wanted = self.subscription(header, call.peer)
        try:
            round_ = self._pop(header, wanted)
        except NotInMemory as lack:
            return self._pop_slowly(lack.to_load, header, wanted, call)
        if not round_.records and round_.has_more:
            return self._pop_slowly([], header, wanted, call)
        return self._answer(header, round_) if round_.records else self._park(header, wanted, call)

    def subscription(self, header: PopMessage, peer: Peer | None) -> Filter:
        """Check the request, and return its filter. It is called again when a waiting pop is resumed."""
        self._admission.check(header.consumer_group, header.topic, header.queue_id, peer)
        check_length(header.expression, self._config.limits.subscription_length)
        return filter_of(
            header.expression_type or None, header.expression or "*", by_properties=self._config.property_filter
        )

    async def _pop_slowly(self, to_load: PagesToLoad, header: PopMessage, wanted: Filter, call: Call) -> Reply | Later:
        """Pop when the records are not in memory, or the filter refuses many messages."""
        pop = partial(self._pop_if_open, header, wanted, call.peer)
        round_ = await when_loaded(to_load, pop)
        while not round_.records and round_.has_more:
            await yield_slice()
            try:
                round_ = pop()
            except NotInMemory as lack:
                round_ = await when_loaded(lack.to_load, pop)
        if call.peer.closed:
            return self._nothing(header)
        return self._answer(header, round_) if round_.records else self._park(header, wanted, call)

    def _pop_if_open(self, header: PopMessage, wanted: Filter, peer: Peer) -> _Round:
        """Pop, unless the connection has closed meanwhile: no client would get the messages."""
        return _Round(0, 0) if peer.closed else self._pop(header, wanted)

    def _park(self, header: PopMessage, wanted: Filter, call: Call) -> Reply | Later:
        left_ms = self._left_ms(header)
        if left_ms <= 0:
            return self._nothing(header)
        return self._waiting.park(
            *(header, wanted, partial(self._resume, header, call)),
            seconds=left_ms / 1000,
            peer=call.peer,
        )

    def _resume(self, header: PopMessage, call: Call, is_last: bool) -> Reply | None:
        """Pop for a waiting request. Topic, group and the account's rights are checked again."""
        wanted = self.subscription(header, call.peer)
        if call.account is not None:
            self.check_rights(header.consumer_group, header.topic, call.account)
        try:
            round_ = self._pop(header, wanted)
        except NotInMemory:  # the consumer's next pop loads the pages
            return self._nothing(header)
        if round_.records:
            return self._answer(header, round_)
        # One read does not scan all messages of the queue. The consumer's next pop reads the following messages.
        return self._nothing(header) if is_last or round_.has_more else None

    def check_rights(self, group: str, topic: str, account: str) -> None:
        """Raise `AccessDenied` if the account has lost the right to pop a topic."""
        lacking = self._permissions.lacks(account, [(topic, SUB), (retry_topic(group), SUB)])
        if lacking is not None:
            raise denied(f"account {account} has no SUB on {resource_name(lacking[0])} any more")

    def _nothing(self, header: PopMessage) -> Reply:
        self._statistics.count_get_miss()
        response = PopMessageResponse(
            pop_ms=self._clock.now_ms(), invisible_ms=header.invisible_ms, revive_queue=0, rest=0
        )
        return Reply(response, code=ResponseCode.POLLING_TIMEOUT, remark="NO_MESSAGE_IN_QUEUE")

    # -- one round over the queues

    def _pop(self, header: PopMessage, wanted: Filter) -> _Round:
        """Hand out messages of the topic's queues, up to the request's limit.

        Raises `NotInMemory`, `PopsInFlight` or `StoreError`, with nothing handed out.
        """
        table, store = self._table, self._store
        table.check_quota(header.consumer_group)
        queues = self._queues(header)
        if header.order:
            queues = [queue for queue in queues if not self._is_held(queue, header)]
        pop_ms = max([self._clock.now_ms(), *[queue.earliest_ms for queue in queues]])
        round_ = _Round(pop_ms, header.max_count)
        most = self._config.limits.in_flight
        for queue in queues:
            end = store.max_offset(queue.topic, queue.queue_id)
            if queue.next_offset == end:
                continue
            room = min(round_.room, most - queue.in_flight)
            if room <= 0:
                round_.rest += max(0, end - queue.next_offset)
                continue
            try:
                found = store.read(queue.topic, queue.queue_id, queue.next_offset, room, wanted=wanted)
                if found.status is ReadStatus.FOUND:
                    self._take(header, queue, found, round_)
            except (NotInMemory, StoreError):
                if not round_.records:
                    raise
                break  # the next pop loads the pages, or raises the error
            if found.status is ReadStatus.FOUND:
                self._statistics.count_get(header.consumer_group, queue.topic, found.count, found.size)
            elif found.status in _PASSED:
                table.skip_to(queue, found.next_offset)
                round_.has_more |= found.next_offset < found.max_offset
            elif queue.next_offset and not found.max_offset:  # the topic was deleted and created again
                table.skip_to(queue, 0)
            round_.rest += max(0, found.max_offset - queue.next_offset)
        return round_

    def _queues(self, header: PopMessage) -> list[PoppedQueue]:
        """Return the queues to read. Each pop begins at the next queue."""
        group, name, retries = header.consumer_group, header.topic, pop_retry_topic(header.consumer_group, header.topic)
        key = group, name
        if len(self.rounds) >= _MAX_ROUNDS:
            self.rounds.clear()
        number = self.rounds[key] = self.rounds.get(key, 0) + 1
        if header.queue_id != ANY_QUEUE:
            queues = [self._open(header, name, header.queue_id)]
        else:
            topic = self._topics.find(name)
            count = 0 if topic is None else topic.read_queues
            first = number % count if count else 0
            known = self._table.in_flight.queues(group, name)
            ids = (*range(first, count), *range(first))
            queues = [known.get(queue_id) or self._open(header, name, queue_id) for queue_id in ids]
        if not header.order and self._topics.find(retries) is not None:
            queues.insert(len(queues) if number % _RETRIES_FIRST else 0, self._open(header, retries, 0))
        return queues

    def _open(self, header: PopMessage, topic: str, queue_id: int) -> PoppedQueue:
        queue = self._table.in_flight.find(header.consumer_group, topic, queue_id)
        if queue is not None:
            return queue
        first = self._store.min_offset(topic, queue_id)
        wants_end = header.init_mode == _FROM_END and topic == header.topic
        # A recent first message may be older than the group's first pop, and meant for the group.
        if wants_end and not self._store.reading.begins_nearby(topic, queue_id):
            first = self._store.max_offset(topic, queue_id)
        return self._table.open_queue(header.consumer_group, topic, queue_id, first=first)

    def _is_held(self, queue: PoppedQueue, header: PopMessage) -> bool:
        """Return whether messages of an earlier pop block an orderly queue.

        A request with the attempt id of the earlier pop gets the messages again, as the response was lost.
        """
        if not queue.in_flight:
            return False
        if header.attempt_id is None or header.attempt_id != queue.attempt_id:
            return True
        self._table.rewind(queue)
        return False

    def _take(self, header: PopMessage, queue: PoppedQueue, found: ReadResult, round_: _Round) -> None:
        """Hand out the messages that a read found."""
        if queue.topic == header.topic:
            offsets = _offsets_of(found, queue)
            records: list[memoryview] = found.records
            retry = NORMAL
        else:
            retried = self._retried(header, queue, found, round_.pop_ms)
            if not retried:
                self._table.skip_to(queue, found.next_offset)
                round_.has_more |= found.next_offset < found.max_offset
                return
            offsets, records, retry = list(retried), [memoryview(each) for each in retried.values()], RETRY
        invisible_ms = header.invisible_ms if header.renewed_for is None else RENEWED_MS
        start, span = offsets[0], offsets[-1] + 1 - offsets[0]
        pop = Pop(
            *(queue, start, (1 << span) - 1 if span == len(offsets) else bits_of(offsets, start)),
            pop_ms=round_.pop_ms,
            due_ms=round_.pop_ms + invisible_ms,
            is_orderly=bool(header.order),
            client_id=header.renewed_for,
        )
        self._table.hand_out(pop, found.next_offset)
        place = retry, queue.queue_id
        round_.records += records
        round_.starts[place] = start
        round_.offsets[place] = offsets
        round_.room = 0 if sum(map(len, round_.records)) >= MAX_BYTES else round_.room - len(offsets)
        if header.order:
            queue.attempt_id = header.attempt_id
            round_.tries[place] = {offset: queue.tries.get(offset, 0) for offset in offsets}

    def _retried(self, header: PopMessage, queue: PoppedQueue, found: ReadResult, pop_ms: int) -> dict[int, bytes]:
        """Return messages of the retry topic as records of the popped topic, each with its receipt handle, by offset.

        Groups and topics whose joined names are equal share a retry topic. Messages of other topics are left out.
        """
        messages = self._decoded(queue, found)
        messages = [each for each in messages if each.properties.get(Property.RETRY_TOPIC) in (None, header.topic)]
        return {
            message.queue_offset: encode(_with_handle(message, header, self._config.name, messages[0], pop_ms))
            for message in messages
        }

    def _decoded(self, queue: PoppedQueue, found: ReadResult) -> list[StoredMessage]:
        """Return the messages that a read found. Damaged messages are left out: they must not block the queue."""
        try:
            return [message for view in found.records for message in decode_all(view)]
        except StoreCorrupt:
            offsets = range(queue.next_offset, found.next_offset)
            found_at = (self._store.message(queue.topic, queue.queue_id, offset) for offset in offsets)
            return [message for message in found_at if message is not None]

    def _answer(self, header: PopMessage, round_: _Round) -> Reply:
        response = PopMessageResponse(
            pop_ms=round_.pop_ms,
            invisible_ms=header.invisible_ms,
            revive_queue=ORDERLY_REVIVE_QUEUE if header.order else 0,
            rest=round_.rest,
            start_offset_info=join_starts(round_.starts),
            message_offset_info=join_offsets(round_.offsets),
            order_count_info=join_counts(round_.tries) if header.order else None,
            is_renewed=True if header.renewed_for is not None else None,
        )
        return Reply(response, round_.records, remark="FOUND")

    # -- without messages

    def _left_ms(self, header: PopMessage | Notification) -> float:
        """Return how long a request may still wait: the requested time since its birth, at most as long as a pull."""
        left_ms = min(header.poll_ms, header.born_ms + header.poll_ms - self._clock.now_ms())
        return min(left_ms, LONGEST_SECONDS * 1000)

    @answers(Notification)
    def notify(self, header: Notification, call: Call) -> Reply | Later:
        """Reply when there is a message to pop. One message may be reported to several requests."""
        self._admission.check(header.consumer_group, header.topic, header.queue_id, call.peer)
        if self._has_message(header):
            return _notice(True)
        left_ms = self._left_ms(header)
        if left_ms <= 0:
            return _notice(False)
        return self._waiting.park(
            *(header, filter_of(None, "*"), partial(self._notify_again, header, call)),
            seconds=left_ms / 1000,
            peer=call.peer,
        )

    def _notify_again(self, header: Notification, call: Call, is_last: bool) -> Reply | None:
        self._admission.check(header.consumer_group, header.topic, header.queue_id, call.peer)
        has_message = self._has_message(header)
        return _notice(has_message) if has_message or is_last else None

    def _has_message(self, header: Notification) -> bool:
        topic = self._topics.find(header.topic)
        ids = [header.queue_id] if header.queue_id != ANY_QUEUE else range(0 if topic is None else topic.read_queues)
        places = [(header.topic, queue_id) for queue_id in ids]
        places.append((pop_retry_topic(header.consumer_group, header.topic), 0))
        return any(self._has_next(header, *place) for place in places)

    def _has_next(self, header: Notification, topic: str, queue_id: int) -> bool:
        queue = self._table.in_flight.find(header.consumer_group, topic, queue_id)
        if queue is None:
            next_offset = self._table.committed(header.consumer_group, topic, queue_id)
        elif queue.in_flight and header.order:
            return False
        else:
            next_offset = queue.next_offset
        return next_offset < self._store.max_offset(topic, queue_id)

    @answers(PollingInfo)
    def polling_info(self, header: PollingInfo, call: Call) -> Reply:
        """Return how many pops of the group wait for messages of the topic, in any of its queues."""
        self._admission.check(header.consumer_group, header.topic, header.queue_id, call.peer)
        return Reply(PollingInfoResponse(waiting=self._waiting.count(header.consumer_group, header.topic)))


class _Round(msgspec.Struct):
    """The messages that one pop takes from the queues; `rest` is the number of messages left there.

    With `has_more`, a queue has messages after the messages that the filter refused.
    """

    pop_ms: int
    room: int  # how many more messages the pop may take
    records: list[memoryview] = []
    starts: dict[tuple[str, int], int] = {}
    offsets: dict[tuple[str, int], list[int]] = {}
    tries: dict[tuple[str, int], dict[int, int]] = {}
    rest: int = 0
    has_more: bool = False


def _offsets_of(found: ReadResult, queue: PoppedQueue) -> list[int]:
    """Return the queue offsets of the messages that a read found. Raises `StoreCorrupt` for a damaged record."""
    first, end = queue.next_offset, found.next_offset
    if end - first == found.count:
        return list(range(first, end))
    offsets = []
    for view in found.records:
        position = 0
        while position < len(view):
            size, offset = unpack_size(view, position)[0], queue_offset_of(view, position)
            if size <= 0 or not first <= offset < end:
                raise StoreCorrupt(
                    f"queue {queue.queue_id} of topic {queue.topic} has a damaged message between offsets {first} and"
                    f" {end}; a check of the broker's store names it"
                )
            offsets.append(offset)
            position += size
    return offsets


def _with_handle(
    message: StoredMessage, header: PopMessage, broker_name: str, first: StoredMessage, pop_ms: int
) -> StoredMessage:
    """Return a message of the retry topic as a message of the popped topic, with its receipt handle as a property."""
    handle = ReceiptHandle(
        *(first.queue_offset, pop_ms, header.invisible_ms, 0, RETRY, broker_name),
        *(message.queue_id, message.queue_offset),
    )
    properties = message.properties | {Property.POP_CHECK_POINT: handle.encode()}
    text = encode_properties(properties)
    if len(text.encode()) <= MAX_PROPERTIES_SIZE:
        message.property_text = text
    message.topic = header.topic
    return message


def _notice(has_message: bool) -> Reply:
    return Reply(NotificationResponse(has_message=has_message))
