"""`make kill`: a real `pyromq serve` under load from real clients, killed with SIGKILL at random moments.

    python -m tests.kills.run 50 [--seed S]

Every message that a producer was told is stored must reach the consumers; what was counted is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.processes import Program, free_port

from pyromq import AsyncConsumer, AsyncProducer, Message, MQError, ProducerConfig
from pyromq.client.admin.async_admin import AsyncAdmin
from pyromq.message import StoredMessage

TOPIC = "orders"
PRODUCERS, SENDERS, CONSUMERS, QUEUES = 2, 8, 2, 4
LIVES_SECONDS = (0.1, 1.5)  # from ready to killed
PATIENCE_SECONDS = 120.0
SETTINGS = "flushConsumerOffsetInterval=500\nmappedFileSizeCommitLog=4194304\nmappedFileSizeConsumeQueue=60000\n"


@dataclass
class Counts:
    """What clients saw: bodies of messages."""

    sent: int = 0
    confirmed: set[bytes] = field(default_factory=set)
    consumed: Counter[bytes] = field(default_factory=Counter)

    @property
    def missing(self) -> set[bytes]:
        return self.confirmed - self.consumed.keys()

    def __str__(self) -> str:
        unconfirmed = len(self.consumed.keys() - self.confirmed)
        again = sum(self.consumed.values()) - len(self.consumed)
        return (
            f"{self.sent} sent, {len(self.confirmed)} confirmed, {len(self.missing)} of them not consumed;"
            f" {len(self.consumed)} consumed, {unconfirmed} of them not confirmed; {again} consumed again"
        )


class Served:
    """`pyromq serve` on ports that it keeps when it is started again."""

    def __init__(self, folder: Path, settings: str) -> None:
        file = folder / "broker.conf"
        file.write_text(SETTINGS + settings)
        port = free_port()
        self.namesrv = f"127.0.0.1:{port}"
        self._command = (
            *(sys.executable, "-m", "pyromq", "serve", "--data", folder / "data", "--config", file),
            *("--namesrv-port", str(port), "--broker-port", str(free_port())),
        )

    async def start(self) -> None:
        self._program = Program(self._command, "ready in", os.environ)
        await asyncio.to_thread(self._program.wait_until_ready)

    async def kill(self) -> None:
        await asyncio.to_thread(self._program.kill)

    async def stop(self) -> int:
        return await asyncio.to_thread(self._program.stop)


async def send(producer: AsyncProducer, counts: Counts, chance: random.Random) -> None:
    while True:
        counts.sent += 1
        body = b"%d " % counts.sent + bytes(chance.choice([0, 100, 2_000]))
        with suppress(MQError):  # nobody promised anything
            await producer.send(Message(TOPIC, body))
            counts.confirmed.add(body)


async def kill_again_and_again(folder: Path, kills: int, seed: int, *, settings: str = "") -> Counts:
    """Return what was counted when all that was confirmed is consumed, or patience has ended."""
    chance = random.Random(seed)
    counts = Counts()
    served = Served(folder, settings)
    await served.start()
    async with AsyncAdmin(served.namesrv) as admin:
        await admin.create_topic(TOPIC, queues=QUEUES)
    async with asyncio.TaskGroup() as group:
        stop = asyncio.Event()
        readers = [group.create_task(consume(served.namesrv, counts, stop)) for _ in range(CONSUMERS)]
        writers = [group.create_task(produce(served.namesrv, counts, chance)) for _ in range(PRODUCERS)]
        for number in range(kills):
            await asyncio.sleep(chance.uniform(*LIVES_SECONDS))  # the load goes on
            await served.kill()
            print(f"kill {number + 1}: {counts}", flush=True)
            await served.start()
        await asyncio.sleep(0.5)
        for writer in writers:
            writer.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                while counts.missing:
                    await asyncio.sleep(0.1)
        stop.set()
        await asyncio.wait(readers)
    assert await served.stop() == 0
    return counts


async def produce(namesrv: str, counts: Counts, chance: random.Random) -> None:
    config = ProducerConfig(retries=0, timeout=1.0)
    async with AsyncProducer("p", namesrv, config=config) as producer, asyncio.TaskGroup() as group:
        for _ in range(SENDERS):
            group.create_task(send(producer, counts, chance))


async def consume(namesrv: str, counts: Counts, stop: asyncio.Event) -> None:
    async def note(messages: list[StoredMessage]) -> None:
        counts.consumed.update(message.body for message in messages)

    consumer = AsyncConsumer("g", namesrv)
    consumer.subscribe(TOPIC, note)
    async with consumer:
        await stop.wait()


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("kills", type=int, nargs="?", default=50)
    options.add_argument("--seed", type=int, default=int(time.time()))
    chosen = options.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pyromq-kill-") as folder:
        counts = asyncio.run(kill_again_and_again(Path(folder), chosen.kills, chosen.seed))
    print(f"{chosen.kills} kills with seed {chosen.seed} in {time.monotonic() - started:.0f} s: {counts}")
    return 1 if counts.missing else 0


if __name__ == "__main__":
    sys.exit(main())
