"""The metrics and runtime figures of a replica, which outlive changes of its role."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.broker.replication.replica_sets import ReplicaSet, replica_set
from tests.metrics.families import NAMES

from pyromq import AsyncAdmin, AsyncProducer, Message
from pyromq.broker.replication.operating.replica_metrics import FAMILIES
from pyromq.metrics.endpoint import Scraping


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[ReplicaSet]:
    async with replica_set(tmp_path) as found:
        yield found


async def samples(scraping: Scraping) -> dict[str, float]:
    """Scrape; return the samples of a replica by name, with the label `replica` or `outcome` if there is one."""
    text = b"".join(await scraping.text()).decode()
    assert set(re.findall(r"# TYPE (\w+)", text)) <= NAMES
    found = {}
    for name, labels, value in re.findall(r"(?m)^(\w+)\{(.*)\} (\S+)$", text):
        more = re.search(r'(?:replica|outcome)="(\w+)"', labels)
        found[f"{name} {more[1]}" if more else name] = float(value)
    return found


async def test_metrics_follow_a_replica_from_master_to_follower(replicas: ReplicaSet) -> None:
    for number in (1, 2):
        await replicas.start(number)
    await replicas.until(lambda: replicas.in_sync == [1, 2])
    master = replicas.master_server
    assert master is not None
    other = 3 - master.number
    scraping = Scraping([master.metrics()], 10_000)
    async with AsyncProducer("g", replicas.namesrv) as producer, AsyncAdmin(replicas.namesrv) as admin:
        await producer.send(Message("orders", b"1"))
        found = await samples(scraping)
        assert {name.split()[0] for name in found} >= {family.name for family in FAMILIES}
        assert (found["pyromq_replica_is_master"], found["pyromq_replica_epoch"]) == (1, 1)
        assert (found["pyromq_replicas_in_sync"], found["pyromq_replica_needs_operator"]) == (2, 0)
        end = master.broker.store.max_log_offset
        assert end > 0 and found["pyromq_replica_confirmed_end"] == found["pyromq_log_bytes"] == end
        assert found[f"pyromq_replica_lag_bytes {other}"] == found[f"pyromq_replica_lag_seconds {other}"] == 0
        assert found["pyromq_replica_swaps_total done"] >= 2

        broker = master.broker
        await admin.replica_sets.hand_over("orders", other)
        await replicas.until(lambda: master.broker is not broker and master.is_open)
        await producer.send(Message("orders", b"2"))
        await replicas.until(lambda: master.broker.store.max_log_offset > end)
        found = await samples(scraping)
        assert (found["pyromq_replica_is_master"], found["pyromq_replica_epoch"]) == (0, 2)
        assert found["pyromq_log_bytes"] == master.broker.store.max_log_offset
        figures = await admin.broker_runtime(master.broker.address)
    assert figures["pyromqReplica"] == str(master.number)
    assert (figures["pyromqReplicaEpoch"], figures["pyromqReplicasInSync"]) == ("2", "1,2")
    assert scraping.faults()["replica set"] == ""


async def test_a_follower_is_ready(replicas: ReplicaSet) -> None:
    for number in (1, 2):
        await replicas.start(number)
    await replicas.until(lambda: replicas.in_sync == [1, 2])
    for server in replicas.servers.values():
        assert not any(server.metrics().faults().values())
