"""Prints one table: how consumers start, hand over queues and wake up, beside the genuine Java client.

Ours are measured on `pyromq serve`, the Java client on the genuine broker (with --java). Brokers keep to core 0,
members and what sends to core 1. Each member is a process of its own, and SIGKILL is SIGKILL.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from consumers.feeding import Feeding, fill
from consumers.handing_over import Handing, hand_over
from consumers.members import Line, Role, StartMember, java_member, our_member
from pyromq import Message, Producer
from report import print_machine, progress
from servers import SERVER_CORE, Start, java_broker, our_server, pinned

START_MESSAGES = 100
WAKE_UPS = 300
WAKE_PAUSE = 0.01
WORK_MS = 2  # of a listener while members come and go
CACHED = 10_000

Cells = dict[str, str]  # by the label of the row


@dataclass(frozen=True, slots=True)
class Side:
    """One column: a broker, and the members that consume from it."""

    name: str
    broker: Start
    member: StartMember
    is_ours: bool


@dataclass(frozen=True, slots=True)
class Setup:
    """A running broker of a side, and how often to repeat what is measured."""

    side: Side
    namesrv: str
    rounds: int

    def progress(self, what: str) -> None:
        progress(f"{self.side.name}: {what}")


def main() -> None:
    options = _options()
    print_machine()
    columns: dict[str, Cells] = {}
    with _sides(options.java) as sides:
        for side in sides:
            columns[side.name] = {}
            for part in options.parts:
                with side.broker() as server:
                    assert server.namesrv is not None
                    columns[side.name] |= PARTS[part](Setup(side, server.namesrv, options.rounds))
    progress("")
    _print(columns)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"what to measure, of {' '.join(PARTS)} [all]")
    jars = os.environ.get("PYROMQ_JARS")
    parser.add_argument("--java", type=Path, default=jars, metavar="JARS", help="the genuine ones [PYROMQ_JARS]")
    parser.add_argument("--rounds", type=int, default=3, help="of each measurement; the table has the medians")
    options = parser.parse_args()
    if unknown := set(options.parts) - PARTS.keys():
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {' '.join(PARTS)}")
    if options.rounds < 1:
        parser.error("--rounds must be positive")
    if (os.cpu_count() or 1) < 2 or not shutil.which("taskset"):
        parser.error("needs two cores and taskset (package util-linux)")
    if options.java and not options.java.is_dir():
        parser.error(f"--java: {options.java} is not a folder")
    options.parts = options.parts or list(PARTS)
    return options


@contextlib.contextmanager
def _sides(jars: Path | None) -> Iterator[list[Side]]:
    sides = [Side("pyromq", our_server, our_member, True)]
    with tempfile.TemporaryDirectory(prefix="pyromq-bench-") as classes:
        if jars:
            member = java_member(jars, Path(classes))
            sides.append(Side("Java", java_broker(jars, *pinned(SERVER_CORE)), member, False))
        yield sides


def first_message(setup: Setup) -> Cells:
    """From `start()` to the first call of the listener, of a new group on a topic that has messages."""
    with Producer("bench", setup.namesrv) as producer:
        fill(producer, "first", START_MESSAGES, b"x")
    waits = []
    for number in range(2 * setup.rounds + 1):
        setup.progress(f"first message, {number + 1} of {2 * setup.rounds + 1}")
        with setup.side.member(setup.namesrv, Role("all", "first", f"first-{number}")) as member:
            waits.append(member.first("message") - member.first("starting"))
    return {"first message after `start()`, ms": f"{_ms(statistics.median(waits))} (most {_ms(max(waits))})"}


def handing_over(setup: Setup) -> Cells:
    """Nine queues, two members, and a third that comes, leaves, comes again and is killed, under a steady feed."""
    cells: Cells = {}
    for kind in ("concurrent", "orderly"):
        rounds = 1 if kind == "orderly" and not setup.side.is_ours else setup.rounds  # waits for locks to expire
        handings: dict[str, list[Handing]] = {}
        lost = 0
        for number in range(rounds):
            setup.progress(f"{kind} members come and go, {number + 1} of {rounds}")
            topic = f"{kind}-{number}"
            role = Role("all", topic, topic, orderly=kind == "orderly", work_ms=WORK_MS)
            with Feeding(setup.namesrv, topic) as feeding:
                outcomes, missing = hand_over(partial(setup.side.member, setup.namesrv, role), feeding)
            lost += missing
            for event, found in outcomes.items():
                handings.setdefault(event, []).extend(found)
        cells |= {f"{kind}: {event}: all queues owned again, ms": _handed(found) for event, found in handings.items()}
        cells[f"{kind}: messages lost"] = str(lost)
    return cells


def _handed(handings: list[Handing]) -> str:
    seconds = [handing.seconds for handing in handings]
    repeats = ", ".join(str(handing.repeats) for handing in handings)
    return f"{_ms(statistics.median(seconds))} (most {_ms(max(seconds))}); repeats {repeats}"


def wake_up(setup: Setup) -> Cells:
    """From before `send` to the listener, one message at a time, nothing else going on."""
    cells: Cells = {}
    for kind in ("plain", "async") if setup.side.is_ours else ("plain",):
        setup.progress(f"wake-ups of {kind} listeners")
        topic = f"wake-{kind}"
        with Producer("bench", setup.namesrv) as producer:
            fill(producer, topic, 8, b"0")
            with setup.side.member(setup.namesrv, Role("all", topic, topic, in_task=kind == "async")) as member:
                member.wait(lambda lines: len(_messages(lines)) >= 8, "8 messages")
                for _ in range(WAKE_UPS):
                    time.sleep(WAKE_PAUSE)
                    producer.send(Message(topic, str(time.monotonic_ns()).encode()))
                member.wait(lambda lines: len(_messages(lines)) >= 8 + WAKE_UPS, "messages")
                waits = sorted(
                    line.at - int(line.words[2]) / 1e9 for line in _messages(member.lines) if line.words[2] != "0"
                )
        p50, p99 = waits[len(waits) // 2], waits[len(waits) * 99 // 100]
        cells[f"send to {kind} listener, idle: p50 / p99, ms"] = f"{p50 * 1000:.2f} / {p99 * 1000:.2f}"
    return cells


def memory(setup: Setup) -> Cells:
    """What a member grows by that has fetched messages of 100 B and waits for its listener."""
    if not setup.side.is_ours:
        return {}
    with Producer("bench", setup.namesrv) as producer:
        fill(producer, "memory", CACHED, b"x" * 100)
    grown = []
    for number in range(setup.rounds):
        setup.progress(f"memory of {CACHED} messages")
        with setup.side.member(setup.namesrv, Role("cache", "memory", f"memory-{number}")) as member:
            member.first("ready")
            sizes = [int(member.lines[0].words[0])]
            while len(sizes) < 4 or sizes[-1] != sizes[-3]:
                time.sleep(0.5)
                sizes.append(int(member.ask().words[0]))
            grown.append((sizes[-1] - sizes[0]) / 1024)
    return {f"memory of {CACHED:,} cached messages of 100 B, MB": f"{statistics.median(grown):.1f}"}


PARTS: dict[str, Callable[[Setup], Cells]] = {
    "first": first_message,
    "handing-over": handing_over,
    "wake-up": wake_up,
    "memory": memory,
}


def _messages(lines: list[Line]) -> list[Line]:
    return [line for line in lines if line.kind == "message"]


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f}"


def _print(columns: dict[str, Cells]) -> None:
    labels = dict.fromkeys(label for cells in columns.values() for label in cells)
    print(f"| consumers | {' | '.join(columns)} |")
    print("|---" + "|---:" * len(columns) + "|")
    for label in labels:
        print(f"| {label} | {' | '.join(cells.get(label, '') for cells in columns.values())} |")


if __name__ == "__main__":
    main()
