"""Which addresses get a broker's log."""

import asyncio

import pytest

from pyromq.broker.replication.ha.allowed_peers import AllowedPeers

MASTER, SLAVE, STRANGER = "10.0.0.1", "10.0.0.2", "10.0.0.3"


class Registered:
    """The addresses that a name server knows, and how often it was asked."""

    def __init__(self, *hosts):
        self.hosts, self.asked = frozenset(hosts), 0

    async def __call__(self):
        self.asked += 1
        await asyncio.sleep(0)
        return self.hosts


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
async def test_a_broker_on_loopback_allows_all(clock, host):
    peers = AllowedPeers((), clock, host=host, registered=Registered())
    assert await peers.allows("127.0.0.1")


async def test_another_broker_allows_the_registered_addresses_of_its_name(clock):
    peers = AllowedPeers((), clock, host="0.0.0.0", registered=Registered(MASTER, SLAVE))
    assert await peers.allows(SLAVE)
    assert not await peers.allows(STRANGER)


async def test_listed_addresses_are_the_only_ones(clock):
    registered = Registered(MASTER, SLAVE)
    peers = AllowedPeers((STRANGER,), clock, host="127.0.0.1", registered=registered)
    assert await peers.allows(STRANGER)
    assert not await peers.allows(SLAVE)
    assert not await peers.allows("127.0.0.1")
    assert registered.asked == 0


async def test_a_name_server_is_not_asked_for_each_of_many_peers(clock):
    registered = Registered(MASTER)
    peers = AllowedPeers((), clock, host=MASTER, registered=registered)
    allowed = await asyncio.gather(*(peers.allows(host) for host in [SLAVE, MASTER] * 50))
    assert allowed == [False, True] * 50
    assert registered.asked == 1
    registered.hosts = frozenset((MASTER, SLAVE))
    await clock.advance(1)
    assert await peers.allows(SLAVE)
