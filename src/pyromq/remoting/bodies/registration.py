"""What a broker announces to a name server, plain and compressed. Source: RocketMQ 4.9.8, RegisterBrokerBody."""

from __future__ import annotations

import struct
import zlib

import msgspec
from msgspec import field

from pyromq.errors import ProtocolError
from pyromq.remoting.bodies.body import Body, DataVersion
from pyromq.remoting.bodies.topics import TopicConfig, TopicConfigTable
from pyromq.remoting.json_quirks import decode_body, encode_body


class BrokerRegistration(Body):
    """What a broker announces."""

    filter_servers: list[str] = field(name="filterServerList", default_factory=list)
    topics: TopicConfigTable = field(name="topicConfigSerializeWrapper", default_factory=TopicConfigTable)


# The compressed form of a registration: a zlib stream of
#     int n, DataVersion as JSON | int topics | per topic: int n, text | int n, filter servers as JSON
#     where a topic's text is `name readQueues writeQueues permission filterType`

MAX_REGISTRATION_BYTES = 67_108_864  # four frames; a million topics, yet no few bytes that unfold to gigabytes

_INT = struct.Struct(">i")


def compress_registration(registration: BrokerRegistration) -> bytes:
    """Return the compressed form. A topic's order flag and sysFlag are not in it."""
    table = registration.topics
    texts = [f"{t.name} {t.read_queues} {t.write_queues} {t.permission} {t.filter_type}" for t in table.topics.values()]
    parts = [_sized(encode_body(table.data_version)), _INT.pack(len(texts))]
    parts += [_sized(text.encode()) for text in texts]
    parts.append(_sized(msgspec.json.encode(registration.filter_servers)))
    return zlib.compress(b"".join(parts), 9)


def decompress_registration(raw: bytes) -> BrokerRegistration:
    """Read the compressed form. Raises `ProtocolError`."""
    try:
        data = zlib.decompressobj().decompress(raw, MAX_REGISTRATION_BYTES)
        version, position = _take(data, 0)
        count = _INT.unpack_from(data, position)[0]
        position += _INT.size
        topics = {}
        for _ in range(count):
            text, position = _take(data, position)
            topic = _topic_of_text(text.decode())
            topics[topic.name] = topic
        servers, _ = _take(data, position)
        table = TopicConfigTable(data_version=decode_body(DataVersion, version), topics=topics)
        return BrokerRegistration(topics=table, filter_servers=msgspec.json.decode(servers, type=list[str]))
    except (zlib.error, struct.error, ValueError, msgspec.DecodeError) as error:
        raise ProtocolError(f"compressed registration of {len(raw)} bytes cannot be read: {error}") from error


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
