"""What one task of a write does: rows in, runs out, and a report when every run is acknowledged. Knows no Spark."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count

import pyarrow as pa

from pyromq.client.batch_transactions import AttemptResult
from pyromq.client.blocking_batch_transactions import Attempt, BatchTransactions, Stream
from pyromq.client.runs import Acknowledged
from pyromq.errors import BatchDecided, MessageRefused
from pyromq.message import MessageQueue
from pyromq.spark.sink_columns import Row, RowReader, dead_letter, refusal_of
from pyromq.spark.sink_options import DROP, EXACTLY_ONCE, FAIL, IDEMPOTENT, SinkOptions
from pyromq.spark.sink_runs import OpenRuns

logger = logging.getLogger(__name__)

_UNIQUE_ID_DIGITS = 32


@dataclass(frozen=True, slots=True)
class TaskName:
    """Which part of which write: the same when Spark repeats it."""

    write: str  # a query's batch, or a job: also the transaction's name
    partition: int


@dataclass(slots=True)
class Report:
    """What a task has written. `skipped`: nothing, since the write was decided before.

    Without exactly once `queues` has the offsets of what was stored.
    """

    write: str
    result: AttemptResult | None = None
    skipped: bool = False
    rows: int = 0
    bytes: int = 0
    dropped: int = 0
    dead_letters: int = 0
    queues: dict[MessageQueue, Acknowledged] = field(default_factory=dict)


class SinkTask:
    """Writes the rows of one task."""

    def __init__(self, client: BatchTransactions, options: SinkOptions, name: TaskName) -> None:
        self._client = client
        self._options = options
        self._name = name
        self._report = Report(name.write)
        self._out: Attempt | Stream
        self._runs: OpenRuns

    def write(self, batches: Iterable[pa.RecordBatch]) -> Report:
        """Send all rows; return when the brokers hold everything.

        Raises `IllegalMessage` for a row that cannot be sent, and what sending fails with.
        """
        exactly_once = self._options.delivery == EXACTLY_ONCE
        if exactly_once and self._client.lookup(self._name.write) is not None:
            return self._skipped(batches)
        self._out = self._client.attempt(self._name.write) if exactly_once else self._client.stream()
        self._runs = OpenRuns(self._client.queues, self._out.send_run, run_bytes=self._options.batch_bytes)
        try:
            self._send(batches)
            self._finish()
        except BatchDecided:  # by an attempt at the same write, while this one was sending
            self._out.abandon()
            return self._skipped(batches)
        except BaseException:
            self._out.abandon()
            raise
        return self._report

    def _skipped(self, batches: Iterable[pa.RecordBatch]) -> Report:
        """Take what Spark gives and do nothing with it: its worker wants it all taken."""
        for _ in batches:
            pass
        logger.info("%s is written already; partition %d sends nothing", self._name.write, self._name.partition)
        return Report(self._name.write, skipped=True)

    def _send(self, batches: Iterable[pa.RecordBatch]) -> None:
        reader = RowReader(self._options, _id_maker(self._options, self._name, self._client.ids.next), unique_id_of)
        for batch in batches:
            for row in reader.rows(batch):
                self._take(row)
        self._runs.flush()

    def _take(self, row: Row) -> None:
        options = self._options
        reason = refusal_of(row, options)
        if reason is not None:
            self._refuse(row, reason)
            return
        if row.delayed:
            self._send_single(row)
        else:
            self._runs.add(row)
        self._report.rows += 1
        self._report.bytes += len(row.body)

    def _refuse(self, row: Row, reason: str) -> None:
        """Do with a row that no broker takes what the options say."""
        options = self._options
        if options.too_large == FAIL:
            raise MessageRefused(
                f"a row for topic {row.topic} has {reason} bytes; make it smaller, or set option onTooLarge to drop or"
                " dlq (and maxMessageBytes to what the brokers take)"
            )
        if options.too_large == DROP:
            self._report.dropped += 1
        else:
            self._runs.add(dead_letter(row, reason, options))
            self._report.dead_letters += 1
        logger.warning("a row for topic %s has %s: %s", row.topic, reason, options.too_large)

    def _send_single(self, row: Row) -> None:
        """Send a delayed row by itself: batches cannot be delayed."""
        assert isinstance(self._out, Stream)
        queue = self._runs.queue_of(row)
        header = self._client.single_header(queue, flag=row.flag, properties=row.text.decode())
        self._out.send_run(queue, row.body, 1, header=header)

    def _finish(self) -> None:
        if isinstance(self._out, Attempt):
            self._report.result = self._out.finish()
        else:
            self._report.queues = self._out.finish()


def unique_id_of(key: str) -> str:
    """Return the message id for a row's own key: the key itself where it is one."""
    if len(key) == _UNIQUE_ID_DIGITS and key.isascii() and key.isalnum():
        return key
    return _digest(key)


def _id_maker(options: SinkOptions, name: TaskName, unique: Callable[[], str]) -> Callable[[], str]:
    """Return what makes message ids: always new ones, or those that a repeated task makes again."""
    if options.delivery != IDEMPOTENT:
        return unique
    numbers = count()
    return lambda: _digest(f"{name.write}:{name.partition}:{next(numbers)}")


def _digest(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest().upper()
