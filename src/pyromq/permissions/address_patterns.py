"""Patterns of addresses in white lists.

    *  *.*.*.*  *:*:*:*:*:*:*:*          every address
    192.168.0.5   2001:db8::5            one address
    192.168.0.{1,7}   2001:db8::{1,7}    two addresses
    192.168.0.1,192.168.1.7              two addresses
    192.168.*.*   192.168.1-20.*         a range of the second, third or fourth part; later parts are arbitrary
    2001:db8::1-2f   2001:db8::*         a range of the last part, hexadecimal
    2001:db8::1-2f:*                     a range of the part before the last

Source: RocketMQ 4.9.8, RemoteAddressStrategyFactory. Unlike in RocketMQ, `::` in a pattern with `*` stands for as many
zeros as the address lacks. A pattern that can never match is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

from pyromq.errors import UsageError

Address = IPv4Address | IPv6Address

_EVERY = ("*", "*.*.*.*", "*:*:*:*:*:*:*:*")


@dataclass(frozen=True, slots=True)
class AddressPattern:
    """The set of IP addresses that a pattern of a white list matches."""

    text: str
    every: bool = False
    addresses: frozenset[Address] = frozenset()
    head: tuple[int, ...] = ()  # the equal parts before the part that ranges from `first` to `last`
    first: int = 0
    last: int = -1
    version: int = 0  # IP version of the addresses in the range: 4 or 6; 0: no range

    def matches(self, address: Address) -> bool:
        """Return whether the pattern matches this address."""
        if self.every or address in self.addresses:
            return True
        if address.version != self.version:
            return False
        parts = _parts(address)
        place = len(self.head)
        return parts[:place] == self.head and self.first <= parts[place] <= self.last


def parse_pattern(text: str) -> AddressPattern:
    """Parse an address pattern; a blank text matches no address. Raises `UsageError` for an invalid pattern."""
    plain = text.strip()
    if not plain:
        return AddressPattern(plain)
    if plain in _EVERY:
        return AddressPattern(plain, every=True)
    try:
        if plain.endswith("}"):
            start, _, choices = plain[:-1].partition("{")
            return AddressPattern(plain, addresses=_addresses(start + each for each in _split(choices)))
        if "," in plain:
            return AddressPattern(plain, addresses=_addresses(_split(plain)))
        if "*" in plain or "-" in plain:
            return _range_v6(plain) if ":" in plain else _range_v4(plain)
        return AddressPattern(plain, addresses=_addresses([plain]))
    except ValueError as error:
        hint = "; networks such as 10.0.0.0/8 are written 10.*.*.*" if "/" in plain else ""
        raise UsageError(f"{text!r} is not an address or pattern of addresses{hint}") from error


def peer_address(text: str) -> Address | None:
    """Return the IP address in `host:port` or `[host]:port`; None if there is none.

    An IPv4-mapped IPv6 address is returned as IPv4.
    """
    host = text.rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _split(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _addresses(texts: object) -> frozenset[Address]:
    addresses = frozenset(ip_address(text) for text in texts)  # type: ignore[attr-defined]
    if not addresses:
        raise ValueError("no address")
    return addresses


def _range_v4(text: str) -> AddressPattern:
    words = [word.strip() for word in text.split(".")]
    place = next(number for number, word in enumerate([*words, "*"]) if "*" in word or "-" in word)
    if len(words) != 4 or not 1 <= place <= 3:
        raise ValueError("the second, third or fourth of four parts may be a range")
    head = tuple(_number(word, 10, 255) for word in words[:place])
    first, last = _bounds(words[place], 10, 255)
    return AddressPattern(text, head=head, first=first, last=last, version=4)


def _range_v6(text: str) -> AddressPattern:
    start, _, word = text.rpartition(":")
    place = 7
    rest = start
    if word == "*" and "-" in start:
        rest, _, word = start.rpartition(":")
        place = 6
    if rest.endswith(":") and not rest.endswith("::"):
        rest += ":"  # in 2001:db8::1-2f two colons precede the range
    filler = "0" if rest.endswith("::") else ":0" * (8 - place)
    head = _parts(ip_address(rest + filler))[:place]
    first, last = _bounds(word, 16, 0xFFFF)
    return AddressPattern(text, head=head, first=first, last=last, version=6)


def _bounds(word: str, base: int, most: int) -> tuple[int, int]:
    if word == "*":
        return 0, most
    first, last = (_number(end, base, most) for end in word.split("-"))
    if first > last:
        raise ValueError("the range ends before it begins")
    return first, last


def _number(word: str, base: int, most: int) -> int:
    number = int(word, base) if word.isalnum() and word.isascii() else most + 1
    if not 0 <= number <= most:
        raise ValueError(f"{word} is not 0 to {most}")
    return number


def _parts(address: Address) -> tuple[int, ...]:
    packed = address.packed
    if address.version == 4:
        return tuple(packed)
    return tuple(int.from_bytes(packed[at : at + 2]) for at in range(0, 16, 2))
