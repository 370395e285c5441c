"""One pull: the request, and its answer as messages. Decoding waits until somebody looks at the messages."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache

from pyromq import speedups
from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.client.cluster.namespace import Namespace
from pyromq.client.config import ConsumerConfig
from pyromq.client.consumer.damaged_message import DamagedMessage, are_in_place, examine
from pyromq.compression import MAX_BODY_BYTES
from pyromq.errors import ResponseCode, StoreCorrupt
from pyromq.filter.subscribed import Wanted
from pyromq.filter.tags import EVERYTHING
from pyromq.message import MessageQueue, StoredMessage, SysFlag
from pyromq.record import FIXED_SIZE, MAGIC, decode_all, decode_plainly, sys_flag_of, unpack_size_and_magic
from pyromq.remoting.codes import PullFlag
from pyromq.remoting.command import Response
from pyromq.remoting.header import Filled, HeaderTemplate
from pyromq.remoting.headers import PullMessage, PullMessageResponse

if speedups.is_active:
    from pyromq.speedups.decoding import RecordDecoder

_decoder = RecordDecoder(StoredMessage) if speedups.is_active else None

FEW = 32  # messages that every broker gives at once
BULK_BYTES = 1 << 19  # asked for with more: 32 messages and 256 KiB are what a broker gives who is not asked


class PullStatus(Enum):
    """What a pull found."""

    FOUND = "FOUND"
    NO_NEW_MESSAGE = "NO_NEW_MSG"  # nothing at that offset yet
    NO_MATCH = "NO_MATCHED_MSG"  # messages, but none that is wanted: go on at `next_offset`
    OFFSET_MOVED = "OFFSET_ILLEGAL"  # the offset is outside the queue: go on at `next_offset`


_STATUSES = {
    int(ResponseCode.SUCCESS): PullStatus.FOUND,
    int(ResponseCode.PULL_NOT_FOUND): PullStatus.NO_NEW_MESSAGE,
    int(ResponseCode.PULL_RETRY_IMMEDIATELY): PullStatus.NO_MATCH,
    int(ResponseCode.PULL_OFFSET_MOVED): PullStatus.OFFSET_MOVED,
}


@dataclass(frozen=True, slots=True)
class PullRequest:
    """What to pull: at most `max_count` messages that are `wanted`, waiting at the broker for up to `wait_seconds`.

    `timeout` is how long the answer may take beyond that; `broker_id` 0 is the master. `commit_offset`, when given,
    is stored as where the group goes on. A broker of ours gives up to `max_bytes` of records (and more than 32
    messages) when asked so; other brokers do not look at it. `verify` compares bodies with their checksums.
    """

    max_count: int = 32
    wanted: Wanted = EVERYTHING
    wait_seconds: float = 0.0
    timeout: float = 5.0
    broker_id: int = 0
    commit_offset: int | None = None
    max_bytes: int | None = None
    verify: bool = True
    max_body_bytes: int = MAX_BODY_BYTES  # how much a compressed body may unfold to

    @classmethod
    def once(cls, config: ConsumerConfig, max_count: int, wanted: Wanted, *, wait_seconds: float) -> PullRequest:
        """Return what is asked for by who pulls by hand."""
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
        """Return what is asked for by who fetches ahead, up to `room` messages or a few more: many at once."""
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
    """The answer to one pull, from queue offset `offset` on.

    `next_offset` is where to go on, `min_offset` and `max_offset` are the queue's bounds, `raw` the records back to
    back as stored (see `pyromq.record`), before the filter by tag names.
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
        """The wanted messages in order, without those that are `damaged`; decoded once."""
        if self._messages is None:
            self._messages = self._decoded()
        return self._messages

    @property
    def damaged(self) -> list[DamagedMessage]:
        """The messages that are not what was stored, in order: unless it was not to be looked at, unread ones only."""
        if self._messages is None:
            self._messages = self._decoded()
        return self._damaged

    def holding(self, words: tuple[bytes, ...]) -> list[StoredMessage]:
        """Return the wanted messages, perhaps without those that hold none of these words as they are stored.

        Nothing else is decoded where checksums are not to be verified. Compressed bodies are not looked into: these
        messages are all there. Safe to call from any thread, once.
        """
        if self._messages is None and not self._request.verify and words:
            try:
                found = decode_holding(self.raw, words, broker_name=self.queue.broker_name)
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
        """Return those that are wanted, with the limit of bodies, and topics as they are called in the namespace."""
        wanted = self._request.wanted
        if self._request.max_body_bytes != MAX_BODY_BYTES:
            for message in messages:
                message.max_body_bytes = self._request.max_body_bytes
        if self._names.name:
            for message in messages:
                message.topic = self._names.unwrap(message.topic)
        if wanted.accepts_code is not None:  # the broker compared hashes only
            messages = [message for message in messages if wanted.accepts_tag(message.tags)]
        return messages


async def pull(
    cluster: ClusterClient, group: str, queue: MessageQueue, offset: int, *, request: PullRequest
) -> PullResult:
    """Pull once. Raises what the broker answers, or `Unavailable` when no broker answers in time."""
    flags = PullFlag.SUBSCRIPTION
    if request.wait_seconds > 0:
        flags |= PullFlag.SUSPEND
    if request.commit_offset is not None:
        flags |= PullFlag.COMMIT_OFFSET
    wire = cluster.names.wrap_queue(queue)
    template = _template(group, wire, int(flags), int(request.wait_seconds * 1000), request.wanted, request.max_bytes)
    header = Filled(template, (offset, request.commit_offset or 0, request.max_count))
    response = await cluster.ask_queue(
        queue, header, timeout=request.wait_seconds + request.timeout, broker_id=request.broker_id
    )
    response.check(*_STATUSES)
    return PullResult(queue, offset, response, request, cluster.names)


@lru_cache(maxsize=4096)
def _template(
    group: str, queue: MessageQueue, flags: int, suspend_ms: int, wanted: Wanted, max_bytes: int | None
) -> HeaderTemplate:
    """Return the request in which only where and how much changes from pull to pull."""
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
    raw: bytes | bytearray | memoryview, words: tuple[bytes, ...], *, broker_name: str = ""
) -> list[StoredMessage]:
    """Return, of records back to back, those that hold one of these words anywhere, and all with compressed bodies.

    Raises `StoreCorrupt` where one of these is broken, or where the next record does not begin behind the one before.
    """
    if _decoder is not None and (found := _decoder.decode_holding(raw, words, broker_name)) is not None:
        return found
    data = bytes(raw)
    messages = []
    position = 0
    while position < len(data):
        end = position + _size_at(data, position)
        is_compressed = sys_flag_of(memoryview(data)[position:]) & SysFlag.COMPRESSED
        if is_compressed or any(data.find(word, position, end) >= 0 for word in words):
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
