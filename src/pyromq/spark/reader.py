"""Batch reads: the driver divides offset ranges, each task pulls its own and gives Arrow batches."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyromq.client.pulling import PullResult
from pyromq.errors import MQError, UsageError
from pyromq.filter.tags import parse_tags
from pyromq.spark.clients import QueueClient, client_of
from pyromq.spark.columns import count_records, to_batch
from pyromq.spark.offsets import plan_ranges
from pyromq.spark.options import ReadOptions
from pyromq.spark.plan import QueueRange, partition

RETRY_SECONDS = 0.2


@dataclass
class RangePartition(InputPartition):
    """The ranges of one task: names and offsets only; the task finds out itself where the brokers are now."""

    ranges: list[QueueRange]


class RocketMQReader(DataSourceReader):
    """One batch read. What "latest" is, is fixed when `partitions` runs: once for a DataFrame."""

    def __init__(self, options: ReadOptions, columns: list[str]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        options = self._options
        ranges = plan_ranges(options, client_of(options.namesrv, options.group))
        tasks = partition(
            ranges, least=options.min_partitions, most=options.max_partitions, max_records=options.max_records
        )
        return [RangePartition(task) for task in tasks]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the partition's messages as Arrow batches; Spark gives no partition when nothing is to be read."""
        if partition is None:
            return
        assert isinstance(partition, RangePartition)
        client = client_of(self._options.namesrv, self._options.group)
        for range_ in partition.ranges:
            yield from self._read_range(client, range_)

    def _read_range(self, client: QueueClient, range_: QueueRange) -> Iterator[pa.RecordBatch]:
        """Join pulls until a batch is full: batches of a pull's size would cost Spark three times as much."""
        parts: list[bytes] = []
        rows = size = 0
        for raw in self._pulls(client, range_):
            parts.append(raw)
            rows += count_records(raw)
            size += len(raw)
            if rows >= self._options.arrow_rows or size >= self._options.arrow_bytes:
                yield self._batch(parts, range_)
                parts, rows, size = [], 0, 0
        if parts:
            yield self._batch(parts, range_)

    def _batch(self, parts: list[bytes], range_: QueueRange) -> pa.RecordBatch:
        return to_batch(
            b"".join(parts),
            range_.queue.broker_name,
            self._columns,
            system_properties=self._options.system_properties,
            tags=parse_tags(self._options.tag_filter).tags,
        )

    def _pulls(self, client: QueueClient, range_: QueueRange) -> Iterator[bytes]:
        """Yield the records of a range as pulled, the next pull running while the last one is worked on.

        The range ends by offset, never by count: filtered or deleted messages leave gaps.
        """
        with ThreadPoolExecutor(1) as ahead:
            offset = range_.start
            pending = ahead.submit(self._pull, client, range_, offset)
            while offset < range_.end:
                found = pending.result()
                self._check_progress(found, offset, range_)
                offset = found.next_offset
                if offset < range_.end:
                    pending = ahead.submit(self._pull, client, range_, offset)
                if found.raw:
                    yield _before(found, range_.end)

    def _pull(self, client: QueueClient, range_: QueueRange, offset: int) -> PullResult:
        """Pull once; a broker that is away is asked again until the deadline."""
        give_up = time.monotonic() + self._options.deadline_ms / 1000
        count = min(self._options.pull_batch, range_.end - offset)
        while True:
            try:
                return client.pull(range_.queue, offset, count, tags=self._options.tag_filter)
            except MQError as error:
                if not error.retriable or time.monotonic() >= give_up:
                    raise
            time.sleep(RETRY_SECONDS)

    def _check_progress(self, found: PullResult, offset: int, range_: QueueRange) -> None:
        """Messages that were there when the read was planned may be deleted before a task reads them."""
        if found.next_offset > offset and found.min_offset <= offset:
            return
        if self._options.fail_on_data_loss or found.next_offset <= offset:
            queue = range_.queue
            raise UsageError(
                f"queue {queue.queue_id} of topic {queue.topic} at {queue.broker_name}: offset {offset} is not there "
                f"any more, the queue holds {found.min_offset} to {found.max_offset}; set failOnDataLoss to false to "
                "read what is there"
            )


def _before(found: PullResult, end: int) -> bytes:
    """Return the records before queue offset `end`; a pull may bring more than was asked for."""
    if found.next_offset <= end:
        return found.raw
    raw, position = found.raw, 0
    while position < len(raw):
        if int.from_bytes(raw[position + 20 : position + 28], "big") >= end:
            break
        position += int.from_bytes(raw[position : position + 4], "big")
    return raw[:position]
