"""Connections of kombu to a real broker in this process."""

import pytest

pytest.importorskip("kombu")

import kombu

import pyromq.celery  # noqa: F401  registers rocketmq://
from pyromq.testing import BlockingCluster


@pytest.fixture
def cluster():
    with BlockingCluster() as cluster:
        yield cluster


@pytest.fixture
def connect(cluster):
    """Return a function that opens a connection with these transport options."""
    opened = []

    def connect(virtual_host="", **options):
        url = f"rocketmq://{cluster.namesrv}/{virtual_host}"
        connection = kombu.Connection(url, transport_options=options)
        opened.append(connection)
        connection.connect()
        return connection

    yield connect
    for connection in opened:
        connection.release()


@pytest.fixture
def connection(connect):
    return connect()
