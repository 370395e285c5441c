"""Sends the rows of one task of a write in runs, and reports when brokers acknowledged all. No Spark here."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import count

import numpy as np
import pyarrow as pa

from pyromq.client.blocking.producers import Attempt, BatchTransactions, Stream
from pyromq.client.producer.batch_stream import Acknowledged
from pyromq.client.producer.batch_transactions import AttemptResult
from pyromq.errors import BatchDecided, MessageRefused
from pyromq.logs import logger_of
from pyromq.message import MessageQueue
from pyromq.message_id import UniqueIds
from pyromq.spark.batch_content import StreamBatch
from pyromq.spark.worker_clients import with_retries
from pyromq.spark.write.message_columns import MessageColumns, MessageReader, SingleMessage, dead_letter
from pyromq.spark.write.runs import OpenRuns
from pyromq.spark.write.sink_options import DROP, EXACTLY_ONCE, FAIL, IDEMPOTENT, SinkOptions

_DIGITS = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_PLACES = np.array([12, 8, 4, 0])

logger = logger_of(__name__)

_UNIQUE_ID_DIGITS = 32


@dataclass(frozen=True, slots=True)
class TaskName:
    """Identifies a task of a write; equal when Spark repeats the task."""

    write: str  # name of the query's batch or the job; also of the transaction
    partition: int
    stream: StreamBatch | None = None  # the micro-batch that the task belongs to


@dataclass(slots=True)
class TaskReport:
    """What a task has written. `skipped`: nothing, since the write was decided before; `rows` counts its input.

    Except with exactly once, `queues` has the offsets of the stored messages.
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
    """Writes the rows of one task."""

    def __init__(self, client: BatchTransactions, options: SinkOptions, name: TaskName) -> None:
        self._client = client
        self._options = options
        self._name = name
        self._report = TaskReport(name.write, name.stream)
        self._given = 0  # rows
        self._out: Attempt | Stream
        self._runs: OpenRuns

    def write(self, batches: Iterable[pa.RecordBatch]) -> TaskReport:
        """Send all rows; return when the brokers have stored them.

        Raises `IllegalMessage` for a row that cannot be sent, and the errors of sending.
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

    def _queues(self, topic: str) -> list[MessageQueue]:
        return with_retries(self._options, lambda: self._client.queues(topic), planned=True)

    def _skipped(self, batches: Iterable[pa.RecordBatch]) -> TaskReport:
        """Consume the rows without sending them: Spark's worker requires that all are consumed."""
        rows = self._given + sum(batch.num_rows for batch in batches)
        logger.info("%s is written already; partition %d sends nothing", self._name.write, self._name.partition)
        return TaskReport(self._name.write, self._name.stream, skipped=True, rows=rows)

    def _send(self, batches: Iterable[pa.RecordBatch]) -> None:
        reader = MessageReader(self._options, _id_maker(self._options, self._name, self._client.ids), unique_id_of)
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
        """Fail, drop the row or send a dead letter, as option onTooLarge says."""
        options = self._options
        if options.too_large == FAIL:
            raise MessageRefused(
                f"a row for topic {row.topic} has {reason} bytes; make it smaller, or set option onTooLarge to drop or"
                " dlq (and maxMessageBytes to what the brokers take)"
            )
        if options.too_large == DROP:
            self._report.dropped += 1
        else:
            self._runs.add(None, dead_letter(row, reason, options))
            self._report.dead_letters += 1
        logger.warning("a row for topic %s has %s: %s", row.topic, reason, options.too_large)

    def _send_single(self, message: MessageColumns) -> None:
        """Send a delayed message by itself: runs cannot be delayed."""
        assert isinstance(self._out, Stream)
        row = message.row(0)
        queue = self._runs.queue_of(row.topic, message)
        header = self._client.single_header(queue, flag=row.flag, properties=row.text)
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


def unique_id_of(key: str) -> str:
    """Return the message id for column uniqKey: the key itself if it has the form of an id."""
    if len(key) == _UNIQUE_ID_DIGITS and key.isascii() and key.isalnum():
        return key
    return _digest(key)


def _id_maker(options: SinkOptions, name: TaskName, unique: UniqueIds) -> Callable[[int], pa.Array]:
    """Return a maker of message ids: new ones, or with delivery idempotent equal ones for a repeated task."""
    if options.delivery != IDEMPOTENT:
        return partial(fresh_ids, unique)
    numbers = count()
    prefix = f"{name.write}:{name.partition}:"
    return lambda wanted: pa.array([_digest(f"{prefix}{next(numbers)}") for _ in range(wanted)], pa.string())


def _digest(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest().upper()


def fresh_ids(unique: UniqueIds, count: int) -> pa.StringArray:
    """Return new unique ids. numpy makes them in a tenth of the time of Python texts."""
    parts = [_block(head.encode(), numbers) for head, numbers in unique.blocks(count)]
    return pa.concat_arrays(parts or [pa.array([], pa.string())])


def _block(head: bytes, numbers: range) -> pa.StringArray:
    width = len(head) + len(_PLACES)
    ids = np.empty((len(numbers), width), np.uint8)
    ids[:, : len(head)] = np.frombuffer(head, np.uint8)
    ids[:, len(head) :] = _DIGITS[np.arange(numbers.start, numbers.stop)[:, None] >> _PLACES & 15]
    ends = np.arange(len(numbers) + 1, dtype=np.int32) * np.int32(width)
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(ends), pa.py_buffer(ids))
