"""Many pops: 10,000 that wait for messages, and a million messages in flight.

    many_pops.py [--waiting 10000] [--messages 1000000] [--batches 32 1]

The broker has core 0, its clients core 1. A queue has 10,000 messages in flight at most, so a million need 100 queues.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from statistics import median

from generator import GENERATOR_CORE
from loads.plain_send import plain_send
from pops import acks_of, broker_at, channel_to, pop_header, reachable
from pyromq.errors import ResponseCode
from pyromq.net.channel import Channel
from pyromq.record import BatchMember, decode_all, encode_batch
from pyromq.remoting.command import Response
from pyromq.remoting.headers import (
    BatchAckMessage,
    CreateTopic,
    PollingInfo,
    PollingInfoResponse,
    PopMessageResponse,
)
from pyromq.remoting.receipt_handle import PopInfos, ReceiptHandle
from report import print_machine, progress
from servers import STOP_SECONDS, cpu_seconds, folder_for_now, free_port

IN_FLIGHT = 10_000  # of one queue, at most
CONNECTIONS = 20  # of waiting pops
LOOPS = 8  # consumers on one connection
ACKS = 100_000  # messages whose acknowledgement is measured while all others stay in flight
HOUR_MS = 3_600_000
MAX_MESSAGES = 1_000_000  # a group may use half of the broker's limit, so the limit is higher here
POLL_MS = 20_000


class Broker:
    """A broker of one folder that can be stopped, killed and started again on the same port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    async def start(self) -> float:
        """Return the seconds until the first answer."""
        started = time.monotonic()
        config = self.folder / "broker.conf"
        config.write_text(f"maxPopsInFlight={4 * MAX_MESSAGES}\n")
        self.process = broker_at(self.port, self.folder, "--config", str(config))
        await reachable(self.port)
        return time.monotonic() - started

    def end(self, how: signal.Signals) -> float:
        """Return the seconds until the process has ended."""
        assert self.process is not None
        started = time.monotonic()
        self.process.send_signal(how)
        self.process.wait(STOP_SECONDS)
        return time.monotonic() - started

    @property
    def cpu(self) -> float:
        assert self.process is not None
        return cpu_seconds(self.process.pid)

    @property
    def own_mb(self) -> float:
        """Memory of the process itself, without mapped files, in MB."""
        assert self.process is not None
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024

    @property
    def journal_mb(self) -> float:
        return sum(path.stat().st_size for path in (self.folder / "pops").iterdir()) / 1e6


@contextmanager
def broker() -> Iterator[Broker]:
    with folder_for_now() as folder:
        found = Broker(folder)
        try:
            yield found
        finally:
            if found.process is not None:
                found.process.kill()
                found.process.wait()


async def create(channel: Channel, topic: str, queues: int) -> None:
    await channel.call(CreateTopic(topic=topic, read_queues=queues, write_queues=queues, permission=6), timeout=30)


class Stalls:
    """Measures, from another process, the longest time that a small request waits beside the measured work."""

    def __init__(self, port: int, topic: str) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._longest = spawn.Value("d", 0.0)
        self._process = spawn.Process(target=ask, args=(port, topic, self._longest))

    def __enter__(self) -> Stalls:
        self._process.start()
        while not self._longest.value:
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()

    @property
    def longest_ms(self) -> float:
        return self._longest.value * 1000


def ask(port: int, topic: str, longest: Synchronized[float]) -> None:
    """Send a small request every 3 ms, until this process is ended."""

    async def run() -> None:
        channel = await channel_to(port)
        header = PollingInfo(consumer_group="bench", topic=topic, queue_id=-1)
        while True:
            started = time.monotonic()
            await channel.call(header, timeout=30)
            longest.value = max(longest.value, time.monotonic() - started)
            await asyncio.sleep(0.003)

    os.sched_setaffinity(0, {GENERATOR_CORE})
    asyncio.run(run())


# -- waiting pops


async def waiting(broker: Broker, count: int, sends: int) -> None:
    await broker.start()
    channel = await channel_to(broker.port)
    await create(channel, "waiting", 4)
    channels = [await channel_to(broker.port) for _ in range(CONNECTIONS)]
    answers: asyncio.Queue[tuple[float, int]] = asyncio.Queue()  # time of an answer, number of messages
    ended: list[Response] = []

    async def pop(channel: Channel) -> None:
        response = await channel.call(pop_header("waiting", poll_ms=POLL_MS), timeout=120)
        if response.code == ResponseCode.POLLING_TIMEOUT:
            ended.append(response)
        else:
            answers.put_nowait((time.monotonic(), len(decode_all(response.check().body))))

    for many in (1, count):
        before = broker.own_mb
        pops = {asyncio.create_task(pop(channels[number % CONNECTIONS])) for number in range(many)}
        await waiting_are(channel, many)
        memory = broker.own_mb - before
        took = []
        for number in range(sends):
            sent = time.monotonic()
            await channel.call(plain_send("waiting", number % 4), b"x" * 128, timeout=30)
            answered, messages = await asyncio.wait_for(answers.get(), 30)
            took.append((answered - sent) * 1000)
            assert messages == 1 and answers.empty(), "one message wakes one pop"
            pops.add(asyncio.create_task(pop(channels[number % CONNECTIONS])))
        await waiting_are(channel, many)
        took.sort()
        print(
            f"{many} waiting pops: {memory:.1f} MB; from send to answer p50"
            f" {took[sends // 2]:.2f} ms, p99 {took[sends * 99 // 100]:.2f} ms, longest {took[-1]:.1f} ms"
        )
        with Stalls(broker.port, "waiting") as stalls:
            started = time.monotonic()
            sent = asyncio.gather(*(channel.call(plain_send("waiting", n % 4), b"x", timeout=30) for n in range(many)))
            left = many
            while left > 0:
                left -= (await asyncio.wait_for(answers.get(), 30))[1]
            await sent
        print(f"  a burst of {many} messages: {time.monotonic() - started:.2f} s, others {stalls.longest_ms:.0f} ms")
        started, expired = time.monotonic(), broker.cpu
        await asyncio.gather(*pops)
        assert not left
        print(f"  {len(ended)} pops expired without a message; {broker.cpu - expired:.2f} s of processor time")
        ended.clear()
    broker.end(signal.SIGKILL)


async def waiting_are(channel: Channel, count: int) -> None:
    header = PollingInfo(consumer_group="bench", topic="waiting", queue_id=-1)
    for _ in range(600):
        response = await channel.call(header, timeout=30)
        if response.check().header(PollingInfoResponse).waiting == count:
            return
        await asyncio.sleep(0.05)
    raise TimeoutError(f"not {count} pops wait")


# -- messages in flight


async def in_flight(broker: Broker, count: int, batch: int) -> None:
    """Pop all messages, acknowledge some of them, and start the broker again, stopped and killed."""
    topic, queues = "flight", -(-count // IN_FLIGHT)
    await broker.start()
    channel = await channel_to(broker.port)
    await create(channel, topic, queues)
    await fill(channel, topic, queues, count)
    await asyncio.sleep(2)  # until the messages are indexed and flushed
    await channel.close()
    for how in (signal.SIGTERM, signal.SIGKILL):
        broker.end(how)
        print(f"{how.name} without messages in flight: started in {await broker.start():.2f} s")
    channel = await channel_to(broker.port)
    before, cpu = broker.own_mb, broker.cpu
    with Stalls(broker.port, topic) as stalls:
        pops = await pop_all(channel, topic, count, batch)
    cost = (broker.cpu - cpu) / count * 1e6
    memory = broker.own_mb - before
    print(
        f"{count} messages in flight, popped by {batch}: {memory:.0f} MB, {memory * 2**20 / count:.0f} B each; journal"
        f" {broker.journal_mb:.1f} MB; {cost:.1f} us a message; others waited at most {stalls.longest_ms:.0f} ms"
    )
    part = min(ACKS, count // 4) // 10 // batch  # pops
    costs = []
    with Stalls(broker.port, topic) as stalls:
        for first in range(10):  # of all queues
            cpu = broker.cpu
            acknowledged = pops[first::10][:part]
            await acknowledge(channel, topic, acknowledged)
            costs.append((broker.cpu - cpu) / sum(map(len, acknowledged)) * 1e6)
    print(
        f"  acknowledged by {batch}: {median(costs):.1f} us a message, dearest tenth {max(costs):.1f};"
        f" others waited at most {stalls.longest_ms:.0f} ms; journal {broker.journal_mb:.1f} MB"
    )
    await channel.close()
    for how in (signal.SIGTERM, signal.SIGKILL):
        ended = broker.end(how)
        took = await broker.start()
        channel = await channel_to(broker.port)
        response = await channel.call(pop_header(topic), timeout=30)
        assert response.code == ResponseCode.POLLING_TIMEOUT, "a message in flight is handed out"
        print(f"  {how.name}: ended in {ended:.2f} s, started in {took:.2f} s; {broker.own_mb:.0f} MB")
        await channel.close()
    broker.end(signal.SIGKILL)


async def fill(channel: Channel, topic: str, queues: int, count: int) -> None:
    body = encode_batch([BatchMember(0, b"x" * 128, "")] * 250)
    left = [count // queues // 250] * queues

    async def send(first: int) -> None:
        for queue_id in range(first, queues, 16):
            for _ in range(left[queue_id]):
                (await channel.call(plain_send(topic, queue_id, batch=True), body, timeout=30)).check()

    await asyncio.gather(*(send(first) for first in range(16)))


async def pop_all(channel: Channel, topic: str, count: int, batch: int) -> list[list[ReceiptHandle]]:
    """Pop all messages for hours; return the handles of each pop."""
    pops: list[list[ReceiptHandle]] = []
    left = count

    async def work() -> None:
        nonlocal left
        while left > 0:
            header = pop_header(topic, invisible_ms=3 * HOUR_MS + left, max_count=batch)
            response = await channel.call(header, timeout=30)
            if response.code == ResponseCode.POLLING_TIMEOUT:
                return
            infos = PopInfos(response.check().header(PopMessageResponse), "broker-a")
            pops.append([infos.handle(message) for message in decode_all(response.body)])
            left -= len(pops[-1])
            progress(f"{count - left} in flight")

    await asyncio.gather(*(work() for _ in range(LOOPS)))
    assert not left, f"{left} messages are missing"
    return pops


async def acknowledge(channel: Channel, topic: str, pops: Sequence[list[ReceiptHandle]]) -> None:
    """Acknowledge each pop by one request."""

    async def work(first: int) -> None:
        for handles in pops[first::LOOPS]:
            (await channel.call(BatchAckMessage(), acks_of(topic, handles), timeout=30)).check()

    await asyncio.gather(*(work(first) for first in range(LOOPS)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--sends", type=int, default=1_000)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, nargs="*", default=[32, 1], help="messages of one pop")
    options = parser.parse_args()
    os.sched_setaffinity(0, {GENERATOR_CORE})
    gc.disable()  # a million handles would take the client half a second each time
    print_machine()
    if options.waiting:
        with broker() as found:
            asyncio.run(waiting(found, options.waiting, options.sends))
    for batch in options.batches:
        with broker() as found:
            asyncio.run(in_flight(found, options.messages, batch))


if __name__ == "__main__":
    main()
