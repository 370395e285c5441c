"""Servers for tests with Spark: a cluster in a thread of this process, and one in a process that can be killed."""

import asyncio
import contextlib
import os
import sys
import time
from concurrent.futures import Future
from threading import Thread

from tests.processes import Program, free_port
from tests.waiting import PATIENCE_SECONDS

from pyromq import PullConsumer
from pyromq.clock import SystemClock
from pyromq.testing import Cluster


@contextlib.contextmanager
def cluster_in_thread(brokers=1):
    """Give the name server of a cluster; Spark's workers reach it over loopback."""
    ready: Future[str] = Future()
    stopping: Future[asyncio.Event] = Future()

    async def serve():
        async with Cluster(brokers, clock=SystemClock()) as cluster:
            stop = asyncio.Event()
            stopping.set_result(stop)
            ready.set_result(cluster.namesrv)
            await stop.wait()

    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        yield ready.result(PATIENCE_SECONDS)
    finally:
        loop.call_soon_threadsafe(stopping.result().set)
        thread.join()
        loop.close()


class Served:
    """`pyromq serve` as a process, on ports that it keeps when it is started again."""

    def __init__(self, folder):
        port = free_port()
        self.namesrv = f"127.0.0.1:{port}"
        self._command = (
            *(sys.executable, "-m", "pyromq", "serve", "--data", folder),
            *("--namesrv-port", str(port), "--broker-port", str(free_port())),
        )

    def start(self):
        self._program = Program(self._command, "ready in", os.environ)
        self._program.wait_until_ready()

    def kill(self):
        self._program.kill()

    def stop(self):
        self._program.stop()


def numbers_seen(namesrv, topic, least):
    """Return the numbers that the messages of a topic are, in order, once there are `least` of them."""
    with PullConsumer("numbers-seen", namesrv) as consumer:
        while sum(map(consumer.max_offset, consumer.queues(topic))) < least:
            time.sleep(0.02)
        found = []
        for queue in consumer.queues(topic):
            offset = 0
            while offset < consumer.max_offset(queue):
                result = consumer.pull(queue, offset, 32)
                found += [int(message.body) for message in result.messages]
                offset = result.next_offset
    return sorted(found)
