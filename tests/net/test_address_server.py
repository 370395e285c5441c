"""Looking up name servers over HTTP: what is understood, and that nothing an address server does hurts who asks."""

import asyncio
import ssl
import threading

import pytest
from tests.certificates import Authority
from tests.net.address_server import AddressSite
from tests.waiting import PATIENCE_SECONDS

from pyromq.errors import NoNameServer, UsageError
from pyromq.net import address_server
from pyromq.net.address_server import MAX_BYTES, AddressServer, is_url, parse_addresses


@pytest.fixture
def site():
    with AddressSite("10.0.0.1:9876;10.0.0.2:9876") as site:
        yield site


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("http://names.example:8080/rocketmq/nsaddr", True),
        (" https://names.example/nsaddr-unit?nofix=1 ", True),
        ("http://a:1", False),
        ("http://a:1/", False),
        ("http://a:1/;http://b:2/", False),
        ("a:1;b:2", False),
    ],
)
def test_a_url_has_a_path(text, is_one):
    assert is_url(text) is is_one
    assert parse_addresses(text) == ([text.strip()] if is_one else parse_addresses(text.replace("http://", "")))


@pytest.mark.parametrize("text", ["a:1:2", "a:9876:9876", "[a:1]:2", "127.0.0.1:1:2", "[::1:2"])
def test_an_address_has_one_port(text):
    with pytest.raises(UsageError, match=r"name server address '.+' is not host:port"):
        parse_addresses(text)


def test_addresses_of_ipv6_are_taken():
    assert parse_addresses("[::1]:9876;::1:9876;[fe80::1%eth0]:1") == ["[::1]:9876", "::1:9876", "[fe80::1%eth0]:1"]


@pytest.mark.parametrize(
    "url",
    [
        "http://a/b;c:1",
        "http:///nsaddr",
        "http://a:x/nsaddr",
        "http://me@a/nsaddr",
        "http://a/b c",
        "http://a/b\r\nX: 1",
    ],
)
def test_a_url_that_cannot_be_asked_is_named(url):
    with pytest.raises(UsageError, match=r"address server '.+' is not one URL; give one URL alone"):
        parse_addresses(url)


def test_https_addresses_are_no_name_servers():
    with pytest.raises(UsageError, match="'https://a:1' is not host:port"):
        parse_addresses("https://a:1")


async def test_the_answer_is_a_line_of_addresses(site):
    site.answer = " 10.0.0.1:9876;10.0.0.2:9876 \r\nsecond line\n"
    assert await AddressServer(f"{site.url}-unit?nofix=1").look_up() == ["10.0.0.1:9876", "10.0.0.2:9876"]
    assert site.asked == ["/rocketmq/nsaddr-unit?nofix=1"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"answer": ""}, "answers '', which is not host:port"),
        ({"answer": "<html>\x1b[0m"}, r"answers '<html>\\x1b\[0m', which is not host:port"),
        (
            {"answer": "http://elsewhere/nsaddr"},
            "answers 'http://elsewhere/nsaddr', another URL, which is not followed",
        ),
        ({"answer": "a" * (MAX_BYTES + 1)}, "answers more than 65536 bytes"),
        ({"status": 404}, "answers 404 Not Found"),
        (
            {"status": 302, "headers": {"Location": "file:///etc/passwd"}},
            "answers 302 Found and points to file:///etc/passwd, which is not followed",
        ),
        ({"headers": {"Content-Length": "100"}}, "breaks off in the middle"),
    ],
)
async def test_what_is_no_answer_is_named_with_what_to_do(site, changes, text):
    for name, value in changes.items():
        setattr(site, name, value)
    with pytest.raises(NoNameServer, match=rf"looked up: {site.url} {text}.*; correct the address, or give the name"):
        await AddressServer(site.url).look_up()


async def test_nobody_there_is_named(site):
    with pytest.raises(NoNameServer, match=r"http://127\.0\.0\.1:1/nsaddr cannot be reached: .*refused"):
        await AddressServer("http://127.0.0.1:1/nsaddr").look_up()


async def test_a_server_that_is_silent_is_given_up_without_blocking_the_loop(site, monkeypatch):
    monkeypatch.setattr(address_server, "TIMEOUT_SECONDS", 0.3)
    site.talks.clear()
    asking = asyncio.create_task(AddressServer(site.url).look_up())
    turns = 0
    while not asking.done():
        await asyncio.sleep(0.01)
        turns += 1
    with pytest.raises(NoNameServer, match=r"does not answer within 0\.3 s|timed out"):
        await asking
    assert turns > 3


async def test_who_stops_waiting_leaves_no_thread_behind(site):
    site.talks.clear()
    asking = asyncio.create_task(AddressServer(site.url).look_up())
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not site.asked:
            await asyncio.sleep(0.001)

    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)

    async with asyncio.timeout(PATIENCE_SECONDS):
        while any(thread.name == "pyromq look-up" for thread in threading.enumerate()):
            await asyncio.sleep(0.001)


async def test_https_is_verified(tmp_path, monkeypatch):
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server")
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(certificate, key)
    with AddressSite("10.0.0.1:9876") as site:
        site.wrap(served)
        url = site.url.replace("http://127.0.0.1", "https://localhost")
        with pytest.raises(NoNameServer, match="CERTIFICATE_VERIFY_FAILED"):
            await AddressServer(url).look_up()
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
        assert await AddressServer(url).look_up() == ["10.0.0.1:9876"]
