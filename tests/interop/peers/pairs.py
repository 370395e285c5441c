"""A master and a slave of one broker name, one of them genuine, and their log files."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.interop.peers.java import furnish
from tests.interop.peers.servers import GenuineServers, OurServers, Servers, genuine
from tests.processes import Program, free_port

from pyromq.clock import SystemClock
from pyromq.names import SYSTEM_GROUP_PREFIX
from pyromq.net.channel import connect
from pyromq.remoting.bodies import ConsumerOffsetTable, DelayOffsetTable, decode_body
from pyromq.remoting.command import Response
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.header import Header
from pyromq.remoting.headers import AllConsumerOffsets, AllDelayOffsets, AllGroups, AllTopics

FILE_BYTES = 1 << 20  # size of log files: small, so that messages fill several of them
WAIT_SECONDS = 60.0
SLAVE = {"brokerRole": "SLAVE", "brokerId": 1, "brokerName": "broker-a", "mappedFileSizeCommitLog": FILE_BYTES}
# Half messages without a decision are checked soon.
MASTER = {
    "brokerRole": "SYNC_MASTER",
    "mappedFileSizeCommitLog": FILE_BYTES,
    "transactionCheckInterval": 2_000,
    "transactionTimeOut": 1_000,
}


def written(file: Path, settings: dict[str, str | int | Path]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return file


class Pair:
    """A master with its name server, and a slave that is started and stopped. The master runs from the start."""

    def __init__(self, folder: Path, *, ours: str) -> None:
        """`ours` is "master" or "slave"; the other one is genuine."""
        self._folder = folder
        self._ours = ours
        self.slave_store = folder / "slave"
        self.slave: Program | None = None
        self.slave_port = free_port(-2, 1)
        self.master: Servers
        if ours == "master":
            options = ["--config", written(folder / "master.properties", dict(MASTER))]
            (folder / "master").mkdir()
            self.master = OurServers(folder / "master", options=options)
        else:
            self.master = GenuineServers(folder / "genuine", folder / "master", **MASTER)
        self.master.start()

    def start_slave(self) -> None:
        if self._ours == "slave":
            settings = written(self._folder / "slave.properties", dict(SLAVE))
            self.slave = Program(
                [
                    *(sys.executable, "-u", "-m", "pyromq", "serve", "broker", "--namesrv", self.master.namesrv),
                    *("--broker-port", str(self.slave_port), "--data", self.slave_store, "--config", settings),
                    *("--log-level", "info"),
                ],
                "ready in",
                os.environ,
            )
            self.slave.wait_until_ready()
            return
        home = furnish(self._folder / "java-slave")
        more = {
            "brokerClusterName": "DefaultCluster",
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "listenPort": self.slave_port,
            "namesrvAddr": self.master.namesrv,
            "storePathRootDir": self.slave_store,
            "haSendHeartbeatInterval": 1_000,
        }
        self.slave = genuine(home, "broker", written(home / "slave.properties", SLAVE | more), heap="512m")

    def stop_slave(self) -> None:
        assert self.slave is not None
        self.slave.stop()
        self.slave = None

    def kill_slave(self) -> None:
        assert self.slave is not None
        self.slave.kill()
        self.slave = None

    def suspend_slave(self) -> None:
        assert self.slave is not None
        self.slave.process.send_signal(signal.SIGSTOP)

    def resume_slave(self) -> None:
        assert self.slave is not None
        self.slave.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        if self.slave is not None:
            self.slave.kill()
        self.master.kill()

    def differences(self) -> list[str]:
        """Return the names of log files that are not equal, byte for byte; [] if the slave has the master's log."""
        master, slave = log_files(self.master.store), log_files(self.slave_store)
        wanted = {name: data for name, data in master.items() if slave and name >= min(slave)} or master
        return [name for name in sorted({*wanted, *slave}) if wanted.get(name) != slave.get(name)]

    def unlike_tables(self) -> dict[str, tuple[object, object]]:
        """Return the tables of the master and of the slave that are not equal, by the name of the request.

        Progress of internal groups is left out: a slave of ours finds it in the log. Progress of delay levels is read
        from the slave's file, since a Java slave reads the file only when it starts.
        """
        slave = f"127.0.0.1:{self.slave_port}"
        pairs = {
            type(ask).__name__: (table_at(self.master.broker, ask), table_at(slave, ask))
            for ask in (AllTopics(), AllGroups(), AllConsumerOffsets())
        }
        file = self.slave_store / "config" / "delayOffset.json"
        kept = json.loads(file.read_text())["offsetTable"] if file.exists() else {}
        levels = table_at(self.master.broker, AllDelayOffsets())
        assert isinstance(levels, DelayOffsetTable)
        pairs["AllDelayOffsets"] = (levels.offsets, {int(level): offset for level, offset in kept.items()})
        return {name: tables for name, tables in pairs.items() if tables[0] != tables[1]}

    def wait_until_equal(self) -> None:
        until(lambda: not self.differences(), lambda: f"log files differ: {self.differences()}")


def ask_broker(broker: str, ask: Header) -> Response:
    """Return a broker's response, which must be a success."""

    async def answer() -> Response:
        channel = await connect(broker, Dispatcher(), SystemClock())
        try:
            return (await channel.call(ask, timeout=10)).check()
        finally:
            await channel.close()

    return asyncio.run(answer())


def table_at(broker: str, ask: Header) -> object:
    """Return the table that a broker answers a request with."""
    table = decode_body(ask.reply_body, ask_broker(broker, ask).body)
    if isinstance(table, ConsumerOffsetTable):
        own = {key: each for key, each in table.offsets.items() if SYSTEM_GROUP_PREFIX not in key}
        return ConsumerOffsetTable(offsets=own)
    return table


def log_files(store: Path) -> dict[str, bytes]:
    """Return the log files by name, without those that were only made in advance."""
    files = sorted((store / "commitlog").glob("*")) if store.exists() else []
    contents = {file.name: file.read_bytes() for file in files}
    return {name: data for name, data in contents.items() if any(data)}


def until(condition: Callable[[], bool], fault: Callable[[], str]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, fault()
        time.sleep(0.2)
