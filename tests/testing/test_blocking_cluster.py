"""The cluster for tests without an event loop: the same servers, blocking clients, and nothing left behind."""

import threading

import pytest
from tests.waiting import PATIENCE_SECONDS

from pyromq.errors import NotRunning, UsageError
from pyromq.message import Message
from pyromq.testing import BlockingCluster


def test_messages_go_round_between_blocking_clients():
    done = threading.Event()
    with BlockingCluster() as cluster:
        cluster.admin().create_topic("orders", 1)
        consumer = cluster.push_consumer()
        consumer.subscribe("orders", lambda messages: done.set())
        cluster.producer().send(Message("orders", b"1"))
        assert done.wait(PATIENCE_SECONDS)


def test_brokers_stop_and_start_as_told(tmp_path):
    with BlockingCluster(2, data=tmp_path) as cluster:
        address = cluster.broker.address
        cluster.stop_broker()
        assert not (tmp_path / "broker-a" / "abort").exists()
        assert cluster.start_broker().address == address
        cluster.kill_broker(1)
        assert (tmp_path / "broker-b" / "abort").exists()


def test_the_servers_time_is_the_tests():
    with BlockingCluster() as cluster:
        producer = cluster.producer()
        cluster.admin().create_topic("orders", 1)
        sent = producer.send(Message("orders", b"later", delay=60))
        consumer = cluster.consumer()
        (queue,) = consumer.queues("orders")
        assert sent.recall_handle is not None
        assert consumer.max_offset(queue) == 0
        cluster.advance(61)
        assert consumer.max_offset(queue) == 1


def test_settings_are_the_brokers_and_links_can_be_cut():
    with BlockingCluster(linked=True, auto_create_topic=False) as cluster:
        assert not cluster.broker.config.auto_create_topic
        cluster.admin().create_topic("orders")
        producer = cluster.producer()
        producer.send(Message("orders", b"1"))
        (link,) = cluster.links
        assert link.connections
        cluster.run(cluster.links[0].close())
        assert not link.connections


def test_nothing_is_left_behind_also_when_it_cannot_start(tmp_path):
    threads = set(threading.enumerate())
    with BlockingCluster(data=tmp_path) as cluster:
        cluster.producer().send(Message("orders", b"1"))
        with pytest.raises(UsageError, match="in use"), BlockingCluster(2, port=cluster.broker.config.port):
            pass
    assert set(threading.enumerate()) <= threads  # those of earlier tests may end
    with pytest.raises(NotRunning, match="start it with `with`"):
        cluster.advance(1)
