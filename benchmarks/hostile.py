"""What one hostile client can do to the others: how long they wait, and how much memory it takes.

    python hostile.py [--only WORD] [--size SHARE] [--settings NAME=VALUE ...]

A fresh `pyromq serve` with default settings on core 0 for each row. An honest client sends a message each millisecond
over a connection of its own (`loads/trickle.py`, core 1) while a stranger, on core 1 as well, does what the row says.
Waits are told as the clock saw them, and beside that for how long the server itself ran meanwhile, which other
programs on the machine do not change. Memory is the process's own, at its highest during the row, and after the
stranger has left. At the end another honest client connects, sends, and waits for a message that comes.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from dataclasses import dataclass
from itertools import count

from fairness import CLIENT_CORE, Sends
from loads.hostile_rows import ROWS, TOPIC, Row, Stranger, frame, pull, read_answers, send
from servers import Server, our_server

GOAL = "goal: p99 20 ms, most 50 ms, +100 MB"
SAMPLE_SECONDS = 0.02
AFTER_SECONDS = 0.5
SERVED_SECONDS = 5.0
NUMBERS = count()


@dataclass(frozen=True, slots=True)
class Outcome:
    """Waits in ms, memory in MB."""

    p99: float
    most: float
    ran_p99: float
    ran_most: float
    peak_mb: float
    left_mb: float
    is_served: bool

    def line(self, name: str, logged_bytes: int) -> str:
        """Return the table's line of a row."""
        return (
            f"| {name} | {self.p99:.1f} ({self.ran_p99:.1f}) ms | {self.most:.1f} ({self.ran_most:.1f}) ms"
            f" | {self.peak_mb:+.0f} MB | {self.left_mb:+.0f} MB"
            f" | {logged_bytes / 1000:.0f} kB | {'yes' if self.is_served else '**no**'} |"
        )


class Memory:
    """The most that a server's memory grows by, sampled by a thread."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._before = self.peak = server.resident_mb()[0]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            self.peak = max(self.peak, self._server.resident_mb()[0])

    def end(self) -> tuple[float, float]:
        """Return by how much it was higher at most, and is now."""
        self._ended.set()
        self._thread.join()
        return self.peak - self._before, self._server.resident_mb()[0] - self._before


def play(row: Row, size: float, settings: dict[str, object]) -> Outcome:
    with our_server(settings=settings) as server:
        assert server.namesrv is not None
        honest = Stranger(server.port, int(server.namesrv.rpartition(":")[2]))
        is_served(honest)
        honest.connect().sendall(send(TOPIC, b"x"))
        sends = Sends(server, TOPIC)
        time.sleep(1)
        memory = Memory(server)
        stranger = Stranger(honest.port, honest.namesrv_port, size)
        begin = time.monotonic_ns()
        row.act(stranger)
        time.sleep(row.settle_seconds)
        served = is_served(honest)
        stranger.leave()
        time.sleep(AFTER_SECONDS)
        end = time.monotonic_ns()
        peak, left = memory.end()
        sends.end()
        waited = sends.waited_ms(begin, end)
        honest.leave()
    return Outcome(*edges([each[0] for each in waited]), *edges([each[1] for each in waited]), peak, left, served)


def edges(values: list[float]) -> tuple[float, float]:
    ordered = sorted(values)
    return ordered[len(ordered) * 99 // 100], ordered[-1]


def is_served(honest: Stranger) -> bool:
    """Whether a new client can send, and be told of a message that comes."""
    topic = f"served-{next(NUMBERS)}"
    waiting, sending = honest.connect(), honest.connect()
    sending.sendall(send(topic, b"first"))
    first = read_answers(sending, 1, seconds=SERVED_SECONDS)
    waiting.sendall(frame(pull(suspend_ms=int(SERVED_SECONDS * 2000), offset=1, topic=topic, group=TOPIC)))
    if not first or read_answers(waiting, 1, seconds=0.1):
        return False
    sending.sendall(send(topic, b"second"))
    return read_answers(waiting, 1, seconds=SERVED_SECONDS) > 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose name has this word")
    parser.add_argument("--size", type=float, default=1.0, help="a share of what each row sends")
    parser.add_argument("--settings", nargs="*", default=[], metavar="NAME=VALUE", help="of the broker")
    options = parser.parse_args()
    logs = os.memfd_create("logs")
    os.dup2(logs, sys.stderr.fileno())  # what servers write there, which is their log, is counted only
    os.sched_setaffinity(0, {CLIENT_CORE})
    print(f"{GOAL}; in brackets: for how long the server ran meanwhile\n")
    print("| one client sends | others waited, p99 | most | memory | after | log | next served |")
    print("|---|--:|--:|--:|--:|--:|---|")
    for row in ROWS:
        if options.only in row.name:
            settings: dict[str, object] = dict(pair.split("=", 1) for pair in options.settings)
            logged = os.fstat(logs).st_size
            outcome = play(row, options.size, settings)
            print(outcome.line(row.name, os.fstat(logs).st_size - logged), flush=True)


if __name__ == "__main__":
    main()
