"""One life of a broker under its clients, and the moments at which it may have been killed."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerConfig
from pyromq.store.store_config import FlushMode, StoreConfig
from pyromq.testing import FakeClock

from .clients import Clients, History, Producer
from .disk import Disk, Image, torn

OPERATIONS = 500
START_MS = 1_700_000_000_000
WEIGHTS = {"append_batch": 8}  # batches hold what must not be parted, and are few
CHECKS = 4  # after which an undecided half message is given up; 15 would only take longer


@dataclass(frozen=True, slots=True)
class Moment:
    """What a kill left behind, when, and up to which step of the history things had happened."""

    image: Image
    step: int
    now_ms: int


class Recorder:
    """The moments around writes, and those in the middle of one: of `every` writes one is taken, on average."""

    def __init__(self, folder: Path, *, every: float, chance: random.Random, clock: FakeClock) -> None:
        self.moments: list[Moment] = []
        self.step: Callable[[], int] = lambda: 0
        self.disk = Disk(folder, lambda name: chance.random() * every < WEIGHTS.get(name, 1), self._note)
        self._clock = clock
        self._chance = chance
        self._last: Image = {}

    def _note(self, before: Image, after: Image, mapped: bool) -> None:
        cut_short = torn(before, after, self._chance) if mapped else None
        for image in (before, cut_short, after):
            if image is not None and image != self._last:
                self.moments.append(Moment(image, self.step(), self._clock.now_ms()))
                self._last = image


@asynccontextmanager
async def broker_at(folder: Path, clock: FakeClock, **settings: Any) -> AsyncIterator[Broker]:
    """A broker with files so small that they roll, and progress written so often that it is about to be at any time."""
    store = StoreConfig(
        folder,
        segment_bytes=1 << 16,
        consume_queue_entries=100,
        index_slots=50,
        index_entries=200,
        max_message_bytes=1 << 13,
        flush=settings.pop("flush", FlushMode.ASYNC),
        flush_interval_ms=1,
        flush_least_pages=0,
        queue_flush_interval_ms=500,
        queue_flush_thorough_interval_ms=1_000,
    )
    defaults: dict[str, Any] = {
        "offsets_interval_ms": 500,
        "transaction_timeout_ms": 500,
        "transaction_check_interval_ms": 1_000,
        "transaction_check_max": CHECKS,
    }
    async with Broker(BrokerConfig(folder, port=0, store=store, **defaults | settings), clock) as broker:
        yield broker


async def live(folder: Path, seed: int, *, every: float) -> tuple[History, list[Moment]]:
    """Play 500 operations; return what the clients know, and the moments."""
    chance, clock, history = random.Random(seed), FakeClock(START_MS), History()
    flush = chance.choice([FlushMode.ASYNC, FlushMode.SYNC])
    recorder = Recorder(folder, every=every, chance=random.Random(f"moments {seed}"), clock=clock)
    recorder.step = lambda: history.step
    async with AsyncExitStack() as stack:
        stack.enter_context(recorder.disk.watched())
        broker = await stack.enter_async_context(broker_at(folder, clock, flush=flush))
        producers = [await Producer.connect(broker.address, history, clock) for _ in range(2)]
        for producer in producers:
            stack.push_async_callback(producer.close)
        clients = Clients(producers, clock, chance)
        await clients.begin()
        recorder.disk.armed = True
        while clients.operations < OPERATIONS:
            await clients.act()
            await pass_time(clock, chance)
            for producer in producers:
                await producer.answered_all()
        recorder.disk.armed = False
    return history, recorder.moments


async def pass_time(clock: FakeClock, chance: random.Random) -> None:
    if chance.random() < 0.03:
        clock.jump(chance.choice([400.0, 1800.0]))
    await clock.advance(chance.choice([0.0, 0.0, 0.1, 0.5, 1.0, 2.0]))
