"""Blocking batch transactions and runs: the async ones behind a `BlockingRunner`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

from pyromq.client.blocking.blocking_runner import BlockingRunner
from pyromq.client.config import ProducerConfig
from pyromq.client.lifespan import Lifespan
from pyromq.client.producer.batch_stream import Acknowledged, BatchStream
from pyromq.client.producer.batch_transactions import (
    AsyncAttempt,
    AsyncBatchTransactions,
    AttemptResult,
    BatchOutcome,
    UndecidedAttempts,
)
from pyromq.client.producer.queue_selection import OrderingKey
from pyromq.message import Message, MessageQueue
from pyromq.message_id import UniqueIds
from pyromq.remoting.header import Header


class Attempt:
    """One attempt at a transaction, a context manager; see `AsyncBatchTransactions.attempt`."""

    def __init__(self, portal: BlockingRunner, attempt: AsyncAttempt) -> None:
        self.transaction = attempt.transaction
        self.token = attempt.token
        self._runner = portal
        self._async = attempt

    @property
    def result(self) -> AttemptResult | None:
        """What to commit, once the attempt is finished."""
        return self._async.result

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.run(self._async.__aexit__, kind, error, trace)

    def send(
        self, messages: Iterable[Message], *, queue: MessageQueue | None = None, ordering_key: OrderingKey | None = None
    ) -> None:
        """Send messages without waiting for answers; waits only while too much is under way."""
        self._runner.run(self._async.send, messages, queue=queue, ordering_key=ordering_key)

    def send_run(self, queue: MessageQueue, body: bytes, messages: int) -> None:
        """Send messages that are encoded already."""
        self._runner.run(self._async.send_run, queue, body, messages)

    def finish(self) -> AttemptResult:
        """Wait until the brokers hold everything."""
        return self._runner.run(self._async.finish)

    def abandon(self) -> None:
        """Stop sending; the broker rolls back what it has when told so, or in time."""
        self._runner.run(self._async.abandon)


class Stream:
    """Runs of messages that are seen as soon as they are stored; see `BatchStream`."""

    def __init__(self, portal: BlockingRunner, stream: BatchStream) -> None:
        self._runner = portal
        self._async = stream

    def send_run(self, queue: MessageQueue, body: bytes, messages: int, *, header: Header | None = None) -> None:
        """Begin to send a run; waits only while too many are under way."""
        self._runner.run(self._async.put, queue, body, messages, header=header)

    def finish(self) -> dict[MessageQueue, Acknowledged]:
        """Wait until every run is acknowledged; return what each queue got."""
        return self._runner.run(self._async.finish)

    def abandon(self) -> None:
        """Stop sending; what was not acknowledged may be stored or not."""
        self._runner.run(self._async.abandon)


class BatchTransactions(Lifespan):
    """Sends attempts and decides; blocking, for programs without an event loop.

        with BatchTransactions("etl") as batches:
            with batches.attempt("etl:17") as attempt:
                attempt.send(messages)
            outcome = batches.commit("etl:17", [attempt.result])

    Arguments, units and errors are those of `AsyncBatchTransactions`.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | None = None,
        *,
        ledger: str | None = None,
        timeout: float = 60.0,
        in_flight: int = 8,
        config: ProducerConfig | None = None,
    ) -> None:
        self._async = AsyncBatchTransactions(
            group, namesrv, ledger=ledger, timeout=timeout, in_flight=in_flight, config=config
        )
        self._runner = BlockingRunner(self.close)

    def start(self) -> None:
        """Connect. Raises `NoNameServer` at once when no name server can be reached, `UsageError` for the ledger."""
        self._runner.start(self._async.start)

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._runner.close(self._async.close)

    @property
    def ledger(self) -> str:
        """The broker that decides."""
        return self._async.ledger

    @property
    def ids(self) -> UniqueIds:
        """Makes the unique ids of messages that are encoded elsewhere."""
        return self._async.runs.ids

    def attempt(self, transaction: str, token: str | None = None) -> Attempt:
        """Return a new attempt; tokens are made where none is given, and must never be used twice."""
        return Attempt(self._runner, self._runner.call(self._async.attempt, transaction, token))

    def stream(self) -> Stream:
        """Return a stream of runs that belong to no transaction: seen as soon as they are stored, at least once."""
        return Stream(self._runner, self._runner.call(self._async.runs.stream))

    def single_header(self, queue: MessageQueue, *, flag: int, properties: str) -> Header:
        """Return the header with which a stream sends one message by itself, for one that is delayed."""
        return self._async.runs.single_header(queue, flag=flag, properties=properties)

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that can be written now, in order of broker name and queue id."""
        return self._runner.run(self._async.runs.queues, topic)

    def commit(
        self, transaction: str, attempts: Sequence[AttemptResult | None], *, content: str | None = None
    ) -> BatchOutcome:
        """Decide that these attempts win, unless it is decided: return what counts."""
        return self._runner.run(self._async.commit, transaction, attempts, content=content)

    def lookup(self, transaction: str) -> BatchOutcome | None:
        """Return what is decided; None: nothing, or too long ago."""
        return self._runner.run(self._async.lookup, transaction)

    def rollback(self, transaction: str, attempts: Sequence[AttemptResult]) -> None:
        """Let brokers forget these attempts, unless the transaction is decided."""
        self._runner.run(self._async.rollback, transaction, attempts)

    def undecided(self, transaction: str | None = None) -> list[UndecidedAttempts]:
        """Return what nobody has decided on: of each broker at most 200 transactions, oldest first, or only one."""
        return self._runner.run(self._async.undecided, transaction)
