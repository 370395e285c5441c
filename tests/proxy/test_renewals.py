"""Invisible times that the proxy renews, before a broker that renews none, as Java's brokers."""

import asyncio

import pytest
from msgspec.structs import force_setattr
from tests.proxy.calls import Calls, message, subscription
from tests.proxy.test_receiving import BILLING, ORDERS, ack, received
from tests.proxy.test_sending import stored
from tests.waiting import until

from pyromq.errors import SystemBusy, Unavailable
from pyromq.net.connection_config import ConnectionConfig
from pyromq.proxy import renewals
from pyromq.proxy.proto import definition_pb2 as proto
from pyromq.proxy.proto import service_pb2 as service
from pyromq.proxy.proxy import Proxy
from pyromq.proxy.proxy_config import ProxyConfig
from pyromq.remoting.headers import PopMessage


class WithoutRenewals:
    """A hook that removes from pops what only pyromq's brokers understand."""

    def before_request(self, request):
        if isinstance(request.header, PopMessage):
            force_setattr(request.header, "renewed_for", None)

    def after_response(self, request, outcome):
        pass


@pytest.fixture
async def proxy(cluster, tmp_path):
    await (await cluster.admin()).create_topic("orders", 1)
    connections = ConnectionConfig(hooks=[WithoutRenewals()])
    config = ProxyConfig(namesrv=cluster.namesrv, port=0, data=tmp_path, connections=connections)
    async with Proxy(config, cluster.clock) as proxy:
        yield proxy


@pytest.fixture
async def pushed(calls):
    """Return a message that a push consumer with a Telemetry stream has received."""
    _stream, _ = await calls.settings(subscription("billing", "orders", proto.PUSH_CONSUMER))
    await calls.send(message())
    yield await push(calls)


async def push(calls):
    _, (found,) = await received(calls, seconds=None, auto_renew=True)
    return found


def held(proxy):
    return proxy._receives._renewals.count


async def work(cluster, proxy, seconds):
    """Let time pass, as long as a listener works, and let each renewal reach the broker."""
    for _ in range(int(seconds / renewals.TURN_SECONDS)):
        await cluster.clock.advance(renewals.TURN_SECONDS)
        await until(lambda: not proxy._receives._renewals.are_under_way)


async def come_again(calls):
    return [each.system_properties.delivery_attempt for each in (await received(calls))[1]]


async def test_a_message_stays_invisible_while_its_client_lives_and_is_acknowledged_by_its_handle(
    calls, proxy, cluster, pushed
):
    await work(cluster, proxy, 200)
    assert await come_again(calls) == []

    assert (await ack(calls, pushed.system_properties.receipt_handle)).status.code == proto.OK
    await work(cluster, proxy, 100)
    assert await come_again(calls) == []
    assert held(proxy) == 0


async def test_a_failed_message_comes_again_when_the_client_says(calls, proxy, cluster, pushed):
    await work(cluster, proxy, 100)
    request = service.ChangeInvisibleDurationRequest(
        group=BILLING, topic=ORDERS, receipt_handle=pushed.system_properties.receipt_handle
    )
    request.invisible_duration.FromSeconds(30)

    assert (await calls("ChangeInvisibleDuration", request)).status.code == proto.OK

    assert held(proxy) == 0
    await work(cluster, proxy, 25)
    assert await come_again(calls) == []
    await work(cluster, proxy, 10)
    assert await come_again(calls) == [2]


async def test_a_dead_letter_is_made_of_a_renewed_message(calls, proxy, cluster, pushed):
    await work(cluster, proxy, 100)
    handle = pushed.system_properties.receipt_handle
    request = service.ForwardMessageToDeadLetterQueueRequest(group=BILLING, topic=ORDERS, receipt_handle=handle)

    assert (await calls("ForwardMessageToDeadLetterQueue", request)).status.code == proto.OK

    assert len(stored(cluster, "%DLQ%billing")) == 1
    await work(cluster, proxy, 100)
    assert (await come_again(calls), held(proxy)) == ([], 0)


async def test_messages_of_a_client_that_terminates_come_again_soon(calls, proxy, cluster, pushed):
    await calls("NotifyClientTermination", service.NotifyClientTerminationRequest(group=BILLING))

    await work(cluster, proxy, 10)

    assert (await come_again(calls), held(proxy)) == ([2], 0)


async def test_messages_of_a_client_that_begins_anew_under_its_name_come_again_soon(calls, proxy, cluster, pushed):
    await calls("NotifyClientTermination", service.NotifyClientTerminationRequest(group=BILLING))
    _stream, _ = await calls.settings(subscription("billing", "orders", proto.PUSH_CONSUMER))

    await work(cluster, proxy, 10)

    assert (await come_again(calls), held(proxy)) == ([2], 0)


async def test_messages_of_a_client_that_falls_silent_come_again(proxy, cluster, calls):
    async with Calls(proxy.address, "dying") as dying:
        await calls.send(message())
        await push(dying)
    await work(cluster, proxy, 100)
    assert await come_again(calls) == []

    await work(cluster, proxy, 60)

    assert (await come_again(calls), held(proxy)) == ([2], 0)


async def test_a_listener_that_hangs_loses_its_message_after_three_hours(calls, proxy, cluster, pushed, monkeypatch):
    monkeypatch.setattr(renewals, "LONGEST_SECONDS", 300.0)

    await work(cluster, proxy, 290)
    assert await come_again(calls) == []
    await work(cluster, proxy, 80)

    assert (await come_again(calls), held(proxy)) == ([2], 0)


async def test_beyond_the_limit_messages_are_not_renewed(calls, proxy, cluster, monkeypatch):
    proxy._receives._renewals._quota.limit = 20  # ten holders share: two for the first
    _stream, _ = await calls.settings(subscription("billing", "orders", proto.PUSH_CONSUMER))
    for number in range(5):
        await calls.send(message(body=b"%d" % number))
    await received(calls, seconds=None, auto_renew=True)
    assert held(proxy) == 2

    await work(cluster, proxy, 70)

    assert sorted(await come_again(calls)) == [2, 2, 2]


async def test_a_call_waits_for_a_renewal_under_way(calls, proxy, cluster, pushed, monkeypatch):
    change, answered = proxy._receives._renewals._change, asyncio.Event()

    async def change_slowly(*arguments):
        handle = await change(*arguments)
        await answered.wait()
        return handle

    monkeypatch.setattr(proxy._receives._renewals, "_change", change_slowly)
    await cluster.clock.advance(renewals.TURN_SECONDS * 8)
    acks = [asyncio.ensure_future(ack(calls, pushed.system_properties.receipt_handle)) for _ in range(2)]
    (holder,) = proxy._receives._renewals._holders.values()
    await until(lambda: all(each.is_finished for each in holder.messages.values()))
    answered.set()

    assert {(await each).status.code for each in acks} == {proto.OK}
    await work(cluster, proxy, 100)
    assert (await come_again(calls), held(proxy)) == ([], 0)


async def test_a_renewal_that_fails_is_tried_again(calls, proxy, cluster, pushed, monkeypatch):
    change, errors = proxy._receives._renewals._change, [Unavailable("silent"), SystemBusy("busy")]

    async def change_or_fail(*arguments):
        if errors:
            raise errors.pop()
        return await change(*arguments)

    monkeypatch.setattr(proxy._receives._renewals, "_change", change_or_fail)

    await work(cluster, proxy, 90)

    assert (errors, await come_again(calls), held(proxy)) == ([], [], 1)


async def test_a_renewal_answered_after_the_message_became_visible_changes_nothing(
    calls, proxy, cluster, pushed, monkeypatch, caplog
):
    answered = asyncio.Event()

    async def answer_late(access, group, topic, handle, invisible_ms):
        await answered.wait()
        return handle

    monkeypatch.setattr(proxy._receives._renewals, "_change", answer_late)
    await cluster.clock.advance(70)
    assert (await come_again(calls), held(proxy)) == ([2], 0)

    answered.set()
    await until(lambda: not proxy._receives._renewals.are_under_way)

    assert (held(proxy), [each for each in caplog.records if each.levelname == "ERROR"]) == (0, [])


async def test_nothing_is_held_for_a_broker_that_renews(cluster, tmp_path):
    await (await cluster.admin()).create_topic("orders", 1)
    config = ProxyConfig(namesrv=cluster.namesrv, port=0, data=tmp_path)
    async with Proxy(config, cluster.clock) as proxy, Calls(proxy.address) as calls:
        await calls.send(message())
        await push(calls)
        assert held(proxy) == 0
