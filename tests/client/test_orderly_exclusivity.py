"""Orderly consumers that join, leave, are killed and cut off at random: never two at work on a queue, nothing lost.

An observer that knows nothing of locks watches every call of every listener. Each schedule has a seed, printed when it
fails; `make soak` runs many more than the usual tests.
"""

import asyncio
import random
from collections import defaultdict

import pytest

from pyromq.client.config import ConsumeFrom, ConsumerConfig, ProducerConfig
from pyromq.client.consumer import AsyncConsumer
from pyromq.clock import SystemClock
from pyromq.message import Message
from pyromq.testing import Cluster

SECONDS = 2.0  # of each schedule
QUEUES = 6


class Observer:
    """Sees who is at work on which queue, and which offsets were consumed in which order."""

    def __init__(self):
        self.at_work = {}
        self.consumed = defaultdict(list)
        self.faults = []

    def enter(self, name, message):
        queue, offset = message.queue, message.queue_offset
        if queue in self.at_work:
            self.faults.append(f"{name} and {self.at_work[queue]} both at {queue}")
        if offset > max(self.consumed[queue], default=-1) + 1:
            self.faults.append(f"{name} at {queue} offset {offset} after {self.consumed[queue][-3:]}")
        self.at_work[queue] = name

    def leave(self, name, message, *, done):
        if self.at_work.get(message.queue) == name:
            del self.at_work[message.queue]
        if done:
            self.consumed[message.queue].append(message.queue_offset)

    @property
    def count(self):
        return sum(len(set(offsets)) for offsets in self.consumed.values())


class Schedule:
    """One random run."""

    def __init__(self, seed, cluster):
        self.random = random.Random(seed)
        self.cluster = cluster
        self.observer = Observer()
        self.members = []
        self.names = 0

    async def join(self):
        self.names += 1
        config = ConsumerConfig(
            orderly=True, consume_from=ConsumeFrom.FIRST, commit_seconds=0.05, retry_seconds=0.05, close_seconds=2.0
        )
        member = AsyncConsumer("workers", self.cluster.namesrv, config=config)
        member.subscribe("orders", self._listener(f"member {self.names}"))
        await member.start()
        self.members.append(member)

    def _listener(self, name):
        async def work(messages):
            (message,) = messages
            done = False
            self.observer.enter(name, message)
            try:
                await asyncio.sleep(self.random.uniform(0, 0.006 if self.random.random() < 0.97 else 0.3))
                done = True
            finally:
                self.observer.leave(name, message, done=done)

        return work

    async def leave(self):
        if len(self.members) > 1:
            await self.members.pop(self.random.randrange(len(self.members))).close()

    async def kill(self):
        """End a member as SIGKILL would: nothing of it runs any more, its connections break."""
        if len(self.members) > 1:
            member = self.members.pop(self.random.randrange(len(self.members)))
            await kill(member)

    async def cut(self):
        """Break one member's connections."""
        for channel in self.random.choice(self.members)._membership._pool.channels().values():
            channel._transport.abort()

    async def cut_all(self):
        self.cluster.links[0].cut()

    async def freeze(self):
        """Nothing gets through for a while."""
        self.cluster.links[0].pause()
        await asyncio.sleep(self.random.uniform(0.05, 0.6))
        self.cluster.links[0].resume()

    async def outage(self):
        """Nobody reaches the broker for longer than locks are kept for those who come back."""
        await self.cluster.links[0].close()
        await asyncio.sleep(self.random.uniform(0.1, 0.9))
        await self.cluster.links[0].open()

    async def run(self):
        admin = await self.cluster.admin()
        await admin.create_topic("orders", queues=QUEUES)
        feeding = asyncio.create_task(self._feed())
        await self.join()
        loop = asyncio.get_running_loop()
        end = loop.time() + SECONDS
        actions = [self.join, self.join, self.leave, self.kill, self.cut, self.cut_all, self.freeze, self.outage]
        while loop.time() < end:
            await self.random.choice(actions)()
            await asyncio.sleep(self.random.uniform(0, 0.3))
        sent = await feeding
        async with asyncio.timeout(20):
            while self.observer.count < sent and not self.observer.faults:
                await asyncio.sleep(0.02)
        for member in self.members:
            await member.close()
        status = await admin.topic_status("orders")
        return sum(queue.max_offset for queue in status)

    async def _feed(self):
        """Send all the time; return how many messages are stored. What is sent twice is there twice."""
        producer = await self.cluster.producer(config=ProducerConfig(timeout=20.0))
        queues = await producer.queues("orders")
        loop = asyncio.get_running_loop()
        end, number = loop.time() + SECONDS, 0
        while loop.time() < end:
            number += 1
            await producer.send(Message("orders", b"%d" % number), queue=queues[number % len(queues)])
            await asyncio.sleep(0.002)
        return number


async def kill(member):
    await member._membership.tasks.stop()
    await member._ownership._tasks.stop()
    await member._consuming.stop()
    member._membership.running = False
    for channel in member._membership._pool.channels().values():
        channel._transport.abort()
    await member._direct.stop()
    await member._membership._pool.close()


async def check(seed):
    asyncio.get_running_loop().set_debug(False)
    async with Cluster(clock=SystemClock(), linked=True) as cluster:
        schedule = Schedule(seed, cluster)
        stored = await schedule.run()
        observer = schedule.observer
        assert not observer.faults, f"seed {seed}"
        assert observer.count == stored, f"seed {seed}"
        for queue, offsets in observer.consumed.items():
            assert sorted(set(offsets)) == list(range(len(set(offsets)))), f"seed {seed}, {queue}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
async def test_never_two_at_once_and_nothing_lost(seed):
    await check(seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10, 210))
async def test_never_two_at_once_and_nothing_lost_over_many_schedules(seed):
    await check(seed)
