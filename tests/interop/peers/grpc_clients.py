"""RocketMQ 5's clients of Java, Node, Go and Python: a small program each, with the same commands, run at a proxy."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.interop.peers.java import PROJECT, build, furnish
from tests.processes import Program

GO_CLIENT = "github.com/apache/rocketmq-clients/golang/v5 v5.1.3"
NODE_CLIENT = "rocketmq-client-nodejs@1.0.8"
COMMAND_SECONDS = 120
_DOWNLOAD_SECONDS = 300
_SOURCES = Path(__file__).parent


class ClientMissing(Exception):
    """A client or its tools cannot be had here; the text says which."""


@dataclass(frozen=True, slots=True)
class GrpcClient:
    """A client's program at a proxy. `home` takes the client's log files; `environment` may name an account."""

    program: Sequence[str]
    home: Path
    proxy: str
    environment: dict[str, str] = field(default_factory=dict)

    def run(self, *arguments: str | int) -> list[dict[str, Any]]:
        """Return the JSON lines that the command prints. Raises `RuntimeError` with what a failing one says."""
        done = subprocess.run(
            self._command(arguments),
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{arguments} fails:\n{done.stdout[-1000:]}{done.stderr[-30_000:]}")
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    def start(self, *arguments: str | int) -> Program:
        """Begin a command that goes on. It is ready with the first JSON line that it prints."""
        return Program(self._command(arguments), "{", self._environment())

    def _command(self, arguments: Sequence[str | int]) -> list[str]:
        return [*self.program, self.proxy, *map(str, arguments)]

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "HOME": str(self.home), "user.home": str(self.home), **self.environment}


def refusal_of(run: Callable[..., list[dict[str, Any]]], *arguments: str | int, **options: str | None) -> str:
    """Return what the client says of a refusal: in its answer, or where it does not start."""
    try:
        (answer,) = run(*arguments, **options)
    except RuntimeError as error:
        return str(error)
    return str(answer["error"])


def java(home: Path) -> list[str]:
    """Return the command line of Java's client, which uses TLS. Raises `JavaMissing`."""
    build()
    furnish(home)
    target = PROJECT / "grpc" / "target"
    classes = f"{target / 'classes'}:{target / 'lib'}/*"
    options = ("-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Duser.home={home}")
    return ["java", *options, "-cp", classes, "pyromq.interop.GrpcDriver"]


def node(home: Path) -> list[str]:
    """Return the command line of Node's client, which speaks plain. Raises `ClientMissing`."""
    folder = _prepared(home / "node", "node", ["npm", "install", "--no-audit", "--no-fund", NODE_CLIENT])
    return ["node", str(folder / "driver.js")]


def go(home: Path) -> list[str]:
    """Return the command line of Go's client, which uses TLS. Raises `ClientMissing`."""
    (home / "go5").mkdir()
    (home / "go5" / "go.mod").write_text(f"module client\n\ngo 1.20\n\nrequire {GO_CLIENT}\n")
    folder = _prepared(home / "go5", "go5", ["go", "mod", "tidy"])
    built = _run(["go", "build", "-o", "client", "."], folder)
    assert built.returncode == 0, built.stderr
    return [str(folder / "client")]


def python(home: Path) -> list[str]:
    """Return the command line of the official Python client, which speaks plain. Raises `ClientMissing`."""
    if find_spec("rocketmq") is None:
        raise ClientMissing("rocketmq-python-client is not installed")
    return [sys.executable, str(_SOURCES / "python5" / "driver.py")]


CLIENTS: dict[str, Callable[[Path], list[str]]] = {"java": java, "node": node, "go": go, "python": python}


def _prepared(folder: Path, sources: str, command: list[str]) -> Path:
    """Copy a program's sources to `folder` and download its client."""
    if shutil.which(command[0]) is None:
        raise ClientMissing(f"{command[0]} is not installed")
    shutil.copytree(_SOURCES / sources, folder, dirs_exist_ok=True)
    try:
        done = _run(command, folder)
    except subprocess.TimeoutExpired as error:
        raise ClientMissing(f"{command[0]} does not get the client within {_DOWNLOAD_SECONDS} s") from error
    if done.returncode:
        raise ClientMissing(f"{' '.join(command)} fails: {done.stderr[-500:]}")
    return folder


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_DOWNLOAD_SECONDS, check=False)


class OurProxy:
    """`pyromq proxy` before the name servers `namesrv`, a context manager; `address` is known inside."""

    def __init__(self, namesrv: str, data: Path, *options: str | Path) -> None:
        arguments = ("proxy", "-n", namesrv, "--port", "0", "--data", str(data), *map(str, options))
        self._program = Program([sys.executable, "-u", "-m", "pyromq", *arguments], "ready in", os.environ)

    def __enter__(self) -> OurProxy:
        self._program.wait_until_ready()
        return self

    def __exit__(self, *_: object) -> None:
        code = self._program.stop()
        assert code == 0, f"proxy ended with {code}:\n" + "".join(self._program.output[-50:])

    @property
    def address(self) -> str:
        return next(line.split()[1] for line in self._program.output if line.startswith("gRPC"))
