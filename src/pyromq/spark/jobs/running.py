"""Runs a job's streaming query to its end, tells how far it is, and sums up what it did."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyromq.spark.jobs.settings import Session, Stream, Summary
from pyromq.spark.listener import LagListener
from pyromq.spark.stream_offset import StreamOffset, read_stream_offset

Tell = Callable[[int], None]

LOOK_SECONDS = 0.2


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
        try:
            _watch(query, tell)
        except KeyboardInterrupt:  # how a continuous job is ended
            pass
        finally:
            query.stop()
        if query.lastProgress is not None:
            listener.note(query.lastProgress.json)
        return _summary([dict(json.loads(each.json)) for each in query.recentProgress])
    finally:
        spark.streams.removeListener(listener)
        listener.close()


def _watch(query: StreamingQuery, tell: Tell) -> None:
    while not query.awaitTermination(LOOK_SECONDS):  # type: ignore[arg-type]  # a float will do
        tell(sum(each.numInputRows for each in query.recentProgress))


def _path(text: str) -> Path | None:
    return Path(text) if text else None


def _every(text: str) -> str:
    """Spark writes `10 seconds` where we write `10s`."""
    units = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}
    number = text.rstrip("mhs")
    return f"{number} {units[text[len(number) :]]}" if text[len(number) :] in units else text


def _summary(progress: list[dict[str, Any]]) -> Summary:
    """Return a row for each queue: what was read of it, and what is left."""
    read = [_source(each) for each in progress]
    first = next((start for start, _, _ in read if start is not None), None)
    last = next((end for _, end, _ in reversed(read) if end is not None), None)
    latest = next((each for _, _, each in reversed(read) if each is not None), None)
    rows = []
    for queue, end in sorted(last.positions.items()) if last else []:
        start = first.positions.get(queue, 0) if first else 0
        most = latest.positions.get(queue, end) if latest else end
        place = {"topic": queue.topic, "broker": queue.broker_name, "queue": queue.queue_id}
        rows.append(place | {"from": start, "to": end, "read": end - start, "left": max(most - end, 0)})
    batches = sum(1 for each in progress if each["numInputRows"])
    late = sum(int(state.get("numRowsDroppedByWatermark", 0)) for each in progress for state in each["stateOperators"])
    notes = [f"{sum(each['numInputRows'] for each in progress)} messages in {batches} batches"]
    return Summary(rows, (*notes, f"{late} were late and not counted") if late else tuple(notes))


def _source(progress: dict[str, Any]) -> tuple[StreamOffset | None, StreamOffset | None, StreamOffset | None]:
    source = progress["sources"][0]
    start, end, latest = (_offset(source.get(name)) for name in ("startOffset", "endOffset", "latestOffset"))
    return start, end, latest


def _offset(given: Any) -> StreamOffset | None:
    found = json.loads(given) if isinstance(given, str) else given
    return read_stream_offset(found) if found else None
