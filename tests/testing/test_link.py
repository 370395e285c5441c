"""The relay that makes a network bad: it holds, delays, cuts and comes back, and otherwise is not there."""

import asyncio
import socket
import time
from contextlib import asynccontextmanager, suppress

import pytest
from tests.net.sockets import open_narrow
from tests.waiting import PATIENCE_SECONDS, until

from pyromq.clock import SystemClock
from pyromq.errors import ConnectionLost, DeadlineExceeded, Unavailable
from pyromq.message import Message
from pyromq.net.channel import connect
from pyromq.net.server import Server
from pyromq.remoting.command import MAX_FRAME_BYTES, Reply
from pyromq.remoting.connection_limits import ConnectionLimits
from pyromq.remoting.dispatch import Dispatcher, answers
from pyromq.remoting.headers import MaxOffset, OffsetResponse
from pyromq.testing import Cluster, FakeClock, Link


class Offsets:
    """Says the queue id back."""

    def __init__(self):
        self.asked = []

    @answers(MaxOffset)
    def back(self, header, call):
        self.asked.append(header.queue_id)
        return Reply(OffsetResponse(offset=header.queue_id), bytes(call.body))


@pytest.fixture
def offsets():
    return Offsets()


@pytest.fixture
async def server(offsets):
    server = Server(Dispatcher(offsets), FakeClock(), limits=ConnectionLimits(request_bytes=MAX_FRAME_BYTES))
    await server.start()
    yield server
    await server.close(drain_seconds=0)


@pytest.fixture
def link_clock():
    return FakeClock()


@pytest.fixture
async def link(server, link_clock):
    async with Link(f"127.0.0.1:{server.port}", clock=link_clock) as link:
        yield link


@asynccontextmanager
async def dialled(address):
    channel = await connect(address, Dispatcher(), SystemClock())
    try:
        yield channel
    finally:
        await channel.close()


@pytest.fixture
async def channel(link):
    async with dialled(link.address) as channel:
        yield channel


def question(number=1):
    return MaxOffset(topic="t", queue_id=number)


async def test_bytes_go_both_ways_unchanged(link, channel):
    body = bytes(range(256)) * 4096
    response = await channel.call(question(7), body, timeout=30)
    assert response.header(OffsetResponse).offset == 7
    assert response.body == body
    assert link.connections == 1
    assert link.requests.passed_bytes > len(body)
    assert link.answers.passed_bytes > len(body)


async def test_a_paused_link_holds_and_loses_nothing(link, channel, offsets):
    await channel.call(question(0), timeout=30)
    link.pause()
    calls = [channel.call_soon(question(number), timeout=30) for number in (1, 2)]
    with pytest.raises(DeadlineExceeded):
        await channel.call(question(3), timeout=0.05)
    assert offsets.asked == [0]
    link.resume()
    responses = await asyncio.gather(*calls)
    assert [response.header(OffsetResponse).offset for response in responses] == [1, 2]
    await until(lambda: offsets.asked == [0, 1, 2, 3])


async def test_an_answer_can_be_held_when_the_work_is_done(link, channel, offsets):
    link.answers.pause()
    call = channel.call_soon(question(1), timeout=30)
    await until(lambda: offsets.asked == [1])
    assert not call.done()
    link.answers.resume()
    assert (await call).code == 0


async def test_a_slow_link_delays_each_way_by_its_own_time(link, channel, link_clock, offsets):
    link.requests.delay_seconds = 2
    link.answers.delay_seconds = 3
    call = channel.call_soon(question(1), timeout=30)
    await until(lambda: link_clock._sleepers)
    await link_clock.advance(2)
    await until(lambda: offsets.asked == [1])
    await until(lambda: link_clock._sleepers)
    assert not call.done()
    await link_clock.advance(3)
    assert (await call).code == 0


async def test_a_link_on_its_own_clock_is_as_slow_as_it_says(server):
    async with Link(f"127.0.0.1:{server.port}") as link, dialled(link.address) as channel:
        link.answers.delay_seconds = 0.05
        begin = time.monotonic()
        await channel.call(question(1), timeout=30)
        assert time.monotonic() - begin >= 0.05


async def test_a_cut_breaks_both_sides_and_the_next_connection_works(link, channel, server):
    link.answers.pause()
    call = channel.call_soon(question(1), timeout=30)
    await until(lambda: server.sessions)
    link.cut()
    link.answers.resume()
    with pytest.raises(ConnectionLost):
        await call
    await until(lambda: not server.sessions)
    async with dialled(link.address) as again:
        assert (await again.call(question(2), timeout=30)).code == 0


async def test_a_paused_link_can_be_cut_and_closed(link, channel):
    await channel.call(question(1), timeout=30)
    link.pause()
    call = channel.call_soon(question(2), timeout=30)
    await asyncio.sleep(0)
    link.cut()
    with pytest.raises(ConnectionLost):
        await call
    await until(lambda: link.connections == 0)


async def test_a_closed_link_refuses_until_it_opens_again_at_its_address(link, channel):
    await channel.call(question(1), timeout=30)
    address = link.address
    await link.close()
    await until(lambda: channel.closed)
    with pytest.raises(Unavailable, match="refuses connections"):
        await connect(address, Dispatcher(), SystemClock())
    await link.open()
    assert link.address == address
    async with dialled(address) as again:
        assert (await again.call(question(2), timeout=30)).code == 0


async def test_an_end_at_either_side_reaches_the_other(link, channel, server):
    await channel.call(question(1), timeout=30)
    server.cut()
    await until(lambda: channel.closed)
    async with dialled(link.address) as again:
        await again.call(question(2), timeout=30)
    await until(lambda: not server.sessions and not link.connections)


async def test_what_was_written_before_an_end_still_arrives(link, channel, server, offsets):
    channel.notify(question(5), bytes(1 << 20))
    await channel.close()
    await until(lambda: offsets.asked == [5])


async def test_a_server_that_is_not_there_ends_the_connection(link, server):
    await server.close(drain_seconds=0)
    async with dialled(link.address) as channel:
        with pytest.raises(ConnectionLost):
            await channel.call(question(1), timeout=30)


# -- before the brokers of a cluster


async def test_clients_reach_a_linked_cluster_over_its_links():
    async with Cluster(linked=True) as cluster:
        producer = await cluster.producer()
        await producer.send(Message("orders", b"1"))
        (link,) = cluster.links
        assert cluster.broker.address == link.address
        assert link.requests.passed_bytes > 0


async def test_a_broker_that_cannot_be_reached_is_reached_again():
    async with Cluster(linked=True) as cluster:
        producer = await cluster.producer()
        await producer.send(Message("orders", b"1"))
        await cluster.links[0].close()
        with pytest.raises(Unavailable):
            await producer.send(Message("orders", b"2"), timeout=0.3)
        await cluster.links[0].open()
        await producer.send(Message("orders", b"3"))


async def test_a_restarted_broker_is_behind_its_link_again():
    async with Cluster(linked=True) as cluster:
        producer = await cluster.producer()
        await producer.send(Message("orders", b"1"))
        await cluster.restart_broker()
        await producer.send(Message("orders", b"2"))
        assert cluster.broker.address == cluster.links[0].address


@pytest.mark.parametrize("turns", range(8))
async def test_a_connection_made_just_before_the_end_is_ended(server, turns):
    link = Link(f"127.0.0.1:{server.port}")
    await link.open()
    with socket.create_connection(("127.0.0.1", link.port), timeout=5) as client:
        for _ in range(turns):  # of the loop: accepted, handed on, connected to the server
            await asyncio.sleep(0)
        await link.close()
        assert await ended(client)


async def test_a_link_closes_while_a_connection_waits_for_who_does_not_read():
    gone = asyncio.Event()

    async def flood(reader, writer):
        writer.write(bytes(1 << 26))
        with suppress(ConnectionResetError):
            await reader.read()
        writer.transport.abort()
        gone.set()

    async with await asyncio.start_server(flood, "127.0.0.1", 0) as server:
        link = Link(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        await link.open()
        _, writer = await open_narrow(link.port)
        passed = -1
        while passed != link.answers.passed_bytes or not passed:  # until nothing goes on any more
            passed = link.answers.passed_bytes
            await asyncio.sleep(0.05)
        (end,) = link._relays.values()
        writer.write_eof()
        await until(end.transport.is_closing)
        await link.close()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await gone.wait()
        writer.transport.abort()


async def ended(client):
    """Whether the other side has ended a connection."""
    client.setblocking(False)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await asyncio.get_running_loop().sock_recv(client, 1) == b""
    except ConnectionResetError:
        return True
