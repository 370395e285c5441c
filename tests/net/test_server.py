"""The listening port: accepts, answers, slows down for those who do not read, and ends in a bounded time."""

import asyncio
import logging
import os
import socket

import pytest
from tests.platforms.marks import only_linux
from tests.processes import free_port
from tests.waiting import PATIENCE_SECONDS

from pyromq.clock import SystemClock
from pyromq.errors import ConnectionLost, Unavailable, UsageError
from pyromq.net import server as server_module
from pyromq.net.channel import connect
from pyromq.net.server import IDLE_SECONDS, Server
from pyromq.remoting.command import Reply, encode_request
from pyromq.remoting.connection_limits import ConnectionLimits
from pyromq.remoting.dispatch import Dispatcher, answers
from pyromq.remoting.headers import ConsumerIdsChanged, MaxOffset, MinOffset, OffsetResponse


def maximum(number):
    return MaxOffset(topic="t", queue_id=number)


def unread(server):
    """Whether the server has stopped reading one of its connections."""
    return any(not connection._transport.is_reading() for connection in server._connections)


# -- listening


async def test_the_port_is_known_once_it_listens(server, channel):
    assert server.port > 0
    assert (await channel.call(maximum(3), timeout=30)).header(OffsetResponse).offset == 3


@only_linux
async def test_a_port_in_use_is_named_with_its_owner(server, serve):
    with pytest.raises(UsageError) as raised:
        await serve(port=server.port)
    assert str(raised.value).startswith(f"port {server.port} at 127.0.0.1 is in use by ")
    assert f"(pid {os.getpid()})" in str(raised.value)


@pytest.mark.parametrize(
    ("host", "text"),
    [
        ("192.0.2.1", "192.0.2.1 is not an address of this machine"),
        ("no.such.host.invalid", "cannot listen on no.such."),
        ("x" * 300, "it is not a valid host name"),
    ],
)
async def test_an_address_that_is_not_ours_is_named(clock, host, text):
    with pytest.raises(UsageError, match=text):
        await Server(Dispatcher(), clock, host=host).start()


async def test_a_port_beyond_the_last_is_named(serve):
    with pytest.raises(UsageError, match=r"127\.0\.0\.1:70000"):
        await serve(port=70_000)


async def test_the_port_beside_is_served_alike(serve, offsets, until):
    server = await serve(offsets, port=free_port(-2), beside=-2)
    channels = [await connect(f"127.0.0.1:{server.port + off}", Dispatcher(), SystemClock()) for off in (0, -2)]

    responses = [await channel.call(maximum(3), timeout=30) for channel in channels]

    assert [response.header(OffsetResponse).offset for response in responses] == [3, 3]
    assert len(server.sessions) == 2
    await server.close()
    await until(lambda: all(channel.closed for channel in channels))
    with pytest.raises(Unavailable, match=f"127.0.0.1:{server.port - 2} refuses"):
        await connect(f"127.0.0.1:{server.port - 2}", Dispatcher(), SystemClock())


@only_linux
async def test_a_port_beside_that_is_in_use_is_named_and_the_other_is_freed(serve):
    port = free_port(-2)
    text = rf"port {port - 2} at 127.0.0.1 is in use by .* together .* {port}$"
    with socket.create_server(("127.0.0.1", port - 2)), pytest.raises(UsageError, match=text):
        await serve(port=port, beside=-2)
    assert (await serve(port=port, beside=-2)).port == port


async def test_connections_of_both_ports_count_together(serve, offsets):
    server = await serve(offsets, beside=-2, limits=ConnectionLimits(connections=1))
    first = await connect(f"127.0.0.1:{server.port - 2}", Dispatcher(), SystemClock())
    await first.call(maximum(1), timeout=30)

    second = await connect(f"127.0.0.1:{server.port}", Dispatcher(), SystemClock())

    with pytest.raises(ConnectionLost):
        await second.call(maximum(1), timeout=30)
    await first.close()


async def test_the_same_port_can_be_opened_again_at_once(serve, dial, offsets):
    server = await serve(offsets)
    channel = await dial(server)
    await channel.call(maximum(1), timeout=30)
    await server.close()
    again = await serve(offsets, port=server.port)
    assert again.port == server.port


# -- answering


async def test_many_connections_are_served_side_by_side(server, dial):
    channels = [await dial(server) for _ in range(10)]
    calls = [channel.call(maximum(number), timeout=30) for number, channel in enumerate(channels)]
    responses = await asyncio.gather(*calls)
    assert [response.header(OffsetResponse).offset for response in responses] == list(range(10))
    assert len(server.sessions) == 10


async def test_an_answer_completed_by_a_thread_comes_back(channel, offsets, until):
    call = channel.call_soon(MinOffset(topic="t", queue_id=0), timeout=30)
    await until(lambda: offsets.waiting)
    await asyncio.to_thread(offsets.waiting[0].set_result, Reply(OffsetResponse(offset=7)))
    assert (await call).header(OffsetResponse).offset == 7


async def test_the_server_asks_its_client(server, dial):
    class Changes:
        @answers(ConsumerIdsChanged)
        def changed(self, header, call):
            return Reply(remark=header.consumer_group)

    channel = await dial(server, Changes())
    await channel.call(maximum(1), timeout=30)
    (session,) = server.sessions
    answered = asyncio.get_running_loop().create_future()
    session.call(ConsumerIdsChanged(consumer_group="g"), timeout=30, answered=answered.set_result)
    assert (await answered).remark == "g"


async def test_a_servers_question_fails_at_its_deadline(server, channel, clock):
    await channel.call(maximum(1), timeout=30)
    (session,) = server.sessions
    results = []
    channel._connection._transport.pause_reading()  # the client is asleep
    session.call(ConsumerIdsChanged(consumer_group="g"), timeout=1, answered=results.append)
    await clock.advance(2)
    assert [str(error) for error in results] == [f"{session.address} did not answer request 40 within 1 s"]


async def test_bytes_that_are_no_frame_close_their_connection_only(server, channel, caplog):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert (await channel.call(maximum(1), timeout=30)).code == 0


# -- those who do not read


async def test_who_does_not_read_is_not_read_either(server, channel, offsets, until, deaf):
    _, writer = await deaf(server.port, count=40)
    await until(lambda: unread(server))
    writer.write(encode_request(maximum(1), b"", opaque=41, flag=0))
    for number in range(20):  # others are served meanwhile
        await channel.call(maximum(number), timeout=30)
    assert 4 < offsets.asked < 40 + 20
    unread_bytes = sum(connection._transport.get_write_buffer_size() for connection in server._connections)
    assert 0 < unread_bytes < 8 << 20  # the kernel's send buffer grows meanwhile, and takes of it


async def test_who_reads_again_gets_all_that_was_asked(server, offsets, until, deaf):
    reader, writer = await deaf(server.port, count=40)
    await until(lambda: unread(server))
    writer.transport.resume_reading()
    received = 0
    while received < 40 << 20:
        received += len(await reader.read(1 << 20))
    assert offsets.asked == 40
    writer.close()
    await writer.wait_closed()


async def test_closing_does_not_wait_for_who_does_not_read(server, until, deaf, monkeypatch):
    monkeypatch.setattr(server_module, "WRITE_SECONDS", 0.05)
    await deaf(server.port)
    await until(lambda: unread(server))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await server.close(drain_seconds=0)
    assert not server.sessions


async def test_who_does_not_read_is_closed_when_idle(server, clock, until, deaf):
    await deaf(server.port)
    await until(lambda: unread(server))
    await clock.advance(IDLE_SECONDS + 20)
    await until(lambda: not server.sessions)


# -- idle connections


async def test_a_connection_without_traffic_is_closed(server, channel, clock, until):
    await channel.call(maximum(1), timeout=30)
    await clock.advance(IDLE_SECONDS)
    assert not channel.closed
    await clock.advance(20)
    await until(lambda: channel.closed)
    assert not server.sessions


async def test_traffic_keeps_a_connection(server, channel, clock):
    for _ in range(4):
        await channel.call(maximum(1), timeout=30)
        await clock.advance(IDLE_SECONDS - 20)
    assert len(server.sessions) == 1


async def test_what_the_server_sends_is_traffic_too(server, channel, clock):
    await channel.call(maximum(1), timeout=30)
    (session,) = server.sessions
    for _ in range(4):
        session.notify(ConsumerIdsChanged(consumer_group="g"))
        await clock.advance(IDLE_SECONDS - 20)
    assert len(server.sessions) == 1


# -- the end


async def test_closing_fails_what_waits_at_the_client(server, channel, offsets, until):
    call = channel.call_soon(MinOffset(topic="t", queue_id=0), timeout=30)
    await until(lambda: offsets.waiting)
    await server.close(drain_seconds=0)
    with pytest.raises(ConnectionLost, match=f"connection to 127.0.0.1:{server.port} broke: closed by the server"):
        await call


async def test_closing_lets_parked_answers_come(server, channel, offsets, until):
    call = channel.call_soon(MinOffset(topic="t", queue_id=0), timeout=30)
    await until(lambda: offsets.waiting)
    closing = asyncio.ensure_future(server.close(drain_seconds=5))
    await until(lambda: not server._listener.is_serving())
    offsets.waiting[0].set_result(Reply(OffsetResponse(offset=7)))
    assert (await call).header(OffsetResponse).offset == 7
    await closing


async def test_who_stops_accepting_still_serves_those_who_are_there(server, channel):
    await channel.call(maximum(1), timeout=30)
    server.stop_accepting()
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="refuses connections"):
        await connect(f"127.0.0.1:{server.port}", Dispatcher(), SystemClock())
    assert (await channel.call(maximum(2), timeout=30)).code == 0


async def test_cutting_breaks_every_connection(server, dial, until):
    channels = [await dial(server) for _ in range(3)]
    calls = [channel.call_soon(MinOffset(topic="t", queue_id=0), timeout=30) for channel in channels]
    await until(lambda: len(server.sessions) == 3)
    server.cut()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results] == [ConnectionLost] * 3


async def test_closing_twice_and_closing_what_never_started_is_nothing(server, clock):
    await server.close()
    await server.close()
    await Server(Dispatcher(), clock).close()


@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_made_just_before_the_end_is_ended(serve, turns):
    server = await serve()
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        for _ in range(turns):  # of the loop: accepted, handed on
            await asyncio.sleep(0)
        await server.close(drain_seconds=0)
        client.setblocking(False)
        async with asyncio.timeout(PATIENCE_SECONDS):
            try:
                assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
            except ConnectionResetError:
                pass
    assert not server.sessions


async def test_an_answer_after_the_end_of_everything_is_lost_quietly(server, channel, offsets, until, caplog):
    call = channel.call_soon(MinOffset(topic="t", queue_id=0), timeout=30)
    await until(lambda: offsets.waiting)
    await server.close(drain_seconds=0)
    await asyncio.gather(call, return_exceptions=True)
    offsets.waiting[0].set_result(Reply())
    assert caplog.records == []


async def test_a_connection_closed_within_a_frame_is_noted(server, until, caplog):
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(encode_request(maximum(1), b"", opaque=1, flag=0)[:20])
    await until(lambda: any(session.splitter.incomplete_bytes for session in server.sessions))
    writer.close()
    await writer.wait_closed()
    await until(lambda: not server.sessions)
    assert "ended within a frame, after 20 bytes" in caplog.text
