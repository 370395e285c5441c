"""What replication costs: confirmed sends of a set of two beside a broker alone, the log's stream, and catching up.

    replication.py [--only confirmed,stream,catching-up] [--rounds 3] [--seconds 1.5] [--mb 1000] [--first]

Broker or master on core 0. Follower, etcd and load generator share core 1, so that rates of sets are lower than with a
follower on a machine of its own; ratios by processor time are the master's. Ratios are medians of the rounds.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from comparison import Comparison, Trial, print_found, print_waits
from generator import Generator, Load, Outcome
from replica_sets import ReplicaSet, log_end, master_of_two, set_of_two, wait_until
from report import print_machine, progress
from servers import Server, our_server

ALONE, SET_OF_TWO = "alone", "set of two"
LARGE = 65_536  # bytes of a body: few messages, so that the bytes themselves are what is measured
SMALL = 128
RECORD_OVERHEAD = 190  # bytes that the generator's record has beyond its body
NO_LIMIT = 1 << 40
SETTLE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Bench:
    generator: Generator
    rounds: int
    seconds: float
    megabytes: int

    def fall_behind(self, replicas: ReplicaSet, size: int) -> None:
        """Stop the follower, and fill the master's log with bodies of this size."""
        replicas.stop_follower()
        self.generator.fill(replicas.master, self.megabytes * 1_000_000 // (size + RECORD_OVERHEAD), size=size)
        time.sleep(SETTLE_SECONDS)  # flushes and the key index

    def measure(self, server: Server) -> Outcome:
        return self.generator.measure(server, Load(64, 64), seconds=self.seconds, warm_seconds=0.2)


def confirmed(bench: Bench) -> None:
    """Sends that are answered once both replicas have them."""
    loads = {
        "64 connections x 64 in flight": Load(64, 64),
        "64 x 1": Load(64, 1),
        "1 x 1": Load(1, 1),
    }
    comparison = Comparison(bench.generator, frozenset(), bench.rounds, bench.seconds)
    found = comparison.run(Trial(loads), {ALONE: our_server, SET_OF_TWO: master_of_two})
    print_found("confirmed sends of 128 B a second (p99, CPU each)", found, [(SET_OF_TWO, ALONE)])
    print_waits("the same: p50 / p99 / p99.9", found)
    print(f"Time to confirmation 1 x 1, p50: {_more_micros(found['1 x 1']):+.0f} us.\n")


def _more_micros(by_server: dict[str, list[Outcome]]) -> float:
    pairs = zip(by_server[SET_OF_TWO], by_server[ALONE], strict=True)
    return 1000 * median(ours.p50_ms - alone.p50_ms for ours, alone in pairs)


def stream(bench: Bench) -> None:
    """A full log is sent to a follower, without other load: what both ends spend on a GB."""
    print("| processor time for a GB of log (user and system) | master, sends | follower, takes in | MB a second |")
    print("|---|---:|---:|---:|")
    for size in (LARGE, SMALL):
        rounds = []
        for number in range(bench.rounds):
            progress(f"round {number + 1} of {bench.rounds}: a log of bodies of {size} B is sent")
            rounds.append(_stream(bench, size))
        progress("")
        masters, followers, rates = (median(each) for each in zip(*rounds, strict=True))
        print(f"| bodies of {size} B | {masters:.2f} s | {followers:.2f} s | {rates:,.0f} |", flush=True)
    print()


def _stream(bench: Bench, size: int) -> tuple[float, float, float]:
    """Return processor seconds of master and follower for a GB, and MB a second."""
    with set_of_two({"catchUpBytesPerSecond": NO_LIMIT}) as replicas:
        master, follower = replicas.master, replicas.follower
        bench.fall_behind(replicas, size)
        end = log_end(master)
        gigabytes = end / 1e9
        used, started = (master.cpu_seconds(), follower.cpu_seconds()), time.monotonic()
        replicas.continue_follower()
        wait_until(lambda: log_end(follower) >= end, "the follower has the whole log")
        rate = gigabytes * 1000 / (time.monotonic() - started)
        return (master.cpu_seconds() - used[0]) / gigabytes, (follower.cpu_seconds() - used[1]) / gigabytes, rate


def catching_up(bench: Bench) -> None:
    """A follower catches up while the master takes all the sends that it can."""
    before, beside, rates = [], [], []
    for number in range(bench.rounds):
        progress(f"round {number + 1} of {bench.rounds}: catching up")
        with set_of_two() as replicas:
            bench.fall_behind(replicas, SMALL)
            before.append(bench.measure(replicas.master))
            replicas.continue_follower()
            wait_until(lambda: _moves(replicas.follower), "the follower catches up")
            begin, started = log_end(replicas.follower), time.monotonic()
            beside.append(bench.measure(replicas.master))
            gained, seconds = log_end(replicas.follower) - begin, time.monotonic() - started
            if log_end(replicas.follower) >= log_end(replicas.master):
                print("The follower had caught up before the measurement ended: use a larger --mb.")
            rates.append(gained / 1e6 / seconds)
    progress("")
    by_rate = median(after.rate / alone.rate for alone, after in zip(before, beside, strict=True))
    by_cpu = median(alone.cpu_us / after.cpu_us for alone, after in zip(before, beside, strict=True))
    print("| catching up beside sends 64 x 64, 128 B | |\n|---|---:|")
    print(f"| log that the follower took in, MB a second | {median(rates):,.0f} |")
    print(f"| rate of sends, of the rate before; by the master's CPU | **{by_rate:.2f}**; **{by_cpu:.2f}** |\n")


def _moves(server: Server) -> bool:
    begin = log_end(server)
    time.sleep(0.01)
    return log_end(server) > begin


PARTS: dict[str, Callable[[Bench], None]] = {
    part.__name__.replace("_", "-"): part for part in (confirmed, stream, catching_up)
}


def main() -> None:
    options = _options()
    print_machine()
    if options.first:
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    bench = Bench(Generator(options.lg), options.rounds, options.seconds, options.mb)
    for part in options.only or PARTS:
        PARTS[part](bench)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lg", default=os.environ.get("PYROMQ_LG"), help="the load generator [PYROMQ_LG]")
    parser.add_argument("--only", type=lambda text: text.split(","), metavar="PART,...", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--first", action="store_true", help="before other programs (nice -20; needs root)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each measurement")
    parser.add_argument("--mb", type=int, default=1000, help="length of the log that a follower lacks")
    options = parser.parse_args()
    if not options.lg:
        parser.error("needs the load generator, which is not part of this project: --lg or PYROMQ_LG")
    if unknown := set(options.only or ()) - PARTS.keys():
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    return options


if __name__ == "__main__":
    main()
