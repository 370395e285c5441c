"""Print how many files of `src/pyromq` a request, a delivery and a message's life pass, and how many calls they make.

    python scripts/walk.py           # a table
    python scripts/walk.py --files   # the calls by file as well

A broker and clients run in this process, without compiled parts. Each walk runs several times, and the shortest run
counts, because background tasks may run during the others. The server is its event loop's thread; the client is every
thread that is no thread of the server.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

os.environ["PYROMQ_PURE"] = "1"  # read when pyromq is imported

from pyromq import AsyncConsumer, AsyncProducer, Message
from pyromq.clock import SystemClock
from pyromq.remoting.codes import PullFlag
from pyromq.remoting.command import encode_request
from pyromq.remoting.headers import PullMessage, SendMessageV2
from pyromq.testing import Cluster

SOURCES = str(Path(__file__).parents[1] / "src" / "pyromq") + os.sep
RUNS = 7
QUIET_SECONDS = 0.05  # after a walk: what it started ends within this time
WAIT_SECONDS = 20.0
TOPIC = "walk"
T = TypeVar("T")


@dataclass(slots=True)
class Walk:
    """The calls of Python functions of pyromq, by file."""

    calls: Counter[str] = field(default_factory=Counter)

    @property
    def size(self) -> tuple[int, int]:
        """Files and calls."""
        return len(self.calls), self.calls.total()


class Recorder:
    """Counts the calls of all threads that were started after it, by side."""

    def __init__(self) -> None:
        self._sides: dict[int, str] = {}  # by thread; others are clients
        self._walks: dict[str, Walk] | None = None
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def assign(self, side: str) -> None:
        """Name the side of the calling thread."""
        self._sides[threading.get_ident()] = side

    def assign_others(self, side: str) -> None:
        """Name the side of all threads that have none yet, but this one."""
        for thread in threading.enumerate():
            if thread.ident is not None and thread is not threading.current_thread():
                self._sides.setdefault(thread.ident, side)

    @contextmanager
    def recording(self) -> Iterator[dict[str, Walk]]:
        walks = {"server": Walk(), "client": Walk(), "background": Walk()}
        self._walks = walks
        try:
            yield walks
        finally:
            self._walks = None

    def stop(self) -> None:
        self._walks = None

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and (walks := self._walks) is not None:
            file = frame.f_code.co_filename
            if file.startswith(SOURCES):
                side = self._sides.get(threading.get_ident(), "client")
                walks[side].calls[file[len(SOURCES) :]] += 1


class Servers:
    """A cluster on an event loop of its own thread."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._ready: Future[Cluster] = Future()
        self._loop: asyncio.AbstractEventLoop
        self._end: asyncio.Event
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="servers")

    def start(self) -> Cluster:
        self._thread.start()
        cluster = self._ready.result(WAIT_SECONDS)
        self._recorder.assign_others("background")
        return cluster

    def quiet(self) -> None:
        """Return when the servers have had time to do what follows from the last request."""
        asyncio.run_coroutine_threadsafe(asyncio.sleep(QUIET_SECONDS), self._loop).result(WAIT_SECONDS)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(WAIT_SECONDS)

    async def _serve(self) -> None:
        self._recorder.assign("server")
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with Cluster(clock=SystemClock()) as cluster:
                self._ready.set_result(cluster)
                await self._end.wait()
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)


class RawClient:
    """Sends prepared frames to the broker, and reads a frame of reply for each."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=WAIT_SECONDS)

    def ask(self, frame: bytes) -> None:
        self._socket.sendall(frame)
        self._read(int.from_bytes(self._read(4)))

    def close(self) -> None:
        self._socket.close()

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise ConnectionError("the broker closed the connection")
            data += piece
        return data


def send_frame() -> bytes:
    header = SendMessageV2(
        producer_group="walkers", topic=TOPIC, default_topic="TBW102", default_topic_queue_count=1, queue_id=0,
        sys_flag=0, born_ms=SystemClock().now_ms(), flag=0, properties="TAGS\x01blue\x02WAIT\x01true",
    )  # fmt: skip
    return encode_request(header, b"hello", opaque=1, flag=0)


def pull_frame() -> bytes:
    header = PullMessage(
        consumer_group="readers", topic=TOPIC, queue_id=0, queue_offset=0, max_count=32,
        sys_flag=PullFlag.SUBSCRIPTION | PullFlag.SUSPEND | PullFlag.COMMIT_OFFSET, commit_offset=0,
        suspend_ms=15_000, subscription_version=0, subscription="*", expression_type="TAG",
    )  # fmt: skip
    return encode_request(header, b"", opaque=1, flag=0)


def shortest(runs: list[Walk]) -> Walk:
    return min(runs, key=lambda walk: walk.size)


def both(walks: dict[str, Walk]) -> Walk:
    return Walk(walks["server"].calls + walks["client"].calls)


def walk_requests(recorder: Recorder, servers: Servers, cluster: Cluster) -> dict[str, Walk]:
    client = RawClient(cluster.broker.address)
    found = {}
    for name, frame in (("send", send_frame()), ("pull", pull_frame())):
        runs = []
        for number in range(RUNS):
            with recorder.recording() as walks:
                client.ask(frame)
                servers.quiet()
            if number:  # the first run fills caches
                runs.append(walks["server"])
        found[f"{name}: socket to socket, server"] = shortest(runs)
    client.close()
    return found


class Clients:
    """A producer and a push consumer of one queue."""

    def __init__(self, namesrv: str, recorder: Recorder) -> None:
        self._namesrv = namesrv
        self._recorder = recorder
        self._heard = asyncio.Event()
        self.stop_at_listener = False

    async def producer(self) -> AsyncProducer:
        producer = AsyncProducer("walkers", self._namesrv)
        await producer.start()
        return producer

    async def consumer(self, group: str) -> AsyncConsumer:
        consumer = AsyncConsumer(group, self._namesrv)

        async def listen(_: object) -> None:
            if self.stop_at_listener:
                self._recorder.stop()
            self._heard.set()

        consumer.subscribe(TOPIC, listen)
        await consumer.start()
        return consumer

    async def hears(self, send: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Send a message and wait until the listener was called."""
        self._heard.clear()
        await send()
        async with asyncio.timeout(WAIT_SECONDS):
            await self._heard.wait()


async def walk_clients(recorder: Recorder, cluster: Cluster) -> dict[str, Walk]:
    clients = Clients(cluster.namesrv, recorder)
    producer = await clients.producer()
    consumer = await clients.consumer("listeners")
    raw = RawClient(cluster.broker.address)

    frame = send_frame()

    async def send_raw() -> None:
        raw.ask(frame)

    async def send() -> None:
        await producer.send(Message(TOPIC, b"hello", tags="blue"))

    async def settle() -> None:
        await asyncio.sleep(4 * QUIET_SECONDS)

    await settle()
    for _ in range(3):
        await clients.hears(send)
        await settle()
    deliveries, lives = [], []
    for _ in range(RUNS):
        clients.stop_at_listener = True
        with recorder.recording() as walks:
            await clients.hears(send_raw)
        deliveries.append(walks["client"])
        clients.stop_at_listener = False
        await settle()
        with recorder.recording() as walks:
            await clients.hears(send)
            await asyncio.sleep(QUIET_SECONDS)
        lives.append(both(walks))
        await settle()
    closes = []
    for number in range(RUNS):
        closing = await clients.consumer(f"closing{number}")
        await settle()
        await clients.hears(send)
        await settle()
        with recorder.recording() as walks:
            await closing.close()
        closes.append(walks["client"])
    raw.close()
    await consumer.close()
    await producer.close()
    return {
        "push: socket to listener, client": shortest(deliveries),
        "close with commit, client": shortest(closes),
        "life: sent, delivered, acknowledged, both sides": shortest(lives),
    }


def main() -> None:
    gc.disable()  # finalizers of earlier runs would be counted
    recorder = Recorder()
    servers = Servers(recorder)
    cluster = servers.start()
    try:
        found = walk_requests(recorder, servers, cluster)
        found |= asyncio.run(walk_clients(recorder, cluster))
    finally:
        servers.stop()
    print("| walk, plain Python | files | calls |", "|---|--:|--:|", sep="\n")
    for name, walk in found.items():
        files, calls = walk.size
        print(f"| {name} | {files} | {calls:,} |")
    if "--files" in sys.argv[1:]:
        for name, walk in found.items():
            print(f"\n{name}")
            for file, calls in sorted(walk.calls.items()):
                print(f"    {calls:>4}  {file}")


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        main()
