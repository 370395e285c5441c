"""Addresses of name servers, and asking the next one when one is away."""

import socket

import pytest

from pyromq.client.name_servers import parse_addresses
from pyromq.client.producer import AsyncProducer
from pyromq.errors import NoNameServer, UsageError


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("127.0.0.1:9876", ["127.0.0.1:9876"]),
        ("a:1;b:2", ["a:1", "b:2"]),
        (" a:1 ; ;b:2;", ["a:1", "b:2"]),
        ("http://a:1/", ["a:1"]),
        ("[::1]:9876", ["[::1]:9876"]),
    ],
)
def test_addresses_are_separated_by_semicolons(text, addresses):
    assert parse_addresses(text) == addresses


@pytest.mark.parametrize("text", ["localhost", ":9876", "a:b", "a:0", "a:65536"])
def test_what_is_no_address_is_named(text):
    with pytest.raises(UsageError, match=f"'{text}' is not host:port"):
        parse_addresses(text)


@pytest.mark.parametrize("text", ["", ";"])
def test_no_address_at_all_is_refused(text):
    with pytest.raises(UsageError, match="no name server address"):
        parse_addresses(text)


def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


async def test_starting_with_nothing_listening_names_the_address_and_what_to_do():
    address = f"127.0.0.1:{closed_port()}"
    with pytest.raises(NoNameServer, match=f"{address}; start one with `pyromq serve`"):
        await AsyncProducer("p", address).start()


async def test_the_next_name_server_is_asked_when_one_is_away(cluster):
    for _ in range(8):  # a client starts at a random one
        async with AsyncProducer("p", f"127.0.0.1:{closed_port()};{cluster.namesrv}") as producer:
            assert len(await producer.queues("new")) == 4
