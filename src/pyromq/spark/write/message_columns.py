"""The messages of some rows as Arrow columns, with their sizes and the brokers' limits. No Spark here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyromq.message import NAME_VALUE, PAIRS, Property
from pyromq.record import MAX_PROPERTIES_SIZE, MEMBER_BYTES
from pyromq.spark.write.batch_members import BatchMembers, Ints
from pyromq.spark.write.sink_options import QUEUE_ID, SHARDING_KEY, SinkOptions

KEPT_BYTES = 64 << 10  # limit of the body in the dead letter of a too large row
ROOM_FOR_BROKER = 200  # bytes left free for properties that a broker adds, for example its cluster's name

_LETTER_PROPERTIES = tuple(name + NAME_VALUE for name in (Property.UNIQUE_KEY, Property.KEYS, Property.TAGS))

Truths = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SingleMessage:
    """One message that is sent in its own request, not in a batch message."""

    topic: str
    body: bytes
    properties: str  # in the text form of `pyromq.message`
    flag: int = 0


class MessageColumns:
    """The messages of some rows, in order, as Arrow columns.

    A column is None if the rows lack it or the options do not use it.
    """

    def __init__(self, columns: Mapping[str, pa.Array], properties: pa.Array, options: SinkOptions) -> None:
        self._columns = columns
        self._options = options
        self.bodies = columns["body"]
        self.properties = properties
        self.topics: pa.Array | None = columns["topic"] if options.topic is None else None
        by_id, by_key = options.order_by != SHARDING_KEY, options.order_by != QUEUE_ID
        self.queue_ids: pa.Array | None = columns.get(QUEUE_ID) if by_id else None
        self.broker_names: pa.Array | None = columns.get("brokerName") if by_id else None
        self.sharding_keys: pa.Array | None = columns.get(SHARDING_KEY) if by_key else None

    def __len__(self) -> int:
        return len(self.bodies)

    @cached_property
    def members(self) -> BatchMembers:
        """The messages, encoded as members of a batch message."""
        return BatchMembers(self._flags, self.bodies, self.properties)

    @cached_property
    def sizes(self) -> Ints:
        """Size in bytes of each message as a member of a batch message."""
        return self._body_sizes + self._property_sizes + MEMBER_BYTES

    @property
    def body_bytes(self) -> int:
        """Sum of the body sizes in bytes."""
        return int(self._body_sizes.sum())

    @cached_property
    def too_large(self) -> Truths:
        """For each message, whether its size exceeds the brokers' limits."""
        too_long = self._property_sizes > MAX_PROPERTIES_SIZE - ROOM_FOR_BROKER
        return (self.sizes > self._options.max_message_bytes) | too_long

    @cached_property
    def delayed(self) -> Truths:
        """For each message, whether the message is delayed or scheduled.

        Such a message cannot be in a batch message.
        """
        if "deliverTimestamp" in self._columns:
            return ~_truths(self._columns["deliverTimestamp"].is_null())
        if "delayLevel" in self._columns:
            return _truths(pc.not_equal(pc.fill_null(self._columns["delayLevel"], 0), 0))
        return np.zeros(len(self), np.bool_)

    def row(self, index: int) -> SingleMessage:
        """Return the message in row `index`."""
        topic = self._options.topic or self._columns["topic"][index].as_py()
        properties = self.properties[index].as_py().decode()
        return SingleMessage(topic, self.bodies[index].as_py(), properties, int(self._flags[index]))

    def where(self, kept: Truths) -> MessageColumns:
        """Return the messages for which `kept` is true, in order."""
        mask = pa.array(kept)
        return MessageColumns(
            {n: c.filter(mask) for n, c in self._columns.items()}, self.properties.filter(mask), self._options
        )

    def refusal(self, index: int) -> str:
        """Return the sizes of the too large message in row `index`, and the exceeded limit, for an error text."""
        body, properties = int(self._body_sizes[index]), int(self._property_sizes[index])
        if self.sizes[index] > self._options.max_message_bytes:
            return (
                f"{body} bytes of body and {properties} of properties; the limit is {self._options.max_message_bytes}"
            )
        return f"{properties} bytes of properties; the limit is {MAX_PROPERTIES_SIZE - ROOM_FOR_BROKER}"

    @cached_property
    def _body_sizes(self) -> Ints:
        return _lengths(self.bodies)

    @cached_property
    def _property_sizes(self) -> Ints:
        return _lengths(self.properties)

    @cached_property
    def _flags(self) -> Ints:
        flags = self._columns.get("flag")
        return np.zeros(len(self), np.int64) if flags is None else pc.fill_null(flags, 0).to_numpy().astype(np.int64)


def dead_letter(row: SingleMessage, reason: str, options: SinkOptions) -> MessageColumns:
    """Return the dead letter of a too large row.

    The dead letter has the beginning of the row's body, its unique id, keys and tags, and the reason as a property.
    """
    added = {"TOO_LARGE": reason, "ORIGIN_TOPIC": row.topic, "ORIGIN_BODY_BYTES": str(len(row.body))}
    pairs = [f"{name}{NAME_VALUE}{value}" for name, value in added.items()]
    kept = [pair for pair in row.properties.split(PAIRS) if len(pair) < 1024 and pair.startswith(_LETTER_PROPERTIES)]
    columns = {
        "body": pa.array([row.body[: min(KEPT_BYTES, options.max_message_bytes // 2)]], pa.binary()),
        "topic": pa.array([options.dead_letter_topic], pa.string()),
        "flag": pa.array([row.flag], pa.int32()),
    }
    properties = pa.array([PAIRS.join(pairs + kept).encode()], pa.binary())
    return MessageColumns(columns, properties, _letter_options(options))


def _letter_options(options: SinkOptions) -> SinkOptions:
    return SinkOptions(max_message_bytes=options.max_message_bytes, batch_bytes=options.batch_bytes)


def _lengths(values: pa.Array) -> Ints:
    return np.asarray(pc.binary_length(values).to_numpy(zero_copy_only=False), dtype=np.int64)


def _truths(values: Any) -> Truths:
    return np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.bool_)
