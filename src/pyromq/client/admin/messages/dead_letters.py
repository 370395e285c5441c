"""Dead letters, the messages that a group could not consume: list, find and redrive them.

Dead letters stay in topic `%DLQ%group` until they expire. A redrive stores a copy with no attempts counted, for the
group alone or in another topic. A property of the copy names its dead letter: a second redrive finds the copy at the
destination and skips the dead letter.

A group that pops has a retry topic for each topic, and reads no other. Its copies go to that retry topic.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from enum import Enum
from itertools import count

from pyromq.client.admin.admin_client import AdminClient, ClusterBrokers, each_of
from pyromq.client.admin.messages.message_search import find_by_offset_id, find_copies, one_id
from pyromq.client.admin.messages.reason_pattern import reason_pattern
from pyromq.client.arguments import checked
from pyromq.client.consumer.pulling import PullRequest, pull
from pyromq.client.consumer.queue_offsets import QueueOffsets
from pyromq.clock import Clock
from pyromq.errors import BrokerError, MQError, QueryNotFound, TopicNotFound, Unavailable, UsageError
from pyromq.filter.subscription_differences import POP
from pyromq.message import MessageQueue, Property, StoredMessage
from pyromq.names import (
    AUTO_CREATE_TOPIC,
    DEAD_LETTER_PREFIX,
    TOOLS_GROUP,
    check_group,
    check_topic,
    dead_letter_topic,
    pop_retry_topic,
    retry_topic,
)
from pyromq.net.connection_config import ConnectionConfig
from pyromq.remoting.bodies import ConsumerConnection, TopicList, decode_body
from pyromq.remoting.codes import Permission
from pyromq.remoting.headers import ConsumerConnections, CreateTopic, SendMessageResponse, TopicNames

PULL_COUNT = 32  # dead letters pulled per request
REDRIVEN_FROM = "REDRIVEN_FROM"  # property of a copy: the offset id of its dead letter
ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"  # property with the original topic, set by RocketMQ 5

# Properties written by brokers and consumers before the message became a dead letter. A copy has none of
# these properties.
_DROPPED_PROPERTIES = (
    *(Property.DELAY, Property.RECONSUME_TIME, Property.MAX_RECONSUME_TIMES, Property.RETRY_REASON),
    *(Property.REAL_TOPIC, Property.REAL_QUEUE_ID, Property.TRANSACTION, Property.PRODUCER_GROUP),
    *(Property.WAIT, Property.CLUSTER, Property.MIN_OFFSET, Property.MAX_OFFSET),
)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message in the dead-letter topic of `group`."""

    group: str
    message: StoredMessage

    @property
    def original_topic(self) -> str | None:
        """The topic to which the application sent; None for a message sent to the dead-letter topic directly."""
        properties = self.message.properties
        return properties.get(Property.RETRY_TOPIC) or properties.get(ORIGIN_TOPIC)

    @property
    def was_popped(self) -> bool:
        """Whether the group popped the message. Unknown, and False, if it died at its first attempt."""
        return Property.FIRST_POP_TIME in self.message.properties

    @property
    def retry_topics(self) -> list[str]:
        """The group's retry topics that may have copies of the message: of pulls, then of pops."""
        topic = self.original_topic
        return [retry_topic(self.group), *([pop_retry_topic(self.group, topic)] if topic else [])]

    @property
    def reason(self) -> str | None:
        """The error of the last listener call; None if the consumer did not send it, for example a Java consumer."""
        return self.message.properties.get(Property.RETRY_REASON)

    @property
    def pattern(self) -> str:
        """The reason without numbers, ids and quoted texts: equal failures have equal patterns."""
        return reason_pattern(self.reason)

    @property
    def attempts(self) -> int:
        """The number of failed attempts, the first one included."""
        return self.message.reconsume_times


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Selects the dead letters that meet all conditions; a condition left at its default accepts all.

    `ids` are unique ids or offset ids. `reason` is part of the reason's text, upper or lower case. `pattern` is the
    whole `DeadLetter.pattern`. `since_ms` and `until_ms` limit the time (ms since 1970) at which the message became a
    dead letter, both ends included.
    """

    ids: frozenset[str] = frozenset()
    topic: str | None = None
    tag: str | None = None
    key: str | None = None
    reason: str | None = None
    since_ms: int = 0
    until_ms: int | None = None
    pattern: str | None = None

    def accepts(self, letter: DeadLetter) -> bool:
        message = letter.message
        return (
            (not self.ids or message.message_id in self.ids or self._has_offset_id(message))
            and self.topic in (None, letter.original_topic)
            and self.tag in (None, message.tags)
            and (self.key is None or self.key in message.keys)
            and (self.reason is None or self.reason.casefold() in (letter.reason or "").casefold())
            and (self.pattern is None or self.pattern == letter.pattern)
            and self.since_ms <= message.store_ms
            and (self.until_ms is None or message.store_ms <= self.until_ms)
        )

    def _has_offset_id(self, message: StoredMessage) -> bool:
        return any(message.offset_message_id == each.upper() for each in self.ids)


@dataclass(frozen=True, slots=True)
class RedriveOrder:
    """Options of a redrive, which sends copies of dead letters.

    By default copies go to the group's retry topic, where only this group consumes them. With `to_origin` they go to
    their original topics, where every group consumes them again; with `to_topic`, to that topic. `most` limits the
    number of copies, `per_second` their rate. `again` includes letters that were redriven before; `dry_run` sends
    nothing.
    """

    to_origin: bool = False
    to_topic: str | None = None
    most: int | None = None
    per_second: float | None = None
    again: bool = False
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.to_topic is not None:
            check_topic(self.to_topic)
        if self.to_topic is not None and self.to_origin:
            raise UsageError("copies go to their original topics or to one topic, not to both")
        if self.most is not None and self.most < 1:
            raise UsageError(f"most={self.most} is out of range: at least 1")
        if self.per_second is not None and self.per_second <= 0:
            raise UsageError(f"per_second={self.per_second} must be above 0")

    def destination(self, letter: DeadLetter, *, is_popping: bool = False) -> str:
        """Return the topic for a letter's copy. `is_popping` says whether members of the letter's group pop.

        Raises `UsageError` if an original topic is needed but unknown.
        """
        if self.to_topic is not None:
            return self.to_topic
        if letter.original_topic is None:
            raise UsageError(f"message {letter.message.message_id} has no original topic; give the topic for its copy")
        if self.to_origin:
            return letter.original_topic
        return letter.retry_topics[is_popping or letter.was_popped]


class Fate(Enum):
    """What a redrive did with a dead letter."""

    SENT = "sent"
    WOULD_BE_SENT = "would be sent"
    REDRIVEN_BEFORE = "redriven before"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Redriven:
    """The outcome for one dead letter: `queue` and `queue_offset` of the copy if one was sent, or the `error`."""

    letter: DeadLetter
    fate: Fate
    destination: str | None = None
    queue: MessageQueue | None = None
    queue_offset: int | None = None
    error: MQError | None = None


@dataclass(frozen=True, slots=True, order=True)
class DeadLetterCount:
    """The number of dead letters of a group."""

    group: str
    count: int


@checked
class AsyncDeadLetters(AdminClient):
    """Reads and redrives dead letters, for programs with an event loop.

        async with AsyncDeadLetters() as dead_letters:
            async for letter in dead_letters.letters("billing"):
                print(letter.message.message_id, letter.reason)

    `namesrv`, `connections` and `instance` are as for `AsyncAdmin`; `timeout` is seconds per request. Entering raises
    `NoNameServer` immediately if no name server can be reached.
    """

    def __init__(
        self,
        namesrv: str | None = None,
        *,
        timeout: float = 5.0,
        clock: Clock | None = None,
        instance: str | None = None,
        connections: ConnectionConfig | None = None,
    ) -> None:
        super().__init__(namesrv, timeout=timeout, clock=clock, instance=instance, connections=connections)
        self._offsets = QueueOffsets(self._cluster, timeout=timeout)
        self._brokers = ClusterBrokers(self._cluster, timeout=timeout)
        self._turns = count()

    async def counts(self) -> list[DeadLetterCount]:
        """Return the number of dead letters of each group, sorted by group; groups without any are left out."""
        response = await self._cluster.name_servers.ask(TopicNames())
        topics = decode_body(TopicList, response.check().body).topics
        groups = [topic.removeprefix(DEAD_LETTER_PREFIX) for topic in topics if topic.startswith(DEAD_LETTER_PREFIX)]
        counted = [DeadLetterCount(group, await self._count(group)) for group in sorted(groups)]
        return [each for each in counted if each.count]

    async def letters(self, group: str, wanted: DeadLetterFilter | None = None) -> AsyncGenerator[DeadLetter, None]:
        """Yield a group's present dead letters, oldest first in each queue; none for an unknown group."""
        wanted = wanted or DeadLetterFilter()
        for queue in await self._queues(group):
            offset = await self._first(queue, wanted.since_ms)
            end = await self._offsets.end(queue)
            while offset < end:
                request = PullRequest(PULL_COUNT, timeout=self._timeout)
                result = await pull(self._cluster, TOOLS_GROUP, queue, offset, request=request)
                for message in result.messages:
                    letter = DeadLetter(group, message)
                    if message.queue_offset < end and wanted.accepts(letter):
                        yield letter
                if result.next_offset <= offset:  # all remaining dead letters expired meanwhile
                    break
                offset = result.next_offset

    async def find(self, group: str, message_id: str) -> DeadLetter:
        """Return the group's dead letter with this offset id, or the latest one with this unique id.

        Raises `QueryNotFound` if there is none.
        """
        topic = dead_letter_topic(group)
        message_id = one_id(message_id)
        copies = await self._copies(topic, message_id)
        if copies:
            return DeadLetter(group, max(copies, key=lambda message: message.store_ms))
        try:
            message = await find_by_offset_id(self._cluster, message_id, timeout=self._timeout)
        except MQError as error:
            raise QueryNotFound(f"group {group} has no dead letter {message_id}") from error
        if message.topic != topic:
            raise QueryNotFound(
                f"message {message_id} is not a dead letter of group {group}: its topic is {message.topic}"
            )
        return DeadLetter(group, message)

    async def copies(self, letter: DeadLetter, topic: str) -> list[StoredMessage]:
        """Return the redriven copies of a dead letter in a topic, and the retries of these copies, oldest first."""
        found = await self._copies(topic, letter.message.message_id)
        own = letter.message.offset_message_id
        copies = [message for message in found if message.properties.get(REDRIVEN_FROM) == own]
        return sorted(copies, key=lambda message: message.store_ms)

    async def redriven(
        self, letters: Sequence[DeadLetter], *, topics: Collection[str] = ()
    ) -> dict[str, StoredMessage]:
        """Return the latest copy of each redriven dead letter, by the letter's offset id.

        Copies in the group's retry topics, in the original topic and in `topics` are found, with a request for each
        letter and topic.
        """

        async def look(letter: DeadLetter) -> StoredMessage | None:
            own = {*letter.retry_topics, *([letter.original_topic] if letter.original_topic else [])}
            found = [copy for topic in own.union(topics) for copy in await self.copies(letter, topic)]
            return max(found, key=lambda copy: copy.store_ms, default=None)

        found = zip(letters, await each_of(look, letters), strict=True)
        return {letter.message.offset_message_id: copy for letter, copy in found if copy is not None}

    async def redrive(
        self, group: str, wanted: DeadLetterFilter | None = None, order: RedriveOrder | None = None
    ) -> AsyncGenerator[Redriven, None]:
        """Send a copy of each wanted dead letter, one after the other, and yield the outcome for each.

        A failed send is yielded as an outcome and does not stop the redrive.
        """
        order = order or RedriveOrder()
        is_popping = await self._is_popping(group)
        sent, due = 0, self._clock.monotonic()
        async with aclosing(self.letters(group, wanted)) as letters:
            async for letter in letters:
                outcome = await self._prepare(letter, order, is_popping=is_popping)
                if outcome.fate is Fate.WOULD_BE_SENT:
                    if sent == order.most:
                        return
                    sent += 1
                    if not order.dry_run:
                        await self._clock.sleep(due - self._clock.monotonic())
                        due = self._clock.monotonic() + (1 / order.per_second if order.per_second else 0)
                        outcome = await self._send(outcome)
                yield outcome

    async def _count(self, group: str) -> int:
        queues = await self._queues(group)
        return sum([await self._offsets.end(queue) - await self._offsets.least(queue) for queue in queues])

    async def _queues(self, group: str) -> tuple[MessageQueue, ...]:
        check_group(group)
        try:
            return (await self._cluster.route(dead_letter_topic(group))).readable
        except TopicNotFound:
            return ()

    async def _first(self, queue: MessageQueue, since_ms: int) -> int:
        least = await self._offsets.least(queue)
        # Of several messages stored in the millisecond `since_ms`, a broker may return any: begin 1 ms earlier.
        return max(least, await self._offsets.by_time(queue, since_ms - 1)) if since_ms > 0 else least

    async def _copies(self, topic: str, message_id: str) -> list[StoredMessage]:
        try:
            return await find_copies(self._cluster, topic, message_id, timeout=self._timeout)
        except TopicNotFound:
            return []

    async def _is_popping(self, group: str) -> bool:
        """Return whether a member of the group is connected that pops."""
        check_group(group)

        async def pops_at(address: str) -> bool:
            try:
                found = await self._brokers.read(address, ConsumerConnections(consumer_group=group), ConsumerConnection)
            except BrokerError:  # no member, or no right to see members
                return False
            return found.consume_type == POP

        return any((await self._cluster.ask_reachable((await self._brokers.masters()).values(), pops_at)).values())

    async def _prepare(self, letter: DeadLetter, order: RedriveOrder, *, is_popping: bool) -> Redriven:
        try:
            _refuse_damaged(letter.message)
            destination = order.destination(letter, is_popping=is_popping)
            if not await self._exists(destination, letter):
                return Redriven(letter, Fate.WOULD_BE_SENT, destination)
            if not order.again and await self.copies(letter, destination):
                return Redriven(letter, Fate.REDRIVEN_BEFORE, destination)
        except MQError as error:
            return Redriven(letter, Fate.FAILED, error=error)
        return Redriven(letter, Fate.WOULD_BE_SENT, destination)

    async def _send(self, prepared: Redriven) -> Redriven:
        letter, destination = prepared.letter, prepared.destination
        assert destination is not None, "prepared to be sent"
        try:
            if not await self._exists(destination, letter):
                await self._create_retry_topic(destination, letter)
            queue, message = await self._next_queue(destination), letter.message
            response = await self._cluster.send_copy(
                queue, message, _copied(letter, queue), born_ms=message.born_ms, attempts=0, timeout=self._timeout
            )
            stored = response.header(SendMessageResponse)
        except MQError as error:
            return Redriven(letter, Fate.FAILED, destination, error=error)
        stored_in = queue._replace(queue_id=stored.queue_id)
        return Redriven(letter, Fate.SENT, destination, stored_in, stored.queue_offset)

    async def _exists(self, destination: str, letter: DeadLetter) -> bool:
        """Return whether a topic exists. Raises `TopicNotFound` unless it is a retry topic, which can be created."""
        try:
            await self._cluster.route(destination)
        except TopicNotFound:
            if destination not in letter.retry_topics:
                raise
            return False
        return True

    async def _create_retry_topic(self, topic: str, letter: DeadLetter) -> None:
        """Create a retry topic where the dead letter is. Brokers create it when they redeliver a first message."""
        order = CreateTopic(
            topic=topic,
            read_queues=1,
            write_queues=1,
            permission=Permission.READ | Permission.WRITE,
            default_topic=AUTO_CREATE_TOPIC,
        )
        await self._brokers.ask(await self._cluster.master(letter.message.queue), order)
        self._cluster.routes.forget(topic)

    async def _next_queue(self, topic: str) -> MessageQueue:
        """Return the next writable queue of a topic, in turn. Raises `Unavailable` if there is none."""
        route = await self._cluster.route(topic)
        if not route.writable:
            raise Unavailable(f"no broker takes messages for topic {topic!r} now")
        return route.writable[next(self._turns) % len(route.writable)]


def is_redriven(message: StoredMessage) -> bool:
    """Return whether a message is a redriven copy, and not a later retry of the copy."""
    return REDRIVEN_FROM in message.properties and not message.reconsume_times


def _refuse_damaged(message: StoredMessage) -> None:
    what = message.properties.get(Property.DAMAGED)
    if what is not None:
        raise UsageError(f"message {message.message_id} was damaged when it was made a dead letter: {what}")


def _copied(letter: DeadLetter, queue: MessageQueue) -> dict[str, str]:
    """Return the properties of a dead letter's copy: with its unique id, without attempts, with `REDRIVEN_FROM`."""
    message = letter.message
    properties = {name: value for name, value in message.properties.items() if name not in _DROPPED_PROPERTIES}
    properties[REDRIVEN_FROM] = message.offset_message_id
    properties.setdefault(Property.UNIQUE_KEY, message.message_id)  # a second redrive finds the copy by this id
    pulled, *popped = letter.retry_topics
    if queue.topic not in popped:  # the next group may pull
        properties.pop(Property.FIRST_POP_TIME, None)
    elif not letter.was_popped:
        properties[Property.FIRST_POP_TIME] = str(message.store_ms)
    if queue.topic in (pulled, *popped):
        properties.setdefault(Property.RETRY_TOPIC, letter.original_topic or "")
    else:
        properties.pop(Property.RETRY_TOPIC, None)
    return properties
