"""The short form of `make failover`: a master is killed under load."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.etcd_cluster import need_etcd
from tests.failover.run import run

pytest.importorskip("pyromq.broker.replication.replica_server", reason="brokers do not form sets yet")
MAX_SECONDS = 20.0  # without confirmations; an idle machine needs less than one


@pytest.mark.slow
async def test_a_killed_master_loses_nothing(tmp_path: Path) -> None:
    need_etcd()
    verdict = await run(tmp_path, 1, 1, replicas=2, members=1, only=("kill_master",))
    print(verdict)
    assert not verdict.faults, str(verdict)
    assert verdict.confirmed > 100
    assert verdict.longest_pause < MAX_SECONDS
