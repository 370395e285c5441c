"""Runs a job's streaming query to its end, reports progress, and returns a summary."""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, current_thread, main_thread
from typing import Any

from pyspark.logger import PySparkLogger
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyromq.client.blocking.sigint import sigterm_calls
from pyromq.logs import logger_of
from pyromq.plural import counted
from pyromq.spark.jobs.job_options import StreamJob
from pyromq.spark.jobs.session import beginning
from pyromq.spark.jobs.setting_checks import pairs, spark_interval
from pyromq.spark.jobs.settings import Summary
from pyromq.spark.monitoring.lag_listener import LagListener
from pyromq.spark.options import split
from pyromq.spark.read.stream_offset import StreamOffset, reported_offset

logger = logger_of(__name__)

# PySpark logs errors as JSON before raising them; a job raises the error anyway. All jobs import this module.
for _name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
    PySparkLogger.getLogger(_name).setLevel(logging.CRITICAL)

Tell = Callable[[int], None]

LOOK_SECONDS = 0.5  # between reads of Spark's progress: Spark keeps 100 reports, and a batch takes longer than 5 ms


def run_stream(job: str, writer: DataStreamWriter, settings: StreamJob, tell: Tell) -> Summary:
    """Run the streaming query of a job and return the summary.

    With setting `once` the query ends after the present messages, else at Ctrl-C or SIGTERM. Raises the error of the
    query. The next run repeats an interrupted batch.
    """
    stream = settings.stream
    every = spark_interval("every", stream.every)
    totals = Totals(beginning(job, settings))
    listener = LagListener(
        namesrv=settings.session.namesrv,
        json_file=Path(stream.lag_json) if stream.lag_json else None,
        prometheus=Path(stream.lag_prometheus) if stream.lag_prometheus else None,
        connecting=split(pairs(stream.option))[0],
    )
    try:
        trigger: dict[str, Any] = {"availableNow": True} if stream.once else {"processingTime": every}
        writer = writer.queryName(job).option("checkpointLocation", stream.checkpoint).trigger(**trigger)
        with stop_signals() as stop:
            query = writer.start()
            try:
                _watch(query, stop, totals=totals, tell=tell, lag=listener)
            finally:
                query.stop()
        if query.lastProgress is not None:
            listener.note(query.lastProgress.json)
        totals.note(each.json for each in query.recentProgress)
        return totals.summary()
    finally:
        listener.close()


@contextmanager
def stop_signals() -> Iterator[Event]:
    """Yield an event that Ctrl-C and SIGTERM set; outside of the main thread nothing sets the event.

    Spark's own signal handler would cancel jobs during a call to Java.
    """
    stop = Event()
    if current_thread() is not main_thread():  # only the main thread handles signals
        yield stop
        return
    before = signal.signal(signal.SIGINT, lambda *_: stop.set())
    try:
        with sigterm_calls(stop.set):  # service managers and containers stop a program by SIGTERM
            yield stop
    finally:
        signal.signal(signal.SIGINT, before)


def _watch(query: StreamingQuery, stop: Event, *, totals: Totals, tell: Tell, lag: LagListener) -> None:
    """Pass Spark's progress reports to the lag listener `lag` until the query ends or `stop` is set.

    A listener registered with Spark would be called after Python has ended, and Spark would log errors.
    """
    noted = ""
    while not stop.is_set() and not query.awaitTermination(LOOK_SECONDS):  # type: ignore[arg-type]  # Spark accepts a float
        reports = [each.json for each in query.recentProgress]
        totals.note(reports)
        tell(totals.rows)
        if reports and reports[-1] != noted:
            noted = reports[-1]
            _note_lag(lag, noted)


def _note_lag(lag: LagListener, report: str) -> None:
    """Pass a progress report to the lag listener.

    An `OSError` is only logged here: an unwritable lag file fails the job at its end.
    """
    try:
        lag.note(report)
    except OSError as error:
        logger.warning("the lag cannot be written: %s", error)


class Totals:
    """Sums up the progress reports of a streaming query.

    Spark keeps only the last 100 reports, and a job may run for months.
    """

    def __init__(self, beginning: StreamOffset) -> None:
        """`beginning` is the offset where a query without a checkpoint begins.

        Spark's first report has no such offset.
        """
        self.rows = 0
        self._beginning = beginning
        self._batches = 0
        self._late = 0
        self._seen = ""
        self._first: StreamOffset | None = None
        self._last: StreamOffset | None = None
        self._latest: StreamOffset | None = None

    def note(self, reports: Iterable[str]) -> None:
        """Add Spark's progress reports (JSON), oldest first. Reports that were added before are skipped."""
        for each in reports:
            report = json.loads(each)
            if report["timestamp"] > self._seen:
                self._seen = report["timestamp"]
                self._add(report)

    def summary(self) -> Summary:
        """Return the job's summary, with one row per queue: the offsets read, and the number of messages left."""
        rows = []
        for queue, end in sorted(self._last.positions.items()) if self._last else []:
            start = self._first.positions.get(queue, 0) if self._first else 0
            newest = self._latest.positions.get(queue, end) if self._latest else end
            place = {"topic": queue.topic, "broker": queue.broker_name, "queue": queue.queue_id}
            rows.append(place | {"from": start, "to": end, "read": end - start, "left": max(newest - end, 0)})
        note = f"{counted(self.rows, 'message')} in {counted(self._batches, 'batch', 'batches')}"
        one, many = "partial count of late messages was", "partial counts of late messages were"
        late = f"{counted(self._late, one, many)} dropped"  # Spark counts late rows after partial aggregation
        return Summary(rows, (note, late) if self._late else (note,))

    def _add(self, report: dict[str, Any]) -> None:
        self.rows += report["numInputRows"]
        self._batches += bool(report["numInputRows"])
        self._late += sum(int(state.get("numRowsDroppedByWatermark", 0)) for state in report["stateOperators"])
        source = report["sources"][0]
        start, end, latest = (
            reported_offset(source.get(name)) for name in ("startOffset", "endOffset", "latestOffset")
        )
        self._first = self._first or start or self._beginning
        self._last = end or self._last
        self._latest = latest or self._latest
