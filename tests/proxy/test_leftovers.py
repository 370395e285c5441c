"""gRPC clients that come and go leave nothing in a proxy that lives long."""

import gc

import pytest
from tests.endurance.containers import grown, sizes
from tests.net.gone_connections import nothing_is_left
from tests.proxy.calls import Calls, message, publishing, subscription

from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.client.cluster.deleted_topics import REFRESHES
from pyromq.proxy.http2 import frames
from pyromq.proxy.proto import definition_pb2 as proto
from pyromq.proxy.proto import service_pb2 as service

AT_ONCE = 4  # clients and topics in a round: what is left of each makes a table grow by as many
SILENCE_SECONDS = 150  # more than a proxy waits for heartbeats


async def come_and_go(proxy, admin, name):
    """Produce to and consume from a topic as one client, ask for a topic that does not exist, and leave."""
    await admin.create_topic(name, queues=1)
    topic, group = proto.Resource(name=name), proto.Resource(name=name)
    async with Calls(proxy.address, f"client@{name}") as calls:
        await calls.settings(publishing(name))
        sent = await calls.send(message(name))
        assert sent.status.code == proto.OK, sent
    async with Calls(proxy.address, f"consumer@{name}") as calls:
        await calls.settings(subscription(name, name))
        await calls("Heartbeat", service.HeartbeatRequest(group=group, client_type=proto.SIMPLE_CONSUMER))
        absent = proto.Resource(name=f"no-{name}")
        await calls("QueryRoute", service.QueryRouteRequest(topic=absent, endpoints=calls.endpoints))
        await calls(
            "QueryAssignment", service.QueryAssignmentRequest(topic=topic, group=group, endpoints=calls.endpoints)
        )
        await calls("NotifyClientTermination", service.NotifyClientTerminationRequest(group=group))
    await admin.delete_topic(name)
    await admin.delete_group(name)


async def test_nothing_is_left_of_clients_that_came_and_went(proxy, cluster):
    admin = await cluster.admin()
    found = []
    for number in range(3):
        for at in range(AT_ONCE):
            await come_and_go(proxy, admin, f"made-{number}-{at}")
        for _ in range(SILENCE_SECONDS // 15):
            await cluster.clock.advance(15)
        for client in [each for each in gc.get_objects() if type(each) is ClusterClient and each.running]:
            for _ in range(REFRESHES):
                client._fetched.clear()  # as if a refresh were long ago
                await client.refresh_all()
        found.append(sizes(proxy=proxy))
    assert grown(*found[1:], least=AT_ONCE) == {}


@pytest.mark.parametrize("sent", [b"", frames.PREFACE, b"GET / HTTP/1.1\r\n\r\n"])
async def test_a_connection_that_is_gone_leaves_nothing_for_the_collector(proxy, sent):
    host, port = proxy.address.rsplit(":", 1)
    await nothing_is_left((host, int(port)), sent)
