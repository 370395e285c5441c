"""The metrics of a proxy, as Prometheus reads them."""

import pytest
from tests.metrics.scrape import get
from tests.proxy.calls import Calls, message, publishing

from pyromq.metrics.config import MetricsConfig
from pyromq.metrics.endpoint import MetricsEndpoint
from pyromq.proxy.proto import definition_pb2 as proto
from pyromq.proxy.proto import service_pb2 as service


@pytest.fixture
async def endpoint(proxy, cluster):
    await (await cluster.admin()).create_topic("orders")
    async with MetricsEndpoint([proxy.metrics()], MetricsConfig(0)) as endpoint:
        yield endpoint


async def samples(endpoint):
    """Return the values of the proxy's own metrics by name and labels, without the labels of the server."""
    lines = (await get(endpoint, "/metrics")).body.splitlines()
    found = {}
    for line in lines:
        if line.startswith("pyromq_proxy_"):
            name, _, value = line.rpartition(" ")
            head, _, labels = name.partition("{")
            own = [each for each in labels.rstrip("}").split(",") if not each.startswith("node_")]
            found[f"{head.removeprefix('pyromq_proxy_')} {' '.join(own)}".strip()] = float(value)
    return found


async def test_calls_are_counted_by_method_and_status(endpoint, calls, proxy):
    await calls.send(message())
    await calls.send(message("nowhere"))
    await calls("Heartbeat", service.HeartbeatRequest(client_type=proto.PRODUCER))
    async with Calls(proxy.address, "") as nameless:
        await nameless.send(message())
    method = calls.channel.unary_unary("/apache.rocketmq.v2.MessagingService/Invented")
    with pytest.raises(Exception, match="Invented"):
        await method(b"")

    found = await samples(endpoint)

    assert {name: value for name, value in found.items() if name.startswith("calls")} == {
        'calls_total method="SendMessage" status="OK"': 1,
        'calls_total method="SendMessage" status="TOPIC_NOT_FOUND"': 1,
        'calls_total method="SendMessage" status="CLIENT_ID_REQUIRED"': 1,
        'calls_total method="Heartbeat" status="OK"': 1,
        'calls_total method="other" status="grpc:UNIMPLEMENTED"': 1,
    }
    assert found["received_bytes_total"] > 500 < found["sent_bytes_total"] + 300


async def test_clients_and_open_calls_are_gauges(endpoint, calls):
    stream, _ = await calls.settings(publishing("orders"))

    found = await samples(endpoint)

    assert (found['clients kind="producer"'], found["open_calls"], found["waiting_receives"]) == (1, 1, 0)
    assert found["kept_bytes"] > 1000
    await stream.done_writing()
    await stream.read()
    assert (await samples(endpoint))["kept_bytes"] == 0


async def test_the_proxy_is_healthy_and_ready(endpoint):
    assert [(await get(endpoint, path)).body for path in ("/healthz", "/readyz")] == ["ok\n", "proxy: ok\n"]
