"""A name server and one broker, genuine or ours, behind the same few verbs, on free ports of the loopback."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.interop.peers.java import command, furnish
from tests.processes import Program, free_port


def genuine(
    home: Path, role: str, settings: Path, *, heap: str, options: Sequence[str] = (), jars: str = "servers"
) -> Program:
    """Start RocketMQ's own `namesrv` or `broker` with a file of settings; return it when it is ready."""
    main = f"org.apache.rocketmq.{role}.{role.capitalize()}Startup"
    arguments = [*command(home, jars, heap, main), "-c", str(settings)]
    arguments[1:1] = options
    program = Program(arguments, "boot success", {**os.environ, "ROCKETMQ_HOME": str(home)})
    program.wait_until_ready()
    return program


class GenuineServers:
    """RocketMQ 4.9.7 or 5.3.3: `broker-a` of `DefaultCluster` with default store settings on the folder `store`.

    `settings` are the broker's, by RocketMQ's names; `options` are Java's.
    """

    def __init__(
        self, folder: Path, store: Path, *, major: int = 4, options: Sequence[str] = (), **settings: str | int
    ) -> None:
        self._jars = "servers" if major == 4 else f"servers{major}"
        self.store = store
        self._options = options
        self._settings = settings
        self._home = furnish(folder)
        self._namesrv_port = free_port()
        self._broker_port = free_port(-2, 1)  # it also listens two below and, for replicas, one above
        self._programs: list[Program] = []

    @property
    def namesrv(self) -> str:
        return f"127.0.0.1:{self._namesrv_port}"

    @property
    def broker(self) -> str:
        return f"127.0.0.1:{self._broker_port}"

    def start(self) -> None:
        self._run("namesrv", "128m", f"listenPort={self._namesrv_port}\nkvConfigPath={self._home}/kv.json\n")
        self._run("broker", "512m", self._broker_settings())

    def stop(self) -> None:
        """Clean end of the broker; the name server, which keeps nothing, is just ended."""
        if self._programs:
            self._programs.pop().stop()
        self.kill()

    def kill(self) -> None:
        while self._programs:
            self._programs.pop().kill()

    def _run(self, role: str, heap: str, settings: str) -> None:
        path = self._home / f"{role}.properties"
        path.write_text(settings)
        self._programs.append(genuine(self._home, role, path, heap=heap, options=self._options, jars=self._jars))

    def _broker_settings(self) -> str:
        values = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": "broker-a",
            "brokerId": 0,
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "listenPort": self._broker_port,
            "haListenPort": self._broker_port + 1,
            "namesrvAddr": self.namesrv,
            "storePathRootDir": self.store,
            "autoCreateTopicEnable": "true",
            **self._settings,
        }
        return "".join(f"{name}={value}\n" for name, value in values.items())


class OurServers:
    """`pyromq serve` on the data folder whose store is `store`. `settings` are the broker's, by RocketMQ's names.

    `options` are more of the command line's.
    """

    def __init__(self, data: Path, *, options: Sequence[str | Path] = (), **settings: str | int) -> None:
        self._data = data
        self._options = options
        self._settings = settings
        self.store = data
        self._namesrv_port = free_port()
        self._broker_port = free_port(-2, 1)
        self._program: Program | None = None

    @property
    def namesrv(self) -> str:
        return f"127.0.0.1:{self._namesrv_port}"

    @property
    def broker(self) -> str:
        return f"127.0.0.1:{self._broker_port}"

    def start(self) -> None:
        if self._settings:
            file = self._data / "config" / "broker.properties"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(f"{name}={value}\n" for name, value in self._settings.items()))
        arguments = [
            *(sys.executable, "-u", "-m", "pyromq", "serve", "--data", self._data),
            *("--namesrv-port", str(self._namesrv_port), "--broker-port", str(self._broker_port)),
            *self._options,
        ]
        self._program = Program(arguments, "ready in", os.environ)
        self._program.wait_until_ready()

    def stop(self) -> None:
        """Clean end. Raises `AssertionError` with the output if the exit code tells of trouble."""
        if self._program:
            code = self._program.stop()
            assert code == 0, f"serve ended with {code}:\n" + "".join(self._program.output[-50:])
            self._program = None

    def kill(self) -> None:
        if self._program:
            self._program.kill()
            self._program = None


Servers = GenuineServers | OurServers
