"""Blocking batch transactions, their attempts, and streams of batches."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from pyromq.client.blocking.blocking_client import Blocking, BlockingClient, blocking
from pyromq.client.blocking.blocking_runner import BlockingRunner
from pyromq.client.config import ProducerConfig
from pyromq.client.producer.batch_stream import BatchStream
from pyromq.client.producer.batch_transactions import (
    AsyncAttempt,
    AsyncBatchTransactions,
    AttemptResult,
)
from pyromq.message import MessageQueue
from pyromq.message_id import UniqueIds
from pyromq.remoting.header import Header


class Attempt(Blocking[AsyncAttempt]):
    """One attempt at a transaction, a context manager; see `AsyncBatchTransactions.attempt`."""

    def __init__(self, runner: BlockingRunner, attempt: AsyncAttempt) -> None:
        super().__init__(runner, attempt)
        self.transaction = attempt.transaction
        self.token = attempt.token

    send = blocking(AsyncAttempt.send)
    send_run = blocking(AsyncAttempt.send_run)
    finish = blocking(AsyncAttempt.finish)
    abandon = blocking(AsyncAttempt.abandon)

    @property
    def result(self) -> AttemptResult | None:
        """The result to commit; None until the attempt is finished."""
        return self._async.result

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.run(self._async.__aexit__, kind, error, trace)


class Stream(Blocking[BatchStream]):
    """Batches of messages that consumers see as soon as they are stored; see `BatchStream`."""

    finish = blocking(BatchStream.finish)
    abandon = blocking(BatchStream.abandon)

    def send_run(self, queue: MessageQueue, body: bytes, messages: int, *, header: Header | None = None) -> None:
        """Begin to send a batch; blocks only while too many batches wait for their replies."""
        self._runner.run(self._async.put, queue, body, messages, header=header)


class BatchTransactions(BlockingClient[AsyncBatchTransactions]):
    """Sends attempts and commits one; blocking, for programs without an event loop.

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
        super().__init__(
            AsyncBatchTransactions(group, namesrv, ledger=ledger, timeout=timeout, in_flight=in_flight, config=config)
        )

    commit = blocking(AsyncBatchTransactions.commit)
    lookup = blocking(AsyncBatchTransactions.lookup)
    rollback = blocking(AsyncBatchTransactions.rollback)
    undecided = blocking(AsyncBatchTransactions.undecided)

    @property
    def ledger(self) -> str:
        """The name of the broker that keeps the decisions."""
        return self._async.ledger

    @property
    def ids(self) -> UniqueIds:
        """Makes unique ids for messages that are encoded by the application."""
        return self._async.runs.ids

    def attempt(self, transaction: str, token: str | None = None) -> Attempt:
        """Return a new attempt. A `token` must never be used twice; without one, a new one is made."""
        return Attempt(self._runner, self._runner.call(self._async.attempt, transaction, token))

    def stream(self) -> Stream:
        """Return a stream of batches outside transactions: visible once stored, delivered at least once."""
        return Stream(self._runner, self._runner.call(self._async.runs.stream))

    def single_header(self, queue: MessageQueue, *, flag: int, properties: str) -> Header:
        """Return the header of a stream's single message, for delayed ones."""
        return self._async.runs.single_header(queue, flag=flag, properties=properties)

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that can be written now, in order of broker name and queue id."""
        return self._runner.run(self._async.runs.queues, topic)
