"""Masters, slaves and promoted slaves at name servers."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.broker.test_name_server_registration import advance_until, ask, route
from tests.waiting import until

from pyromq.broker.broker import Broker
from pyromq.broker.config import ConfiguredRole
from pyromq.broker.role import BrokerRole
from pyromq.nameserver.name_server import NameServer
from pyromq.nameserver.name_server_config import NameServerConfig
from pyromq.net.connection_config import ConnectionConfig
from pyromq.remoting.headers import RegisterBroker, UnregisterBroker


@pytest.fixture
async def names(clock):
    async with NameServer(NameServerConfig(port=0), clock) as names:
        yield names


@pytest.fixture
def slave_config(config, names, tmp_path):
    folder = tmp_path / "slave"
    return replace(
        config,
        data=folder,
        store=replace(config.store, root=folder),
        namesrv=(names.address,),
        role=ConfiguredRole.SLAVE,
        broker_id=1,
    )


@pytest.fixture
def master_config(config, names):
    return replace(config, namesrv=(names.address,))


def addresses(names):
    """The addresses under which the name server knows the broker name, by broker id."""
    found = names.routes.cluster_table().brokers.get("broker-a")
    return {} if found is None else found.addresses


async def test_a_slave_is_registered_under_its_id_and_learns_its_master(master_config, slave_config, clock, names):
    async with Broker(master_config, clock) as master:
        master.role.serve_slaves_at("127.0.0.1:7")
        await until(lambda: names.routes.master_of("broker-a") == (master.address, "127.0.0.1:7"))
        async with Broker(slave_config, clock) as slave:
            assert addresses(names) == {0: master.address, 1: slave.address}
            assert (slave.role.master_address, slave.role.ha_address) == (master.address, "127.0.0.1:7")


async def test_a_fixed_ha_address_is_never_replaced(master_config, slave_config, clock, names):
    slave_config = replace(slave_config, ha_master="127.0.0.1:9")
    async with Broker(master_config, clock) as master, Broker(slave_config, clock) as slave:
        assert (slave.role.master_address, slave.role.ha_address) == (master.address, "127.0.0.1:9")


async def test_a_slave_without_a_name_server_derives_its_master_from_the_fixed_address(slave_config, clock):
    async with Broker(replace(slave_config, namesrv=(), ha_master="127.0.0.1:9"), clock) as slave:
        assert (slave.role.master_address, slave.role.ha_address) == ("127.0.0.1:8", "127.0.0.1:9")


async def test_a_master_that_is_gone_stays_the_slaves_master(master_config, slave_config, clock, names):
    async with Broker(slave_config, clock) as slave:
        async with Broker(master_config, clock) as master:
            await advance_until(clock, lambda: slave.role.master_address == master.address, seconds=40)
        await clock.advance(30)
        await until(lambda: slave.registering.registered == [names.address])
        assert slave.role.master_address == master.address


async def test_a_promoted_slave_is_the_master_at_once(master_config, slave_config, clock, names):
    async with Broker(slave_config, clock) as slave:
        slave.role.epoch = 1
        assert addresses(names) == {1: slave.address}

        await slave.promote(epoch=2)

        await until(lambda: names.routes.master_of("broker-a")[0] == slave.address)  # without time passing
        assert addresses(names) == {0: slave.address}
        assert (await route(names, "TBW102")).brokers[0].epoch == 2
    assert addresses(names) == {}


async def test_a_promoted_slave_registers_again_when_a_late_registration_replaced_it(slave_config, clock, names):
    async with Broker(slave_config, clock) as slave:
        await slave.promote()
        await until(lambda: names.routes.master_of("broker-a")[0] == slave.address)
        late = RegisterBroker(
            broker_name="broker-a", broker_address="127.0.0.1:1", cluster="DefaultCluster", broker_id=0
        )
        await ask(names.address, late)

        await advance_until(clock, lambda: names.routes.master_of("broker-a")[0] == slave.address, seconds=2)


async def test_a_master_that_steps_down_is_registered_under_its_number_and_never_under_0(master_config, clock, names):
    async with Broker(master_config, clock, role=BrokerRole(3, is_master=True, epoch=1)) as former:
        assert addresses(names) == {0: former.address}
        former.role.step_down("127.0.0.1:1", epoch=2)
        await until(lambda: addresses(names) == {3: former.address})
        await clock.advance(31)
        await until(lambda: addresses(names) == {3: former.address})
    assert addresses(names) == {}


@pytest.mark.parametrize("fence", ["", "another replica may be the master"])
async def test_a_master_that_may_have_been_replaced_does_not_unregister_its_successor(master_config, clock, fence):
    sent = []
    hook = SimpleNamespace(before_request=lambda request: sent.append(request.code), after_response=lambda *_: None)
    config = replace(master_config, connections=ConnectionConfig(hooks=(hook,)))
    async with Broker(config, clock, role=BrokerRole(3, is_master=True, epoch=1)) as former:
        former.role.raise_fence(fence)
    assert (UnregisterBroker.code in sent) == (not fence)


async def test_a_role_that_changes_by_the_reply_to_a_registration_is_registered(
    master_config, slave_config, clock, names, caplog
):
    role = BrokerRole(1, is_master=False)
    async with Broker(master_config, clock) as master:
        slave = Broker(replace(slave_config, role=None, broker_id=0), clock, role=role)
        role.number = 3  # as a replica of a set gets its number
        async with slave:
            await until(lambda: addresses(names) == {0: master.address, 3: slave.address})
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
