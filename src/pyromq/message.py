"""Messages as users see them (`Message`), as they are stored (`StoredMessage`), and the text form of properties.

No bytes on disk (see `record`) and no sockets here.
"""

from __future__ import annotations

import math
import operator
import socket
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple, Self, TypeVar, overload

import msgspec

from pyromq.compression import MAX_BODY_BYTES, check_compressed, decompress
from pyromq.errors import IllegalMessage, UndecodableBody, UsageError
from pyromq.json_body import encode_json, json_reader
from pyromq.names import RETRY_PREFIX
from pyromq.sys_flag import SysFlag as SysFlag  # public here, for readers of records

T = TypeVar("T")

NAME_VALUE = "\x01"  # between a property's name and its value
PAIRS = "\x02"  # between two properties; RocketMQ 5 also writes one after the last property
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


_reserved_names: set[str] = set()


def _reserved(name: str) -> str:
    """Declare and return the name of a property that applications must not set."""
    _reserved_names.add(name)
    return name


class Property:
    """Names of the message properties that RocketMQ or pyromq uses.

    Source: MessageConst, STRING_HASH_SET, of 4.9.8 and 5.

    A new name is declared here, and nowhere else. Producers, the console and Spark refuse to set reserved names.
    """

    KEYS = _reserved("KEYS")
    TAGS = _reserved("TAGS")
    WAIT = _reserved("WAIT")
    DELAY = _reserved("DELAY")
    RETRY_TOPIC = _reserved("RETRY_TOPIC")
    REAL_TOPIC = _reserved("REAL_TOPIC")
    REAL_QUEUE_ID = _reserved("REAL_QID")
    TRANSACTION = _reserved("TRAN_MSG")
    PRODUCER_GROUP = _reserved("PGROUP")
    TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
    CHECK_IMMUNITY_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
    MIN_OFFSET = _reserved("MIN_OFFSET")
    MAX_OFFSET = _reserved("MAX_OFFSET")
    ORIGIN_MESSAGE_ID = _reserved("ORIGIN_MESSAGE_ID")
    RECONSUME_TIME = _reserved("RECONSUME_TIME")
    MAX_RECONSUME_TIMES = _reserved("MAX_RECONSUME_TIMES")
    RETRY_REASON = "RETRY_REASON"  # only in pyromq: why a listener failed, `ValueError: no such order`
    DAMAGED = "DAMAGED"  # only in pyromq, of a dead letter: what is wrong with the original record
    UNIQUE_KEY = _reserved("UNIQ_KEY")
    REGION = _reserved("MSG_REGION")
    TRACE_ON = _reserved("TRACE_ON")
    INSTANCE_ID = _reserved("INSTANCE_ID")
    CORRELATION_ID = _reserved("CORRELATION_ID")
    REPLY_TO_CLIENT = _reserved("REPLY_TO_CLIENT")
    TTL = _reserved("TTL")
    ARRIVE_TIME = _reserved("ARRIVE_TIME")
    PUSH_REPLY_TIME = _reserved("PUSH_REPLY_TIME")
    CLUSTER = _reserved("CLUSTER")
    MESSAGE_TYPE = _reserved("MSG_TYPE")
    TIMER_DELAY_SECONDS = _reserved("TIMER_DELAY_SEC")
    TIMER_DELAY_MS = _reserved("TIMER_DELAY_MS")
    TIMER_DELIVER_MS = _reserved("TIMER_DELIVER_MS")
    TIMER_OUT_MS = _reserved("TIMER_OUT_MS")
    TIMER_CANCELS = _reserved("TIMER_DEL_UNIQKEY")
    SHARDING_KEY = "__SHARDINGKEY"
    FIRST_POP_TIME = "1ST_POP_TIME"  # when the message was first popped, ms; of RocketMQ 5, like the next three
    POP_CHECK_POINT = "POP_CK"  # receipt handle of a message from a retry topic
    DEAD_LETTER_TOPIC = "DLQ_ORIGIN_TOPIC"  # of a dead letter: original topic and id
    DEAD_LETTER_ID = "DLQ_ORIGIN_MESSAGE_ID"
    # Names reserved by RocketMQ, without a meaning in pyromq.
    BUYER_ID = _reserved("BUYER_ID")
    TRANSFER_FLAG = _reserved("TRANSFER_FLAG")
    CORRECTION_FLAG = _reserved("CORRECTION_FLAG")
    MQ2_FLAG = _reserved("MQ2_FLAG")
    CONSUME_START_TIME = _reserved("CONSUME_START_TIME")
    INNER_MULTI_QUEUE_OFFSET = _reserved("INNER_MULTI_QUEUE_OFFSET")


RESERVED_PROPERTIES = frozenset(_reserved_names)

# The properties with which a producer sets a delivery time.
TIMER_PROPERTIES = (Property.TIMER_DELAY_SECONDS, Property.TIMER_DELAY_MS, Property.TIMER_DELIVER_MS)


def encode_properties(properties: Mapping[str, str]) -> str:
    """Return properties in text form: `name 01 value 02 name 01 value`, without a closing separator."""
    return PAIRS.join([f"{name}{NAME_VALUE}{value}" for name, value in properties.items()])


def decode_properties(text: str) -> dict[str, str]:
    """Parse the text form of properties.

    Pairs without a separator, a name or a value are skipped; the last of equal names counts.
    """
    properties = {}
    for pair in text.split(PAIRS):
        name, separator, value = pair.partition(NAME_VALUE)
        if separator and name and value:
            properties[name] = value
    return properties


class MessageQueue(NamedTuple):
    """One queue of a topic at one broker.

    Queues sort by topic, then broker name, then queue id, as allocation strategies need.
    """

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        """Return the queue as logs and errors name queues."""
        return f"queue {self.queue_id} of {self.topic} at {self.broker_name}"


@dataclass(slots=True)
class Message:
    """A message to send.

    `tags` is one tag. `keys` are words by which a query finds the message: several, or one string with spaces between
    them. `properties` are free name-value strings. `delay_level` is 1 to 18 (0: none). `deliver_at` (a datetime, or ms
    since 1970) or `delay` (seconds, or a timedelta) choose any time of delivery up to the broker's limit, 30 days by
    default. With `wait_stored` false the broker responds before flush and replica have confirmed. `message_id` (32 hex
    digits) is set once by the producer, and stays the same over retries.
    """

    topic: str
    body: bytes
    tags: str | None = None
    keys: str | Iterable[str] = ()
    properties: dict[str, str] = field(default_factory=dict)
    flag: int = 0
    delay_level: int = 0
    wait_stored: bool = True
    message_id: str | None = None
    deliver_at: datetime | int | None = None
    delay: timedelta | float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.keys, str):
            self.keys = tuple(self.keys.split(" ")) if self.keys else ()

    @classmethod
    def json(cls, topic: str, value: object, **more: Any) -> Self:
        """Return a message whose body is the value as JSON; `more` are further arguments of `Message`.

        The value has a built-in type, or is a dataclass, a `msgspec.Struct` or a pydantic model. Raises
        `IllegalMessage` for a value that JSON cannot express.
        """
        return cls(topic, encode_json(value), **more)

    def all_properties(self) -> dict[str, str]:
        """Return free and system properties in one dict.

        Raises `IllegalMessage` naming a property that cannot be sent.
        """
        for name, value in self.properties.items():
            check_property(name, value)
        properties = dict(self.properties)
        if keys := " ".join(self.keys):
            properties[Property.KEYS] = keys
        if self.message_id:
            properties[Property.UNIQUE_KEY] = self.message_id
        properties[Property.WAIT] = "true" if self.wait_stored else "false"
        if self.delay_level:
            properties[Property.DELAY] = str(self.delay_level)
        if self.is_timed:
            self._add_time(properties)
        if self.tags:
            properties[Property.TAGS] = self.tags
        for name in (Property.KEYS, Property.TAGS):
            _check_text(name, properties.get(name, ""))
        return properties

    @property
    def is_timed(self) -> bool:
        """Whether the message has a delivery time."""
        return self.deliver_at is not None or self.delay is not None

    def _add_time(self, properties: dict[str, str]) -> None:
        """Add the property with the message's delivery time in whole ms, rounded up."""
        ways = [f"{name}={getattr(self, name)!r}" for name in ("delay_level", "deliver_at", "delay")]
        if bool(self.delay_level) + (self.deliver_at is not None) + (self.delay is not None) > 1:
            raise IllegalMessage(f"give one of {', '.join(ways)}, not several")
        try:
            if isinstance(self.deliver_at, bool) or isinstance(self.delay, bool):
                raise TypeError("a truth value is not a time")
            if self.deliver_at is not None:
                properties[Property.TIMER_DELIVER_MS] = str(_moment_ms(self.deliver_at))
            elif self.delay is not None:
                properties[Property.TIMER_DELAY_MS] = str(_duration_ms(self.delay))
        except (TypeError, ValueError, OverflowError) as error:
            raise IllegalMessage(
                f"{ways[1] if self.delay is None else ways[2]}: deliver_at is a datetime or ms since 1970, delay is"
                f" seconds or a timedelta ({error})"
            ) from error


def _moment_ms(moment: datetime | int) -> int:
    """Return a time as ms since 1970, rounded up. A datetime without a zone is local time."""
    if isinstance(moment, datetime):
        return -((_EPOCH - moment.astimezone(UTC)) // _MS)
    return operator.index(moment)


def _duration_ms(duration: timedelta | float) -> int:
    ms = -(-duration // _MS) if isinstance(duration, timedelta) else math.ceil(duration * 1000)
    if ms < 0:
        raise ValueError("it is negative")
    return ms


def check_property(name: str, value: str) -> None:
    """Raise `IllegalMessage` if an application must not set this property."""
    if not isinstance(name, str) or not isinstance(value, str):
        raise IllegalMessage(f"property {name!r}={value!r}: name and value must be strings")
    if not name.strip() or not value.strip():
        raise IllegalMessage(f"property {name!r}={value!r}: name and value must not be blank")
    if name in RESERVED_PROPERTIES:
        raise IllegalMessage(f"property {name!r} is used by the system; choose another name")
    _check_text(name, name + value)


def _check_text(name: str, text: str) -> None:
    if NAME_VALUE in text or PAIRS in text:
        raise IllegalMessage(f"property {name!r} contains a separator (character 1 or 2)")


class StoredMessage(msgspec.Struct):
    """A message in the commit log: a broker appends the message, a consumer receives the message.

    Times are ms since 1970. `born_address` and `store_address` are 4 or 16 bytes of IP and 4 of port. `stored_body` is
    the body as stored, maybe compressed; `body` is the application's body, at most `max_body_bytes` long.
    `queue_offset` is the index in the queue, `log_offset` the byte in the commit log, `size` the record's bytes. Only
    receivers know `broker_name`.
    """

    topic: str
    stored_body: bytes
    property_text: str = ""
    queue_id: int = 0
    flag: int = 0
    sys_flag: int = 0
    born_ms: int = 0
    born_address: bytes = bytes(8)
    reconsume_times: int = 0
    prepared_offset: int = 0
    queue_offset: int = 0
    log_offset: int = 0
    size: int = 0
    store_ms: int = 0
    store_address: bytes = bytes(8)
    broker_name: str = ""
    body_crc: int = 0
    _properties: dict[str, str] | None = None
    max_body_bytes: int = MAX_BODY_BYTES
    _body: bytes | None = None  # decompressed by `unpack`
    value: Any = None  # decoded from the body, for a listener with a type
    receipt_handle: str | None = None  # set by `SimpleConsumer.receive`: acknowledges this delivery of the message

    @property
    def properties(self) -> dict[str, str]:
        """All properties, including those of RocketMQ. The property text is parsed once."""
        if self._properties is None:
            self._properties = decode_properties(self.property_text)
        return self._properties

    @property
    def body(self) -> bytes:
        """The application's body, decompressed if the record is compressed. Raises `UndecodableBody`."""
        if not self.sys_flag & SysFlag.COMPRESSED:
            return self.stored_body
        if self._body is not None:
            return self._body
        return decompress(self.stored_body, self.sys_flag, self.max_body_bytes)

    @overload
    def json(self) -> Any: ...
    @overload
    def json(self, type: type[T]) -> T: ...
    def json(self, type: Any = Any) -> Any:
        """Return the body, which is JSON, as a value of a type: a dataclass, a `msgspec.Struct`, a pydantic model.

        Without a type, of Python's own types. Raises `UnfitBody` if the body does not fit the type, `UndecodableBody`
        if it cannot be decompressed.
        """
        return json_reader(type)(self.body)

    @property
    def body_error(self) -> UndecodableBody | None:
        """The error that reading `body` raises; None if reading succeeds. Decompresses the body and keeps nothing."""
        if self.sys_flag & SysFlag.COMPRESSED:
            try:
                check_compressed(self.stored_body, self.sys_flag, self.max_body_bytes)
            except UndecodableBody as error:
                return error
        return None

    def unpack(self, max_kept: int) -> int:
        """Decompress the body of a compressed message, and keep the result if it has at most `max_kept` bytes.

        Return the number of bytes kept. Raises `UndecodableBody`.
        """
        try:
            self._body = decompress(self.stored_body, self.sys_flag, min(max_kept, self.max_body_bytes))
        except UndecodableBody:
            check_compressed(self.stored_body, self.sys_flag, self.max_body_bytes)
            return 0  # the body is valid, but too large to be kept
        return len(self._body)

    @property
    def is_damaged(self) -> bool:
        """Whether the stored body does not match its checksum; computed at each call.

        Consumers never deliver a damaged message.
        """
        return zlib.crc32(self.stored_body) & 0x7FFFFFFF != self.body_crc

    @property
    def tags(self) -> str | None:
        return self.properties.get(Property.TAGS)

    @property
    def keys(self) -> list[str]:
        return self.properties.get(Property.KEYS, "").split()

    @property
    def message_id(self) -> str:
        """The producer's unique id; the offset id for a message that has no unique id."""
        return self.properties.get(Property.UNIQUE_KEY) or self.offset_message_id

    @property
    def offset_message_id(self) -> str:
        """The broker's id of the message: store address and log offset as upper-case hex."""
        return self.store_address.hex().upper() + f"{self.log_offset:016X}"

    @property
    def born_host(self) -> str:
        return format_address(self.born_address)

    @property
    def store_host(self) -> str:
        return format_address(self.store_address)

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker_name, self.queue_id)

    @property
    def original_topic(self) -> str:
        """The topic that the application sent to. For a retried message `topic` is the retry topic."""
        if self.topic.startswith(RETRY_PREFIX):
            return self.properties.get(Property.RETRY_TOPIC, self.topic)
        return self.topic


class SendStatus(Enum):
    """The broker's confirmation of a sent message.

    With any status but OK, the message is stored, but less safely than configured.
    """

    OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


@dataclass(frozen=True, slots=True)
class SendResult:
    """The queue and offset of a sent message, and its ids.

    For a batch, both ids are the members' ids joined by commas.
    """

    status: SendStatus
    message_id: str
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None
    recall_handle: str | None = None  # with this handle a scheduled message can be cancelled


def pack_address(host: str, port: int) -> bytes:
    """Return the IP address (4 or 16 bytes) and the port (4 bytes) as bytes, as records and offset ids have them.

    Raises `UsageError` for a host that is not an IP address.
    """
    return _pack_ip(host) + struct.pack(">i", port)


@lru_cache(maxsize=4096)
def _pack_ip(host: str) -> bytes:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.inet_pton(family, host)
    except OSError as error:
        raise UsageError(f"{host!r} is not an IP address; records hold addresses, not host names") from error


@lru_cache(maxsize=4096)
def format_address(address: bytes) -> str:
    """Return a packed address as `ip:port`; an IPv6 address is in brackets."""
    ip, port = address[:-4], int.from_bytes(address[-4:], "big")
    return join_address(socket.inet_ntop(socket.AF_INET if len(ip) == 4 else socket.AF_INET6, ip), port)


def join_address(host: str, port: int) -> str:
    """Return `host:port`; an IPv6 address is in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
