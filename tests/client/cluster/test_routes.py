"""Routes: what may be written and read, and where."""

import pytest

from pyromq.client.cluster.topic_routes import Routes, read_route, route_for_new_topic
from pyromq.errors import ProtocolError
from pyromq.message import MessageQueue
from pyromq.remoting.bodies import BrokerAddresses, QueuesAtBroker, TopicRoute

A = BrokerAddresses("broker-a", "c", {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"})
B = BrokerAddresses("broker-b", "c", {0: "10.0.0.3:10911"})
SLAVE_ONLY = BrokerAddresses("broker-c", "c", {1: "10.0.0.4:10911"})


def route(*queues, brokers=(A, B, SLAVE_ONLY), order_conf=None):
    return read_route("t", TopicRoute(brokers=list(brokers), queues=list(queues), order_conf=order_conf))


def ids(queues):
    return [(queue.broker_name, queue.queue_id) for queue in queues]


def test_queues_come_in_order_of_broker_name_and_id():
    found = route(QueuesAtBroker("broker-b", 6, 1, 1), QueuesAtBroker("broker-a", 6, 3, 2))
    assert ids(found.writable) == [("broker-a", 0), ("broker-a", 1), ("broker-b", 0)]
    assert ids(found.readable) == [("broker-a", 0), ("broker-a", 1), ("broker-a", 2), ("broker-b", 0)]


@pytest.mark.parametrize(("permission", "writable", "readable"), [(6, 1, 1), (4, 0, 1), (2, 1, 0), (0, 0, 0)])
def test_permission_decides_what_may_be_done(permission, writable, readable):
    found = route(QueuesAtBroker("broker-a", permission, 1, 1))
    assert (len(found.writable), len(found.readable)) == (writable, readable)


def test_writing_needs_a_master_reading_does_not():
    found = route(QueuesAtBroker("broker-c", 6, 1, 1), QueuesAtBroker("unknown", 6, 1, 1))
    assert found.writable == ()
    assert ids(found.readable) == [("broker-c", 0), ("unknown", 0)]


def test_an_order_topic_keeps_its_queues_when_a_broker_is_away():
    found = route(QueuesAtBroker("broker-a", 6, 8, 8), order_conf="broker-a:1;broker-x:2;;bad:y")
    assert ids(found.writable) == [("broker-a", 0), ("broker-x", 0), ("broker-x", 1)]


@pytest.mark.parametrize(
    ("broker_id", "address"), [(0, "10.0.0.1:10911"), (1, "10.0.0.2:10911"), (7, "10.0.0.1:10911")]
)
def test_reading_takes_the_wanted_broker_id_or_any(broker_id, address):
    assert route().replica("broker-a", broker_id) == address


def test_reading_takes_the_next_id_when_the_wanted_one_is_away():
    found = route(brokers=[BrokerAddresses("broker-a", "c", {0: "m", 2: "s"})])
    assert found.replica("broker-a", 1) == "s"


def test_unknown_brokers_have_no_address():
    assert route().master("nobody") is None
    assert route().replica("nobody") is None
    assert route().master("broker-c") is None


def test_a_new_topic_goes_where_the_template_is_with_fewer_queues():
    template = TopicRoute(
        brokers=[A, B], queues=[QueuesAtBroker("broker-a", 7, 8, 8), QueuesAtBroker("broker-b", 7, 2, 9)]
    )
    found = route_for_new_topic("new", template, 4)
    assert ids(found.writable) == [("broker-a", n) for n in range(4)] + [("broker-b", 0), ("broker-b", 1)]
    assert {queue.topic for queue in found.writable} == {"new"}


def test_learning_tells_whether_a_route_changed():
    routes = Routes()
    one, other = route(QueuesAtBroker("broker-a", 6, 1, 1)), route(QueuesAtBroker("broker-a", 6, 2, 2))
    assert routes.learn(one)
    assert not routes.learn(one)
    assert routes.learn(other)
    assert routes.find("t") == other
    routes.forget("t")
    assert routes.find("t") is None


def test_broker_addresses_are_those_of_all_routes():
    routes = Routes()
    routes.learn(route())
    assert routes.broker_addresses(masters_only=True) == {"10.0.0.1:10911", "10.0.0.3:10911"}
    assert len(routes.broker_addresses()) == 4


def test_queue_names_its_topic_and_broker():
    assert route(QueuesAtBroker("broker-a", 6, 1, 1)).writable[0] == MessageQueue("t", "broker-a", 0)


@pytest.mark.parametrize(
    ("queues", "order_conf"),
    [
        ([QueuesAtBroker("broker-a", 6, 65_537, 1)], None),
        ([QueuesAtBroker("broker-a", 6, 1, 2_147_483_647)], None),
        ([QueuesAtBroker("broker-a", 6, -1, 1)], None),
        ([QueuesAtBroker("broker-a", 0, 10**30, 10**30)], None),
        ([QueuesAtBroker("broker-a", 6, 65_536, 65_536)] * 5, None),
        ([], "broker-a:2147483647"),
        ([], "broker-a:" + "9" * 10_000),
        ([], "broker-a:65536;" * 10),
    ],
)
def test_more_queues_than_there_can_be_are_refused_before_they_are_made(queues, order_conf):
    with pytest.raises(ProtocolError, match=r"the route of topic t has .* queues .*(65536|524288)"):
        route(*queues, order_conf=order_conf)


def test_as_many_queues_as_a_broker_may_have_are_a_route():
    assert len(route(QueuesAtBroker("broker-a", 6, 65_536, 65_536)).readable) == 65_536
