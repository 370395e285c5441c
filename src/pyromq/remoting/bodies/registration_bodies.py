"""JSON bodies with what name servers keep: routes, clusters, and registrations of brokers, plain and compressed.

Source: RocketMQ 4.9.8, TopicRouteData, ClusterInfo, RegisterBrokerBody.
"""

from __future__ import annotations

import re
import struct
import zlib

import msgspec
from msgspec import field

from pyromq.errors import ProtocolError
from pyromq.remoting.bodies.body import Body, DataVersion
from pyromq.remoting.bodies.topic_bodies import TopicConfig, TopicConfigTable
from pyromq.remoting.json_quirks import REGISTRATION, REQUEST, decode_body, encode_body
from pyromq.slow_work import run_blocking, yield_slice


class QueuesAtBroker(Body):
    """The queues of a topic at one broker, and their permission."""

    broker_name: str
    permission: int = field(name="perm", default=6)
    read_queues: int = field(name="readQueueNums", default=0)
    write_queues: int = field(name="writeQueueNums", default=0)
    sys_flag: int = field(name="topicSysFlag", default=0)


class BrokerAddresses(Body):
    """The addresses of a broker name by broker id; id 0 is the master.

    `failover` is True for a replica set, and `epoch` is the highest epoch of a master of the set. Only pyromq
    has both members, and Java clients ignore them.
    """

    broker_name: str
    cluster: str = ""
    addresses: dict[int, str] = field(name="brokerAddrs", default_factory=dict)
    epoch: int | None = None
    failover: bool | None = None


class TopicRoute(Body):
    """Body of a response: the brokers and queues of a topic."""

    brokers: list[BrokerAddresses] = field(name="brokerDatas", default_factory=list)
    filter_servers: dict[str, list[str]] = field(name="filterServerTable", default_factory=dict)
    order_conf: str | None = field(name="orderTopicConf", default=None)
    queues: list[QueuesAtBroker] = field(name="queueDatas", default_factory=list)


class ClusterTable(Body):
    """Body of a response: all brokers by name, and the broker names of each cluster.

    `absent` has the topics of each broker that left; only pyromq has this member, and Java clients ignore it.
    """

    brokers: dict[str, BrokerAddresses] = field(name="brokerAddrTable", default_factory=dict)
    clusters: dict[str, list[str]] = field(name="clusterAddrTable", default_factory=dict)
    absent: dict[str, list[str]] | None = field(name="absentTopics", default=None)


class BrokerRegistration(Body):
    """Body of a registration: the topics and filter servers of a broker."""

    filter_servers: list[str] = field(name="filterServerList", default_factory=list)
    topics: TopicConfigTable = field(name="topicConfigSerializeWrapper", default_factory=TopicConfigTable)


# The compressed form of a registration: a zlib stream of
#     int n, DataVersion as JSON | int topics | per topic: int n, text | int n, filter servers as JSON
#     where a topic's text is `name readQueues writeQueues permission filterType`

# Limit of a decompressed registration: as much as a frame holds without compression, 100,000 topics.
MAX_REGISTRATION_BYTES = 1 << 24

_INT = struct.Struct(">i")


def compress_registration(registration: BrokerRegistration) -> bytes:
    """Return the compressed form of a registration. This form has no room for a topic's order flag and sysFlag."""
    table = registration.topics
    texts = [f"{t.name} {t.read_queues} {t.write_queues} {t.permission} {t.filter_type}" for t in table.topics.values()]
    parts = [_sized(encode_body(table.data_version)), _INT.pack(len(texts))]
    parts += [_sized(text.encode()) for text in texts]
    parts.append(_sized(msgspec.json.encode(registration.filter_servers)))
    return zlib.compress(b"".join(parts), 9)


def decompress_registration(raw: bytes) -> BrokerRegistration:
    """Return the registration in compressed bytes, decoded without interruption. Raises `ProtocolError`."""
    return run_blocking(read_compressed(raw))


async def read_compressed(raw: bytes) -> BrokerRegistration:
    """Decode a compressed registration in slices (`slow_work.yield_slice`).

    Raises `ProtocolError`.
    """
    try:
        data = await _decompressed(raw)
        version, position = _take(data, 0)
        count = _INT.unpack_from(data, position)[0]
        position += _INT.size
        topics = {}
        for number in range(count):
            text, position = _take(data, position)
            topic = _topic_of_text(text.decode())
            topics[topic.name] = topic
            if number % _AT_ONCE == 0:
                await yield_slice()
        servers, _ = _take(data, position)
        table = TopicConfigTable(data_version=decode_body(DataVersion, version, REQUEST), topics=topics)
        return BrokerRegistration(topics=table, filter_servers=msgspec.json.decode(servers, type=list[str]))
    except (zlib.error, struct.error, ValueError, msgspec.DecodeError) as error:
        raise ProtocolError(f"compressed registration of {len(raw)} bytes cannot be read: {error}") from error


async def _decompressed(raw: bytes) -> bytes:
    stream = zlib.decompressobj()
    parts, size = [], 0
    for position in range(0, len(raw), _FED_BYTES):
        fed = raw[position : position + _FED_BYTES]
        while fed:
            parts.append(stream.decompress(fed, _DECOMPRESSED_BYTES))
            fed = stream.unconsumed_tail
            size += len(parts[-1])
            if size > MAX_REGISTRATION_BYTES:
                raise ValueError(f"it decompresses to more than {MAX_REGISTRATION_BYTES} bytes")
            await yield_slice()
    return b"".join(parts)


async def read_plain(raw: bytes) -> BrokerRegistration:
    """Decode an uncompressed registration.

    A long registration is decoded topic by topic, and must then be legal JSON. Raises `ProtocolError`.
    """
    if len(raw) <= SHORT_BYTES:
        return decode_body(BrokerRegistration, raw, REGISTRATION)
    begin = _TABLE.search(raw)
    if begin is None:
        raise ProtocolError(f"registration of {len(raw)} bytes has no table of topics")
    topics: dict[str, TopicConfig] = {}
    position = begin.end()
    while (entry := _ENTRY.match(raw, position)) is not None:
        try:
            topic = _TOPIC.decode(entry[1])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ProtocolError(f"registration, byte {position}: {error}") from error
        topics[topic.name] = topic
        position = entry.end()
        if len(topics) % _AT_ONCE == 0:
            await yield_slice()
    rest = raw[: begin.end()] + raw[position:]
    if len(rest) > SHORT_BYTES:
        raise ProtocolError(f"registration, byte {position}: this is not a topic as brokers write them")
    registration = decode_body(BrokerRegistration, rest, REGISTRATION)
    table = TopicConfigTable(data_version=registration.topics.data_version, topics=topics)
    return BrokerRegistration(topics=table, filter_servers=registration.filter_servers)


SHORT_BYTES = 256 << 10  # limit of a registration that is decoded in one step, in 2 ms
_AT_ONCE = 100  # number of topics decoded between two yields, in about 200 us
_FED_BYTES, _DECOMPRESSED_BYTES = 16 << 10, 256 << 10  # limits of bytes into and out of one call of zlib
_TOPIC = msgspec.json.Decoder(TopicConfig, strict=False)
_TABLE = re.compile(rb'"topicConfigTable"\s*:\s*\{')
# Possessive quantifiers (`+`): without backtracking invalid input fails fast.
_TEXT = rb'"(?:[^"\\]|\\.){0,1024}+"'
_PLAIN = rb'[^"{}]{1,256}+'
_MAP = rb"\{(?:" + _PLAIN + rb"|" + _TEXT + rb"){0,64}+\}"  # RocketMQ 5 has a map in the settings of a topic
_SETTINGS = rb"(\{(?:" + _PLAIN + rb"|" + _TEXT + rb"|" + _MAP + rb"){0,64}+\})"
_ENTRY = re.compile(rb"\s{0,64}+" + _TEXT + rb"\s{0,64}+:\s{0,64}+" + _SETTINGS + rb"\s{0,64}+,?+")


def _sized(text: bytes) -> bytes:
    return _INT.pack(len(text)) + text


def _take(data: bytes, position: int) -> tuple[bytes, int]:
    size = _INT.unpack_from(data, position)[0]
    start = position + _INT.size
    if size < 0 or start + size > len(data):
        raise ValueError(f"{size} bytes at {position} of {len(data)}")
    return data[start : start + size], start + size


def _topic_of_text(text: str) -> TopicConfig:
    name, read_queues, write_queues, permission, filter_type, *_ = text.split(" ", 5)
    return TopicConfig(
        name=name,
        read_queues=int(read_queues),
        write_queues=int(write_queues),
        permission=int(permission),
        filter_type=filter_type,
    )
