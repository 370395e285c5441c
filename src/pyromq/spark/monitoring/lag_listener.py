"""A query listener that reports the lag after each micro-batch to the log, a JSON file or a Prometheus file.

spark.streams.addListener(LagListener(namesrv="127.0.0.1:9876", prometheus=Path("lag.prom")))
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyromq.client.blocking.consumers import QueueReader
from pyromq.clock import Clock, SystemClock
from pyromq.errors import MQError
from pyromq.extras import packages_of
from pyromq.logs import logger_of
from pyromq.message import MessageQueue
from pyromq.spark.options import BY_ENVIRONMENT, ConnectionOptions
from pyromq.spark.read.stream_offset import StreamOffset, reported_offset
from pyromq.spark.worker_clients import queue_reader

with packages_of("spark", "LagListener"):
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryListener,
    )

WRITE_SECONDS = 5.0  # shortest time between two writes of a lag file: each write requests store times from brokers

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


def replace_file(path: Path, content: str) -> None:
    """Replace a file atomically: readers see the old content or the new one. Raises `OSError`."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(content, encoding="utf-8")
    draft.replace(path)


class LagFile:
    """Writes the lag of one stream as Prometheus text (option lagPrometheus).

    Label `query` is the name of the stream's group.
    """

    def __init__(self, path: Path, group: str, *, store_times: StoreTimes, clock: Clock) -> None:
        self._path = path
        self._group = group
        self._store_times = store_times
        self._clock = clock
        self._written_at: float | None = None

    def note(self, reached: StreamOffset, latest: StreamOffset | None, *, last: bool = False) -> None:
        """Write the lag between `reached` and `latest`, at most every 5 s. Errors are logged.

        The `last` call of a query's run always writes.
        """
        now = self._clock.monotonic()
        if latest is None or (not last and self._written_at is not None and now - self._written_at < WRITE_SECONDS):
            return
        self._written_at = now
        try:
            queues = queue_lags(reached, latest, self._clock.now_ms(), self._store_times)
            replace_file(self._path, queue_text({self._group: queues}))
        except (MQError, OSError) as error:
            logger.warning("the lag cannot be written to %s: %s", self._path, error)


logger = logger_of(__name__)

GROUP = "pyromq-spark-lag"
TIMEOUT_SECONDS = 2.0


class LagListener(StreamingQueryListener):
    """Records the lag of every streaming query of a Spark session in `lags`.

    With `namesrv`, the ages of unread messages are requested from brokers.
    """

    def __init__(
        self,
        *,
        namesrv: str | None = None,
        json_file: Path | None = None,
        prometheus: Path | None = None,
        tell: Callable[[QueryLag], None] | None = None,
        connecting: ConnectionOptions = BY_ENVIRONMENT,
    ) -> None:
        self.lags: dict[str, QueryLag] = {}
        self._namesrv = namesrv
        self._json_file = json_file
        self._prometheus = prometheus
        self._tell = tell
        self._connecting = connecting
        self._reader: QueueReader | None = None

    def onQueryStarted(self, event: QueryStartedEvent) -> None: ...

    def onQueryIdle(self, event: QueryIdleEvent) -> None: ...

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Do nothing: the last lag is kept."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self.note(event.progress.json)

    def note(self, progress: str) -> None:
        """Record the lag from Spark's progress report (JSON) of a micro-batch, log it, write the files and call `tell`.

        Raises `OSError` if a file cannot be written.
        """
        lag = lag_of(
            json.loads(progress),
            now_ms=SystemClock().now_ms(),
            store_times=self._store_times if self._namesrv else None,
        )
        self.lags[lag.query] = lag
        logger.info("%s", lag.line())
        self._write()
        if self._tell is not None:
            self._tell(lag)

    def close(self) -> None:
        """Close the connections to name servers and brokers. Idempotent."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _store_times(self, places: Mapping[MessageQueue, int]) -> dict[MessageQueue, int | None]:
        try:
            if self._reader is None:
                reader = queue_reader(GROUP, self._namesrv or "", self._connecting, timeout=TIMEOUT_SECONDS)
                reader.start()
                self._reader = reader
            return self._reader.store_times(places)
        except MQError as error:
            logger.warning("the age of unread messages is not known: %s", error)
            return {}

    def _write(self) -> None:
        lags = list(self.lags.values())
        if self._json_file is not None:
            replace_file(self._json_file, "[" + ",".join(lag.as_json() for lag in lags) + "]\n")
        if self._prometheus is not None:
            replace_file(self._prometheus, prometheus_text(lags))
