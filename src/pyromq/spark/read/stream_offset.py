"""How far a stream is, as Spark keeps it in the checkpoint: JSON in a fixed order, since Spark compares the text.

    {"v": 1,
     "t":  {topic: {broker name: {queue id: next queue offset}}},
     "id": {topic: {broker name: {"queue": ..., "offset": ..., "stored": ms, "made": how often created again}}}}

`id` has one message of each topic and broker that was read, with its store time: when there is another one at its
place, the topic was deleted and created again. No Spark and no client here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyromq.errors import UsageError
from pyromq.message import MessageQueue

VERSION = 1
NO_MESSAGE = -1  # the offset of a mark whose topic has no message yet

TopicAtBroker = tuple[str, str]
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Mark:
    """A message that was at `offset` of a queue, stored at `stored_ms`; `made` counts how often the topic was new."""

    queue_id: int
    offset: int
    stored_ms: int
    made: int = 0


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """Where a stream goes on in every queue, and by what it knows its topics again."""

    positions: dict[MessageQueue, int]
    marks: dict[TopicAtBroker, Mark] = field(default_factory=dict)

    @property
    def topics(self) -> set[str]:
        return {queue.topic for queue in self.positions}

    def made(self, queue: MessageQueue) -> int:
        mark = self.marks.get((queue.topic, queue.broker_name))
        return mark.made if mark else 0

    def as_json(self) -> Json:
        table: dict[str, dict[str, dict[str, int]]] = {}
        for queue, offset in sorted(self.positions.items()):
            table.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = offset
        marks: dict[str, dict[str, dict[str, int]]] = {}
        for (topic, broker), mark in sorted(self.marks.items()):
            values = {"queue": mark.queue_id, "offset": mark.offset, "stored": mark.stored_ms, "made": mark.made}
            marks.setdefault(topic, {})[broker] = values
        return {"v": VERSION, "t": table, "id": marks}


def read_stream_offset(json: Mapping[str, Any]) -> StreamOffset:
    """Return what a checkpoint holds. Raises `UsageError` for another version or another source's."""
    if json.get("v") != VERSION:
        raise UsageError(
            f"the checkpoint's offset {dict(json)!r} is not of version {VERSION} of this source; "
            "give the query a new checkpoint location"
        )
    positions = {
        MessageQueue(topic, broker, int(queue_id)): offset
        for topic, brokers in json["t"].items()
        for broker, queues in brokers.items()
        for queue_id, offset in queues.items()
    }
    marks = {
        (topic, broker): Mark(values["queue"], values["offset"], values["stored"], values["made"])
        for topic, brokers in json.get("id", {}).items()
        for broker, values in brokers.items()
    }
    return StreamOffset(positions, marks)
