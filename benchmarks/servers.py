"""The servers under comparison, each a fresh process in a fresh folder, and what the kernel says about them.

Knows how each is started and when it is ready; knows nothing about what is measured.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

SERVER_CORE = 0
START_SECONDS = 60.0
STOP_SECONDS = 30.0
C_LOG_BYTES = 1 << 33  # must be a power of two: the C server masks its log offsets with it


@dataclass(frozen=True, slots=True)
class Server:
    """A running server; `ready_seconds` from the start of its process to its first answer."""

    port: int
    pid: int
    ready_seconds: float
    namesrv: str | None = None

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.pid)

    def resident_mb(self) -> tuple[float, float]:
        """Return what is resident of the process's own memory and of mapped files, in MB."""
        status = dict(line.split(":", 1) for line in Path(f"/proc/{self.pid}/status").read_text().splitlines())
        anonymous, files, shared = (int(status[name].split()[0]) / 1024 for name in ("RssAnon", "RssFile", "RssShmem"))
        return anonymous, files + shared  # files of a folder in memory count as shared


def cpu_seconds(pid: int) -> float:
    """Return what a process, all its threads together, has had of the processor."""
    return time.clock_gettime(~pid << 3 | 2)  # Linux's clock of another process, as clock_getcpuclockid(3) names it


Start = Callable[[], AbstractContextManager[Server]]


def c_server(program: str) -> Start:
    """The external C server, which has the topic `Topic` with 4 queues."""

    @contextlib.contextmanager
    def start() -> Iterator[Server]:
        with folder_for_now() as folder:
            port = free_port()
            command = [*pinned(SERVER_CORE), program, str(port), str(folder)]
            with process_of(command, {"CLSZ": str(C_LOG_BYTES)}) as process:
                yield Server(port, process.pid, _wait_for_port(process, port))

    return start


@contextlib.contextmanager
def our_server(
    data: Path | None = None,
    *,
    core: int | None = SERVER_CORE,
    settings: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
) -> Iterator[Server]:
    """`pyromq serve`: name server and broker in one process, on a folder of their own or on `data`, which stays.

    `core` None: on any core, as what measures it. `settings` are the broker's, by RocketMQ's names; `environment` is
    added to ours (`PLAIN`, `of_checkout`), `arguments` to the command.
    """
    with contextlib.nullcontext(data) if data else folder_for_now() as folder:
        if settings:
            _settle(folder, settings)
        port, namesrv_port = free_port(), free_port()
        command = [
            *(pinned(core) if core is not None else []),
            *(sys.executable, "-m", "pyromq", "serve", "--data", str(folder)),
            *("--namesrv-port", str(namesrv_port), "--broker-port", str(port)),
            *arguments,
        ]
        with process_of(command, environment, stop=signal.SIGTERM if data else signal.SIGKILL) as process:
            ready = wait_for_line(process, "ready in")
            yield Server(port, process.pid, ready, f"127.0.0.1:{namesrv_port}")


PLAIN = {"PYROMQ_PURE": "1"}  # nothing compiled


def of_checkout(folder: Path) -> dict[str, str]:
    """Return the environment that runs another checkout's code, with the extensions built there."""
    return {"PYTHONPATH": str(folder / "src")}


def _settle(data: Path, settings: Mapping[str, object]) -> None:
    """Write settings where a broker finds them."""
    (data / "config").mkdir(parents=True, exist_ok=True)
    lines = [f"{name}={value}\n" for name, value in settings.items()]
    (data / "config" / "broker.properties").write_text("".join(lines))


def java_broker(jars: Path, *placement: str, settings: Mapping[str, object] | None = None) -> Start:
    """Return what starts the genuine name server and broker from the jars of a folder, with 4 GB of heap.

    They use every core, unless `placement` (the begin of a command, from `pinned`) limits the broker to one. `settings`
    are added to the broker's settings.
    """

    @contextlib.contextmanager
    def start() -> Iterator[Server]:
        with folder_for_now() as home:
            _furnish(home)
            namesrv_port = free_port()
            namesrv = _java(home, jars, "namesrv", f"listenPort={namesrv_port}\n")
            with process_of(namesrv) as process:
                wait_for_line(process, "boot success")
                port = port_with_neighbours()
                lines = _java_settings(home, port, namesrv_port)
                lines += "".join(f"{name}={value}\n" for name, value in (settings or {}).items())
                broker = [*placement, *_java(home, jars, "broker", lines)]
                with process_of(broker) as process:
                    ready = wait_for_line(process, "boot success")
                    yield Server(port, process.pid, ready, f"127.0.0.1:{namesrv_port}")

    return start


def java_proxy(jars: Path) -> Callable[[], AbstractContextManager[tuple[str, str]]]:
    """RocketMQ 5's genuine name server and its proxy in local mode, which has a broker; yields their addresses."""

    @contextlib.contextmanager
    def start() -> Iterator[tuple[str, str]]:
        with folder_for_now() as home:
            _furnish(home)
            namesrv_port, port, grpc_port = free_port(), port_with_neighbours(), free_port()
            with process_of(_java(home, jars, "namesrv", f"listenPort={namesrv_port}\n")) as namesrv:
                wait_for_line(namesrv, "boot success")
                command = _java(home, jars, "broker", _java_settings(home, port, namesrv_port))
                settings = {"grpcServerPort": grpc_port, "remotingListenPort": free_port(), "proxyMode": "LOCAL"}
                settings |= {"rocketMQClusterName": "DefaultCluster", "namesrvAddr": f"127.0.0.1:{namesrv_port}"}
                (home / "proxy.json").write_text(json.dumps(settings))
                options = ("-pm", "local", "-pc", str(home / "proxy.json"), "-bc", command[-1])
                command = [*command[:-3], "org.apache.rocketmq.proxy.ProxyStartup", *options]
                with process_of(command, {"ROCKETMQ_HOME": str(home)}) as proxy:
                    wait_for_line(proxy, "startup successfully")
                    yield f"127.0.0.1:{namesrv_port}", f"127.0.0.1:{grpc_port}"

    return start


@contextlib.contextmanager
def kept(start: Start, prepare: Callable[[Server], None]) -> Iterator[Start]:
    """A server that is started and prepared once, for all turns of a comparison, and stands still between them.

    For the genuine broker, which needs seconds to start and to get warm: it keeps what its compiler has made.
    """

    @contextlib.contextmanager
    def turn() -> Iterator[Server]:
        os.kill(server.pid, signal.SIGCONT)
        try:
            yield server
        finally:
            os.kill(server.pid, signal.SIGSTOP)

    with start() as server:
        prepare(server)
        os.kill(server.pid, signal.SIGSTOP)
        yield turn


def _java(home: Path, jars: Path, role: str, settings: str) -> list[str]:
    path = home / f"{role}.properties"
    path.write_text(settings)
    heap = "4g" if role == "broker" else "256m"
    return [
        *("java", f"-Xms{heap}", f"-Xmx{heap}", f"-Duser.home={home}", f"-Drocketmq.home.dir={home}"),
        *("--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED", "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED"),
        *("--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED"),
        *("-cp", f"{jars}/*", f"org.apache.rocketmq.{role}.{role.capitalize()}Startup", "-c", str(path)),
    ]


def _java_settings(home: Path, port: int, namesrv_port: int) -> str:
    return (
        f"brokerName=broker-a\nbrokerIP1=127.0.0.1\nlistenPort={port}\n"
        f"namesrvAddr=127.0.0.1:{namesrv_port}\nstorePathRootDir={home}/store\nautoCreateTopicEnable=true\n"
    )


def _furnish(home: Path) -> None:
    """Write the logging settings without which the genuine programs do not start."""
    (home / "conf").mkdir()
    for name in ("logback_namesrv", "logback_broker", "rmq.namesrv.logback", "rmq.broker.logback", "rmq.proxy.logback"):
        (home / "conf" / f"{name}.xml").write_text('<configuration><root level="OFF"/></configuration>\n')


def pinned(core: int) -> list[str]:
    return ["taskset", "-c", str(core)]


def port_with_neighbours() -> int:
    """A port below those that clients get, whose neighbours -2 and +1 are free too: brokers may listen on all three."""
    for port in random.sample(range(15_000, 30_000), 100):
        with contextlib.suppress(OSError), contextlib.ExitStack() as listeners:
            for each in (port - 2, port, port + 1):
                listeners.enter_context(socket.create_server(("127.0.0.1", each)))
            return port
    raise SystemExit("found no three free ports for a broker")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def folder_for_now() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="pyromq-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def process_of(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    *,
    stop: signal.Signals = signal.SIGKILL,
    quiet: bool = False,
) -> Iterator[subprocess.Popen[str]]:
    """Run a program with `environment` added to this process's variables.

    A program whose folder is deleted is killed: its last flush would disturb the next measurement. `quiet` drops its
    stderr.
    """
    process = subprocess.Popen(
        command,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if quiet else None,
        text=True,
    )
    try:
        yield process
    finally:
        process.send_signal(stop)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout:
            process.stdout.close()


def wait_for_line(process: subprocess.Popen[str], text: str) -> float:
    started = time.monotonic()
    for line in process.stdout or ():
        if text in line:
            return time.monotonic() - started
    raise SystemExit(f"{str(process.args)[:200]} ... ended before it said {text!r}")


def _wait_for_port(process: subprocess.Popen[str], port: int) -> float:
    started = time.monotonic()
    while time.monotonic() - started < START_SECONDS and process.poll() is None:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            return time.monotonic() - started
        time.sleep(0.01)
    raise SystemExit(f"{process.args!r} does not listen on port {port}")
