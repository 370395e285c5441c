"""What `pyromq serve` costs: time to start, a blocking client's time, idle processor time, memory."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import time
from pathlib import Path

from generator import GENERATOR_CORE, Generator
from report import progress
from servers import SERVER_CORE, Server, Start, our_server, pinned

MILLION = 1_000_000
IDLE_SECONDS = 10.0
SETTLE_SECONDS = 2.0  # what start-up left to do


def print_blocking(rounds: int, seconds: float) -> None:
    """A loop of blocking sends beside the same request on a bare socket, in turns, at one server."""
    print("| blocking producer in a loop, 128 B | bare socket | pyromq.Producer | producer : socket |")
    print("|---|---:|---:|---:|")
    for place, core in (("client on the server's core", SERVER_CORE), ("client on the other core", GENERATOR_CORE)):
        pairs = []
        with our_server() as server:
            for number in range(rounds):
                progress(f"round {number + 1} of {rounds}: blocking producer, {place}")
                producer = _blocking("producer", server.namesrv or "", core, seconds)
                pairs.append((_blocking("socket", f"127.0.0.1:{server.port}", core, seconds), producer))
        progress("")
        bare, ours = (statistics.median(values) for values in zip(*pairs, strict=True))
        ratio = statistics.median(producer / socket for socket, producer in pairs)
        print(f"| {place} | {bare:,.0f} | {ours:,.0f} | **{ratio:.2f}** |")
    print()


def _blocking(how: str, address: str, core: int, seconds: float) -> float:
    script = Path(__file__).parent / "loads" / "blocking.py"
    command = [*pinned(core), sys.executable, str(script), how, address, str(seconds)]
    return float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def print_costs(servers: dict[str, Start], generator: Generator | None, rounds: int) -> None:
    """One column a server, all of them ours. Starts take turns; what is idle is so beside the others."""
    ready: dict[str, list[float]] = {name: [] for name in servers}
    for number in range(rounds):
        for name, start in servers.items():
            progress(f"round {number + 1} of {rounds}: start of {name}")
            with start() as server:
                ready[name].append(server.ready_seconds)
    with contextlib.ExitStack() as stack:
        running = {name: stack.enter_context(start()) for name, start in servers.items()}
        at_start = {name: _resident(server) for name, server in running.items()}
        idle = _idle_percent(running)
        filled = {}
        for name, server in running.items() if generator else ():
            progress(f"a million messages for {name}")
            assert generator is not None
            generator.fill(server, MILLION, size=128)
            filled[name] = _resident(server)
    progress("")
    print(f"| cost of `pyromq serve` | {' | '.join(servers)} |")
    print("|---" + "|---:" * len(servers) + "|")
    rows = {
        "ready after": {name: f"{statistics.median(found) * 1000:.0f} ms" for name, found in ready.items()},
        "idle": {name: f"{percent:.2f} % of a core" for name, percent in idle.items()},
        "resident at start: own memory + mapped files": at_start,
        "resident after a million messages of 128 B": filled,
    }
    for label, cells in rows.items():
        print(f"| {label} | {' | '.join(cells.get(name, '-') for name in servers)} |")
    print()


def _idle_percent(running: dict[str, Server]) -> dict[str, float]:
    progress(f"idle for {IDLE_SECONDS:.0f} s")
    time.sleep(SETTLE_SECONDS)
    before = {name: server.cpu_seconds() for name, server in running.items()}
    time.sleep(IDLE_SECONDS)
    return {name: 100 * (server.cpu_seconds() - before[name]) / IDLE_SECONDS for name, server in running.items()}


def _resident(server: Server) -> str:
    own, files = server.resident_mb()
    return f"{own:.0f} + {files:.0f} MB"
