"""Clients of one broker that do as a seed says, and remember what they asked for and what was confirmed, and when."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from pyromq.clock import SystemClock
from pyromq.message import Property, SysFlag, encode_properties
from pyromq.net.channel import Channel, connect
from pyromq.record import decode
from pyromq.remoting.bodies import HeartbeatBody, ProducerEntry, encode_body
from pyromq.remoting.command import Call, Reply, Response
from pyromq.remoting.dispatch import Dispatcher, answers
from pyromq.remoting.headers import (
    CheckTransaction,
    CreateTopic,
    EndTransaction,
    Heartbeat,
    RecallMessage,
    SendMessageResponse,
    SendMessageV2,
)
from pyromq.store.store_config import DELAY_LEVELS_MS
from pyromq.testing import FakeClock

from .batches import TOKENS, TOPIC, Batch, run_of

QUEUES = 2
GROUP = "p"
COMMIT, ROLLBACK, UNKNOWN = SysFlag.COMMIT, SysFlag.ROLLBACK, 0
HOUR_MS = 3_600_000
WAITS_MS = (1, 500, 500, 3_000, 60_000, HOUR_MS, 5 * HOUR_MS)


class Kind(Enum):
    PLAIN = "plain"
    TIMER = "timer"
    LEVEL = "level"
    HALF = "half"
    RUN = "run"


@dataclass(slots=True)
class Sent:
    """A message, and the steps of the history at which something was asked for or confirmed; None: it was not."""

    key: str
    kind: Kind
    begun: int
    due_ms: int = 0
    confirmed: int | None = None
    handle: str = ""
    cancel_begun: int | None = None
    cancelled: int | None = None
    wanted: int = UNKNOWN  # of a half message
    queue_offset: int = 0
    log_offset: int = 0
    decided: int | None = None
    batch: Batch | None = None  # of a message in a run
    token: str = ""

    def end(self, decision: int, *, checked: bool = False) -> EndTransaction:
        return EndTransaction(
            producer_group=GROUP,
            half_queue_offset=self.queue_offset,
            log_offset=self.log_offset,
            decision=decision,
            message_id=self.key,
            from_check=checked,
        )


@dataclass(slots=True)
class History:
    """What was sent, by key, in order; `step` counts what happened."""

    step: int = 0
    sent: dict[str, Sent] = field(default_factory=dict)
    batches: list[Batch] = field(default_factory=list)

    def next_step(self) -> int:
        self.step += 1
        return self.step

    def some(self, wanted: Callable[[Sent], bool]) -> list[Sent]:
        return [each for each in self.sent.values() if wanted(each)]


class Producer:
    """One connection: a member of the group, which answers checks with what the history says is wanted."""

    def __init__(self, history: History, clock: FakeClock) -> None:
        self.history = history
        self.now_ms = clock.now_ms
        self._channel: Channel

    @classmethod
    async def connect(cls, address: str, history: History, clock: FakeClock) -> Producer:
        producer = cls(history, clock)
        producer._channel = await connect(address, Dispatcher(producer), SystemClock())
        await producer.beat()
        return producer

    async def close(self) -> None:
        await self._channel.close()

    async def ask(self, header: object, body: bytes = b"") -> Response:
        return await self._channel.call(header, body, timeout=10)  # type: ignore[arg-type]

    async def beat(self) -> None:
        beat = HeartbeatBody(client_id="producer", producers=[ProducerEntry(group=GROUP)])
        (await self.ask(Heartbeat(), encode_body(beat))).check()

    async def answered_all(self) -> None:
        """Return when every question that the broker has asked is answered, and the answers are taken in."""
        for _ in range(2):
            await self.beat()

    @answers(CheckTransaction)
    def check(self, header: CheckTransaction, call: Call) -> Reply:
        """Answer as a producer does: one-way, about the copy that the question is about."""
        sent = self.history.sent[decode(call.body).body.decode()]
        copy = Sent(sent.key, sent.kind, 0, queue_offset=header.half_queue_offset, log_offset=header.log_offset)
        call.peer.notify(copy.end(sent.wanted, checked=True))
        return Reply()

    async def send(self, sent: Sent, *, queue_id: int, properties: dict[str, str], sys_flag: int = 0) -> Response:
        header = SendMessageV2(
            producer_group=GROUP,
            topic=TOPIC,
            default_topic="TBW102",
            default_topic_queue_count=4,
            queue_id=queue_id,
            sys_flag=sys_flag,
            born_ms=self.now_ms(),
            flag=0,
            properties=encode_properties({Property.UNIQUE_KEY: sent.key} | properties),
        )
        return await self.ask(header, sent.key.encode())


class Clients:
    """Two connections and a clock. `act` does a few things at once, and returns when all are answered."""

    def __init__(self, producers: list[Producer], clock: FakeClock, chance: random.Random) -> None:
        self.history = producers[0].history
        self.operations = 0
        self._producers = producers
        self._clock = clock
        self._chance = chance

    async def begin(self) -> None:
        topic = CreateTopic(topic=TOPIC, read_queues=QUEUES, write_queues=QUEUES, permission=6)
        (await self._producer.ask(topic)).check()

    async def act(self) -> None:
        acts = [self._send_timer, self._send_level, self._send_half, self._send_plain]
        acts += [self._cancel, self._decide, self._decide_otherwise, self._send_batch]
        chosen = self._chance.choices(acts, [8, 2, 6, 1, 4, 6, 1, 1], k=self._chance.choice([1, 1, 2, 4]))
        self.operations += len(chosen)
        await asyncio.gather(*(act() for act in chosen))

    @property
    def _producer(self) -> Producer:
        return self._chance.choice(self._producers)

    def _new(self, kind: Kind, due_ms: int = 0) -> Sent:
        key = f"{kind.value}-{len(self.history.sent)}"
        sent = self.history.sent[key] = Sent(key, kind, self.history.next_step(), due_ms)
        return sent

    async def _send(self, sent: Sent, properties: dict[str, str], sys_flag: int = 0) -> None:
        queue_id = self._chance.randrange(QUEUES)
        response = await self._producer.send(sent, queue_id=queue_id, properties=properties, sys_flag=sys_flag)
        assert response.code == 0, response.remark
        answer = response.header(SendMessageResponse)
        sent.handle = answer.recall_handle or ""
        sent.queue_offset, sent.log_offset = answer.queue_offset, int(answer.message_id[-16:], 16)
        sent.confirmed = self.history.next_step()

    async def _send_plain(self) -> None:
        await self._send(self._new(Kind.PLAIN), {})

    async def _send_timer(self) -> None:
        due_ms = self._clock.now_ms() + self._chance.choice(WAITS_MS) + self._chance.randrange(3)
        await self._send(self._new(Kind.TIMER, due_ms), {Property.TIMER_DELIVER_MS: str(due_ms)})

    async def _send_level(self) -> None:
        level = self._chance.randrange(1, 4)
        due_ms = self._clock.now_ms() + DELAY_LEVELS_MS[level - 1]
        await self._send(self._new(Kind.LEVEL, due_ms), {Property.DELAY: str(level)})

    async def _send_half(self) -> None:
        sent = self._new(Kind.HALF)
        sent.wanted = self._chance.choice([COMMIT, COMMIT, ROLLBACK, ROLLBACK, UNKNOWN])
        properties = {"TRAN_MSG": "true", Property.PRODUCER_GROUP: GROUP}
        await self._send(sent, properties, SysFlag.HALF)

    async def _send_batch(self) -> None:
        """Send both attempts, and have one win, or none."""
        batch = Batch(f"batch-{len(self.history.batches)}")
        self.history.batches.append(batch)
        for token in TOKENS:
            for number in range(self._chance.randrange(1, QUEUES + 1)):
                await self._send_run(batch, token, number)
        end = self._chance.choice([*TOKENS, *TOKENS, "roll back", "leave open"])
        if end in TOKENS:
            batch.winner = end
            batch.begun = self.history.next_step()
            assert batch.is_won(await self._producer.ask(*batch.commit(end)))
            batch.committed = self.history.next_step()
        elif end == "roll back":
            (await self._producer.ask(*batch.roll_back())).check()

    async def _send_run(self, batch: Batch, token: str, number: int) -> None:
        members = [self._new(Kind.RUN) for _ in range(self._chance.randrange(1, 4))]
        for sent in members:
            sent.batch, sent.token = batch, token
        (await self._producer.ask(*run_of(batch, token, number, [sent.key for sent in members]))).check()
        batch.messages[token] += len(members)

    async def _cancel(self) -> None:
        waiting = self.history.some(lambda each: bool(each.handle) and each.cancel_begun is None)
        if not waiting:
            await self._send_timer()
            return
        sent = self._chance.choice(waiting)
        sent.cancel_begun = self.history.next_step()
        response = await self._producer.ask(RecallMessage(topic=TOPIC, recall_handle=sent.handle))
        if response.code == 0:
            sent.cancelled = self.history.next_step()
        else:
            assert "was delivered" in (response.remark or "") or "timestamp" in (response.remark or ""), response.remark
            sent.cancel_begun = None  # it has been delivered: no doubt at any step
            sent.handle = ""

    async def _decide(self) -> None:
        undecided = self.history.some(
            lambda each: each.kind is Kind.HALF and each.wanted and each.confirmed is not None and each.decided is None
        )
        if not undecided:
            await self._send_half()
            return
        sent = self._chance.choice(undecided)
        response = await self._producer.ask(sent.end(sent.wanted))
        assert response.code == 0 or "decided already" in (response.remark or ""), response.remark
        sent.decided = self.history.next_step()

    async def _decide_otherwise(self) -> None:
        """Take back what is decided: that is refused."""
        decided = self.history.some(lambda each: each.decided is not None)
        if not decided:
            await self._send_half()
            return
        sent = self._chance.choice(decided)
        response = await self._producer.ask(sent.end(COMMIT if sent.wanted == ROLLBACK else ROLLBACK))
        assert response.code != 0, f"{sent.key} was decided twice"
