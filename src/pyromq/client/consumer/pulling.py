"""Pulls from a queue once: sends the request, decodes the response, and removes damaged messages.

Records are decoded when the messages are read. A broker sends records as they are on its disk. A record's
checksum covers its stored body only. The queue offset in a record's head is compared with the offset pulled.
"""

from __future__ import annotations

import asyncio
import struct
from dataclasses import astuple, dataclass, replace
from enum import Enum
from functools import lru_cache
from operator import lt

from pyromq import speedups
from pyromq.client.client_config import ConsumerConfig, Damaged
from pyromq.client.client_hooks import FilterMessageHook, filtered
from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.client.cluster.namespace import Namespace
from pyromq.client.consumer.push.send_back import SendBack
from pyromq.compression import MAX_BODY_BYTES
from pyromq.errors import BrokerError, ResponseCode, StoreCorrupt, TopicNotFound, Unavailable, UndecodableBody
from pyromq.excerpt import excerpt
from pyromq.filter.filter import EVERYTHING, Wanted
from pyromq.logs import logger_of
from pyromq.message import MessageQueue, Property, StoredMessage, SysFlag
from pyromq.record import (
    FIXED_SIZE,
    MAGIC,
    MAGIC_AT,
    MAGIC_BYTES,
    decode,
    decode_all,
    decode_plainly,
    said_log_offset,
    sys_flag_of,
    unpack_size_and_magic,
)
from pyromq.remoting.codes import PullFlag
from pyromq.remoting.command import Response
from pyromq.remoting.header import Filled, HeaderTemplate
from pyromq.remoting.headers import PullMessage, PullMessageResponse

logger = logger_of(__name__)


@dataclass(frozen=True, slots=True)
class DamagedMessage:
    """A pulled record that differs from the stored message: the record's place, and the reason in `what`.

    `message` is the record's content, for rescue only; None if the record cannot be read. If it is None, `log_offset`
    is that of the damaged bytes, and `queue_offset` is the lowest that the message can have.
    """

    queue: MessageQueue
    queue_offset: int
    log_offset: int
    what: str
    message: StoredMessage | None

    def __str__(self) -> str:
        return f"{self.queue}, queue offset {self.queue_offset}, log offset {self.log_offset}: {self.what}"


class MessageDamaged(StoreCorrupt):
    """A pulled message differs from the message stored; see `damaged`. Seek behind this message to continue."""

    def __init__(self, damaged: DamagedMessage) -> None:
        super().__init__(f"damaged message in {damaged}")
        self.damaged = damaged


def are_in_place(messages: list[StoredMessage], begin: int, end: int) -> bool:
    """Return whether the messages' queue offsets ascend and are within [begin, end), the range of a pull."""
    offsets = [message.queue_offset for message in messages]
    return not offsets or (begin <= offsets[0] and offsets[-1] < end and all(map(lt, offsets, offsets[1:])))


def examine(
    raw: bytes, queue: MessageQueue, begin: int, end: int, *, verify: bool
) -> tuple[list[StoredMessage], list[DamagedMessage]]:
    """Return the intact and the damaged messages among records pulled from queue offset `begin` up to before `end`.

    With `verify`, checksums and queue offsets are compared; without it only unreadable records count as damaged.
    """
    found = _records(raw, queue, begin, end)
    whole = len(found) == end - begin  # no record was filtered out, so the queue offset of each record is known
    sound: list[StoredMessage] = []
    damaged: list[DamagedMessage] = []
    expected = begin
    for message, what, log_offset in found:
        if message is None:
            damaged.append(DamagedMessage(queue, expected, log_offset, what, None))
        else:
            last = expected if whole else end - 1
            if verify and not expected <= message.queue_offset <= last:
                what = f"its record says queue offset {message.queue_offset}"
            elif verify and message.is_damaged:
                what, expected = "its body does not match its checksum", message.queue_offset
            else:
                expected = message.queue_offset
            if what:
                damaged.append(DamagedMessage(queue, expected, log_offset, what, message))
            else:
                sound.append(message)
        expected += 1
    return sound, damaged


def _records(raw: bytes, queue: MessageQueue, begin: int, end: int) -> list[tuple[StoredMessage | None, str, int]]:
    """Return for each record its message, "" and its log offset; None and the reason if the record cannot be read."""
    found: list[tuple[StoredMessage | None, str, int]] = []
    position = 0
    while position < len(raw):
        try:
            message = decode(raw, position)
        except StoreCorrupt as error:
            found.append((None, f"its record cannot be read ({error})", said_log_offset(raw, position)))
            position = _next_record(raw, position, queue, range(begin, end))
        else:
            found.append((message, "", message.log_offset))
            position += message.size
    return found


def _next_record(raw: bytes, position: int, queue: MessageQueue, offsets: range) -> int:
    """Return the position in `raw` of this pull's next intact record after an unreadable one.

    Return `len(raw)` if there is none.
    """
    while (position := raw.find(MAGIC_BYTES, position + MAGIC_AT + 1) - MAGIC_AT) >= 0:
        try:
            message = decode(raw, position, check_crc=True)
        except StoreCorrupt:
            continue
        if (message.topic, message.queue_id) == (queue.topic, queue.queue_id) and message.queue_offset in offsets:
            return position
    return len(raw)


if speedups.is_active:
    from pyromq.speedups.decoding import RecordDecoder

_decoder = RecordDecoder(StoredMessage) if speedups.is_active else None

FEW = 32  # limit of messages per pull that brokers have by default; a larger pull needs `max_bytes`
BULK_BYTES = 1 << 19  # limit of the records in a pull of more than FEW messages; brokers' own limit is 256 KiB


class PullStatus(Enum):
    """The result of a pull: messages, or the reason why the response has none."""

    FOUND = "FOUND"
    NO_NEW_MESSAGE = "NO_NEW_MSG"  # the queue has no message at the pulled offset yet
    NO_MATCH = "NO_MATCHED_MSG"  # the filter rejects all messages up to `next_offset`: continue there
    OFFSET_MOVED = "OFFSET_ILLEGAL"  # the pulled offset is outside the queue: continue at `next_offset`


_STATUSES = {
    int(ResponseCode.SUCCESS): PullStatus.FOUND,
    int(ResponseCode.PULL_NOT_FOUND): PullStatus.NO_NEW_MESSAGE,
    int(ResponseCode.PULL_RETRY_IMMEDIATELY): PullStatus.NO_MATCH,
    int(ResponseCode.PULL_OFFSET_MOVED): PullStatus.OFFSET_MOVED,
}


@dataclass(slots=True)
class Tally:
    """Counters of one topic since the start. A listener call's seconds end when the event loop handles its result."""

    pulls: int = 0  # pulls that returned messages
    pull_seconds: float = 0.0
    pulled: int = 0  # messages pulled
    calls: int = 0  # calls of listeners
    call_seconds: float = 0.0
    consumed: int = 0  # messages consumed
    failed: int = 0  # messages that a listener did not consume

    def pull(self, count: int, seconds: float) -> None:
        """Count a pull that returned messages."""
        self.pulls += 1
        self.pull_seconds += seconds
        self.pulled += count

    def since(self, earlier: Tally) -> Tally:
        """Return the difference of each counter from an earlier copy."""
        return Tally(*(now - then for now, then in zip(astuple(self), astuple(earlier), strict=True)))


@dataclass(frozen=True, slots=True)
class PullRequest:
    """A pull of at most `max_count` messages that the filter `wanted` accepts.

    The broker waits up to `wait_seconds` until a message arrives; the response may take `timeout` seconds longer.
    `broker_id` 0 is the master. With the pull, the broker commits `commit_offset` for the group. A broker of pyromq
    returns up to `max_bytes` of records, also of more than 32 messages; other brokers ignore `max_bytes`. `verify`
    compares bodies with their checksums.
    """

    max_count: int = 32
    wanted: Wanted = EVERYTHING
    wait_seconds: float = 0.0
    timeout: float = 5.0
    broker_id: int = 0
    commit_offset: int | None = None
    max_bytes: int | None = None
    verify: bool = True
    max_body_bytes: int = MAX_BODY_BYTES  # limit of a decompressed body of a message

    @classmethod
    def once(cls, config: ConsumerConfig, max_count: int, wanted: Wanted, *, wait_seconds: float) -> PullRequest:
        """Return the request of a single pull by the application, at the queue's master."""
        checks = config.verify_checksums, config.max_body_bytes
        return cls(max_count, wanted, wait_seconds, config.timeout, 0, None, None, *checks)

    @classmethod
    def ahead(
        cls,
        config: ConsumerConfig,
        wanted: Wanted,
        *,
        room: int,
        wait_seconds: float,
        broker_id: int,
        commit_offset: int | None = None,
    ) -> PullRequest:
        """Return the request of a prefetching consumer with room for `room` messages.

        The response may have up to `FEW` messages even if `room` is less.
        """
        count = min(config.pull_count, max(room, FEW))
        return cls(
            count,
            wanted,
            wait_seconds,
            config.timeout,
            broker_id,
            commit_offset,
            BULK_BYTES if count > FEW else None,
            config.verify_checksums,
            config.max_body_bytes,
        )


class PullResult:
    """The response to one pull that began at queue offset `offset`.

    `next_offset` is the offset of the next pull; `min_offset` and `max_offset` are the queue's bounds. `raw` has the
    records as stored (see `pyromq.record`), one after another, before the filter by tag names.
    """

    def __init__(
        self, queue: MessageQueue, offset: int, response: Response, request: PullRequest, names: Namespace
    ) -> None:
        header = response.header(PullMessageResponse)
        self.queue = queue
        self.offset = offset
        self.status = _STATUSES[response.code]
        self.next_offset = header.next_offset
        self.min_offset = header.min_offset
        self.max_offset = header.max_offset
        self.suggested_broker_id = header.suggested_broker_id
        self.raw = response.body
        self._request = request
        self._names = names
        self._messages: list[StoredMessage] | None = None
        self._damaged: list[DamagedMessage] = []

    @property
    def messages(self) -> list[StoredMessage]:
        """The wanted messages in order, without the damaged ones; decoded once, when first read."""
        if self._messages is None:
            self._messages = self._decoded()
        return self._messages

    @property
    def damaged(self) -> list[DamagedMessage]:
        """The damaged messages in order; without `verify`, only those whose records cannot be read."""
        if self._messages is None:
            self._messages = self._decoded()
        return self._damaged

    def holding(self, words: tuple[bytes, ...], *, ignore_case: bool = False) -> list[StoredMessage]:
        """Return the wanted messages, perhaps without messages whose records contain none of these words.

        With `ignore_case`, ASCII letters match in either case; the words must then be in lower case. Without `verify`,
        records that contain none of the words are not decoded. Messages with compressed bodies are always included. May
        be called once, in any thread.
        """
        if self._messages is None and not self._request.verify and words:
            try:
                found = decode_holding(self.raw, words, broker_name=self.queue.broker_name, ignore_case=ignore_case)
            except StoreCorrupt:
                return self.messages
            return self._as_asked(found)
        return self.messages

    def _decoded(self) -> list[StoredMessage]:
        verify = self._request.verify
        try:
            messages = decode_all(self.raw, check_crc=verify, broker_name=self.queue.broker_name)
            sound = not verify or are_in_place(messages, self.offset, self.next_offset)
        except StoreCorrupt:
            sound = False
        if not sound:
            place = self._names.wrap_queue(self.queue), self.offset, self.next_offset
            messages, self._damaged = examine(bytes(self.raw), *place, verify=verify)
            self._damaged = [replace(each, queue=self.queue) for each in self._damaged]
            for message in messages:
                message.broker_name = self.queue.broker_name
        return self._as_asked(messages)

    def _as_asked(self, messages: list[StoredMessage]) -> list[StoredMessage]:
        """Return the messages with the wanted tags; set the limit of their bodies and the application's topic names."""
        wanted = self._request.wanted
        if self._request.max_body_bytes != MAX_BODY_BYTES:
            for message in messages:
                message.max_body_bytes = self._request.max_body_bytes
        if self._names.name:
            for message in messages:
                message.topic = self._names.unwrap(message.topic)
        if wanted.accepts_code is not None:  # the broker compares only hashes of tags, so other tags may match
            messages = [message for message in messages if wanted.accepts_tag(message.tags)]
        return messages


async def pull(
    cluster: ClusterClient, group: str, queue: MessageQueue, offset: int, *, request: PullRequest
) -> PullResult:
    """Pull from a queue once. Raises a broker's refusal (`BrokerError`), or `Unavailable` after the timeout."""
    flags = PullFlag.SUBSCRIPTION
    if request.commit_offset is not None:
        flags |= PullFlag.COMMIT_OFFSET
    wire = cluster.names.wrap_queue(queue) if cluster.names.name else queue
    values = (offset, request.commit_offset or 0, request.max_count)
    at_once = Filled(_template(group, wire, int(flags), 0, request.wanted, request.max_bytes), values)
    header = at_once
    if request.wait_seconds > 0:
        held = int(flags | PullFlag.SUSPEND), int(request.wait_seconds * 1000)
        header = Filled(_template(group, wire, *held, request.wanted, request.max_bytes), values)
    response = await cluster.ask_queue(
        queue,
        header,
        timeout=request.wait_seconds + request.timeout,
        broker_id=request.broker_id,
        retried=at_once,
    )
    response.check(*_STATUSES)
    return PullResult(queue, offset, response, request, cluster.names)


@lru_cache(maxsize=4096)
def _template(
    group: str, queue: MessageQueue, flags: int, suspend_ms: int, wanted: Wanted, max_bytes: int | None
) -> HeaderTemplate:
    """Return the header of a queue's pull requests, with the offsets and the count to be filled in."""
    return HeaderTemplate(
        PullMessage,
        ("queue_offset", "commit_offset", "max_count"),
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        sys_flag=flags,
        suspend_ms=suspend_ms,
        subscription=wanted.expression,
        subscription_version=0,
        expression_type=wanted.expression_type,
        broker_name=queue.broker_name,
        max_bytes=max_bytes,
    )


def decode_holding(
    raw: bytes | bytearray | memoryview, words: tuple[bytes, ...], *, broker_name: str = "", ignore_case: bool = False
) -> list[StoredMessage]:
    """Decode the records that contain one of these words anywhere, and all records with compressed bodies.

    With `ignore_case`, the words are in lower case, and are found in ASCII letters of either case.

    Raises `StoreCorrupt` if a decoded record is broken, or if a record does not begin where the previous one ends.
    """
    text = bytes(raw).lower() if ignore_case else None
    if _decoder is not None and (found := _decoder.decode_holding(raw, words, broker_name, text)) is not None:
        return found
    data = bytes(raw)
    text = data if text is None else text
    messages = []
    position = 0
    while position < len(data):
        end = position + _size_at(data, position)
        is_compressed = sys_flag_of(memoryview(data)[position:]) & SysFlag.COMPRESSED
        if is_compressed or any(text.find(word, position, end) >= 0 for word in words):
            messages.append(decode_plainly(data, position))
            messages[-1].broker_name = broker_name
        position = end
    return messages


def _size_at(data: bytes, position: int) -> int:
    try:
        size, magic = unpack_size_and_magic(data, position)
    except struct.error:
        size = magic = 0
    if magic != MAGIC or not FIXED_SIZE <= size <= len(data) - position:
        raise StoreCorrupt(f"no record at byte {position} of {len(data)}")
    return int(size)


# Limit of the decompressed bodies (bytes) kept per pull, to decompress them once: room for a few hundred messages.
_MAX_KEPT = 1 << 20


class DamagedMessagePolicy:
    """Removes damaged and undecodable messages from pulls, as `ConsumerConfig.damaged` says.

    `count` is the number of messages removed. With `send_back` they can become dead letters; without it they are
    skipped.
    """

    def __init__(self, group: str, config: ConsumerConfig, send_back: SendBack | None) -> None:
        self.count = 0
        self._group = group
        self._config = config
        self._send_back = send_back
        self._filters = [hook for hook in config.hooks if isinstance(hook, FilterMessageHook)]

    async def sift(self, result: PullResult) -> tuple[list[StoredMessage], int, MessageDamaged | None]:
        """Return the messages to consume, the next queue offset, and the error that must stop the consumer, or None.

        Raises `MQError` if a dead letter cannot be written now.
        """
        messages, next_offset, failure = result.messages, result.next_offset, None
        if result.damaged and self._config.damaged is Damaged.STOP:
            first = result.damaged[0]
            messages = [message for message in messages if message.queue_offset < first.queue_offset]
            next_offset, failure = first.queue_offset, MessageDamaged(first)
        else:
            for damaged in result.damaged:
                await self._skip(damaged)
        if not self._config.deliver_undecodable:
            messages = await self._decodable(messages)
        if self._filters and messages:
            messages = filtered(self._filters, self._group, messages)
        return messages, next_offset, failure

    async def _skip(self, damaged: DamagedMessage) -> None:
        fate = "skipped"
        if self._config.damaged is Damaged.DEAD_LETTER and damaged.message is not None and self._send_back is not None:
            damaged.message.properties[Property.DAMAGED] = damaged.what
            try:
                await self._send_back.make_dead_letter(damaged.message, str(damaged))
            except TopicNotFound as error:  # the retry topic, not the topic pulled, whose offsets must stay
                raise Unavailable(str(error)) from error
            fate = "now a dead letter"
        self.count += 1
        logger.error("group %s: damaged message in %s; it is %s", self._group, damaged, fate)

    async def _decodable(self, messages: list[StoredMessage]) -> list[StoredMessage]:
        """Return the messages whose bodies can be decompressed; make the others dead letters."""
        compressed = [message for message in messages if message.sys_flag & SysFlag.COMPRESSED]
        if not compressed:
            return messages
        refused = set()
        for message, error in await asyncio.to_thread(_unpack, compressed):
            await self._make_dead_letter(message, error)
            refused.add(message.queue_offset)
        return [message for message in messages if message.queue_offset not in refused] if refused else messages

    async def _make_dead_letter(self, message: StoredMessage, error: UndecodableBody) -> None:
        """Make a message a dead letter. Skip it if brokers refuse that, so that later messages are consumed."""
        fate = "skipped"
        if self._send_back is not None:
            try:
                await self._send_back.make_dead_letter(message, excerpt(error))
                fate = "now a dead letter"
            except BrokerError as refusal:
                if refusal.retriable:
                    raise
                fate = f"skipped, because it cannot be made a dead letter: {refusal}"
        self.count += 1
        logger.error(
            "group %s: message %s in %s, offset %d, is %s: %s",
            *(self._group, message.message_id, message.queue, message.queue_offset, fate, error),
        )


def _unpack(compressed: list[StoredMessage]) -> list[tuple[StoredMessage, UndecodableBody]]:
    """Decompress bodies, keeping up to `_MAX_KEPT` bytes. Return messages with invalid bodies and their errors."""
    refused = []
    left = _MAX_KEPT
    for message in compressed:
        try:
            left -= message.unpack(left)
        except UndecodableBody as error:
            refused.append((message, error))
    return refused
