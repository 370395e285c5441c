"""EndTransaction, and orphaned half messages, which another producer of the topic decides."""

import pytest
from tests.proxy.calls import Calls, message, publishing
from tests.proxy.http2.peer import Peer
from tests.proxy.test_sending import stored

from pyromq.proxy.client_table import ClientTable
from pyromq.proxy.proto import definition_pb2 as proto
from pyromq.proxy.proto import service_pb2 as service
from pyromq.testing import Cluster, FakeClock

ORDERS = proto.Resource(name="orders")


@pytest.fixture
async def cluster():
    async with Cluster(transaction_timeout_ms=1000, transaction_check_interval_ms=2000) as cluster:
        admin = await cluster.admin()
        await admin.create_topic("orders")
        yield cluster


def decision(transaction_id, resolution, message_id="01A", **more):
    return service.EndTransactionRequest(
        topic=ORDERS, message_id=message_id, transaction_id=transaction_id, resolution=resolution, **more
    )


@pytest.fixture
async def half(calls):
    answer = await calls.send(message(message_type=proto.TRANSACTION, tag="paid"))
    return answer.entries[0].transaction_id


async def test_a_committed_message_becomes_visible(calls, cluster, half):
    assert stored(cluster) == []

    answer = await calls("EndTransaction", decision(half, proto.COMMIT))

    assert answer.status.code == proto.OK, answer
    assert [each.message_id for each in stored(cluster)] == ["01A"]


async def test_a_message_that_is_rolled_back_stays_invisible(calls, cluster, half):
    answer = await calls("EndTransaction", decision(half, proto.ROLLBACK))

    assert answer.status.code == proto.OK
    again = await calls("EndTransaction", decision(half, proto.COMMIT))
    assert again.status.code == proto.INVALID_TRANSACTION_ID
    assert stored(cluster) == []


async def test_an_unspecified_resolution_decides_nothing(calls, cluster, half):
    answer = await calls("EndTransaction", decision(half, proto.TRANSACTION_RESOLUTION_UNSPECIFIED))

    assert answer.status.code == proto.OK
    assert (await calls("EndTransaction", decision(half, proto.COMMIT))).status.code == proto.OK


@pytest.mark.parametrize(
    "transaction_id",
    ["", " ", "01A", "broker-a:1", "broker-a:x:0", "nobody:0:0", "broker-a:77:0", f"broker-a:{'9' * 30}:0"],
)
async def test_an_unknown_transaction_is_refused(calls, cluster, half, transaction_id):
    answer = await calls("EndTransaction", decision(transaction_id, proto.COMMIT))

    assert answer.status.code == proto.INVALID_TRANSACTION_ID
    assert answer.status.message
    assert stored(cluster) == []


async def test_another_producer_of_the_topic_is_asked_about_an_orphan(proxy, cluster, half):
    async with Calls(proxy.address, "host@2@0@b") as other:
        stream, _ = await other.settings(publishing("orders"))
        await cluster.clock.advance(4)

        orphan = (await stream.read()).recover_orphaned_transaction_command
        request = decision(orphan.transaction_id, proto.COMMIT, source=proto.SOURCE_SERVER_CHECK)
        answer = await other("EndTransaction", request)

    assert (orphan.message.body, orphan.message.topic.name) == (b"hello", "orders")
    assert (orphan.message.system_properties.message_id, orphan.message.system_properties.tag) == ("01A", "paid")
    assert orphan.message.system_properties.message_type == proto.TRANSACTION
    assert dict(orphan.message.user_properties) == {}
    assert answer.status.code == proto.OK
    assert len(stored(cluster)) == 1


async def test_a_producer_that_does_not_read_is_asked_no_more():
    peer, clients = Peer(initial_window=0), ClientTable(FakeClock())
    peer.call(None, end=False)
    peer.exchange()
    producer = clients.register("a")
    producer.topics, producer.stream = frozenset({"orders"}), peer.handler.streams[0]
    body, asked = bytes(1 << 20), 0

    while asked < 100 and (found := clients.producer_of("orders")) is not None:
        found.stream.send(body)
        asked += 1

    assert 1 < asked < 10
