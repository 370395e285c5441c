"""The offset of a stream as Spark keeps it in the checkpoint: JSON in a fixed order, since Spark compares the text.

    {"v": 1,
     "t":  {topic: {broker name: {queue id: next queue offset}}},
     "id": {topic: {broker name: {"queue": ..., "offset": ..., "stored": ms, "made": times created again}}},
     "began": {"ms": when the query began, "brokers": [registered at that time]},
     "from": {topic: {broker name: {queue id: queue offset}}},
     "new": true}

`id` has, for each topic and broker that was read, one message with its store time. A different message at that offset
means that the topic was deleted and created again. `from` has the first offsets of the queues that this micro-batch is
the first to read. `new` is only in the offset before the first micro-batch. Spark then writes down where the query
begins even if there is nothing to read. No Spark and no client here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyromq.errors import UsageError
from pyromq.message import MessageQueue
from pyromq.spark.option_values import by_queue

VERSION = 1
NO_MESSAGE = -1  # offset in the mark of a topic that has no message yet

TopicAtBroker = tuple[str, str]
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Mark:
    """A message by which a topic at a broker is recognized: queue, offset and store time.

    `made` counts how often the topic was created again.
    """

    queue_id: int
    offset: int
    stored_ms: int
    made: int = 0


@dataclass(frozen=True, slots=True)
class QueryStart:
    """The time (ms) when a query began, and the brokers that were registered at that time."""

    ms: int
    brokers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The next offset of every queue of a stream, with marks (one message per topic) that reveal recreated topics."""

    positions: dict[MessageQueue, int]
    marks: dict[TopicAtBroker, Mark] = field(default_factory=dict)
    began: QueryStart | None = None
    begins: dict[MessageQueue, int] = field(default_factory=dict)
    is_new: bool = False

    @property
    def topics(self) -> set[str]:
        return {queue.topic for queue in self.positions}

    def as_json(self) -> Json:
        marks: dict[str, dict[str, dict[str, int]]] = {}
        for (topic, broker), mark in sorted(self.marks.items()):
            values = {"queue": mark.queue_id, "offset": mark.offset, "stored": mark.stored_ms, "made": mark.made}
            marks.setdefault(topic, {})[broker] = values
        found: Json = {"v": VERSION, "t": _table(self.positions), "id": marks}
        if self.began:
            found["began"] = {"ms": self.began.ms, "brokers": list(self.began.brokers)}
        if self.begins:
            found["from"] = _table(self.begins)
        return found | ({"new": True} if self.is_new else {})


def read_stream_offset(found: Mapping[str, Any]) -> StreamOffset:
    """Parse the offset in a query's checkpoint.

    Raises `UsageError` for another version of the format, or another source.
    """
    if found.get("v") != VERSION:
        raise UsageError(
            f"the checkpoint's offset {dict(found)!r} is not of version {VERSION} of this source; "
            "give the query a new checkpoint location"
        )
    marks = {
        (topic, broker): Mark(values["queue"], values["offset"], values["stored"], values["made"])
        for topic, brokers in found.get("id", {}).items()
        for broker, values in brokers.items()
    }
    began = QueryStart(found["began"]["ms"], tuple(found["began"]["brokers"])) if "began" in found else None
    return StreamOffset(by_queue(found["t"]), marks, began, by_queue(found.get("from", {})), found.get("new", False))


def reported_offset(given: Any) -> StreamOffset | None:
    """Parse a source's offset in Spark's progress report: JSON text or a dict.

    Return None for null, or for another source.
    """
    found = json.loads(given) if isinstance(given, str) else given
    return read_stream_offset(found) if isinstance(found, dict) and "t" in found else None


def _table(offsets: Mapping[MessageQueue, int]) -> dict[str, dict[str, dict[str, int]]]:
    table: dict[str, dict[str, dict[str, int]]] = {}
    for queue, offset in sorted(offsets.items()):
        table.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = offset
    return table
