"""Name server addresses, `host:port;host:port`, and address servers, which return such addresses for a URL.

Source: RocketMQ 4.9.8, TopAddressing; its URL is `http://DOMAIN:8080/rocketmq/nsaddr`. By default no URL is used.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future
from contextlib import closing, suppress
from ipaddress import IPv6Address
from socket import SHUT_RDWR, socket
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from pyromq.errors import NoNameServer, UsageError
from pyromq.excerpt import excerpt

if TYPE_CHECKING:
    from http.client import HTTPResponse

REFRESH_SECONDS = 120.0  # time between two look-ups of addresses. Source: MQClientInstance.startScheduledTask
TIMEOUT_SECONDS = 3.0  # limit of a look-up, from connecting to the last byte. Source: TopAddressing.fetchNSAddr
MAX_BYTES = 64 << 10  # limit of a response: a few thousand addresses

_SCHEMES = ("http://", "https://")
_ADVICE = "correct the address, or give the name servers themselves as host:port;host:port"


def parse_addresses(text: str) -> list[str]:
    """Return the addresses in `host:port;host:port` in order, or one URL of an address server.

    `http://host:port` is an address, as in Java clients: a URL has a path. Raises `UsageError` for any other string.
    """
    if not isinstance(text, str):
        raise UsageError(f"namesrv={text!r:.80} is {type(text).__name__}; it is a string, host:port;host:port")
    if is_url(text):
        _check_url(text.strip())
        return [text.strip()]
    addresses = []
    for part in text.replace(",", ";").split(";"):
        address = part.strip().removeprefix("http://").rstrip("/")
        if not address:
            continue
        host, _, port = address.rpartition(":")
        if not _is_host(host) or not port.isdigit() or not 0 < int(port) < 65536:
            raise UsageError(f"name server address {part.strip()!r} is not host:port, such as 127.0.0.1:9876")
        addresses.append(address)
    if not addresses:
        raise UsageError("no name server address is given; give one as host:port, such as 127.0.0.1:9876")
    return addresses


def _is_host(text: str) -> bool:
    """Return whether a string can be a name or an address. Colons, as of a second port, are for IPv6."""
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if ":" in bare:
        try:
            IPv6Address(bare)
        except ValueError:
            return False
        return True
    return bool(bare) and not set(bare) & set("/[]")


def is_url(text: str) -> bool:
    """Return whether a string is the URL of an address server."""
    scheme, separator, rest = text.strip().partition("//")
    path = rest.partition("/")[2]
    return scheme + separator in _SCHEMES and path != "" and path[0] not in ";,"


class AddressServer:
    """Looks up the addresses of name servers at one URL."""

    def __init__(self, url: str) -> None:
        """Raises `UsageError` for an invalid URL."""
        self.url = url
        self._parts = _check_url(url)

    async def look_up(self) -> list[str]:
        """Return the current addresses in the address server's order, within 3 s. Does not block the event loop.

        Raises `NoNameServer` that names the URL, the fault and what to do.
        """
        # Imported when needed: the import takes a large part of a client's import time.
        from http.client import HTTPException

        answer: Future[str] = Future()
        opened: list[socket] = []
        threading.Thread(target=self._ask, args=(answer, opened), name="pyromq look-up", daemon=True).start()
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                text = await asyncio.wrap_future(answer)
        except TimeoutError as error:
            raise self._failure(f"does not answer within {TIMEOUT_SECONDS:g} s") from error
        except (OSError, HTTPException, ValueError) as error:  # ValueError: an invalid host name
            raise self._failure(f"cannot be reached: {excerpt(str(error)) or type(error).__name__}") from error
        finally:
            for each in opened:
                with suppress(OSError):
                    each.shutdown(SHUT_RDWR)  # ends the wait of the thread that reads; closing the socket would not
        return self._addresses(text)

    def _ask(self, answer: Future[str], opened: list[socket]) -> None:
        """Runs in its own thread, because resolving names and verifying certificates block."""
        if not answer.set_running_or_notify_cancel():
            return
        try:
            answer.set_result(self._got(opened))
        except Exception as error:  # noqa: BLE001  raised to the caller
            answer.set_exception(error)

    def _got(self, opened: list[socket]) -> str:
        from http.client import HTTPConnection, HTTPSConnection

        parts = self._parts
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        with closing(kind(parts.hostname or "", parts.port, timeout=TIMEOUT_SECONDS)) as connection:
            connection.connect()
            opened.append(connection.sock)
            connection.request("GET", parts.path + (f"?{parts.query}" if parts.query else ""))
            with connection.getresponse() as response:
                return self._text(response)

    def _text(self, response: HTTPResponse) -> str:
        if response.status != 200:
            where = response.headers.get("Location")
            further = f" and points to {excerpt(where)}, which is not followed: give that" if where else ""
            raise self._failure(f"answers {response.status} {excerpt(response.reason)}{further}")
        text = b""
        ends = time.monotonic() + TIMEOUT_SECONDS
        while len(text) <= MAX_BYTES and time.monotonic() < ends and (piece := response.read1(MAX_BYTES)):
            text += piece
        if response.length:
            raise self._failure("breaks off in the middle of its answer")
        if len(text) > MAX_BYTES:
            raise self._failure(f"answers more than {MAX_BYTES} bytes")
        return text.decode(errors="replace")

    def _addresses(self, text: str) -> list[str]:
        """Return the addresses in the first line of the address server's response."""
        line = (text.strip().splitlines() or [""])[0]
        try:
            addresses = parse_addresses(line)
        except UsageError as error:
            raise self._failure(f"answers '{excerpt(line)}', which is not host:port;host:port") from error
        if is_url(addresses[0]):
            raise self._failure(f"answers '{excerpt(line)}', another URL, which is not followed")
        return addresses

    def _failure(self, why: str) -> NoNameServer:
        return NoNameServer(f"name servers cannot be looked up: {self.url} {why}; {_ADVICE}")


def _check_url(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        usable = parts.hostname and parts.port != 0 and parts.username is None and url.isascii() and url.isprintable()
    except ValueError:  # the port is not a number
        usable = False
    if not usable or " " in url or ";" in url or "," in url:
        raise UsageError(
            f"address server '{excerpt(url)}' is not one URL; give one URL alone, such as http://HOST:8080/rocketmq/nsaddr"
        )
    return parts
