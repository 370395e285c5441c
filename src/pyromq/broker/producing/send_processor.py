"""Answers sends: stores each message.

The reply is sent immediately or, with SYNC_FLUSH or replicas, when the message is confirmed.
"""

from __future__ import annotations

from concurrent.futures import Future

from pyromq.broker.internal_topics import DELAY, TIMER, TRANSACTION, waits_by
from pyromq.broker.members.consumer_groups import max_tries
from pyromq.broker.put_message import is_half, is_too_long, too_large
from pyromq.broker.shared_state import SharedState
from pyromq.broker.topics import FAQ
from pyromq.errors import GroupNotFound, MessageRefused, MQError
from pyromq.message import PAIRS, Property, StoredMessage, SysFlag, decode_properties, encode_properties
from pyromq.names import RETRY_PREFIX, dead_letter_topic
from pyromq.record import decode_batch
from pyromq.remoting.bodies import SINGLE_TAG, TopicConfig
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import answers, refusal
from pyromq.remoting.headers import SendBatchMessage, SendMessage, SendMessageResponse, SendRefusal
from pyromq.store.batch_appends import Shape, members_of

_WAIT = Property.WAIT + "\x01"

# A message to store, whether its sender waits for confirmation, the queue id in the reply, the recall handle or None.
_Prepared = tuple[StoredMessage, bool, int, bytes | None]

# The ids of all messages of a batch, and queue offset and property text of the first message.
_StoredBatch = tuple[str, int, str]


class SendProcessor:
    """Stores single messages and batches of producers."""

    def __init__(self, state: SharedState) -> None:
        self._put_message = state.put_message
        self._internal_topics = state.internal_topics
        self._refusals = state.refusals
        self._admission = state.admission
        self._confirmation = state.confirmation
        self._store = state.store
        self._topics = state.topics
        self._groups = state.groups
        self._config = state.config
        # Looked up once, since every send uses these attributes.
        self._put = state.put_message.put
        self._topic_for = state.admission.topic_for
        self._unsaved_topics = state.admission.unsaved
        self._cluster_pair = f"{Property.CLUSTER}\x01{state.config.cluster}"
        self._joined_cluster_pair = PAIRS + self._cluster_pair

    @answers(SendMessage)
    def send(self, header: SendMessage, call: Call) -> Reply | Future[Reply]:
        if header.batch:
            return self.send_batch(header, call)
        try:
            message, wait, queue_id, handle = self._message(header, call)
            self._put(message)
        except MQError as error:
            return self._refused(error, call)
        reply = self._stored(message, wait, queue_id, handle)
        return self._admission.when_saved(header.topic, reply) if self._unsaved_topics else reply

    def _refused(self, error: MQError, call: Call) -> Reply:
        """Return the refusal of a send, with the fields that clients expect in every reply to a send."""
        self._refusals.note_limit(error, call.code, call.peer.address)
        reply = refusal(error)
        reply.header = SendRefusal(region=self._config.region, trace_on="true")
        return reply

    def _message(self, header: SendMessage, call: Call) -> _Prepared:
        """Return the message to store and the values for its reply. Raises the error that refuses the send."""
        if self._confirmation.is_needed:
            self._confirmation.refuse_if_overloaded()
        name = header.topic
        topic = self._topic_for(header, call)
        queue_id = header.queue_id
        if queue_id < 0:
            queue_id = self._admission.any_queue(topic)
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
        handle = None
        if DELAY in text or TRANSACTION in text:
            handle = self._internal_topics.divert(message, self._waiting_properties(header, name))
        elif TIMER in text:
            handle = self._internal_topics.divert(message)
        return message, wait, queue_id, handle

    def _waiting_properties(self, header: SendMessage, topic: str) -> dict[str, str]:
        """Return the properties of a delayed or half message. Like RocketMQ, the broker keeps the property WAIT."""
        properties = decode_properties(header.properties or "")
        properties[Property.CLUSTER] = self._config.cluster
        if is_half(properties, topic):
            self._admission.check_transactions()
            # Without a producer group the half message could not be checked.
            properties.setdefault(Property.PRODUCER_GROUP, header.producer_group)
        return properties

    def _stored(self, message: StoredMessage, wait: bool, queue_id: int, handle: bytes | None) -> Reply | Future[Reply]:
        """Return the reply to a send whose message is in the log; a future if the reply waits for confirmation."""
        reply = Reply(
            SendMessageResponse(
                message.offset_message_id,
                queue_id,
                message.queue_offset,
                handle.decode() if handle else None,
                region=self._config.region,
                trace_on="true",
            )
        )
        return self._confirmation.when_sent(reply, wait=wait) if self._confirmation.is_needed else reply

    @answers(SendBatchMessage)
    def send_batch(self, header: SendMessage, call: Call) -> Reply | Future[Reply]:
        """Store all messages of a batch in one append, with consecutive queue offsets.

        The reply has the ids of all messages.
        """
        try:
            shape = self._shape(header, call)
            stored = self._put_members(shape, call.body) or self._put_messages(shape, call.body)
        except MQError as error:
            return self._refused(error, call)
        ids, queue_offset, first_text = stored
        reply = Reply(
            SendMessageResponse(
                message_id=ids,
                queue_id=shape.queue_id,
                queue_offset=queue_offset,
                region=self._config.region,
                trace_on="true",
            )
        )
        wait = decode_properties(first_text).get(Property.WAIT, "true").lower() == "true"
        answered = self._confirmation.when_sent(reply, wait=wait)
        return self._admission.when_saved(header.topic, answered)

    def _after_last_retry(
        self, header: SendMessage, call: Call, *, topic: TopicConfig, queue_id: int
    ) -> tuple[TopicConfig, int]:
        """Return topic and queue id for a message that was sent to a retry topic.

        After too many attempts this is the dead-letter topic.
        """
        name = header.topic.removeprefix(RETRY_PREFIX)
        group = self._groups.find(name, call.peer)
        if group is None:
            raise GroupNotFound(f"subscription group not exist, {name} {FAQ}")
        if (header.reconsume_times or 0) < max_tries(group, header, call):
            return topic, queue_id
        return self._topics.for_group_retry(dead_letter_topic(name), 1), 0

    def _stored_properties(self, text: str) -> tuple[str, bool]:
        """Return the property text to store, and whether the sender waits for confirmation.

        As upstream, WAIT is removed and CLUSTER added. The text is cut, not parsed. Broken or doubled pairs, which
        upstream's parser would drop, are stored; readers of the text drop them.
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
        """Return, by parsing, the property text to store, and whether the sender waits for confirmation.

        Raises `MessageRefused`.
        """
        properties = decode_properties(text)
        wait = properties.pop(Property.WAIT, "true").lower() == "true"
        properties[Property.CLUSTER] = self._config.cluster
        text = encode_properties(properties)
        if is_too_long(text):
            raise MessageRefused(self._illegal)
        return text, wait

    def _shape(self, header: SendMessage, call: Call) -> Shape:
        """Return the fields that all messages of a batch have in common. Raises the error that refuses the batch."""
        self._confirmation.refuse_if_overloaded()
        topic = self._topic_for(header, call)
        if header.topic.startswith(RETRY_PREFIX):
            raise MessageRefused(f"batch request does not support retry group {header.topic}")
        queue_id = header.queue_id if header.queue_id >= 0 else self._admission.any_queue(topic)
        if len(call.body) > self._config.max_message_bytes:
            raise MessageRefused(self._illegal)
        own = header.properties or ""
        return Shape(
            topic.name,
            queue_id,
            header.sys_flag if topic.filter_type == SINGLE_TAG else header.sys_flag | SysFlag.MULTI_TAGS,
            header.born_ms,
            call.peer.packed_address,
            own + PAIRS + self._cluster_pair if own and not own.endswith(PAIRS) else own + self._cluster_pair,
            header.reconsume_times or 0,
        )

    def _put_members(self, shape: Shape, body: bytes) -> _StoredBatch | None:
        """Store a batch without decoding its messages. Return None, with nothing stored, if a message is unusual."""
        if (members := members_of(body, shape.more)) is None:
            return None
        if (stored := self._put_message.put_members(members, shape, count=members.count)) is None:
            return None
        ids = members.ids(len(shape.topic.encode()), self._store.store_address, stored.log_offset)
        return ids, stored.queue_offset, shape.text(members.first_text)

    def _put_messages(self, shape: Shape, body: bytes) -> _StoredBatch:
        """Decode a batch and store its messages. Raises the error that refuses the batch."""
        messages = []
        for message in shape.messages(decode_batch(body)):
            if not message.stored_body or is_too_long(message.property_text):
                raise MessageRefused(self._illegal if message.stored_body else self._empty)
            # The text is searched before it is parsed, as this runs for every message.
            text = message.property_text
            if (DELAY in text or TRANSACTION in text or TIMER in text) and (name := waits_by(message.properties)):
                raise MessageRefused(
                    f"{self._illegal} A batch cannot be delayed, nor be part of a transaction: a member has the"
                    f" property {name}; send that message alone"
                )
            messages.append(message)
        if not messages:
            raise MessageRefused("the batch has no messages")
        self._put_message.put_batch(messages)
        ids = ",".join(message.offset_message_id for message in messages)
        return ids, messages[0].queue_offset, messages[0].property_text

    @property
    def _illegal(self) -> str:
        return too_large(self._config)

    @property
    def _empty(self) -> str:
        return f"{self._illegal} The body is empty."
