"""Answers what is asked about messages that wait for their time: cancel one, count, list.

Source: RocketMQ 5.3.3, RecallMessageProcessor and AdminBrokerProcessor.getTimerMetrics; the list is ours.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future
from heapq import nsmallest
from zlib import crc32

from pyromq.broker.config import BrokerConfig
from pyromq.broker.confirmation import Confirmation
from pyromq.broker.delays.timer_delivery import TimerDelivery
from pyromq.broker.topics import Topics
from pyromq.clock import Clock
from pyromq.errors import NoPermission, RecallRefused, ResponseCode, ServiceNotAvailable, StoreCorrupt, TopicNotFound
from pyromq.message import Property
from pyromq.remoting.bodies import TimerCount, TimerCounts, TimerEntry, TimerList, encode_body
from pyromq.remoting.codes import Permission
from pyromq.remoting.command import Answered, Call, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import CountTimers, ListTimers, RecallMessage, RecallMessageResponse
from pyromq.remoting.recall_handle import RecallHandle, decode_handle
from pyromq.store.timers.timer_bucket import HOUR_MS, TimerBucket

logger = logging.getLogger(__name__)

MOST_LISTED = 1_000  # on one page
LOOKED_THROUGH = 20_000  # entries for one page, about 5 ms; but a bucket is never left in the middle


class Recalling:
    """Cancels, counts and lists."""

    def __init__(
        self, timers: TimerDelivery, topics: Topics, *, confirmation: Confirmation, config: BrokerConfig, clock: Clock
    ) -> None:
        self._confirmation = confirmation
        self._timers = timers
        self._topics = topics
        self._config = config
        self._clock = clock

    @answers(RecallMessage)
    def cancel(self, header: RecallMessage, call: Call) -> Answered | Future[Answered]:
        """Cancel a message that waits; confirmed as a send would be, it is never delivered."""
        handle = self._handle(header)
        self._confirmation.refuse_if_overloaded()
        self._timers.cancel(handle, born_address=call.peer.packed_address)
        return self._confirmation.when_safe(Reply(RecallMessageResponse(message_id=handle.unique_key)))

    def _handle(self, header: RecallMessage) -> RecallHandle:
        """Check a request in upstream's order, and return what its handle says."""
        config = self._config
        if not config.recall:
            raise NoPermission("recall failed, operation is forbidden (broker setting recallMessageEnable)")
        if config.broker_id:
            raise ServiceNotAvailable("recall failed, this broker is no master", ResponseCode.SLAVE_NOT_AVAILABLE)
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

    @answers(CountTimers)
    def count(self, header: CountTimers, call: Call) -> Reply:
        """How many messages wait, by topic."""
        self._timers.filed.catch_up()
        now = self._clock.now_ms()
        counts = {topic: TimerCount(count, now) for topic, count in sorted(self._timers.filed.pending.items())}
        return Reply(body=encode_body(TimerCounts(counts)))

    @answers(ListTimers)
    def list(self, header: ListTimers, call: Call) -> Reply:
        """A page of the messages of a topic that wait, in order of delivery."""
        self._timers.filed.catch_up()
        wanted = min(max(header.count, 1), MOST_LISTED)
        place = (header.begin_ms, header.after)
        found: list[TimerEntry] = []
        topic_hash, looked_through = crc32(header.topic.encode()), 0
        for hour in sorted(self._timers.filed.buckets):
            bucket = self._timers.filed.buckets[hour]
            if hour < header.begin_ms // HOUR_MS or not bucket.pending:
                continue
            if looked_through >= LOOKED_THROUGH:
                return _page(found, (hour * HOUR_MS, -1))
            looked_through += bucket.count
            places = (each for each in bucket.waiting_of(topic_hash, place[0]) if each > place)
            for due_ms, number in nsmallest(wanted + 1, places):
                if len(found) == wanted:
                    return _page(found, place)
                place = (due_ms, number)
                if (entry := self._entry(bucket, number, header.topic)) is not None:
                    found.append(entry)
            self._timers.filed.rest(bucket)
        return _page(found, None)

    def _entry(self, bucket: TimerBucket, number: int, topic: str) -> TimerEntry | None:
        """Return what is told of a message; None for one of another topic, or a damaged one."""
        try:
            message = self._timers.filed.message(bucket, number)
        except StoreCorrupt as error:
            logger.warning("timer %d of those due in hour %d is not listed: %s", number, bucket.hour, error)
            return None
        properties = message.properties
        if properties.get(Property.REAL_TOPIC) != topic:
            return None
        key, due_ms = properties.get(Property.UNIQUE_KEY), int(properties[Property.TIMER_OUT_MS])
        return TimerEntry(
            topic,
            int(properties.get(Property.REAL_QUEUE_ID, "0")),
            due_ms,
            message.store_ms,
            len(message.stored_body),
            key,
            RecallHandle(topic, self._config.name, due_ms, key).encode() if key else None,
            properties.get(Property.KEYS),
            properties.get(Property.TAGS),
        )


def _page(timers: list[TimerEntry], after: tuple[int, int] | None) -> Reply:
    body = TimerList(timers) if after is None else TimerList(timers, *after)
    return Reply(body=encode_body(body))
