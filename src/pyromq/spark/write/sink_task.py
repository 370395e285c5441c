"""Sends the rows of one Spark task in runs, and reports when brokers have acknowledged all rows. No Spark here."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa

from pyromq.client.blocking.producers import Attempt, BatchTransactions, Stream
from pyromq.client.producer.batch_stream import Acknowledged
from pyromq.client.producer.batch_transactions import AttemptResult
from pyromq.errors import BatchDecided, MessageRefused, Unavailable
from pyromq.logs import logger_of
from pyromq.message import MessageQueue
from pyromq.spark.micro_batch import StreamBatch
from pyromq.spark.worker_clients import RESTART_SECONDS, with_retries
from pyromq.spark.write.message_columns import MessageColumns, SingleMessage, dead_letter
from pyromq.spark.write.message_reader import MessageReader
from pyromq.spark.write.open_runs import OpenRuns
from pyromq.spark.write.sink_options import DROP, EXACTLY_ONCE, FAIL, IDEMPOTENT, SinkOptions
from pyromq.spark.write.unique_ids import fresh_ids, repeatable_ids, unique_id_of

logger = logger_of(__name__)


@dataclass(frozen=True, slots=True)
class TaskName:
    """Identifies a task of a write. A task that Spark repeats has an equal name."""

    write: str  # name of the stream's batch or of the job; a transaction has the same name
    partition: int
    stream: StreamBatch | None = None  # the micro-batch that the task belongs to; None in a batch write


@dataclass(slots=True)
class TaskReport:
    """The result of a sink task: counts of rows, and offsets of the stored messages.

    If the write was committed before, the task sends nothing: `skipped` is true and `rows` counts the input. With
    delivery exactlyOnce `queues` is empty.
    """

    write: str
    stream: StreamBatch | None = None
    result: AttemptResult | None = None
    skipped: bool = False
    rows: int = 0
    bytes: int = 0
    dropped: int = 0
    dead_letters: int = 0
    queues: dict[MessageQueue, Acknowledged] = field(default_factory=dict)

    @property
    def given(self) -> int:
        """The number of rows that Spark gave to the task."""
        return self.rows + self.dropped + self.dead_letters


class SinkTask:
    """Writes the rows of one Spark task to topics."""

    def __init__(self, client: BatchTransactions, options: SinkOptions, name: TaskName) -> None:
        self._client = client
        self._options = options
        self._name = name
        self._report = TaskReport(name.write, name.stream)
        self._given = 0  # number of rows that Spark has given to this task
        self._out: Attempt | Stream
        self._runs: OpenRuns

    def write(self, batches: Iterable[pa.RecordBatch]) -> TaskReport:
        """Send all rows; return the report when the brokers have stored them.

        A write that was committed before sends nothing. Raises `IllegalMessage` for a row that cannot be sent, and the
        errors of sending.
        """
        exactly_once = self._options.delivery == EXACTLY_ONCE
        if exactly_once and with_retries(self._options, lambda: self._client.lookup(self._name.write)) is not None:
            return self._skipped(batches)
        self._out = self._client.attempt(self._name.write) if exactly_once else self._client.stream()
        self._runs = OpenRuns(self._queues, self._out.send_run, run_bytes=self._options.batch_bytes)
        try:
            self._send(batches)
            self._finish()
        except BatchDecided:  # another attempt at the same write was committed meanwhile
            self._out.abandon()
            return self._skipped(batches)
        except BaseException:
            self._out.abandon()
            raise
        return self._report

    def _queues(self, topic: str, brokers: Collection[str]) -> list[MessageQueue]:
        """Return the queues of a topic.

        Wait up to 20 s for `brokers`, which may be restarting; then raise `Unavailable`.
        """

        def found() -> list[MessageQueue]:
            queues = self._client.queues(topic)
            there = {queue.broker_name for queue in queues}
            if missing := sorted(set(brokers) - there):
                raise Unavailable(
                    f"topic {topic} has no queue at {missing[0]} to write to; brokers with queues are"
                    f" {', '.join(sorted(there))}"
                )
            return queues

        return with_retries(self._options, found, planned=True, max_seconds=RESTART_SECONDS if brokers else math.inf)

    def _skipped(self, batches: Iterable[pa.RecordBatch]) -> TaskReport:
        """Consume the rows without sending them; return the report.

        Spark's worker requires that a task consumes all rows.
        """
        rows = self._given + sum(batch.num_rows for batch in batches)
        logger.info("%s is written already; partition %d sends nothing", self._name.write, self._name.partition)
        return TaskReport(self._name.write, self._name.stream, skipped=True, rows=rows)

    def _send(self, batches: Iterable[pa.RecordBatch]) -> None:
        new_ids: Callable[[int], pa.Array] = partial(fresh_ids, self._client.ids)
        if self._options.delivery == IDEMPOTENT:
            new_ids = repeatable_ids(f"{self._name.write}:{self._name.partition}")
        reader = MessageReader(self._options, new_ids, unique_id_of)
        for batch in batches:
            self._given += batch.num_rows
            if batch.num_rows:
                self._take(reader.read(batch))
        self._runs.flush()

    def _take(self, messages: MessageColumns) -> None:
        unusual = messages.too_large | messages.delayed
        for index in np.flatnonzero(unusual).tolist():
            if messages.too_large[index]:
                self._refuse(messages.row(index), messages.refusal(index))
            else:
                self._send_single(messages.where(np.arange(len(messages)) == index))
        if unusual.any():
            messages = messages.where(~unusual)
        self._runs.add(self._options.topic, messages)
        self._count(messages)

    def _refuse(self, row: SingleMessage, reason: str) -> None:
        """Handle a too large row as option onTooLarge says.

        Raise `MessageRefused`, drop the row, or send a dead letter.
        """
        options = self._options
        if options.too_large == FAIL:
            raise MessageRefused(
                f"a row for topic {row.topic} has {reason} bytes; make it smaller, or set option onTooLarge to drop or"
                " dlq (and maxMessageBytes to the brokers' limit)"
            )
        if options.too_large == DROP:
            self._report.dropped += 1
        else:
            self._runs.add(None, dead_letter(row, reason, options))
            self._report.dead_letters += 1
        logger.warning("a row for topic %s has %s: %s", row.topic, reason, options.too_large)

    def _send_single(self, message: MessageColumns) -> None:
        """Send a delayed or scheduled message in its own request: a batch message cannot be delayed."""
        assert isinstance(self._out, Stream)
        row = message.row(0)
        queue = self._runs.queue_of(row.topic, message)
        header = self._client.single_header(queue, flag=row.flag, properties=row.properties)
        self._out.send_run(queue, row.body, 1, header=header)
        self._count(message)

    def _count(self, messages: MessageColumns) -> None:
        self._report.rows += len(messages)
        self._report.bytes += messages.body_bytes

    def _finish(self) -> None:
        if isinstance(self._out, Attempt):
            self._report.result = self._out.finish()
        else:
            self._report.queues = self._out.finish()
