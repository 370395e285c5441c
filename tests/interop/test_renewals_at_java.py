"""The invisible times that our proxy renews at Java's broker 5.3.3, which renews none."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.interop.peers.grpc_clients import OurProxy
from tests.interop.test_grpc_clients import genuine5  # noqa: F401  a fixture
from tests.proxy.calls import Calls, message, subscription
from tests.proxy.test_receiving import receive_request

from pyromq import Admin
from pyromq.proxy.proto import definition_pb2 as proto
from pyromq.proxy.proto import service_pb2 as service
from pyromq.remoting.bodies import GroupConfig

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

WORK_SECONDS = 75  # more than the invisible time of 60 s
QUIET_SECONDS = 70  # more than what is left of a renewed invisible time


@pytest.fixture
def proxy(genuine5, topic, tmp_path):  # noqa: F811
    with Admin(genuine5.namesrv) as admin, OurProxy(genuine5.namesrv, tmp_path) as proxy:
        for kind in ("plain", "orderly"):
            admin.create_topic(f"{kind}-{topic}", 1)
            admin.create_group(GroupConfig(f"{kind}-{topic}", orderly=kind == "orderly"))
        yield proxy


async def test_a_message_is_not_redelivered_while_its_listener_works_and_is_acknowledged_by_its_handle(proxy, topic):
    await asyncio.gather(works_long(proxy.address, f"plain-{topic}"), works_long(proxy.address, f"orderly-{topic}"))


async def works_long(address, topic):
    async with Calls(address, f"host@{topic}") as calls:
        _stream, _ = await calls.settings(subscription(topic, topic, proto.PUSH_CONSUMER))
        await calls.send(message(topic))
        ((first,),) = [found async for found in receives(calls, topic, 30) if found]
        assert [found async for found in receives(calls, topic, WORK_SECONDS) if found] == []

        resource = proto.Resource(name=topic)
        entry = service.AckMessageEntry(message_id="01A", receipt_handle=first.system_properties.receipt_handle)
        acked = await calls("AckMessage", service.AckMessageRequest(group=resource, topic=resource, entries=[entry]))

        assert acked.status.code == proto.OK, acked
        assert [found async for found in receives(calls, topic, QUIET_SECONDS) if found] == []


async def receives(calls, topic, seconds):
    """Receive for some seconds; yield the messages of each receive, and end with the first that has any."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        request = receive_request(seconds=None, auto_renew=True, poll=int(min(left, 10)) + 1)
        request.group.name = request.message_queue.topic.name = topic
        answers = [each async for each in calls.receive(request)]
        assert answers[0].status.code in (proto.OK, proto.MESSAGE_NOT_FOUND), answers
        found = [each.message for each in answers if each.HasField("message")]
        yield found
        if found:
            return
