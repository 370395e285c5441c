"""The proxy beside the genuine one of RocketMQ 5.3.3 in local mode: sends, and receives of 32 messages.

    proxy.py [--seconds 8] [--rounds 3] [--jars FOLDER]

pyromq's name server, broker and proxy share core 0. Java's processes may use both cores. The load, Go's official stubs
on one connection, has core 1. The jars are those that `make interop` downloads.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import median

from generator import GENERATOR_CORE
from pyromq import Admin, Unavailable
from report import print_machine, progress
from servers import folder_for_now, free_port, java_proxy, our_server, pinned

JARS = Path(__file__).parents[1] / "tests" / "interop" / "java" / "servers5" / "target" / "lib"
CLIENT = "github.com/apache/rocketmq-clients/golang/v5 v5.1.3"
KINDS = ("send", "receive", "receive and acknowledge")
FILLED = 3.0  # times the measured seconds that a topic is filled before its receives

Proxy = Callable[[], AbstractContextManager[tuple[str, str]]]


@contextlib.contextmanager
def our_proxy() -> Iterator[tuple[str, str]]:
    """Yield name server and proxy."""
    port = free_port()
    with our_server(arguments=("--grpc-port", str(port))) as server:
        assert server.namesrv is not None
        yield server.namesrv, f"127.0.0.1:{port}"


def built_load(folder: Path) -> Path:
    """Return the load's program. Raises `SystemExit` where Go or the client cannot be had."""
    if shutil.which("go") is None:
        raise SystemExit("no go in PATH: https://go.dev/dl")
    shutil.copy(Path(__file__).parent / "loads" / "grpc" / "main.go", folder)
    (folder / "go.mod").write_text(f"module load\n\ngo 1.22\n\nrequire {CLIENT}\n")
    for command in (["go", "mod", "tidy"], ["go", "build", "-o", "load", "."]):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} fails: {done.stderr[-500:]}")
    return folder / "load"


def rate(load: Path, address: str, kind: str, topic: str, seconds: float) -> float:
    """Return the messages a second of one run."""
    verb = kind.split()[0]
    environment = {**os.environ, "GOMAXPROCS": "1"} | ({"ACK": "1"} if "acknowledge" in kind else {})
    command = [*pinned(GENERATOR_CORE), str(load), address, verb, topic, str(seconds)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the load fails: {done.stderr[-500:]}")
    return float(done.stdout)


def measured(start: Proxy, load: Path, seconds: float) -> dict[str, float]:
    """Return the rate of each kind at a new server."""
    rates = {}
    with start() as (namesrv, address):
        with Admin(namesrv) as admin:
            while True:
                with contextlib.suppress(Unavailable):  # Java's broker registers after its start
                    for kind in KINDS:
                        admin.create_topic(kind.replace(" ", "-"), 4)
                    break
                time.sleep(0.2)
        rate(load, address, "send", "send", 3)  # warms up
        rates["send"] = rate(load, address, "send", "send", seconds)
        for kind in KINDS[1:]:
            topic = kind.replace(" ", "-")
            rate(load, address, "send", topic, seconds * FILLED)
            rates[kind] = rate(load, address, kind, topic, seconds)
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jars", type=Path, default=JARS)
    arguments = parser.parse_args()
    print_machine()
    if not arguments.jars.exists():
        raise SystemExit(f"{arguments.jars} does not exist; `make interop` downloads the jars of RocketMQ 5.3.3")
    found: dict[str, list[dict[str, float]]] = {"ours": [], "java": []}
    with folder_for_now() as folder:
        load = built_load(folder)
        for number in range(arguments.rounds):
            for name, start in (("ours", our_proxy), ("java", java_proxy(arguments.jars))):
                progress(f"round {number + 1}: {name}")
                found[name].append(measured(start, load, arguments.seconds))
    print("| messages a second, median | pyromq, one core | Java 5.3.3, both cores | ratio |\n|---|--:|--:|--:|")
    for kind in KINDS:
        ours, java = (median(each[kind] for each in found[name]) for name in ("ours", "java"))
        print(f"| {kind} | {ours:,.0f} | {java:,.0f} | {ours / java:.2f} |")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
