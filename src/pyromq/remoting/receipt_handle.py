"""Receipt handles: the text with which a popped message is acknowledged, and the infos of which clients make it.

    START POP_MS INVISIBLE_MS REVIVE_QUEUE RETRY BROKER QUEUE OFFSET [LOG_OFFSET]

START is the first offset of the pop in the queue. RETRY is 0 for the topic, 1 for the pop retry topic, 2 for the pop
retry topic with `+`. A revive queue of 999 marks an orderly pop. Source: RocketMQ 5.3.3, ExtraInfoUtil and
MQClientAPIImpl.processPopResponse.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pyromq.errors import InvalidReceiptHandle, ProtocolError
from pyromq.excerpt import excerpt
from pyromq.message import Property, StoredMessage
from pyromq.names import RETRY_PREFIX, pop_retry_topic
from pyromq.remoting.bodies import BatchAck
from pyromq.remoting.headers import AckMessage, ChangeInvisibleTime, ChangeInvisibleTimeResponse, PopMessageResponse

ORDERLY_REVIVE_QUEUE = 999
NORMAL, RETRY, RETRY_V2 = "0", "1", "2"  # the topic of a handle

MAX_BITS = 4096  # limit of the bits in one batch acknowledgement: far more than the messages of one pop
_LARGEST = 1 << 63
_NUMBER = "([0-9]{1,19})"
_HANDLE = re.compile(
    f"{_NUMBER} {_NUMBER} {_NUMBER} {_NUMBER} ([012]) ([^ ]+) {_NUMBER} {_NUMBER}(?: ([^ ]*).*)?", re.DOTALL
)
_FIELDS = 8  # fields of the remoting handle; proxies append the log offset


class ReceiptHandle(NamedTuple):
    """The content of a receipt handle. `invisible_ms` counts from `pop_ms`; `log_offset` is -1 if not known."""

    start: int
    pop_ms: int
    invisible_ms: int
    revive_queue: int
    retry: str
    broker_name: str
    queue_id: int
    offset: int
    log_offset: int = -1

    @property
    def is_orderly(self) -> bool:
        return self.revive_queue == ORDERLY_REVIVE_QUEUE

    @property
    def expires_ms(self) -> int:
        """When the message becomes visible again."""
        return self.pop_ms + self.invisible_ms

    def encode(self) -> str:
        words = self if self.log_offset >= 0 else self[:_FIELDS]
        return " ".join(map(str, words))

    def topic(self, group: str, topic: str) -> str:
        """Return the topic that an acknowledgement names: the popped topic, or the group's retry topic of it."""
        if self.retry == NORMAL:
            return topic
        return pop_retry_topic(group, topic) if self.retry == RETRY else f"{RETRY_PREFIX}{group}+{topic}"

    @property
    def of_broker(self) -> ReceiptHandle:
        """The handle as a broker knows it: without the log offset."""
        return self._replace(log_offset=-1)

    def ack(self, group: str, topic: str, *, broker_name: str | None = None) -> AckMessage:
        """Return the request that acknowledges the message; `topic` is the popped topic."""
        return AckMessage(
            consumer_group=group,
            topic=self.topic(group, topic),
            queue_id=self.queue_id,
            receipt_handle=self.encode(),
            offset=self.offset,
            broker_name=broker_name,
        )

    def change(
        self, group: str, topic: str, invisible_ms: int, *, broker_name: str | None = None
    ) -> ChangeInvisibleTime:
        """Return the request that lets the message become visible in `invisible_ms`; `topic` is the popped topic."""
        return ChangeInvisibleTime(
            consumer_group=group,
            topic=self.topic(group, topic),
            queue_id=self.queue_id,
            receipt_handle=self.encode(),
            offset=self.offset,
            invisible_ms=invisible_ms,
            broker_name=broker_name,
        )

    def changed(self, response: ChangeInvisibleTimeResponse) -> ReceiptHandle:
        """Return the handle that is valid after a change."""
        return self._replace(
            start=self.offset,
            pop_ms=response.pop_ms,
            invisible_ms=response.invisible_ms,
            revive_queue=response.revive_queue,
        )


def parse_receipt_handle(text: str) -> ReceiptHandle:
    """Return the content of a receipt handle. Raises `InvalidReceiptHandle`."""
    if (found := _HANDLE.fullmatch(text)) is not None:
        start, pop_ms, invisible_ms, revive_queue, queue_id, offset = map(int, found.group(1, 2, 3, 4, 7, 8))
        if max(start, pop_ms, invisible_ms, revive_queue, queue_id, offset) < _LARGEST:
            log_offset = _number(found[9] or "")
            return ReceiptHandle(
                *(start, pop_ms, invisible_ms, revive_queue, found[5], found[6], queue_id, offset),
                log_offset=-1 if log_offset is None else log_offset,
            )
    raise InvalidReceiptHandle(
        f"receipt handle is invalid: {excerpt(text, 100)!r}; it has 8 words, for example"
        " '0 1700000000000 60000 0 0 broker-a 3 17', and comes with the popped message"
    )


def check_offset(handle: ReceiptHandle) -> None:
    """Raise `InvalidReceiptHandle` if no pop can have the handle's first offset and its offset."""
    if not 0 <= handle.offset - handle.start < MAX_BITS:
        raise InvalidReceiptHandle(
            f"the receipt handle {handle.encode()!r} is invalid: no pop that begins at offset {handle.start} has offset"
            f" {handle.offset}; send the handle that came with the message"
        )


def _number(word: str) -> int | None:
    if word.isascii() and word.isdecimal() and len(word) < 20 and int(word) < _LARGEST:
        return int(word)
    return None


def retry_of(topic: str) -> str:
    """Return the RETRY word for the topic of a record."""
    if not topic.startswith(RETRY_PREFIX):
        return NORMAL
    return RETRY_V2 if "+" in topic else RETRY


def join_starts(starts: Mapping[tuple[str, int], int]) -> str:
    """Return the `startOffsetInfo` of a response, from the first offset by RETRY word and queue id."""
    return ";".join([f"{retry} {queue_id} {start}" for (retry, queue_id), start in starts.items()])


def join_offsets(offsets: Mapping[tuple[str, int], Iterable[int]]) -> str:
    """Return the `msgOffsetInfo` of a response, from the messages' offsets by RETRY word and queue id."""
    return ";".join([f"{retry} {queue} {','.join(map(str, each))}" for (retry, queue), each in offsets.items()])


def join_counts(counts: Mapping[tuple[str, int], Mapping[int, int]]) -> str:
    """Return the `orderCountInfo` of a response: how often each message was handed out before, by offset."""
    words = []
    for (retry, queue_id), by_offset in counts.items():
        words.append(f"{retry} {queue_id} {max(by_offset.values(), default=0)}")
        words += [f"{retry} qo{queue_id}%{offset} {count}" for offset, count in by_offset.items()]
    return ";".join(words)


class PopInfos:
    """The infos of a response to a pop, parsed once, from which each message gets its receipt handle.

    Raises `ProtocolError` for infos that cannot be read.
    """

    def __init__(self, response: PopMessageResponse, broker_name: str) -> None:
        self._response = response
        self._broker_name = broker_name
        self._starts = _parse_info("startOffsetInfo", response.start_offset_info)
        self._counts = _parse_info("orderCountInfo", response.order_count_info)

    def handle(self, message: StoredMessage) -> ReceiptHandle:
        """Return the receipt handle of a message in the response's body."""
        if (text := message.properties.get(Property.POP_CHECK_POINT)) is not None:
            handle = parse_receipt_handle(text if text.count(" ") > _FIELDS - 2 else f"{text} {message.queue_offset}")
            return handle._replace(log_offset=message.log_offset)
        retry = retry_of(message.topic)
        return ReceiptHandle(
            start=self._starts.get((retry, str(message.queue_id)), message.queue_offset),
            pop_ms=self._response.pop_ms,
            invisible_ms=self._response.invisible_ms,
            revive_queue=self._response.revive_queue,
            retry=retry,
            broker_name=self._broker_name,
            queue_id=message.queue_id,
            offset=message.queue_offset,
            log_offset=message.log_offset,
        )

    @property
    def has_counts(self) -> bool:
        """Whether the response says how often messages were handed out before."""
        return bool(self._counts)

    def handle_begins(self) -> dict[int, bytes]:
        """Return how the receipt handles of messages of the popped topic begin, up to the offset, by queue id."""
        response = self._response
        words = f"{response.pop_ms} {response.invisible_ms} {response.revive_queue} {NORMAL} {self._broker_name}"
        return {
            int(queue_id): f"{start} {words} {queue_id} ".encode()
            for (retry, queue_id), start in self._starts.items()
            if retry == NORMAL and queue_id.isdecimal()
        }

    def attempts(self, message: StoredMessage) -> int:
        """Return how often the message has been handed out before: by earlier orderly pops, or as retries."""
        retry, queue_id = retry_of(message.topic), message.queue_id
        by_offset = self._counts.get((retry, f"qo{queue_id}%{message.queue_offset}"))
        if by_offset is None:
            by_offset = self._counts.get((retry, str(queue_id)), 0)
        return max(by_offset, message.reconsume_times)


def _parse_info(name: str, text: str | None) -> dict[tuple[str, str], int]:
    numbers = {}
    for entry in (text or "").split(";"):
        words = entry.split(" ")
        number = _number(words[-1])
        if len(words) == 3 and number is not None:
            numbers[words[0], words[1]] = number
        elif entry:
            raise ProtocolError(
                f"{name} of a response to a pop is not 'RETRY QUEUE NUMBER;...': {excerpt(text, 100)!r}"
            )
    return numbers


def bits_of(offsets: Iterable[int], start: int) -> int:
    """Return offsets as bits: bit n stands for `start` + n."""
    bits = 0
    for offset in offsets:
        bits |= 1 << offset - start
    return bits


def bits_from(bits: int, start: int, offset: int) -> int:
    """Return the bits that stand for `offset` and later offsets."""
    earlier = max(0, offset - start)
    return bits >> earlier << earlier


def offsets_in(bits: int, start: int) -> list[int]:
    """Return the offsets that bits stand for, in ascending order."""
    found = []
    while bits:
        lowest = bits & -bits
        found.append(start + lowest.bit_length() - 1)
        bits ^= lowest
    return found


def encode_bits(bits: int) -> str:
    """Return bits as `BatchAck.bits` has them."""
    return b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()


def decode_bits(text: str) -> int:
    """Return the bits of a `BatchAck`. Raises `InvalidReceiptHandle`."""
    try:
        bits = int.from_bytes(b64decode(text, validate=True), "little")
    except ValueError as error:
        raise InvalidReceiptHandle(f"b={excerpt(text, 100)!r} is not Base64 of a bit set ({error})") from error
    if bits.bit_length() > MAX_BITS:
        raise InvalidReceiptHandle(
            f"b has {bits.bit_length()} bits; a pop spans at most {MAX_BITS} offsets: acknowledge each pop by itself"
        )
    return bits


def batch_acks(group: str, topic: str, handles: Iterable[ReceiptHandle]) -> list[BatchAck]:
    """Return handles as one entry for each pop of a queue; `topic` is the popped topic."""
    pops: dict[tuple[int, int, int, int, str, int], list[int]] = {}
    for start, pop_ms, invisible_ms, revive_queue, retry, _, queue_id, offset, _ in handles:
        pops.setdefault((start, pop_ms, invisible_ms, revive_queue, retry, queue_id), []).append(offset)
    return [
        BatchAck(
            group=group,
            topic=topic,
            retry=retry,
            start=start,
            queue_id=queue_id,
            revive_queue=revive_queue,
            pop_ms=pop_ms,
            invisible_ms=invisible_ms,
            bits=encode_bits(bits_of(offsets, start)),
        )
        for (start, pop_ms, invisible_ms, revive_queue, retry, queue_id), offsets in pops.items()
    ]
