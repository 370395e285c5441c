"""The rig itself, at a broker without replicas: a kill under load of all kinds is judged to have lost nothing."""

from __future__ import annotations

import asyncio
import shutil

import pytest
from tests.failover.history import Kind, Sent
from tests.failover.judge import What, judge
from tests.failover.load import GROUPS, Load
from tests.failover.machines import Machines


@pytest.mark.slow
async def test_a_broker_alone_loses_nothing_when_it_is_killed(tmp_path):
    async with Machines(tmp_path, replicas=1, members=0) as machines, Load(machines.namesrv, machines.history) as load:
        await machines.until(lambda: load.confirmed > 100)
        await machines.replicas[0].kill()
        machines.note("kill", "b1")
        await asyncio.sleep(0.5)
        await machines.heal()
        count = load.confirmed
        await machines.until(lambda: load.confirmed > count + 100)
        await load.stop_sending()
        await load.settle()
    verdict = judge(machines.history, GROUPS)
    print(verdict)
    assert not verdict.faults, str(verdict)
    assert verdict.confirmed > 200
    once = {each.kind for each in machines.history.of(Sent) if each.once}
    assert once == {Kind.DELAYED, Kind.TRANSACTION}  # of these it is known that they were sent once


@pytest.mark.slow
async def test_a_broker_that_comes_back_with_an_empty_folder_is_found_out(tmp_path):
    async with Machines(tmp_path, replicas=1, members=0) as machines, Load(machines.namesrv, machines.history) as load:
        await machines.until(lambda: load.confirmed > 100)
        await load.stop_sending()
        await machines.replicas[0].kill()
        for each in (tmp_path / "b1").iterdir():
            if each.name != "config":  # topics are there again, messages are not
                shutil.rmtree(each) if each.is_dir() else each.unlink()
        await machines.heal()
        await load.settle(seconds=0.1)
    found = {fault.what for fault in judge(machines.history, GROUPS).faults}
    assert {What.LOST, What.GONE} <= found
