"""Times of delivery: what accepting costs, what ten million pending take, how late and how fast messages come.

    delays.py [--pending 10000000] [--seconds 8] [--rounds 3] [--first] [--folder PATH]

The server has one core, what asks it the other. Messages that wait for long are due at random times within 30 days.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from generator import GENERATOR_CORE
from loads.timed_load import FASTEST, QUEUES, Connection, Sent, Shape, frames_of, load, prepared
from pyromq.record import decode_all
from report import print_machine, progress
from servers import Server, folder_for_now, our_server

MONTH_MS = 30 * 86_400_000
SOON_MS = 600_000  # nothing of the 30 days is due while it is measured
BURST = 100_000
SHAPES = (Shape(64, 64), Shape(64, 1), Shape(16, 16), FASTEST)
_LENGTH = struct.Struct(">I")


def pull_all(port: int, topic: str, count: int, *, since: str = "TIMER_OUT_MS") -> list[tuple[int, int]]:
    """Return due time, or another property, and time of arrival in its queue (ms) of so many messages of a topic."""
    found = []
    with socket.create_connection(("127.0.0.1", port)) as connection:
        stream = connection.makefile("rb")
        for queue in range(QUEUES):
            offset = 0
            while offset < count // QUEUES:
                fields = {"consumerGroup": "bench", "topic": topic, "queueId": str(queue), "queueOffset": str(offset)}
                fields |= {"maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0"}
                fields |= {"subVersion": "0", "subscription": "*", "expressionType": "TAG"}
                head = {"code": 11, "flag": 0, "language": "JAVA", "opaque": 1, "version": 401, "extFields": fields}
                header = json.dumps(head).encode()
                connection.sendall(_LENGTH.pack(4 + len(header)) + _LENGTH.pack(len(header)) + header)
                size, mark = struct.unpack(">II", stream.read(8))
                answer = stream.read(size - 4)
                messages = decode_all(answer[mark & 0xFFFFFF :])
                offset += len(messages)
                found += [(int(each.properties.get(since, 0)), each.store_ms) for each in messages]
                if not messages:
                    time.sleep(0.1)
    return found


class OtherTraffic:
    """Sends of one connection, one after the other, while it is entered; `times` are in ms."""

    def __init__(self, port: int) -> None:
        self.times: list[float] = []
        self._make = frames_of("other", "X_ANY_OTHER_TIME", lambda n: 0)
        self._connection = Connection(port)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._over.wait(0.001):
            started = time.perf_counter()
            self._connection.send(self._make(0, 1), 1)
            while self._connection.waiting:
                self._connection.receive()
            self.times.append((time.perf_counter() - started) * 1000)

    def __enter__(self) -> OtherTraffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._connection.socket.close()


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def within_a_month() -> Callable[[int], int]:
    chance, start = random.Random(7), round(time.time() * 1000) + SOON_MS
    return lambda n: start + int(chance.random() * (MONTH_MS - SOON_MS - 1_000_000))


class Accepted(NamedTuple):
    """What accepting sends came to: how many a second, and processor time of the server for each."""

    sent: Sent
    cpu_us: float

    def __str__(self) -> str:
        return f"{self.sent.rate:,.0f} ({self.cpu_us:.1f} us)"


def accept_rates(seconds: float, rounds: int, shapes: Sequence[Shape]) -> None:
    """Plain sends and sends with a time, in turns, each on a fresh server."""
    print("| sends of 128 B a second (CPU each) | plain | with a time | with a time : plain | generator's core |")
    print("|---|---:|---:|---:|---:|")
    for shape in shapes:
        plain, timed = [], []
        for number in range(rounds):
            progress(f"round {number + 1} of {rounds}: {shape}")
            plain.append(accept("X_ANY_OTHER_TIME", seconds, shape))
            timed.append(accept("TIMER_DELIVER_MS", seconds, shape))
        progress("")
        ratios = [ours.sent.rate / base.sent.rate for ours, base in zip(timed, plain, strict=True)]
        busiest = max(each.sent.generator for each in (*plain, *timed))
        print(
            f"| {shape} | {middle(plain)} | {middle(timed)} | **{median(ratios):.2f}**"
            f" ({min(ratios):.2f} to {max(ratios):.2f}) | {busiest:.2f} |",
            flush=True,
        )
    print()


def middle(found: list[Accepted]) -> Accepted:
    """Return the one with the middle rate."""
    return sorted(found, key=lambda each: each.sent.rate)[len(found) // 2]


def accept(property_name: str, seconds: float, shape: Shape) -> Accepted:
    with our_server() as server:
        make = frames_of("bench", property_name, within_a_month())
        ready_made = prepared(make, shape.run)
        load(server.port, make, count=20_000)
        used = server.cpu_seconds()
        sent = load(server.port, ready_made, seconds=seconds, shape=shape)
        return Accepted(sent, (server.cpu_seconds() - used) / sent.count * 1e6)


def whole_costs(seconds: float) -> None:
    """Show what sends cost with all that is done later: the key index, filing, copying."""
    for name, property_name in (("plain", "X_ANY_OTHER_TIME"), ("with a time", "TIMER_DELIVER_MS")):
        with our_server() as server:
            make = prepared(frames_of("bench", property_name, within_a_month()), FASTEST.run)
            used = server.cpu_seconds()
            sent = load(server.port, make, seconds=seconds)
            print(f"{name}: with what is done later {(cpu_when_idle(server) - used) / sent.count * 1e6:.1f} us each")


def cpu_when_idle(server: Server) -> float:
    """Wait until nothing is left to do (filing, key index, flushing); return the server's seconds of CPU."""
    used = -1.0
    while (now := server.cpu_seconds()) - used > 0.05:
        used = now
        time.sleep(2)
    return now


def burst(server: Server, *, random_order: bool) -> None:
    """100,000 due within one second: how long they take, and what other traffic notices."""
    topic = f"burst{int(random_order)}"
    due = round(time.time() * 1000) + 12_000
    chance = random.Random(3)
    load(
        server.port,
        frames_of(topic, "TIMER_DELIVER_MS", lambda n: due + (chance.randrange(1000) if random_order else 0)),
        count=BURST,
    )
    left = due / 1000 - time.time()
    assert left > 1, "the server was too slow"
    time.sleep(left - 0.5)
    with OtherTraffic(server.port) as other:
        time.sleep(5)
    arrivals = pull_all(server.port, topic, BURST)
    assert len(arrivals) == BURST
    assert min(store - due_ms for due_ms, store in arrivals) >= 0, "early"
    took = (max(store for _, store in arrivals) - due) / 1000
    print(
        f"burst of {BURST:,} due {'within a second' if random_order else 'in one millisecond'}: the last came"
        f" {took:.2f} s after the first was due; other sends meanwhile p50 {percentile(other.times, 0.5):.1f} ms,"
        f" p99 {percentile(other.times, 0.99):.1f} ms, most {max(other.times):.1f} ms ({len(other.times)})"
    )


def lateness(server: Server, what: str) -> None:
    """One message every 5 ms."""
    topic = "late" + what.replace(" ", "")
    count, start = 2_000, round(time.time() * 1000) + 2_000
    load(server.port, frames_of(topic, "TIMER_DELIVER_MS", lambda n: start + n * 5), count=count)
    time.sleep(start / 1000 - time.time() + count * 0.005 + 0.5)
    show_lateness([float(store - due_ms) for due_ms, store in pull_all(server.port, topic, count)], what)


def lateness_of_levels(server: Server) -> None:
    """One message of level 1 every 5 ms; late is what passes from sending to delivery beyond the level's second."""
    make = frames_of("levels", "DELAY\\u00011\\u0002X_SENT_MS", lambda n: time.time_ns() // 1_000_000)
    count = 2_000
    connection = Connection(server.port)
    for number in range(count):
        connection.send(make(number, 1), 1)
        while connection.waiting:
            connection.receive()
        time.sleep(0.005)
    time.sleep(1.5)
    found = pull_all(server.port, "levels", count, since="X_SENT_MS")
    show_lateness([float(store - sent - 1000) for sent, store in found], "delay level 1")


def show_lateness(late: list[float], what: str) -> None:
    print(
        f"lateness, {what}: p50 {percentile(late, 0.5):.0f} ms, p99 {percentile(late, 0.99):.0f} ms,"
        f" least {min(late):.0f}, most {max(late):.0f}"
    )


def memory(server: Server, what: str) -> None:
    own, files = server.resident_mb()
    print(f"memory, {what}: {own:.0f} MB its own, {files:.0f} MB of mapped files (the log's page cache)")


def fill(folder: Path, pending: int) -> None:
    with our_server(folder) as server:
        memory(server, "empty")
        sent = load(server.port, frames_of("bench", "TIMER_DELIVER_MS", within_a_month()), count=pending)
        used = server.cpu_seconds()
        print(
            f"filled with {sent.count:,} in {sent.seconds:.0f} s: {sent.rate:,.0f} a second, {used / sent.seconds:.2f}"
            f" of a core (the generator {sent.generator:.2f}); for each {used / sent.count * 1e6:.1f} us"
        )
        memory(server, f"{pending:,} pending")
        lateness(server, "while the last of them are filed")
        cpu_when_idle(server)
        stopping = time.monotonic()
    print(f"stopped in {time.monotonic() - stopping:.1f} s")
    size = sum(path.stat().st_size for path in (folder / "timers").iterdir())
    print(f"files of the timers: {size / 1e9:.2f} GB in {len(list((folder / 'timers').iterdir()))} files")


def deliver(folder: Path) -> None:
    """Start on what `fill` left, and see how what is due leaves beside it."""
    with our_server(folder) as server:
        print(f"restart: ready in {server.ready_seconds:.2f} s")
        memory(server, "after the restart")
        lateness(server, "beside them")
        burst(server, random_order=True)
        burst(server, random_order=False)
        memory(server, "after bursts")


def main() -> None:
    asked = _asked()
    print_machine()
    if asked.first:
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    os.sched_setaffinity(0, {GENERATOR_CORE})
    if asked.rounds:
        accept_rates(asked.seconds, asked.rounds, [each for each in SHAPES if str(each) in asked.shapes])
        whole_costs(asked.seconds)
    if not asked.folder:
        with our_server() as server:
            lateness_of_levels(server)
            lateness(server, "nothing else pending")
    if asked.folder and asked.folder.exists():
        deliver(asked.folder)
    elif asked.folder:
        fill(asked.folder, asked.pending)
    elif asked.pending:
        with folder_for_now() as folder:
            fill(folder, asked.pending)
            deliver(folder)


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pending", type=int, default=10_000_000)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--shapes", nargs="+", default=[*map(str, SHAPES)], metavar="CxN", help="64x64: connections x in flight"
    )
    parser.add_argument("--first", action="store_true", help="before other programs (nice -20; needs root)")
    parser.add_argument("--folder", type=Path, help="fill this one, or go on with it where it is there: two runs")
    return parser.parse_args()


if __name__ == "__main__":
    main()
