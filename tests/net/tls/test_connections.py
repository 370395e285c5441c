"""TLS of connections: who trusts whom, what each side is told, and files that change."""

import asyncio
import logging
import os
import socket
import ssl
from contextlib import suppress

import pytest
from tests.certificates import Authority
from tests.platforms.marks import only_linux
from tests.waiting import PATIENCE_SECONDS

from pyromq import ConnectionConfig, TlsConfig
from pyromq.clock import SystemClock
from pyromq.errors import ConnectionLost, NoPermission, TlsRefused, Unavailable, UsageError
from pyromq.net import channel as channels
from pyromq.net.channel import connect
from pyromq.net.server import Server
from pyromq.net.tls import first_bytes
from pyromq.net.tls import tls_config as tls
from pyromq.net.tls.tls_server import ClientCertificates, ServerTlsConfig, TlsMode
from pyromq.remoting.command import FrameSplitter, decode_response, encode_request
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.headers import MaxOffset, OffsetResponse

ASKED = MaxOffset(topic="t", queue_id=3)


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture
def another(tmp_path):
    return Authority(tmp_path, "another")


@pytest.fixture
async def serve_tls(clock, offsets, authority):
    """Start servers with a certificate of the authority: `await serve_tls(mode=TlsMode.ENFORCING)`."""
    servers = []

    async def start(issued=None, **settings):
        certificate, key = issued or authority.issue("server")
        settings = {"certificate": certificate, "key": key, **settings}
        server = Server(Dispatcher(offsets), clock, tls=ServerTlsConfig(**settings))
        await server.start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        await server.close(drain_seconds=0)


@pytest.fixture
async def call():
    """Connect, ask, close; return the answer: `await call(port, tls)`."""

    async def over_a_connection_of_its_own(port, tls=None, **options):
        config = ConnectionConfig(tls=tls, **options)
        channel = await connect(f"127.0.0.1:{port}", Dispatcher(), SystemClock(), connections=config)
        try:
            return (await channel.call(ASKED, timeout=30)).check().header(OffsetResponse).offset
        finally:
            await channel.close()

    return over_a_connection_of_its_own


@pytest.mark.parametrize("mode", [TlsMode.PERMISSIVE, TlsMode.ENFORCING])
async def test_a_port_that_speaks_tls_answers_who_trusts_its_authority(serve_tls, call, authority, mode):
    server = await serve_tls(mode=mode)
    assert await call(server.port, TlsConfig(authority=authority.file)) == 3


async def test_a_permissive_port_answers_plain_connections_as_ever(serve_tls, call):
    server = await serve_tls(mode=TlsMode.PERMISSIVE)
    assert await call(server.port) == 3


async def test_a_disabled_port_is_a_plain_one_whatever_certificate_it_has(serve_tls, call, authority):
    server = await serve_tls(mode=TlsMode.DISABLED)
    assert await call(server.port) == 3
    with pytest.raises(TlsRefused, match="plain connections only"):
        await call(server.port, TlsConfig(authority=authority.file))


async def test_an_enforcing_port_tells_who_speaks_plainly_what_is_wrong(serve_tls, call, offsets, caplog):
    server = await serve_tls(mode=TlsMode.ENFORCING)
    for _ in range(3):
        with pytest.raises(NoPermission, match=r"TLS connections only .*tls.server.mode=enforcing"):
            await call(server.port)
    assert offsets.asked == 0
    assert server._dispatcher.refusals.counts == {"plainConnections": 3}
    assert "it is not encrypted" in caplog.text


@pytest.mark.parametrize("together", [True, False])
async def test_an_enforcing_port_refuses_each_request_of_a_plain_connection(serve_tls, until, together):
    """Java's clients send two at once as they begin, and the second may be the one that somebody waits for."""
    server = await serve_tls(mode=TlsMode.ENFORCING)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    requests = [encode_request(ASKED, b"", opaque=opaque, flag=0) for opaque in (1, 2, 3)]
    splitter, answers = FrameSplitter(), []
    for piece in [b"".join(requests)] if together else [requests[0], requests[1][:9], requests[1][9:] + requests[2]]:
        writer.write(piece)
        await writer.drain()
    while len(answers) < 3:
        answers += splitter.split(await asyncio.wait_for(reader.read(1 << 16), PATIENCE_SECONDS))
    found = [decode_response(*answer) for answer in answers]
    assert [answer.opaque for answer in found] == [1, 2, 3]
    assert all("TLS connections only" in answer.remark for answer in found)
    writer.close()


async def test_who_goes_on_asking_an_enforcing_port_plainly_is_read_to_a_limit(serve_tls, until, clock):
    server = await serve_tls(mode=TlsMode.ENFORCING)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    request = encode_request(ASKED, b"", opaque=1, flag=0)
    writer.write(request * (2 * (1 << 16) // len(request)))
    await until(lambda: _first_bytes(server)._refused and not _first_bytes(server)._refused[0].left)
    await clock.advance(2)
    with suppress(ConnectionError):
        await asyncio.wait_for(_rest(reader), PATIENCE_SECONDS)
    assert not _first_bytes(server)._refused
    writer.close()


@pytest.mark.parametrize("said", [b"GET / HTTP/1.0\r\n\r\n", b"\0\0\1\0", b"\0\0\0\5\0\0\0\1x", b"\x15\3\1\0\2\2\0"])
async def test_an_enforcing_port_closes_connections_of_whoever_else_it_is(serve_tls, clock, until, said):
    server = await serve_tls(mode=TlsMode.ENFORCING)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(said)
    await until(lambda: _first_bytes(server)._refused)
    await clock.advance(2)
    assert await asyncio.wait_for(_rest(reader), PATIENCE_SECONDS) == b""
    writer.close()


async def test_bytes_that_come_one_by_one_make_a_handshake_too(serve_tls, authority, until):
    server = await serve_tls()
    context = TlsConfig(authority=authority.file).context()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    hello = outgoing.read()
    for place in (*range(1, 8), len(hello) // 2, len(hello)):
        writer.write(hello[:place])
        hello = hello[place:]
        await asyncio.sleep(0.001)
    incoming.write(await reader.read(1 << 16))
    client.do_handshake()
    writer.write(outgoing.read())
    await until(lambda: server.sessions)
    writer.close()


@pytest.mark.parametrize(
    ("issue", "told"),
    [
        (lambda authority, _: authority.issue("server", ends_in_days=-1), "expired"),
        (lambda authority, _: authority.issue("server", "10.1.2.3"), "for another host .*127.0.0.1"),
        (lambda _, another: another.issue("server"), "not signed by .*authority.pem"),
    ],
    ids=["expired", "another host", "another authority"],
)
async def test_a_certificate_that_does_not_fit_is_told_for_what_it_is(serve_tls, call, authority, another, issue, told):
    server = await serve_tls(issue(authority, another))
    with pytest.raises(TlsRefused, match=rf"127.0.0.1:{server.port}: its certificate.*{told}"):
        await call(server.port, TlsConfig(authority=authority.file))


async def test_a_certificate_may_name_another_host_where_that_is_said(serve_tls, call, authority):
    server = await serve_tls(authority.issue("server", "brokers.example"))
    assert await call(server.port, TlsConfig(authority=authority.file, server_name="brokers.example")) == 3
    assert await call(server.port, TlsConfig(authority=authority.file, check_host=False)) == 3


async def test_whom_the_system_does_not_trust_is_refused(serve_tls, call):
    server = await serve_tls()
    with pytest.raises(TlsRefused, match="this system trusts: give its authority"):
        await call(server.port, TlsConfig())


async def test_a_servers_own_certificate_is_trusted_where_it_stands_for_the_authority(serve_tls, call, authority):
    certificate, key = authority.issue("server")
    server = await serve_tls((certificate, key))
    assert await call(server.port, TlsConfig(authority=certificate)) == 3


async def test_no_verification_takes_any_certificate_and_is_told_once(serve_tls, call, another, caplog):
    tls._warn_unverified.cache_clear()
    server = await serve_tls(another.issue("server", "elsewhere.example", ends_in_days=-1))
    assert await call(server.port, TlsConfig(verify=False)) == 3
    assert await call(server.port, TlsConfig(verify=False, server_name="x.example")) == 3
    warnings = [record.getMessage() for record in caplog.records if "verify=False" in record.getMessage()]
    assert len(warnings) == 1


async def test_who_shows_no_certificate_is_refused_where_one_is_wanted(serve_tls, call, authority, another):
    wanted = {"client_certificates": ClientCertificates.REQUIRE, "authority": authority.file}
    server = await serve_tls(**wanted)
    certificate, key = authority.issue("client")
    assert await call(server.port, TlsConfig(authority=authority.file, certificate=certificate, key=key)) == 3
    with pytest.raises(Unavailable, match="it requires a client certificate"):
        await call(server.port, TlsConfig(authority=authority.file))
    assert server._dispatcher.refusals.counts == {"failedHandshakes": 1}
    certificate, key = another.issue("stranger")
    with pytest.raises(Unavailable, match="does not trust the issuer"):
        await call(server.port, TlsConfig(authority=authority.file, certificate=certificate, key=key))


async def test_an_optional_certificate_may_be_missing_but_not_a_strangers(serve_tls, call, authority, another):
    server = await serve_tls(client_certificates=ClientCertificates.OPTIONAL, authority=authority.file)
    assert await call(server.port, TlsConfig(authority=authority.file)) == 3
    certificate, key = another.issue("stranger")
    with pytest.raises(Unavailable):
        await call(server.port, TlsConfig(authority=authority.file, certificate=certificate, key=key))


def test_client_certificates_need_an_authority(authority):
    with pytest.raises(UsageError, match=r"need the authority .*tls.server.trustCertPath"):
        ServerTlsConfig(certificate=authority.file, client_certificates=ClientCertificates.REQUIRE)


async def test_a_key_may_have_a_password(serve_tls, call, authority):
    issued = authority.issue("server", password="open sesame")
    server = await serve_tls(issued, password="open sesame")
    assert await call(server.port, TlsConfig(authority=authority.file)) == 3
    for wrong, told in (("shut", "password of the key is wrong"), (None, "has a password, and none is given")):
        with pytest.raises(UsageError, match=told):
            ServerTlsConfig(certificate=issued[0], key=issued[1], password=wrong).context()


def test_no_secret_is_shown():
    shown = repr(ConnectionConfig(tls=TlsConfig(password="4711"), access_key="me", secret_key="4712"))
    assert "4711" not in shown and "4712" not in shown and "'me'" in shown
    assert "4711" not in repr(ServerTlsConfig(certificate="c", password="4711"))


@pytest.mark.parametrize("what", ["certificate", "authority"])
def test_a_file_that_is_not_there_or_no_pem_is_named(tmp_path, what):
    nothing, rubbish = tmp_path / "nothing.pem", tmp_path / "rubbish.pem"
    rubbish.write_text("no PEM")
    for file in (nothing, rubbish):
        with pytest.raises(UsageError, match=f"TLS {what} .*{file.name}.* cannot be used"):
            TlsConfig(**{what: file}).context()


def test_a_key_of_another_certificate_is_told(authority):
    certificate, _ = authority.issue("one")
    _, key = authority.issue("two")
    with pytest.raises(UsageError, match="not this certificate's"):
        TlsConfig(certificate=certificate, key=key).context()


def test_equal_settings_share_a_context_until_a_file_changes(authority):
    one = TlsConfig(authority=str(authority.file)).context()
    assert TlsConfig(authority=str(authority.file)).context() is one
    os.utime(authority.file, (1, 1))
    assert TlsConfig(authority=str(authority.file)).context() is not one


async def test_a_new_certificate_is_shown_to_new_connections_and_old_ones_go_on(
    serve_tls, call, dial, authority, clock
):
    server = await serve_tls(authority.issue("server", "old.example"))
    old = TlsConfig(authority=authority.file, server_name="old.example")
    new = TlsConfig(authority=authority.file, server_name="new.example")
    channel = await dial(server, connections=ConnectionConfig(tls=old))
    authority.issue("server", "new.example")
    assert await call(server.port, old) == 3, "files are looked at once a second"
    await clock.advance(1)
    assert await call(server.port, new) == 3
    assert (await channel.call(ASKED, timeout=30)).header(OffsetResponse).offset == 3


async def test_a_broken_new_file_leaves_the_old_one_in_use_and_is_told_once(serve_tls, call, authority, clock, caplog):
    certificate, key = authority.issue("server")
    server = await serve_tls((certificate, key))
    good = certificate.read_bytes()
    certificate.write_text("half written")
    for _ in range(3):
        await clock.advance(1)
        assert await call(server.port, TlsConfig(authority=authority.file)) == 3
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1 and str(certificate) in errors[0]
    certificate.write_bytes(good)
    await clock.advance(1)
    assert await call(server.port, TlsConfig(authority=authority.file)) == 3


async def test_a_file_that_becomes_usable_is_used_though_it_has_the_same_version(serve_tls, call, authority, clock):
    certificate, key = authority.issue("server", "old.example")
    server = await serve_tls((certificate, key))
    next_certificate, next_key = authority.issue("next", "new.example")
    content = next_certificate.read_bytes()
    certificate.write_bytes(b"x" * len(content))
    key.write_bytes(next_key.read_bytes())
    refused = certificate.stat()
    await clock.advance(1)
    assert await call(server.port, TlsConfig(authority=authority.file, server_name="old.example")) == 3
    certificate.write_bytes(content)
    os.utime(certificate, ns=(refused.st_atime_ns, refused.st_mtime_ns))  # as `chown` leaves it
    await clock.advance(1)
    assert await call(server.port, TlsConfig(authority=authority.file, server_name="new.example")) == 3


@pytest.mark.parametrize(("days", "told"), [(3.5, "expires in 3 days"), (-1.5, "expired 1 day ago")])
async def test_a_server_tells_at_its_start_that_its_certificate_expires(
    serve_tls, authority, caplog, days, told, clock
):
    clock.jump((SystemClock().now_ms() - clock.now_ms()) / 1000)
    await serve_tls(authority.issue("server", ends_in_days=days))
    assert told in caplog.text


async def test_a_client_tells_that_a_servers_certificate_expires_soon(serve_tls, call, authority, caplog):
    server = await serve_tls(authority.issue("server", ends_in_days=3.5))
    channels._log_expiry.cache_clear()
    for _ in range(2):
        assert await call(server.port, TlsConfig(authority=authority.file)) == 3
    assert caplog.text.count(f"certificate of 127.0.0.1:{server.port} expires in 3 days") == 1


# --- what strangers cost


async def _rest(reader):
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


async def _is_closed(reader):
    assert await asyncio.wait_for(_rest(reader), PATIENCE_SECONDS) == b""


@pytest.mark.parametrize(
    ("said", "seconds"),
    [(b"", 120), (b"\x16", 10), (b"\x16\3\1\2\0" + bytes(100), 10)],
    ids=["nothing", "byte", "part"],
)
async def test_who_does_not_finish_the_first_record_is_closed_in_time(serve_tls, clock, until, said, seconds):
    server = await serve_tls()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(said)
    await until(lambda: _unknown(server) == 1)
    if said:
        await until(lambda: all(each.needed > 1 for each in _first_bytes(server)._waiting.values()))
    await clock.advance(seconds - 2)
    assert _unknown(server) == 1
    await clock.advance(3)
    await _is_closed(reader)
    assert _unknown(server) == 0
    writer.close()


@only_linux
async def test_who_breaks_off_within_the_first_record_costs_no_handshake(serve_tls, until, monkeypatch):
    server = await serve_tls()
    begun = []
    monkeypatch.setattr(_first_bytes(server), "_begin_soon", begun.append)
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(_hello()[:100])
    await until(lambda: any(each.needed > 5 for each in _first_bytes(server)._waiting.values()))
    writer.close()
    await until(lambda: _unknown(server) == 0)
    assert begun == []


async def test_who_begins_a_handshake_and_stops_is_closed_in_time(serve_tls, clock, until):
    server = await serve_tls()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(_hello())
    await reader.readexactly(100)  # it has answered
    await clock.advance(12)
    await asyncio.wait_for(_rest(reader), PATIENCE_SECONDS)
    assert _unknown(server) == 0
    writer.close()


async def test_half_open_handshakes_beyond_a_number_push_out_the_oldest(serve_tls, call, authority, monkeypatch):
    monkeypatch.setattr(first_bytes, "MAX_HANDSHAKES", 3)
    server = await serve_tls()
    opened = []
    for _ in range(5):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(_hello())
        await reader.readexactly(100)
        opened.append((reader, writer))
    assert _unknown(server) == 3
    assert await call(server.port, TlsConfig(authority=authority.file)) == 3
    for reader, writer in opened[:2]:
        await asyncio.wait_for(_rest(reader), PATIENCE_SECONDS)
        writer.close()
    for _, writer in opened[2:]:
        writer.close()


async def test_silent_connections_beyond_a_number_push_out_the_oldest(serve_tls, call, monkeypatch, until):
    monkeypatch.setattr(first_bytes, "MAX_WAITING", 3)
    server = await serve_tls()
    opened = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
    await until(lambda: _unknown(server) == 3)
    assert await call(server.port) == 3
    await _is_closed(opened[0][0])
    for _, writer in opened:
        writer.close()


async def test_a_server_that_ends_ends_connections_that_nobody_knows_yet(serve_tls):
    server = await serve_tls()
    readers = []
    for said in (b"", b"\x16", _hello()):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(said)
        readers.append((reader, writer))
    await readers[2][0].readexactly(100)
    await server.close(drain_seconds=0)
    for reader, writer in readers:
        await asyncio.wait_for(_rest(reader), PATIENCE_SECONDS)
        writer.close()


async def test_a_plain_client_is_told_of_a_server_that_just_closes(until):
    """As Java's enforcing servers do."""

    async def close(reader, writer):
        await reader.read(1)
        writer.close()

    other = await asyncio.start_server(close, "127.0.0.1", 0)
    port = other.sockets[0].getsockname()[1]
    channel = await connect(f"127.0.0.1:{port}", Dispatcher(), SystemClock())
    with pytest.raises(ConnectionLost, match="may accept TLS connections only"):
        await channel.call(ASKED, timeout=30)
    await channel.close()
    other.close()


def _hello():
    outgoing = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="x")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def _first_bytes(server):
    return server._listener._first_bytes


def _unknown(server):
    return _first_bytes(server).count


def test_a_request_is_what_an_enforcing_port_reads():
    """The first byte of a frame is never that of a handshake."""
    assert encode_request(ASKED, b"", opaque=1, flag=0)[0] != 0x16
