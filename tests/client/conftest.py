"""A real cluster for client tests; also in a thread of its own, for the blocking clients."""

import asyncio
import threading

import pytest

from pyromq.testing.cluster import Cluster


@pytest.fixture
async def cluster():
    async with Cluster() as cluster:
        yield cluster


@pytest.fixture
async def pair():
    async with Cluster(brokers=2, auto_create_topic=False) as cluster:
        yield cluster


class ThreadedCluster:
    """A cluster whose event loop runs in another thread; `do` runs its coroutines there."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.cluster = Cluster()
        self.do(self.cluster.__aenter__())
        self.namesrv = self.cluster.namesrv

    def do(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(10)

    def close(self):
        self.do(self.cluster.__aexit__(None, None, None))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture(scope="module")
def served():
    cluster = ThreadedCluster()
    yield cluster
    cluster.close()
