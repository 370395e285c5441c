"""The async transaction producer: messages that become visible together with work of the application, or never.

A message is sent as a half message, which no consumer sees. The application does its own work. After that, the
producer tells the broker to commit or to roll back. Without a decision the broker asks any producer of the group: a
check.
Source: RocketMQ 4.9.8, DefaultMQProducerImpl.sendMessageInTransaction and checkTransactionState.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from pyromq.client.application_code import awaited, called, check_takes, is_async, picture_of, text_of
from pyromq.client.arguments import checked
from pyromq.client.client_config import ProducerConfig
from pyromq.client.client_hooks import Decision, EndTransactionHook, SendKind, TransactionEnd
from pyromq.client.cluster.cluster_client import API_SECONDS
from pyromq.client.cluster.namespace import NO_NAMESPACE, Namespace
from pyromq.client.producer.async_producer import AsyncProducer
from pyromq.clock import Clock
from pyromq.errors import MQError, StoreCorrupt, Unavailable
from pyromq.logs import Tracebacks, logger_of
from pyromq.message import Message, Property, SendResult, SendStatus, StoredMessage
from pyromq.message_id import parse_offset_id
from pyromq.net.tasks import Tasks
from pyromq.record import decode
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import CheckTransaction, EndTransaction
from pyromq.remoting.hooks import call_hooks

logger = logger_of(__name__)
_tracebacks = Tracebacks()

HELD_CHECKS = 2000  # limit of waiting checks of half messages; brokers repeat others. Source: checkRequestHoldMax
SIDE_BY_SIDE = 16  # limit of check functions (of half messages) running at the same time


M = TypeVar("M")
Execute = Callable[[Message], object]
Check = Callable[[StoredMessage], object]


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """The half message's send result, the decision, and whether the broker has `confirmed` the decision.

    If the decision is `UNKNOWN` or not confirmed, the broker calls the check function later.
    """

    sent: SendResult
    decision: Decision
    confirmed: bool


class Transaction:
    """An open transaction in `async with producer.transaction(...)`. It commits if the block raises nothing."""

    def __init__(self, sent: SendResult) -> None:
        self.sent = sent
        self.decision = Decision.COMMIT

    @property
    def transaction_id(self) -> str:
        """The `message_id` that the check function will get. Store this id together with the work."""
        return self.sent.message_id

    def rollback(self) -> None:
        """Roll back when the block ends, so that consumers never see the message."""
        self.decision = Decision.ROLLBACK

    def leave_open(self) -> None:
        """Send no decision when the block ends: the broker will call the check function."""
        self.decision = Decision.UNKNOWN


class AsyncTransactionProducer(AsyncProducer):
    """A producer whose messages can depend on work of the application; `TransactionProducer` is the blocking form.

        async def check(message):                  # called when a decision was lost: read durable state
            return Decision.COMMIT if await orders.exists(message.message_id) else Decision.ROLLBACK

        async with AsyncTransactionProducer("orders", check=check) as producer:
            async with producer.transaction(Message("orders", b"...")) as transaction:
                await orders.insert(transaction.transaction_id, ...)

    The broker asks any producer of the group, perhaps in another process or after a restart, so `check` must read state
    that all producers share. It gets the half message and returns a `Decision`. Another value or an exception counts as
    `UNKNOWN`, and the check is repeated, at most 15 times (`transactionCheckMax` of the broker). `check` is a plain
    function, called in a thread, or `async`.

    A half message has no delay: its delay level is dropped, as in RocketMQ. All else is as for `AsyncProducer`.
    """

    @checked
    def __init__(
        self,
        group: str,
        namesrv: str | None = None,
        *,
        check: Check,
        config: ProducerConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._end_hooks = [hook for hook in (config or ProducerConfig()).hooks if isinstance(hook, EndTransactionHook)]
        self._checking = _Checking(check, self._check_ended)
        super().__init__(group, namesrv, config=config, clock=clock)
        self._checking.join(self._names.wrap(group), self._names)

    async def start(self) -> None:
        """Connect, and register at every broker: each broker may have half messages to check.

        Raises `NoNameServer` immediately if no name server can be reached.
        """
        await super().start()
        self._cluster.join_everywhere()

    async def send_in_transaction(
        self, message: Message, execute: Execute, *, timeout: float | None = None
    ) -> TransactionResult:
        """Send a half message, call `execute(message)`, and send the decision that it returns.

        `execute` is a plain function, called in a thread, or `async`. It returns a `Decision`; its exception is logged
        and counts as `UNKNOWN`. If the half message's status is not OK, the message is rolled back and `execute` is not
        called. `timeout` (seconds) is the limit of sending the half message. If this raises an error of `send`,
        `execute` was not called.
        """
        check_takes(execute, "message", what="execute")
        sent = await self.send_half(message, timeout=timeout)
        if sent.status is not SendStatus.OK:
            return await self.end(sent, Decision.ROLLBACK, message)
        returned, failure = await _outcome(execute, message)
        if failure is not None and not isinstance(failure, Exception):
            raise failure  # the exception ends the caller; the broker will check the transaction
        return await self.end(sent, decision_of(returned, failure, f"transaction {sent.message_id}"), message)

    @asynccontextmanager
    async def transaction(self, message: Message, *, timeout: float | None = None) -> AsyncIterator[Transaction]:
        """Send a half message; commit when the block ends, unless `rollback` or `leave_open` was called in it.

        If the block raises, there is no decision, because the work may be done: the broker will ask the check function.
        Raises the errors of `send`, and `Unavailable` if the half message's status is not OK.
        """
        sent = await self.send_half(message, timeout=timeout)
        if sent.status is not SendStatus.OK:
            await self.end(sent, Decision.ROLLBACK, message)
            raise unsafe(sent)
        transaction = Transaction(sent)
        try:
            yield transaction
        except BaseException:
            await self.end(sent, Decision.UNKNOWN, message)
            raise
        await self.end(sent, transaction.decision, message)

    async def send_half(self, message: Message, *, timeout: float | None = None) -> SendResult:
        """Send a half message and return its send result. `end` must send the decision later."""
        await self.room()
        pending = self._prepare(message, None, timeout, kind=SendKind.HALF)
        pending.retry_codes = self.config.retry_codes
        self._outbox.send(pending)
        return await pending.future

    async def end(self, sent: SendResult, decision: Decision, message: Message | None = None) -> TransactionResult:
        """Send the decision on a half message to its broker. Raises nothing: after a lost decision the broker checks.

        `message` is the sent message, for hooks.
        """
        confirmed = False
        if decision is not Decision.UNKNOWN:
            try:
                await self._tell(sent, decision)
                confirmed = True
            except MQError as error:
                logger.warning("%s of transaction %s is not confirmed: %s", decision.name, sent.message_id, error)
        if self._end_hooks:
            broker = parse_offset_id(sent.offset_message_id).address
            end = TransactionEnd(
                self.group, self._cluster.client_id, message, sent.message_id, decision, broker, confirmed=confirmed
            )
            call_hooks([hook.end_transaction for hook in self._end_hooks], end)
        return TransactionResult(sent, decision, confirmed)

    async def _tell(self, sent: SendResult, decision: Decision) -> None:
        await self._outbox.route(sent.queue.topic)
        order = EndTransaction(
            producer_group=self._names.wrap(self.group),
            half_queue_offset=sent.queue_offset,
            log_offset=parse_offset_id(sent.offset_message_id).log_offset,
            decision=decision.value,
            message_id=sent.message_id,
            transaction_id=sent.transaction_id or sent.message_id,
            broker_name=sent.queue.broker_name,
        )
        # A repeated decision does no harm: the broker refuses it, as the half message is decided.
        seconds = self.config.failover_seconds if self._cluster.is_set(sent.queue) else API_SECONDS
        (await self._cluster.ask_master(sent.queue, order, timeout=seconds, idempotent=True)).check()

    def _check_ended(self, message: StoredMessage, decision: Decision, broker: str) -> None:
        if self._end_hooks:
            end = TransactionEnd(
                self.group, self._cluster.client_id, message, message.message_id, decision, broker, from_check=True
            )
            call_hooks([hook.end_transaction for hook in self._end_hooks], end)

    async def close(self) -> None:
        """Refuse new sends, wait for replies to earlier ones, leave the group, close the connections. Idempotent."""
        await self._checking.stop()
        await super().close()

    def _answerers(self) -> list[object]:
        return [*super()._answerers(), self._checking]


class _Checking:
    """Runs the brokers' checks of half messages, at most `SIDE_BY_SIDE` at the same time."""

    def __init__(self, check: Check, ended: Callable[[StoredMessage, Decision, str], None]) -> None:
        check_takes(check, "message", what="check")
        self._group = ""
        self._names = NO_NAMESPACE
        self._check = check
        self._ended = ended
        self._running = Tasks()
        self.stop = self._running.stop  # brokers repeat the checks
        self._room = asyncio.Semaphore(SIDE_BY_SIDE)

    def join(self, group: str, names: Namespace) -> None:
        """Set the group whose half messages are checked; its name includes the namespace."""
        self._group, self._names = group, names

    @answers(CheckTransaction)
    def check(self, header: CheckTransaction, call: Call) -> Reply:
        """Start the check that a broker asks for. The decision is sent in a separate request.

        Source: ClientRemotingProcessor.
        """
        try:
            message = decode(call.body)
        except StoreCorrupt as error:
            logger.warning("a check request of broker %s cannot be read: %s", call.peer.address, error)
            return Reply()
        group = message.properties.get(Property.PRODUCER_GROUP)
        if group != self._group:
            logger.warning(
                "broker %s sent group %s a check of a half message of group %s; it is ignored",
                call.peer.address,
                self._group,
                group,
            )
        elif len(self._running) >= HELD_CHECKS:
            logger.warning(
                "group %s: %d checks of half messages wait already; the broker will repeat this check",
                self._group,
                HELD_CHECKS,
            )
        else:
            message.topic = self._names.unwrap(message.topic)
            self._running.start(self._answer(header, message, call), name=f"check {message.message_id}")
        return Reply()

    async def _answer(self, header: CheckTransaction, message: StoredMessage, call: Call) -> None:
        async with self._room:
            returned, failure = await _outcome(self._check, message)
        decision = decision_of(returned, failure, f"check of half message {message.message_id}")
        call.peer.notify(
            EndTransaction(
                producer_group=self._group,
                half_queue_offset=header.half_queue_offset,
                log_offset=header.log_offset,
                decision=decision.value,
                message_id=message.message_id,
                from_check=True,
                transaction_id=header.transaction_id,
            )
        )
        self._ended(message, decision, call.peer.address)


async def _outcome(function: Callable[[M], object], message: M) -> tuple[object, BaseException | None]:
    """Return result and exception of the application's function: awaited if async, else called in a thread."""
    if is_async(function):  # its coroutine is made here: a thread's would be lost if the task is cancelled
        returned, failure = called(function, message)
    else:
        # The thread returns exceptions: a future cannot hold StopIteration, and SystemExit would end the event loop.
        returned, failure = await asyncio.to_thread(called, function, message)
    return await awaited(returned) if isinstance(returned, Awaitable) else (returned, failure)


def decision_of(returned: object, failure: BaseException | None, subject: str) -> Decision:
    """Return a function's decision; `UNKNOWN`, with a log line, if it raised or returned something else."""
    if failure is not None:
        counted, traceback = _tracebacks.count(failure)
        logger.warning("%s failed and counts as UNKNOWN: %s%s", subject, text_of(failure), counted, exc_info=traceback)
        return Decision.UNKNOWN
    if isinstance(returned, Decision):
        return returned
    logger.warning("%s returned %s, which is not a Decision, and counts as UNKNOWN", subject, picture_of(returned))
    return Decision.UNKNOWN


def unsafe(sent: SendResult) -> Unavailable:
    """Return the error for a half message that was rolled back because its status was not OK."""
    return Unavailable(f"half message {sent.message_id} was rolled back: stored, but {sent.status.value}")
