"""Prints one table: how fast `pyromq serve` is beside a C server that does the same work, and what it costs.

The C server marks what the machine can do; the ratio to it in the same run is what can be compared between machines.
Server on core 0, load generator on core 1. All servers take turns within a round; a ratio is the median of the rounds'.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from generator import GENERATOR_CORE, Generator, Load, Outcome
from servers import SERVER_CORE, Server, Start, c_server, java_broker, our_server, pinned

SENDS = {
    "send, 64 connections x 1 in flight, 128 B": Load(64, 1),
    "send, 64 x 64, 128 B": Load(64, 64),
}
PULL_SPAN = 32_768  # offsets of one queue: beyond what the generator walks through in a turn
PULLS = {
    "pull of 32 x 1 KiB, 64 x 1": Load(64, 1, pull_count=32, pull_span=PULL_SPAN),
    "pull of 32 x 1 KiB, 16 x 16": Load(16, 16, pull_count=32, pull_span=PULL_SPAN),
}
PULL_FILL = 4 * (PULL_SPAN + 64) + 10_000  # the queues are filled in turn, but end a little apart
MILLION = 1_000_000
IDLE_SECONDS = 10.0
JAVA_WARM_SECONDS = 10.0  # until its compiler has settled

T = TypeVar("T")

HOW_TO_POINT = """\
The load generator and the C server are not part of this project. Build them and say where they are:
    PYROMQ_LG=/path/to/lg PYROMQ_CSERVER=/path/to/cserver make bench       (or --lg, --cserver)
Without the generator only the blocking producer, start-up and idle cost are measured.
"""


@dataclass(frozen=True, slots=True)
class Settings:
    rounds: int
    seconds: float


def main() -> None:
    options = _options()
    settings = Settings(options.rounds, options.seconds)
    print_machine()
    if not (options.lg and options.cserver):
        print(HOW_TO_POINT)
    if options.lg:
        servers = _servers(options.cserver, options.java)
        _print_rates(_rates(Generator(options.lg), servers, settings))
    _print_blocking(settings)
    _print_cost(Generator(options.lg) if options.lg else None, settings)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lg", default=os.environ.get("PYROMQ_LG"), help="the load generator [PYROMQ_LG]")
    parser.add_argument("--cserver", default=os.environ.get("PYROMQ_CSERVER"), help="the C server [PYROMQ_CSERVER]")
    parser.add_argument("--java", type=Path, metavar="CLASSPATH_DIR", help="folder of the genuine broker's jars")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    options = parser.parse_args()
    if options.rounds < 1 or options.seconds <= 0:
        parser.error("--rounds and --seconds must be positive")
    if (os.cpu_count() or 1) < 2 or not shutil.which("taskset"):
        parser.error("needs two cores and taskset (package util-linux)")
    for name in ("lg", "cserver", "java"):
        if (path := getattr(options, name)) and not Path(path).exists():
            parser.error(f"--{name}: {path} does not exist")
    return options


def _servers(cserver: str | None, java: Path | None) -> dict[str, Start]:
    servers: dict[str, Start] = {"pyromq": our_server}
    if cserver:
        servers["C"] = c_server(cserver)
    if java:
        servers["Java, same core"] = java_broker(java, *pinned(SERVER_CORE))
        servers["Java, both cores"] = java_broker(java)
    return servers


def print_machine() -> None:
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    model = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), ": ?")
    facts = (
        f"{model.partition(':')[2].strip()}, {os.cpu_count()} cores",
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        f"commit {commit.stdout.strip() or '?'}",
        f"load before the run {os.getloadavg()[0]:.1f}",  # beside other work the figures mean little
    )
    print("; ".join(facts) + "\n")


Rates = dict[str, dict[str, list[Outcome]]]  # measurement -> server -> one outcome a round


def _rates(generator: Generator, servers: dict[str, Start], settings: Settings) -> Rates:
    rates: Rates = {label: {name: [] for name in servers} for label in (*SENDS, *PULLS)}
    for number in range(settings.rounds):
        for loads in (SENDS, PULLS):
            for name, start in servers.items():
                progress(f"round {number + 1} of {settings.rounds}: {name}, {next(iter(loads)).partition(',')[0]}")
                warm_seconds = JAVA_WARM_SECONDS if name.startswith("Java") else 1.0
                with start() as server:
                    if loads is PULLS:
                        generator.fill(server, PULL_FILL, size=1024)
                    for label, load in loads.items():
                        outcome = generator.measure(server, load, seconds=settings.seconds, warm_seconds=warm_seconds)
                        rates[label][name].append(outcome)
    progress("")
    return rates


def _print_rates(rates: Rates) -> None:
    names = list(next(iter(rates.values())))
    print(f"| requests a second (p99), ratio to C | {' | '.join(names)} |")
    print("|---" + "|---:" * len(names) + "|")
    for label, by_server in rates.items():
        cells = [_rate(by_server[name]) + _ratio(by_server[name], by_server.get("C")) for name in names]
        print(f"| {label} | {' | '.join(cells)} |")
    print()


def _rate(outcomes: list[Outcome]) -> str:
    rate, p99 = (statistics.median(values) for values in zip(*((o.rate, o.p99_ms) for o in outcomes), strict=True))
    return f"{rate:,.0f} ({p99:.1f} ms)"


def _ratio(ours: list[Outcome], theirs: list[Outcome] | None) -> str:
    if not theirs or ours is theirs:
        return ""
    return f", {statistics.median(our.rate / their.rate for our, their in zip(ours, theirs, strict=True)):.2f}"


def _print_blocking(settings: Settings) -> None:
    print("| blocking producer in a loop, 128 B | bare socket | pyromq.Producer | producer / socket |")
    print("|---|---:|---:|---:|")
    for place, core in (("client on the server's core", SERVER_CORE), ("client on the other core", GENERATOR_CORE)):
        pairs = []
        with our_server() as server:
            for number in range(settings.rounds):
                progress(f"round {number + 1} of {settings.rounds}: blocking producer, {place}")
                producer = _blocking("producer", server.namesrv or "", core, settings)
                pairs.append((_blocking("socket", f"127.0.0.1:{server.port}", core, settings), producer))
        progress("")
        bare, ours = (statistics.median(values) for values in zip(*pairs, strict=True))
        ratio = statistics.median(producer / socket for socket, producer in pairs)
        print(f"| {place} | {bare:,.0f} | {ours:,.0f} | {ratio:.2f} |")
    print()


def _blocking(how: str, address: str, core: int, settings: Settings) -> float:
    script = Path(__file__).with_name("blocking.py")
    command = [*pinned(core), sys.executable, str(script), how, address, str(settings.seconds)]
    return float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def _print_cost(generator: Generator | None, settings: Settings) -> None:
    print("| cost of `pyromq serve` | |")
    print("|---|---:|")
    starts = [_with_server(lambda server: server.ready_seconds) for _ in range(settings.rounds)]
    print(f"| ready after | {statistics.median(starts) * 1000:.0f} ms |")
    print(f"| idle | {_with_server(_idle_percent):.2f} % of a core |")
    print(f"| resident at start: own memory + mapped files | {_with_server(_resident)} |")
    if generator:
        print(f"| resident after a million messages of 128 B | {_with_server(_fill_with_million(generator))} |")
    progress("")


def _with_server(measure: Callable[[Server], T]) -> T:
    with our_server() as server:
        return measure(server)


def _idle_percent(server: Server) -> float:
    progress(f"idle for {IDLE_SECONDS:.0f} s")
    time.sleep(2.0)  # what start-up left to do
    before = server.cpu_seconds()
    time.sleep(IDLE_SECONDS)
    return 100 * (server.cpu_seconds() - before) / IDLE_SECONDS


def _resident(server: Server) -> str:
    own, files = server.resident_mb()
    return f"{own:.0f} + {files:.0f} MB"


def _fill_with_million(generator: Generator) -> Callable[[Server], str]:
    def measure(server: Server) -> str:
        progress("a million messages")
        generator.fill(server, MILLION, size=128)
        return _resident(server)

    return measure


def progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
