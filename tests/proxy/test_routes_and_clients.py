"""QueryRoute, QueryAssignment, Telemetry, Heartbeat, NotifyClientTermination, and calls that no client makes."""

import asyncio

import grpc
import pytest
from tests.proxy.calls import Calls, endpoints, message, publishing, subscription
from tests.waiting import until

from pyromq.clock import SystemClock
from pyromq.errors import MQError
from pyromq.net.connection_config import ConnectionConfig
from pyromq.proxy import cluster_access
from pyromq.proxy.client_table import SETTINGS_BYTES, SILENT_SECONDS, ClientTable
from pyromq.proxy.cluster_access import ClusterAccess
from pyromq.proxy.proto import definition_pb2 as proto
from pyromq.proxy.proto import service_pb2 as service
from pyromq.proxy.proxy import Proxy
from pyromq.proxy.proxy_config import ProxyConfig
from pyromq.remoting.bodies import GroupConfig
from pyromq.testing import Cluster, FakeClock

ORDERS = proto.Resource(name="orders")
BILLING = proto.Resource(name="billing")


@pytest.fixture
async def admin(cluster):
    admin = await cluster.admin()
    await admin.create_topic("orders", 4)
    return admin


def route_request(topic=ORDERS, at="example.org:443"):
    return service.QueryRouteRequest(topic=topic, endpoints=endpoints(at))


async def test_a_route_has_the_endpoints_that_the_client_asked(calls, admin):
    answer = await calls("QueryRoute", route_request())

    assert [(each.id, each.permission) for each in answer.message_queues] == [(n, proto.READ_WRITE) for n in range(4)]
    queue = answer.message_queues[0]
    assert (queue.broker.name, queue.broker.id) == ("broker-a", 0)
    assert queue.broker.endpoints == endpoints("example.org:443")
    assert list(queue.accept_message_types) == [proto.NORMAL, proto.FIFO, proto.DELAY, proto.TRANSACTION]


async def test_a_route_tells_which_queues_can_only_be_read(calls, admin):
    await admin.create_topic("shrinking", read_queues=3, write_queues=1)

    answer = await calls("QueryRoute", route_request(proto.Resource(name="shrinking")))

    assert [each.permission for each in answer.message_queues] == [proto.READ_WRITE, proto.READ, proto.READ]


@pytest.mark.parametrize("kind", ["normal", "fifo", "delay", "transaction"])
async def test_a_route_tells_the_type_of_the_topic(calls, admin, kind):
    await admin.create_topic(f"typed-{kind}", message_type=kind)

    answer = await calls("QueryRoute", route_request(proto.Resource(name=f"typed-{kind}")))

    assert list(answer.message_queues[0].accept_message_types) == [proto.MessageType.Value(kind.upper())]


async def test_an_unknown_topic_is_refused_with_the_command_that_creates_it(calls, admin):
    answer = await calls("QueryRoute", route_request(proto.Resource(name="nowhere")))

    assert answer.status.code == proto.TOPIC_NOT_FOUND
    assert "pyromq topic create nowhere" in answer.status.message


@pytest.mark.parametrize("at", ["host:0", "host:70000", ":8081"])
async def test_endpoints_that_are_no_address_are_refused(calls, admin, at):
    answer = await calls("QueryRoute", route_request(at=at))

    assert answer.status.code == proto.ILLEGAL_ACCESS_POINT


async def test_a_request_without_endpoints_is_refused(calls, admin):
    answer = await calls("QueryRoute", service.QueryRouteRequest(topic=ORDERS))

    assert answer.status.code == proto.ILLEGAL_ACCESS_POINT


async def test_each_member_is_assigned_all_queues_of_a_broker(calls, admin):
    request = service.QueryAssignmentRequest(topic=ORDERS, group=BILLING, endpoints=endpoints("a:1"))

    answer = await calls("QueryAssignment", request)

    assert [each.message_queue.id for each in answer.assignments] == [-1]


async def test_a_producer_gets_its_limits_and_is_registered_for_its_topics(calls, cluster, admin):
    _, settings = await calls.settings(publishing("orders"))

    assert settings.publishing.max_body_size == 4 << 20
    assert settings.backoff_policy.max_attempts == 3
    for _ in range(200):  # the proxy registers after it has answered
        try:
            connected = await admin.producer_connection("orders", "orders")
            break
        except MQError:
            await asyncio.sleep(0.005)
    assert len(connected.connections) == 1


async def test_a_consumer_gets_the_attempts_of_its_group(calls, admin):
    await admin.create_group(GroupConfig(name="billing", retry_max_times=2))

    _, settings = await calls.settings(subscription("billing", "orders"))

    assert settings.backoff_policy.max_attempts == 3
    assert [each.seconds for each in settings.backoff_policy.customized_backoff.next][:4] == [1, 5, 10, 30]
    assert (settings.subscription.fifo, settings.subscription.receive_batch_size) == (False, 32)


async def test_a_broker_that_hangs_does_not_stop_the_others(monkeypatch):
    monkeypatch.setattr(cluster_access, "TIMEOUT_SECONDS", 0.2)
    async with Cluster(brokers=2, linked=True) as cluster:
        admin = await cluster.admin()
        await admin.create_topic("orders", message_type="fifo")
        await admin.create_group(GroupConfig(name="billing", retry_max_times=2))
        access = ClusterAccess(cluster.namesrv, SystemClock(), connections=ConnectionConfig())
        await access.start()
        await access.route("orders")
        cluster.links[0].answers.pause()

        types, group = await access.types("orders"), await access.group("billing")

        assert types.accepted == (proto.FIFO,)
        assert group.retry_max_times == 2
        cluster.links[0].answers.resume()
        await access.close()


async def test_a_broker_that_hangs_delays_no_heartbeats_of_consumers_to_the_others(monkeypatch):
    monkeypatch.setattr(cluster_access, "MEMBER_SECONDS", 0.05)
    async with Cluster(brokers=2, linked=True) as cluster:
        await (await cluster.admin()).create_topic("orders")
        access = ClusterAccess(cluster.namesrv, SystemClock(), connections=ConnectionConfig())
        await access.start()
        await access.route("orders")
        cluster.links[0].answers.pause()
        names = {f"c-{number}" for number in range(40)}
        for name in names:
            client = access.clients.register(name)
            client.kind, client.group = proto.PUSH_CONSUMER, "billing"
            client.subscriptions["orders"] = proto.FilterExpression(expression="*")
        found = cluster.brokers[1].connections.consumers

        await until(lambda: (group := found("billing")) and {each.client_id for each in group.members} == names)
        closing = asyncio.create_task(access.close())
        await until(lambda: found("billing") is None)
        cluster.links[0].answers.resume()
        await closing


async def test_a_client_that_registers_again_while_it_expires_stays(cluster, admin):
    access = ClusterAccess(cluster.namesrv, cluster.clock, connections=ConnectionConfig())
    access.clients.register("a").seen_at -= SILENT_SECONDS + 1
    [gone] = access.clients.expired()
    again = access.clients.register("a")

    await access.forget(gone)

    assert access.clients.find("a") is again


async def test_a_consumer_is_a_member_of_its_group_until_it_terminates(calls, cluster, admin):
    await calls.settings(subscription("billing", "orders", proto.PUSH_CONSUMER))
    await until_members(admin, 1)

    answer = await calls("NotifyClientTermination", service.NotifyClientTerminationRequest(group=BILLING))

    assert answer.status.code == proto.OK
    await until_members(admin, 0)


async def until_members(admin, count):
    for _ in range(200):
        try:
            found = len((await admin.consumer_connection("billing")).connections)
        except MQError:  # a group without members is an error
            found = 0
        if found == count:
            return
    raise AssertionError(f"the group has {found} members, not {count}")


async def test_settings_of_neither_producer_nor_consumer_end_the_stream(calls, admin):
    stream = calls.telemetry()
    await stream.write(service.TelemetryCommand(settings=proto.Settings()))

    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stream.read()
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "publishing" in refused.value.details()


def test_settings_that_a_client_sends_again_replace_the_previous_ones():
    clients = ClientTable(FakeClock())
    client = clients.register("client")
    for _ in range(100):
        clients.keep_settings(client, SETTINGS_BYTES // 50)


async def test_a_stream_that_the_client_half_closes_is_completed(calls, admin):
    stream, _ = await calls.settings(publishing("orders"))

    await stream.done_writing()

    assert await stream.read() == grpc.aio.EOF
    assert await stream.code() is grpc.StatusCode.OK


async def test_a_heartbeat_registers_a_client_that_sent_no_settings(calls, proxy, admin):
    first = await calls("Heartbeat", service.HeartbeatRequest(client_type=proto.SIMPLE_CONSUMER, group=BILLING))
    unknown = await calls("Heartbeat", service.HeartbeatRequest())

    assert (first.status.code, unknown.status.code) == (proto.OK, proto.OK)


async def test_a_heartbeat_without_a_type_of_an_unknown_client_is_refused(calls, admin):
    answer = await calls("Heartbeat", service.HeartbeatRequest())

    assert answer.status.code == proto.UNRECOGNIZED_CLIENT_TYPE


async def test_an_unknown_client_cannot_terminate(calls, admin):
    answer = await calls("NotifyClientTermination", service.NotifyClientTerminationRequest())

    assert answer.status.code == proto.UNRECOGNIZED_CLIENT_TYPE


@pytest.mark.parametrize("client_id", ["", " ", "x" * 256])
async def test_a_call_without_client_id_is_refused(proxy, admin, client_id):
    async with Calls(proxy.address, client_id) as calls:
        answer = await calls.send(message())

    assert answer.status.code == proto.CLIENT_ID_REQUIRED


async def test_a_method_that_is_not_offered_is_unimplemented(calls, admin):
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await calls("GetOffset", service.GetOffsetRequest())

    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "GetOffset" in refused.value.details()


async def test_a_request_that_is_no_message_is_refused(calls, admin):
    method = calls.channel.unary_unary("/apache.rocketmq.v2.MessagingService/SendMessage")

    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await method(b"\xff\xff", metadata=calls.metadata)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_proxy_without_name_server_refuses_and_goes_on(tmp_path):
    async with Proxy(ProxyConfig(namesrv="127.0.0.1:1", port=0, data=tmp_path)) as proxy, Calls(proxy.address) as calls:
        answer = await calls("QueryRoute", route_request())

    assert answer.status.code == proto.HA_NOT_AVAILABLE
    assert "127.0.0.1:1" in answer.status.message
