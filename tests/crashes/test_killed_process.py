"""`pyromq serve`, killed by SIGKILL again and again while clients send, cancel and decide: every promise is kept.

Three kills in every run of the tests; in `make crashes` twenty, with CRASH_SEED as in the other tests here.
"""

import asyncio
import os
import random
import sys
import time
from collections import Counter
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass

import pytest
from tests.processes import Program, free_port
from tests.waiting import until

from pyromq import AsyncPullConsumer, AsyncTransactionProducer, Decision, Message, MQError, ProducerConfig
from pyromq.client.admin.async_admin import AsyncAdmin
from pyromq.client.admin.messages.delayed_messages import AsyncDelayedMessages
from pyromq.client.admin.messages.undecided_transactions import AsyncHalfMessages
from pyromq.errors import RecallRefused

TOPIC = "orders"
FIRST_SEED = int(os.environ.get("CRASH_SEED", str(int(time.time()))))
WORKERS = 4
MORE = 15  # messages that are promised between two kills
PATIENCE_SECONDS = 30.0
LEVEL_SECONDS = 2.0  # after which what was sent with level 1 is there
SETTINGS = "transactionCheckInterval=200\ntransactionTimeOut=100\nflushConsumerOffsetInterval=200\n"


@dataclass
class Fate:
    """How often a message must be there in the end, and when at the earliest (ms)."""

    least: int = 0
    most: int = 1
    due_ms: int = 0


class Served:
    """`pyromq serve` on ports that it keeps when it is started again."""

    def __init__(self, folder):
        settings = folder / "broker.conf"
        settings.write_text(SETTINGS)
        port = free_port()
        self.namesrv = f"127.0.0.1:{port}"
        ports = ("--namesrv-port", str(port), "--broker-port", str(free_port()))
        self._command = (
            sys.executable,
            "-m",
            "pyromq",
            "serve",
            "--data",
            folder / "data",
            "--config",
            settings,
            *ports,
        )

    async def start(self):
        self._program = Program(self._command, "ready in", os.environ)
        await asyncio.to_thread(self._program.wait_until_ready)

    async def kill(self):
        await asyncio.to_thread(self._program.kill)


@asynccontextmanager
async def served_in(folder):
    served = Served(folder)
    await served.start()
    try:
        yield served
    finally:
        await served.kill()


class Clients:
    """What they did, as fates of message bodies."""

    def __init__(self, chance):
        self.fates = {}
        self._chance = chance
        self._wanted = {}
        self._enough = MORE

    def check(self, half):
        return self._wanted[half.body]

    def promised(self):
        return Counter({body: fate.least for body, fate in self.fates.items()})

    def has_done_more(self):
        """Whether so many more messages are promised, since this last was true, that a life is worth a kill."""
        is_so = self.promised().total() >= self._enough
        self._enough += MORE * is_so
        return is_so

    async def work(self, producer):
        while True:
            body = b"%d" % len(self.fates)
            fate = self.fates[body] = Fate()
            act = self._chance.choice([self._delayed, self._at_level, self._cancelled, self._half, self._half])
            with suppress(MQError):
                await act(producer, body, fate)

    async def _delayed(self, producer, body, fate):
        fate.due_ms = time.time_ns() // 1_000_000 + self._chance.randrange(1, 2_000)
        sent = await producer.send(Message(TOPIC, body, deliver_at=fate.due_ms))
        fate.least = 1
        return sent

    async def _at_level(self, producer, body, fate):
        fate.due_ms = time.time_ns() // 1_000_000 + 1_000
        await producer.send(Message(TOPIC, body, delay_level=1))
        fate.least = 1

    async def _cancelled(self, producer, body, fate):
        sent = await self._delayed(producer, body, fate)
        fate.least = 0
        with suppress(RecallRefused):  # it was quicker
            await producer.cancel(sent.recall_handle)
            fate.most = 0

    async def _half(self, producer, body, fate):
        decision = self._wanted[body] = self._chance.choice([Decision.COMMIT, Decision.ROLLBACK])
        fate.most = int(decision is Decision.COMMIT)
        sent = await producer.send_half(Message(TOPIC, body))
        fate.least = fate.most
        if self._chance.random() < 0.7:
            await producer.end(sent, decision)


@pytest.mark.slow
async def test_promises_are_kept_over_three_kills_of_a_process(tmp_path):
    await check(tmp_path, 1, kills=3)


@pytest.mark.soak
async def test_promises_are_kept_over_twenty_kills_of_a_process(tmp_path):
    await check(tmp_path, FIRST_SEED, kills=20)


async def check(folder, seed, *, kills):
    print(f"to play this run again: make crashes CRASH_SEED={seed}")
    chance = random.Random(seed)
    clients = Clients(chance)
    config = ProducerConfig(retries=0, timeout=1.0)
    async with served_in(folder) as served:
        async with AsyncAdmin(served.namesrv) as admin:
            await admin.create_topic(TOPIC, queues=2)
        async with AsyncTransactionProducer("p", served.namesrv, check=clients.check, config=config) as producer:
            work = [asyncio.create_task(clients.work(producer)) for _ in range(WORKERS)]
            for _ in range(kills):
                await until(clients.has_done_more)
                await asyncio.sleep(chance.uniform(0.1, 0.6))  # the work goes on
                await served.kill()
                await served.start()
            await until(clients.has_done_more)
            for each in work:
                each.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            await nothing_waits(served.namesrv)
            await asyncio.sleep(LEVEL_SECONDS)  # nobody tells how many wait in a level
        messages = []
        with suppress(TimeoutError):  # what is missing then is told by name
            async with asyncio.timeout(PATIENCE_SECONDS):
                while clients.promised() - Counter(each.body for each in messages):
                    await asyncio.sleep(0.1)
                    messages = await everything(served.namesrv)
    faults = [
        f"{body!r} is there {count} times: {fate}"
        for body, fate in clients.fates.items()
        if not fate.least <= (count := sum(message.body == body for message in messages)) <= fate.most
    ]
    faults += [f"{each.body!r} is early" for each in messages if each.store_ms < clients.fates[each.body].due_ms]
    assert not faults, "\n".join(faults)
    assert clients.promised().total() > 50


async def nothing_waits(namesrv):
    """Return when everything is delivered and decided."""
    async with AsyncDelayedMessages(namesrv) as delayed, AsyncHalfMessages(namesrv) as halves:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await delayed.counts() or await some(halves):
                await asyncio.sleep(0.1)


async def some(halves):
    async with aclosing(halves.undecided()) as undecided:
        return await anext(undecided, None) is not None


async def everything(namesrv):
    messages = []
    async with AsyncPullConsumer("reader", namesrv) as consumer:
        for queue in await consumer.queues(TOPIC):
            offset, end = 0, await consumer.max_offset(queue)
            while offset < end:
                result = await consumer.pull(queue, offset)
                messages += result.messages
                offset = result.next_offset
    return messages
