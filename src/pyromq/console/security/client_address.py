"""Finds the address of a browser, also behind a proxy, and the network under which failed sign-ins are counted."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from starlette.requests import HTTPConnection

from pyromq.errors import UsageError

IPV6_PREFIX = 64  # prefix length of the network of one customer, who can use all of its addresses


def check_networks(texts: Sequence[str]) -> None:
    """Raise `UsageError` for a string that is neither an IP address nor a network."""
    for text in texts:
        try:
            ip_network(text)
        except ValueError as error:
            raise UsageError(f"proxy {text[:60]!r} is not an address or a network: {error}") from error


def client_address(connection: HTTPConnection, proxies: Sequence[str]) -> str:
    """Return the address of a browser; "" if the address is unknown.

    If the peer is one of `proxies` (addresses and networks), return the last address of header X-Forwarded-For, which
    the proxy added. Earlier addresses, and headers from other peers, may be forged and are ignored.
    """
    host = connection.client.host if connection.client is not None else ""
    peer = _parsed(host)
    if peer is None or not any(peer in ip_network(each) for each in proxies):
        return host
    lines = connection.headers.getlist("x-forwarded-for")
    forwarded = _parsed(lines[-1].rpartition(",")[2].strip()) if lines else None
    return str(forwarded or peer)


def counted_address(address: str) -> str:
    """Return the address under which failed sign-ins are counted.

    It is an IPv4 address, or the /64 network of an IPv6 address.
    """
    parsed = _parsed(address)
    if isinstance(parsed, IPv6Address):
        return str(ip_network((parsed.packed, IPV6_PREFIX), strict=False))
    return str(parsed or address)


def _parsed(text: str) -> IPv4Address | IPv6Address | None:
    """Return an address, which may have a port or brackets; None if the text is not an address."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        found = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return found.ipv4_mapped or found if isinstance(found, IPv6Address) else found
