"""Batch transactions: many messages, from many processes, that become visible together by one request, or never.

They are for programs that repeat failed work. An attempt sends messages under the transaction's name and a token of its
own. A coordinator commits the name with the tokens of the attempts that count. One broker, the ledger, decides each
name once and returns that decision to later callers. The brokers make the messages visible themselves. Only brokers of
pyromq have batch transactions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from uuid import uuid4

from pyromq.client.arguments import checked
from pyromq.client.client_config import ProducerConfig
from pyromq.client.cluster.cluster_client import AsyncLifespan
from pyromq.client.cluster.retry import Retry
from pyromq.client.producer.batch_stream import AsyncRunProducer, find_ledger
from pyromq.client.producer.pending_send import OrderingKey, QueueSelection, each_message, prepare_batch, queue_for_key
from pyromq.clock import SystemClock
from pyromq.errors import CodeNotSupported, MQError, QueryNotFound, Unavailable, UsageError
from pyromq.message import Message, MessageQueue
from pyromq.remoting.bodies import (
    BatchAttempt,
    BatchAttempts,
    BatchDecision,
    UndecidedBatches,
    decode_body,
    encode_body,
)
from pyromq.remoting.command import Response
from pyromq.remoting.header import Header
from pyromq.remoting.headers import CommitBatch, FindBatch, ListBatches, RollBackBatch, SendHalfRun

RUN_BYTES = 1 << 20  # limit of a run: messages for one queue sent as one request
MESSAGE_OVERHEAD = 256  # bytes assumed for a message's properties when RUN_BYTES is applied


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """A finished attempt at a transaction, for `commit`: the number of its messages by broker name."""

    transaction: str
    token: str
    messages: dict[str, int]


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """The decision on a transaction: `tokens` of the attempts that count, their number of messages, and its time in ms.

    `by_this` is True if this call decided. `visible` is True if consumers can see all messages now. `content` is the
    text given to the commit that decided.
    """

    transaction: str
    tokens: frozenset[str]
    messages: int
    decided_ms: int
    by_this: bool
    visible: bool
    content: str | None = None


@dataclass(frozen=True, slots=True)
class UndecidedAttempts:
    """The undecided attempts at one transaction at one broker.

    `messages` has the number of messages by token, `silent_seconds` is the time since the latest message. `ledger` is
    the name of the broker that decides.
    """

    broker_name: str
    transaction: str
    messages: dict[str, int]
    silent_seconds: float
    ledger: str


class AsyncAttempt:
    """One attempt at a transaction, an async context manager.

    The end of the block finishes the attempt; after an error it abandons the attempt. Messages of one queue become
    visible in the order in which they were sent.
    """

    def __init__(self, batches: AsyncBatchTransactions, transaction: str, token: str) -> None:
        self.transaction = transaction
        self.token = token
        self.result: AttemptResult | None = None
        self._is_over = False
        self._batches = batches
        self._runs = batches.runs
        self._stream = self._runs.stream(self._header)
        self._selection = QueueSelection(SystemClock())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.finish()
        else:
            await self.abandon()

    async def send(
        self, messages: Iterable[Message], *, queue: MessageQueue | None = None, ordering_key: OrderingKey | None = None
    ) -> None:
        """Send messages without waiting for replies; waits only while `in_flight` runs (requests) are unacknowledged.

        `queue` or `ordering_key` chooses the queue of all messages; without them, queues take turns. Raises
        `IllegalMessage` for a delayed or too large message, or for another type, and the error of an earlier run.
        """
        if queue is not None and ordering_key is not None:
            raise UsageError("give one of queue and ordering_key, not both")
        for chunk in _chunks(messages):
            queues = await self._runs.queues(chunk[0].topic)
            if queue is not None:
                chosen = queue
            elif ordering_key is not None:
                chosen = queue_for_key(queues, ordering_key)
            else:
                chosen = self._selection.pick(queues)
            body, _, _ = prepare_batch(chunk, self._runs.config, self._runs.ids)
            await self.send_run(chosen, body, len(chunk))

    async def send_run(self, queue: MessageQueue, body: bytes, messages: int) -> None:
        """Send `messages` messages of one queue, which `record.encode_batch` has encoded as `body`."""
        if self._is_over:
            raise UsageError(f"the attempt at {self.transaction!r} is over; begin another one with attempt()")
        await self._stream.put(queue, body, messages)

    async def abandon(self) -> None:
        """Stop sending the attempt's messages. Brokers roll them back after `batchTransactionTimeOut`."""
        self._is_over = True
        await self._stream.abandon()

    async def finish(self) -> AttemptResult:
        """Wait until brokers have stored all messages of the attempt. Raises the error of a failed request."""
        self._is_over = True
        if self.result is None:
            by_broker: dict[str, int] = {}
            sent = await self._stream.finish()
            for queue, acknowledged in sent.items():
                by_broker[queue.broker_name] = by_broker.get(queue.broker_name, 0) + acknowledged.messages
            await self._announce(sent)
            self.result = AttemptResult(self.transaction, self.token, by_broker)
        return self.result

    async def _announce(self, sent: Iterable[MessageQueue]) -> None:
        """Send the ledger (the deciding broker) an empty run for each topic whose messages are all at other brokers.

        The ledger learns the topic from this run, and decides for its messages too.
        """
        ledger = self._batches.ledger
        known = {queue.topic for queue in sent if queue.broker_name == ledger}
        for number, topic in enumerate(sorted({queue.topic for queue in sent} - known), self._stream.count):
            await self._batches.ask(ledger, self._header(MessageQueue(topic, ledger, -1), number))

    def _header(self, queue: MessageQueue, number: int) -> SendHalfRun:
        config = self._runs.config
        return SendHalfRun(
            producer_group=self._runs.wire_group,
            topic=self._runs.names.wrap(queue.topic),
            default_topic=config.template_topic,
            default_topic_queue_count=config.new_topic_queues,
            queue_id=queue.queue_id,
            transaction=self.transaction,
            token=self.token,
            number=number,
            born_ms=SystemClock().now_ms(),
            ledger=self._batches.ledger,
        )


class AsyncBatchTransactions(AsyncLifespan):
    """Sends attempts and commits, for programs with an event loop; `BatchTransactions` is the blocking form.

        async with AsyncBatchTransactions("etl") as batches:
            async with batches.attempt("etl:17") as attempt:
                await attempt.send(messages)
            outcome = await batches.commit("etl:17", [attempt.result])

    `ledger` names the broker that decides. None means the first broker by name that is registered or left in the last
    24 hours. All clients of a transaction must use the same ledger, so name it if brokers are added or removed.
    `timeout` (seconds) limits any call, retries included; `in_flight` limits an attempt's unacknowledged runs
    (requests). Undecided attempts are rolled back after the broker's `batchTransactionTimeOut`.
    """

    @checked
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
        self._clock = SystemClock()
        self._wanted_ledger = ledger
        self.runs = AsyncRunProducer(group, namesrv, timeout=timeout, in_flight=in_flight, config=config)
        self.ledger = ""

    async def start(self) -> None:
        """Connect. Raises `NoNameServer` immediately if none can be reached, `UsageError` if the ledger is unknown."""
        await self.runs.start()
        try:
            self.ledger = await find_ledger(self.runs.cluster, self._wanted_ledger)
        except BaseException:
            await self.runs.close()
            raise

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        await self.runs.close()

    def attempt(self, transaction: str, token: str | None = None) -> AsyncAttempt:
        """Return a new attempt at a transaction. `token` must never be used twice; None means a new random one."""
        return AsyncAttempt(self, transaction, token or uuid4().hex)

    async def commit(
        self, transaction: str, attempts: Sequence[AttemptResult | None], *, content: str | None = None
    ) -> BatchOutcome:
        """Decide that these attempts count, unless the transaction is decided. Return the decision.

        `content` describes the transaction in 1 to 255 characters, for example as a range of offsets. It is stored with
        the decision, so that a later caller can compare it with its own.

        Raises `BatchIncomplete` if a broker has rolled back messages of an attempt after its timeout. After
        `Unavailable` a broker may not know the decision yet; any further commit tells that broker.
        """
        wanted = []
        for attempt in attempts:
            if attempt is None:
                raise UsageError(
                    f"an attempt that failed, or is not finished, has no result and cannot win {transaction!r}"
                )
            if attempt.transaction != transaction:
                raise UsageError(f"an attempt at {attempt.transaction!r} cannot win {transaction!r}")
            wanted.append(_wanted(attempt, self.ledger))
        decision = await self._commit_at(self.ledger, transaction, wanted, content)
        visible = decision.visible
        for broker in sorted({name for attempt in decision.attempts for name in attempt.elsewhere}):
            there = [BatchAttempt(each.token, each.elsewhere.get(broker, 0)) for each in decision.attempts]
            visible &= (await self._commit_at(broker, transaction, there, decision.content)).visible
        return _outcome(decision, visible=visible)

    async def lookup(self, transaction: str) -> BatchOutcome | None:
        """Return the decision on a transaction; None if there is none, or the brokers have forgotten it.

        Raises `Unavailable` if a broker does not answer, or if only the ledger can know and is not registered. The
        decision is not `visible` while the ledger, or another broker with messages, is not registered.
        """
        found: BatchDecision | None = None
        visible = True
        masters = await self.runs.cluster.masters()
        for broker in masters:
            try:
                decision = await self._ask(broker, FindBatch(transaction=transaction))
            except QueryNotFound:
                continue
            visible &= decision.visible
            # Only the ledger's own entry includes the messages at other brokers.
            found = decision if found is None or broker == self.ledger else found
        if found is None and self.ledger not in masters:  # wait for the ledger: it may have the decision
            with suppress(QueryNotFound):
                found = await self._ask(self.ledger, FindBatch(transaction=transaction))
                visible, masters = found.visible, await self.runs.cluster.masters()
        if found is None:
            return None
        needed = {self.ledger, *(name for each in found.attempts for name in each.elsewhere)}
        return _outcome(found, visible=visible and needed <= masters.keys())

    async def rollback(self, transaction: str, attempts: Sequence[AttemptResult]) -> None:
        """Roll back these attempts. If the transaction is decided already, nothing changes.

        Raises `Unavailable` if a broker does not answer; the attempts may then be rolled back at other brokers.
        """
        header = RollBackBatch(transaction=transaction)
        body = encode_body(BatchAttempts([BatchAttempt(attempt.token) for attempt in attempts]))
        await self.ask(self.ledger, header, body)  # from now on the ledger refuses to commit these attempts
        try:
            await self._ask(self.ledger, FindBatch(transaction=transaction))
        except QueryNotFound:  # not decided; other brokers may lack a decision, and would discard its messages
            elsewhere = {name for attempt in attempts for name in attempt.messages} - {self.ledger}
            for broker in sorted(elsewhere):
                await self.ask(broker, header, body)

    async def undecided(self, transaction: str | None = None) -> list[UndecidedAttempts]:
        """Return the undecided attempts at `transaction`, or at all transactions: at most 200 per broker, oldest first.

        Brokers out of reach are left out and logged. Raises `Unavailable` if no broker can be reached.
        """
        question = ListBatches(transaction=transaction)
        names = {address: name for name, address in (await self.runs.cluster.masters()).items()}
        answers = await self.runs.cluster.ask_reachable(names, lambda address: self.ask(names[address], question))
        found = []
        for address, response in answers.items():
            broker = names[address]
            for batch in decode_body(UndecidedBatches, response.body).batches:
                tokens = {attempt.token: attempt.messages for attempt in batch.attempts}
                ledger = batch.ledger or broker
                found.append(UndecidedAttempts(broker, batch.transaction, tokens, batch.silent_ms / 1000, ledger))
        return found

    async def _commit_at(
        self, broker: str, transaction: str, attempts: list[BatchAttempt], content: str | None = None
    ) -> BatchDecision:
        header = CommitBatch(transaction=transaction, content=content)
        return await self._ask(broker, header, encode_body(BatchAttempts(attempts)))

    async def _ask(self, broker: str, header: Header, body: bytes = b"") -> BatchDecision:
        return decode_body(BatchDecision, (await self.ask(broker, header, body)).body)

    async def ask(self, broker: str, header: Header, body: bytes = b"") -> Response:
        """Return the response of a broker, by name.

        Retriable failures are retried for `timeout` seconds, other errors are raised.
        """
        retry = Retry(self._clock, self.runs.timeout)
        while True:
            try:
                return await self._ask_once(broker, header, body, retry.left)
            except CodeNotSupported as error:
                raise CodeNotSupported(
                    f"broker {broker} has no batch transactions; only pyromq's brokers do"
                ) from error
            except MQError as error:
                if not error.retriable or not await retry.pause():
                    raise

    async def _ask_once(self, broker: str, header: Header, body: bytes, seconds: float) -> Response:
        address = (await self.runs.cluster.masters()).get(broker)
        if address is None:
            hint = "; this broker is the ledger: start it, or name another ledger if it stays away"
            text = f"broker {broker!r} is not registered at the name server"
            raise Unavailable(text + (hint if broker == self.ledger else ""))
        response = await self.runs.cluster.ask(address, header, body, timeout=seconds)
        return response.check()


def _wanted(attempt: AttemptResult, ledger: str) -> BatchAttempt:
    elsewhere = {name: messages for name, messages in attempt.messages.items() if name != ledger}
    return BatchAttempt(attempt.token, attempt.messages.get(ledger, 0), elsewhere)


def _outcome(decision: BatchDecision, *, visible: bool) -> BatchOutcome:
    messages = sum(each.messages + sum(each.elsewhere.values()) for each in decision.attempts)
    tokens = frozenset(attempt.token for attempt in decision.attempts)
    return BatchOutcome(
        decision.transaction, tokens, messages, decision.decided_ms, decision.by_this, visible, decision.content
    )


def _chunks(messages: Iterable[Message]) -> Iterator[list[Message]]:
    """Divide messages, in order, into lists of one topic with about `RUN_BYTES` bytes at most."""
    chunk: list[Message] = []
    size = 0
    for message in each_message(messages):
        more = len(message.body) + MESSAGE_OVERHEAD
        if chunk and (size + more > RUN_BYTES or message.topic != chunk[0].topic):
            yield chunk
            chunk, size = [], 0
        chunk.append(message)
        size += more
    if chunk:
        yield chunk
