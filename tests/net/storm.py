"""Half-open connections, trickles and mutated requests against a server in a process of its own.

    python -m tests.net.storm [--frames N] [--connections N] [--seed SEED]

Says what memory and log have grown by when all of them are gone, and fails where that is much, where the log has a
traceback, or where an honest client was not served.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import socket
import struct
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.processes import Program, free_port
from tests.seed import seed_of_the_day
from tests.waiting import PATIENCE_SECONDS

from pyromq import speedups
from pyromq.remoting.command import FrameSplitter, encode_request
from pyromq.remoting.headers import MaxOffset, QueryConsumerOffset, RouteOfTopic

RECORDED = Path(__file__).parents[1] / "golden" / "frames"
BURST = 200  # frames over one connection
SETTLED_SECONDS = 2.0
# What may be left. All that ten thousand connections were made of is free again, but CPython gives memory back by the
# mebibyte, and a few objects stay in most of them; the next storm uses them again. Without the compiled parts asyncio's
# transports take twice as much.
MAX_MEMORY_MB = 20 if speedups.is_active else 35
RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is left of it, and the longest wait of the honest client in seconds."""

    memory_mb: float
    log_kb: float
    tracebacks: int
    longest_wait: float

    def __str__(self) -> str:
        return (
            f"memory +{self.memory_mb:.1f} MB, log {self.log_kb:.0f} kB, {self.tracebacks} tracebacks, "
            f"longest wait {self.longest_wait * 1000:.0f} ms"
        )


class Stormed:
    """A name server and a broker, and one honest client of the latter."""

    def __init__(self, folder: Path) -> None:
        self._name_server_port = free_port()
        self.port = free_port(0, 2)
        arguments = ("--namesrv-port", self._name_server_port, "--broker-port", self.port, "--data", folder / "data")
        command = [sys.executable, "-m", "pyromq", "serve", *map(str, arguments)]
        self._program = Program(command, "ready in", os.environ)
        self._program.wait_until_ready()
        self.ports = (self.port, self._name_server_port)
        self._honest = socket.create_connection(("127.0.0.1", self.port))
        self.longest_wait = 0.0
        self._memory_before = self._memory_mb()
        self._lines_before = len(self._program.output)

    def serve_honest(self) -> None:
        """Ask as an honest client does. Raises `TimeoutError` or `ConnectionError` where it is not answered."""
        begin = time.monotonic()
        self._honest.settimeout(PATIENCE_SECONDS)
        self._honest.sendall(encode_request(MaxOffset(topic="TBW102", queue_id=0), b"", opaque=1, flag=0))
        splitter, frames = FrameSplitter(), []
        while not frames:
            data = self._honest.recv(1 << 16)
            if not data:
                raise ConnectionError("the honest client was cut off")
            frames = splitter.split(data)
        self.longest_wait = max(self.longest_wait, time.monotonic() - begin)

    def end(self) -> Outcome:
        """Let it settle, stop it, and say what it has kept."""
        time.sleep(SETTLED_SECONDS)
        self.serve_honest()
        memory = self._memory_mb() - self._memory_before
        self._honest.close()
        self._program.stop()
        lines = self._program.output[self._lines_before :]
        tracebacks = sum("Traceback" in line for line in lines)
        return Outcome(memory, sum(map(len, lines)) / 1000, tracebacks, self.longest_wait)

    def _memory_mb(self) -> float:
        """Return what is the process's own; what it has touched of the log and other files is the page cache's."""
        _, resident, of_files, *_ = Path(f"/proc/{self._program.process.pid}/statm").read_text().split()
        return (int(resident) - int(of_files)) * resource.getpagesize() / 1e6


def storm(folder: Path, *, frames: int, connections: int, seed: int) -> Outcome:
    """Let it storm: half-open connections, which send a byte now and then, stay while mutated requests come and go."""
    random = Random(seed)
    stormed = Stormed(folder)
    half_open = [socket.create_connection(("127.0.0.1", random.choice(stormed.ports))) for _ in range(connections)]
    sound = _sound_requests()
    for sent in range(0, frames, BURST):
        _send_mutated(random, random.choice(stormed.ports), sound, min(BURST, frames - sent))
        for connection in random.sample(half_open, min(len(half_open), 100)):
            _trickle(connection)
        if sent % (10 * BURST) == 0:
            stormed.serve_honest()
    for connection in half_open:
        connection.close()
    return stormed.end()


def _sound_requests() -> list[bytes]:
    """Return requests of other clients, as they were recorded, and some of ours."""
    ours = [
        MaxOffset(topic="t", queue_id=0),
        QueryConsumerOffset(consumer_group="g", topic="t", queue_id=0),
        RouteOfTopic(topic="t"),
    ]
    recorded: dict[object, bytes] = {}
    for path in sorted(RECORDED.iterdir()):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in map(json.loads, lines):
                if line["role"] == "request":
                    recorded.setdefault((line["code"], line["serializer"]), bytes.fromhex(line["hex"]))
    return [*recorded.values(), *(encode_request(header, b"{}", opaque=7, flag=0) for header in ours)]


def _send_mutated(random: Random, port: int, sound: list[bytes], count: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(PATIENCE_SECONDS)
        try:
            connection.sendall(b"".join(_mutated(random, random.choice(sound)) for _ in range(count)))
            connection.shutdown(socket.SHUT_WR)
            if random.random() < 0.5:
                while connection.recv(1 << 16):
                    pass
            else:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        except OSError:
            pass  # cut off, which is what it deserves


def _mutated(random: Random, raw: bytes) -> bytes:
    """Change some bytes behind the length words, whose sum is right again in most cases."""
    changed = bytearray(raw)
    for _ in range(random.choice((1, 1, 2, 5))):
        position = random.randrange(8, len(changed))
        match random.randrange(4):
            case 0:
                changed[position] = random.randrange(256)
            case 1:
                del changed[position : position + random.randrange(1, 20)]
            case 2:
                changed[position:position] = random.randbytes(random.randrange(1, 20))
            case 3:
                changed[position:position] = changed[8:position]
        if len(changed) < 10:
            break
    if random.random() < 0.99:
        grown = len(changed) - len(raw)
        header = int.from_bytes(raw[5:8]) + grown
        if header >= 0:
            changed[:4] = (len(changed) - 4).to_bytes(4)
            changed[5:8] = min(header, len(changed) - 8).to_bytes(3)
    return bytes(changed)


def _trickle(connection: socket.socket) -> None:
    try:
        connection.send(b"\0")
    except OSError:
        pass


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=seed_of_the_day())
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as folder:
        outcome = storm(Path(folder), frames=options.frames, connections=options.connections, seed=options.seed)
    print(outcome)
    return 0 if outcome.memory_mb < MAX_MEMORY_MB and outcome.log_kb < 1000 and not outcome.tracebacks else 1


if __name__ == "__main__":
    sys.exit(main())
