"""Many topics, and twice as many groups: a view asks as much of the brokers as with three."""

from dataclasses import replace

import pytest
from tests.console.conftest import browsing

from pyromq.net.connection_config import ConnectionConfig
from pyromq.remoting.bodies import GroupConfig, encode_body
from pyromq.remoting.headers import CreateTopic, SaveGroup, UpdateConsumerOffset


class Counting:
    """Counts calls by their code."""

    def __init__(self):
        self.calls = []

    def before_request(self, request):
        self.calls.append(request.code)

    def after_response(self, request, outcome):
        pass


async def fill(cluster, topics):
    """Make so many topics of 8 queues, and twice as many groups that consume them."""
    admin = await cluster.admin()
    address = cluster.broker.address
    ask = admin._brokers.ask
    for number in range(topics):
        await ask(address, CreateTopic(f"t{number:04d}", 8, 8, 6, "TBW102"))
    for number in range(2 * topics):
        group, topic = f"g{number:04d}", f"t{number % topics:04d}"
        await ask(address, SaveGroup(), encode_body(GroupConfig(name=group)))
        await ask(address, UpdateConsumerOffset(group, topic, 0, 0))


@pytest.mark.slow
@pytest.mark.parametrize("topics", [100, pytest.param(1000, marks=pytest.mark.soak)])
async def test_views_of_many_topics_and_groups_ask_as_little_as_of_few(cluster, config, topics):
    await fill(cluster, topics)
    counting = Counting()
    config = replace(config, connections=ConnectionConfig(hooks=(counting,)), sample_seconds=3600)
    async with browsing(config) as browser:
        await browser.get("/")
        for path in ("/", "/topics", "/topics?sort=-messages&page=2", "/groups", "/groups?sort=-lag&page=3"):
            counting.calls.clear()
            page = await browser.get(path)
            assert 1 <= len(counting.calls) <= 4, counting.calls
        assert f"{2 * topics:,} groups" in page
