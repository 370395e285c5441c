"""The registry on an etcd of three members that are killed or stopped while it is used."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import pytest
from tests.etcd_cluster import EtcdCluster, need_etcd, wait_for_leader

from pyromq.broker.replication.registry import Changed, Conflict, Unknown
from pyromq.errors import RegistryUnavailable, UsageError

etcd = pytest.importorskip("pyromq.broker.replication.etcd", exc_type=UsageError)
KEY = "/pyromq/c/set/state"
LEASE_SECONDS = 10  # longer than sets have it, since a loaded machine stands still for seconds
MAX_SECONDS = 60.0  # etcd needs about two seconds for a new leader; a loaded machine more


@pytest.fixture
def cluster(tmp_path):
    need_etcd()
    with EtcdCluster(tmp_path, 3) as cluster:
        yield cluster


class Client:
    """Writes a counter by swaps as rule says: an unknown swap is looked up before the next; watches, and keeps a lease.

    `pauses`: the longest time between two successes.
    """

    def __init__(self, urls):
        self.registry = etcd.EtcdRegistry(urls)
        self.written = []  # values of swaps that were confirmed, or read back, in order
        self.seen = []
        self.unknown = self.conflicts = 0
        self.lease_ends = None
        self.pauses = {"swap": 0.0, "keep": 0.0}
        self._last = dict.fromkeys(self.pauses, time.monotonic())

    def _done(self, what):
        now = time.monotonic()
        self.pauses[what] = max(self.pauses[what], now - self._last[what])
        self._last[what] = now

    async def write(self):
        revision, value = 0, b"0"
        while True:
            answer = await self.registry.swap(KEY, revision, value)
            if isinstance(answer, Unknown):
                self.unknown += 1
                found = None
                while found is None:
                    with suppress(RegistryUnavailable):
                        found = await self.registry.read(KEY)
                if found.value != value:  # the same again, at the revision that is there
                    revision = found.revision
                    continue
                answer = found.revision
            if isinstance(answer, Conflict):  # the swap without an answer came late
                self.conflicts += 1
                assert answer.found.value == value
                answer = answer.found.revision
            assert answer > revision
            self._done("swap")
            self.written.append(value)
            revision, value = answer, b"%d" % (int(value) + 1)
            await asyncio.sleep(0.05)

    async def keep(self):
        lease = await self.registry.lease(LEASE_SECONDS)
        self.lease_ends = lease.ends
        while True:
            with suppress(RegistryUnavailable):
                kept = await self.registry.keep(lease.id)
                assert kept.seconds == LEASE_SECONDS, "the lease ended although it was kept"
                self.lease_ends = kept.ends
                self._done("keep")
            await asyncio.sleep(0.3)

    async def watch(self):
        async for each in self.registry.watch(KEY, 0):
            assert isinstance(each, Changed)
            self.seen.append(each.now.value)


async def run(cluster, accident, *, until):
    """Use the registry, let the accident happen, and go on until the condition holds; return the client."""
    client = Client(cluster.urls)
    tasks = [asyncio.create_task(work()) for work in (client.write, client.keep, client.watch)]
    try:
        async with asyncio.timeout(MAX_SECONDS):
            await _happens(tasks, lambda: len(client.seen) > 5)
            accident()
            happened = time.monotonic()
            await _happens(tasks, lambda: until(time.monotonic() - happened))
            count = len(client.written)
            await _happens(tasks, lambda: len(client.written) > count + 5 and len(client.seen) > count + 5)
        tasks[0].cancel()
        async with asyncio.timeout(MAX_SECONDS):
            await _happens(tasks[1:], lambda: len(client.seen) >= len(client.written))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await client.registry.close()
    # A swap that was repeated after silence has two revisions and one value.
    assert list(dict.fromkeys(client.seen))[: len(client.written)] == client.written
    assert client.written == [b"%d" % number for number in range(len(client.written))]
    return client


async def _happens(tasks, condition):
    while not condition():
        for task in tasks:
            if task.done():
                task.result()
        await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_the_leader_is_killed(cluster):
    leader = wait_for_leader(cluster)
    cluster.members.sort(key=lambda each: each is not leader)  # the endpoint in use is the leader
    await run(cluster, leader.kill, until=lambda _: cluster.leader() is not None)


@pytest.mark.slow
async def test_an_endpoint_that_does_not_lead_is_killed_and_comes_back(cluster):
    member = cluster.others(wait_for_leader(cluster))[0]
    cluster.members.sort(key=lambda each: each is not member)
    await run(cluster, member.kill, until=lambda seconds: seconds > 1)
    cluster.start(member)


@pytest.mark.slow
@pytest.mark.parametrize("leads", [True, False], ids=["the leader", "another"])
async def test_the_endpoint_in_use_is_stopped(cluster, leads):
    leader = wait_for_leader(cluster)
    member = leader if leads else cluster.others(leader)[0]
    cluster.members.sort(key=lambda each: each is not member)
    try:
        await run(cluster, member.stop, until=lambda seconds: seconds > 3)
    finally:
        member.go_on()
