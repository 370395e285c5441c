"""Prints one table: how fast producers send 128 B to the external C server, with some sends in flight, and blocking.

    producing.py [--cserver PROGRAM] [--before CHECKOUT] [--rounds N] [--seconds S]

Beside ours, compiled, the same in plain Python; with `--before`, what another checkout holds, compiled as it is.
All take turns in every round; server on core 0, producer on core 1. Times are CPU of the producer's process per send.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
from pathlib import Path

from generator import GENERATOR_CORE
from pyromq import AsyncProducer, Message, Producer
from report import print_machine, progress
from servers import PLAIN, c_server, of_checkout, pinned

TOPIC, QUEUES = "Topic", 4  # what the C server has
BODY = b"a" * 128
WARM_SECONDS = 0.5
SHAPES = ("1", "16", "64", "256", "blocking")  # in flight
OURS = "pyromq"


def message() -> Message:
    return Message(TOPIC, BODY, tags="TagA", keys=("k1",))


def say_nothing(producer: AsyncProducer) -> None:
    """Let a producer send no heartbeats: the C server knows none and would hang up."""
    producer._cluster._announce = lambda client_id: None


async def send_concurrently(namesrv: str, in_flight: int, seconds: float) -> tuple[float, float]:
    """Return sends a second, and CPU us of each."""
    count, end = 0, 0.0

    async def send() -> None:
        nonlocal count
        while time.perf_counter() < end:
            await producer.send(message())
            count += 1

    async def measure(duration: float) -> tuple[float, float]:
        nonlocal count, end
        count, cpu, started = 0, time.process_time(), time.perf_counter()
        end = started + duration
        await asyncio.gather(*(send() for _ in range(in_flight)))
        return count / (time.perf_counter() - started), (time.process_time() - cpu) / count * 1e6

    producer = AsyncProducer("bench", namesrv)
    say_nothing(producer)
    async with producer:
        await measure(WARM_SECONDS)
        return await measure(seconds)


def send_blocking(namesrv: str, seconds: float) -> tuple[float, float]:
    def measure(duration: float) -> tuple[float, float]:
        count, cpu, started = 0, time.process_time(), time.perf_counter()
        while time.perf_counter() - started < duration:
            producer.send(message())
            count += 1
        return count / (time.perf_counter() - started), (time.process_time() - cpu) / count * 1e6

    producer = Producer("bench", namesrv)
    say_nothing(producer._async)
    with producer:
        measure(WARM_SECONDS)
        return measure(seconds)


def client(shape: str, namesrv: str, seconds: float) -> None:
    if shape == "blocking":
        print(*send_blocking(namesrv, seconds))
    else:
        print(*asyncio.run(send_concurrently(namesrv, int(shape), seconds)))


async def run_client(shape: str, namesrv: str, seconds: float, environment: dict[str, str]) -> tuple[float, float]:
    command = [*pinned(GENERATOR_CORE), sys.executable, __file__, "--client", shape, namesrv, str(seconds)]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, env={**os.environ, **environment}
    )
    output, _ = await process.communicate()
    rate, cpu = output.split()
    return float(rate), float(cpu)


Found = dict[tuple[str, str], list[tuple[float, float]]]  # shape, side -> rate and CPU us of each round


async def compare(c_program: str, sides: dict[str, dict[str, str]], options: argparse.Namespace) -> Found:
    # Imported here: the client also runs with the package of another checkout, which may lack these modules.
    from pyromq.clock import SystemClock
    from pyromq.nameserver.name_server import NameServer
    from pyromq.nameserver.name_server_config import NameServerConfig
    from pyromq.net.channel import connect
    from pyromq.remoting.bodies import BrokerRegistration, TopicConfig, TopicConfigTable, encode_body
    from pyromq.remoting.dispatch import Dispatcher
    from pyromq.remoting.headers import RegisterBroker

    found: Found = {}
    async with NameServer(NameServerConfig(port=0)) as names:
        with c_server(c_program)() as server:
            channel = await connect(names.address, Dispatcher(), SystemClock())
            topics = {TOPIC: TopicConfig(name=TOPIC, read_queues=QUEUES, write_queues=QUEUES)}
            registration = encode_body(BrokerRegistration(topics=TopicConfigTable(topics=topics)))
            broker = RegisterBroker(
                broker_name="c", broker_address=f"127.0.0.1:{server.port}", cluster="bench", broker_id=0
            )
            for number in range(options.rounds):
                (await channel.call(broker, registration, timeout=1)).check()
                for shape in options.shapes:
                    for side in list(sides)[:: -1 if number % 2 else 1]:
                        progress(f"round {number + 1} of {options.rounds}: {shape}, {side}")
                        outcome = await run_client(shape, names.address, options.seconds, sides[side])
                        found.setdefault((shape, side), []).append(outcome)
            await channel.close()
    progress("")
    return found


def print_table(sides: list[str], found: Found) -> None:
    """Print medians, and ours to each of the others: the median of the rounds' ratios."""
    others = [side for side in sides if side != OURS]
    heads = ["sends of 128 B a second (CPU each), in flight", *sides, *(f"{OURS} : {side}" for side in others)]
    print(f"| {' | '.join(heads)} |")
    print("|---" + "|---:" * (len(heads) - 1) + "|")
    for shape in dict.fromkeys(shape for shape, _ in found):
        cells = []
        for side in sides:
            rate, cpu = (statistics.median(values) for values in zip(*found[shape, side], strict=True))
            cells.append(f"{rate:,.0f} ({cpu:.1f} us)")
        for side in others:
            pairs = list(zip(found[shape, OURS], found[shape, side], strict=True))
            ratios = [ours[0] / theirs[0] for ours, theirs in pairs]
            by_cpu = statistics.median(theirs[1] / ours[1] for ours, theirs in pairs)
            middle = f"**{statistics.median(ratios):.2f}**"
            cells.append(f"{middle} ({min(ratios):.2f} to {max(ratios):.2f}; by CPU {by_cpu:.2f})")
        print(f"| {shape} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cserver", default=os.environ.get("PYROMQ_CSERVER"), help="the C server [PYROMQ_CSERVER]")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="another one, extensions built: a column")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=SHAPES, help="sends in flight, or blocking")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    if not options.cserver:
        parser.error("needs the C server: --cserver or PYROMQ_CSERVER")
    sides: dict[str, dict[str, str]] = {OURS: {}, "plain": PLAIN}
    if options.before:
        sides["before"] = of_checkout(options.before)
    print_machine()
    print_table(list(sides), asyncio.run(compare(options.cserver, sides, options)))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        client(sys.argv[2], sys.argv[3], float(sys.argv[4]))
    else:
        main()
