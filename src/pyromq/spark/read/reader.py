"""Spark's readers of topics, for batches and streams.

`bounds`, `stream_planning` and `plan` decide what is read, without Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from pyromq.clock import SystemClock
from pyromq.errors import MQError
from pyromq.logs import logger_of
from pyromq.spark.monitoring.lag_file import LagFile
from pyromq.spark.read.bounds import ReadBounds
from pyromq.spark.read.plan import QueueRange, partition
from pyromq.spark.read.range_reader import client_of, read_ranges
from pyromq.spark.read.read_options import ReadOptions
from pyromq.spark.read.stream_offset import read_stream_offset
from pyromq.spark.read.stream_planning import StreamPlanning
from pyromq.spark.worker_clients import with_retries

logger = logger_of(__name__)

MAX_BYTES = 4 << 20  # limit of a micro-batch that the driver reads: the driver's memory serves the whole query
DRIVER_WAIT_MS = 1_000  # longest wait of the driver for a broker while the driver reads; tasks wait until `deadlineMs`

UNLIMITED = (1 << 63) - 1


@dataclass
class RangePartition(InputPartition):
    """The queue ranges that one Spark task reads: names and offsets only.

    The task looks up the brokers' addresses.
    """

    ranges: list[QueueRange]


class RocketMQReader(DataSourceReader):
    """Reads one batch of messages.

    Spark calls `partitions` once for a DataFrame, which fixes the offset of "latest".
    """

    def __init__(self, options: ReadOptions, columns: list[str]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        options = self._options
        client = client_of(options)  # an unreachable name server is an error immediately, not after `deadlineMs`
        return _partitions(options, with_retries(options, ReadBounds(options, client).ranges))

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a task's ranges as Arrow batches.

        Spark passes another kind of partition if there is nothing to read.
        """
        return _read(self._options, self._columns, partition)


class RocketMQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the micro-batches of one run of a streaming query.

    Spark plans in one process with one reader, and reads in other processes with copies of that reader. Spark calls
    `commit` a batch late and not for the last batch, but `latestOffset` always with the end of the last batch that is
    done. So `latestOffset` commits the offsets at the brokers.
    """

    def __init__(self, options: ReadOptions, columns: list[str]) -> None:
        self._options = options
        self._columns = columns
        self._early: list[pa.RecordBatch] = []

    def initialOffset(self) -> dict[str, Any]:
        return with_retries(self._options, self._planning.first).as_json()

    def prepareForTriggerAvailableNow(self) -> None:
        with_retries(self._options, self._planning.end_here)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        reached = read_stream_offset(start)
        limited = not isinstance(limit, ReadAllAvailable)
        end = with_retries(self._options, partial(self._planning.next, reached, limited=limited))
        last = self._planning.ends_here and end == reached
        self._planning.commit(reached, last=last)
        if self._lag_file is not None:
            self._lag_file.note(reached, self._planning.latest(), last=last)
        return end.as_json() if end != reached else start

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return a limit if the options have any.

        Spark knows one limit at a time; `StreamPlanning` applies all limits.
        """
        options = self._options
        if options.max_rows or options.max_bytes or options.min_rows:
            return ReadMaxRows(options.max_rows or UNLIMITED)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        latest = self._planning.latest()
        return latest.as_json() if latest else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the partitions of a micro-batch, one per task.

        The driver reads a small micro-batch itself and passes the rows to Spark with a single partition.
        """
        begin, stop = read_stream_offset(start), read_stream_offset(end)
        ranges = with_retries(self._options, partial(self._planning.ranges, begin, stop))
        batches = read_early(self._options, self._columns, ranges)
        if batches is None:
            return _partitions(self._options, ranges)
        self._early = batches
        self.__class__ = _ReaderWithRows  # until PySpark has called `getCache`
        return [RangePartition([each for each in ranges if len(each)])]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._columns, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: `latestOffset` commits the offsets at the brokers."""

    def stop(self) -> None:
        """Do nothing: Spark does not always call `stop`, and connections end with the process."""

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_columns": self._columns}

    @cached_property
    def _planning(self) -> StreamPlanning:
        return StreamPlanning(self._options, client_of(self._options), SystemClock())

    @cached_property
    def _lag_file(self) -> LagFile | None:
        options = self._options
        if options.lag_prometheus is None:
            return None
        times = client_of(options).store_times
        return LagFile(Path(options.lag_prometheus), options.group, store_times=times, clock=SystemClock())


class _ReaderWithRows(RocketMQStreamReader, _SimpleStreamReaderWrapper):
    """Class of a stream's reader while PySpark fetches the rows of a micro-batch that the driver has read.

    Spark's block manager keeps the rows, and the task that reads them needs no Python. If the rows are lost, the task
    reads its ranges from brokers. PySpark takes rows only from its own class for simple readers, and checks
    `isinstance` after `partitions`. Queries over that class do not report the ends of the queues, so a reader has this
    class only between `partitions` and `getCache`.
    """

    def getCache(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        self.__class__ = RocketMQStreamReader  # type: ignore[assignment]
        batches, self._early = self._early, []
        return iter(batches)


class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of a stream with wrong options: Spark's first calls raise the error.

    Spark would hide an error raised by `streamReader` behind an error about an unset variable.
    """

    def __init__(self, why: MQError) -> None:
        self._why = why

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise self._why

    initialOffset = prepareForTriggerAvailableNow = latestOffset = partitions = read = _refuse


def _partitions(options: ReadOptions, ranges: list[QueueRange]) -> list[InputPartition]:
    tasks = partition(
        ranges, min_tasks=options.min_partitions, max_tasks=options.max_partitions, max_records=options.max_records
    )
    return [RangePartition(task) for task in tasks]


def _read(options: ReadOptions, columns: list[str], partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, RangePartition):  # Spark passes a partition of its own if there is nothing to read
        return iter(())
    return read_ranges(options, columns, partition.ranges)


def read_early(options: ReadOptions, columns: list[str], ranges: list[QueueRange]) -> list[pa.RecordBatch] | None:
    """Read all ranges on the driver; return the messages as Arrow batches, or None if tasks must read them.

    Tasks read if there are too many messages, if a broker does not answer within 1 s, or if options split rows into
    tasks.
    """
    rows = sum(map(len, ranges))
    if not 0 < rows <= options.early_rows or options.min_partitions or options.max_records:
        return None
    driver_options = replace(options, deadline_ms=min(options.deadline_ms, DRIVER_WAIT_MS))
    batches: list[pa.RecordBatch] = []
    size = 0
    try:
        for batch in read_ranges(driver_options, columns, [each for each in ranges if len(each)]):
            size += batch.nbytes
            if size > MAX_BYTES:
                return None
            batches.append(batch)
    except MQError as error:
        logger.warning("the driver cannot read %d messages, tasks will: %s", rows, error)
        return None
    return batches
