"""What TLS connections of a server do with bytes: large ones, unread ones, garbled ones, none."""

import asyncio
import contextlib
import gc
import os
import ssl
import weakref

import pytest
from tests.certificates import Authority
from tests.net.sockets import open_narrow
from tests.waiting import PATIENCE_SECONDS

from pyromq import ConnectionConfig, TlsConfig
from pyromq.net.server import Server
from pyromq.net.tls import first_bytes
from pyromq.net.tls.tls_server import ServerTlsConfig
from pyromq.net.tls.transport import TlsLayer
from pyromq.remoting.command import encode_request
from pyromq.remoting.connection_limits import ConnectionLimits
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.headers import EarliestStoreTime, MaxOffset, OffsetResponse

LARGE = EarliestStoreTime(topic="t", queue_id=0)  # answered with a mebibyte


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture
async def server(clock, offsets, authority):
    certificate, key = authority.issue("server")
    server = Server(Dispatcher(offsets), clock, tls=ServerTlsConfig(certificate=certificate, key=key))
    await server.start()
    yield server
    await server.close(drain_seconds=0)


@pytest.fixture
def context(authority):
    return TlsConfig(authority=authority.file).context()


@pytest.fixture
async def opened(server, context):
    """A connection with reader and writer, through its handshake."""
    reader, writer = await open_narrow(server.port, ssl=context, server_hostname="127.0.0.1")
    yield reader, writer
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def test_large_requests_and_answers_arrive_as_they_were(server, dial, authority):
    channel = await dial(server, connections=ConnectionConfig(tls=TlsConfig(authority=authority.file)))
    answers = await asyncio.gather(*(channel.call(LARGE, bytes(1 << 18), timeout=30) for _ in range(10)))
    assert {len(answer.body) for answer in answers} == {1 << 20}
    burst = [channel.call_soon(MaxOffset(topic="t", queue_id=number), timeout=30) for number in range(500)]
    assert [(await each).header(OffsetResponse).offset for each in burst] == list(range(500))


async def test_who_does_not_read_is_not_read_from_and_goes_on_when_it_reads(server, opened, offsets, until):
    reader, writer = opened
    writer.transport.pause_reading()
    count = 40
    writer.write(b"".join(encode_request(LARGE, b"", opaque=number, flag=0) for number in range(count)))
    await until(lambda: any(not connection._transport.is_reading() for connection in server._connections))
    assert offsets.asked < count
    writer.transport.resume_reading()
    for _ in range(count):
        size = int.from_bytes(await asyncio.wait_for(reader.readexactly(4), PATIENCE_SECONDS), "big")
        await asyncio.wait_for(reader.readexactly(size), PATIENCE_SECONDS)
    assert offsets.asked == count


async def test_a_farewell_ends_the_connection(server, opened, until):
    await until(lambda: server.sessions)
    opened[1].close()
    await until(lambda: not server.sessions)


async def test_an_answer_goes_before_the_end(server, context):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
    writer.write(encode_request(MaxOffset(topic="t", queue_id=1), b"", opaque=1, flag=0))
    await asyncio.wait_for(reader.readexactly(4), PATIENCE_SECONDS)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def test_garbled_records_end_the_connection(server, opened, until):
    await until(lambda: server.sessions)
    raw = opened[1].transport.get_extra_info("socket")
    await until(lambda: server.sessions)
    os.write(raw.fileno(), b"\x17\3\3\0\x20" + bytes(32))
    await until(lambda: not server.sessions)


async def test_who_is_cut_at_once_is_not_heard(clock, offsets, authority, context, until):
    certificate, key = authority.issue("server")
    limits = ConnectionLimits(connections=1)
    tls = ServerTlsConfig(certificate=certificate, key=key)
    server = Server(Dispatcher(offsets), clock, tls=tls, limits=limits)
    await server.start()
    first, second = [await asyncio.open_connection("127.0.0.1", server.port, ssl=context) for _ in range(2)]
    second[1].write(encode_request(MaxOffset(topic="t", queue_id=1), b"", opaque=1, flag=0))
    with contextlib.suppress(OSError):
        assert await asyncio.wait_for(second[0].read(), PATIENCE_SECONDS) == b""
    assert (offsets.asked, len(server.sessions)) == (0, 1)
    for _, writer in (first, second):
        writer.transport.abort()
    await server.close(drain_seconds=0)


async def test_a_connection_that_ends_leaves_nothing_for_the_collector(server, context, monkeypatch, until):
    kept = []

    class Watched(TlsLayer):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            kept.append(weakref.ref(self.tls))

    monkeypatch.setattr(first_bytes, "TlsLayer", Watched)
    gc.disable()
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
        await until(lambda: server.sessions)
        accepted = next(iter(server._connections))._transport.get_extra_info("socket")
        kept.append(weakref.ref(getattr(accepted, "_sock", accepted)))
        del accepted
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        await until(lambda: not server.sessions)
        await until(lambda: not any(each() for each in kept))
    finally:
        gc.enable()


def test_a_layer_can_be_ended_before_it_begins(authority):
    certificate, key = authority.issue("server")
    context = ServerTlsConfig(certificate=certificate, key=key).context()
    told = []
    layer = TlsLayer(context, asyncio.Protocol, told.append)
    layer.abort()

    class Lower(asyncio.Transport):
        aborted = False

        def abort(self):
            self.aborted = True

    lower = Lower()
    layer.connection_made(lower)
    assert lower.aborted
    layer.connection_lost(None)
    layer.data_received(b"late")
    assert told == ["closed by the peer"]


def test_the_oldest_version_is_1_2(authority):
    certificate, key = authority.issue("server")
    assert ServerTlsConfig(certificate=certificate, key=key).context().minimum_version >= ssl.TLSVersion.TLSv1_2
    assert TlsConfig(authority=authority.file).context().minimum_version >= ssl.TLSVersion.TLSv1_2


async def test_requests_before_garbled_records_do_no_harm(server, context, until, caplog):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    while True:
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            writer.write(outgoing.read())
            incoming.write(await asyncio.wait_for(reader.read(1 << 16), PATIENCE_SECONDS))
    for number in range(3):
        tls.write(encode_request(LARGE, b"", opaque=number, flag=0))
    writer.write(outgoing.read() + b"\x17\3\3\0\x20" + bytes(32))
    with contextlib.suppress(OSError):
        await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)
    await until(lambda: not server.sessions)
    writer.close()
    assert not caplog.records
