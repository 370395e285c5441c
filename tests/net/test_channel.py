"""The client's side of a connection: asks, gives up in time, says what broke, and ends in a bounded time."""

import asyncio
import errno
import logging
import socket
import threading
from concurrent.futures import Future

import pytest
from tests.net.sockets import narrow
from tests.waiting import PATIENCE_SECONDS

from pyromq.clock import SystemClock
from pyromq.errors import ConnectionLost, DeadlineExceeded, Unavailable
from pyromq.net import channel as channel_module
from pyromq.net.channel import connect
from pyromq.net.connection import HIGH_WATER_BYTES
from pyromq.net.connection_config import ConnectionConfig
from pyromq.net.server import Server
from pyromq.remoting.command import BINARY, Reply
from pyromq.remoting.dispatch import Dispatcher, answers
from pyromq.remoting.headers import ConsumerIdsChanged, Heartbeat, MaxOffset, MinOffset, OffsetResponse


def maximum(number):
    return MaxOffset(topic="t", queue_id=number)


def minimum():
    return MinOffset(topic="t", queue_id=0)


def number(response):
    return response.header(OffsetResponse).offset


class Deaf:
    """A server that accepts connections and reads nothing, until it is told to."""

    def __init__(self):
        self.writers = []
        self.readers = []

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.accept, "127.0.0.1", 0)
        narrow(self.server.sockets[0])
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def accept(self, reader, writer):
        writer.transport.pause_reading()
        self.readers.append(reader)
        self.writers.append(writer)

    async def __aexit__(self, *_):
        self.server.close()
        for writer in self.writers:
            writer.transport.abort()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)


@pytest.fixture
async def deaf_server():
    async with Deaf() as deaf:
        yield deaf


@pytest.fixture
async def stuck(dial, deaf_server, until):
    """A channel whose peer has left more unread than may be written."""
    channel = await dial(deaf_server)
    for _ in range(4):  # of which the kernel takes some MiB
        channel.notify(Heartbeat(), bytes(HIGH_WATER_BYTES))
    await until(lambda: not channel._connection.writable.is_set())
    return channel


# -- connecting


async def test_an_address_where_nothing_listens_is_named(serve):
    server = await serve()
    await server.close()
    with pytest.raises(Unavailable) as raised:
        await connect(f"127.0.0.1:{server.port}", Dispatcher(), SystemClock())
    assert str(raised.value) == f"127.0.0.1:{server.port} refuses connections: nothing listens there"
    assert raised.value.retriable


@pytest.mark.parametrize(
    "address", ["no.such.host.invalid:9876", "127.0.0.1:70000", "127.0.0.1", "127.0.0.1:x", ":", f"{'a' * 70}.x:1"]
)
async def test_an_address_that_is_none_is_named(address):
    with pytest.raises(Unavailable, match="cannot be reached") as raised:
        await connect(address, Dispatcher(), SystemClock())
    assert str(raised.value).startswith(f"{address} ")


async def test_a_channel_knows_both_its_ends(server, channel):
    await channel.call(maximum(1), timeout=30)
    (session,) = server.sessions
    assert channel.address == f"127.0.0.1:{server.port}"
    host, port = channel.local_address
    assert session.address == f"{host}:{port}"


# -- asking


async def test_a_call_is_answered(channel):
    assert number(await channel.call(maximum(5), timeout=30)) == 5


async def test_a_channel_may_write_binary_headers(dial, server):
    channel = await dial(server, connections=ConnectionConfig(serialization=BINARY))
    assert number(await channel.call(maximum(5), timeout=30)) == 5


async def test_calls_of_one_turn_share_a_write(channel, monkeypatch):
    writes = []
    write = channel._connection._transport.write
    monkeypatch.setattr(channel._connection._transport, "write", lambda data: (writes.append(len(data)), write(data)))
    calls = [channel.call_soon(maximum(n), timeout=30) for n in range(20)]
    assert [number(response) for response in await asyncio.gather(*calls)] == list(range(20))
    assert len(writes) == 1


async def test_asking_at_once_writes_before_it_returns(channel, monkeypatch):
    writes = []
    write = channel._connection._transport.write
    monkeypatch.setattr(channel._connection._transport, "write", lambda data: (writes.append(len(data)), write(data)))
    results = asyncio.get_running_loop().create_future()
    channel.ask_at_once(maximum(3), timeout=30, answered=results.set_result)
    assert len(writes) == 1
    assert number(await results) == 3
    assert number(await channel.call(maximum(4), timeout=30)) == 4  # and the next is flushed as ever


async def test_a_slow_answer_is_overtaken(channel, offsets, until):
    slow = channel.call_soon(minimum(), timeout=30)
    assert number(await channel.call(maximum(2), timeout=30)) == 2
    assert not slow.done()
    offsets.waiting[0].set_result(Reply(OffsetResponse(offset=1)))
    assert number(await slow) == 1


async def test_a_call_fails_at_its_deadline_and_the_next_one_works(server, channel):
    with pytest.raises(DeadlineExceeded) as raised:
        await channel.call(minimum(), timeout=0.05)
    assert str(raised.value) == f"127.0.0.1:{server.port} did not answer request 31 within 0.05 s"
    assert number(await channel.call(maximum(2), timeout=30)) == 2


async def test_a_cancelled_call_does_not_mind_its_answer(channel, offsets, until):
    call = channel.call_soon(minimum(), timeout=30)
    await until(lambda: offsets.waiting)
    call.cancel()
    offsets.waiting[0].set_result(Reply())
    assert number(await channel.call(maximum(2), timeout=30)) == 2


# -- a peer that does not read


async def test_a_call_to_who_does_not_read_fails_at_its_deadline(stuck):
    async with asyncio.timeout(PATIENCE_SECONDS):
        with pytest.raises(DeadlineExceeded, match=f"{stuck.address} did not take request 30 within 0.05 s"):
            await stuck.call(maximum(1), timeout=0.05)


async def test_who_waits_to_write_goes_on_when_the_peer_reads(stuck, deaf_server):
    waiting = asyncio.ensure_future(stuck.writable(30, PATIENCE_SECONDS))
    await asyncio.sleep(0)
    assert not waiting.done()
    (writer,), (reader,) = deaf_server.writers, deaf_server.readers
    writer.transport.resume_reading()
    await reader.readexactly(HIGH_WATER_BYTES * 4)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await waiting


async def test_who_waits_to_write_goes_on_when_the_connection_breaks(stuck, deaf_server):
    calls = [asyncio.ensure_future(stuck.call(maximum(1), timeout=30)) for _ in range(2)]
    await asyncio.sleep(0)
    deaf_server.writers[0].transport.abort()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results] == [ConnectionLost] * 2


async def test_closing_does_not_wait_for_who_does_not_read(stuck, monkeypatch):
    monkeypatch.setattr(channel_module, "WRITE_SECONDS", 0.05)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await stuck.close()
    assert stuck.closed


# -- the server asks


async def test_the_servers_requests_are_answered(server, dial):
    class Changes:
        @answers(ConsumerIdsChanged)
        def changed(self, header, call):
            return Reply(remark=header.consumer_group)

    channel = await dial(server, Changes())
    await channel.call(maximum(1), timeout=30)
    (session,) = server.sessions
    answer = asyncio.get_running_loop().create_future()
    session.call(ConsumerIdsChanged(consumer_group="g"), timeout=30, answered=answer.set_result)
    assert (await answer).remark == "g"


async def test_an_answer_for_the_server_may_come_from_a_thread(server, dial, until):
    futures = []

    class Changes:
        @answers(ConsumerIdsChanged)
        def changed(self, header, call):
            futures.append(Future())
            return futures[-1]

    channel = await dial(server, Changes())
    await channel.call(maximum(1), timeout=30)
    (session,) = server.sessions
    answer = asyncio.get_running_loop().create_future()
    session.call(ConsumerIdsChanged(consumer_group="g"), timeout=30, answered=answer.set_result)
    await until(lambda: futures)
    thread = threading.Thread(target=futures[0].set_result, args=(Reply(remark="late"),))
    thread.start()
    assert (await answer).remark == "late"
    thread.join()


def test_an_answer_after_the_loops_end_is_lost_quietly(caplog):
    """A listener's thread may take longer than the client lives."""
    futures = []

    class Changes:
        @answers(ConsumerIdsChanged)
        def changed(self, header, call):
            futures.append(Future())
            return futures[-1]

    async def live():
        server = Server(Dispatcher(), SystemClock())
        await server.start()
        channel = await connect(f"127.0.0.1:{server.port}", Dispatcher(Changes()), SystemClock())
        while not server.sessions:
            await asyncio.sleep(0.001)
        (session,) = server.sessions
        session.notify(ConsumerIdsChanged(consumer_group="g"))
        while not futures:
            await asyncio.sleep(0.001)
        await channel.close()
        await server.close()

    asyncio.run(live())
    futures[0].set_result(Reply())
    assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []


# -- the end


async def test_a_broken_connection_fails_what_waits(server, channel, offsets, until):
    calls = [channel.call_soon(minimum(), timeout=30) for _ in range(3)]
    await until(lambda: len(offsets.waiting) == 3)
    server.cut()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results] == [ConnectionLost] * 3
    assert channel.closed


async def test_a_call_after_the_end_fails_at_once(channel):
    await channel.close()
    with pytest.raises(ConnectionLost):
        await channel.call(maximum(1), timeout=30)
    channel.notify(maximum(1))


async def test_closing_writes_what_is_ready(channel, offsets, until):
    channel.notify(maximum(1))
    await channel.close()
    await until(lambda: offsets.asked == 1)


async def test_closing_twice_is_nothing(channel):
    await channel.close()
    await channel.close()


async def test_bytes_that_are_no_frame_close_the_connection(caplog):
    async def babble(reader, writer):
        writer.write(b"\xff" * 40)
        await reader.read()
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(babble, "127.0.0.1", 0) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        channel = await connect(address, Dispatcher(), SystemClock())
        with pytest.raises(ConnectionLost):
            await channel.call(maximum(1), timeout=30)
        await channel.close()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert address in caplog.text


async def test_a_peer_that_is_gone_when_the_connection_stands_cannot_be_reached(server, monkeypatch):
    def gone(_):
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    monkeypatch.setattr(socket.socket, "getpeername", gone)  # as after a kill in that very moment
    with pytest.raises(Unavailable, match=rf"127\.0\.0\.1:{server.port} closed the connection at once"):
        await connect(f"127.0.0.1:{server.port}", Dispatcher(), SystemClock())
