"""From options to the offset range of each queue: earliest, latest, by time, given. No Spark."""

from __future__ import annotations

import logging
from typing import Protocol

from pyromq.errors import UsageError
from pyromq.message import MessageQueue
from pyromq.spark.options import EARLIEST, LATEST, OffsetTable, ReadOptions
from pyromq.spark.plan import QueueRange

logger = logging.getLogger(__name__)


class QueueBounds(Protocol):
    """What planning asks a client for."""

    def queues(self, topic: str) -> list[MessageQueue]: ...

    def min_offset(self, queue: MessageQueue) -> int: ...

    def max_offset(self, queue: MessageQueue) -> int: ...

    def offset_by_time(self, queue: MessageQueue, timestamp_ms: int) -> int: ...

    def store_time_at(self, queue: MessageQueue, offset: int) -> int | None: ...


def plan_ranges(options: ReadOptions, client: QueueBounds) -> list[QueueRange]:
    """Return the range of every queue to read.

    Raises `UsageError` for queues that do not exist and, with failOnDataLoss, for offsets that are not there.
    """
    return [_range(options, client, queue) for queue in _queues(options, client)]


def _queues(options: ReadOptions, client: QueueBounds) -> list[MessageQueue]:
    if options.assign is None:
        return [queue for topic in options.subscribe for queue in client.queues(topic)]
    chosen = [
        MessageQueue(topic, broker, queue_id)
        for topic, brokers in options.assign.items()
        for broker, queue_ids in brokers.items()
        for queue_id in queue_ids
    ]
    existing = {queue for topic in options.assign for queue in client.queues(topic)}
    if missing := [queue for queue in chosen if queue not in existing]:
        raise UsageError(f"option assign names {_name(missing[0])}, which does not exist")
    return chosen


def _range(options: ReadOptions, client: QueueBounds, queue: MessageQueue) -> QueueRange:
    least, most = client.min_offset(queue), client.max_offset(queue)
    start = _place(options.starting_offsets, queue, least, most, default=least)
    end = _place(options.ending_offsets, queue, least, most, default=most)
    if options.starting_ms is not None:
        start = _first_from(client, queue, options.starting_ms, (least, most))
    if options.ending_ms is not None:
        end = _first_from(client, queue, options.ending_ms, (least, most))
    for name, offset in (("startingOffsets", start), ("endingOffsets", end)):
        if not least <= offset <= most:
            _report_loss(options, f"{name} of {_name(queue)} is {offset}; the queue holds {least} to {most}")
    return QueueRange(queue, min(max(start, least), most), min(max(end, least), most))


def _place(place: str | OffsetTable, queue: MessageQueue, least: int, most: int, *, default: int) -> int:
    if isinstance(place, str):
        return least if place == "earliest" else most
    given = place.get(queue.topic, {}).get(queue.broker_name, {}).get(str(queue.queue_id))
    if given is None:
        return default
    return least if given == EARLIEST else most if given == LATEST else given


def _first_from(client: QueueBounds, queue: MessageQueue, time_ms: int, bounds: tuple[int, int]) -> int:
    """Return the first offset stored at `time_ms` or later; brokers answer with the nearest one, maybe before it."""
    least, most = bounds
    if least == most:
        return most
    offset = client.offset_by_time(queue, time_ms)
    while offset < most:
        stored = client.store_time_at(queue, offset)
        if stored is None or stored >= time_ms:
            break
        offset += 1
    return offset


def _report_loss(options: ReadOptions, text: str) -> None:
    if options.fail_on_data_loss:
        raise UsageError(f"{text}; set failOnDataLoss to false to read what is there")
    logger.warning("%s; reading what is there", text)


def _name(queue: MessageQueue) -> str:
    return f"queue {queue.queue_id} of topic {queue.topic} at {queue.broker_name}"
