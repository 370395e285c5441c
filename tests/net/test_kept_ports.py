"""Ports that stay open from one server to the next: connections wait, and what is lost is told at once."""

import asyncio

import pytest

from pyromq.clock import SystemClock
from pyromq.net.channel import connect
from pyromq.net.server import Server
from pyromq.remoting.command import Reply
from pyromq.remoting.dispatch import Dispatcher, answers
from pyromq.remoting.headers import AllTopics


class Answering:
    @answers(AllTopics)
    def answer(self, header, call):
        return Reply(body=b"answered")


async def test_clients_that_connect_between_two_servers_are_served_by_the_second():
    first = Server(Dispatcher(), SystemClock())
    await first.start()
    ports = first.keep_ports()
    await first.close()
    channel = await connect(f"127.0.0.1:{first.port}", Dispatcher(), SystemClock())
    asking = channel.call_soon(AllTopics(), timeout=30)
    second = Server(Dispatcher(Answering()), SystemClock(), port=first.port, opened=ports)
    await second.start()
    assert (await asking).body == b"answered"
    await channel.close()
    await second.close()


@pytest.mark.parametrize("reset", [False, True])
async def test_a_server_that_resets_tells_clients_that_their_requests_are_lost(reset):
    server = Server(Dispatcher(), SystemClock())
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    while not server.sessions:
        await asyncio.sleep(0)
    await server.close(reset=reset)
    if reset:
        with pytest.raises(ConnectionResetError):
            await reader.read()
    else:
        assert await reader.read() == b""
    writer.close()


async def test_a_connection_that_has_just_broken_can_be_reset():
    server = Server(Dispatcher(), SystemClock())
    await server.start()
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    while not server.sessions:
        await asyncio.sleep(0)
    [connection] = server._connections
    connection.cut()  # the compiled transport closes its socket now, and reports the end in the loop's next turn
    connection.reset()
    await server.close(reset=True)
    writer.close()
