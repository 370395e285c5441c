"""Load on a replica set by clients of ours, which write what they saw into the history."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace

from tests.failover.history import Deleted, History, Kind, Outcome, Seen, Sent, Stored
from tests.waiting import PATIENCE_SECONDS

from pyromq import (
    AsyncAdmin,
    AsyncConsumer,
    AsyncProducer,
    AsyncPullConsumer,
    AsyncTransactionProducer,
    ConnectionConfig,
    ConsumeFrom,
    ConsumerConfig,
    Decision,
    Message,
    MQError,
    ProducerConfig,
    RemotingOutcome,
    RemotingRequest,
    SendResult,
    SendStatus,
    StoredMessage,
)
from pyromq.client.admin.admin_client import masters_of
from pyromq.errors import ResponseCode
from pyromq.message_id import parse_offset_id
from pyromq.remoting.codes import RequestCode

TOPICS = tuple(kind.value for kind in Kind)
GROUPS = ("push", "orderly", "pull")
QUEUES, BATCH = 4, 5
SETTLE_SECONDS = 90.0  # until the last delayed message and the last check of a transaction have come
# Of answers to sends that are stored, though perhaps not flushed or replicated in time.
_STORED_CODES = (
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
)
# A send ends with its outcome unknown after this time; as long as a set may be without a master.
PRODUCER = ProducerConfig(timeout=10.0)
CONSUMER = ConsumerConfig(
    consume_from=ConsumeFrom.FIRST, commit_seconds=0.5, auto_commit_seconds=0.5, retry_seconds=0.2
)


class Load:
    """Producers of each kind and consumers of each group. An async context manager; leaving it ends them.

    `pause_seconds`: mean pause of each sender between two sends. Messages are numbered from `first` on.
    """

    def __init__(
        self, namesrv: str, history: History, *, seed: int = 0, pause_seconds: float = 0.01, first: int = 0
    ) -> None:
        self._namesrv = namesrv
        self.history = history
        self._chance = random.Random(seed)
        self._pause = pause_seconds
        self._numbers = dict.fromkeys(Kind, first)
        self._attempts = _Attempts()
        self._decisions: dict[str, Decision] = {}
        self._stack = AsyncExitStack()
        self._senders: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Load:
        async with AsyncAdmin(self._namesrv) as admin:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not masters_of((await admin.cluster()).brokers.values()):  # a new master registers later
                    await asyncio.sleep(0.05)
            for topic in TOPICS:
                await admin.create_topic(topic, queues=QUEUES)
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop_sending()
        await self._stack.aclose()

    async def _start(self) -> None:
        enter = self._stack.enter_async_context
        for number, group in ((1, "push"), (2, "push"), (1, "orderly")):
            config = CONSUMER if group == "push" else replace(CONSUMER, orderly=True)
            consumer = AsyncConsumer(group, self._namesrv, config=replace(config, instance=f"{group}{number}"))
            for topic in TOPICS:
                consumer.subscribe(topic, self._noting(group))
            await enter(consumer)
        puller = AsyncPullConsumer("pull", self._namesrv, config=replace(CONSUMER, instance="pull"))
        for topic in TOPICS:
            puller.subscribe(topic)
        self._in_background(self._pull(await enter(puller)))
        producer = await enter(AsyncProducer("p", self._namesrv, config=PRODUCER))
        counted = replace(PRODUCER, connections=ConnectionConfig(hooks=(self._attempts,)))
        delaying = await enter(AsyncProducer("delays", self._namesrv, config=counted))
        transactional = await enter(
            AsyncTransactionProducer("transactions", self._namesrv, check=self._check, config=counted)
        )
        sends: list[Callable[[], Awaitable[None]]] = [
            lambda: self._send_plain(producer),
            lambda: self._send_keyed(producer),
            lambda: self._send_batch(producer),
            lambda: self._send_delayed(delaying),
            lambda: self._send_in_transaction(transactional),
        ]
        self._senders = [asyncio.create_task(self._repeat(send)) for send in sends for _ in range(2)]

    async def stop_sending(self) -> None:
        """Let the sends in flight end, and begin no more."""
        for sender in self._senders:
            sender.cancel()
        if self._senders:
            ended = await asyncio.gather(*self._senders, return_exceptions=True)
            self._senders = []
            for each in ended:
                if isinstance(each, Exception):
                    raise each

    @property
    def confirmed(self) -> int:
        """The number of confirmed sends so far."""
        return sum(each.outcome is Outcome.CONFIRMED for each in self.history.of(Sent))

    async def settle(self, *, seconds: float = SETTLE_SECONDS) -> None:
        """Wait until each group has got all that was confirmed, then write where everything is.

        What is missing after a long time, the judge finds.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._undelivered():
                    await asyncio.sleep(0.2)
        await asyncio.sleep(1.0)  # for what should not come
        config = replace(CONSUMER, instance="scan", auto_commit=False)
        async with AsyncPullConsumer("scan", self._namesrv, config=config) as scanner:
            for topic in TOPICS:
                for queue in await scanner.queues(topic):
                    offset, end = await scanner.min_offset(queue), await scanner.max_offset(queue)
                    while offset < end:
                        result = await scanner.pull(queue, offset, 512)
                        for message in result.messages:
                            body = _body_of(message)
                            self.history.write(Stored(topic, queue.queue_id, message.queue_offset, body))
                        assert result.next_offset > offset, f"no progress at {offset} of {end} in {queue}"
                        offset = result.next_offset
                    self.history.write(Deleted(topic, queue.queue_id, before=await scanner.min_offset(queue)))

    def _undelivered(self) -> bool:
        confirmed = {each.body for each in self.history.of(Sent) if each.outcome is Outcome.CONFIRMED}
        seen = self.history.of(Seen)
        return any(confirmed - {each.body for each in seen if each.group == group} for group in GROUPS)

    def _in_background(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)

        async def end() -> None:
            task.cancel()
            await asyncio.wait([task])

        self._stack.push_async_callback(end)

    async def _repeat(self, send: Callable[[], Awaitable[None]]) -> None:
        while True:
            sending = asyncio.ensure_future(send())
            try:
                await asyncio.shield(sending)
            except asyncio.CancelledError:
                await sending  # its outcome belongs to the history
                raise
            await asyncio.sleep(self._chance.uniform(0, 2 * self._pause))

    def _body(self, kind: Kind) -> str:
        self._numbers[kind] += 1
        return f"{kind.value} {self._numbers[kind]}"

    def _message(self, kind: Kind, body: str, **more: object) -> Message:
        return Message(kind.value, body.encode() + b" " * self._chance.choice([0, 0, 100, 3_000]), **more)

    async def _send_plain(self, producer: AsyncProducer) -> None:
        body = self._body(Kind.PLAIN)
        await self._note(Kind.PLAIN, [body], lambda: producer.send(self._message(Kind.PLAIN, body)))

    async def _send_keyed(self, producer: AsyncProducer) -> None:
        body = self._body(Kind.KEYED)
        key = f"k{self._chance.randrange(20)}"
        await self._note(Kind.KEYED, [body], lambda: producer.send(self._message(Kind.KEYED, body), ordering_key=key))

    async def _send_batch(self, producer: AsyncProducer) -> None:
        bodies = [self._body(Kind.BATCH) for _ in range(BATCH)]
        batch = [self._message(Kind.BATCH, body) for body in bodies]
        await self._note(Kind.BATCH, bodies, lambda: producer.send_batch(batch))

    async def _send_delayed(self, producer: AsyncProducer) -> None:
        body = self._body(Kind.DELAYED)
        delay = {"delay_level": 1} if self._chance.random() < 0.5 else {"delay": self._chance.uniform(1.0, 5.0)}
        message = self._message(Kind.DELAYED, body, **delay)
        await self._note(Kind.DELAYED, [body], lambda: producer.send(message), placed=False)

    async def _send_in_transaction(self, producer: AsyncTransactionProducer) -> None:
        body = self._body(Kind.TRANSACTION)
        decision = Decision.ROLLBACK if self._chance.random() < 0.2 else Decision.COMMIT
        self._decisions[body] = decision
        told = decision if self._chance.random() < 0.9 else Decision.UNKNOWN  # then the broker has to ask

        async def send() -> SendResult:
            message = self._message(Kind.TRANSACTION, body)
            return (await producer.send_in_transaction(message, lambda _: told)).sent

        await self._note(Kind.TRANSACTION, [body], send, placed=False, is_rolled_back=decision is Decision.ROLLBACK)

    async def _note(
        self,
        kind: Kind,
        bodies: list[str],
        send: Callable[[], Awaitable[SendResult]],
        *,
        placed: bool = True,
        is_rolled_back: bool = False,
    ) -> None:
        """Send, and write the outcome for each message into the history."""
        sent_at = time.monotonic()
        result: SendResult | None = None
        with suppress(MQError):
            result = await send()
        answered_at = time.monotonic()
        is_confirmed = result is not None and result.status is SendStatus.OK
        outcome = Outcome.CONFIRMED if is_confirmed else Outcome.UNKNOWN
        broker = parse_offset_id(result.offset_message_id.partition(",")[0]).address if result is not None else ""
        for number, body in enumerate(bodies):
            place: dict[str, int] = {}
            if placed and is_confirmed:
                place = {"queue": result.queue.queue_id, "offset": result.queue_offset + number}
            self.history.write(
                Sent(
                    body,
                    kind,
                    sent_at,
                    answered_at,
                    Outcome.ROLLED_BACK if is_rolled_back else outcome,
                    kind.value,
                    broker,
                    once=not placed and self._attempts.counts[body] == 1,
                    **place,
                )
            )

    def _check(self, message: StoredMessage) -> Decision:
        return self._decisions.get(_body_of(message), Decision.ROLLBACK)  # half messages of an earlier load are dropped

    def _noting(self, group: str) -> Callable[[list[StoredMessage]], Awaitable[None]]:
        async def note(messages: list[StoredMessage]) -> None:
            for message in messages:
                self._see(group, message)

        return note

    async def _pull(self, consumer: AsyncPullConsumer) -> None:
        while True:
            try:
                messages = await consumer.poll(1.0)
            except MQError:
                await asyncio.sleep(0.1)
                continue
            for message in messages:
                self._see("pull", message)

    def _see(self, group: str, message: StoredMessage) -> None:
        body, now = _body_of(message), time.monotonic()
        self.history.write(Seen(group, message.topic, message.queue_id, message.queue_offset, body, now))


class _Attempts:
    """Counts for each body the attempts to send it that may have stored it: a refused one did not."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def before_request(self, request: RemotingRequest) -> None:
        pass

    def after_response(self, request: RemotingRequest, outcome: RemotingOutcome) -> None:
        is_send = request.code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2)
        if is_send and outcome.code in (None, *_STORED_CODES):
            self.counts[request.body.decode().rstrip()] += 1


def _body_of(message: StoredMessage) -> str:
    return message.body.decode().rstrip()
