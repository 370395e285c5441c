"""Batch transactions: many messages, from many processes, that become visible together by one request, or never.

Made for machines that repeat their work: an attempt sends under the transaction's name and a token of its own; who
knows that all the work is done commits the name with the tokens that count. The broker decides a name once and tells
everybody who asks again what it decided; then it makes the messages visible itself. Ours: brokers of pyromq only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from uuid import uuid4

from pyromq.client.arguments import checked
from pyromq.client.cluster.cluster_client import AsyncLifespan, Retry
from pyromq.client.config import ProducerConfig
from pyromq.client.producer.batch_stream import AsyncRunProducer, check_ledger
from pyromq.client.producer.pending_send import OrderingKey, QueueSelection, prepare_batch, queue_for_key
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

RUN_BYTES = 1 << 20  # of messages sent as one run
MESSAGE_OVERHEAD = 256  # guessed bytes of a message's properties


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """An attempt that is whole: how many messages of it which broker holds. Give it to whoever commits."""

    transaction: str
    token: str
    messages: dict[str, int]


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """What is decided on a transaction: the tokens that count, how many messages they have, and when (ms).

    `by_this`: by this call, which was the first. `visible`: consumers can see all of them now. `content`: what the
    deciding commit said that the transaction holds.
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
    """Attempts at one transaction that a broker holds: messages by token, and since when (seconds) nothing came.

    `ledger` is the broker that decides.
    """

    broker_name: str
    transaction: str
    messages: dict[str, int]
    silent_seconds: float
    ledger: str


class AsyncAttempt:
    """One attempt at a transaction, an async context manager: leaving waits for the answers, raising gives it up.

    Messages of one queue become visible in the order in which they were sent.
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
        """Send messages without waiting for answers; waits only while too much is under way.

        `queue` and `ordering_key` choose the queue of all of them; without, runs take turns. Raises `IllegalMessage`
        for messages that are delayed or too large, and what an earlier run failed with.
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
        """Send messages that are encoded already, as `record.encode_batch` does."""
        if self._is_over:
            raise UsageError(f"the attempt at {self.transaction!r} is over; begin another one with attempt()")
        await self._stream.put(queue, body, messages)

    async def abandon(self) -> None:
        """Stop sending. Brokers roll back what they have in time; they need not be told."""
        self._is_over = True
        await self._stream.abandon()

    async def finish(self) -> AttemptResult:
        """Wait until the brokers hold everything. Raises what a run failed with: then the attempt cannot count."""
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
        """Tell the ledger of each topic whose messages are all at other brokers, since it decides on them, too."""
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
    """Sends attempts and decides, for programs with an event loop; `BatchTransactions` is the same without one.

        async with AsyncBatchTransactions("etl") as batches:
            async with batches.attempt("etl:17") as attempt:
                await attempt.send(messages)
            outcome = await batches.commit("etl:17", [attempt.result])

    `ledger` names the broker that decides; None: the first in order of names. All who speak of a transaction must
    mean the same one, so name it where brokers come and go. `timeout` (seconds) is what any call may take with all
    repetitions, `in_flight` how many runs of an attempt are under way at once. Attempts that nobody decides on are
    rolled back after `batchTransactionTimeOut` of the broker.
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
        """Connect. Raises `NoNameServer` at once when no name server can be reached, `UsageError` for the ledger."""
        await self.runs.start()
        try:
            self.ledger = check_ledger(self._wanted_ledger, await self.runs.cluster.masters())
        except BaseException:
            await self.runs.close()
            raise

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        await self.runs.close()

    def attempt(self, transaction: str, token: str | None = None) -> AsyncAttempt:
        """Return a new attempt; tokens are made where none is given, and must never be used twice."""
        return AsyncAttempt(self, transaction, token or uuid4().hex)

    async def commit(
        self, transaction: str, attempts: Sequence[AttemptResult | None], *, content: str | None = None
    ) -> BatchOutcome:
        """Decide that these attempts win, unless it is decided: return what counts.

        `content` says what the transaction holds, in 1 to 255 characters of the caller's choice, for example a range of
        offsets. It is kept with the decision: a later caller compares the outcome's content with its own.

        Raises `BatchIncomplete` when a broker lost messages of an attempt by its time-out, and `Unavailable` when a
        broker could not be told in time; committing again, with anything, finishes what was decided.
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
        """Return what is decided; None: nothing, or too long ago. Raises `Unavailable` unless every broker answers."""
        found: BatchDecision | None = None
        visible = True
        for broker in await self.runs.cluster.masters():
            try:
                decision = await self._ask(broker, FindBatch(transaction=transaction))
            except QueryNotFound:
                continue
            visible &= decision.visible
            # The ledger's own entry is the one that also names the messages elsewhere.
            found = decision if found is None or broker == self.ledger else found
        return None if found is None else _outcome(found, visible=visible)

    async def rollback(self, transaction: str, attempts: Sequence[AttemptResult]) -> None:
        """Let brokers forget these attempts, unless the transaction is decided: then nothing changes."""
        body = encode_body(BatchAttempts([BatchAttempt(attempt.token) for attempt in attempts]))
        for broker in sorted({self.ledger}.union(*(attempt.messages for attempt in attempts))):
            await self.ask(broker, RollBackBatch(transaction=transaction), body)

    async def undecided(self, transaction: str | None = None) -> list[UndecidedAttempts]:
        """Return undecided transactions, or the one of a name: of each broker at most 200, oldest first.

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
        """Ask a broker, again after failures that pass, for `timeout` seconds. Raises what it answers."""
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
            raise Unavailable(f"broker {broker!r} is not registered at the name server")
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
    """Yield messages of one topic that are a run together."""
    chunk: list[Message] = []
    size = 0
    for message in messages:
        more = len(message.body) + MESSAGE_OVERHEAD
        if chunk and (size + more > RUN_BYTES or message.topic != chunk[0].topic):
            yield chunk
            chunk, size = [], 0
        chunk.append(message)
        size += more
    if chunk:
        yield chunk
