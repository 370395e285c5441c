"""The external load generator: what it is told, and what it reports. It keeps the core beside the server's."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass

from servers import Server, pinned

GENERATOR_CORE = 1
FILL_SECONDS = 300
CHECK_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class Load:
    """A closed loop: each connection keeps `in_flight` requests in flight.

    With `rate` the loop is open: so many requests a second begin at random moments, and their waiting time counts from
    these moments, sent or not.
    """

    connections: int
    in_flight: int
    size: int = 128  # bytes of a body sent
    pull_count: int = 0  # messages asked for by each pull; 0 sends instead
    pull_span: int = 0  # pulls begin at offsets below this
    rate: float = 0
    core: int = GENERATOR_CORE  # where the generator runs

    def arguments(self) -> list[str]:
        shape = ["-c", str(self.connections), "-w", str(self.in_flight), "-s", str(self.size)]
        if self.rate:
            shape += ["-r", str(self.rate)]
        return (
            [*shape, "-m", "pull", "-n", str(self.pull_count), "-S", str(self.pull_span)] if self.pull_count else shape
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """Requests per second, what their waiting cost, and what each cost the server's processor.

    `generator` is the generator's share of its core: near 1 it is what was measured. `refused` is the share of answers
    that said no, in a moment of the same load before.
    """

    rate: float
    p50_ms: float
    p99_ms: float
    p999_ms: float
    cpu_us: float
    generator: float
    refused: float

    def __str__(self) -> str:
        return f"{self.rate:,.0f} a second, p50 {self.p50_ms:.2f}, p99 {self.p99_ms:.2f}, p99.9 {self.p999_ms:.1f} ms"


class Generator:
    """Runs the program against a server."""

    def __init__(self, program: str) -> None:
        self._program = program

    def measure(self, server: Server, load: Load, *, seconds: float, warm_seconds: float) -> Outcome:
        """Return the outcome of `seconds` of load. Raises `SystemExit` if the server says no to most of it."""
        refused = self._refused(server, load)
        report = self._run(server, load, ["-u", str(warm_seconds), "-d", str(seconds), "-P", str(server.pid)])
        return Outcome(
            rate=report["rps"],
            p50_ms=report["p50"] / 1000,
            p99_ms=report["p99"] / 1000,
            p999_ms=report["p999"] / 1000,
            cpu_us=(report["srv_u"] + report["srv_s"]) / max(report["rps"], 1) * 1e6,
            generator=report["lg_u"] + report["lg_s"],
            refused=refused,
        )

    def fill(self, server: Server, count: int, *, size: int) -> None:
        """Send `count` messages, spread over 4 queues."""
        self._run(server, Load(64, 64, size), ["-N", str(count), "-u", "0", "-d", str(FILL_SECONDS)])

    def _refused(self, server: Server, load: Load) -> float:
        report = self._run(server, load, ["-e", "-u", "0", "-d", str(CHECK_SECONDS)])
        share = report["errs"] / max(report["rps"] * report["el"], 1)
        if share > 0.5:
            raise SystemExit(f"the server on port {server.port} refuses {share:.0%} of {load}")
        return share

    def _run(self, server: Server, load: Load, arguments: list[str]) -> dict[str, float]:
        command = [*pinned(load.core), self._program, "-p", str(server.port), *load.arguments(), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} fails:\n{done.stderr}")
        report: dict[str, float] = json.loads(done.stdout)
        return report
