"""Which master a client believes in: name servers may be behind, and replicas name their master."""

import pytest

from pyromq.client.cluster.topic_routes import Routes, read_route
from pyromq.remoting.bodies import BrokerAddresses, QueuesAtBroker, TopicRoute

OLD, NEW, LATEST = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"


def route(master, epoch=None, *, topic="t", replicas=(), failover=True):
    by_id = ({0: master} if master else {}) | dict(enumerate(replicas, 1))
    broker = BrokerAddresses("a", "c", by_id, epoch, failover or None)
    return read_route(topic, TopicRoute(brokers=[broker], queues=[QueuesAtBroker("a", 6, 1, 1)]))


@pytest.fixture
def changes():
    return []


@pytest.fixture
def routes(changes):
    routes = Routes()
    routes.on_master_change.append(lambda *change: changes.append(change))
    return routes


def master(routes, topic="t"):
    return routes.find(topic).master("a")


def test_a_lower_epoch_is_not_believed_and_a_higher_one_is(routes, changes):
    routes.learn(route(NEW, 2))
    assert not routes.learn(route(OLD, 1))
    assert (master(routes), routes.find("t").epochs) == (NEW, {"a": 2})
    assert routes.learn(route(LATEST, 3))
    assert master(routes) == LATEST
    assert changes == [("a", NEW, LATEST)]


def test_a_lower_epoch_in_another_topics_route_is_not_believed_either(routes):
    routes.learn(route(NEW, 2))
    routes.learn(route(OLD, 1, topic="u"))
    assert (master(routes, "u"), routes.find("u").epochs) == (NEW, {"a": 2})


def test_a_new_master_counts_for_all_topics(routes, changes):
    routes.learn(route(OLD, 1))
    routes.learn(route(OLD, 1, topic="u"))
    routes.learn(route(NEW, 2, topic="u"))
    assert (master(routes), routes.find("t").epochs) == (NEW, {"a": 2})
    assert changes == [("a", OLD, NEW)]


def test_a_route_without_a_master_is_believed_and_its_queues_stay_writable(routes, changes):
    routes.learn(route(OLD, 1, replicas=[NEW]))
    routes.learn(route(None, 1, replicas=[NEW]))
    assert master(routes) is None
    assert routes.find("t").replica("a") == NEW
    assert len(routes.find("t").writable) == 1
    routes.learn(route(NEW, 2))
    assert changes == [("a", OLD, NEW)]


def test_an_unchanged_route_stays_the_same_object(routes):
    routes.learn(route(OLD, 1))
    known = routes.find("t")
    assert not routes.learn(route(OLD, 1))
    assert routes.find("t") is known


@pytest.mark.parametrize("epoch", [1, None])
def test_a_refusals_master_is_used_until_a_name_server_names_another(routes, changes, epoch):
    routes.learn(route(OLD, epoch, replicas=[NEW]))
    routes.redirect("a", NEW)
    assert routes.find("t").addresses == {"a": {0: NEW}}
    routes.learn(route(OLD, epoch, replicas=[NEW]))  # the name server is behind
    assert master(routes) == NEW
    routes.learn(route(None, epoch, replicas=[NEW]))
    assert master(routes) == NEW
    routes.learn(route(LATEST, epoch))
    assert master(routes) == LATEST
    assert changes == [("a", OLD, NEW), ("a", NEW, LATEST)]


def test_a_higher_epoch_ends_a_refusals_word(routes):
    routes.learn(route(OLD, 1))
    routes.redirect("a", NEW)
    routes.learn(route(OLD, 3))  # it is the master again
    assert master(routes) == OLD


def test_two_refusals_in_a_row_are_followed(routes):
    routes.learn(route(OLD, 1))
    routes.redirect("a", NEW)
    routes.redirect("a", LATEST)
    routes.learn(route(OLD, 1))
    assert master(routes) == LATEST
    routes.redirect("a", OLD)
    routes.learn(route(NEW, 1))
    assert master(routes) == OLD


def test_a_named_master_that_cannot_be_reached_is_forgotten(routes):
    routes.learn(route(OLD, 1))
    routes.redirect("a", NEW)
    routes.unreachable(LATEST)
    routes.learn(route(OLD, 1))
    assert master(routes) == NEW
    routes.unreachable(NEW)
    routes.learn(route(OLD, 1))
    assert master(routes) == OLD


def test_a_named_master_that_knows_none_is_forgotten(routes):
    routes.learn(route(OLD, 1))
    routes.redirect("a", NEW)
    routes.redirect("a", None)
    assert master(routes) == NEW  # until a route is fetched
    routes.learn(route(OLD, 1))
    assert master(routes) == OLD


def test_a_refusal_of_a_plain_pairs_slave_is_followed_too(routes, changes):
    routes.learn(route(OLD, failover=False))
    routes.learn(route(OLD, failover=False, topic="u"))
    routes.redirect("a", NEW)
    assert (master(routes), master(routes, "u"), changes) == (NEW, NEW, [("a", OLD, NEW)])
    assert routes.find("t").epochs == {}


def test_a_plain_brokers_new_address_is_no_change_of_masters(routes, changes):
    routes.learn(route(OLD, failover=False))
    routes.learn(route(NEW, failover=False))
    assert (master(routes), changes) == (NEW, [])
