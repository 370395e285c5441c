"""The lag of streaming queries, computed from offsets, as JSON and as Prometheus text. No Spark here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pyromq.message import MessageQueue
from pyromq.spark.read.stream_offset import StreamOffset, reported_offset

# Function of an offset for each queue; returns the store time (ms) of each message, None if there is no message.
StoreTimes = Callable[[Mapping[MessageQueue, int]], Mapping[MessageQueue, int | None]]


@dataclass(frozen=True, slots=True)
class QueueLag:
    """The lag of one queue: `messages` counts unread messages, `seconds` is the age of the first unread message."""

    topic: str
    broker: str
    queue: int
    offset: int
    messages: int
    seconds: float


@dataclass(frozen=True, slots=True)
class QueryLag:
    """The lag of one streaming query after a micro-batch, for each queue that the query reads."""

    query: str
    batch: int
    rows: int
    rows_per_second: float
    queues: list[QueueLag]

    @property
    def messages(self) -> int:
        return sum(queue.messages for queue in self.queues)

    @property
    def seconds(self) -> float:
        return max((queue.seconds for queue in self.queues), default=0.0)

    @property
    def topics(self) -> list[dict[str, Any]]:
        """The number of unread messages and the greatest lag in seconds of each topic, in order of the queues."""
        found: dict[str, list[QueueLag]] = {}
        for queue in self.queues:
            found.setdefault(queue.topic, []).append(queue)
        return [
            {"topic": topic, "messages": sum(q.messages for q in queues), "seconds": max(q.seconds for q in queues)}
            for topic, queues in found.items()
        ]

    def line(self) -> str:
        """Return the lag as one line for a log."""
        template = ", {messages} messages and {seconds:.1f} s behind in {topic}"
        behind = "".join(template.format(**each) for each in self.topics)
        return f"query {self.query} batch {self.batch}: {self.rows} rows, {self.rows_per_second:.0f} a second{behind}"

    def as_json(self) -> str:
        return json.dumps(asdict(self) | {"messages": self.messages, "seconds": self.seconds, "topics": self.topics})


def lag_of(progress: Mapping[str, Any], *, now_ms: int, store_times: StoreTimes | None = None) -> QueryLag:
    """Return the lag of a query from Spark's progress report; other sources than `rocketmq` are skipped.

    Without `store_times`, seconds are 0.
    """
    queues: list[QueueLag] = []
    for source in progress["sources"]:
        end, latest = reported_offset(source.get("endOffset")), reported_offset(source.get("latestOffset"))
        if end is not None and latest is not None:
            queues += queue_lags(end, latest, now_ms, store_times)
    return QueryLag(
        query=progress.get("name") or progress["id"],
        batch=progress["batchId"],
        rows=progress["numInputRows"],
        rows_per_second=progress.get("processedRowsPerSecond") or 0.0,
        queues=queues,
    )


def queue_lags(end: StreamOffset, latest: StreamOffset, now_ms: int, store_times: StoreTimes | None) -> list[QueueLag]:
    """Return the lag of each queue: the distance from offset `end` to the queue's end in `latest`.

    `store_times` is called once, for all queues with unread messages.
    """
    offsets = {queue: end.positions.get(queue, 0) for queue in latest.positions}
    lags = {queue: max(newest - offsets[queue], 0) for queue, newest in latest.positions.items()}
    behind = {queue: offsets[queue] for queue, lag in lags.items() if lag}
    stored = store_times(behind) if behind and store_times else {}

    def seconds(queue: MessageQueue) -> float:
        since = stored.get(queue)
        return max(now_ms - since, 0) / 1000 if since is not None else 0.0

    return [
        QueueLag(queue.topic, queue.broker_name, queue.queue_id, offsets[queue], lag, seconds(queue))
        for queue, lag in lags.items()
    ]


def prometheus_text(lags: Iterable[QueryLag]) -> str:
    """Return the lag of queries as Prometheus text."""
    queries = {lag.query: lag for lag in lags}
    batches = [({"query": query}, lag.batch) for query, lag in queries.items()]
    rates = [({"query": query}, lag.rows_per_second) for query, lag in queries.items()]
    return (
        family_text("pyromq_spark_batch", "counter", "Number of the last micro-batch.", batches)
        + family_text("pyromq_spark_rows_per_second", "gauge", "Rows a second of that batch.", rates)
        + queue_text({query: lag.queues for query, lag in queries.items()})
    )


_QUEUE_FAMILIES: list[tuple[str, str, Callable[[QueueLag], float]]] = [
    ("pyromq_spark_lag_messages", "Messages not read yet.", lambda queue: queue.messages),
    ("pyromq_spark_lag_seconds", "Age of the first of them.", lambda queue: queue.seconds),
    ("pyromq_spark_offset", "Queue offset of the next message to read.", lambda queue: queue.offset),
]


def queue_text(queries: Mapping[str, Iterable[QueueLag]]) -> str:
    """Return the metrics of each query's queues as Prometheus text."""
    places = [
        ({"query": query, "topic": queue.topic, "broker": queue.broker, "queue": str(queue.queue)}, queue)
        for query, queues in queries.items()
        for queue in queues
    ]
    return "".join(
        family_text(name, "gauge", meaning, [(labels, value(queue)) for labels, queue in places])
        for name, meaning, value in _QUEUE_FAMILIES
    )


def family_text(name: str, kind: str, meaning: str, samples: Iterable[tuple[Mapping[str, str], float]]) -> str:
    """Return one metric as Prometheus text. `samples` are pairs of labels and value."""
    lines = [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        marks = ",".join(f'{label}="{_escaped(value)}"' for label, value in labels.items())
        lines.append(f"{name}{{{marks}}} {value}")
    return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
