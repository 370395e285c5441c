"""The blocking transaction producer: `execute` runs in the calling thread, `check` in one of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyromq.client.application_code import called, check_takes
from pyromq.client.blocking.blocking_client import BlockingClient
from pyromq.client.blocking.producer import Producer
from pyromq.client.config import ProducerConfig
from pyromq.client.decision import Decision
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
from pyromq.message import Message, SendStatus


class TransactionProducer(Producer):
    """A producer whose messages can depend on work of the application; for programs without an event loop.

        def check(message):                        # called when a decision was lost: read durable state
            return Decision.COMMIT if orders.exists(message.message_id) else Decision.ROLLBACK

        with TransactionProducer("orders", check=check) as producer:
            with producer.transaction(Message("orders", b"...")) as transaction:
                orders.insert(transaction.transaction_id, ...)

    Arguments, units and errors are those of `AsyncTransactionProducer`. `execute` runs in the calling thread; `check`
    runs in a thread of its own at any time.
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
        """Send a half message, run `execute(message)`, a plain function, and commit or roll back what it returns.

        See `AsyncTransactionProducer.send_in_transaction`.
        """
        check_takes(execute, "message", what="execute")
        sent = self._runner.run(self._async.send_half, message, timeout=timeout)
        decision = Decision.ROLLBACK
        if sent.status is SendStatus.OK:
            subject = f"transaction {sent.message_id}"
            returned, failure = called(execute, message)
            if failure is not None and not isinstance(failure, Exception):
                raise failure  # the caller ends; the broker will check
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
            with suppress(NotRunning):  # closed in the block
                self._runner.run(self._async.end, sent, Decision.UNKNOWN, message)
            raise
        self._runner.run(self._async.end, sent, transaction.decision, message)
