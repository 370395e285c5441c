"""Sends and pulls over plain sockets from the core beside the server's: rates, and how long each send waits."""

from __future__ import annotations

import json
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path

from servers import Server

BENCHMARKS = Path(__file__).parents[1]
_LENGTH = struct.Struct(">I")
_HEAD = {"flag": 0, "language": "JAVA", "opaque": 1, "version": 401}


def frame(code: int, fields: dict[str, str], body: bytes = b"") -> bytes:
    """Return one request as Java's clients write it."""
    head = json.dumps({"code": code, **_HEAD, "extFields": fields}, separators=(",", ":")).encode()
    return _LENGTH.pack(4 + len(head) + len(body)) + _LENGTH.pack(len(head)) + head + body


def send_frame(topic: str, queue: int, size: int) -> bytes:
    fields = {"a": "bench", "b": topic, "c": "TBW102", "d": "4", "e": str(queue), "f": "0", "g": "1700000000000"}
    fields |= {"h": "0", "i": "UNIQ_KEY\x01" + "0" * 32, "j": "0", "k": "false", "m": "false"}
    return frame(310, fields, bytes(size))


def pull_frame(topic: str, queue: int, offset: int) -> bytes:
    fields = {"consumerGroup": "bench", "topic": topic, "queueId": str(queue), "queueOffset": str(offset)}
    fields |= {"maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0"}
    return frame(11, fields | {"subscription": "*", "expressionType": "TAG"})


@dataclass(frozen=True, slots=True)
class Outcome:
    """Sends a second, and how long they waited."""

    rate: float
    p50_ms: float
    p99_ms: float
    worst_ms: float

    def __str__(self) -> str:
        return f"{self.rate:,.0f} a second, p50 {self.p50_ms:.2f}, p99 {self.p99_ms:.2f}, worst {self.worst_ms:.1f} ms"


def _outcome(waits: list[float], seconds: float) -> Outcome:
    if not waits:
        raise SystemExit("the server did not answer in time")
    waits.sort()
    p50, p99 = (1000 * waits[int(len(waits) * part)] for part in (0.5, 0.99))
    return Outcome(len(waits) / seconds, p50, p99, 1000 * waits[-1])


def closed_loop(server: Server, *, connections: int, size: int, seconds: float) -> Outcome:
    """Every connection has one send in flight."""
    selector = selectors.DefaultSelector()
    frames = [send_frame("bench", queue, size) for queue in range(4)]
    sockets = [_connect(server.port) for _ in range(connections)]
    sent_at: dict[socket.socket, float] = {}
    waits: list[float] = []
    began = time.perf_counter()
    for number, each in enumerate(sockets):
        selector.register(each, selectors.EVENT_READ, frames[number % 4])
        sent_at[each] = time.perf_counter()
        each.sendall(frames[number % 4])
    while (now := time.perf_counter()) - began < seconds:
        for key, _ in selector.select(1):
            each = key.fileobj
            assert isinstance(each, socket.socket)
            _check(each.recv(65536))
            now = time.perf_counter()
            waits.append(now - sent_at[each])
            sent_at[each] = now
            each.sendall(key.data)
    for each in sockets:
        each.close()
    return _outcome(waits, now - began)


def make_topics(server: Server, names: Sequence[str], queues: int) -> None:
    with _connect(server.port) as connection, connection.makefile("rb") as stream:
        for name in names:
            fields = {"topic": name, "defaultTopic": "TBW102", "readQueueNums": str(queues), "perm": "6"}
            fields |= {"writeQueueNums": str(queues), "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0"}
            connection.sendall(frame(17, fields | {"order": "false"}))
            _check(stream.read(_LENGTH.unpack(stream.read(4))[0]))


def pipelined(server: Server, frames: Sequence[bytes], *, count: int) -> float:
    """Send so many over four connections, 256 in flight on each; return how many a second."""
    began = time.perf_counter()
    with ThreadPoolExecutor(4) as threads:
        shares = [frames[number::4] for number in range(4)]
        list(threads.map(partial(_pipeline, server, count=count // 4), shares))
    return count / (time.perf_counter() - began)


def _pipeline(server: Server, frames: Sequence[bytes], *, count: int) -> None:
    frames = list(islice(cycle(frames), -(-len(frames) // 128) * 128))
    bursts = [b"".join(frames[at : at + 128]) for at in range(0, len(frames), 128)]
    with _connect(server.port) as connection, connection.makefile("rb", 1 << 18) as stream:
        connection.sendall(bursts[0])
        for number in range(1, count // 128 + 1):
            if number < count // 128:
                connection.sendall(bursts[number % len(bursts)])
            for _ in range(128):
                answer = stream.read(_LENGTH.unpack(stream.read(4))[0])
            _check(answer)


def paced(server: Server, *, rate: float, size: int, seconds: float) -> Outcome:
    """Send at a steady rate over four connections; a send that is late counts from when it was due."""
    selector = selectors.DefaultSelector()
    sockets = [_connect(server.port) for _ in range(4)]
    for queue, each in enumerate(sockets):
        each.setblocking(False)
        selector.register(each, selectors.EVENT_READ, queue)
    frames = [send_frame("bench", queue, size) for queue in range(4)]
    due: list[list[float]] = [[] for _ in sockets]  # of what is not answered, by connection
    rests = [b""] * 4
    waits: list[float] = []
    began, sent = time.perf_counter(), 0
    while (now := time.perf_counter()) - began < seconds:
        while sent < (now - began) * rate:
            sockets[sent % 4].sendall(frames[sent % 4])
            due[sent % 4].append(began + sent / rate)
            sent += 1
        for key, _ in selector.select(max(0.0, began + sent / rate - time.perf_counter())):
            queue = key.data
            content = rests[queue] + sockets[queue].recv(65536)
            while len(content) >= 4 and len(content) >= (end := 4 + _LENGTH.unpack_from(content)[0]):
                _check(content[:end])
                content = content[end:]
                waits.append(time.perf_counter() - due[queue].pop(0))
            rests[queue] = content
    for each in sockets:
        each.close()
    return _outcome(waits, now - began)


class Readers:
    """Processes that pull queues from the begin on, each its own, as fast as the server gives."""

    def __init__(self, server: Server, count: int) -> None:
        self.messages = 0
        command = [sys.executable, "-m", "loads.disk_load", str(server.port)]
        self._processes = [
            subprocess.Popen([*command, str(queue)], cwd=BENCHMARKS, stdout=subprocess.PIPE, text=True)
            for queue in range(count)
        ]

    def __enter__(self) -> Readers:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
            self.messages += int(process.communicate()[0] or 0)


def read(port: int, queue: int) -> None:
    """Pull a queue until its end or SIGTERM; print how many messages came."""
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
    offset = after = 0
    with _connect(port) as connection, connection.makefile("rb") as stream:
        while not stopped:
            connection.sendall(pull_frame("bench", queue, offset))
            answer = stream.read(_LENGTH.unpack(stream.read(4))[0])
            head = answer[4 : 4 + (_LENGTH.unpack_from(answer)[0] & 0xFFFFFF)]
            after = int(json.loads(head)["extFields"]["nextBeginOffset"])
            if after == offset:
                break
            offset = after
    print(offset)


def _connect(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _check(answer: bytes) -> None:
    if b'"code":0' not in answer[:160]:
        raise SystemExit(f"the server says no: {answer[:400]!r}")


if __name__ == "__main__":
    read(int(sys.argv[1]), int(sys.argv[2]))
