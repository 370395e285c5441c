"""Sends the rows of one Spark task in runs, and reports when brokers have acknowledged all rows. No Spark here.

A run is the batch message of one request, for one queue. Messages for one queue stay in order. Messages without a given
queue fill one run after another, each for the next queue: a broker stores full runs far faster than messages spread
over all queues.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import count

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyromq.client.blocking.producers import Attempt, BatchTransactions, Stream
from pyromq.client.producer.batch_stream import Acknowledged
from pyromq.client.producer.batch_transactions import AttemptResult
from pyromq.client.producer.pending_send import queue_for_key
from pyromq.errors import BatchDecided, MessageRefused, Unavailable, UsageError
from pyromq.logs import logger_of
from pyromq.message import MessageQueue
from pyromq.message_id import UniqueIds
from pyromq.spark.micro_batch import StreamBatch
from pyromq.spark.worker_clients import RESTART_SECONDS, with_retries
from pyromq.spark.write.batch_members import BatchMembers
from pyromq.spark.write.message_columns import MessageColumns, SingleMessage, dead_letter
from pyromq.spark.write.message_reader import MessageReader
from pyromq.spark.write.sink_options import DROP, EXACTLY_ONCE, FAIL, IDEMPOTENT, SinkOptions

MAX_BUFFERED = 8  # limit of a task's unsent rows, in multiples of `run_bytes`; beyond it, the largest run is sent
KNOWN_KEYS = 10_000  # limit of sharding keys of a topic whose queue is cached


@dataclass(slots=True)
class _Run:
    """The open run of one queue: a batch message that is not sent yet."""

    parts: list[bytes | memoryview] = field(default_factory=list)
    size: int = 0
    messages: int = 0


class _Topic:
    """The queues of one topic; chooses the queue of each message."""

    def __init__(self, name: str, queues: list[MessageQueue]) -> None:
        self.name = name
        self.queues = queues
        self._turn = random.randrange(len(queues))
        self._by_place = {(queue.broker_name, queue.queue_id): queue for queue in queues}
        self._brokers = sorted({queue.broker_name for queue in queues})
        self._of_key = lru_cache(KNOWN_KEYS)(lambda key: queue_for_key(queues, key))

    @property
    def next(self) -> MessageQueue:
        """The queue for the next messages that have no given queue."""
        return self.queues[self._turn % len(self.queues)]

    def pass_turn(self) -> None:
        self._turn += 1

    def named_queues(self, messages: MessageColumns) -> list[MessageQueue | None] | None:
        """Return the queue of each message, chosen by column queueId or shardingKey.

        The queue is None for a message with neither value. Return None instead of a list if both columns are missing.
        Raises `UsageError` for a queue that does not exist.
        """
        keys = None if messages.sharding_keys is None else messages.sharding_keys.to_pylist()
        ids = None if messages.queue_ids is None else messages.queue_ids.to_pylist()
        if ids is None:
            return None if keys is None else [None if key is None else self._of_key(key) for key in keys]
        keys = keys or [None] * len(messages)
        brokers = [None] * len(messages) if messages.broker_names is None else messages.broker_names.to_pylist()
        return [
            self.named(broker, queue_id) if queue_id is not None else None if key is None else self._of_key(key)
            for broker, queue_id, key in zip(brokers, ids, keys, strict=True)
        ]

    def missing_brokers(self, messages: MessageColumns) -> set[str]:
        """Return the brokers that messages name in column brokerName, and that have no queue of this topic."""
        if messages.queue_ids is None or messages.broker_names is None:
            return set()
        return set(pc.unique(messages.broker_names.drop_null()).to_pylist()).difference(self._brokers)

    def named(self, broker: str | None, queue_id: int) -> MessageQueue:
        """Return the queue with this id at this broker.

        Raises `UsageError` if there is no such queue, or if `broker` is None and several brokers have the topic.
        """
        if broker is None:
            if len(self._brokers) > 1:
                raise UsageError(
                    f"queueId {queue_id} of topic {self.name} is not unique: brokers {', '.join(self._brokers)} have"
                    " the topic; give column brokerName, too"
                )
            broker = self._brokers[0]
        queue = self._by_place.get((broker, queue_id))
        if queue is None:
            raise UsageError(
                f"topic {self.name} has no queue {queue_id} at {broker} to write to; there are "
                + ", ".join(f"{each.queue_id} at {each.broker_name}" for each in self.queues[:16])
            )
        return queue


class OpenRuns:
    """The open runs of one task: a batch message for each queue. Full runs are passed to `send(queue, body, messages)`.

    `queues_of(topic, brokers)` returns the queues of a topic; `brokers` are those that rows name.
    """

    def __init__(
        self,
        queues_of: Callable[[str, Collection[str]], list[MessageQueue]],
        send: Callable[[MessageQueue, bytes, int], None],
        *,
        run_bytes: int,
    ) -> None:
        self._queues_of = queues_of
        self._send = send
        self._run_bytes = run_bytes
        self._topics: dict[str, _Topic] = {}
        self._runs: dict[MessageQueue, _Run] = {}
        self._size = 0

    def add(self, topic: str | None, messages: MessageColumns) -> None:
        """Add messages to the runs of their queues. If `topic` is None, each message goes to its own topic.

        Raises `UsageError` for a queue that does not exist.
        """
        if topic is not None:
            self._add_to(self._topic(topic), messages)
            return
        assert messages.topics is not None
        for name in pc.unique(messages.topics).to_pylist():
            mask = pc.equal(messages.topics, name).to_numpy(zero_copy_only=False)
            self._add_to(self._topic(name), messages if mask.all() else messages.where(mask))

    def queue_of(self, topic: str, messages: MessageColumns) -> MessageQueue:
        """Return the queue for a message that is sent alone."""
        named = self._topic(topic).named_queues(messages)
        return (named and named[0]) or self._topic(topic).next

    def flush(self) -> None:
        """Send all open runs, full or not."""
        for queue in list(self._runs):
            self._close(queue)

    def _topic(self, name: str) -> _Topic:
        if name not in self._topics:
            self._topics[name] = _Topic(name, self._queues_of(name, ()))
        return self._topics[name]

    def _add_to(self, topic: _Topic, messages: MessageColumns) -> None:
        if missing := topic.missing_brokers(messages):
            topic = self._topics[topic.name] = _Topic(topic.name, self._queues_of(topic.name, missing))
        named = topic.named_queues(messages)
        if named is None:
            self._fill(topic, None, messages.members)
            return
        different = list(dict.fromkeys(named))
        numbers = {queue: number for number, queue in enumerate(different)}
        wanted = np.fromiter((numbers[queue] for queue in named), np.int32, len(named))
        for number, queue in enumerate(different):
            chosen = np.flatnonzero(wanted == number)
            members = messages.members if len(different) == 1 else messages.members.take(chosen)
            self._fill(topic, queue, members)

    def _fill(self, topic: _Topic, only: MessageQueue | None, members: BatchMembers) -> None:
        """Add encoded messages to runs of queue `only`.

        If `only` is None, use the next queue, which changes with each full run.
        """
        ends = members.ends
        first, count = 0, len(members)
        while first < count:
            queue = only or topic.next
            run = self._runs.get(queue)
            if run is None:
                run = self._runs[queue] = _Run()
            last = int(np.searchsorted(ends, ends[first] + self._run_bytes - run.size, "right")) - 1
            if last <= first:
                if run.messages:
                    self._close(queue)
                    continue
                last = first + 1  # a message larger than `run_bytes` is a run by itself
            run.parts.append(members.between(first, last))
            run.size += int(ends[last] - ends[first])
            run.messages += last - first
            self._size += int(ends[last] - ends[first])
            first = last
            if run.size >= self._run_bytes or first < count:
                self._close(queue)
            elif self._size > MAX_BUFFERED * self._run_bytes:
                self._close(max(self._runs, key=lambda each: self._runs[each].size))

    def _close(self, queue: MessageQueue) -> None:
        run = self._runs.pop(queue)
        self._size -= run.size
        topic = self._topics[queue.topic]
        if queue == topic.next:
            topic.pass_turn()
        self._send(queue, b"".join(run.parts), run.messages)


_DIGITS = np.frombuffer(b"0123456789ABCDEF", np.uint8)
# The four digits of each number, as four bytes.
_NUMBERS = _DIGITS[np.arange(1 << 16)[:, None] >> np.array([12, 8, 4, 0]) & 15].view(np.uint32)[:, 0]

logger = logger_of(__name__)

_UNIQUE_ID_DIGITS = 32


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


def unique_id_of(key: str) -> str:
    """Return the message id for a value of column uniqKey.

    A value that has the form of an id is the id. Of other values, the id is a digest.
    """
    if len(key) == _UNIQUE_ID_DIGITS and key.isascii() and key.isalnum():
        return key
    return _digest(key)


def _id_maker(options: SinkOptions, name: TaskName, unique: UniqueIds) -> Callable[[int], pa.Array]:
    """Return a function that makes message ids.

    With delivery idempotent, a repeated task makes equal ids; otherwise all ids are new.
    """
    if options.delivery != IDEMPOTENT:
        return partial(fresh_ids, unique)
    numbers = count()
    prefix = f"{name.write}:{name.partition}:"
    return lambda wanted: pa.array([_digest(f"{prefix}{next(numbers)}") for _ in range(wanted)], pa.string())


def _digest(key: str) -> str:
    return hashlib.md5(key.encode(), usedforsecurity=False).hexdigest().upper()


def fresh_ids(unique: UniqueIds, count: int) -> pa.StringArray:
    """Return `count` new unique ids. numpy makes them in a tenth of the time that Python strings take."""
    parts = [_block(head.encode(), numbers) for head, numbers in unique.blocks(count)]
    return pa.concat_arrays(parts or [pa.array([], pa.string())])


def _block(head: bytes, numbers: range) -> pa.StringArray:
    width = len(head) + _NUMBERS.itemsize
    ids = np.full(len(numbers), head + bytes(_NUMBERS.itemsize), f"V{width}").view(np.uint32).reshape(len(numbers), -1)
    ids[:, -1] = _NUMBERS[np.arange(numbers.start, numbers.stop) & 0xFFFF]
    ends = np.arange(len(numbers) + 1, dtype=np.int32) * np.int32(width)
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(ends), pa.py_buffer(ids))
