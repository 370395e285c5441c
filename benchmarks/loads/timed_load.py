"""Sends whose properties name a time, as bytes made beforehand, and plain sockets that write many of them at once.

What answers them is measured, so this has to cost less: frames of a run are joined and answers counted, not read.
"""

from __future__ import annotations

import json
import selectors
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

RUN = 64  # frames written at once, at most
PREPARED = 1 << 16  # frames made beforehand, and sent again and again
BODY = b"a" * 128
QUEUES = 4
ANSWER_SECONDS = 5.0
RECEIVE_BYTES = 1 << 18
GOOD = b'"code":0'  # once in each answer that says yes
_LENGTH = struct.Struct(">I")


class Shape(NamedTuple):
    """How many connections send, and how many sends of each wait for their answers."""

    connections: int
    in_flight: int

    def __str__(self) -> str:
        return f"{self.connections}x{self.in_flight}"

    @property
    def run(self) -> int:
        return min(RUN, self.in_flight)


FASTEST = Shape(8, 256)

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


def prepared(make: Frames, run: int) -> Frames:
    """Return what gives frames made now, always `run` of them, and begins again where they end."""
    runs = [make(first, run) for first in range(0, PREPARED, run)]
    return lambda first, count: runs[first // run % len(runs)]


class Connection:
    """One connection of the load."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.waiting = 0
        self._rest = b""

    def send(self, frames: bytes, count: int) -> None:
        self.socket.sendall(frames)
        self.waiting += count

    def receive(self) -> int:
        """Take what is there; return how many answers say yes. One that says no is missed until `load` gives up."""
        content = self._rest + self.socket.recv(RECEIVE_BYTES)
        count = content.count(GOOD)
        self._rest = content[1 - len(GOOD) :]
        self.waiting -= count
        return count


@dataclass(frozen=True, slots=True)
class Sent:
    """How many were answered, in how many seconds, and the share of a core that sending took."""

    count: int
    seconds: float
    generator: float

    @property
    def rate(self) -> float:
        return self.count / self.seconds


def load(
    port: int,
    make: Frames,
    *,
    count: int | None = None,
    seconds: float = 1e9,
    first: int = 0,
    shape: Shape = FASTEST,
) -> Sent:
    """Send for so long or so many. Raises `SystemExit` when answers that say yes do not come any more."""
    selector = selectors.DefaultSelector()
    connections = [Connection(port) for _ in range(shape.connections)]
    for connection in connections:
        selector.register(connection.socket, selectors.EVENT_READ, connection)
    sent = answered = 0
    started, cpu = time.monotonic(), time.process_time()
    ready = connections
    while True:
        more = (count is None or sent < count) and time.monotonic() - started < seconds
        for connection in ready if more else ():
            while connection.waiting <= shape.in_flight - shape.run and (count is None or sent < count):
                run = shape.run if count is None else min(shape.run, count - sent)
                connection.send(make(first + sent, run), run)
                sent += run
        if answered == sent and not more:
            break
        ready = [key.data for key, _ in selector.select(ANSWER_SECONDS)]
        if not ready:
            raise SystemExit(f"{sent - answered} of {sent} sends got no answer, or one that says no")
        answered += sum(connection.receive() for connection in ready)
    passed, used = time.monotonic() - started, time.process_time() - cpu
    for connection in connections:
        connection.socket.close()
    return Sent(answered, passed, used / passed)
