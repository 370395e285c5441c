"""Who else waits while an administrator asks for something: the longest delay of a send, by what is asked.

    python fairness.py [--rounds N] [--only WORD] [--inside] [--generator PROGRAM]

A broker with 1,000 topics of 8 queues and 2,000 groups on core 0 gets a send each millisecond over a connection of its
own (`trickle.py`, core 1), and beside that each request in turn. A delay counts from when the send was due, so one
that had to wait behind another counts both; beside it stands for how long the broker itself ran meanwhile, which other
programs on the machine do not change. With a generator it also says, under its full load, after how long a cheap
request of another connection is answered. `--inside` has the broker in this process and tells the longest turn of its
loop, in time of the processor: what others may have to wait for, on a busy machine too.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

import msgspec

from loads import fairness_requests
from loads.fairness_requests import ACTIONS, TOPICS, Action, Scene
from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerConfig
from pyromq.clock import SystemClock
from pyromq.nameserver.name_server import NameServer
from pyromq.nameserver.name_server_config import NameServerConfig
from pyromq.net.channel import connect
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.headers import MaxOffset
from servers import Server, folder_for_now, our_server, pinned

CLIENT_CORE = 1
AFTER_SECONDS = 0.1  # what an action leaves behind counts as well
LOAD_SECONDS = 5.0
ASK_EVERY_SECONDS = 0.002


class Watch(Protocol):
    """Tells how long others had to wait in a span of time (monotonic ns): the longest each, in ms."""

    columns: tuple[str, ...]

    def longest_ms(self, begin: int, end: int) -> tuple[float, ...]: ...


class Sends:
    """The trickle's own process. What it says is known when it has ended."""

    columns: tuple[str, ...] = ("delay of a send", "of it the broker")

    def __init__(self, server: Server, topic: str = TOPICS[0].name) -> None:
        program = [sys.executable, str(Path(__file__).parent / "loads" / "trickle.py")]
        command = [*pinned(CLIENT_CORE), *program, str(server.port), str(server.pid), topic]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._process.stdout.readline()
        self._answered: list[tuple[int, int, int]] = []

    def end(self) -> None:
        output, _ = self._process.communicate()
        lines = (map(int, line.split()) for line in output.splitlines())
        self._answered = [(due, waited, ran) for due, waited, ran in lines]

    def longest_ms(self, begin: int, end: int) -> tuple[float, ...]:
        return tuple(max(each) for each in zip(*self.waited_ms(begin, end), strict=True))

    def waited_ms(self, begin: int, end: int) -> list[tuple[float, float]]:
        """Return of each send how long its answer took, and for how long the server ran meanwhile."""
        then = [(waited, ran) for due, waited, ran in self._answered if begin <= due + waited and due <= end]
        return [(waited / 1e6, ran / 1e6) for waited, ran in then]


class Turns:
    """The turns of the loop of this thread, each with the processor's time it took."""

    columns: tuple[str, ...] = ("turn of the loop",)

    def __init__(self) -> None:
        self._took: list[tuple[int, float]] = []
        run, took, own = asyncio.Handle._run, self._took, threading.get_ident()

        def timed(handle: asyncio.Handle) -> None:
            begun = time.thread_time()
            run(handle)
            if threading.get_ident() == own:
                took.append((time.monotonic_ns(), time.thread_time() - begun))

        asyncio.Handle._run = timed  # type: ignore[method-assign]

    def longest_ms(self, begin: int, end: int) -> tuple[float, ...]:
        return (max(took for at, took in self._took if begin <= at <= end) * 1000,)


async def act(scene: Scene, action: Action) -> tuple[int, int]:
    """Do it once; return when it began and when all that follows of it was over."""
    if action.prepare is not None:
        await action.prepare(scene)
        await asyncio.sleep(action.settle_seconds)
    begin = time.monotonic_ns()
    await action.act(scene)
    await asyncio.sleep(AFTER_SECONDS)
    return begin, time.monotonic_ns()


async def rounds(scene: Scene, actions: list[Action], count: int) -> dict[str, list[tuple[int, int]]]:
    spans: dict[str, list[tuple[int, int]]] = {action.name: [] for action in actions}
    for _ in range(count):
        for action in actions:
            spans[action.name].append(await act(scene, action))
            await asyncio.sleep(AFTER_SECONDS)
    return spans


def report(spans: dict[str, list[tuple[int, int]]], watch: Watch) -> None:
    """Print medians of the rounds, and the least of all, which is what the machine's other work has least part in."""
    heads = "".join(f"{column:>18} {'least':>7}" for column in watch.columns)
    print(f"{'longest, ms':<44}{heads} {'all took':>9}")
    for name, times in spans.items():
        rounds = zip(*(watch.longest_ms(begin, end) for begin, end in times), strict=True)
        figures = "".join(f"{statistics.median(each):18.1f} {min(each):7.1f}" for each in rounds)
        took = statistics.median(end - begin for begin, end in times) / 1e6 - AFTER_SECONDS * 1000
        print(f"{name:<44}{figures} {took:9.0f}", flush=True)


@contextlib.asynccontextmanager
async def scene_at(port: int, namesrv: str) -> AsyncIterator[Scene]:
    broker = await connect(f"127.0.0.1:{port}", Dispatcher(), SystemClock())
    name_server = await connect(namesrv, Dispatcher(), SystemClock())
    try:
        yield Scene(broker, name_server)
    finally:
        await broker.close()
        await name_server.close()


async def outside(folder: Path, actions: list[Action], count: int) -> None:
    with our_server(folder) as server:
        assert server.namesrv is not None
        async with scene_at(server.port, server.namesrv) as scene:
            sends = Sends(server)
            await asyncio.sleep(1)
            spans = await rounds(scene, actions, count)
            sends.end()
    report(spans, sends)


async def inside(folder: Path, actions: list[Action], count: int) -> None:
    """Who asks has a thread and a loop of its own. In asyncio's loop a turn of the reactor is one of the loop."""
    turns = Turns()

    async def ask(port: int, namesrv: str) -> dict[str, list[tuple[int, int]]]:
        async with scene_at(port, namesrv) as scene:
            await asyncio.sleep(1)
            return await rounds(scene, actions, count)

    async with NameServer(NameServerConfig(port=0)) as name_server:
        gc.freeze()  # as `pyromq serve`
        gc.set_threshold(10_000, 5, 20)
        config = BrokerConfig(folder, port=0, namesrv=(name_server.address,))
        async with Broker(config) as broker:
            spans = await asyncio.to_thread(lambda: asyncio.run(ask(broker.port, name_server.address)))
    report(spans, turns)


async def lateness(folder: Path, generator: str) -> None:
    """A cheap request waits for a turn of the loop, and for nothing else."""
    with our_server(folder) as server:
        assert server.namesrv is not None
        async with scene_at(server.port, server.namesrv) as scene:
            await scene.create("Topic")
            for in_flight in (1, 64):
                process = _loading(generator, server, in_flight)
                waited = await _asked(scene, LOAD_SECONDS)
                output, _ = process.communicate()  # it has ended, or does so soon
                p50, p99 = waited[len(waited) // 2], waited[len(waited) * 99 // 100]
                rate = msgspec.json.decode(output)["rps"]
                print(
                    f"64 x {in_flight}, {rate:,.0f} sends a second: a cheap request waits"
                    f" p50 {p50:.2f}, p99 {p99:.2f}, most {waited[-1]:.1f} ms"
                )


def _loading(generator: str, server: Server, in_flight: int) -> subprocess.Popen[str]:
    load = ["-c", "64", "-w", str(in_flight), "-s", "128", "-u", "1", "-d", str(LOAD_SECONDS)]
    command = [*pinned(CLIENT_CORE), generator, "-p", str(server.port), *load]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


async def _asked(scene: Scene, seconds: float) -> list[float]:
    await asyncio.sleep(1)
    waited, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        begun = time.monotonic()
        await scene.ask(MaxOffset(topic="Topic", queue_id=0))
        waited.append((time.monotonic() - begun) * 1000)
        await asyncio.sleep(ASK_EVERY_SECONDS)
    return sorted(waited)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="requests whose name has this word")
    parser.add_argument("--inside", action="store_true", help="the broker's turns, seen from its own process")
    parser.add_argument("--generator", help="program that loads a server (`-p PORT -c N -w N -s BYTES`)")
    options = parser.parse_args()
    actions = [action for action in ACTIONS if options.only in action.name]
    os.sched_setaffinity(0, {CLIENT_CORE})
    with folder_for_now() as folder:
        fairness_requests.furnish(folder)
        if actions:
            asyncio.run((inside if options.inside else outside)(folder, actions, options.rounds))
        if options.generator:
            asyncio.run(lateness(folder, options.generator))


if __name__ == "__main__":
    main()
