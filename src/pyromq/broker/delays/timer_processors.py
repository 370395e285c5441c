"""Answers requests to cancel, count and list scheduled messages.

Source: RocketMQ 5.3.3, RecallMessageProcessor and AdminBrokerProcessor.getTimerMetrics. RocketMQ has no list.
"""

from __future__ import annotations

from heapq import nsmallest
from itertools import chain
from zlib import crc32

from pyromq.broker.delays.timer_scheduler import TimerScheduler
from pyromq.broker.shared_state import SharedState
from pyromq.clock import Clock
from pyromq.errors import NoPermission, RecallRefused, ServiceNotAvailable, StoreCorrupt, TopicNotFound
from pyromq.logs import logger_of
from pyromq.message import Property
from pyromq.net.slow_replies import in_pieces
from pyromq.remoting.bodies import ListedTimer, TimerCount, TimerCounts, TimerList, encode_body
from pyromq.remoting.codes import Permission
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import Outcome, answers
from pyromq.remoting.headers import CountTimers, ListTimers, RecallMessage, RecallMessageResponse
from pyromq.remoting.recall_handle import RecallHandle, decode_handle
from pyromq.slow_work import MAX_ROUNDS, NotInMemory, loaded, yield_slice
from pyromq.store.timers.timer_bucket import HOUR_MS, TimerBucket

logger = logger_of(__name__)

MAX_LISTED = 1_000  # limit of scheduled messages on one page of the list
LOOKED_THROUGH = 20_000  # limit of entries searched for one page, about 10 ms; a bucket is searched as a whole
TOPICS_AT_ONCE = 1_000  # topics counted before other connections may be served
MESSAGES_AT_ONCE = 10  # messages listed before other connections may be served

Places = list[tuple[int, int]]  # due time (ms) and number in the bucket, for each message


class RecallMessageProcessor:
    def __init__(self, state: SharedState) -> None:
        self._confirmation = state.confirmation
        self._timers = state.timers
        self._topics = state.topics
        self._config = state.config
        self._clock = state.clock

    @answers(RecallMessage)
    async def cancel(self, header: RecallMessage, call: Call) -> Outcome:
        """Cancel a scheduled message, which is never delivered after the reply.

        The reply waits for the flush, as that to a send.
        """
        handle = self._handle(header)
        self._confirmation.refuse_if_overloaded()
        await self._timers.cancel(handle, born_address=call.peer.packed_address)
        return self._confirmation.when_safe(Reply(RecallMessageResponse(message_id=handle.unique_key)))

    def _handle(self, header: RecallMessage) -> RecallHandle:
        """Check a request to cancel, in upstream's order, and return its decoded recall handle.

        Raises the error that refuses the request.
        """
        config = self._config
        if not config.recall:
            raise NoPermission("recall failed, operation is forbidden (broker setting recallMessageEnable)")
        if not config.permission & Permission.WRITE:
            raise ServiceNotAvailable("recall failed, broker service not available: it is not writable")
        if self._topics.find(header.topic) is None:
            raise TopicNotFound(f"recall failed, the topic[{header.topic}] not exist")
        handle = decode_handle(header.recall_handle)
        if handle.topic != header.topic:
            raise RecallRefused(f"recall failed, topic not match: the handle is for {handle.topic}")
        if handle.broker_name != config.name:
            raise RecallRefused(f"recall failed, this broker is {config.name}: the handle is for {handle.broker_name}")
        if handle.due_ms - self._clock.now_ms() > config.timer_max_delay_seconds * 1000:
            raise RecallRefused(f"recall failed, timestamp invalid: {handle.due_ms}")
        return handle


class TimerListProcessor:
    """Counts and lists scheduled messages, in slices. Messages may be added and delivered between two slices."""

    def __init__(
        self,
        timers: TimerScheduler,
        *,
        broker_name: str,
        clock: Clock,
    ) -> None:
        self._index = timers.index
        self._broker_name = broker_name
        self._clock = clock

    @answers(CountTimers)
    async def count(self, header: CountTimers, call: Call) -> Reply:
        """Return the number of scheduled messages of each topic."""
        await self._index.catch_up()
        now = self._clock.now_ms()
        counts = {}
        for number, (topic, count) in enumerate(self._index.pending.items()):
            counts[topic] = TimerCount(count, now)
            if not number % TOPICS_AT_ONCE:
                await yield_slice()
        return await in_pieces(TimerCounts(counts))

    @answers(ListTimers)
    async def list(self, header: ListTimers, call: Call) -> Reply:
        """Return a page of the scheduled messages of one topic, in order of delivery."""
        index = self._index
        await index.catch_up()
        wanted = min(max(header.count, 1), MAX_LISTED)
        place = (header.begin_ms, header.after)
        found: list[ListedTimer] = []
        looked_through = 0
        for hour in sorted(each for each in index.buckets if each >= header.begin_ms // HOUR_MS):
            bucket = index.buckets.get(hour)
            if bucket is None or not bucket.pending:
                continue
            if looked_through >= LOOKED_THROUGH:
                return _page(found, (hour * HOUR_MS, -1))
            looked_through += bucket.count
            try:
                places = await self._places(bucket, header.topic, place, most=wanted + 1)
                for count, (due_ms, number) in enumerate(places, 1):
                    if len(found) == wanted:
                        return _page(found, place)
                    if not index.holds(bucket):
                        break
                    place = (due_ms, number)
                    entry = await self._looked_up(bucket, number, header.topic)
                    if entry is not None:
                        found.append(entry)
                    if not count % MESSAGES_AT_ONCE:
                        await yield_slice()
            finally:
                index.rest(bucket)
        return _page(found, None)

    async def _places(self, bucket: TimerBucket, topic: str, after: tuple[int, int], *, most: int) -> Places:
        """Return due times and numbers of the topic's messages after the place `after`, in order of delivery.

        At most `most` messages are returned.
        """
        first: Places = []
        for places in bucket.waiting_of(crc32(topic.encode()), after[0]):
            first = nsmallest(most, chain(first, (each for each in places if each > after)))
            await yield_slice()
            if not self._index.holds(bucket):
                return []
        return first

    async def _looked_up(self, bucket: TimerBucket, number: int, topic: str) -> ListedTimer | None:
        """Return the list entry of a message.

        Return None if the message is of another topic, damaged, delivered or cancelled.
        """
        for _ in range(MAX_ROUNDS):
            try:
                return self._entry(bucket, number, topic, wait=False)
            except NotInMemory as lack:
                unread = lack.to_load
            await loaded(unread)
            if not self._index.holds(bucket):
                return None
        return self._entry(bucket, number, topic, wait=True)

    def _entry(self, bucket: TimerBucket, number: int, topic: str, *, wait: bool) -> ListedTimer | None:
        try:
            message = self._index.message(bucket, number, wait=wait)
        except StoreCorrupt as error:
            logger.warning("%s: scheduled message %d is not listed: %s", bucket.files[0].path, number, error)
            return None
        properties = message.properties
        if properties.get(Property.REAL_TOPIC) != topic:
            return None
        key, due_ms = properties.get(Property.UNIQUE_KEY), int(properties[Property.TIMER_OUT_MS])
        return ListedTimer(
            topic,
            int(properties.get(Property.REAL_QUEUE_ID, "0")),
            due_ms,
            message.store_ms,
            len(message.stored_body),
            key,
            RecallHandle(topic, self._broker_name, due_ms, key).encode() if key else None,
            properties.get(Property.KEYS),
            properties.get(Property.TAGS),
            message.offset_message_id,
        )


def _page(timers: list[ListedTimer], after: tuple[int, int] | None) -> Reply:
    body = TimerList(timers) if after is None else TimerList(timers, *after)
    return Reply(body=encode_body(body))
