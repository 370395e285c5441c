"""A member of a group whose listener tells the observer, fails now and then, and can be killed like a process."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyromq.client.client_config import ConsumeFrom, ConsumerConfig
from pyromq.client.consumer.push.push_consumer import AsyncConsumer
from pyromq.message import StoredMessage

from .observer import Observer

SHORT_SECONDS = 0.004  # most calls take at most so long,
LONG_SECONDS = 0.2  # a few so long: less than a broker keeps the locks of a connection that is gone
LONG_SHARE = 0.03
FAILING_SHARE = 0.02


class Failure(Exception):
    """What a listener of these tests raises: the messages are to come again, in place."""


@dataclass(frozen=True, slots=True)
class Habits:
    """What all members of a run have in common."""

    in_task: bool
    batch: int
    topic: str = "orders"
    group: str = "workers"


class Worker:
    """One orderly consumer, `name` in the observer's sentences."""

    def __init__(self, name: str, habits: Habits, observer: Observer, seed: int) -> None:
        self.name = name
        self.dead = False
        self._observer = observer
        self._random = random.Random(seed)
        self._habits = habits

    async def start(self, namesrv: str) -> None:
        config = ConsumerConfig(
            orderly=True, batch=self._habits.batch, consume_from=ConsumeFrom.FIRST, suspend_seconds=0.01
        )
        self._consumer = AsyncConsumer(self._habits.group, namesrv, config=config)
        self._consumer.subscribe(self._habits.topic, self._work_in_task if self._habits.in_task else self._work)
        await self._consumer.start()

    async def leave(self) -> None:
        """End as a program does that is asked to."""
        await self._consumer.close()

    async def kill(self) -> None:
        """End as by SIGKILL: connections break with no word of farewell, listeners stop where they are."""
        self.dead = True
        self._consumer._cluster.running = False  # from here on nothing is asked
        self.drop()
        await self._consumer._service.stop()
        for assigned in self._consumer._assignment.queues.held.values():
            assigned.requests.clear()  # nobody waits for what was cancelled
        await self._consumer.close()

    def drop(self) -> None:
        """Break this member's connections; it goes on."""
        for channel in self._consumer._cluster._pool.channels().values():
            channel.cut()

    def _work(self, messages: list[StoredMessage]) -> None:
        with self._call(messages) as (seconds, fails):
            time.sleep(seconds)
            self._fail_if(fails)

    async def _work_in_task(self, messages: list[StoredMessage]) -> None:
        with self._call(messages) as (seconds, fails):
            await asyncio.sleep(seconds)
            self._fail_if(fails)

    @contextmanager
    def _call(self, messages: list[StoredMessage]) -> Iterator[tuple[float, bool]]:
        """Tell the observer; gives how long the call is to take, and whether it is to fail then."""
        self._fail_if(self.dead)  # a thread of a killed process calls nothing: the observer must not hear of it
        offsets = [message.queue_offset for message in messages]
        call = self._observer.begin(self.name, messages[0].queue, offsets)
        consumed = False
        try:
            seconds = LONG_SECONDS if self._random.random() < LONG_SHARE else self._random.uniform(0, SHORT_SECONDS)
            yield seconds, self._random.random() < FAILING_SHARE
            consumed = not self.dead
        finally:
            self._observer.end(call, consumed=consumed)

    def _fail_if(self, fails: bool) -> None:
        if fails:
            raise Failure
