"""One cluster of an endurance run: `pyromq serve` as a process, and what changes around it while clients work.

The cluster has TLS beside plain connections, a console and a metrics port.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import random
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
from tests.certificates import Authority
from tests.endurance.measuring import Measurements
from tests.failover.history import History
from tests.failover.judge import Verdict, judge
from tests.failover.load import CONSUMER, GROUPS, TOPICS, Load
from tests.failover.machines import SETTINGS, Server
from tests.processes import free_port
from tests.waiting import PATIENCE_SECONDS

from pyromq import (
    AsyncAdmin,
    AsyncConsumer,
    AsyncProducer,
    ConnectionConfig,
    Message,
    MQError,
    ProducerConfig,
    StoredMessage,
    TlsConfig,
    TopicNotFound,
)
from pyromq.clock import SystemClock
from pyromq.net.channel import connect
from pyromq.remoting.bodies import ConsumerEntry, GroupConfig, HeartbeatBody, Subscription, encode_body
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.headers import Heartbeat

PROBE = "probe"
PROBE_SECONDS = 0.1
PAGES = ("/", "/topics", "/groups", "/brokers", f"/topics/{PROBE}")
QUEUES = 8
SETTLE_SECONDS = 900.0  # until all is delivered; a machine that others use, too, stands still for minutes
LOAD_MESSAGES = 100_000_000  # numbers for the messages of one load, so that no two loads send the same message
DISK_LIMIT = "diskSpaceWarningLevelRatio"
# Retention deletes log files above 96 MiB of them, and the use of the disk is measured twice a second. Files of queues
# and indexes, and their memory, grow until retention deletes the first: a run must reach that in its warm part.
MORE_SETTINGS = {"retentionBytes": 96 << 20, "cleanResourceInterval": 500, "mappedFileSizeCommitLog": 16 << 20}
RUN_BYTES = 1 << 30  # of a disk for both clusters: logs, queues, indexes and files made ahead
SPARE_PERCENT, MAX_PERCENT = 2, 80  # of a disk: free for other programs, and the highest limit of a run


class EnduringCluster:
    """A cluster under load. An async context manager; leaving it stops the server.

    `measurements` get waits of probes, of the console's pages and of scrapes.
    """

    def __init__(
        self, name: str, folder: Path, authority: Authority, *, measurements: Measurements, ballast: Ballast
    ) -> None:
        self.name = name
        self.folder = folder / name
        self.folder.mkdir()
        self._authority = authority
        self._measurements = measurements
        self._namesrv_port, broker_port, self._console_port, self._metrics_port = (free_port() for _ in range(4))
        self.namesrv, self.broker = f"127.0.0.1:{self._namesrv_port}", f"127.0.0.1:{broker_port}"
        self._issue()
        settings = self.folder / "broker.conf"
        self._ballast = ballast
        values = {**SETTINGS, **MORE_SETTINGS, DISK_LIMIT: ballast.limit_percent}
        settings.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        ports = {"namesrv": self._namesrv_port, "broker": broker_port}
        ports |= {"console": self._console_port, "metrics": self._metrics_port}
        command = ["serve", "--data", str(self.folder / "data"), "--config", str(settings), "--console"]
        command += [word for key, port in ports.items() for word in (f"--{key}-port", str(port))]
        command += ["--tls-cert", str(self._certificate), "--tls-key", str(self._key)]
        self.server = Server(name, command, (broker_port,))
        self.tls = ConnectionConfig(tls=TlsConfig(authority=str(authority.file)))
        self._tasks: list[asyncio.Task[None]] = []
        self._one_accident = asyncio.Lock()  # the server is not killed while its disk is full or its certificate new

    async def __aenter__(self) -> EnduringCluster:
        await self.server.start()
        self._tasks = [asyncio.create_task(each) for each in (self._probe(), self._poll_console(), self._scrape())]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        code = await self.server.end()
        for each in ended:
            if isinstance(each, Exception):
                raise each
        assert code == 0, f"the server {self.name} ended with {code}:\n" + "".join(self.server.outputs[-1][-20:])

    def measure(self, *, judged: bool) -> None:
        """Add the server's and its console's values."""
        for role, pid in self.server.pids().items():
            self._measurements.add_process(f"{self.name} {role}", pid, judged=judged)
        walked = os.walk(self.folder / "data")  # goes on where a folder is deleted meanwhile
        files = sum(len(folders) + len(names) for path, folders, names in walked if not path.endswith("commitlog"))
        self._measurements.add(f"{self.name}: files", "files", files)

    async def round(self, seconds: float, *, pause_seconds: float, seed: int, kill_after: float | None) -> Verdict:
        """Run all kinds of load on new topics, and judge what clients saw. Everything is deleted afterwards.

        `kill_after`: seconds after which the server is killed and started again.
        """
        history = History()
        async with asyncio.timeout(seconds + 2 * SETTLE_SECONDS):
            first = seed * LOAD_MESSAGES
            async with Load(self.namesrv, history, seed=seed, pause_seconds=pause_seconds, first=first) as load:
                kill = asyncio.create_task(self._kill(kill_after)) if kill_after is not None else None
                ending = asyncio.Event()
                churn = asyncio.create_task(self._churn(seed, ending))
                await asyncio.sleep(seconds / 2)
                async with self._one_accident:
                    await self._fill_disk()
                    await self._change_certificate()
                await asyncio.sleep(seconds / 2)
                ending.set()
                await churn
                if kill is not None:
                    await kill
                await load.stop_sending()
                await load.settle(seconds=SETTLE_SECONDS)
            await self.delete_all()
        # In a thread: it takes seconds, and the other cluster's clients have deadlines of five.
        return await asyncio.to_thread(judge, history, GROUPS)

    async def _kill(self, after: float) -> None:
        await asyncio.sleep(after)
        async with self._one_accident:
            await self.server.kill()
            await self.server.start()

    async def delete_all(self) -> None:
        """Delete the topics and groups of the load."""
        async with AsyncAdmin(self.namesrv) as admin:
            for topic in TOPICS:
                await admin.delete_topic(topic)
            for group in GROUPS:
                await admin.delete_group(group)

    async def _churn(self, seed: int, ending: asyncio.Event) -> None:
        """Make topics and groups, use and delete them; open and close connections of members. Leaves none behind."""
        async with AsyncAdmin(self.namesrv) as admin, AsyncProducer("churn", self.namesrv) as producer:
            number = 0
            while not ending.is_set():
                number += 1
                topic, group = f"churn-{seed}-{number}", f"churn-{seed}-{number}"
                with suppress(MQError):  # the server may be down, or its disk full
                    await admin.create_topic(topic, QUEUES)
                    await admin.create_group(GroupConfig(name=group))
                    await producer.send(Message(topic, b"x"))
                    await self._storm(group, topic)
                await _until_deleted(admin.delete_topic, topic)
                await _until_deleted(admin.delete_group, group)
                await asyncio.sleep(1.0)

    async def _storm(self, group: str, topic: str, members: int = 20) -> None:
        channels = []
        try:
            for number in range(members):
                channels.append(await connect(self.broker, Dispatcher(), SystemClock()))
                entry = ConsumerEntry(group=group, subscriptions=[Subscription(topic=topic)])
                body = encode_body(HeartbeatBody(client_id=f"member-{number}", consumers=[entry]))
                await channels[-1].call(Heartbeat(), body, timeout=PATIENCE_SECONDS)
        finally:
            for channel in channels:
                await channel.close()

    async def _fill_disk(self) -> None:
        """Fill the disk above the broker's limit, see a refusal, free the disk, and see messages accepted again."""
        async with AsyncProducer("disk", self.namesrv) as producer:
            async with self._ballast.loaded() as is_full:
                if is_full:
                    await _until(producer, refused=True)
            self._ballast.check_limit()
            await _until(producer, refused=False)

    def _issue(self) -> None:
        self._certificate, self._key = self._authority.issue(self.name)

    async def _change_certificate(self) -> None:
        """Replace the server's certificate, and wait until new connections get the new one."""
        self._issue()
        wanted = self._certificate.read_text().partition("-----END")[0]
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                address = ("127.0.0.1", self._namesrv_port)
                found = await asyncio.to_thread(ssl.get_server_certificate, address, timeout=PATIENCE_SECONDS)
                if found.partition("-----END")[0] == wanted:
                    return
                await asyncio.sleep(0.1)

    async def _probe(self) -> None:
        """Send over TLS all the time, and measure the wait for the reply and for the delivery. Until cancelled."""
        loop = asyncio.get_running_loop()
        begun: dict[bytes, float] = {}

        async def came(messages: list[StoredMessage]) -> None:
            for message in messages:
                if (sent_at := begun.pop(message.body, None)) is not None:
                    self._measurements.note_wait(f"{self.name}: delivery", loop.time() - sent_at)

        config = ProducerConfig(connections=self.tls, timeout=5.0)
        async with AsyncAdmin(self.namesrv) as admin, AsyncProducer(PROBE, self.namesrv, config=config) as producer:
            await admin.create_topic(PROBE, 1)
            consumer = AsyncConsumer(PROBE, self.namesrv, config=CONSUMER)
            consumer.subscribe(PROBE, came)
            async with consumer:
                for number in itertools.count():
                    body = b"%d" % number
                    begun[body] = loop.time()
                    with suppress(MQError), self._measurements.timed(f"{self.name}: send"):
                        await producer.send(Message(PROBE, body))
                    self._forget(begun, before=loop.time() - PATIENCE_SECONDS)
                    await asyncio.sleep(PROBE_SECONDS)

    def _forget(self, begun: dict[bytes, float], *, before: float) -> None:
        for body in [body for body, sent_at in begun.items() if sent_at < before]:
            del begun[body]  # refused, or confirmed and not delivered: the load's history says which

    async def _poll_console(self) -> None:
        await self._get_again(f"http://127.0.0.1:{self._console_port}", PAGES, "console")

    async def _scrape(self) -> None:
        await self._get_again(f"http://127.0.0.1:{self._metrics_port}", ("/metrics",), "scrape")

    async def _get_again(self, address: str, paths: tuple[str, ...], what: str) -> None:
        async with httpx.AsyncClient(base_url=address, timeout=PATIENCE_SECONDS) as client:
            while True:
                for path in paths:
                    with suppress(httpx.TransportError), self._measurements.timed(f"{self.name}: {what}"):
                        await client.get(path)
                    await asyncio.sleep(random.uniform(0.5, 1.5))


class Ballast:
    """A file that fills a disk above `limit_percent`, and takes no time to write: its blocks are only allocated."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._turn = asyncio.Lock()
        use = shutil.disk_usage(file.parent)
        self.limit_percent = math.ceil(100 * (use.used + RUN_BYTES) / (use.used + use.free)) + SPARE_PERCENT

    def check_limit(self) -> None:
        """Raise `RuntimeError` if the disk is above the limit without the ballast: brokers refuse messages then."""
        use = shutil.disk_usage(self._file.parent)
        percent = 100 * use.used / (use.used + use.free)
        if percent > self.limit_percent:
            raise RuntimeError(
                f"the disk of {self._file.parent} is {percent:.1f} % full, above the run's limit of"
                f" {self.limit_percent} %: other programs fill it; set TMPDIR to a folder of another disk"
            )

    @contextlib.asynccontextmanager
    async def loaded(self) -> AsyncIterator[bool]:
        """Fill the disk until the block ends. Yields False if it must not be filled so far, or has no `fallocate`.

        Blocks of several tasks follow each other.
        """
        async with self._turn:
            with self._filled() as is_full:
                yield is_full

    @contextlib.contextmanager
    def _filled(self) -> Iterator[bool]:
        use = shutil.disk_usage(self._file.parent)
        wanted = (use.used + use.free) * (self.limit_percent + 1.5) / 100 - use.used
        is_full = False
        if self.limit_percent < MAX_PERCENT and wanted > 0:
            done = subprocess.run(["fallocate", "-l", str(int(wanted)), self._file], capture_output=True, check=False)
            is_full = done.returncode == 0
        if not is_full:
            print(f"the disk of {self._file} is not filled: its limit would be {self.limit_percent} %", flush=True)
        try:
            yield is_full
        finally:
            self._file.unlink(missing_ok=True)


async def _until_deleted(delete: Callable[[str], Awaitable[None]], name: str) -> None:
    while True:
        try:
            return await delete(name)
        except TopicNotFound:
            return None
        except MQError:  # the server is down
            await asyncio.sleep(1.0)


async def _until(producer: AsyncProducer, *, refused: bool) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                await producer.send(Message(PROBE, b"disk"))
                was_refused = False
            except MQError as error:
                was_refused = DISK_LIMIT in str(error)
                if not was_refused and not refused:
                    await asyncio.sleep(0.1)
                    continue
            if was_refused is refused:
                return
            await asyncio.sleep(0.1)
