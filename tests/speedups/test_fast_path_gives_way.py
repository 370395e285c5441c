"""Compiled answers are given only where nobody wants to see requests before."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest
from tests.broker.headers import pull_header, send_header
from tests.waiting import until

from pyromq import speedups
from pyromq.clock import SystemClock
from pyromq.errors import NoPermission
from pyromq.message import Message
from pyromq.net.channel import connect
from pyromq.net.connection_config import ConnectionConfig
from pyromq.net.server import Server
from pyromq.remoting.command import encode_request
from pyromq.remoting.dispatch import Dispatcher
from pyromq.testing import Cluster

pytestmark = pytest.mark.skipif(not speedups.is_active, reason="the compiled parts are not active")


class Refusing:
    reads_fields = False
    is_compiled = False

    def judge(self, call):
        return NoPermission("not you")


class Counting:
    def __init__(self):
        self.codes = []

    def before_request(self, request):
        self.codes.append(request.code)

    def after_response(self, request, outcome):
        pass


@pytest.fixture
async def cluster():
    async with Cluster(clock=SystemClock(), default_topic_queues=1) as cluster:
        producer = await cluster.producer()
        await producer.send(Message("orders", b"first"))
        yield cluster


async def answers(cluster, **options):
    """Send twice to the broker's parts over another port; return the codes of the answers."""
    parts = cluster.broker._modules
    guard = options.pop("guard", None)
    dispatcher = Dispatcher(*(answerer for part in parts for answerer in part.answerers), guard=guard)
    fast_path = [handler for part in parts for handler in part.fast_path]
    server = Server(dispatcher, SystemClock(), fast_path=fast_path, **options)
    await server.start()
    channel = await connect(f"127.0.0.1:{server.port}", Dispatcher(), SystemClock())
    try:
        request = send_header("", topic="orders", queue_id=0)
        return [(await channel.call(request, b"x", timeout=30)).code for _ in range(2)]
    finally:
        await channel.close()
        await server.close(drain_seconds=0)


async def test_without_guard_and_hooks_sends_are_stored(cluster):
    assert await answers(cluster) == [0, 0]


async def test_a_guard_judges_every_send(cluster):
    assert await answers(cluster, guard=Refusing()) == [16, 16]


async def test_hooks_see_every_send(cluster):
    hook = Counting()
    assert await answers(cluster, connections=ConnectionConfig(hooks=(hook,))) == [0, 0]
    assert hook.codes == [310, 310]


async def test_many_bursts_that_python_answers_leave_others_their_turn(cluster):
    """Pulls that find nothing wait, which is Python's: 20 connections with 200 each must not hold up a send."""
    address, bursts, size = ("127.0.0.1", cluster.broker.port), 20, 200
    pull = pull_header(
        consumer_group="workers", queue_offset=1, sys_flag=6, suspend_ms=60_000, subscription="*", expression_type="TAG"
    )
    await (await cluster.producer()).send(Message("other", b"first"))
    waiting = cluster.broker._state.long_polls
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(socket.create_connection(address)) for _ in range(bursts + 1)]
        *greedy, honest = opened
        await until(lambda: len(cluster.broker._server.sessions) >= len(opened))
        for connection in greedy:
            connection.sendall(encode_request(pull, b"", opaque=1, flag=0) * size)
        honest.sendall(encode_request(send_header("", topic="other", queue_id=0), b"x", opaque=1, flag=0))
        honest.setblocking(False)
        while True:
            with contextlib.suppress(BlockingIOError):
                assert honest.recv(1 << 16)
                break
            await asyncio.sleep(0)
        assert len(waiting) < bursts * size * 3 / 4  # all, where each burst is answered to its end
