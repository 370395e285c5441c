"""Trace records as a string: sends, listener calls and transaction decisions of a client.

    record    its fields, joined by character 1; character 2 ends the record
    field     `null` for None, as Java's reader loses an empty last field

A message of the trace topic holds many records. Its keys are the ids and keys of all traced messages. Source: RocketMQ
4.9.8, TraceDataEncoder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

FIELDS, RECORDS = "\x01", "\x02"
DEFAULT_REGION = "DefaultRegion"
_NULL = "null"


class MessageType(IntEnum):
    """The kind of a sent message in a trace record. Source: MessageType."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAY = 3
    ORDER = 4  # written by clients of RocketMQ 5 only


class ConsumeCode(IntEnum):
    """The result of a listener call in a trace record. Source: ConsumeReturnType."""

    SUCCESS = 0
    TIMEOUT = 1
    EXCEPTION = 2
    RETURNED_NULL = 3
    FAILED = 4


@dataclass(frozen=True, slots=True)
class Sent:
    """The trace record of a send that has ended.

    `started_ms` is ms since 1970, `cost_ms` the duration in ms; `store_host` is the broker's `host:port`.
    """

    name: ClassVar[str] = "Pub"
    started_ms: int
    region: str | None
    group: str
    topic: str
    message_id: str
    tags: str | None
    keys: str | None
    store_host: str | None
    body_bytes: int
    cost_ms: int
    message_type: MessageType
    offset_message_id: str | None
    success: bool

    def fields(self) -> Sequence[object]:
        return (
            *(self.started_ms, self.region, self.group, self.topic, self.message_id, self.tags, self.keys),
            *(self.store_host, self.body_bytes, self.cost_ms, int(self.message_type), self.offset_message_id),
            self.success,
        )

    @classmethod
    def read(cls, fields: Sequence[str]) -> Sent:
        """Return the record with these fields. Older clients write fewer fields, some clients append their address."""
        offset_message_id, success = (None, fields[11]) if len(fields) == 12 else fields[11:13]
        started_ms, region, group, topic, message_id, tags, keys, store_host, size, cost_ms, kind = fields[:11]
        return cls(
            int(started_ms),
            _text(region),
            group,
            topic,
            message_id,
            _text(tags),
            _text(keys),
            _text(store_host),
            int(size),
            int(cost_ms),
            MessageType(int(kind)),
            _text(offset_message_id),
            success == "true",
        )


@dataclass(frozen=True, slots=True)
class Delivered:
    """The trace record of a listener call that begins. Its `Consumed` record has the same `request_id`."""

    name: ClassVar[str] = "SubBefore"
    started_ms: int
    region: str | None
    group: str
    request_id: str
    message_id: str
    retries: int
    keys: str | None

    def fields(self) -> Sequence[object]:
        return (self.started_ms, self.region, self.group, self.request_id, self.message_id, self.retries, self.keys)

    @classmethod
    def read(cls, fields: Sequence[str]) -> Delivered:
        retries = int(fields[5])
        keys = _text(fields[6]) if len(fields) > 6 else None
        return cls(int(fields[0]), _text(fields[1]), fields[2], fields[3], fields[4], retries, keys)


@dataclass(frozen=True, slots=True)
class Consumed:
    """The trace record of a listener call that has ended. Clients before 4.9 do not write `ended_ms` and `group`."""

    name: ClassVar[str] = "SubAfter"
    request_id: str
    message_id: str
    cost_ms: int
    success: bool
    keys: str | None
    code: ConsumeCode
    ended_ms: int | None = None
    group: str | None = None

    def fields(self) -> Sequence[object]:
        return (
            *(self.request_id, self.message_id, self.cost_ms, self.success, self.keys, int(self.code)),
            *(self.ended_ms, self.group),
        )

    @classmethod
    def read(cls, fields: Sequence[str]) -> Consumed:
        code = ConsumeCode(int(fields[5])) if len(fields) > 5 and fields[5] else ConsumeCode.SUCCESS
        ended_ms, group = (int(fields[6]), fields[7]) if len(fields) > 7 else (None, None)
        return cls(fields[0], fields[1], int(fields[2]), fields[3] == "true", _text(fields[4]), code, ended_ms, group)


@dataclass(frozen=True, slots=True)
class Decided:
    """The trace record of a decision on a half message; `state` is `COMMIT_MESSAGE`, `ROLLBACK_MESSAGE` or `UNKNOW`."""

    name: ClassVar[str] = "EndTransaction"
    decided_ms: int
    region: str | None
    group: str
    topic: str
    message_id: str
    tags: str | None
    keys: str | None
    store_host: str | None
    message_type: MessageType
    transaction_id: str | None
    state: str
    from_check: bool

    def fields(self) -> Sequence[object]:
        return (
            *(self.decided_ms, self.region, self.group, self.topic, self.message_id, self.tags, self.keys),
            *(self.store_host, int(self.message_type), self.transaction_id, self.state, self.from_check),
        )

    @classmethod
    def read(cls, fields: Sequence[str]) -> Decided:
        decided_ms, region, group, topic, message_id, tags, keys, store_host, kind, transaction_id = fields[:10]
        return cls(
            int(decided_ms),
            _text(region),
            group,
            topic,
            message_id,
            _text(tags),
            _text(keys),
            _text(store_host),
            MessageType(int(kind)),
            _text(transaction_id),
            fields[10],
            fields[11] == "true",
        )


TraceRecord = Sent | Delivered | Consumed | Decided
_KINDS: dict[str, type[TraceRecord]] = {kind.name: kind for kind in (Sent, Delivered, Consumed, Decided)}


def write_record(record: TraceRecord) -> str:
    return FIELDS.join((record.name, *map(_written, record.fields()))) + RECORDS


def keys_of(record: TraceRecord) -> list[str]:
    """Return the keys of a record for its trace message: the message's id, or the ids of a batch, and its keys."""
    return [*record.message_id.split(","), *(record.keys or "").split()]


def read_records(body: bytes) -> Iterator[TraceRecord]:
    """Yield the records in the body of a trace message. Unknown and malformed records are skipped."""
    for line in body.decode("utf-8", "replace").split(RECORDS):
        name, *fields = line.split(FIELDS)
        kind = _KINDS.get(name)
        if kind is None:
            continue
        try:
            yield kind.read(fields)
        except (ValueError, IndexError, TypeError):
            continue


def _written(value: object) -> str:
    if value is None:
        return _NULL
    return str(value).lower() if isinstance(value, bool) else str(value)


def _text(field: str | None) -> str | None:
    return None if field in (None, "", _NULL) else field
