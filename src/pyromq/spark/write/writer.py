"""Spark's writers, for batches and streams. `SinkTask` sends the rows in tasks.

On the driver Spark passes the tasks' reports to `commit`, or to `abort` with None for failed attempts. A stream's
writer on the driver is a new object for every call, so all state of a write is in the reports.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from pyromq.client.blocking.producers import BatchTransactions
from pyromq.client.client_config import ProducerConfig
from pyromq.client.producer.batch_transactions import AttemptResult, BatchOutcome
from pyromq.errors import BatchDecided, MQError, Unavailable, UsageError
from pyromq.logs import logger_of
from pyromq.spark.micro_batch import DecidedWrite, StreamBatch, check_repeated, planned_batch
from pyromq.spark.worker_clients import RESTART_SECONDS, kept_client, with_retries
from pyromq.spark.write.sink_options import DROP, EXACTLY_ONCE, IDEMPOTENT, SinkOptions
from pyromq.spark.write.sink_task import SinkTask, TaskName, TaskReport

logger = logger_of(__name__)

# Shortest and longest pause between checks whether messages are visible, and the pause as a share of the time waited:
# a write ends at most a tenth later than its messages are visible.
FIRST_LOOK_SECONDS, LAST_LOOK_SECONDS, WAITED_SHARE = 0.002, 1.0, 0.1
SLOWLY_VISIBLE = 10_000  # messages per second that even a slow broker makes visible; about 70,000 were measured


@dataclass
class Written(WriterCommitMessage):
    """Carries the report of a task to the driver."""

    report: TaskReport


class RocketMQWriter(DataSourceArrowWriter):
    """Writes one batch of rows. Tasks and driver have pickled copies of one writer."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = check_reachable(options, wait_seconds=0)
        self._planned = _planned_batch(options)
        self._write = _batch_write(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        name = _task_name(self._write, self._planned)
        return Written(_run_task(self._options, name, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit_reports(self._options, reports_of(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        abort_reports(self._options, reports_of(messages))


class RocketMQStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream. Each write is named after the query's id and the batch's number."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = check_reachable(options, wait_seconds=RESTART_SECONDS)
        self._planned = _planned_batch(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        stream = StreamBatch.of_task(_task())
        if stream is None:
            raise UsageError("Spark does not say which query and batch this is; the sink needs PySpark 4.1 or later")
        name = _task_name(f"spark-query:{stream.query}:{stream.batch}:{self._options.topic or '*'}", self._planned)
        return Written(_run_task(self._options, name, iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        commit_reports(self._options, reports_of(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        abort_reports(self._options, reports_of(messages))


def check_reachable(options: SinkOptions, *, wait_seconds: float) -> SinkOptions:
    """Connect at planning, so that a missing name server, topic or ledger raises an error before any row is computed.

    Return the options. Spark plans each micro-batch, so a stream waits `wait_seconds` for servers that restart. With
    delivery exactlyOnce the returned options name the ledger (the broker that stores commits): tasks and driver must
    use the same one.
    """
    client = with_retries(options, lambda: sink_client(options), max_seconds=wait_seconds)
    for topic in filter(None, (options.topic, options.dead_letter_topic)):
        with_retries(options, partial(client.queues, topic), max_seconds=wait_seconds, planned=wait_seconds > 0)
    return replace(options, ledger=client.ledger) if options.delivery == EXACTLY_ONCE else options


def reports_of(messages: Iterable[WriterCommitMessage | None]) -> list[TaskReport]:
    return [message.report for message in messages if isinstance(message, Written)]


def commit_reports(options: SinkOptions, reports: Sequence[TaskReport]) -> None:
    """Commit a write on the driver. Unless delivery is exactlyOnce, the messages are visible already.

    Raises the errors of brokers, and `BatchDecided` if a write with other rows was committed under the same name.
    """
    if not reports:
        return
    write = reports[0].write
    if options.delivery == EXACTLY_ONCE:
        _decide(options, reports)
    dropped, dead_letters = sum(each.dropped for each in reports), sum(each.dead_letters for each in reports)
    if dropped or dead_letters:
        logger.warning("%s: rows too large: %d dropped, %d dead letters", write, dropped, dead_letters)


def _decide(options: SinkOptions, reports: Sequence[TaskReport]) -> None:
    write, stream, results = reports[0].write, reports[0].stream, _results(reports)
    # If a task found that the write was committed before, this commit only completes the earlier one.
    whole = not any(report.skipped for report in reports)
    if whole and not any(result.messages for result in results):
        logger.info("%s has no rows, so no transaction is committed", write)
        return
    content = None if stream is None else stream.content(options.checkpoint, options.query_name)
    client = with_retries(options, lambda: sink_client(options), planned=True)
    outcome = client.commit(write, results if whole else [], content=content)
    logger.info(
        "%s is committed with %d messages%s", write, outcome.messages, "" if outcome.by_this else " (before this run)"
    )
    if outcome.tokens != {result.token for result in results}:
        if whole and (content is None or content != outcome.content):
            raise BatchDecided(
                f"{write} was decided for another writer while this one sent its rows; none of these rows becomes"
                " visible. Run the write again: then its rows are compared with the decided write"
            )
        # A skipped task does not know how many of its rows it would have dropped.
        drops = DROP in (options.too_large, options.null_body)
        rows = None if drops else sum(report.given for report in reports)
        check_repeated(DecidedWrite(write, outcome.content, outcome.messages), content=content, rows=rows)
    if options.wait_visible and not outcome.visible:
        wait_until_visible(options, client, outcome)


def decided_before(options: SinkOptions) -> BatchOutcome | None:
    """Return the decision of an earlier run of this batch write. Raises the errors of brokers.

    Return None if there is no decision, and for other deliveries than exactlyOnce.
    """
    if options.delivery != EXACTLY_ONCE:
        return None
    return with_retries(options, lambda: sink_client(options).lookup(_batch_write(options)))


def _batch_write(options: SinkOptions) -> str:
    return f"spark-job:{options.job_id or uuid4().hex}:{options.topic or '*'}"


def wait_until_visible(options: SinkOptions, client: BatchTransactions, outcome: BatchOutcome) -> None:
    """Wait until all messages of a committed write are visible.

    Raises `Unavailable` after `deadlineMs`, plus a second for each 10,000 messages.
    """
    write = outcome.transaction
    begin = time.monotonic()
    give_up = begin + options.deadline_ms / 1000 + outcome.messages / SLOWLY_VISIBLE
    while (found := with_retries(options, partial(client.lookup, write))) is not None and not found.visible:
        if time.monotonic() >= give_up:
            raise Unavailable(
                f"{write}: its {outcome.messages} messages are committed, but not all are visible yet; the brokers "
                "will make them visible, so do not write them again under another name"
            )
        pause = WAITED_SHARE * (time.monotonic() - begin)
        time.sleep(min(max(pause, FIRST_LOOK_SECONDS), LAST_LOOK_SECONDS))


def abort_reports(options: SinkOptions, reports: Sequence[TaskReport]) -> None:
    """Roll back the messages that tasks sent, unless the write was committed. Errors of brokers are only logged."""
    if options.delivery != EXACTLY_ONCE or not reports:
        if reports:
            logger.warning("%s failed; %d rows are stored nevertheless", reports[0].write, sum(r.rows for r in reports))
        return
    try:
        sink_client(options).rollback(reports[0].write, _results(reports))
    except MQError as error:
        logger.warning("%s is not rolled back; brokers roll it back after a timeout: %s", reports[0].write, error)


def _results(reports: Iterable[TaskReport]) -> list[AttemptResult]:
    return [report.result for report in reports if report.result is not None]


def _planned_batch(options: SinkOptions) -> tuple[int, str] | None:
    """Return number and input digest of the planned micro-batch if delivery is idempotent, else None.

    Message ids depend on both.
    """
    return planned_batch(options.checkpoint) if options.delivery == IDEMPOTENT else None


def _task_name(write: str, planned: tuple[int, str] | None) -> TaskName:
    """Return the name of the running task.

    The name has the digest of the micro-batch's input, if known, so that idempotent ids of other input differ.
    """
    stream = StreamBatch.of_task(_task())
    if planned is not None and stream is not None and stream.batch == planned[0]:
        write = f"{write}:{planned[1]}"
    return TaskName(write, _task().partitionId(), stream)


def _run_task(options: SinkOptions, name: TaskName, batches: Iterator[pa.RecordBatch]) -> TaskReport:
    client = with_retries(options, lambda: sink_client(options), planned=True)
    return SinkTask(client, options, name).write(batches)


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "Spark calls `write` in tasks"
    return context


def sink_client(options: SinkOptions) -> BatchTransactions:
    """Return the client of this process for these options.

    Raises `NoNameServer` immediately if no name server is reachable, `UsageError` for a ledger that does not exist.
    """

    def open_client() -> BatchTransactions:
        client = BatchTransactions(
            options.group,
            options.namesrv,
            ledger=options.ledger,
            timeout=options.deadline_ms / 1000,
            in_flight=options.in_flight,
            config=ProducerConfig(connections=options.connecting.connections(), namespace=options.connecting.namespace),
        )
        client.start()
        return client

    client = kept_client(_key(options, options.ledger), open_client)
    return kept_client(_key(options, client.ledger), lambda: client)  # driver and tasks in one process share the client


def _key(options: SinkOptions, ledger: str | None) -> tuple[object, ...]:
    sending = options.deadline_ms, options.in_flight
    return BatchTransactions, options.namesrv, options.group, ledger, *sending, options.connecting
