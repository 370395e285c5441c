"""Replicas, name servers and members of etcd as processes of this machine: started, killed, stopped, cut off.

Brokers run as an operator runs them, `pyromq serve broker --etcd ...`. Without members of etcd there is one broker
alone, as a check of the rig itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from base64 import b64decode, b64encode
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from tests.etcd_cluster import EtcdCluster, Member
from tests.failover.history import Accident, Began, History
from tests.failover.links import Links
from tests.processes import Program, free_port

CLUSTER, SET = "DefaultCluster", "orders"
STATE_KEY = f"/pyromq/{CLUSTER}/{SET}/state"
CHECK_SECONDS = 0.05  # between two looks at the registry
# Small files, so that there are many; checks of transactions soon after a lost decision.
SETTINGS = {
    "mappedFileSizeCommitLog": 4 << 20,
    "mappedFileSizeConsumeQueue": 60_000,
    "flushConsumerOffsetInterval": 500,
    "transactionTimeOut": 2_000,
    "transactionCheckInterval": 1_000,
}


class Server:
    """A server's process, which keeps its command line when it is started again."""

    def __init__(self, name: str, command: list[str], ports: tuple[int, ...]) -> None:
        self.name, self.ports = name, ports
        self.group: int | None = None
        self._command = [sys.executable, "-m", "pyromq", *command]
        self._program: Program | None = None
        self.outputs: list[list[str]] = []  # what each process printed

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.ports[0]}"

    @property
    def runs(self) -> bool:
        return self._program is not None and self._program.process.poll() is None

    def pids(self) -> dict[str, int]:
        """Return the running process's id as "broker", and that of the console it runs, if any, as "console"."""
        if self._program is None or not self.runs:
            return {}
        pid = self._program.process.pid
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except (FileNotFoundError, ProcessLookupError):  # another thread has just killed the process
            return {}
        return {"broker": pid} | ({"console": int(children[0])} if children else {})

    async def start(self) -> None:
        """Start the process, and return when it serves."""
        self._program = program = Program(self._command, "ready in", os.environ, group=self.group)
        self.outputs.append(program.output)
        await asyncio.to_thread(program.wait_until_ready)

    async def kill(self) -> None:
        """End the process as a crash does."""
        if self._program is not None:
            await asyncio.to_thread(self._program.kill)

    async def end(self) -> int:
        """End the process as an operator does. Return its exit code."""
        if self._program is None or not self.runs:
            return 0
        self.go_on()
        return await asyncio.to_thread(self._program.stop)

    def stop(self) -> None:
        """Stop the process without ending it: its ports still accept connections."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self._program is not None and self.runs:
            self._program.process.send_signal(number)


class Machines:
    """All processes of one set. An async context manager; leaving it ends them all.

    `cuttable`: links between them can be cut (`links`), which needs root and nft. `also`: address of a further name
    server, at which the replicas register.
    """

    def __init__(
        self,
        folder: Path,
        *,
        replicas: int = 3,
        members: int = 3,
        cuttable: bool = False,
        also: str = "",
        **settings: object,
    ) -> None:
        self.history = History()
        self._folder = folder
        self._also = also
        self.etcd = EtcdCluster(folder / "etcd", members) if members else None
        self.links = Links() if cuttable else None
        port = free_port()
        self.name_server = Server(
            "n1", ["serve", "namesrv", "--namesrv-port", str(port), "--data", str(folder)], (port,)
        )
        file = folder / "broker.conf"
        file.write_text("".join(f"{name}={value}\n" for name, value in {**SETTINGS, **settings}.items()))
        self.replicas = [self._replica(number, folder, file) for number in range(1, replicas + 1)]
        self._stack = AsyncExitStack()

    def _replica(self, number: int, folder: Path, file: Path) -> Server:
        port = free_port(1, -2)
        command = ["serve", "broker", "--broker-name", SET, "--broker-port", str(port), "--config", str(file)]
        command += [
            "--data",
            str(folder / f"b{number}"),
            "--namesrv",
            ";".join(filter(None, [self.namesrv, self._also])),
        ]
        if self.etcd is not None:
            command += ["--etcd", ",".join(self.etcd.urls), "--replica", str(number)]
        return Server(f"b{number}", command, (port, port + 1, port - 2))

    async def __aenter__(self) -> Machines:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _start(self) -> None:
        if self.links is not None:
            self._stack.enter_context(self.links)
            for each in (*self.replicas, self.name_server, *self.members):
                each.group = self.links.add(each.name, each.ports)
        if self.etcd is not None:
            self._stack.enter_context(self.etcd)
        self._stack.callback(self._save_outputs)
        for server in (self.name_server, *self.replicas):
            self._stack.push_async_callback(server.kill)
        await self.name_server.start()
        await asyncio.gather(*(replica.start() for replica in self.replicas))
        if self.etcd is not None:
            watching = asyncio.create_task(self._watch_masters())
            self._stack.push_async_callback(_cancelled, watching)
            await self.until(lambda: self.master is not None)

    @property
    def namesrv(self) -> str:
        return self.name_server.address

    @property
    def members(self) -> list[Member]:
        return self.etcd.members if self.etcd is not None else []

    @property
    def master(self) -> Server | None:
        """The replica that the registry last named as master; alone: the broker."""
        if self.etcd is None:
            return self.replicas[0]
        record = self._record or {}
        number = record.get("master")
        return self.replicas[number - 1] if number else None

    @property
    def in_sync(self) -> int:
        """The number of replicas in the set's list, as last seen; 0 before the first record."""
        return len((self._record or {}).get("inSync", ())) if self.etcd is not None else 1

    @property
    def followers(self) -> list[Server]:
        return [replica for replica in self.replicas if replica is not self.master]

    def note(self, what: str, whom: str = "") -> None:
        """Write an accident into the history."""
        self.history.write(Accident(what, time.monotonic(), whom))

    def _save_outputs(self) -> None:
        """Write what each server printed in all its lives to a file beside its folder."""
        for server in (self.name_server, *self.replicas):
            lives = ["".join(output) for output in server.outputs]
            (self._folder / f"{server.name}.log").write_text("--- started\n".join(["", *lives]))

    async def heal(self) -> None:
        """Undo all accidents: nothing is cut, all processes run."""
        self.note("heal")
        if self.links is not None:
            self.links.heal()
        for member in self.members:
            if member.process is None and self.etcd is not None:
                self.etcd.start(member)
            member.go_on()
        for server in (self.name_server, *self.replicas):
            server.go_on()
            if not server.runs:
                await server.start()

    async def until(self, condition, *, seconds: float = 60.0) -> None:
        """Return when the condition holds. Raises `TimeoutError` with what the replicas printed last."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                ends = [
                    f"--- {each.name}\n" + "".join(each.outputs[-1][-20:]) for each in self.replicas if each.outputs
                ]
                raise TimeoutError(f"after {seconds} s; record {self._record}\n" + "\n".join(ends))
            await asyncio.sleep(0.05)

    _record: dict | None = None

    async def _watch_masters(self) -> None:
        epoch = 0
        while True:
            record = await asyncio.to_thread(self._read_record)
            if record is not None and record["epoch"] >= epoch:
                self._record = record
                if record["epoch"] > epoch and record["master"]:
                    epoch = record["epoch"]
                    address = self.replicas[record["master"] - 1].address
                    self.history.write(Began(epoch, address, time.monotonic()))
            await asyncio.sleep(CHECK_SECONDS)

    def _read_record(self) -> dict | None:
        """Ask any member, not for the newest state: this process must not depend on etcd's elections."""
        key = b64encode(STATE_KEY.encode()).decode()
        for member in random.sample(self.members, len(self.members)):
            with suppress(OSError, ValueError):
                if found := member.ask("kv/range", {"key": key, "serializable": True}, seconds=0.5).get("kvs"):
                    return json.loads(b64decode(found[0]["value"]))
        return None


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
