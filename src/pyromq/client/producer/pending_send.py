"""Checks and encodes messages and batches, and chooses their queues. Uses no network."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import ParamSpec, TypeVar

import msgspec

from pyromq import speedups
from pyromq.client.application_code import picture_of
from pyromq.client.arguments import check_queue
from pyromq.client.client_config import ProducerConfig
from pyromq.client.client_hooks import MessageSend, SendHooks, SendKind
from pyromq.client.cluster.namespace import Namespace
from pyromq.client.cluster.retry import Retry
from pyromq.clock import Clock
from pyromq.compression import compress
from pyromq.errors import IllegalMessage, IllegalName, MQError, ResponseCode, UsageError
from pyromq.filter.filter import check_tag
from pyromq.java_hash import java_hash
from pyromq.message import (
    RESERVED_PROPERTIES,
    Message,
    MessageQueue,
    Property,
    SendResult,
    SendStatus,
    SysFlag,
    encode_properties,
)
from pyromq.message_id import UniqueIds
from pyromq.names import NOT_FOR_CLIENTS, RETRY_PREFIX, check_topic
from pyromq.record import MAX_PROPERTIES_SIZE, BatchMember, encode_batch
from pyromq.remoting.header import json_text

OrderingKey = str | int | bytes

FAILURE_SECONDS = 30.0  # latency that a failed attempt counts as

# Pairs (latency, pause) in seconds: from this latency on, a broker is avoided for this pause. Source: MQFaultStrategy.
PENALTIES = ((15.0, 600.0), (3.0, 180.0), (2.0, 120.0), (1.0, 60.0), (0.55, 30.0))


def queue_for_key(queues: Sequence[MessageQueue], key: OrderingKey) -> MessageQueue:
    """Return the queue of all messages with this key; the queue stays the same as long as `queues` does.

    Equal to Java's `Math.abs(key.hashCode()) % n`, with 0 for the one hash whose absolute value is negative. An integer
    counts as the text of its digits, bytes as the UTF-8 text in them. Raises `UsageError` for another key.
    """
    distance = abs(java_hash(key if isinstance(key, str) else _key_text(key)))
    return queues[0 if distance == 1 << 31 else distance % len(queues)]


def check_key(key: OrderingKey) -> None:
    """Raise `UsageError` unless an ordering key is a string, an integer or bytes."""
    if not isinstance(key, str):
        _key_text(key)


def _key_text(key: int | bytes) -> str:
    if isinstance(key, bytes):
        return key.decode(errors="surrogateescape")
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key)
    raise UsageError(f"ordering_key={key!r:.80} is {type(key).__name__}; it is a string, a whole number or bytes")


@dataclass(slots=True)
class Fault:
    """A broker's latest latency (seconds), and the monotonic time from which on the broker is not avoided."""

    broker_name: str
    latency: float
    available_at: float


class QueueSelection:
    """Chooses queues in turn, from a random start for each topic. A retry goes to another broker if there is one.

    With `avoid_slow`, brokers are avoided for some time after a slow or failed send.
    """

    def __init__(self, clock: Clock, *, avoid_slow: bool = False) -> None:
        self._clock = clock
        self._avoid_slow = avoid_slow
        self.turns: dict[str, int] = {}
        self._faults: dict[str, Fault] = {}

    def pick(self, queues: Sequence[MessageQueue], *, last_broker: str | None = None) -> MessageQueue:
        """Return the next of a topic's `queues` (not empty); if possible not at `last_broker`, which has failed."""
        if self._avoid_slow:
            return self._pick_available(queues)
        queue = queues[self._turn(queues[0].topic) % len(queues)]
        if last_broker is None or queue.broker_name != last_broker:
            return queue
        for _ in queues:
            queue = queues[self._turn(queue.topic) % len(queues)]
            if queue.broker_name != last_broker:
                break
        return queue

    def report(self, broker_name: str, seconds: float, *, failed: bool = False) -> None:
        """Note an attempt's latency in seconds for `avoid_slow`; a failed attempt counts as `FAILURE_SECONDS`."""
        if not self._avoid_slow:
            return
        latency = FAILURE_SECONDS if failed else seconds
        penalty = next((rest for least, rest in PENALTIES if latency >= least), 0.0)
        self._faults[broker_name] = Fault(broker_name, latency, self._clock.monotonic() + penalty)

    def _turn(self, topic: str) -> int:
        turn = self.turns.get(topic)
        if turn is None:
            turn = random.randrange(1 << 16)  # random, so that many producers do not all begin at queue 0
        self.turns[topic] = turn + 1
        return turn

    def _pick_available(self, queues: Sequence[MessageQueue]) -> MessageQueue:
        turn = self._turn(queues[0].topic)
        now = self._clock.monotonic()
        for step in range(len(queues)):
            queue = queues[(turn + step) % len(queues)]
            fault = self._faults.get(queue.broker_name)
            if fault is None or fault.available_at <= now:
                return queue
        return self._pick_least_bad(queues, turn, now) or queues[turn % len(queues)]

    def _pick_least_bad(self, queues: Sequence[MessageQueue], turn: int, now: float) -> MessageQueue | None:
        """Return a queue of one of the better half of the avoided brokers, in turn.

        Return None if the chosen broker has no writable queue.
        """
        faults = sorted(self._faults.values(), key=lambda f: (f.available_at > now, f.latency, f.available_at))
        better = faults[: max(1, len(faults) // 2)]
        broker_name = better[turn % len(better)].broker_name
        own = [queue for queue in queues if queue.broker_name == broker_name]
        if own:
            return own[turn % len(own)]
        del self._faults[broker_name]
        return None


P = ParamSpec("P")
T = TypeVar("T")

if speedups.is_active:
    from pyromq.speedups.requests import PropertyWriter

plain_properties = PropertyWriter(Message, RESERVED_PROPERTIES) if speedups.is_active else None

Selector = Callable[[Sequence[MessageQueue], Message], MessageQueue]
QueueChooser = Callable[[Sequence[MessageQueue]], MessageQueue]
SendEnded = Callable[[SendResult | None, BaseException | None], None]

# Response codes that mean that the message was stored, with the send status of each.
STATUSES = {
    int(ResponseCode.SUCCESS): SendStatus.OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
}


class SelectorRaised(MQError):
    """Wraps the exception (`reason`) of an application's selector; only the selector's message fails."""

    def __init__(self, reason: BaseException) -> None:
        super().__init__(f"the selector raised {type(reason).__name__}")
        self.reason = reason
        # Raised in a coroutine, these two exceptions would end the coroutine without an error.
        if isinstance(reason, StopIteration | GeneratorExit):
            self.reason = RuntimeError(str(self))
            self.reason.__cause__ = reason


class PendingSend(msgspec.Struct, eq=False):
    """A prepared message or batch. With `fixed_queue`, the caller's choice, retries go to the same queue."""

    topic: str
    message_id: str
    flag: int
    body: bytes
    sys_flag: int
    property_text: bytes  # properties as one string, escaped for JSON
    deadline: float
    retry_codes: frozenset[int]
    future: asyncio.Future[SendResult]
    is_batch: bool = False
    fixed_queue: MessageQueue | None = None
    choose: QueueChooser | None = None
    ended: SendEnded | None = None  # called with result or error before the future is completed
    at_once: bool = False  # write in the call, not at the end of the event loop's turn
    planned: MessageQueue | None = None  # queue chosen for the next attempt, not connected yet
    queue: MessageQueue | None = None  # queue of the latest attempt
    started: float = 0.0
    attempts: int = 0  # attempts that a broker may have taken
    extra: float = 0.0  # seconds by which the deadline is later at a replica set
    retry: Retry | None = None  # the pauses between attempts that no broker took
    not_ok: SendResult | None = None  # result of an earlier attempt: stored, with a status other than OK


def prepare(
    message: Message,
    config: ProducerConfig,
    ids: UniqueIds,
    *,
    half_of: str | None = None,
    more: Mapping[str, str] | None = None,
) -> tuple[bytes, int, bytes]:
    """Check a message and return its body as sent, its sysFlag, and its property text escaped for JSON.

    If the message has no unique id, one is set. `half_of` is the producer group of a half message; `more` are further
    properties of this send. Raises `IllegalMessage`.
    """
    if plain_properties is not None and half_of is None and more is None:
        plain = plain_properties.text(message, ids.next, config.max_message_bytes, config.compress_from_bytes)
        if plain is not None:
            return message.body, 0, plain
    body = message.body
    check_message(message, config)
    if message.message_id is None:
        message.message_id = ids.next()
    properties = message.all_properties()
    sys_flag = 0
    if half_of is not None:
        if message.is_timed:
            raise IllegalMessage(
                "a half message cannot have deliver_at or delay; send a scheduled message without a transaction"
            )
        properties.pop(Property.DELAY, None)  # a half message has no delay. Source: sendMessageInTransaction
        properties |= {Property.TRANSACTION: "true", Property.PRODUCER_GROUP: half_of}
        sys_flag = SysFlag.HALF
    if more is not None:
        properties |= more
    text = _written(properties)
    _check_size(text)
    if len(body) >= config.compress_from_bytes:
        packed = compress(body, config.compression_level)
        if len(packed) < len(body):  # a body that compression makes longer could exceed the brokers' limit
            return packed, sys_flag | SysFlag.COMPRESSED | SysFlag.ZLIB, json_text(text)
    return body, sys_flag, json_text(text)


def _check_size(text: str) -> None:
    if len(text) > MAX_PROPERTIES_SIZE // 4 and len(text.encode()) > MAX_PROPERTIES_SIZE:
        raise IllegalMessage(f"properties take {len(text.encode())} bytes; the limit is {MAX_PROPERTIES_SIZE}")


def _written(properties: Mapping[str, str]) -> str:
    """Return the text of properties. Raises `IllegalMessage` for a lone surrogate, which UTF-8 cannot encode."""
    text = encode_properties(properties)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            half = text[error.start]
            name, value = next(pair for pair in properties.items() if half in "".join(pair))
            raise IllegalMessage(f"property {name!r}={value!r:.80} cannot be written as UTF-8") from error
    return text


def check_message(message: Message, config: ProducerConfig) -> None:
    """Raise `IllegalMessage` if a field has a wrong type or is out of its range.

    Topic, properties and delivery times are checked when they are encoded.
    """
    check_body(message.body, config.max_message_bytes)
    tags = message.tags
    if tags is not None and (type(tags) is not str or "|" in tags or tags.strip() != tags):
        check_tag(tags)  # raises an `IllegalMessage` that names the reason
    if message.keys or type(message.keys) is not tuple:
        _check_keys(message)
    if type(message.properties) is not dict and not isinstance(message.properties, Mapping):
        raise _wrong("properties", message.properties, "they must be a dict of strings")
    if message.flag != 0 or message.delay_level != 0:
        _check_numbers(message, config)
    if message.wait_stored is not True and message.wait_stored is not False:
        raise _wrong("wait_stored", message.wait_stored, "it must be True or False")
    if message.message_id is not None and not isinstance(message.message_id, str):
        raise _wrong("message_id", message.message_id, "it must be a string; the producer sets it")


def _check_keys(message: Message) -> None:
    """Check a message's keys and store them as a tuple: a retry could not read an iterator again."""
    if type(message.keys) is not tuple:
        if isinstance(message.keys, bytes) or not isinstance(message.keys, Iterable):
            raise _wrong("keys", message.keys, "keys must be a string or several strings")
        message.keys = tuple(message.keys.split(" ") if isinstance(message.keys, str) else message.keys)
    for key in message.keys:
        if type(key) is not str and not isinstance(key, str):
            raise _wrong("one of keys", key, "keys must be strings")
        if " " in key:
            raise IllegalMessage(f"key {key!r:.80} has a space, which separates keys: write `_`, or give several keys")


def _check_numbers(message: Message, config: ProducerConfig) -> None:
    for name in ("flag", "delay_level"):
        value = getattr(message, name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise _wrong(name, value, "it must be a whole number")
    if not -(1 << 31) <= message.flag < 1 << 31:
        raise IllegalMessage(f"flag={message.flag} is out of range: {-(1 << 31)} to {(1 << 31) - 1}")
    if not 0 <= message.delay_level <= config.delay_levels:
        raise IllegalMessage(
            f"delay_level={message.delay_level} is out of range: 1 to {config.delay_levels}, or 0 for no delay"
        )


def _wrong(name: str, value: object, allowed: str) -> IllegalMessage:
    return IllegalMessage(f"{name}={value!r:.80} is {type(value).__name__}; {allowed}")


def check_body(body: bytes, max_bytes: int) -> None:
    """Raise `IllegalMessage` unless `body` is non-empty bytes of at most `max_bytes`."""
    if not isinstance(body, bytes):
        raise IllegalMessage(f"a message body is bytes, not {type(body).__name__}; encode it first")
    if not body:
        raise IllegalMessage("the message body length is zero")
    if len(body) > max_bytes:
        raise IllegalMessage(f"the message body size over max value, MAX: {max_bytes} (it has {len(body)} bytes)")


def check_topic_for_sending(topic: str) -> None:
    """Raise `IllegalName` for an illegal topic name, and for a topic that only brokers may write."""
    check_topic(topic)
    if topic in NOT_FOR_CLIENTS:
        raise IllegalName(f"Sending message to topic[{topic}] is forbidden.")


def listed(messages: Iterable[Message]) -> list[Message]:
    """Return the messages of a batch as a list. Raises `IllegalMessage` if one is no `Message` or there are none."""
    members = list(each_message(messages))
    if not members:
        raise IllegalMessage("a batch needs at least one message")
    return members


def each_message(messages: Iterable[Message]) -> Iterator[Message]:
    """Yield the messages of a batch. Raises `IllegalMessage` for an item that is no `Message`."""
    if isinstance(messages, Message) or not isinstance(messages, Iterable):
        raise IllegalMessage(f"a batch is an iterable of messages, not {messages!r:.80}")
    for number, message in enumerate(messages):
        if not isinstance(message, Message):
            raise IllegalMessage(f"a batch has messages only; number {number} is {message!r:.80}")
        yield message


def prepare_batch(
    messages: Sequence[Message],
    config: ProducerConfig,
    ids: UniqueIds,
    *,
    more: Iterable[Mapping[str, str]] | None = None,
    own: Mapping[str, str] | None = None,
) -> tuple[bytes, str, bytes]:
    """Check a batch and return its body, the messages' ids joined by commas, and the batch's own property text.

    `more` are further properties of each message, `own` those of the batch. Raises `IllegalMessage` if messages differ
    in topic or `wait_stored`, or if one is delayed, of a retry topic or too large.
    """
    first = messages[0]
    for message in messages:
        _check_member(message, first)
    additions = repeat(None) if more is None else more
    members = [prepare_member(message, config, ids, each) for message, each in zip(messages, additions, strict=False)]
    body = encode_batch(members)
    check_body(body, config.max_message_bytes)
    text = batch_properties(own or {}, wait_stored=first.wait_stored)
    return body, ",".join([str(message.message_id) for message in messages]), text


def batch_properties(own: Mapping[str, str], *, wait_stored: bool) -> bytes:
    """Return the property text of a batch as a whole, escaped for JSON."""
    return json_text(encode_properties({Property.WAIT: "true" if wait_stored else "false", **own}))


def _check_member(message: Message, first: Message) -> None:
    if message.topic != first.topic:
        raise IllegalMessage(f"a batch has one topic; this one has {first.topic!r} and {message.topic!r}")
    if message.wait_stored != first.wait_stored:
        raise IllegalMessage("the messages of a batch must agree in wait_stored")
    if message.delay_level:
        raise IllegalMessage(f"delayed messages cannot be sent in a batch: delay_level={message.delay_level}")
    if message.is_timed:
        asked = f"deliver_at={message.deliver_at!r}" if message.delay is None else f"delay={message.delay!r}"
        raise IllegalMessage(f"delayed messages cannot be sent in a batch: {asked}")
    if message.topic.startswith(RETRY_PREFIX):
        raise IllegalMessage(f"messages of retry topic {message.topic!r} cannot be sent in a batch")


def prepare_member(
    message: Message, config: ProducerConfig, ids: UniqueIds, more: Mapping[str, str] | None
) -> BatchMember:
    """Check a message and return it encoded for a batch, with `more` properties. Raises `IllegalMessage`."""
    if plain_properties is not None and not more and message.flag == 0:
        plain = plain_properties.text(message, ids.next, config.max_message_bytes, config.max_message_bytes)
        if plain is not None:
            return BatchMember(0, message.body, msgspec.json.decode(b'"%b"' % plain, type=str))
    check_message(message, config)
    if message.message_id is None:
        message.message_id = ids.next()
    properties = message.all_properties()
    if more:
        properties |= more
    text = _written(properties)
    _check_size(text)
    return BatchMember(message.flag, message.body, text)


def queue_chooser(
    message: Message, queue: MessageQueue | None, ordering_key: OrderingKey | None, selector: Selector | None
) -> QueueChooser | None:
    """Return the function that chooses the message's queue; None if queues take turns.

    Raises `UsageError` if more than one of queue, key and selector is given, `IllegalMessage` if `message` is no
    `Message`.
    """
    if queue is None and ordering_key is None and selector is None and isinstance(message, Message):
        return None
    if not isinstance(message, Message):
        raise IllegalMessage(f"send takes a Message, not {message!r:.64}; send_batch takes several")
    if (queue is not None) + (ordering_key is not None) + (selector is not None) > 1:
        raise UsageError("give one of queue, ordering_key and selector, not several")
    if queue is not None:
        check_queue("queue", queue)
        if queue.topic != message.topic:
            raise UsageError(f"queue of topic {queue.topic!r} for a message of topic {message.topic!r}")
        return lambda queues: queue
    if ordering_key is not None:
        check_key(ordering_key)
        return lambda queues: queue_for_key(queues, ordering_key)
    if selector is not None:
        if not callable(selector):
            raise UsageError(f"selector={selector!r:.80} is {type(selector).__name__}; it must be a function")
        return lambda queues: _selected(selector, queues, message)
    return None


def _selected(selector: Selector, queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
    try:
        chosen = selector(queues, message)
    except BaseException as error:
        raise SelectorRaised(error) from error
    if not isinstance(chosen, MessageQueue) or chosen not in queues:
        raise UsageError(f"the selector returned {picture_of(chosen)}; it must return one of the queues it was given")
    return chosen


_MAX_CHECKED = 10_000  # limit of remembered names of topics, about 1 MB; above it, all are checked again


class Preparation:
    """Prepares the messages of one producer. Raises `UsageError` or a subclass for messages that cannot be sent.

    `client_id()` is called when hooks are called, after the client's start.
    """

    def __init__(
        self, group: str, config: ProducerConfig, names: Namespace, clock: Clock, *, client_id: Callable[[], str]
    ) -> None:
        self.hooks = SendHooks(config.hooks, group, client_id, clock=clock) or None
        self._wire_group = names.wrap(group)
        self._config = config
        self._names = names
        self._clock = clock
        self.failover_extra = max(0.0, config.failover_seconds - config.timeout)  # `extra` of sends without a timeout
        self._topics: dict[str, str] = {}  # checked topics without namespace, by their name in messages
        self._ids: UniqueIds
        self._loop: asyncio.AbstractEventLoop

    def begin(self, ids: UniqueIds) -> None:
        """Use `ids` for unique ids, and the running event loop for futures."""
        self._ids = ids
        self._loop = asyncio.get_running_loop()

    def topic(self, name: str) -> str:
        """Return a topic's name without namespace. Raises `IllegalName` if messages cannot be sent to the topic."""
        found = self._topics.get(name)
        if found is None:
            found = self._names.checked_topic(name)
            check_topic_for_sending(found)
            if len(self._topics) >= _MAX_CHECKED:
                self._topics.clear()
            self._topics[name] = found
        return found

    def deadline(self, timeout: float | None) -> float:
        """Return the deadline (monotonic seconds) of a send; `timeout` None means the configured timeout."""
        if timeout is None:
            timeout = self._config.timeout
        elif not isinstance(timeout, int | float):
            raise UsageError(f"timeout={timeout!r:.80} is {type(timeout).__name__}; it must be a number, of seconds")
        elif not timeout > 0:  # this refuses NaN, too
            raise UsageError(f"timeout={timeout!r} leaves no time; it must be a number of seconds above 0")
        return self._clock.monotonic() + timeout

    def message(
        self,
        message: Message,
        choose: QueueChooser | None,
        timeout: float | None,
        *,
        kind: SendKind = SendKind.SINGLE,
        more: Mapping[str, str] | None = None,
    ) -> PendingSend:
        """Return a message as a `PendingSend`, ready for the outbox; `more` are further properties of this send."""
        topic, deadline = self.topic(message.topic), self.deadline(timeout)
        ended = None
        if self.hooks is not None:
            send = self._before(kind, [message])
            more, ended = {**send.added[0], **(more or {})}, partial(self.hooks.after, send)
        if self._names.name:
            more = {**self._names.properties, **(more or {})}
        half_of = self._wire_group if kind is SendKind.HALF else None
        body, sys_flag, text = _telling(ended, prepare, message, self._config, self._ids, half_of=half_of, more=more)
        assert message.message_id is not None
        return PendingSend(
            topic,
            message.message_id,
            message.flag,
            body,
            sys_flag,
            text,
            deadline,
            frozenset(),
            self._loop.create_future(),
            False,
            None,
            choose,
            ended,
            extra=self.failover_extra if timeout is None else 0.0,
        )

    def batch(self, members: Sequence[Message], choose: QueueChooser | None, timeout: float | None) -> PendingSend:
        """Return a batch of messages as one `PendingSend`, ready for the outbox."""
        topic, deadline = self.topic(members[0].topic), self.deadline(timeout)
        more, ended = None, None
        if self.hooks is not None:
            send = self._before(SendKind.BATCH, members)
            more, ended = send.added, partial(self.hooks.after, send)
        own = self._names.properties
        body, ids, text = _telling(ended, prepare_batch, members, self._config, self._ids, more=more, own=own)
        codes = self._config.retry_codes if choose is None else frozenset()
        pending = PendingSend(topic, ids, 0, body, 0, text, deadline, codes, self._loop.create_future())
        pending.is_batch, pending.choose, pending.ended = True, choose, ended
        pending.extra = self.failover_extra if timeout is None else 0.0
        return pending

    def member(self, message: Message) -> tuple[BatchMember, SendEnded | None]:
        """Return a message encoded for a batch, and the function to call with the send's result or error, if any."""
        more, ended = None, None
        if self.hooks is not None:
            send = self._before(SendKind.SINGLE, [message])
            more, ended = send.added[0], partial(self.hooks.after, send)
        return _telling(ended, prepare_member, message, self._config, self._ids, more), ended

    def batch_properties(self, *, wait_stored: bool) -> bytes:
        """Return the property text of a batch as a whole, escaped for JSON."""
        return batch_properties(self._names.properties, wait_stored=wait_stored)

    def _before(self, kind: SendKind, messages: Sequence[Message]) -> MessageSend:
        """Check the messages, and call the hooks' `before_send`. Return the send that begins."""
        assert self.hooks is not None
        for message in messages:
            check_message(message, self._config)
            if message.message_id is None:
                message.message_id = self._ids.next()
        return self.hooks.before(kind, messages)


def _telling(ended: SendEnded | None, prepare: Callable[P, T], *arguments: P.args, **more: P.kwargs) -> T:
    """Return the result of `prepare(...)`. If it raises an `MQError`, call `ended` with the error first."""
    try:
        return prepare(*arguments, **more)
    except MQError as error:
        if ended is not None:
            ended(None, error)
        raise
