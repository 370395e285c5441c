"""What brokers are told of a client, and in which order."""

import asyncio
from concurrent.futures import Future

import pytest
from tests.client.conftest import stand_in
from tests.waiting import PATIENCE_SECONDS, until

from pyromq.client.cluster import cluster_client
from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.remoting.bodies import ConsumerEntry, HeartbeatBody
from pyromq.remoting.command import Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import Heartbeat
from pyromq.remoting.json_quirks import decode_body
from pyromq.testing import FakeClock
from pyromq.testing.fake_clock import settle


class SlowBroker:
    """Answers a heartbeat when a test does."""

    def __init__(self):
        self.told = []
        self.unanswered = []

    @answers(Heartbeat)
    def heartbeat(self, header, call):
        self.told.append(decode_body(HeartbeatBody, call.body).consumers[0].group)
        self.unanswered.append(Future())
        return self.unanswered[-1]

    def answer(self):
        self.unanswered.pop(0).set_result(Reply())


@pytest.fixture
def slow():
    return SlowBroker()


@pytest.fixture
async def namesrv(slow, monkeypatch):
    """A name server that knows the slow broker alone."""
    monkeypatch.setattr(cluster_client, "API_SECONDS", PATIENCE_SECONDS)
    async with stand_in(slow) as namesrv:
        yield namesrv


async def test_a_heartbeat_waits_until_the_one_before_it_is_answered_and_says_what_is_so_then(slow, namesrv):
    groups = ["before"]
    client = ClusterClient(
        namesrv, FakeClock(), announce=lambda client_id: HeartbeatBody(client_id, consumers=[ConsumerEntry(groups[0])])
    )
    await client.start()
    [address] = (await client.masters()).values()
    await client.channel(address)  # a new connection begins with one
    await until(lambda: slow.told)
    client.join_everywhere()
    beat = asyncio.create_task(client.heartbeat())
    await settle()
    groups[0] = "after"
    assert slow.told == ["before"]
    for count in (2, 3):
        slow.answer()
        await until(lambda count=count: len(slow.told) == count)
        await settle()
    assert slow.told == ["before", "after", "after"]
    slow.answer()
    await beat
    await client.close()
