"""Sets of two replicas under comparison: the processes of a set, and what its etcd and its brokers say of it.

A set has a member of etcd and a name server of its own. The first replica is the master. Master on core 0; all others
share core 1 with the load generator.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import sys
import time
import urllib.request
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from servers import (
    SERVER_CORE,
    Server,
    folder_for_now,
    free_port,
    pinned,
    port_with_neighbours,
    process_of,
    wait_for_line,
)

FOLLOWER_CORE = 1
SET = "bench"
STATE_KEY = f"/pyromq/DefaultCluster/{SET}/state"
SET_SECONDS = 60.0
CHECK_SECONDS = 0.05
_RUNTIME_INFO = 28
_LENGTH = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class ReplicaSet:
    """A set of two."""

    etcd: str  # URL
    master: Server
    follower: Server

    def stop_follower(self) -> None:
        """Stop the follower's process without ending it. The master goes on alone."""
        os.kill(self.follower.pid, signal.SIGSTOP)
        wait_until(lambda: _in_sync(self.etcd) == 1, "the master goes on alone")

    def continue_follower(self) -> None:
        os.kill(self.follower.pid, signal.SIGCONT)


@contextlib.contextmanager
def set_of_two(settings: Mapping[str, object] | None = None) -> Iterator[ReplicaSet]:
    """A set whose replicas are in sync."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(folder_for_now())
        etcd = stack.enter_context(_etcd(folder))
        common = ["--namesrv", stack.enter_context(_name_server(folder)), "--etcd", etcd]
        common += ["--config", str(folder / "broker.conf")]
        lines = [f"{name}={value}\n" for name, value in (settings or {}).items()]
        (folder / "broker.conf").write_text("".join(lines))
        master = stack.enter_context(_replica(folder, 1, common, core=SERVER_CORE))
        wait_until(lambda: _in_sync(etcd) == 1, "the first replica is the master")
        follower = stack.enter_context(_replica(folder, 2, common, core=FOLLOWER_CORE))
        wait_until(lambda: _in_sync(etcd) == 2, "both replicas are in sync")
        yield ReplicaSet(etcd, master, follower)


@contextlib.contextmanager
def master_of_two() -> Iterator[Server]:
    """The master of a set of two, which confirms what both have."""
    with set_of_two({"minInSyncReplicas": 2}) as replicas:
        yield replicas.master


def _in_sync(etcd: str) -> int:
    """Return how many replicas are in sync; 0 without a master."""
    query = json.dumps({"key": b64encode(STATE_KEY.encode()).decode()}).encode()
    with urllib.request.urlopen(f"{etcd}/v3/kv/range", query, timeout=2) as answer:
        found = json.load(answer).get("kvs", ())
    record = json.loads(b64decode(found[0]["value"])) if found else {}
    return len(record["inSync"]) if record.get("master") else 0


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + SET_SECONDS
    while not is_so():
        if time.monotonic() > until:
            raise SystemExit(f"after {SET_SECONDS:g} s not yet: {what}")
        time.sleep(CHECK_SECONDS)


def log_end(server: Server) -> int:
    """Return where the log of a broker ends."""
    header = json.dumps({"code": _RUNTIME_INFO, "flag": 0, "language": "JAVA", "opaque": 1, "version": 401}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as connection, connection.makefile("rb") as stream:
        connection.sendall(_LENGTH.pack(4 + len(header)) + _LENGTH.pack(len(header)) + header)
        size, head = struct.unpack(">II", stream.read(8))
        answer = stream.read(size - 4)
    return int(json.loads(answer[head & 0xFFFFFF :])["table"]["commitLogMaxOffset"])


@contextlib.contextmanager
def _replica(folder: Path, number: int, common: list[str], *, core: int) -> Iterator[Server]:
    port = port_with_neighbours()
    command = [
        *(*pinned(core), sys.executable, "-m", "pyromq", "serve", "broker", "--broker-name", SET, *common),
        *("--broker-port", str(port), "--replica", str(number), "--data", str(folder / f"replica-{number}")),
    ]
    with process_of(command) as process:
        yield Server(port, process.pid, wait_for_line(process, "ready in"))


@contextlib.contextmanager
def _name_server(folder: Path) -> Iterator[str]:
    port = free_port()
    command = [*pinned(FOLLOWER_CORE), sys.executable, "-m", "pyromq", "serve", "namesrv"]
    command += ["--namesrv-port", str(port), "--data", str(folder / "namesrv")]
    with process_of(command) as process:
        wait_for_line(process, "ready in")
        yield f"127.0.0.1:{port}"


@contextlib.contextmanager
def _etcd(folder: Path) -> Iterator[str]:
    if not shutil.which("etcd"):
        raise SystemExit("needs etcd: Debian's package etcd-server (scripts/find-etcd installs it)")
    url, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    arguments = {"name": "e1", "data-dir": folder / "etcd", "listen-client-urls": url, "advertise-client-urls": url}
    arguments |= {"listen-peer-urls": peer, "initial-advertise-peer-urls": peer, "initial-cluster": f"e1={peer}"}
    command = [*pinned(FOLLOWER_CORE), "etcd", *(f"--{name}={value}" for name, value in arguments.items())]
    with process_of(command, quiet=True):
        wait_until(lambda: _answers(url), "etcd answers")
        yield url


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=1) as answer:
            return b"true" in answer.read()
    except OSError:
        return False
