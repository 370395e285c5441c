"""A signed request that a replica passes on is judged by the master, as its client signed it."""

import shutil
from dataclasses import replace

import pytest
from tests.broker.headers import send_header
from tests.broker.replication.handover.other_client import client_at

from pyromq.broker.broker import Broker
from pyromq.broker.replication.handover.passing_on import PassingOn
from pyromq.broker.role import BrokerRole
from pyromq.clock import SystemClock
from pyromq.net.connection_config import ConnectionConfig

from .asking import signer


@pytest.fixture
async def follower(guarded, config, acl_file, clock, tmp_path):
    folder = tmp_path / "follower"
    other = replace(config, data=folder, store=replace(config.store_config, root=folder), port=0)
    other.permissions_folder.mkdir(parents=True)
    shutil.copy(acl_file, other.permissions_folder)
    passing = PassingOn(ConnectionConfig(signer=signer("admin-1")), SystemClock())
    async with Broker(other, clock, role=BrokerRole(1)) as follower:
        passing.dispatcher = follower.dispatcher
        follower.dispatcher.divert(passing.divert)
        passing.pass_to(guarded.address)
        yield follower
        await passing.stop()


@pytest.fixture
async def orders(account):
    admin = await account("admin-1")
    await admin.create_topic("orders")


async def test_the_account_of_the_client_decides_at_both_brokers(guarded, follower, orders):
    async with client_at(follower.address, signer=signer("writer-1")) as client:
        assert (await client.ask(send_header(topic="orders"), b"signed")).code == 0
    async with client_at(follower.address, signer=signer("reader-1")) as client:
        refused = await client.ask(send_header(topic="orders"), b"no right")
        assert "reader-1 needs PUB" in refused.remark
    async with client_at(follower.address) as client:
        assert (await client.ask(send_header(topic="orders"), b"unsigned")).code != 0
    assert guarded.store.message("orders", 0, 0).body == b"signed"
    assert guarded.store.next_offset("orders", 0) == 1


async def test_the_master_judges_what_a_replica_without_permissions_passes_on(guarded, follower, orders):
    follower.dispatcher._guard = None  # as if the replica's accounts were others
    async with client_at(follower.address, signer=signer("reader-1")) as client:
        refused = await client.ask(send_header(topic="orders"), b"no right")
        assert "reader-1 needs PUB" in refused.remark
    assert guarded.store.next_offset("orders", 0) == 0
