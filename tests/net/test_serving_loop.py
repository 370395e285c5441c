"""The loop of a process that serves: requests are answered while it waits; all else goes on as in any loop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
import time

import pytest

from pyromq import speedups
from pyromq.clock import SystemClock
from pyromq.net.channel import connect
from pyromq.net.listening import new_serving_loop, selector_of
from pyromq.net.server import Server
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.headers import MaxOffset, OffsetResponse

if speedups.is_active:
    from pyromq.speedups import reactor as reactor_module


def run(main):
    with asyncio.Runner(loop_factory=new_serving_loop) as runner:
        return runner.run(main())


def test_the_loop_of_a_server_is_one_that_serves_where_there_are_compiled_parts():
    async def main():
        return selector_of(asyncio.get_running_loop())

    assert (run(main) is not None) == speedups.is_active


def test_requests_are_answered_and_the_reactor_is_forgotten_with_its_server(offsets):
    async def main():
        server = Server(Dispatcher(offsets), SystemClock())
        await server.start()
        channel = await connect(f"127.0.0.1:{server.port}", Dispatcher(), SystemClock())
        answers = [await channel.call(MaxOffset(topic="t", queue_id=n), timeout=30) for n in range(20)]
        await channel.close()
        await server.close(drain_seconds=0)
        selector = selector_of(asyncio.get_running_loop())
        return [answer.header(OffsetResponse).offset for answer in answers], selector and selector.reactors

    found, reactors = run(main)
    assert len(found) == 20
    assert not reactors


def test_timers_threads_and_other_sockets_have_their_turn(offsets):
    async def main():
        loop = asyncio.get_running_loop()
        server = Server(Dispatcher(offsets), SystemClock())
        await server.start()
        called = loop.create_future()
        thread = threading.Thread(target=lambda: loop.call_soon_threadsafe(called.set_result, "thread"))
        thread.start()
        heard = [await called, await asyncio.sleep(0.01, "timer")]
        thread.join()
        echo = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*echo.sockets[0].getsockname())
        heard.append(await reader.read())
        writer.close()
        echo.close()
        await server.close(drain_seconds=0)
        return heard

    assert run(main) == ["thread", "timer", b""]


def test_ctrl_c_ends_it(offsets):
    async def main():
        server = Server(Dispatcher(offsets), SystemClock())
        await server.start()
        asyncio.get_running_loop().call_later(0.05, signal.raise_signal, signal.SIGINT)
        try:
            await asyncio.sleep(30)
        finally:
            await server.close(drain_seconds=0)

    with pytest.raises(KeyboardInterrupt):
        run(main)


@pytest.mark.skipif(not speedups.is_active, reason="without compiled parts no selector serves")
def test_a_turn_is_shorter_where_the_loop_has_something_else_to_do():
    with served_each_for(0.00006) as (selector, served):
        selector.select(0)
        assert len(served) <= 4
    assert any(served_in_a_patient_turn() > 4 for _ in range(100))  # others on the machine may make some end early


@pytest.mark.skipif(not speedups.is_active, reason="without compiled parts no selector serves")
def test_those_a_turn_has_no_time_for_come_first_in_the_next():
    with served_each_for(0.0006) as (selector, served):
        for turn in range(1, 9):
            selector.select(0)
            assert len(served) == turn
        assert len(set(served)) == 8


def served_in_a_patient_turn():
    with served_each_for(0.00006) as (selector, served):
        selector.select(10)
        return len(served)


@contextlib.contextmanager
def served_each_for(seconds):
    """Yield a selector, and who of eight connections that always have something to say has been served."""
    served = []

    class Slow(asyncio.Protocol):
        def __init__(self, peer):
            self.peer = peer

        def data_received(self, data):
            end = time.thread_time() + seconds
            while time.thread_time() < end:
                pass
            served.append(self)
            self.peer.send(b"x")

    with contextlib.ExitStack() as stack:
        loop = stack.enter_context(contextlib.closing(new_serving_loop()))
        selector = selector_of(loop)
        reactor = stack.enter_context(
            contextlib.closing(reactor_module.Reactor(loop, monotonic=time.monotonic, selector=selector))
        )
        for _ in range(8):
            own, peer = socket.socketpair()
            own.setblocking(False)
            reactor.add(own, Slow(stack.enter_context(peer)))
            peer.send(b"x")
        yield selector, served
