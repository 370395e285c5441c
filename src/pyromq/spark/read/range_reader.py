"""Reads the queue ranges of a Spark task: pulls one request ahead and converts records to Arrow batches.

No Spark here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import pyarrow as pa

from pyromq.client.blocking.consumers import QueueReader
from pyromq.client.cluster.namespace import namespace_of
from pyromq.client.consumer.pulling import PullResult, PullStatus
from pyromq.errors import TopicNotFound, Unavailable
from pyromq.filter.filter import parse_tags
from pyromq.message import MessageQueue
from pyromq.record import queue_offset_of, unpack_size
from pyromq.spark.read.bounds import deletion, queue_name, report_loss
from pyromq.spark.read.plan import QueueRange
from pyromq.spark.read.read_options import ReadOptions
from pyromq.spark.read.record_columns import RowFormat, check_bodies, count_records, to_batches
from pyromq.spark.worker_clients import kept_client, queue_reader, with_retries

T = TypeVar("T")

BUNDLE_ROWS = 1024  # limit of rows in short ranges that are pulled together
BUNDLE_RANGES = 16  # limit of ranges that are pulled together: each response may have `pullBytes`
MAX_REPAIRS = 100  # limit of pulls of one offset while its broker repairs damaged entries; then messages are lost


def client_of(options: ReadOptions) -> QueueReader:
    """Return this process's client for these options.

    Raises `NoNameServer` immediately if no name server is reachable.
    """

    def open_client() -> QueueReader:
        client = queue_reader(
            options.group, options.namesrv, options.connecting, timeout=options.pull_timeout_ms / 1000
        )
        client.start()
        return client

    key = QueueReader, options.namesrv, options.group, options.pull_timeout_ms, options.connecting
    return kept_client(key, open_client)


def read_ranges(options: ReadOptions, columns: list[str], ranges: list[QueueRange]) -> Iterator[pa.RecordBatch]:
    """Yield the messages of the ranges as Arrow batches, in order of the ranges and of offsets.

    Raises `DataLoss` if messages were deleted, unless failOnDataLoss is false. Raises `Unavailable` if a broker does
    not answer until `deadlineMs`.
    """
    row_format = RowFormat(
        options.system_properties,
        parse_tags(options.tag_filter).tags,
        max_body_bytes=options.max_body_bytes,
        undecodable=options.undecodable,
        names=namespace_of(options.connecting.namespace, options.namesrv),
    )
    client = with_retries(options, lambda: client_of(options))
    for broker_name, raw in _ahead(_joined(options, _RangePuller(options, client).pulls(ranges))):
        if options.verify_crc:
            check_bodies(raw)
        yield from to_batches(raw, broker_name, columns, row_format)


def _joined(options: ReadOptions, pulled: Iterable[tuple[MessageQueue, int, bytes]]) -> Iterator[tuple[str, bytes]]:
    """Join the pulled records of one broker until a batch is full; yield broker name and records.

    Small batches cost Spark three times as much.
    """
    parts: list[bytes] = []
    rows = size = 0
    broker_name = ""
    for queue, found, raw in pulled:
        full = rows >= options.arrow_rows or size >= options.arrow_bytes
        if parts and (full or queue.broker_name != broker_name):
            yield broker_name, b"".join(parts)
            parts, rows, size = [], 0, 0
        parts.append(raw)
        broker_name = queue.broker_name
        rows += found
        size += len(raw)
    if parts:
        yield broker_name, b"".join(parts)


def _ahead(items: Iterator[T]) -> Iterator[T]:
    """Yield the items of an iterator. A thread fetches the next item while the caller uses the present one."""
    end = object()
    with ThreadPoolExecutor(1) as thread:
        pending = thread.submit(next, items, end)
        while (item := pending.result()) is not end:
            pending = thread.submit(next, items, end)
            yield item  # type: ignore[misc]  # `end` was excluded


class _RangePuller:
    """Pulls the messages of ranges, and reports messages that were deleted since planning."""

    def __init__(self, options: ReadOptions, client: QueueReader) -> None:
        self._options = options
        self._client = client

    def pulls(self, ranges: list[QueueRange]) -> Iterator[tuple[MessageQueue, int, bytes]]:
        """Yield queue, number of records and records of each pull, for each range in turn.

        A range ends at an offset, not after a count: filtered or deleted messages leave gaps.
        """
        for together in bundles(ranges):
            begun = self._pull([(range_, range_.start) for range_ in together])
            for range_, found in zip(together, begun, strict=True):
                offset = range_.start
                while found is not None and self._can_go_on(range_, offset, found):
                    count, offset = found.next_offset - offset, found.next_offset
                    if found.raw and (raw := _before(found, range_.end)):
                        yield range_.queue, count_records(raw) if self._options.is_filtered else count, raw
                    if offset >= range_.end:
                        break
                    found = self._pull([(range_, offset)])[0]
                if found is None:
                    report_loss(self._options, deletion(range_.queue[:2], {range_.queue: offset}))

    def _pull(self, places: list[tuple[QueueRange, int]]) -> list[PullResult | None]:
        """Pull from each offset and return the results in order.

        A result is None if the topic was deleted since planning.
        """
        pull = partial(self._pull_existing, places)
        found = with_retries(self._options, pull, planned=True)
        for _ in range(MAX_REPAIRS):
            if not any(each is not None and _is_being_repaired(each) for each in found):
                break
            found = with_retries(self._options, pull, planned=True)
        return found

    def _pull_existing(self, places: list[tuple[QueueRange, int]]) -> list[PullResult | None]:
        options = self._options
        wanted = [(range_.queue, offset, min(options.pull_batch, range_.end - offset)) for range_, offset in places]
        pull = partial(
            self._client.pull_all, tags=options.tag_filter, sql=options.sql_filter, max_bytes=options.pull_bytes
        )
        try:
            found = pull(wanted)
            self._check_masters([each for each in found if each.max_offset <= each.offset])
            return [*found]
        except TopicNotFound:
            deleted = self._client.deleted({queue[:2] for queue, _, _ in wanted})
            if not deleted:
                raise
            return [None if each[0][:2] in deleted else pull([each])[0] for each in wanted]

    def _check_masters(self, ended: list[PullResult]) -> None:
        """Raise `Unavailable` if a slave answered that its queue ends before the range: it may lack new messages."""
        for found in ended:
            if not self._client.has_master(found.queue):
                self._client.queues(found.queue.topic)  # refreshes the route: the master may be back
                raise Unavailable(
                    f"{queue_name(found.queue)} ends at {found.max_offset} at a slave, and was planned to be read"
                    f" beyond offset {found.offset}; start the broker's master"
                )

    def _can_go_on(self, range_: QueueRange, offset: int, found: PullResult) -> bool:
        """Return whether the range can be read further.

        Messages deleted since planning raise `DataLoss`, or are logged if failOnDataLoss is false.
        """
        first, end = found.min_offset, found.max_offset
        moves = found.next_offset > offset
        if moves and first <= offset:
            first = _first_offset(found)
            if first == offset or self._is_filtered(range_.queue, offset):
                return True
        gone = (min(first, range_.end) if offset < first else range_.end) - offset
        report_loss(
            self._options,
            f"{queue_name(range_.queue)}: offsets {offset} to {offset + gone - 1} were deleted, {gone} in all; "
            f"the queue holds {first} to {end}",
        )
        return moves

    def _is_filtered(self, queue: MessageQueue, offset: int) -> bool:
        """Return whether the message at this offset was filtered, not deleted.

        A pull has the same response for both.
        """
        if not self._options.is_filtered:
            return False
        look_up = partial(self._client.store_time_at, queue, offset)
        return with_retries(self._options, look_up, planned=True) is not None


def bundles(ranges: list[QueueRange]) -> Iterator[list[QueueRange]]:
    """Yield groups of short ranges that are pulled together.

    A micro-batch may have a few messages in each of many queues.
    """
    bundle: list[QueueRange] = []
    rows = 0
    for range_ in ranges:
        if bundle and (rows + len(range_) > BUNDLE_ROWS or len(bundle) == BUNDLE_RANGES):
            yield bundle
            bundle, rows = [], 0
        bundle.append(range_)
        rows += len(range_)
    if bundle:
        yield bundle


def _is_being_repaired(found: PullResult) -> bool:
    """Return whether the pull must be repeated, because the broker has just repaired entries of the queue."""
    return found.status is PullStatus.NO_MATCH and found.next_offset == found.offset


def _first_offset(found: PullResult) -> int:
    """Return the queue offset of the first pulled record; without a record, the next offset to pull."""
    return queue_offset_of(found.raw) if found.raw else found.next_offset


def _before(found: PullResult, end: int) -> bytes:
    """Return the records before queue offset `end`; a pull may return more than requested."""
    if found.next_offset <= end:
        return found.raw
    raw, position = found.raw, 0
    while position < len(raw):
        if queue_offset_of(raw, position) >= end:
            break
        position += unpack_size(raw, position)[0]
    return raw[:position]
