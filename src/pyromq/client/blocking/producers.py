"""The blocking producer, transaction producer and batch transactions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

from pyromq.client.application_code import called, check_takes
from pyromq.client.blocking.blocking_client import (
    Blocking,
    BlockingClient,
    BlockingRunner,
    blocking,
    refuse_running_loop,
)
from pyromq.client.client_config import ProducerConfig
from pyromq.client.client_hooks import Decision
from pyromq.client.producer.async_producer import AsyncProducer
from pyromq.client.producer.batch_stream import BatchStream
from pyromq.client.producer.batch_transactions import (
    AsyncAttempt,
    AsyncBatchTransactions,
    AttemptResult,
)
from pyromq.client.producer.pending_send import OrderingKey, Selector, listed, queue_chooser
from pyromq.client.producer.transaction_producer import (
    AsyncTransactionProducer,
    Check,
    Execute,
    Transaction,
    TransactionResult,
    decision_of,
    unsafe,
)
from pyromq.errors import NotRunning
from pyromq.message import Message, MessageQueue, SendResult, SendStatus
from pyromq.message_id import UniqueIds
from pyromq.remoting.header import Header


class Producer(BlockingClient[AsyncProducer]):
    """Sends messages; blocking, for programs without an event loop. Several threads may use one producer.

        with Producer("orders-service") as producer:
            result = producer.send(Message("orders", b"...", keys="order-7"), ordering_key="customer-3")

    Arguments, units and errors are those of `AsyncProducer`. Called inside a running event loop, every method raises
    `UsageError`. In a forked child, a producer made by the parent raises `NotRunning`.
    """

    def __init__(self, group: str, namesrv: str | None = None, *, config: ProducerConfig | None = None) -> None:
        client = AsyncProducer(group, namesrv, config=config)
        super().__init__(client, client.config.instance)

    send_one_way = blocking(AsyncProducer.send_one_way)
    request = blocking(AsyncProducer.request)
    cancel = blocking(AsyncProducer.cancel)
    queues = blocking(AsyncProducer.queues)
    flush = blocking(AsyncProducer.flush)

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        ordering_key: OrderingKey | None = None,
        selector: Selector | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send a message and return its queue and offset; see `AsyncProducer.send`."""
        choose = queue_chooser(message, queue, ordering_key, selector)
        if self._async.is_full:
            self._runner.run(self._async.room)
        return self._runner.run(self._async.begin, message, choose, timeout, at_once=True)

    def send_soon(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        ordering_key: OrderingKey | None = None,
        selector: Selector | None = None,
        timeout: float | None = None,
    ) -> Future[SendResult]:
        """Send without waiting. The `concurrent.futures.Future` returned gets the result or the error of `send`.

        Messages sent in a row are written together. Blocks only while `max_in_flight` messages or `max_pending_bytes`
        wait for their replies.
        """
        refuse_running_loop()
        choose = queue_chooser(message, queue, ordering_key, selector)
        if self._async.is_full:
            self._runner.run(self._async.room)
        self._async.check_open()  # raises here, not in the future, even while another thread runs the event loop
        return self._runner.submit(self._async.begin_soon, message, choose, timeout)

    def send_batch(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        ordering_key: OrderingKey | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send messages of one topic in one request; see `AsyncProducer.send_batch`."""
        return self._runner.run(
            self._async.send_batch, listed(messages), queue=queue, ordering_key=ordering_key, timeout=timeout
        )


class TransactionProducer(Producer):
    """A producer whose messages can depend on work of the application; for programs without an event loop.

        def check(message):                        # called when a decision was lost: read durable state
            return Decision.COMMIT if orders.exists(message.message_id) else Decision.ROLLBACK

        with TransactionProducer("orders", check=check) as producer:
            with producer.transaction(Message("orders", b"...")) as transaction:
                orders.insert(transaction.transaction_id, ...)

    Arguments, units and errors are those of `AsyncTransactionProducer`. `execute` runs in the calling thread; `check`
    may run at any time, in another thread.
    """

    _async: AsyncTransactionProducer

    def __init__(
        self, group: str, namesrv: str | None = None, *, check: Check, config: ProducerConfig | None = None
    ) -> None:
        client = AsyncTransactionProducer(group, namesrv, check=check, config=config)
        BlockingClient.__init__(self, client, client.config.instance)

    def send_in_transaction(
        self, message: Message, execute: Execute, *, timeout: float | None = None
    ) -> TransactionResult:
        """Send a half message, call `execute(message)`, a plain function, and send the decision that it returns.

        See `AsyncTransactionProducer.send_in_transaction`.
        """
        check_takes(execute, "message", what="execute")
        sent = self._runner.run(self._async.send_half, message, timeout=timeout)
        decision = Decision.ROLLBACK
        if sent.status is SendStatus.OK:
            subject = f"transaction {sent.message_id}"
            returned, failure = called(execute, message)
            if failure is not None and not isinstance(failure, Exception):
                raise failure  # the exception ends the caller; the broker will check the transaction
            decision = decision_of(returned, failure, subject)
        return self._runner.run(self._async.end, sent, decision, message)

    @contextmanager
    def transaction(self, message: Message, *, timeout: float | None = None) -> Iterator[Transaction]:
        """Send a half message; commit when the block ends, unless `rollback` or `leave_open` was called in it.

        See `AsyncTransactionProducer.transaction`.
        """
        sent = self._runner.run(self._async.send_half, message, timeout=timeout)
        if sent.status is not SendStatus.OK:
            self._runner.run(self._async.end, sent, Decision.ROLLBACK, message)
            raise unsafe(sent)
        transaction = Transaction(sent)
        try:
            yield transaction
        except BaseException:
            with suppress(NotRunning):  # the block has closed the producer
                self._runner.run(self._async.end, sent, Decision.UNKNOWN, message)
            raise
        self._runner.run(self._async.end, sent, transaction.decision, message)


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
        """The result to pass to `commit`; None until the attempt is finished."""
        return self._async.result

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.run(self._async.__aexit__, kind, error, trace)


class Stream(Blocking[BatchStream]):
    """Sends encoded batches of messages that consumers see as soon as they are stored; see `BatchStream`."""

    finish = blocking(BatchStream.finish)
    abandon = blocking(BatchStream.abandon)

    def send_run(self, queue: MessageQueue, body: bytes, messages: int, *, header: Header | None = None) -> None:
        """Begin to send an encoded batch of `messages` messages.

        Blocks only while `in_flight` batches are unacknowledged.
        """
        self._runner.run(self._async.put, queue, body, messages, header=header)


class BatchTransactions(BlockingClient[AsyncBatchTransactions]):
    """Sends attempts and commits; blocking, for programs without an event loop.

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
        """The name of the broker that makes and keeps the decisions on transactions."""
        return self._async.ledger

    @property
    def ids(self) -> UniqueIds:
        """The maker of unique ids, for messages that the application encodes itself."""
        return self._async.runs.ids

    def attempt(self, transaction: str, token: str | None = None) -> Attempt:
        """Return a new attempt at a transaction. `token` must never be used twice; None means a new random one."""
        return Attempt(self._runner, self._runner.call(self._async.attempt, transaction, token))

    def stream(self) -> Stream:
        """Return a stream of batches without a transaction: visible once stored, delivered at least once."""
        return Stream(self._runner, self._runner.call(self._async.runs.stream))

    def single_header(self, queue: MessageQueue, *, flag: int, properties: str) -> Header:
        """Return the header for a single message in a stream, as delayed messages cannot be in a batch."""
        return self._async.runs.single_header(queue, flag=flag, properties=properties)

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return a topic's queues that can be written now, in order of broker name and queue id."""
        return self._runner.run(self._async.runs.queues, topic, refresh=True)
