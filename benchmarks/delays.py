"""Times of delivery: what accepting costs, what ten million pending take, how late and how fast messages come.

    delays.py [--pending 10000000] [--seconds 8] [--rounds 3] [--first] [--folder PATH]

The server has one core, what asks it the other. Messages that wait for long are due at random times within 30 days.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

from generator import GENERATOR_CORE
from pyromq.record import decode_all
from servers import Server, folder_for_now, our_server

RUN = 64  # frames written at once, at most
BODY = b"a" * 128
MONTH_MS = 30 * 86_400_000
SOON_MS = 600_000  # nothing of the 30 days is due while it is measured
BURST = 100_000
QUEUES = 4
_LENGTH = struct.Struct(">I")


class Shape(NamedTuple):
    """How many connections send, and how many sends of each wait for their answers."""

    connections: int
    in_flight: int


FASTEST = Shape(8, 256)
SHAPES = (Shape(64, 1), Shape(16, 16), Shape(64, 64), FASTEST)

Frames = Callable[[int, int], bytes]  # number of the first, how many -> frames back to back


def frames_of(topic: str, property_name: str, due_ms: Callable[[int], int]) -> Frames:
    """Return what makes sends whose named property is a time; all frames have the same size."""
    properties = f"KEYS\\u0001k1\\u0002TAGS\\u0001TagA\\u0002UNIQ_KEY\\u0001%032d\\u0002{property_name}\\u0001%013d"
    fields = {"a": "bench", "b": topic, "c": "TBW102", "d": "4", "f": "0", "g": "1700000000000", "h": "0", "j": "0"}
    head = {"code": 310, "flag": 0, "language": "JAVA", "opaque": 1, "version": 401, "extFields": fields}
    # Without blanks, as Java's clients write it: the server reads this form fastest.
    text = json.dumps(head, separators=(",", ":")).replace(
        "}}", f',"e":"%01d","k":"false","m":"false","i":"{properties}"}}}}'
    )
    size = len(text % (0, 0, 0))
    frame = (_LENGTH.pack(4 + size + len(BODY)) + _LENGTH.pack(size)).replace(b"%", b"%%") + text.encode() + BODY

    def make(first: int, count: int) -> bytes:
        values = [each for n in range(first, first + count) for each in (n % QUEUES, n, due_ms(n))]
        return frame * count % tuple(values)

    return make


class Connection:
    """One connection of the load: counts answers, and refuses to go on when one of them says no."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.waiting = 0
        self._rest = b""

    def send(self, frames: bytes, count: int) -> None:
        self.socket.sendall(frames)
        self.waiting += count

    def receive(self) -> int:
        """Take the answers that are there; return how many."""
        content = self._rest + self.socket.recv(1 << 18)
        place = count = 0
        while len(content) - place >= 4:
            end = place + 4 + _LENGTH.unpack_from(content, place)[0]
            if end > len(content):
                break
            if b'"code":0' not in content[place : place + 120]:
                raise SystemExit(f"the server says no: {content[place:end]!r}")
            place = end
            count += 1
        self._rest = content[place:]
        self.waiting -= count
        return count


def load(
    port: int,
    make: Frames,
    *,
    count: int | None = None,
    seconds: float = 1e9,
    first: int = 0,
    shape: Shape = FASTEST,
) -> tuple[int, float]:
    """Send for so long or so many; return how many were answered, and in how many seconds."""
    selector = selectors.DefaultSelector()
    connections = [Connection(port) for _ in range(shape.connections)]
    most = min(RUN, shape.in_flight)
    for connection in connections:
        selector.register(connection.socket, selectors.EVENT_READ, connection)
    sent = answered = 0
    started = time.monotonic()
    while True:
        more = (count is None or sent < count) and time.monotonic() - started < seconds
        for connection in connections if more else ():
            while connection.waiting <= shape.in_flight - most and (count is None or sent < count):
                run = most if count is None else min(most, count - sent)
                connection.send(make(first + sent, run), run)
                sent += run
        if answered == sent and not more:
            break
        for key, _ in selector.select(5):
            answered += key.data.receive()
    passed = time.monotonic() - started
    for connection in connections:
        connection.socket.close()
    return answered, passed


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


def accept_rates(seconds: float, rounds: int) -> None:
    """Plain sends and sends with a time, in turns, each on a fresh server; the last ones with all that follows."""
    for shape in SHAPES:
        ratios = []
        for number in range(rounds):
            to_the_end = shape is FASTEST and number == rounds - 1
            plain = accept_rate("X_ANY_OTHER_TIME", seconds, shape, to_the_end=to_the_end)
            timed = accept_rate("TIMER_DELIVER_MS", seconds, shape, to_the_end=to_the_end)
            ratios.append(timed / plain)
        print(
            f"accepting with a time, {shape.connections} x {shape.in_flight}: {median(ratios):.2f} of plain sends"
            f" ({min(ratios):.2f} to {max(ratios):.2f})",
            flush=True,
        )


def accept_rate(property_name: str, seconds: float, shape: Shape, *, to_the_end: bool) -> float:
    """Return how many sends a second are answered; show what they cost, `to_the_end` with what is done later."""
    with our_server() as server:
        make = frames_of("bench", property_name, within_a_month())
        load(server.port, make, count=20_000)
        used = server.cpu_seconds()
        answered, passed = load(server.port, make, seconds=seconds, first=20_000, shape=shape)
        accepting = server.cpu_seconds() - used
        later = (
            f", with what is done later {(cpu_when_idle(server) - used) / answered * 1e6:.1f} us" if to_the_end else ""
        )
        print(
            f"  {property_name:18} {answered / passed:9,.0f} a second, {accepting / passed:.2f} of a core; for each"
            f" {accepting / answered * 1e6:.1f} us{later}"
        )
    return answered / passed


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
        answered, passed = load(server.port, frames_of("bench", "TIMER_DELIVER_MS", within_a_month()), count=pending)
        used = server.cpu_seconds()
        print(
            f"filled with {answered:,} in {passed:.0f} s: {answered / passed:,.0f} a second,"
            f" {used / passed:.2f} of a core; for each {used / answered * 1e6:.1f} us"
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
    parser = argparse.ArgumentParser()
    parser.add_argument("--pending", type=int, default=10_000_000)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--first", action="store_true", help="before other programs (nice -20; needs root)")
    parser.add_argument("--folder", type=Path, help="fill this one, or go on with it where it is there: two runs")
    asked = parser.parse_args()
    if asked.first:
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    os.sched_setaffinity(0, {GENERATOR_CORE})
    if asked.rounds:
        accept_rates(asked.seconds, asked.rounds)
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


if __name__ == "__main__":
    main()
