"""Redelivers messages whose invisible time is over: as copies in the pop retry topic, or as dead letters.

Source: RocketMQ 5.3.3, PopReviveService.
"""

from __future__ import annotations

from concurrent.futures import Future

from pyromq.broker.cold_reads import Fetching
from pyromq.broker.popping.in_flight import Pop
from pyromq.broker.popping.pop_table import LONGEST_RENEWED_MS, RENEWED_MS, PopTable
from pyromq.broker.popping.pop_waiting import PopWaiting
from pyromq.broker.shared_state import SharedState
from pyromq.errors import MessageRefused, MQError, StoreCorrupt, StoreNotWritable
from pyromq.logs import logger_of
from pyromq.message import Property, StoredMessage, encode_properties
from pyromq.names import RETRY_PREFIX, dead_letter_topic, pop_retry_topic
from pyromq.net.tasks import soon_in_this_loop
from pyromq.remoting.bodies import GroupConfig
from pyromq.remoting.command import Reply

logger = logger_of(__name__)

SLICE_SECONDS = 0.001  # longest time of one step, before requests are answered
COPY_MS = 30_000  # longest wait until a copy is flushed and replicated; then the message is copied again
# Properties that a copy has besides the message's own.
_OWN_PROPERTIES = (
    *(Property.FIRST_POP_TIME, Property.ORIGIN_MESSAGE_ID, Property.RETRY_TOPIC),
    *(Property.DEAD_LETTER_TOPIC, Property.DEAD_LETTER_ID),
)


class Redelivery:
    """Redelivers the messages of pops that are due. A message is copied first, then recorded as finished.

    After a crash between both steps the message is copied again.
    """

    def __init__(self, state: SharedState, table: PopTable, waiting: PopWaiting) -> None:
        self._store = state.store
        self._put_message = state.put_message
        self._confirmation = state.confirmation
        self._topics = state.topics
        self._groups = state.groups
        self._connections = state.connections
        self._statistics = state.statistics
        self._clock = state.clock
        self._table = table
        self._waiting = waiting
        self._fetching = Fetching(state.cold_reads, table.alarm)

    def step(self) -> float | None:
        """Handle pops that are due, for about 1 ms. Return the seconds until the next call.

        Return None if no message is in flight, or if records must be loaded first. Raises `StoreNotWritable`; the
        messages are still in flight, and the step must be called again.
        """
        table = self._table
        end = self._clock.monotonic() + SLICE_SECONDS
        while (pop := table.in_flight.first_due(now_ms := self._clock.now_ms())) is not None:
            if pop.is_orderly:
                if table.release(pop):
                    self._waiting.wake(pop.queue.group, pop.queue.topic)
            elif self._is_renewed(pop, now_ms):
                table.in_flight.prolong(pop, now_ms + RENEWED_MS)
            elif self._lacks(pop):
                return None  # the alarm fires when the records are loaded
            else:
                self._redeliver(pop)
            if self._clock.monotonic() >= end:
                return 0.0
        due_ms = table.in_flight.next_due_ms()
        return None if due_ms is None else max(0, due_ms - self._clock.now_ms()) / 1000

    def _is_renewed(self, pop: Pop, now_ms: int) -> bool:
        if pop.client_id is None or now_ms - pop.pop_ms >= LONGEST_RENEWED_MS:
            return False
        group = self._connections.consumers(pop.queue.group)
        # If the member has connected again since the pop, the response with the messages may be lost.
        return group is not None and any(
            member.client_id == pop.client_id and member.since_ms <= pop.pop_ms for member in group.members
        )

    def _lacks(self, pop: Pop) -> bool:
        queue = pop.queue
        offsets = pop.leased_offsets()
        where = (queue.topic, queue.queue_id, offsets[0], offsets[-1] + 1 - offsets[0])
        return self._fetching.is_under_way or self._fetching.lacks(self._store.reading.to_load(*where))

    def _redeliver(self, pop: Pop) -> None:
        """Store copies of a pop's messages, which are finished once the copies are flushed and replicated.

        A message whose copy is refused is copied again after `COPY_MS`. Raises `StoreNotWritable`; the messages that
        were copied before are not copied again.
        """
        bits, is_waiting, full = 0, False, None
        for offset in pop.leased_offsets():
            try:
                self._redeliver_at(pop, offset)
                bits |= 1 << offset - pop.start
            except StoreNotWritable as error:
                full = error
                break
            except MQError as error:
                text = "offset %d of queue %d of topic %s is redelivered later to group %s: %s"
                logger.warning(text, offset, pop.queue.queue_id, pop.queue.topic, pop.queue.group, error)
        if bits:
            is_waiting = self._finish_when_safe(pop, bits)
        if pop.leased and (is_waiting or full is None):
            self._table.in_flight.prolong(pop, self._clock.now_ms() + COPY_MS)
        if full is not None:
            raise full

    def _redeliver_at(self, pop: Pop, offset: int) -> None:
        message = self._message(pop, offset)
        if message is not None:
            self._put(self._copy(pop, message))

    def _finish_when_safe(self, pop: Pop, bits: int) -> bool:
        """Finish copied messages once the copies are flushed and replicated. Return whether they must wait for that."""
        safe = self._confirmation.when_safe(Reply())
        if isinstance(safe, Reply):
            self._table.finish(pop, bits)
            return False
        run_soon = soon_in_this_loop()
        safe.add_done_callback(lambda safe: run_soon(lambda: self._note_safe(pop, bits, safe)))
        return True

    def _note_safe(self, pop: Pop, bits: int, safe: Future[Reply]) -> None:
        if safe.exception() is None and not safe.result().code and pop.leased & bits:
            self._table.finish(pop, bits)

    def _message(self, pop: Pop, offset: int) -> StoredMessage | None:
        """Return a popped message; None if it is damaged, or retention has deleted it."""
        queue = pop.queue
        try:
            message = self._store.message(queue.topic, queue.queue_id, offset)
        except StoreCorrupt as error:
            logger.error("a message in flight for group %s is dropped: %s", queue.group, error)  # noqa: TRY400 - the text says all
            return None
        if message is None:
            logger.warning(
                "offset %d of queue %d of topic %s, in flight for group %s, is dropped: retention has deleted it",
                *(offset, queue.queue_id, queue.topic, queue.group),
            )
        return message

    def _copy(self, pop: Pop, message: StoredMessage) -> StoredMessage:
        queue = pop.queue
        group = self._groups.find(queue.group) or GroupConfig(name=queue.group)
        properties = dict(message.properties)
        popped_topic = queue.topic
        if queue.topic.startswith(RETRY_PREFIX):
            popped_topic = properties.get(Property.RETRY_TOPIC, queue.topic)
        properties.setdefault(Property.RETRY_TOPIC, popped_topic)
        properties.setdefault(Property.ORIGIN_MESSAGE_ID, message.offset_message_id)
        properties.setdefault(Property.FIRST_POP_TIME, str(pop.pop_ms))
        if message.reconsume_times >= group.retry_max_times:
            topic = dead_letter_topic(queue.group)
            properties[Property.DEAD_LETTER_TOPIC] = popped_topic
            properties[Property.DEAD_LETTER_ID] = message.message_id
        elif queue.topic.startswith(RETRY_PREFIX):
            topic = queue.topic
        else:
            topic = pop_retry_topic(queue.group, queue.topic)
        self._statistics.count_send_back(popped_topic, queue.group)
        return StoredMessage(
            self._topics.for_group_retry(topic, 1).name,
            message.stored_body,
            encode_properties(properties),
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_ms=message.born_ms,
            born_address=message.born_address,
            reconsume_times=message.reconsume_times + 1,
        )

    def _put(self, copy: StoredMessage) -> None:
        try:
            self._put_message.put(copy)
        except MessageRefused:  # the properties exceed the limit with the copy's own: leave those out
            properties = copy.properties
            for name in _OWN_PROPERTIES:
                properties.pop(name, None)
            copy.property_text = encode_properties(properties)
            self._put_message.put(copy)
