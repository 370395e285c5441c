"""A replica set's masters by epoch: a former master neither enters a route again nor removes its successor."""

import pytest
from tests.nameserver.conftest import announcement
from tests.nameserver.test_routes import addresses, register

from pyromq.errors import BrokerError
from pyromq.nameserver.routes import BrokerIdentity, RouteTable
from pyromq.remoting.headers import RouteOfTopic, UnregisterBroker

FIRST, SECOND, THIRD = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"


def master(address, epoch):
    return BrokerIdentity("c", "a", 0, address, epoch)


def replica(number, address, epoch=1):
    return BrokerIdentity("c", "a", number, address, epoch)


@pytest.fixture
def table():
    """A set whose second replica has taken over from the first one."""
    table = RouteTable()
    register(table, master(FIRST, 1), "t")
    register(table, replica(2, SECOND), "t")
    register(table, replica(3, THIRD), "t")
    register(table, master(SECOND, 2), "t")
    return table


def entry(table):
    (broker,) = table.route("t").brokers
    return broker


def test_the_route_has_the_epoch_and_says_that_there_is_a_set(table):
    assert entry(table).addresses == {0: SECOND, 3: THIRD}
    assert (entry(table).epoch, entry(table).failover) == (2, True)


def test_a_brokers_route_outside_sets_has_neither(table):
    register(table, BrokerIdentity("c", "b", 0, "10.0.0.9:10911"), "u")
    (broker,) = table.route("u").brokers
    assert (broker.epoch, broker.failover) == (None, None)


def test_a_former_master_is_refused_and_its_successor_stays(table):
    with pytest.raises(BrokerError, match=f"a at {FIRST} is no longer .* epoch 1 is lower than epoch 2 of {SECOND}"):
        register(table, master(FIRST, 1), "t", version=9)
    with pytest.raises(BrokerError, match="epoch 1 is lower than epoch 2"):
        table.unregister(master(FIRST, 1))
    assert entry(table).addresses == {0: SECOND, 3: THIRD}


def test_a_former_master_comes_back_as_a_replica_and_its_late_requests_change_nothing(table):
    register(table, replica(1, FIRST, 2), "t")
    for late in (register, lambda table, broker, *_: table.unregister(broker)):
        with pytest.raises(BrokerError, match="no longer the master"):
            late(table, master(FIRST, 1), "t")
    assert entry(table).addresses == {0: SECOND, 1: FIRST, 3: THIRD}


def test_the_epoch_outlasts_the_master(table):
    table.unregister(master(SECOND, 2))
    assert (entry(table).addresses, entry(table).epoch, entry(table).failover) == ({3: THIRD}, 2, True)
    with pytest.raises(BrokerError, match="epoch 1 is lower than epoch 2 of the latest master"):
        register(table, master(FIRST, 1), "t")
    register(table, master(THIRD, 3), "t")
    assert (entry(table).addresses, entry(table).epoch) == ({0: THIRD}, 3)


def test_a_set_is_known_by_its_replicas_alone():
    table = RouteTable()
    register(table, BrokerIdentity("c", "a", 0, FIRST), "t")
    register(table, replica(2, SECOND), "t")
    assert (entry(table).epoch, entry(table).failover) == (None, True)


def test_the_epoch_is_forgotten_with_the_last_replica(table):
    table.unregister(replica(3, THIRD))
    table.unregister(master(SECOND, 2))
    register(table, master(FIRST, 1), "t")
    assert (entry(table).addresses, entry(table).epoch) == ({0: FIRST}, 1)


def test_a_broker_without_epoch_takes_no_set_over_but_may_leave_its_own(table):
    with pytest.raises(BrokerError, match=f"a at {FIRST} cannot be the master: .* replica set of epoch 2"):
        register(table, BrokerIdentity("c", "a", 0, FIRST), "t")
    with pytest.raises(BrokerError, match="cannot be the master"):
        table.unregister(BrokerIdentity("c", "a", 0, FIRST))
    register(table, BrokerIdentity("c", "a", 0, SECOND), "t")  # started again outside the set
    assert (addresses(table, "t"), entry(table).epoch) == ({"a": {0: SECOND, 3: THIRD}}, None)


async def test_epochs_cross_the_wire_and_are_absent_without_a_set(broker, client):
    await broker.register(announcement("t"))
    assert b"epoch" not in (await client.ask(RouteOfTopic(topic="t"))).body
    await broker.register(announcement("t"), epoch=7)
    assert b'"epoch":7,"failover":true' in (await client.ask(RouteOfTopic(topic="t"))).body
    late = await broker.register(announcement("t"), address=SECOND, epoch=6, code=1)
    assert late.remark.startswith(f"broker a at {SECOND} is no longer the master")
    leaving = UnregisterBroker(broker_name="a", broker_address=FIRST, cluster="c", broker_id=0, epoch=6)
    await broker.ask(leaving, code=1)
    assert (await client.route("t")).brokers[0].addresses == {0: FIRST}
