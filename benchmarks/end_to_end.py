"""Prints tables: how fast `pyromq serve` is beside a C server that does the same work and the genuine broker.

    end_to_end.py [--only sends,pulls] [--rounds 5] [--seconds 1.5] [--java JARS] [--before CHECKOUT] [--first]

The C server marks what the machine can do. It and ours have core 0, the load generator core 1; the genuine broker may
use both. "plain" is ours with nothing compiled, "before" what another checkout holds. Ratios are medians of the rounds.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from comparison import PULL_SPAN, Comparison, Ratio, Trial, print_found, print_waits
from costs import print_blocking, print_costs
from generator import Generator, Load
from pyromq.broker.config import SETTINGS
from report import print_machine
from servers import PLAIN, SERVER_CORE, Start, c_server, java_broker, of_checkout, our_server

OURS, C, JAVA = "pyromq", "C", "Java"
STEADY_RATE = 20_000
BUSY_POLL = "busyPollMicros"
BUSY_MICROS = 50
HOW_TO_POINT = """\
The load generator and the C server are not part of this project. Build them and say where they are:
    PYROMQ_LG=/path/to/lg PYROMQ_CSERVER=/path/to/cserver make bench       (or --lg, --cserver)
Without the generator only the blocking producer, start-up and idle cost are measured.
"""


@dataclass(frozen=True, slots=True)
class Bench:
    """What a part of the run needs: all servers, and how they are compared."""

    generator: Generator | None
    servers: dict[str, Start]
    rounds: int
    seconds: float

    @property
    def comparison(self) -> Comparison:
        if self.generator is None:
            raise SystemExit(HOW_TO_POINT)
        return Comparison(self.generator, frozenset({JAVA}), self.rounds, self.seconds)

    @property
    def our_own(self) -> dict[str, Start]:
        return {name: start for name, start in self.servers.items() if name not in (C, JAVA)}

    @property
    def ratios(self) -> list[Ratio]:
        """Ours to each of the others."""
        return [(OURS, name) for name in self.servers if name != OURS]

    def compare(self, title: str, trial: Trial) -> None:
        print_found(f"{title} (p99, CPU each)", self.comparison.run(trial, self.servers), self.ratios)


def sends(bench: Bench) -> None:
    loads = {
        "64 connections x 1 in flight": Load(64, 1),
        "64 x 64": Load(64, 64),
    }
    bench.compare("sends of 128 B a second", Trial(loads))


def same_core(bench: Bench) -> None:
    servers = {name: start for name, start in bench.servers.items() if name != JAVA}
    loads = {"1 x 1, generator on the server's core": Load(1, 1, core=SERVER_CORE)}
    found = bench.comparison.run(Trial(loads), servers)
    print_found("sends of 128 B a second (p99, CPU each)", found, [each for each in bench.ratios if JAVA not in each])


def pulls(bench: Bench) -> None:
    for size in (128, 1024):
        loads = {
            f"{connections} x {in_flight}": Load(connections, in_flight, pull_count=32, pull_span=PULL_SPAN)
            for connections, in_flight in ((64, 1), (16, 16))
        }
        bench.compare(f"pulls of 32 x {size} B a second", Trial(loads, fill_size=size))


def steady(bench: Bench) -> None:
    """An open loop: what a send waits when so many come, whatever is answered."""
    loads = {"64 connections": Load(64, 1, rate=STEADY_RATE)}
    print_waits(
        f"{STEADY_RATE:,} sends of 128 B a second: p50 / p99 / p99.9", bench.comparison.run(Trial(loads), bench.servers)
    )


def sync_flush(bench: Bench) -> None:
    """Sends that are answered once they are on disk; set TMPDIR to a folder in memory to leave the disk out."""
    flushed = "SYNC_FLUSH"
    servers: dict[str, Start] = {OURS: our_server, flushed: partial(our_server, settings={"flushDiskType": flushed})}
    loads = {"64 connections x 1 in flight": Load(64, 1), "64 x 64": Load(64, 64)}
    found = bench.comparison.run(Trial(loads), servers)
    print_found("sends of 128 B a second (p99, CPU each)", found, [(flushed, OURS)])


def busy_poll(bench: Bench) -> None:
    if BUSY_POLL not in SETTINGS:
        print(f"The broker does not know `{BUSY_POLL}`: not measured.\n")
        return
    polling = f"{BUSY_POLL}={BUSY_MICROS}"
    servers: dict[str, Start] = {OURS: our_server, polling: partial(our_server, settings={BUSY_POLL: BUSY_MICROS})}
    if C in bench.servers:
        servers[C] = bench.servers[C]
    loads = {"1 x 1, generator on the other core": Load(1, 1)}
    found = bench.comparison.run(Trial(loads), servers)
    print_found("sends of 128 B a second (p99, CPU each)", found, [(polling, OURS)])
    print_waits("the same: p50 / p99 / p99.9", found)


def blocking(bench: Bench) -> None:
    print_blocking(bench.rounds, bench.seconds)


def cost(bench: Bench) -> None:
    print_costs(bench.our_own, bench.generator, bench.rounds)


PARTS: dict[str, Callable[[Bench], None]] = {
    part.__name__.replace("_", "-"): part
    for part in (sends, same_core, pulls, steady, sync_flush, busy_poll, blocking, cost)
}

WITHOUT_GENERATOR = ("blocking", "cost")


def main() -> None:
    options = _options()
    print_machine()
    if options.first:
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    if not (options.lg and options.cserver):
        print(HOW_TO_POINT)
    generator = Generator(options.lg) if options.lg else None
    bench = Bench(generator, _servers(options), options.rounds, options.seconds)
    for part in options.only or (PARTS if generator else WITHOUT_GENERATOR):
        PARTS[part](bench)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lg", default=os.environ.get("PYROMQ_LG"), help="the load generator [PYROMQ_LG]")
    parser.add_argument("--cserver", default=os.environ.get("PYROMQ_CSERVER"), help="the C server [PYROMQ_CSERVER]")
    jars = os.environ.get("PYROMQ_JARS")
    parser.add_argument("--java", type=Path, default=jars, metavar="JARS", help="the genuine broker's [PYROMQ_JARS]")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="another one, extensions built: a column")
    parser.add_argument("--only", type=lambda text: text.split(","), metavar="PART,...", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--first", action="store_true", help="before other programs (nice -20; needs root)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each measurement")
    options = parser.parse_args()
    if unknown := set(options.only or ()) - PARTS.keys():
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if options.rounds < 1 or options.seconds <= 0:
        parser.error("--rounds and --seconds must be positive")
    if (os.cpu_count() or 1) < 2 or not shutil.which("taskset"):
        parser.error("needs two cores and taskset (package util-linux)")
    for name in ("lg", "cserver", "java", "before"):
        if (path := getattr(options, name)) and not Path(path).exists():
            parser.error(f"--{name}: {path} does not exist")
    return options


def _servers(options: argparse.Namespace) -> dict[str, Start]:
    servers: dict[str, Start] = {OURS: our_server}
    if options.cserver:
        servers[C] = c_server(options.cserver)
    if options.java:
        servers[JAVA] = java_broker(options.java)
    servers["plain"] = partial(our_server, environment=PLAIN)
    if options.before:
        servers["before"] = partial(our_server, environment=of_checkout(options.before))
    return servers


if __name__ == "__main__":
    main()
