"""Small micro-batches: a stream's driver reads them as it plans them, since tasks that run Python cost more.

Knows no Spark.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from pyromq.errors import MQError
from pyromq.logs import logger_of
from pyromq.spark.read.options import ReadOptions
from pyromq.spark.read.plan import QueueRange
from pyromq.spark.read.task import read_ranges

logger = logger_of(__name__)

MOST_BYTES = 4 << 20  # of one micro-batch: the driver's memory is the whole query's
PATIENCE_MS = 1_000  # tasks have the patience for brokers that are away; a query's planning does not wait twice


def read_early(options: ReadOptions, columns: list[str], ranges: list[QueueRange]) -> list[pa.RecordBatch] | None:
    """Return the messages of all ranges; None where tasks are to read them: too much, or not to be had now.

    Who says how rows are split into tasks wants tasks.
    """
    rows = sum(map(len, ranges))
    if not 0 < rows <= options.early_rows or options.min_partitions or options.max_records:
        return None
    hasty = replace(options, deadline_ms=min(options.deadline_ms, PATIENCE_MS))
    batches: list[pa.RecordBatch] = []
    size = 0
    try:
        for batch in read_ranges(hasty, columns, [each for each in ranges if len(each)]):
            size += batch.nbytes
            if size > MOST_BYTES:
                return None
            batches.append(batch)
    except MQError as error:
        logger.warning("the driver cannot read %d messages, so tasks try it: %s", rows, error)
        return None
    return batches
