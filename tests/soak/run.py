"""One run: a cluster, a group whose members come and go as a seed says, and what the observer makes of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from itertools import count

from pyromq.clock import SystemClock
from pyromq.errors import MQError
from pyromq.message import Message, MessageQueue
from pyromq.testing import Cluster

from .observer import Observer
from .workers import Habits, Worker

BROKERS = 2
QUEUES = 3  # a broker
MESSAGES = 200  # stored before the first member starts; as many again while they come and go
STEPS = 10
PAUSE_SECONDS = 0.1  # at most, between two steps
MAX_MEMBERS = 4
HELD_SECONDS = 0.15
OUTAGE_SECONDS = 0.6  # longer than a broker keeps the locks of a connection that is gone
DRAIN_SECONDS = 20.0
TOPIC = "orders"


class Run:
    """`trace` is what happened, step by step; `rough` whether there was a step after which messages may come again."""

    def __init__(self, seed: int, cluster: Cluster) -> None:
        self.trace: list[str] = []
        self.rough = False
        self.observer = Observer()
        self._random = random.Random(seed)
        self._cluster = cluster
        self._habits = Habits(self._random.random() < 0.5, self._random.choice([1, 1, 3]), TOPIC)
        self._workers: list[Worker] = []
        self._numbers = count(1)

    async def play(self) -> None:
        """Let members come and go, then let those that are left consume the rest."""
        await self._begin()
        sending = asyncio.create_task(self._send())
        try:
            for _ in range(STEPS):
                await asyncio.sleep(self._random.choice([0.0, self._random.uniform(0, PAUSE_SECONDS)]))
                await self._step()
            if not self._workers:
                await self._join()
            await sending
            await self._drain()
        finally:
            sending.cancel()
            for worker in self._workers:
                await worker.leave()

    async def _begin(self) -> None:
        admin = await self._cluster.admin()
        await admin.create_topic(TOPIC, queues=QUEUES)
        self._producer = await self._cluster.producer()
        for number in range(MESSAGES // 10):
            await self._producer.send_batch([Message(TOPIC, b"%d" % (10 * number + n)) for n in range(10)])
        await asyncio.gather(self._join(), self._join())

    async def _send(self) -> None:
        for number in range(MESSAGES):
            try:
                await self._producer.send(Message(TOPIC, b"%d" % number))
            except MQError:
                pass  # a link is cut: whether it was stored, the queues tell
            await asyncio.sleep(0.001)

    async def _step(self) -> None:
        steps: dict[Callable[[], Awaitable[None]], int] = {
            self._join: 4 if len(self._workers) < MAX_MEMBERS else 0,
            self._leave: 2 if self._workers else 0,
            self._kill: 2 if self._workers else 0,
            self._drop: 2 if self._workers else 0,
            self._cut: 1,
            self._hold: 1,
            self._outage: 1,
        }
        (step,) = self._random.choices(list(steps), list(steps.values()))
        await step()

    async def _join(self) -> None:
        worker = Worker(f"member {next(self._numbers)}", self._habits, self.observer, self._random.getrandbits(32))
        self._tell(f"{worker.name} joins")
        await worker.start(self._cluster.namesrv)
        self._workers.append(worker)

    async def _leave(self) -> None:
        worker = self._take_one()
        self._tell(f"{worker.name} leaves")
        await worker.leave()

    async def _kill(self) -> None:
        worker = self._take_one()
        self._tell(f"{worker.name} is killed", rough=True)
        await worker.kill()

    async def _drop(self) -> None:
        worker = self._random.choice(self._workers)
        self._tell(f"{worker.name} loses its connections", rough=True)
        worker.drop()

    async def _cut(self) -> None:
        number = self._random.randrange(BROKERS)
        self._tell(f"all connections to broker {number} break", rough=True)
        self._cluster.links[number].cut()

    async def _hold(self) -> None:
        number = self._random.randrange(BROKERS)
        self._tell(f"nothing goes to or comes from broker {number} for {HELD_SECONDS} s", rough=True)
        link = self._cluster.links[number]
        way = self._random.choice([link, link.requests, link.answers])
        way.pause()
        await asyncio.sleep(HELD_SECONDS)
        way.resume()

    async def _outage(self) -> None:
        number = self._random.randrange(BROKERS)
        self._tell(f"broker {number} cannot be reached for {OUTAGE_SECONDS} s", rough=True)
        await self._cluster.links[number].close()
        await asyncio.sleep(OUTAGE_SECONDS)
        await self._cluster.links[number].open()

    async def _drain(self) -> None:
        """Wait until everything stored is consumed; a fault if that takes too long."""
        ends = self._ends()
        deadline = asyncio.get_running_loop().time() + DRAIN_SECONDS
        while any(self.observer.consumed[queue] < end for queue, end in ends.items()):
            if asyncio.get_running_loop().time() > deadline:
                behind = {queue: (self.observer.consumed[queue], end) for queue, end in ends.items()}
                self.observer.note(f"not consumed after {DRAIN_SECONDS} s: (consumed, stored) is {behind}")
                return
            await asyncio.sleep(0.005)

    def _ends(self) -> dict[MessageQueue, int]:
        return {
            MessageQueue(TOPIC, broker.config.name, queue_id): broker.store.max_offset(TOPIC, queue_id)
            for broker in self._cluster.brokers
            for queue_id in range(QUEUES)
        }

    def _take_one(self) -> Worker:
        return self._workers.pop(self._random.randrange(len(self._workers)))

    def _tell(self, what: str, *, rough: bool = False) -> None:
        self.rough |= rough
        self.trace.append(f"{asyncio.get_running_loop().time():.3f}: {what}")


async def play(seed: int) -> Run:
    """Return a run that is over."""
    async with Cluster(BROKERS, clock=SystemClock(), linked=True) as cluster:
        run = Run(seed, cluster)
        await run.play()
        return run
