"""Answers sends: checks, topic, properties, then one append; the answer comes now or when the record is flushed."""

from __future__ import annotations

import random
from concurrent.futures import Future
from typing import cast

from pyromq.broker.config import BrokerConfig
from pyromq.broker.delays.timer_records import Ticket
from pyromq.broker.flushed import R, when_saved
from pyromq.broker.members.consumer_groups import Groups
from pyromq.broker.statistics import Statistics
from pyromq.broker.topics import FAQ, Topics, describe
from pyromq.broker.waits import DELAY, TIMER, TRANSACTION, Waits, asks_to_wait, is_too_long, too_large
from pyromq.clock import Clock
from pyromq.errors import (
    BrokerError,
    GroupNotFound,
    MessageRefused,
    MQError,
    NoPermission,
    ResponseCode,
    StoreError,
    SystemBusy,
    TopicNotFound,
)
from pyromq.message import PAIRS, Property, StoredMessage, SysFlag, decode_properties, encode_properties
from pyromq.names import (
    NOT_FOR_CLIENTS,
    RETRY_PREFIX,
    check_topic,
    dead_letter_topic,
)
from pyromq.record import decode_batch
from pyromq.remoting.bodies import SINGLE_TAG, TopicConfig
from pyromq.remoting.codes import MAX_RECONSUME_VERSION, UNIT, UNIT_SUBSCRIPTION, Permission
from pyromq.remoting.command import Answered, Call, FilledReply, Reply, ReplyTemplate
from pyromq.remoting.dispatch import answers, answers_runs, refusal
from pyromq.remoting.headers import (
    SendBatchMessage,
    SendHalfRun,
    SendMessage,
    SendMessageResponse,
    SendRefusal,
    SendReplyMessage,
)
from pyromq.store.config import FlushMode
from pyromq.store.message_store import MessageStore

MAX_UNCONFIRMED = 10_000  # sends that wait for the disk; upstream's send queue has this length
STUCK_SECONDS = 1.0  # no progress of the disk for this long: refuse instead of queueing (osPageCacheBusyTimeOutMills)

_WAIT = Property.WAIT + "\x01"


# A message to store, whether its sender waits for the disk, the queue it is told, its ticket if it waits for a time.
_Prepared = tuple[StoredMessage, bool, int, Ticket | None]


class Sending:
    """Stores what producers send."""

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        groups: Groups,
        *,
        waits: Waits,
        statistics: Statistics,
        config: BrokerConfig,
        clock: Clock,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._statistics = statistics
        self._config = config
        self._clock = clock
        self._find_topic = topics.find
        self._divert = waits.divert
        self._divert_until = waits.divert_until
        self._parked = waits.parked
        self._append = store.append
        self._append_batch = store.append_batch
        self._count_put = statistics.count_put
        self._checked_topics: set[str] = set()
        self._cluster_pair = f"{Property.CLUSTER}\x01{config.cluster}"
        self._joined_cluster_pair = PAIRS + self._cluster_pair
        self._waits_for_flush = store.config.flush is FlushMode.SYNC
        self._unsaved_topics = topics.unsaved
        # Two counts with one writer each: this thread asks for confirmation, the flusher's thread gives it.
        self._asked = 0
        self._confirmed = 0
        self._last_progress = 0.0
        self._answer: ReplyTemplate | None = None
        self._answer_with_handle: ReplyTemplate

    @answers(SendMessage)
    def send(self, header: SendMessage, call: Call) -> Answered | Future[Answered]:
        if header.batch:
            return self.send_batch(header, call)
        try:
            prepared = self._message(header, call)
            self._append(prepared[0])
        except MQError as error:
            return self._refused(error)
        reply = self._stored(*prepared)
        return self.when_saved(header.topic, reply) if self._unsaved_topics else reply

    @answers_runs(SendMessage)
    def send_run(self, calls: list[Call]) -> list[Answered | Future[Answered]]:
        """Store the messages of a burst by one write; each call gets its own answer, as from `send`."""
        headers = [cast(SendMessage, call.header) for call in calls]
        if any(header.batch for header in headers):
            return [self.send(header, call) for header, call in zip(headers, calls, strict=True)]
        outcomes: list[_Prepared | Reply] = []
        for header, call in zip(headers, calls, strict=True):
            try:
                outcomes.append(self._message(header, call))
            except MQError as error:
                outcomes.append(self._refused(error))
        try:
            self._append_batch([outcome[0] for outcome in outcomes if type(outcome) is tuple])
        except MessageRefused:  # too much for one write, or one that fits no record; nothing is stored yet
            return [self.send(header, call) for header, call in zip(headers, calls, strict=True)]
        except MQError as error:
            return [outcome if isinstance(outcome, Reply) else self._refused(error) for outcome in outcomes]
        replies = [outcome if isinstance(outcome, Reply) else self._stored(*outcome) for outcome in outcomes]
        if self._unsaved_topics:
            return [self.when_saved(header.topic, each) for header, each in zip(headers, replies, strict=True)]
        return replies

    def _refused(self, error: MQError) -> Reply:
        """Say no; as upstream, with the fields that clients look for in every answer to a send."""
        if isinstance(error, StoreError):
            self._statistics.count_put_failed()
        reply = refusal(error)
        reply.header = SendRefusal(region=self._config.region, trace_on="true")
        return reply

    def _message(self, header: SendMessage, call: Call) -> _Prepared:
        """Return the message to store and what its answer depends on. Raises what refuses it."""
        if self._asked != self._confirmed:
            self._refuse_if_overloaded()
        name = header.topic
        topic = self.topic_for(header, call)
        queue_id = header.queue_id
        if queue_id < 0:
            queue_id = self.any_queue(topic)
        if name.startswith(RETRY_PREFIX):
            topic, queue_id = self._after_last_retry(header, call, topic=topic, queue_id=queue_id)
            name = topic.name
        body = call.body
        if not body or len(body) > self._config.max_message_bytes:
            raise MessageRefused(self._illegal if body else self._empty)
        text, wait = self._stored_properties(header.properties or "")
        message = StoredMessage(
            name,
            body,
            text,
            queue_id,
            header.flag,
            header.sys_flag if topic.filter_type == SINGLE_TAG else header.sys_flag | SysFlag.MULTI_TAGS,
            header.born_ms,
            call.peer.packed_address,
            header.reconsume_times or 0,
        )
        ticket = None
        if DELAY in text or TRANSACTION in text:
            ticket = self._divert(message, header)
        elif TIMER in text:
            ticket = self._divert_until(message)
        return message, wait, queue_id, ticket

    def _stored(
        self, message: StoredMessage, wait: bool, queue_id: int, ticket: Ticket | None
    ) -> Answered | Future[Answered]:
        """The answer to a send whose message is in the log."""
        self._count_put(message.topic, 1, message.size)
        template = self._answer or self._make_answers()
        values: tuple[int | bytes, ...] = (message.log_offset, queue_id, message.queue_offset)
        if ticket is not None:
            self._parked(message, ticket)
            if ticket[0]:
                template, values = self._answer_with_handle, (*values, ticket[0])
        reply = FilledReply(template, values)
        if wait and self._waits_for_flush:
            return self._when_flushed(message.log_offset + message.size, reply)
        return reply

    @answers(SendBatchMessage)
    def send_batch(self, header: SendMessage, call: Call) -> Answered | Future[Answered]:
        """Store the members in one append: consecutive queue offsets, one answer with all ids."""
        try:
            messages, wait = self._batch(header, call)
            self._append_batch(messages)
        except MQError as error:
            return self._refused(error)
        last = messages[-1]
        end = last.log_offset + last.size
        self._count_put(last.topic, len(messages), end - messages[0].log_offset)
        reply = Reply(
            SendMessageResponse(
                message_id=",".join(message.offset_message_id for message in messages),
                queue_id=last.queue_id,
                queue_offset=messages[0].queue_offset,
                region=self._config.region,
                trace_on="true",
            )
        )
        answered = self._when_flushed(end, reply) if wait and self._waits_for_flush else reply
        return self.when_saved(header.topic, answered)

    def topic_for(self, header: SendMessage | SendReplyMessage | SendHalfRun, call: Call) -> TopicConfig:
        """Check the topic in upstream's order and return its settings; creates it where that is allowed."""
        name = header.topic
        topic = self._find_topic(name)
        if topic is not None and topic.order and not self._config.permission & Permission.WRITE:
            raise NoPermission(f"the broker[{self._config.advertised_ip}] sending message is forbidden")
        if name not in self._checked_topics:
            check_topic(name)
            if name in NOT_FOR_CLIENTS:
                raise NoPermission(f"Sending message to topic[{name}] is forbidden.")
            if topic is not None:  # names of existing topics only: so the set stays as small as the table
                self._checked_topics.add(name)
        if topic is None:
            topic = self._new_topic(header, call)
        if header.queue_id >= topic.write_queues and header.queue_id >= topic.read_queues:
            raise BrokerError(
                f"request queueId[{header.queue_id}] is illegal, {describe(topic)} Producer: {call.peer.address}"
            )
        return topic

    def _new_topic(self, header: SendMessage | SendReplyMessage | SendHalfRun, call: Call) -> TopicConfig:
        """Create the topic; one for retries also where there is no pattern to create it after."""
        is_retry = header.topic.startswith(RETRY_PREFIX)
        sys_flag = (UNIT_SUBSCRIPTION if is_retry else UNIT) if header.unit_mode else 0
        try:
            return self._topics.for_send(
                header.topic,
                default_topic=header.default_topic,
                wished_queues=header.default_topic_queue_count,
                peer_address=call.peer.address,
                sys_flag=sys_flag,
            )
        except TopicNotFound:
            if not is_retry:
                raise
            return self._topics.for_group_retry(header.topic, 1, sys_flag=sys_flag)

    def any_queue(self, topic: TopicConfig) -> int:
        """Return the queue for a message whose sender leaves that to the broker."""
        if topic.write_queues < 1:
            raise BrokerError(f"there is no queue to write to, {describe(topic)}; give it one")
        return random.randrange(topic.write_queues)

    def _after_last_retry(
        self, header: SendMessage, call: Call, *, topic: TopicConfig, queue_id: int
    ) -> tuple[TopicConfig, int]:
        """A message sent to a retry topic too often goes to the group's dead letters."""
        name = header.topic.removeprefix(RETRY_PREFIX)
        group = self._groups.find(name)
        if group is None:
            raise GroupNotFound(f"subscription group not exist, {name} {FAQ}")
        most = group.retry_max_times
        if call.version >= MAX_RECONSUME_VERSION and header.max_reconsume_times is not None:
            most = header.max_reconsume_times
        if (header.reconsume_times or 0) < most:
            return topic, queue_id
        return self._topics.for_group_retry(dead_letter_topic(name), 1), 0

    def _stored_properties(self, text: str) -> tuple[str, bool]:
        """Return the text to store and whether the sender waits for the disk.

        As upstream, WAIT goes and CLUSTER comes. The text is cut, not parsed: what upstream's parser would drop
        (broken and doubled pairs) every reader of the stored text drops as well.
        """
        wait = True
        if _WAIT in text:
            before, _, rest = text.partition(_WAIT)
            if before and before[-1] != PAIRS:
                return self._rewritten(text)
            value, _, rest = rest.partition(PAIRS)
            text = before + rest
            if _WAIT in text:
                return self._rewritten(before + _WAIT + value + PAIRS + rest)
            wait = not value or value.lower() == "true"
        text += self._cluster_pair if not text or text[-1] == PAIRS else self._joined_cluster_pair
        if is_too_long(text):
            raise MessageRefused(self._illegal)
        return text, wait

    def _rewritten(self, text: str) -> tuple[str, bool]:
        """The same by parsing."""
        properties = decode_properties(text)
        wait = properties.pop(Property.WAIT, "true").lower() == "true"
        properties[Property.CLUSTER] = self._config.cluster
        text = encode_properties(properties)
        if is_too_long(text):
            raise MessageRefused(self._illegal)
        return text, wait

    def _batch(self, header: SendMessage, call: Call) -> tuple[list[StoredMessage], bool]:
        """Return the members to store and whether their sender waits for the disk. Raises what refuses them."""
        self._refuse_if_overloaded()
        topic = self.topic_for(header, call)
        if header.topic.startswith(RETRY_PREFIX):
            raise MessageRefused(f"batch request does not support retry group {header.topic}")
        queue_id = header.queue_id if header.queue_id >= 0 else self.any_queue(topic)
        if len(call.body) > self._config.max_message_bytes:
            raise MessageRefused(self._illegal)
        own = header.properties or ""
        suffix = own + PAIRS + self._cluster_pair if own and not own.endswith(PAIRS) else own + self._cluster_pair
        sys_flag = header.sys_flag if topic.filter_type == SINGLE_TAG else header.sys_flag | SysFlag.MULTI_TAGS
        messages = []
        for flag, body, text in decode_batch(call.body):
            joint = "" if not text or text.endswith(PAIRS) else PAIRS
            message = StoredMessage(
                topic.name,
                body,
                text + joint + suffix,
                queue_id,
                flag,
                sys_flag,
                header.born_ms,
                call.peer.packed_address,
                header.reconsume_times or 0,
            )
            if not body or is_too_long(message.property_text):
                raise MessageRefused(self._illegal if body else self._empty)
            # Searched before it is parsed: this runs for every member.
            text = message.property_text
            if (DELAY in text or TRANSACTION in text or TIMER in text) and asks_to_wait(message.properties):
                raise MessageRefused(f"{self._illegal} A batch cannot be delayed, nor be part of a transaction.")
            messages.append(message)
        if not messages:
            raise MessageRefused("the batch has no messages")
        return messages, messages[0].properties.get(Property.WAIT, "true").lower() == "true"

    def _make_answers(self) -> ReplyTemplate:
        """The answers' unchanging parts; the store's address is known once the broker listens."""
        id_format = self._store.store_address.hex().upper() + "%016X"
        names = ("message_id", "queue_id", "queue_offset")
        self._answer = ReplyTemplate(
            SendMessageResponse, names, formats={"message_id": id_format}, region=self._config.region, trace_on="true"
        )
        self._answer_with_handle = ReplyTemplate(
            SendMessageResponse,
            (*names, "recall_handle"),
            formats={"message_id": id_format, "recall_handle": "%b"},
            region=self._config.region,
            trace_on="true",
        )
        return self._answer

    def _when_flushed(self, end: int, reply: Answered) -> Future[Answered]:
        """Answer when the log before `end` is on disk, or with FLUSH_DISK_TIMEOUT: stored all the same."""
        answered: Future[Answered] = Future()
        if self._asked == self._confirmed:
            self._last_progress = self._clock.monotonic()
        self._asked += 1

        def flushed(future: Future[bool]) -> None:
            self._confirmed += 1
            self._last_progress = self._clock.monotonic()
            answered.set_result(reply if future.result() else _unconfirmed(reply))

        self._store.wait_flushed(end).add_done_callback(flushed)
        return answered

    def when_saved(self, topic: str, reply: R | Future[R]) -> R | Future[R]:
        """Let an answer wait for the table of topics, where the topic has just been created."""
        saved = self._topics.saved(topic)
        return reply if saved is None else when_saved(saved, reply)

    def _refuse_if_overloaded(self) -> None:
        waiting = self._asked - self._confirmed
        if waiting >= MAX_UNCONFIRMED:
            raise SystemBusy("[OVERLOAD]system busy, start flow control for a while")
        if waiting and self._clock.monotonic() - self._last_progress > STUCK_SECONDS:
            raise SystemBusy("[REJECTREQUEST]system busy, start flow control for a while")

    @property
    def _illegal(self) -> str:
        return too_large(self._config)

    @property
    def _empty(self) -> str:
        return f"{self._illegal} The body is empty."


def _unconfirmed(reply: Answered) -> Reply:
    """Return the same answer with the code that says: stored, but not known to be on disk."""
    answer = reply.template.reply(reply) if isinstance(reply, FilledReply) else reply
    answer.code = ResponseCode.FLUSH_DISK_TIMEOUT
    return answer
