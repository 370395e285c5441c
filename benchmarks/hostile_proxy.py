"""What one hostile client can do to the others at the gRPC port: how long they wait, and how much memory it takes.

    python hostile_proxy.py [--only WORD] [--size SHARE]

A fresh `pyromq proxy` on core 0 for each row, before one broker. An honest client sends a heartbeat each 5 ms over a
connection of its own (core 1) while a stranger does what the row says. The columns are those of `hostile.py`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event

from fairness import CLIENT_CORE
from hostile import AFTER_SECONDS, Memory, Outcome, edges
from loads.grpc_rows import BEAT, END_STREAM, HEADERS, HEARTBEAT, ROWS, TOPIC, call, greeted, window
from loads.hostile_rows import Row, Stranger
from servers import Server, free_port, our_server, pinned, process_of, wait_for_line

GOAL = "goal: most 50 ms, +100 MB"
EVERY_SECONDS = 0.005
FIRST_CALLS = 20  # are not counted: the proxy looks up the client's rights
SERVED_SECONDS = 10.0


class Honest:
    """A client that calls again and again, in a process of its own: it must not wait for the stranger's Python."""

    def __init__(self, server: Server) -> None:
        self._ended = multiprocessing.Event()
        self._found, found = multiprocessing.Pipe(duplex=False)
        self._process = multiprocessing.Process(target=call_again, args=(server, self._ended, found))
        self._process.start()

    def end(self) -> tuple[list[tuple[float, float]], bool]:
        """Return what each call waited, for how long the server ran meanwhile (ms), and whether all were answered."""
        self._ended.set()
        found: tuple[list[tuple[float, float]], bool] = self._found.recv()
        self._process.join()
        return found


def call_again(server: Server, ended: Event, found: Connection) -> None:
    stranger = Stranger(server.port, 0)
    connection, stream = greeted(stranger), 1
    connection.sendall(window(0, 1 << 30))  # for all answers
    connection.settimeout(SERVED_SECONDS)
    waited: list[tuple[float, float]] = []
    while not ended.wait(EVERY_SECONDS):
        begun, ran = time.monotonic(), server.cpu_seconds()
        connection.sendall(call(stream, BEAT, HEARTBEAT))
        if not until_answered(connection, stream):
            found.send((waited, False))
            return
        waited.append(((time.monotonic() - begun) * 1000, (server.cpu_seconds() - ran) * 1000))
        stream += 2
    found.send((waited[FIRST_CALLS:], True))
    stranger.leave()


def until_answered(connection, stream: int) -> bool:  # type: ignore[no-untyped-def]
    """Read until the trailers of a stream; False if the connection ends."""
    data = b""
    while True:
        try:
            more = connection.recv(1 << 16)
        except OSError:
            return False
        if not more:
            return False
        data += more
        while len(data) >= 9 and len(data) >= 9 + (size := int.from_bytes(data[:3], "big")):
            if data[3] == HEADERS and data[4] & END_STREAM and int.from_bytes(data[5:9], "big") == stream:
                return True
            data = data[9 + size :]


def is_served(port: int) -> bool:
    """Whether a new client's call is answered."""
    stranger = Stranger(port, 0)
    connection = greeted(stranger)
    connection.settimeout(SERVED_SECONDS)
    connection.sendall(call(1, BEAT, HEARTBEAT))
    served = until_answered(connection, 1)
    stranger.leave()
    return served


def play(row: Row, size: float) -> Outcome:
    port = free_port()
    with (
        our_server(core=CLIENT_CORE, arguments=("--grpc-port", "0")) as broker,
        tempfile.TemporaryDirectory(prefix="pyromq-bench-") as folder,
    ):
        command = [sys.executable, "-m", "pyromq", "proxy", "-n", str(broker.namesrv), "--port", str(port)]
        with process_of([*pinned(0), *command, "--data", folder], stop=signal.SIGKILL) as process:
            server = Server(port, process.pid, wait_for_line(process, "ready in"))
            make_topic(str(broker.namesrv))
            honest = Honest(server)
            time.sleep(1)
            memory = Memory(server)
            stranger = Stranger(port, 0, size)
            row.act(stranger)
            time.sleep(row.settle_seconds)
            served = is_served(port)
            stranger.leave()
            time.sleep(AFTER_SECONDS)
            peak, left = memory.end()
            waited, was_served = honest.end()
    waits, ran = zip(*waited, strict=True)
    return Outcome(*edges(list(waits)), *edges(list(ran)), peak, left, served and was_served)


def make_topic(namesrv: str) -> None:
    from pyromq import Admin

    with Admin(namesrv) as admin:
        admin.create_topic(TOPIC)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose name has this word")
    parser.add_argument("--size", type=float, default=1.0, help="a share of what each row sends")
    options = parser.parse_args()
    logs = os.memfd_create("logs")
    os.dup2(logs, sys.stderr.fileno())
    os.sched_setaffinity(0, {CLIENT_CORE})
    print(f"{GOAL}; in brackets: for how long the proxy ran meanwhile\n")
    print("| one client sends | others waited, p99 | most | memory | after | log | served |")
    print("|---|--:|--:|--:|--:|--:|---|")
    for row in ROWS:
        if options.only in row.name:
            logged = os.fstat(logs).st_size
            outcome = play(row, options.size)
            print(outcome.line(row.name, os.fstat(logs).st_size - logged), flush=True)


if __name__ == "__main__":
    main()
