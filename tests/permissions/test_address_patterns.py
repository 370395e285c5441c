"""Patterns of white lists: RocketMQ's, as its own tests have them, and what is refused."""

import pytest

from pyromq.errors import UsageError
from pyromq.permissions.address_patterns import parse_pattern, peer_address


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("*", "1.2.3.4 ::1", ""),
        ("*.*.*.*", "1.2.3.4 ::1", ""),
        ("*:*:*:*:*:*:*:*", "1.2.3.4 ::1", ""),
        ("", "", "0.0.0.0 127.0.0.1 ::"),
        ("  ", "", "127.0.0.1"),
        ("127.0.0.1", "127.0.0.1", "127.0.0.2 ::1"),
        ("127.0.0.{1,2,3}", "127.0.0.1 127.0.0.3", "127.0.0.4 127.0.1.1"),
        ("127.0.0.1, 127.0.0.3", "127.0.0.1 127.0.0.3", "127.0.0.2"),
        ("127.0.0.*", "127.0.0.0 127.0.0.255", "127.0.1.0"),
        ("127.0.*.*", "127.0.0.1 127.0.255.9", "127.1.0.1"),
        ("127.0.1-200.*", "127.0.1.0 127.0.200.255", "127.0.0.255 127.0.201.0"),
        ("127.*.*.*", "127.0.0.1 127.255.3.4", "128.0.0.1"),
        ("127.1-20.*.*", "127.1.0.0 127.20.255.255", "127.0.1.1 127.21.0.0"),
        ("127.0.0.1-20", "127.0.0.1 127.0.0.20", "127.0.0.0 127.0.0.21 127.0.0.200"),
        ("5::7:6:1", "5::7:6:1 5:0:0:0:0:7:6:1", "5::7:6:2"),
        ("5::7:6:{1,B}", "5::7:6:1 5::7:6:b", "5::7:6:2"),
        ("5::7:6:1,1.2.3.4", "5::7:6:1 1.2.3.4", "5::7:6:2"),
        ("1050:0:0:0:5:600:300c:*", "1050::5:600:300c:0 1050::5:600:300C:ffff", "1050::5:600:300d:0"),
        ("1050::5:600:300c:1-2f", "1050::5:600:300c:1 1050::5:600:300c:2f", "1050::5:600:300c:30"),
        ("1050::5:600:1-20:*", "1050::5:600:1:0 1050::5:600:20:ffff", "1050::5:600:0:1 1050::5:600:21:1"),
        ("fe80::*", "fe80:: fe80::ffff", "fe80::1:0 fe80:0:1::"),
        ("fe80::1-f:*", "fe80::1:0 fe80::f:9", "fe80::10:0 fe80::1:1:0"),
        ("::*", "::1", "::1:0 1.2.3.4"),
    ],
)
def test_a_pattern_names_these_addresses_and_no_others(pattern, inside, outside):
    parsed = parse_pattern(pattern)
    named = [address for address in f"{inside} {outside}".split() if parsed.matches(peer_address(f"[{address}]:1"))]
    assert named == inside.split()


@pytest.mark.parametrize(
    "pattern",
    [
        "*.1.2.3", "1.2.3", "1.2.*", "1.2.3.256", "1.2.3.4.5", "256.1.*.*", "1.2.3.-5", "1.2.3.5-2", "1.2.3.5-256",
        "1.2.3.1-2-3", "1.2.3.{}", "1.2.3.{4,x}", "{1,2}", "x", "localhost", ",", "::g", "1::2:*:3", "1::2:g-h",
        "10.0.0.0/8",
        "1:2:3:4:5:6:7:8:*", "1.2.3.4-", "１.2.3.*",
    ],
)  # fmt: skip
def test_what_is_no_pattern_is_refused(pattern):
    with pytest.raises(UsageError, match="not an address or pattern of addresses"):
        parse_pattern(pattern)


def test_a_network_is_refused_with_what_to_write():
    with pytest.raises(UsageError, match=r"are written 10\.\*"):
        parse_pattern("192.168.0.0/16")


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("1.2.3.4:99", "1.2.3.4"),
        ("[::1]:99", "::1"),
        ("[::ffff:1.2.3.4]:99", "1.2.3.4"),
        ("[fe80::1%eth0]:99", "fe80::1"),
        ("elsewhere:99", "None"),
    ],
)
def test_the_address_of_a_peer(peer, address):
    assert str(peer_address(peer)) == address
