"""Finds in the log, after a crash, what the files of timers do not know: which messages left since the checkpoint."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping

from pyromq.broker.delays.timer_records import delivered_from
from pyromq.errors import StoreCorrupt
from pyromq.logs import logger_of
from pyromq.message import Property
from pyromq.record import decode
from pyromq.store.timers.timer_bucket import HOUR_MS, TimerBucket

logger = logger_of(__name__)

# Together this takes about a third of a millisecond, after which others may get their turn.
CHECKED_RECORDS = 400
NOTE_EFFORT = 100  # one that was delivered takes as long as so many others

Delivered = tuple[TimerBucket, int, str]  # its number in the bucket, and its topic


def delivered_timers(
    records: Iterable[tuple[int, memoryview]], end: int, buckets: Mapping[int, TimerBucket]
) -> Iterator[Delivered | None]:
    """Yield what these records, by log offset, show delivered before `end`; None where others may have a turn."""
    effort = 0
    for at, record in records:
        effort += 1
        try:
            if (parked_at := delivered_from(record)) is not None:
                effort += NOTE_EFFORT
                yield from _found(record, parked_at, buckets)
        except (StoreCorrupt, struct.error) as error:
            logger.warning("the record at log offset %d is damaged: %s", at, error)
        if effort >= CHECKED_RECORDS:
            effort = 0
            yield None
        if at + len(record) >= end:
            return


def _found(record: memoryview, parked_at: int, buckets: Mapping[int, TimerBucket]) -> Iterator[Delivered | None]:
    message = decode(record)
    due = message.properties.get(Property.TIMER_OUT_MS, "")
    bucket = buckets.get(int(due) // HOUR_MS) if due.isdecimal() else None
    if bucket is None:
        return
    while not bucket.learn_finished():
        yield None
        if buckets.get(bucket.hour) is not bucket:
            return
    if (number := bucket.number_at(parked_at)) is not None:
        yield bucket, number, message.topic
