"""Runs a job's streaming query to its end, tells how far it is, and sums up what it did."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyromq.spark.jobs.settings import Session, Stream, Summary
from pyromq.spark.listener import LagListener
from pyromq.spark.stream_offset import StreamOffset, read_stream_offset

Tell = Callable[[int], None]

LOOK_SECONDS = 0.5  # Spark keeps a hundred reports: no batch is so short that more come meanwhile


def run_stream(
    spark: SparkSession, writer: DataStreamWriter, *, session: Session, stream: Stream, tell: Tell
) -> Summary:
    """Run the query until it has done all (with `once`) or is stopped; Ctrl-C stops it after nothing half-written.

    Raises what ended the query.
    """
    listener = LagListener(
        namesrv=session.namesrv, json_file=_path(stream.lag_json), prometheus=_path(stream.lag_prometheus)
    )
    spark.streams.addListener(listener)
    try:
        trigger: dict[str, Any] = {"availableNow": True} if stream.once else {"processingTime": _every(stream.every)}
        query = writer.option("checkpointLocation", stream.checkpoint).trigger(**trigger).start()
        totals = Totals()
        try:
            _watch(query, totals, tell)
        except KeyboardInterrupt:  # how a continuous job is ended
            pass
        finally:
            query.stop()
        if query.lastProgress is not None:
            listener.note(query.lastProgress.json)
        totals.note(each.json for each in query.recentProgress)
        return totals.summary()
    finally:
        spark.streams.removeListener(listener)
        listener.close()


def _watch(query: StreamingQuery, totals: Totals, tell: Tell) -> None:
    while not query.awaitTermination(LOOK_SECONDS):  # type: ignore[arg-type]  # a float will do
        totals.note(each.json for each in query.recentProgress)
        tell(totals.rows)


def _path(text: str) -> Path | None:
    return Path(text) if text else None


def _every(text: str) -> str:
    """Spark writes `10 seconds` where we write `10s`."""
    units = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}
    number = text.rstrip("mhs")
    return f"{number} {units[text[len(number) :]]}" if text[len(number) :] in units else text


class Totals:
    """What a query has done in all: Spark keeps its reports of some batches only, and a job may run for months."""

    def __init__(self) -> None:
        self.rows = 0
        self._batches = 0
        self._late = 0
        self._seen = ""
        self._first: StreamOffset | None = None
        self._last: StreamOffset | None = None
        self._latest: StreamOffset | None = None

    def note(self, reports: Iterable[str]) -> None:
        """Take in Spark's reports, oldest first; those that were taken in before change nothing."""
        for text in reports:
            report = json.loads(text)
            if report["timestamp"] > self._seen:
                self._seen = report["timestamp"]
                self._add(report)

    def summary(self) -> Summary:
        """Return a row for each queue: what was read of it, and what is left."""
        rows = []
        for queue, end in sorted(self._last.positions.items()) if self._last else []:
            start = self._first.positions.get(queue, 0) if self._first else 0
            most = self._latest.positions.get(queue, end) if self._latest else end
            place = {"topic": queue.topic, "broker": queue.broker_name, "queue": queue.queue_id}
            rows.append(place | {"from": start, "to": end, "read": end - start, "left": max(most - end, 0)})
        note = f"{self.rows} messages in {self._batches} batches"
        return Summary(rows, (note, f"{self._late} were late and not counted") if self._late else (note,))

    def _add(self, report: dict[str, Any]) -> None:
        self.rows += report["numInputRows"]
        self._batches += bool(report["numInputRows"])
        self._late += sum(int(state.get("numRowsDroppedByWatermark", 0)) for state in report["stateOperators"])
        source = report["sources"][0]
        start, end, latest = (_offset(source.get(name)) for name in ("startOffset", "endOffset", "latestOffset"))
        self._first = self._first or start
        self._last = end or self._last
        self._latest = latest or self._latest


def _offset(given: Any) -> StreamOffset | None:
    found = json.loads(given) if isinstance(given, str) else given
    return read_stream_offset(found) if found else None
