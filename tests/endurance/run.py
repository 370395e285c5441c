"""`make endure`: two clusters under load of every kind for hours; one lives on, the other one is killed each round.

    python -m tests.endurance.run 2 [--load 0.12] [--round 300] [--seed S] [--to build/endurance.png]

In a round every kind of message is sent and consumed, topics, groups and connections come and go, the disk is full for
a moment, and the certificate changes. What clients saw is judged: nothing confirmed may be lost. Memory, descriptors,
threads, files and latencies must not rise, by the slope of Theil and Sen (`trend.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.certificates import Authority
from tests.endurance.cluster import Ballast, EnduringCluster
from tests.endurance.measuring import Measurements, draw
from tests.failover.history import History
from tests.failover.judge import Verdict
from tests.failover.load import Load

LIVING, KILLED = "living", "killed"
SENDERS = 10  # of a load: two of each kind
LOAD = 0.12  # of the highest rate of sends: two clusters, all consumers and probes keep two processors nearly half busy
CALIBRATION_SECONDS = 5.0
SHOWN_FAULTS = 5  # of a round, while the run goes on


@dataclass
class Report:
    """What a run has found."""

    measurements: Measurements
    rounds: int = 0
    kills: list[float] = field(default_factory=list)  # seconds since the begin
    sent: int = 0
    confirmed: int = 0
    faults: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether no fault was found, and no judged series rises."""
        return not self.faults and all(is_flat for is_flat, _ in self.measurements.verdicts())

    def take(self, verdict: Verdict, where: str) -> None:
        self.sent += verdict.sent
        self.confirmed += verdict.confirmed
        self.faults += [f"round {self.rounds}, {where}: {fault}" for fault in verdict.faults]


async def endure(
    folder: Path, *, seconds: float, round_seconds: float, load: float, seed: int, pause_seconds: float | None = None
) -> Report:
    """Run rounds for so long. `load` is the share of the highest rate, which is measured first."""
    chance = random.Random(seed)
    measurements = Measurements()
    report = Report(measurements)
    authority = Authority(folder)
    shared = {"measurements": measurements, "ballast": Ballast(folder / "ballast")}
    async with (
        EnduringCluster(LIVING, folder, authority, **shared) as living,
        EnduringCluster(KILLED, folder, authority, **shared) as killed,
    ):
        if pause_seconds is None:
            pause_seconds = await pause_for(load, [living, killed])
        measurements.began = time.monotonic()
        watch = asyncio.create_task(watch_processes(living, killed, measurements, every=min(10.0, seconds / 40)))
        while time.monotonic() - measurements.began < seconds:
            report.rounds += 1
            kill_after = chance.uniform(0.1, 0.9) * round_seconds
            outcomes: dict[str, asyncio.Task[Verdict]] = {}
            report.kills.append(time.monotonic() - measurements.began + kill_after)
            async with asyncio.TaskGroup() as group:
                for cluster, after in ((living, None), (killed, kill_after)):
                    work = cluster.round(
                        round_seconds, pause_seconds=pause_seconds, seed=report.rounds, kill_after=after
                    )
                    outcomes[cluster.name] = group.create_task(work)
            known = len(report.faults)
            for name, outcome in outcomes.items():
                report.take(outcome.result(), name)
            print(
                f"round {report.rounds}, {(time.monotonic() - measurements.began) / 60:.1f} min: {report.sent} sent,"
                f" {report.confirmed} confirmed, {len(report.faults)} faults",
                *report.faults[known : known + SHOWN_FAULTS],
                sep="\n  ",
                flush=True,
            )
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch
    return report


async def pause_for(share: float, clusters: list[EnduringCluster]) -> float:
    """Return the pause of a sender with which all senders together send this share of what they can."""
    counts = []
    for cluster in clusters:
        async with Load(cluster.namesrv, History(), pause_seconds=0.0) as load:
            await asyncio.sleep(CALIBRATION_SECONDS)
            counts.append(load.confirmed)
            await load.stop_sending()
            await load.settle()
        await cluster.delete_all()
    rate = min(counts) / CALIBRATION_SECONDS / len(clusters)  # of a cluster while all are busy
    pause = SENDERS / rate * (1 / share - 1)
    print(f"{rate:,.0f} messages a second at most; a sender pauses {pause * 1000:.0f} ms for {share:.0%}", flush=True)
    return pause


async def watch_processes(
    living: EnduringCluster, killed: EnduringCluster, measurements: Measurements, *, every: float
) -> None:
    while True:
        await asyncio.sleep(every)
        living.measure(judged=True)
        killed.measure(judged=False)  # a kill frees everything: what lives on is judged
        measurements.add_process("clients", os.getpid(), judged=False)  # histories come and go with rounds
        measurements.add_waits()


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("hours", type=float, nargs="?", default=2.0)
    options.add_argument("--load", type=float, default=LOAD, help="share of the highest rate of sends")
    options.add_argument("--round", type=float, default=300.0, help="seconds from one kill to the next")
    options.add_argument("--seed", type=int, default=int(time.time()))
    options.add_argument(
        "--to", type=Path, default=Path("build/endurance.png"), help="the picture; its points as JSON beside it"
    )
    chosen = options.parse_args()
    print(f"{chosen.hours:g} hours at {chosen.load:.0%} load with seed {chosen.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="pyromq-endure-") as folder:
        report = asyncio.run(
            endure(
                Path(folder),
                seconds=chosen.hours * 3600,
                round_seconds=chosen.round,
                load=chosen.load,
                seed=chosen.seed,
            )
        )
    verdicts = report.measurements.verdicts()
    print("\n".join(text for _, text in verdicts))
    if report.faults:
        print("\n".join(report.faults[:50]))
    chosen.to.parent.mkdir(parents=True, exist_ok=True)
    draw(report.measurements, report.kills, chosen.to)
    report.measurements.save(chosen.to.with_suffix(".json"))
    rising = sum(not is_flat for is_flat, _ in verdicts)
    print(
        f"{report.rounds} rounds, {len(report.kills)} kills, {report.sent} sent, {report.confirmed} confirmed,"
        f" {len(report.faults)} faults; {rising} of {len(verdicts)} series rise; the picture is {chosen.to}"
    )
    return 0 if report.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
