"""Another kind of server on the port is told as such, whatever it is asked."""

import asyncio
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.waiting import PATIENCE_SECONDS, until

from pyromq import AsyncProducer, Message, NoNameServer, ProducerConfig
from pyromq.client.admin.diagnosis import diagnose
from pyromq.client.cluster import cluster_client
from pyromq.clock import SystemClock
from pyromq.errors import AnotherServer, ConnectionLost
from pyromq.net.channel import connect
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.headers import BrokerClusterInfo
from pyromq.testing import Cluster as Servers
from pyromq.testing import FakeClock

HTTP = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"


class Quiet(BaseHTTPRequestHandler):
    answers = 0

    def log_message(self, *_):
        Quiet.answers += 1


@pytest.fixture
def web_server():
    """Python's own: it waits for the end of a line before it says anything."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
async def saying():
    """A server that answers anything with these bytes and closes; `first` before it is asked."""
    servers = []

    async def begin(answer, *, first=False):
        async def serve(reader, writer):
            if not first:
                await reader.read(1)
            writer.write(answer)
            await writer.drain()
            writer.close()

        servers.append(await asyncio.start_server(serve, "127.0.0.1", 0))
        return f"127.0.0.1:{servers[-1].sockets[0].getsockname()[1]}"

    yield begin
    for server in servers:
        server.close()


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (HTTP, "answers in HTTP: a web server listens there, no RocketMQ server"),
        (b'<!DOCTYPE HTML>\n<html lang="en">', "answers in HTTP"),
        (b"-ERR unknown command\r\n", "answers '-ERR unknown command': no RocketMQ server listens there"),
        (b"\0\0\x12\x04\0\0\0\0\0\0\x03\0\0\x03\xe8", r"answers in HTTP/2: a proxy for clients of RocketMQ 5 \(gRPC\)"),
        (b"\x15\x03\x03\x00\x02\x02\x0a", "answers in TLS: this port requires TLS connections"),
    ],
)
async def test_a_call_fails_with_what_is_there(saying, answer, text):
    address = await saying(answer)
    channel = await connect(address, Dispatcher(), SystemClock())
    with pytest.raises(AnotherServer, match=f"{address} {text}"):
        await channel.call(BrokerClusterInfo(), timeout=30)
    with pytest.raises(AnotherServer, match=text):
        await channel.call(BrokerClusterInfo(), timeout=30)
    await channel.close()


async def test_who_speaks_first_is_told_too(saying):
    channel = await connect(await saying(b"SSH-2.0-OpenSSH_9.2\r\n", first=True), Dispatcher(), SystemClock())
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not channel.closed:
            await asyncio.sleep(0.001)
    with pytest.raises(AnotherServer, match=r"answers .SSH-2\.0-OpenSSH_9\.2."):
        await channel.call(BrokerClusterInfo(), timeout=30)
    await channel.close()


async def test_bytes_that_say_nothing_are_no_other_server(saying):
    channel = await connect(await saying(b"\xff\xff\xff\xff\x00\x00"), Dispatcher(), SystemClock())
    with pytest.raises(ConnectionLost) as raised:
        await channel.call(BrokerClusterInfo(), timeout=30)
    assert type(raised.value) is ConnectionLost
    await channel.close()


async def test_sending_to_a_web_server_says_so(web_server, monkeypatch):
    monkeypatch.setattr(cluster_client, "API_SECONDS", PATIENCE_SECONDS)
    config, clock, before = ProducerConfig(timeout=PATIENCE_SECONDS), FakeClock(), Quiet.answers
    async with AsyncProducer("p", web_server, config=config, clock=clock) as producer:
        sending = asyncio.create_task(producer.send(Message("orders", b"1")))
        await until(lambda: Quiet.answers > before)
        await clock.advance(PATIENCE_SECONDS)  # the send has no time for another attempt
        with pytest.raises(NoNameServer, match=rf"{web_server} \({web_server} answers in HTTP: a web server listens"):
            await sending


async def test_a_diagnosis_of_a_web_server_says_so(web_server):
    [finding] = await diagnose(web_server)
    assert not finding.ok
    reason = f"{web_server} answers in HTTP: a web server listens there, no RocketMQ server"
    assert finding.text == f"is not a name server: {reason}"
    assert "9876" in finding.advice


async def test_one_web_server_among_name_servers_does_no_harm(web_server):
    async with Servers() as servers:
        for _ in range(4):  # which is asked first is chosen at random
            async with AsyncProducer("p", f"{web_server};{servers.namesrv}") as producer:
                await producer.send(Message("orders", b"1"))
