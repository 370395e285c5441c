"""Servers that take turns under the same loads, and the table of their medians.

In every round each server has its turn, from first to last and in the next round from last to first. Whatever else the
machine does then hits all alike, and a ratio - the median of the rounds' - says more than the rates it is made of.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Collection
from dataclasses import dataclass

from generator import Generator, Load, Outcome
from report import progress
from servers import Server, Start, kept

WARM_SECONDS = 0.5
LONG_WARM_SECONDS = 5.0  # of each load, until Java's compiler has settled
PULL_SPAN = 32_768  # offsets of one queue: beyond what the generator walks through in a turn
PULL_FILL = 4 * (PULL_SPAN + 64) + 10_000  # the queues are filled in turn, but end a little apart

Found = dict[str, dict[str, list[Outcome]]]  # load -> server -> one outcome a round
Ratio = tuple[str, str]  # a server, and the one it is compared with


@dataclass(frozen=True, slots=True)
class Trial:
    """Loads that run one after the other against the same servers, by their labels in the table.

    With `fill_size`, a server first gets messages to pull, whose bodies have so many bytes.
    """

    loads: dict[str, Load]
    fill_size: int = 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """What all trials of a run have in common. Servers named in `long_lived` stay from round to round."""

    generator: Generator
    long_lived: frozenset[str]
    rounds: int
    seconds: float

    def run(self, trial: Trial, servers: dict[str, Start]) -> Found:
        found: Found = {label: {name: [] for name in servers} for label in trial.loads}
        with contextlib.ExitStack() as stack:
            starts = dict(servers)
            for name in self.long_lived & servers.keys():
                progress(f"{name} gets warm")
                starts[name] = stack.enter_context(kept(servers[name], lambda server: self._warm(trial, server)))
            for number in range(self.rounds):
                for name in list(starts)[:: -1 if number % 2 else 1]:
                    progress(f"round {number + 1} of {self.rounds}: {name}, {next(iter(trial.loads))} ...")
                    with starts[name]() as server:
                        if name not in self.long_lived:
                            self._fill(trial, server)
                        for label, load in trial.loads.items():
                            found[label][name].append(self._measure(server, load, WARM_SECONDS))
        progress("")
        return found

    def _warm(self, trial: Trial, server: Server) -> None:
        self._fill(trial, server)
        for load in trial.loads.values():
            self._measure(server, load, LONG_WARM_SECONDS)

    def _fill(self, trial: Trial, server: Server) -> None:
        if trial.fill_size:
            self.generator.fill(server, PULL_FILL, size=trial.fill_size)

    def _measure(self, server: Server, load: Load, warm_seconds: float) -> Outcome:
        return self.generator.measure(server, load, seconds=self.seconds, warm_seconds=warm_seconds)


def print_found(title: str, found: Found, ratios: Collection[Ratio]) -> None:
    """Print rates, p99 and processor time, then ratios with the range of the rounds."""
    names = list(next(iter(found.values())))
    heads = [title, *names, *(f"{ours} : {theirs}" for ours, theirs in ratios)]
    _print_head(heads)
    for label, by_server in found.items():
        cells = [_rate(by_server[name]) for name in names]
        cells += [_ratio(by_server[ours], by_server[theirs]) for ours, theirs in ratios]
        print(f"| {label} | {' | '.join(cells)} |")
    _print_generator(found)


def print_waits(title: str, found: Found) -> None:
    """Print what requests waited."""
    names = list(next(iter(found.values())))
    _print_head([title, *names])
    for label, by_server in found.items():
        print(f"| {label} | {' | '.join(_waits(by_server[name]) for name in names)} |")
    _print_generator(found)


def _ratio(ours: list[Outcome], theirs: list[Outcome]) -> str:
    """The ratio of rates, and of what the processor time of each would buy: the latter is steady beside other work."""
    pairs = list(zip(ours, theirs, strict=True))
    rates = [our.rate / their.rate for our, their in pairs]
    by_cpu = statistics.median(their.cpu_us / max(our.cpu_us, 0.01) for our, their in pairs)
    return f"**{statistics.median(rates):.2f}** ({min(rates):.2f} to {max(rates):.2f}; by CPU {by_cpu:.2f})"


def _print_head(heads: list[str]) -> None:
    print(f"| {' | '.join(heads)} |")
    print("|---" + "|---:" * (len(heads) - 1) + "|")


def _rate(outcomes: list[Outcome]) -> str:
    rate, p99, cpu = (_median(outcomes, each) for each in (_rate_of, lambda o: o.p99_ms, lambda o: o.cpu_us))
    refused = _median(outcomes, lambda o: o.refused)
    return f"{rate:,.0f} ({p99:.1f} ms, {cpu:.1f} us)" + (f", {refused:.1%} refused" if refused > 0.001 else "")


def _waits(outcomes: list[Outcome]) -> str:
    p50, p99, p999 = (_median(outcomes, each) for each in (lambda o: o.p50_ms, lambda o: o.p99_ms, lambda o: o.p999_ms))
    return f"{p50:.2f} / {p99:.2f} / {p999:.1f} ms at {_median(outcomes, _rate_of):,.0f}"


def _rate_of(outcome: Outcome) -> float:
    return outcome.rate


def _median(outcomes: list[Outcome], of: Callable[[Outcome], float]) -> float:
    return statistics.median(map(of, outcomes))


def _print_generator(found: Found) -> None:
    """Say how busy the generator was: near a whole core the rates are its own limit."""
    shares = {
        name: max(_median(by_server[name], lambda o: o.generator) for by_server in found.values())
        for name in next(iter(found.values()))
    }
    print(f"\nThe generator's core, at most: {', '.join(f'{name} {share:.2f}' for name, share in shares.items())}.\n")
