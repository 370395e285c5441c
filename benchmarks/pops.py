"""Pops beside pulls, how late redeliveries are, and what kills of the broker repeat.

    pops.py [--messages 200000] [--rounds 3] [--kills 30]

The broker has core 0, its clients core 1. Rates are compared by the broker's processor time, since one client in Python
is slower than the broker.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

from generator import GENERATOR_CORE
from loads.plain_send import plain_send
from pyromq.clock import SystemClock
from pyromq.errors import MQError, ResponseCode
from pyromq.net.channel import Channel, connect
from pyromq.record import decode_all
from pyromq.remoting.bodies import BatchAck, BatchAcks, encode_body
from pyromq.remoting.codes import PullFlag
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.headers import (
    BatchAckMessage,
    CreateTopic,
    PopMessage,
    PopMessageResponse,
    PullMessage,
    PullMessageResponse,
    UpdateConsumerOffset,
)
from pyromq.remoting.receipt_handle import PopInfos, ReceiptHandle, bits_of, encode_bits
from report import print_machine, progress
from servers import SERVER_CORE, Server, folder_for_now, free_port, our_server, pinned

QUEUES = 4
BATCH = 32
LOOPS = 4  # consumers on one connection


async def channel_to(port: int) -> Channel:
    return await connect(f"127.0.0.1:{port}", Dispatcher(), SystemClock())


async def fill(port: int, topic: str, count: int) -> None:
    """Store messages of 128 B, numbered, in a new topic."""
    channel = await channel_to(port)
    await channel.call(CreateTopic(topic=topic, read_queues=QUEUES, write_queues=QUEUES, permission=6), timeout=30)

    async def send(first: int) -> None:
        for number in range(first, count, 256):
            header = plain_send(topic, number % QUEUES)
            (await channel.call(header, b"%-128d" % number, timeout=30)).check()

    await asyncio.gather(*(send(first) for first in range(256)))
    await channel.close()


def pop_header(topic: str, *, invisible_ms: int = 60_000, poll_ms: int = 0, max_count: int = BATCH) -> PopMessage:
    now_ms = int(time.time() * 1000)
    times = {"invisible_ms": invisible_ms, "poll_ms": poll_ms, "born_ms": now_ms}
    return PopMessage(
        consumer_group="bench",
        topic=topic,
        queue_id=-1,
        max_count=max_count,
        init_mode=0,
        expression_type="TAG",
        expression="*",
        **times,
    )


def acks_of(topic: str, handles: list[ReceiptHandle]) -> bytes:
    """Return the body that acknowledges these messages, one entry for each pop."""
    pops: dict[ReceiptHandle, list[int]] = {}
    for handle in handles:
        pops.setdefault(handle._replace(offset=0, log_offset=-1), []).append(handle.offset)
    acks = [
        BatchAck(
            group="bench",
            topic=topic,
            retry=pop.retry,
            start=pop.start,
            queue_id=pop.queue_id,
            revive_queue=pop.revive_queue,
            pop_ms=pop.pop_ms,
            invisible_ms=pop.invisible_ms,
            bits=encode_bits(bits_of(offsets, pop.start)),
        )
        for pop, offsets in pops.items()
    ]
    return encode_body(BatchAcks("broker-a", acks))


async def pop_all(port: int, topic: str, count: int) -> None:
    """Pop and acknowledge so many messages, in batches of 32."""
    channel = await channel_to(port)
    left = count

    async def work() -> None:
        nonlocal left
        while left > 0:
            response = await channel.call(pop_header(topic), timeout=30)
            if response.code == ResponseCode.POLLING_TIMEOUT:
                return
            infos = PopInfos(response.check().header(PopMessageResponse), "broker-a")
            handles = [infos.handle(message) for message in decode_all(response.body)]
            left -= len(handles)
            (await channel.call(BatchAckMessage(), acks_of(topic, handles), timeout=30)).check()

    await asyncio.gather(*(work() for _ in range(LOOPS)))
    await channel.close()
    assert left <= 0, f"{left} messages are missing"


async def pull_all(port: int, topic: str, count: int) -> None:
    """Pull so many messages in batches of 32, each queue by one consumer, and commit the offset behind each batch."""
    channel = await channel_to(port)

    async def work(queue_id: int) -> None:
        offset = 0
        while offset < count // QUEUES:
            header = PullMessage(
                consumer_group="bench",
                topic=topic,
                queue_id=queue_id,
                queue_offset=offset,
                max_count=BATCH,
                sys_flag=PullFlag.SUBSCRIPTION,
                commit_offset=0,
                suspend_ms=0,
                subscription_version=0,
                subscription="*",
                expression_type="TAG",
            )
            response = (await channel.call(header, timeout=30)).check()
            decode_all(response.body)
            offset = response.header(PullMessageResponse).next_offset
            (await channel.call(UpdateConsumerOffset("bench", topic, queue_id, offset), timeout=30)).check()

    await asyncio.gather(*(work(queue_id) for queue_id in range(QUEUES)))
    await channel.close()


async def measured(server: Server, work: Callable[[int, str, int], Awaitable[None]], topic: str, count: int) -> float:
    """Return the broker's processor time for each message, in us."""
    await fill(server.port, topic, count)
    await idle(server)
    before = server.cpu_seconds()
    await work(server.port, topic, count)
    return (server.cpu_seconds() - before) / count * 1e6


def costs(server: Server, rounds: int, count: int) -> tuple[float, float]:
    """Return the broker's processor time for each message, in us, of pull and commit, and of pop and ack."""
    pulled, popped = [], []
    for round_ in range(rounds):
        pulled.append(asyncio.run(measured(server, pull_all, f"pull{round_}", count)))
        popped.append(asyncio.run(measured(server, pop_all, f"pop{round_}", count)))
    return median(pulled), median(popped)


async def idle(server: Server) -> None:
    """Wait until the broker has indexed and flushed what was stored: neither belongs to consumption."""
    for _ in range(60):
        before = server.cpu_seconds()
        await asyncio.sleep(0.5)
        if server.cpu_seconds() - before < 0.01:
            return


async def lateness(port: int, count: int) -> list[float]:
    """Return how late messages that were not acknowledged came again, in ms."""
    await fill(port, "late", count)
    channel = await channel_to(port)
    due: dict[bytes, float] = {}
    late = []
    while len(due) < count:
        response = await channel.call(pop_header("late", invisible_ms=1_000 + len(due) % 1_000), timeout=30)
        header = response.check().header(PopMessageResponse)
        due |= {message.body: header.pop_ms + header.invisible_ms for message in decode_all(response.body)}
    while len(late) < count:
        response = await channel.call(pop_header("late", invisible_ms=60_000, poll_ms=5_000), timeout=30)
        now_ms = time.time() * 1000
        late += [now_ms - due[message.body] for message in decode_all(response.check().body)]
    await channel.close()
    return sorted(late)


class Outcome:
    """What consumers of a killed broker saw."""

    def __init__(self) -> None:
        self.acknowledged: set[bytes] = set()
        self.unsure: set[bytes] = set()  # their acknowledgement got no response
        self.repeated = 0


async def consume_until_killed(port: int, outcome: Outcome) -> None:
    """Pop and acknowledge until the connection breaks; leave some messages out."""
    channel = await channel_to(port)
    try:
        while True:
            response = await channel.call(pop_header("kills", invisible_ms=3_000, poll_ms=500), timeout=10)
            if response.code == ResponseCode.POLLING_TIMEOUT:
                continue
            infos = PopInfos(response.check().header(PopMessageResponse), "broker-a")
            messages = decode_all(response.body)
            outcome.repeated += len({each.body for each in messages} & outcome.acknowledged)
            done = [each for each in messages if int(each.body) % 11 or each.reconsume_times]
            outcome.unsure |= {each.body for each in done}
            body = acks_of("kills", [infos.handle(each) for each in done])
            (await channel.call(BatchAckMessage(), body, timeout=10)).check()
            outcome.acknowledged |= {each.body for each in done}
            outcome.unsure -= {each.body for each in done}
    except MQError:
        pass
    finally:
        await channel.close()


def broker_at(port: int, folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    command = [*pinned(SERVER_CORE), sys.executable, "-m", "pyromq", "serve", "broker", "--namesrv", "127.0.0.1:1"]
    command += ["--broker-port", str(port), "--data", str(folder), *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


async def kills(folder: Path, port: int, count: int, times: int) -> Outcome:
    """Kill the broker so many times under consumers; then let them take what is left."""
    outcome = Outcome()
    for life in range(times + 1):
        process = broker_at(port, folder / "kills")
        try:
            await reachable(port)
            if life == 0:
                await fill(port, "kills", count)
            consumers = [asyncio.create_task(consume_until_killed(port, outcome)) for _ in range(3)]
            if life < times:
                await asyncio.sleep(0.15 + 0.013 * life)
                process.send_signal(signal.SIGKILL)
                await asyncio.gather(*consumers)
            else:
                end = time.monotonic() + 60
                while len(outcome.acknowledged) < count and time.monotonic() < end:
                    await asyncio.sleep(0.1)
                for consumer in consumers:
                    consumer.cancel()
                await asyncio.gather(*consumers, return_exceptions=True)
        finally:
            process.kill()
            process.wait()
        progress(f"life {life}: {len(outcome.acknowledged)} acknowledged, {outcome.repeated} repeated")
    return outcome


async def reachable(port: int) -> None:
    for _ in range(600):
        try:
            await (await channel_to(port)).close()
            return
        except MQError:
            await asyncio.sleep(0.02)
    raise TimeoutError(f"no broker at port {port}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--late", type=int, default=5_000, help="messages that are redelivered")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--kill-messages", type=int, default=60_000)
    options = parser.parse_args()
    os.sched_setaffinity(0, {GENERATOR_CORE})
    print_machine()
    with folder_for_now() as folder:
        for environment, form in (({}, "compiled"), ({"PYROMQ_PURE": "1"}, "plain Python")):
            with our_server(environment=environment) as server:
                pull, pop = costs(server, options.rounds, options.messages)
            print(f"{form}: pull + commit of 32: {pull:.2f} us a message; pop + ack: {pop:.2f}; ratio {pull / pop:.2f}")
        if options.late:
            with our_server() as server:
                late = asyncio.run(lateness(server.port, options.late))
                print(f"redelivered late by p50 {late[len(late) // 2]:.1f}, p99 {late[len(late) * 99 // 100]:.1f} ms")
        if options.kills:
            outcome = asyncio.run(kills(folder, free_port(), options.kill_messages, options.kills))
            lost = options.kill_messages - len(outcome.acknowledged | outcome.unsure)
            print(f"{options.kills} kills: lost {lost}, repeats of acknowledged messages {outcome.repeated}")


if __name__ == "__main__":
    main()
