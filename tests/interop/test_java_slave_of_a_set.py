"""A genuine slave 4.9.7 below a replica set: it has the log of each master in turn, and is never in sync."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from tests.etcd_cluster import need_etcd
from tests.failover.machines import SET, SETTINGS, Machines
from tests.interop.peers.java import furnish
from tests.interop.peers.pairs import log_files, written
from tests.interop.peers.servers import genuine
from tests.processes import free_port

from pyromq import AsyncAdmin, AsyncProducer, Message

pytestmark = pytest.mark.interop

TOPIC, NUMBER = "copied", 300  # above the numbers of replicas
BODIES, LARGEST = 150, 100_000  # together several log files


def is_copy(master: Path, slave: Path) -> bool:
    """Whether a slave has its master's log from the file on with which it began."""
    there, here = log_files(master), log_files(slave)
    return bool(here) and {name: data for name, data in there.items() if name >= min(here)} == here


async def test_a_java_slave_has_the_log_of_each_master(jars: None, tmp_path: Path) -> None:
    need_etcd()
    async with Machines(tmp_path, replicas=3, members=1, minInSyncReplicas=2, failoverSlavePort=0) as machines:
        await machines.until(lambda: machines.in_sync == 3)
        home, store = furnish(tmp_path / "java"), tmp_path / "slave"
        settings = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": SET,
            "brokerRole": "SLAVE",
            "brokerId": NUMBER,
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "listenPort": free_port(-2, 1),
            "namesrvAddr": machines.namesrv,
            "storePathRootDir": store,
            "mappedFileSizeCommitLog": SETTINGS["mappedFileSizeCommitLog"],
            "haSendHeartbeatInterval": 1_000,
        }
        file = written(home / "slave.properties", settings)
        slave = await asyncio.to_thread(genuine, home, "broker", file, heap="512m")
        noise = random.Random(5)
        try:
            async with AsyncAdmin(machines.namesrv) as admin, AsyncProducer("p", machines.namesrv) as producer:
                await admin.create_topic(TOPIC, queues=4)
                for _ in range(2):
                    for _ in range(BODIES):
                        await producer.send(Message(TOPIC, noise.randbytes(noise.randrange(1, LARGEST))))
                    master = machines.master
                    assert master is not None
                    folder = tmp_path / master.name
                    await machines.until(lambda folder=folder: is_copy(folder, store))
                    await admin.replica_sets.hand_over(SET, machines.replicas.index(machines.followers[0]) + 1)
                    await machines.until(lambda master=master: machines.master is not master)
                    await machines.until(lambda: machines.in_sync == 3)
            assert len(log_files(store)) > 1
        finally:
            slave.kill()
