"""Prints how late a timer of a millisecond is in a broker's event loop while the load generator keeps the broker busy.

    late_timer.py [--lg LG] [--seconds 3] [--data /dev/shm]

The broker runs in this program, on core 0, as `pyromq serve` runs it, and the generator on core 1. A timer is late by
what the loop and the broker's other threads do before it has its turn, which cannot be told from outside. Beside that
stands how much of it they ran, which other programs on the machine do not change.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from generator import GENERATOR_CORE
from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerConfig
from pyromq.net.listening import new_serving_loop
from servers import SERVER_CORE, pinned

TIMER_SECONDS = 0.001
LOADS = {
    "nothing": "",
    "64 x 1": "-c 64 -w 1",
    "64 x 64": "-c 64 -w 64",
    "pulls, 16 x 16": "-c 16 -w 16 -m pull -n 32 -S 9000",
}


class Waited(NamedTuple):
    """Seconds beyond the timer's own, and how long the broker ran in them."""

    late: float
    of_it_the_broker: float


async def measure(program: str, seconds: float, data: str) -> None:
    with tempfile.TemporaryDirectory(dir=data) as folder:
        async with Broker(BrokerConfig(data=Path(folder), port=0)) as broker:
            print("| load | late, p50 / p99 / most, ms | of it the broker |\n|---|---:|---:|")
            await _load(program, broker.port, "-c 4 -w 4 -N 40000", 30)
            for name, shape in LOADS.items():
                load = asyncio.ensure_future(_load(program, broker.port, shape, seconds))
                waited = await _waited(seconds)
                await load
                print(f"| {name} | {' | '.join(shown(times) for times in zip(*waited, strict=True))} |", flush=True)


def shown(times: tuple[float, ...]) -> str:
    ordered = sorted(times)
    return " / ".join(f"{ordered[int(len(ordered) * part)] * 1000:.2f}" for part in (0.5, 0.99, 0.9999))


async def _load(program: str, port: int, shape: str, seconds: float) -> None:
    if shape:
        command = [*pinned(GENERATOR_CORE), program, "-p", str(port), "-s", "128", "-u", "0", "-d", str(seconds)]
        process = await asyncio.create_subprocess_exec(*command, *shape.split(), stdout=asyncio.subprocess.DEVNULL)
        await process.wait()


async def _waited(seconds: float) -> list[Waited]:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(0.2)
    end = loop.time() + seconds - 0.4
    return await waited_until(lambda: loop.time() >= end)


async def waited_until(is_over: Callable[[], bool]) -> list[Waited]:
    """Return how late a timer was, again and again."""
    loop = asyncio.get_running_loop()
    waited = []
    while not is_over():
        begun, had = loop.time(), time.process_time()
        await asyncio.sleep(TIMER_SECONDS)
        ran = time.process_time() - had
        waited.append(Waited(loop.time() - begun - TIMER_SECONDS, max(0.0, ran - TIMER_SECONDS)))
    return waited


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lg", default=os.environ.get("PYROMQ_LG"), help="the load generator [PYROMQ_LG]")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each load")
    parser.add_argument("--data", default="/dev/shm", help="a folder of the file system to be measured")
    options = parser.parse_args()
    if not options.lg:
        parser.error("say where the load generator is: --lg or PYROMQ_LG")
    os.sched_setaffinity(0, {SERVER_CORE})
    with asyncio.Runner(loop_factory=new_serving_loop) as runner:
        runner.run(measure(options.lg, options.seconds, options.data))


if __name__ == "__main__":
    main()
