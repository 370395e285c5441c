"""What strangers do to the console's port: connections, heads and bodies that never end, and answers never read."""

import asyncio
import resource
import ssl
from contextlib import asynccontextmanager
from dataclasses import replace
from urllib.parse import urlsplit

import httpx
import pytest
from tests.certificates import Authority
from tests.console.conftest import PASSWORD, served
from tests.waiting import PATIENCE_SECONDS, until

from pyromq.console.browser_connections import SLOW, TOO_MANY, WAIT_SECONDS
from pyromq.console.console import Console
from pyromq.console.console_config import ConsoleConfig
from pyromq.console.security.console_accounts import ConsoleAccounts
from pyromq.testing import FakeClock

HEAD = b"POST /sign-in HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
MANY = 8


@pytest.fixture
async def console(tmp_path):
    """A console with an account, whose cluster does not answer: strangers come no further than signing in."""
    data = tmp_path / "console"
    data.mkdir()
    ConsoleAccounts(data / "accounts.json").save("anna", role="admin", password=PASSWORD)
    console = Console(ConsoleConfig("127.0.0.1:1", data), FakeClock())
    yield console
    console.audit.close()


def told(caplog):
    """Lines about strangers in the log."""
    return [each for each in caplog.records if each.name == "pyromq.remoting.rejection_log"]


@asynccontextmanager
async def strangers(address, sent, count=1):
    """Connections that have sent so much."""
    parts = urlsplit(address)
    opened = [await asyncio.open_connection(parts.hostname, parts.port) for _ in range(count)]
    for _, writer in opened:
        writer.write(sent)
        await writer.drain()
    try:
        yield opened
    finally:
        for _, writer in opened:
            writer.close()


async def answered(address):
    async with asyncio.timeout(PATIENCE_SECONDS), httpx.AsyncClient() as browser:
        return (await browser.get(f"{address}/sign-in")).status_code


async def is_closed(reader):
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await reader.read(1 << 16):
                pass
    except ConnectionError:
        pass
    return True


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ",
        HEAD + b"Content-Length: 100\r\n\r\nname=",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nname=\r\n",
        b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nname=",
        b"GET /static/console.css HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
    ids=["nothing", "a head", "a body", "a chunked body", "a body of no page", "a body of a file"],
)
async def test_a_connection_that_goes_on_too_slowly_is_closed(console, sent):
    async with served(console) as address, strangers(address, sent) as [(reader, writer)]:
        assert await answered(address) == 200  # the stranger's bytes have been read by then
        await console.clock.advance(WAIT_SECONDS - 2)
        writer.write(b"x")  # a byte now and then is not progress
        await writer.drain()
        assert await answered(address) == 200
        await console.clock.advance(3)
        assert await is_closed(reader)
        assert console.refusals.counts[SLOW] == 1


async def test_a_connection_whose_answers_are_not_read_is_closed(console):
    request = b"GET /static/console.css HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with served(console) as address, strangers(address, b"") as [(_, writer)]:
        writer.transport.pause_reading()
        writer.write(request * 2000)  # 38 MB of answers
        while not console.refusals.counts[SLOW]:  # the buffers of both kernels are filled first
            await console.clock.advance(WAIT_SECONDS + 1)
            await asyncio.sleep(0.05)
        assert console.metrics._requests.total() < 2000
        assert await answered(address) == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\n",
        HEAD + b"Content-Length: 9\r\n\r\n",
        b"GET /sign-in HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
    ids=["silent", "head", "body", "keep-alive"],
)
async def test_more_connections_than_the_limit_keep_nobody_out(console, sent, caplog):
    async with served(console, max_connections=MANY) as address, strangers(address, sent, count=5 * MANY):
        for _ in range(3):
            assert await answered(address) == 200
    assert console.refusals.counts[TOO_MANY] >= 4 * MANY
    assert len(told(caplog)) == 1


async def test_a_process_without_descriptors_goes_on_answering_when_it_has_some(console, caplog):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with served(console) as address, httpx.AsyncClient() as browser:
        assert (await browser.get(f"{address}/sign-in")).status_code == 200
        resource.setrlimit(resource.RLIMIT_NOFILE, (4, hard))
        try:
            parts = urlsplit(address)
            with pytest.raises(OSError):
                await asyncio.open_connection(parts.hostname, parts.port)
            assert (await browser.get(f"{address}/sign-in")).status_code == 200  # over its own connection
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert await answered(address) == 200


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "multipart/form-data; boundary=b"])
async def test_a_form_is_counted_while_it_is_read(console, kind):
    sent = 0

    async def endless():
        nonlocal sent
        yield b'--b\r\nContent-Disposition: form-data; name="name"\r\n\r\n' if "multipart" in kind else b"name="
        while True:
            sent += 1 << 16
            yield b"x" * (1 << 16)

    async with served(console) as address, httpx.AsyncClient() as browser:
        with pytest.raises(httpx.HTTPError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                request = asyncio.create_task(
                    browser.post(f"{address}/sign-in", content=endless(), headers={"content-type": kind})
                )
                await until(lambda: ("/sign-in", 400) in console.metrics._requests)
                await console.clock.advance(WAIT_SECONDS + 1)
                await request


async def test_what_is_not_http_is_counted_and_told_once(console, caplog):
    async with served(console) as address:
        for _ in range(20):
            async with strangers(address, b"\x16\x03\x01 hello\r\n\r\n") as [(reader, _)]:
                assert await is_closed(reader)
    assert console.refusals.counts["unreadableRequests"] == 20
    assert len(told(caplog)) == 1


async def test_tls_connections_that_never_shake_hands_are_closed(console, tmp_path):
    authority = Authority(tmp_path)
    certificate, key = authority.issue("console")
    console.config = replace(console.config, tls_cert=certificate, tls_key=key)
    async with (
        served(console, max_connections=MANY) as address,
        strangers(address, b"\x16\x03", count=MANY) as opened,
    ):
        parts = urlsplit(address)
        trusted = ssl.create_default_context(cafile=authority.file)
        _, writer = await asyncio.open_connection(parts.hostname, parts.port, ssl=trusted)
        writer.close()
        await console.clock.advance(WAIT_SECONDS + 2)
        assert all([await is_closed(reader) for reader, _ in opened])
