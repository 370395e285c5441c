"""Prints one table: how fast push consumers take what is stored, beside the genuine Java client and plain Python.

    consumer_rates.py [--rounds 5] [--java JARS] [--before CHECKOUT] [--kinds batches]

All consume 1 KiB messages from four queues of one `pyromq serve` on core 0, one process at a time on core 1, and take
turns. The second half of the messages is what counts: by then Java's compiler has settled. Times are the consumer's.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from consumers.feeding import fill
from consumers.members import Line, Member, Role, StartMember, java_member, our_member
from pyromq import Producer
from report import print_machine, progress
from servers import PLAIN, of_checkout, our_server

KIB = 1024
MESSAGES = 400_000
LEFT_OUT = 2 * KIB  # a consumer says each thousandth message only
MAX_SECONDS = 60.0
OURS, JAVA = "pyromq", "Java"
TOPIC = "rate"


@dataclass(frozen=True, slots=True)
class Kind:
    """How a listener is called."""

    batch: int = 1
    orderly: bool = False
    in_task: bool = False


KINDS = {
    "batches": ("batches of 32, plain function", Kind(batch=32)),
    "single": ("one by one, plain function", Kind()),
    "orderly": ("in order, one by one, plain function", Kind(orderly=True)),
    "async": ("one by one, `async` function", Kind(in_task=True)),
}


@dataclass(frozen=True, slots=True)
class Pace:
    """Messages a second, and processor time of the consumer for each."""

    rate: float
    cpu_us: float


Found = dict[str, dict[str, list[Pace]]]  # kind -> member -> one a round


def main() -> None:
    options = _options()
    print_machine()
    with tempfile.TemporaryDirectory(prefix="pyromq-bench-") as classes, our_server() as server:
        members: dict[str, StartMember] = {OURS: our_member}
        if options.java:
            members[JAVA] = java_member(options.java, Path(classes))
        members["plain"] = partial(our_member, environment=PLAIN)
        if options.before:
            members["before"] = partial(our_member, environment=of_checkout(options.before))
        assert server.namesrv is not None
        progress("storing messages")
        with Producer("bench", server.namesrv) as producer:
            fill(producer, TOPIC, MESSAGES, b"x" * KIB)
        _print(_paces(members, server.namesrv, options.kinds, options.rounds))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    jars = os.environ.get("PYROMQ_JARS")
    parser.add_argument("--java", type=Path, default=jars, metavar="JARS", help="the genuine ones [PYROMQ_JARS]")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="another one, extensions built: a column")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def _paces(members: dict[str, StartMember], namesrv: str, kinds: list[str], rounds: int) -> Found:
    found: Found = {}
    for number in range(rounds):
        for kind in kinds:
            label, how = KINDS[kind]
            for name in list(members)[:: -1 if number % 2 else 1]:
                if name == JAVA and how.in_task:
                    continue
                progress(f"round {number + 1} of {rounds}: {label}, {name}")
                group = f"{kind}-{name}-{number}"
                role = Role("every", TOPIC, group, batch=how.batch, orderly=how.orderly, in_task=how.in_task)
                with members[name](namesrv, role) as member:
                    found.setdefault(label, {}).setdefault(name, []).append(_pace(member))
    progress("")
    return found


def _pace(member: Member) -> Pace:
    cpu_at_half = _wait(member, MESSAGES // 2)
    cpu_at_end = _wait(member, MESSAGES - LEFT_OUT)
    half, end = (_passing(member.lines, count) for count in (MESSAGES // 2, MESSAGES - LEFT_OUT))
    count = _count(end) - _count(half)
    return Pace(count / (end.at - half.at), (cpu_at_end - cpu_at_half) / count * 1e6)


def _wait(member: Member, count: int) -> float:
    """Wait until so many are counted; return the member's seconds of processor time by then."""
    member.wait(lambda lines: any(_count(line) >= count for line in lines[-1:]), f"{count} messages", MAX_SECONDS)
    return member.cpu_seconds()


def _passing(lines: list[Line], count: int) -> Line:
    return next(line for line in lines if _count(line) >= count)


def _count(line: Line) -> int:
    return int(line.words[0]) if line.kind == "count" else 0


def _print(found: Found) -> None:
    names = max(map(list, found.values()), key=len)
    others = [name for name in names if name != OURS]
    heads = ["messages of 1 KiB a second (CPU each)", *names, *(f"{OURS} : {name}" for name in others)]
    print(f"| {' | '.join(heads)} |")
    print("|---" + "|---:" * (len(heads) - 1) + "|")
    for label, by_name in found.items():
        cells = [_cell(by_name.get(name)) for name in names]
        cells += [_ratio(by_name[OURS], by_name.get(name)) for name in others]
        print(f"| {label} | {' | '.join(cells)} |")


def _cell(paces: list[Pace] | None) -> str:
    if not paces:
        return "-"
    rate, cpu = (statistics.median(values) for values in zip(*((p.rate, p.cpu_us) for p in paces), strict=True))
    return f"{rate:,.0f} ({cpu:.1f} us)"


def _ratio(ours: list[Pace], theirs: list[Pace] | None) -> str:
    if not theirs:
        return "-"
    pairs = list(zip(ours, theirs, strict=True))
    ratios = [our.rate / their.rate for our, their in pairs]
    by_cpu = statistics.median(their.cpu_us / our.cpu_us for our, their in pairs)
    return f"**{statistics.median(ratios):.2f}** ({min(ratios):.2f} to {max(ratios):.2f}; by CPU {by_cpu:.2f})"


if __name__ == "__main__":
    main()
