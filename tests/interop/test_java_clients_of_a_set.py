"""The genuine client 4.9.8 at a replica set of three: a planned failover, a rolling restart, a killed master."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
from tests.etcd_cluster import need_etcd
from tests.failover.machines import SET, Machines, Server
from tests.interop.peers.java import Driver, furnish
from tests.interop.peers.pairs import ask_broker, written
from tests.interop.peers.servers import genuine
from tests.processes import Program, free_port

from pyromq import AsyncAdmin
from pyromq.remoting.bodies import decode_body
from pyromq.remoting.headers import RouteOfTopic

pytestmark = pytest.mark.interop

TOPIC, GROUP = "followed", "follows"
SETTLE_SECONDS = 3  # of load before the accident
CONSUME_SECONDS = 400
SEEN_SECONDS = 3.0  # from the record in etcd to the route of a name server
LONGEST_ON_BUSY_MACHINE_SECONDS = 3.0  # the client's own time-out


@dataclass
class Outcomes:
    """What the producer saw. Times are seconds of the wall clock."""

    confirmed: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def longest(self) -> float:
        """The longest time without a confirmation."""
        times = sorted(self.confirmed.values())
        return max(later - earlier for earlier, later in pairwise(times))

    def __str__(self) -> str:
        kinds = Counter(text.split(",")[0][:100] for text in self.failed.values())
        return f"{len(self.confirmed)} confirmed, {len(self.failed)} failed, {self.longest:.2f} s without: {kinds}"


class JavaLoad:
    """A producer and a push consumer, each in a process of its own."""

    def __init__(self, home: Path, namesrv: str, seconds: int, poll_ms: int) -> None:
        driver = Driver(home, namesrv, options=[f"-DpollNameServerInterval={poll_ms}"])
        self.producer = driver.start("load", TOPIC, "loads", seconds)
        self.consumer = driver.start("push", TOPIC, GROUP, "*", 1_000_000, CONSUME_SECONDS)

    def _lines(self, program: Program) -> list[dict]:
        return [json.loads(line) for line in list(program.output) if line.startswith("{")]

    def outcomes(self) -> Outcomes:
        found = Outcomes()
        for line in self._lines(self.producer):
            if line.get("status") is None:
                found.failed[line["name"]] = line["error"]
            else:
                found.confirmed[line["name"]] = line["atMs"] / 1000
        return found

    def received(self) -> set[str]:
        return {base64.b64decode(line["body"]).decode() for line in self._lines(self.consumer)}

    def kill(self) -> None:
        for program in (self.producer, self.consumer):
            program.kill()

    async def finish(self) -> Outcomes:
        """Wait for the producer's end, and until the consumer has what was confirmed. Return the outcomes."""
        await asyncio.to_thread(self.producer.process.wait, CONSUME_SECONDS)
        outcomes = self.outcomes()
        deadline = time.monotonic() + 60
        while missing := outcomes.confirmed.keys() - self.received():
            assert time.monotonic() < deadline, f"{len(missing)} confirmed messages never came: {sorted(missing)[:5]}"
            await asyncio.sleep(0.5)
        print(outcomes)
        return outcomes


@asynccontextmanager
async def load_on_three(folder: Path, home: Path, seconds: int, *, poll_ms: int = 30_000, **settings: object):
    """A set of three, and load on it that has begun."""
    need_etcd()
    async with Machines(folder, replicas=3, members=1, minInSyncReplicas=2, **settings) as machines:
        await machines.until(lambda: machines.in_sync == 3)
        async with AsyncAdmin(machines.namesrv) as admin:
            await admin.create_topic(TOPIC, queues=4)
        load = JavaLoad(home, machines.namesrv, seconds, poll_ms)
        try:
            await asyncio.to_thread(load.producer.wait_until_ready)
            await machines.until(lambda: len(load.received()) > 10)
            await asyncio.sleep(SETTLE_SECONDS)
            yield machines, load
        finally:
            load.kill()


async def next_master(machines: Machines, former: Server | None) -> None:
    await machines.until(lambda: machines.master is not None and machines.master is not former)


async def test_no_send_fails_in_a_planned_failover(home: Path, tmp_path: Path) -> None:
    async with load_on_three(tmp_path, home, 20) as (machines, load):
        former = machines.master
        target = machines.replicas.index(machines.followers[0]) + 1
        async with AsyncAdmin(machines.namesrv) as admin:
            print("handed over in", await admin.replica_sets.hand_over(SET, target))
        await next_master(machines, former)
        await machines.until(lambda: machines.in_sync == 3)
        outcomes = await load.finish()
    assert not outcomes.failed, str(outcomes)
    assert outcomes.longest < LONGEST_ON_BUSY_MACHINE_SECONDS, str(outcomes)


async def test_no_send_fails_in_a_rolling_restart(home: Path, tmp_path: Path) -> None:
    async with load_on_three(tmp_path, home, 150) as (machines, load):
        restarted = []
        while len(restarted) < 3:  # followers first, as operators do
            server = next(each for each in [*machines.followers, machines.master] if each not in restarted)
            restarted.append(server)
            began = time.monotonic()
            assert await server.end() == 0
            print(server.name, "ended in", time.monotonic() - began)
            await server.start()
            await machines.until(lambda: machines.in_sync == 3)
        outcomes = await load.finish()
    assert not outcomes.failed, str(outcomes)
    assert outcomes.longest < LONGEST_ON_BUSY_MACHINE_SECONDS, str(outcomes)


@pytest.mark.parametrize("poll_ms", [30_000, 5_000])
async def test_producers_find_the_successor_of_a_killed_master_at_their_next_poll(
    home: Path, tmp_path: Path, poll_ms: int
) -> None:
    async with load_on_three(tmp_path, home, 45, poll_ms=poll_ms) as (machines, load):
        former = machines.master
        assert former is not None
        await former.kill()
        await next_master(machines, former)
        outcomes = await load.finish()
    assert outcomes.longest < poll_ms / 1000 + 5, str(outcomes)


async def test_a_killed_master_that_is_started_again_passes_on(home: Path, tmp_path: Path) -> None:
    async with load_on_three(tmp_path, home, 30) as (machines, load):
        former = machines.master
        assert former is not None
        await former.kill()
        await next_master(machines, former)
        await former.start()
        again = time.time()
        outcomes = await load.finish()
    assert min(at for at in outcomes.confirmed.values() if at > again) < again + 5, str(outcomes)


def masters_at(name_server: str) -> str | None:
    """The address of the set's master in the route of a name server; None without one."""
    response = ask_broker(name_server, RouteOfTopic(topic=TOPIC))
    route = decode_body(RouteOfTopic.reply_body, response.body)
    return next(each.addresses.get(0) for each in route.brokers if each.broker_name == SET)


async def test_a_java_name_server_sees_each_takeover_at_once_and_believes_no_former_master(
    home: Path, tmp_path: Path
) -> None:
    need_etcd()
    port = free_port()
    folder = furnish(tmp_path / "namesrv")
    settings = written(folder / "namesrv.properties", {"listenPort": port, "kvConfigPath": folder / "kv.json"})
    name_server = genuine(folder, "namesrv", settings, heap="128m")
    try:
        address = f"127.0.0.1:{port}"
        async with Machines(tmp_path, replicas=3, members=1, also=address, minInSyncReplicas=2) as machines:
            await machines.until(lambda: machines.in_sync == 3)
            async with AsyncAdmin(machines.namesrv) as admin:
                await admin.create_topic(TOPIC, queues=4)
                for way in ("planned", "stopped", "killed"):
                    await takeover(machines, admin, address, way)
    finally:
        name_server.kill()


async def takeover(machines: Machines, admin: AsyncAdmin, name_server: str, way: str) -> None:
    """Let another replica become the master, and watch the route until some time after the former one is back."""
    former = machines.master
    assert former is not None
    if way == "planned":
        await admin.replica_sets.hand_over(SET, machines.replicas.index(machines.followers[0]) + 1)
    elif way == "stopped":
        await former.end()
    else:
        await former.kill()
    await next_master(machines, former)
    new = machines.master
    assert new is not None
    began = time.monotonic()
    while await asyncio.to_thread(masters_at, name_server) != new.address:
        assert time.monotonic() < began + SEEN_SECONDS, f"{way}: the name server does not see the new master"
        await asyncio.sleep(0.05)
    print(way, "seen after", round(time.monotonic() - began, 2))
    if not former.runs:
        await former.start()
    await machines.until(lambda: machines.in_sync == 3)
    for _ in range(30):
        assert await asyncio.to_thread(masters_at, name_server) == new.address, way
        await asyncio.sleep(0.2)
