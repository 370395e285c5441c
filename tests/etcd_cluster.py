"""A real etcd for tests: its members are processes of the test, on loopback, with folders below the test's own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest
from tests.processes import free_port
from tests.waiting import wait_until

MISSING = "needs etcd: Debian's package etcd-server (scripts/find-etcd installs it)"
# etcd's defaults; another pair changes how long a lease outlives the leader of etcd.
HEARTBEAT_MS, ELECTION_MS = 100, 1000


def need_etcd() -> None:
    """Skip the test on a machine without etcd."""
    if shutil.which("etcd") is None:
        pytest.skip(MISSING)


class Member:
    """One process of etcd, which keeps its ports and its folder when it is started again."""

    def __init__(self, folder: Path, name: str, **tls: Path) -> None:
        self.name = name
        self._folder = folder
        self.group: int | None = None  # group id of the process; None: that of the test
        self._tls = tls
        self.client_port, self._peer_port = free_port(), free_port()
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.client_port}"
        self.peer = f"http://127.0.0.1:{self._peer_port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, cluster: str) -> None:
        """Start the process, without waiting for it: a member waits for the others."""
        arguments = {
            "name": self.name,
            "data-dir": self._folder / self.name,
            "listen-client-urls": self.url,
            "advertise-client-urls": self.url,
            "listen-peer-urls": self.peer,
            "initial-advertise-peer-urls": self.peer,
            "initial-cluster": cluster,
            "heartbeat-interval": HEARTBEAT_MS,
            "election-timeout": ELECTION_MS,
            **{name.replace("_", "-"): path for name, path in self._tls.items()},
        }
        command = ["etcd", *(f"--{name}={value}" for name, value in arguments.items())]
        if "trusted_ca_file" in self._tls:
            command.append("--client-cert-auth")
        with (self._folder / f"{self.name}.log").open("ab") as log:
            environment = {"PATH": os.environ["PATH"], "ETCD_UNSUPPORTED_ARCH": "arm64"}
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, cwd=self._folder, group=self.group
            )

    @property
    def ports(self) -> tuple[int, int]:
        return self.client_port, self._peer_port

    def kill(self) -> None:
        """End the process as a crash does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self) -> None:
        """Stop the process without ending it: its ports still accept connections."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def ask(self, path: str, body: dict[str, object], *, seconds: float = 2.0) -> dict[str, object]:
        """Ask this member, whoever the leader is. For the test's own looks; plain HTTP only."""
        request = urllib.request.Request(f"{self.url}/v3/{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            return json.load(answer)


class EtcdCluster:
    """Members of one etcd. Leaving the context ends their processes."""

    def __init__(self, folder: Path, members: int = 1, **tls: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.members = [Member(folder, f"e{number}", **tls) for number in range(1, members + 1)]

    def __enter__(self) -> EtcdCluster:
        for member in self.members:
            self.start(member)
        if not self.members[0].url.startswith("https"):
            wait_until(lambda: self.leader() is not None)
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.kill()

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(member.url for member in self.members)

    def start(self, member: Member) -> None:
        member.start(",".join(f"{each.name}={each.peer}" for each in self.members))

    def leader(self) -> Member | None:
        """Return the member that leads, as all that run say; None if they know none, or not the same."""
        ids: dict[str, Member] = {}
        leaders = set()
        for member in self.members:
            with suppress(OSError, urllib.error.URLError):
                status = member.ask("maintenance/status", {})
                ids[status["header"]["member_id"]] = member
                leaders.add(status.get("leader", "0"))
        return ids.get(leaders.pop()) if len(leaders) == 1 else None

    def others(self, member: Member) -> list[Member]:
        return [each for each in self.members if each is not member]


def wait_for_leader(cluster: EtcdCluster) -> Member:
    """Return the member that leads, once there is one."""
    wait_until(lambda: cluster.leader() is not None)
    leader = cluster.leader()
    return leader if leader is not None else wait_for_leader(cluster)


def clock() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
