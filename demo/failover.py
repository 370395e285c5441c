"""The flights of the demo, sent to a replica set of three brokers while its master is killed; the counts must agree.

Run by `make failover-demo`. With etcd, the brokers are processes, and the master is killed with SIGKILL. Without
etcd, the set runs in this process, with a registry in memory.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from demo import BATCH, QUEUES, TOPIC, clear, console, load_flights, progress_bar, read_back, report, step

from pyromq import Admin, AsyncProducer, Message, MessageQueue
from pyromq.clock import SystemClock
from pyromq.testing import BlockingCluster

OUTPUT = Path("failover-demo-output")
SET = "broker-a"
PATIENCE_SECONDS = 60.0


def main() -> None:
    started = time.monotonic()
    clear(OUTPUT)
    counts: dict[str, int] = {}
    with ExitStack() as running:
        with step("start a set of three replicas"):
            replicas: Processes | InProcess
            if shutil.which("etcd") is None:
                console.print("       [yellow]etcd is not installed:[/] the set runs in this process, without etcd")
                replicas = running.enter_context(in_process())
            else:
                replicas = running.enter_context(processes())
        with step("load flights"):
            lanes = load_flights()
        with step("send, and kill the master in the middle"):
            with Admin(replicas.namesrv) as admin:
                admin.create_topic(TOPIC, QUEUES)
            counts["sent"], longest = asyncio.run(send(replicas.namesrv, lanes, replicas.kill_master))
            console.print(f"       longest time without a confirmation: {longest:.2f} s")
        with step("start the killed replica again"):
            replicas.start_again()
        with step("pull back"):
            counts["pulled"], repeats = pull(replicas.namesrv)
            console.print(f"       stored twice, because a batch was sent again: {repeats:,}")
    report(counts, time.monotonic() - started)


async def send(namesrv: str, lanes: list[list[Message]], kill_master: Callable[[], str]) -> tuple[int, float]:
    """Send every lane to its queue, and kill the master once half is confirmed.

    Return the number of confirmed messages, and the longest time (seconds) between two confirmations.
    """
    total, confirmed, longest, last = sum(map(len, lanes)), 0, 0.0, time.monotonic()
    killing: asyncio.Task[str] | None = None
    with progress_bar() as progress:
        task = progress.add_task("send", total=total)
        async with AsyncProducer("demo-producer", namesrv) as producer:
            queues = await producer.queues(TOPIC)

            async def run(lane: list[Message], queue: MessageQueue) -> None:
                nonlocal confirmed, longest, last, killing
                for start in range(0, len(lane), BATCH):
                    batch = lane[start : start + BATCH]
                    await producer.send_batch(batch, queue=queue)
                    now = time.monotonic()
                    longest, last = max(longest, now - last), now
                    confirmed += len(batch)
                    progress.advance(task, len(batch))
                    if killing is None and confirmed >= total / 2:
                        killing = asyncio.create_task(asyncio.to_thread(kill_master))

            async with asyncio.TaskGroup() as group:
                for lane, queue in zip(lanes, queues, strict=True):
                    group.create_task(run(lane, queue))
    assert killing is not None
    console.print(f"       {await killing} was killed after {total // 2:,} messages")
    return confirmed, longest


def pull(namesrv: str) -> tuple[int, int]:
    """Read everything back. Return the number of different flights, and of repeats.

    Raises `RuntimeError` if a flight of an aircraft is missing or comes before an earlier one.
    """
    flown: dict[str, int] = {}
    repeats = 0
    for flight in read_back(namesrv):
        expected = flown.get(flight.tailnum, 0) + 1
        if flight.sequence > expected:
            raise RuntimeError(f"{flight.tailnum}: flight {flight.sequence} came instead of {expected}")
        if flight.sequence < expected:
            repeats += 1
        else:
            flown[flight.tailnum] = expected
    console.print(f"       order holds for {len(flown):,} aircraft")
    return sum(flown.values()), repeats


class InProcess:
    """A set in this process."""

    def __init__(self, cluster: BlockingCluster) -> None:
        self.namesrv = cluster.namesrv
        self._cluster = cluster

    def kill_master(self) -> str:
        return f"replica {self._cluster.kill_master()}"

    def start_again(self) -> None:
        self._cluster.start_broker()


@contextmanager
def in_process() -> Iterator[InProcess]:
    with BlockingCluster(replicas=3, min_in_sync=2, clock=SystemClock(), data=OUTPUT / "data") as cluster:
        yield InProcess(cluster)


class Processes:
    """etcd, a name server and three brokers, each a process of its own."""

    def __init__(self, running: ExitStack) -> None:
        etcd, peers, names = free_ports(3)
        self.namesrv = f"127.0.0.1:{names}"
        self._running = running
        self._brokers: dict[str, tuple[list[str], subprocess.Popen[str]]] = {}
        self._killed = ""
        urls = [f"http://127.0.0.1:{etcd}", f"http://127.0.0.1:{peers}"]
        command = ["etcd", "--data-dir", str(OUTPUT / "etcd"), "--initial-cluster", f"default={urls[1]}"]
        command += ["--listen-client-urls", urls[0], "--advertise-client-urls", urls[0]]
        command += ["--listen-peer-urls", urls[1], "--initial-advertise-peer-urls", urls[1]]
        self._start(command, "ready to serve client requests")
        pyromq = [sys.executable, "-m", "pyromq", "serve"]
        self._start([*pyromq, "namesrv", "--namesrv-port", str(names)], "ready in")
        settings = OUTPUT / "broker.properties"
        settings.write_text("minInSyncReplicas=2\n")
        for number, port in enumerate(free_ports(3), start=1):
            command = [*pyromq, "broker", "--broker-name", SET, "--namesrv", self.namesrv, "--etcd", urls[0]]
            command += [
                "--broker-port",
                str(port),
                "--data",
                str(OUTPUT / f"replica-{number}"),
                "--config",
                str(settings),
            ]
            self._brokers[f"127.0.0.1:{port}"] = command, self._start(command, "ready in")
        self._until_all_are_listed()

    def kill_master(self) -> str:
        """End the master's process with SIGKILL. Return its address."""
        self._killed = self._addresses()[0]
        process = self._brokers[self._killed][1]
        process.send_signal(signal.SIGKILL)
        process.wait()
        return f"the broker at {self._killed}"

    def start_again(self) -> None:
        command, _ = self._brokers[self._killed]
        self._brokers[self._killed] = command, self._start(command, "ready in")
        self._until_all_are_listed()

    def _addresses(self) -> dict[int, str]:
        with Admin(self.namesrv) as admin:
            brokers = admin.cluster().brokers
        return dict(brokers[SET].addresses) if SET in brokers else {}

    def _until_all_are_listed(self) -> None:
        began = time.monotonic()
        while set(self._addresses().values()) != set(self._brokers) or 0 not in self._addresses():
            if time.monotonic() - began > PATIENCE_SECONDS:
                raise TimeoutError(f"the name server lists {self._addresses()}")
            time.sleep(0.1)

    def _start(self, command: list[str], ready: str) -> subprocess.Popen[str]:
        """Start a process, which ends with the demo, and return once its output has the line `ready`."""
        path = OUTPUT / f"{len(list(OUTPUT.glob('*.log')))}.log"
        with path.open("w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, text=True)
        self._running.callback(process.wait)
        self._running.callback(process.terminate)
        began = time.monotonic()
        while ready not in path.read_text():
            if process.poll() is not None or time.monotonic() - began > PATIENCE_SECONDS:
                raise RuntimeError(f"{command[0]} did not get ready:\n{path.read_text()[-2000:]}")
            time.sleep(0.05)
        return process


@contextmanager
def processes() -> Iterator[Processes]:
    with ExitStack() as running:
        yield Processes(running)


def free_ports(count: int) -> list[int]:
    """Return ports that are free now, as are the ports above them, which replicas use for replication."""
    found: list[int] = []
    with ExitStack() as taken:
        while len(found) < count:
            one, above = (taken.enter_context(socket.socket()) for _ in range(2))
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            try:
                above.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            found.append(port)
    return found


if __name__ == "__main__":
    main()
