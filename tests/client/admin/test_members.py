"""What members of groups say of themselves to an administrator."""

import asyncio

import pytest
from tests.waiting import PATIENCE_SECONDS

from pyromq.clock import SystemClock
from pyromq.errors import BrokerError, ConsumerNotOnline, QueryNotFound
from pyromq.message import MessageQueue
from pyromq.remoting.bodies import ConsumerRunning, PulledQueue, Subscription

QUEUE = MessageQueue("orders", "broker-a", 0)


async def test_a_member_tells_its_state_whichever_broker_it_is_asked_through(pair, seen):
    admin = await pair.admin()
    await admin.create_topic("orders", broker="broker-b", queues=1)
    consumer = await pair.push_consumer("workers")
    consumer.subscribe("orders", seen)

    state = await admin.members.running("workers", consumer.client_id, stacks=True)

    assert {each.topic for each in state.subscriptions} == {"orders", "%RETRY%workers"}
    assert "MainThread" in state.stack
    assert list(await admin.members.all_running("workers")) == [consumer.client_id]
    with pytest.raises(BrokerError, match="not online"):
        await admin.members.running("workers", "nobody")
    with pytest.raises(ConsumerNotOnline):
        await admin.members.all_running("others")


async def test_members_tell_how_far_they_are(cluster, send, consuming, seen):
    admin = await cluster.admin()
    (sent, *_) = await send(range(3), key="k")
    async with consuming(seen) as consumer:
        await seen.wait(3)
        async with asyncio.timeout(PATIENCE_SECONDS):  # a message counts when its listener has returned
            while (offsets := await admin.members.offsets("workers", "orders"))[consumer.client_id][sent.queue] < 2:
                pass
        assert offsets[consumer.client_id][sent.queue] in (2, 3)
        assert await admin.members.offsets("workers", "orders", "nobody") == {}
    with pytest.raises(ConsumerNotOnline):
        await admin.members.offsets("workers", "orders")


async def test_a_member_consumes_a_message_once_more_when_told(cluster, send, consuming, seen):
    admin = await cluster.admin()
    (sent,) = await send([7])
    async with consuming(seen) as consumer:
        await seen.wait(1)
        by_unique_id = await admin.members.consume("workers", consumer.client_id, sent.message_id, topic="orders")
        by_offset_id = await admin.members.consume("workers", consumer.client_id, sent.offset_message_id)
        assert (by_unique_id.result, by_offset_id.result) == ("CR_SUCCESS", "CR_SUCCESS")
        with pytest.raises(QueryNotFound):
            await admin.members.consume("workers", consumer.client_id, "no id")


async def test_tracks_tell_what_became_of_a_message_in_each_group(cluster, send, consuming, seen, tmp_path):
    admin = await cluster.admin()
    (sent,) = await send([7], tags="paid")
    message = await admin.view(sent.message_id, "orders")
    assert await admin.members.tracks(message) == {}

    async def tracks():
        return {group: state.name for group, state in (await admin.members.tracks(message)).items()}

    async with (
        consuming(seen, group="workers", commit_seconds=0.05),
        consuming(seen, group="choosy", tags="open", commit_seconds=0.05),
        consuming(seen, group="all", broadcast=True, offsets_folder=tmp_path),
    ):
        await seen.wait(1)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while "NOT_CONSUME_YET" in (await tracks()).values():
                await asyncio.sleep(0.01)
        assert await tracks() == {
            "all": "CONSUME_BROADCASTING",
            "choosy": "CONSUMED_BUT_FILTERED",
            "workers": "CONSUMED",
        }
        by_offset_id = await admin.members.tracks(await admin.view(sent.offset_message_id))
        assert by_offset_id["workers"].name == "CONSUMED"
        (later,) = await send([8], topic="others")
        assert await admin.members.tracks(await admin.view(later.message_id, "others")) == {}
    assert (await tracks())["workers"] == "NOT_ONLINE"


async def test_producers_and_consuming_groups_are_listed(cluster, send, consuming, seen):
    admin = await cluster.admin()
    await send([1])
    async with consuming(seen):
        await seen.wait(1)
        assert await admin.members.groups_of_topic("orders") == ["workers"]
    (client,) = (await admin.members.producers())["test-producer"]
    assert client.remote_address.startswith("/127.0.0.1:")
    assert await admin.members.producers(cluster.broker.address) == await admin.members.producers()


async def test_troubles_are_those_that_java_s_tools_look_for(cluster):
    admin = await cluster.admin()
    now = SystemClock().now_ms()

    def state(tags="*", orderly="false", **queue):
        return ConsumerRunning(
            properties={"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY", "PROP_CONSUMEORDERLY": orderly},
            subscriptions=[Subscription("orders", tags)],
            queues={QUEUE: PulledQueue(**queue)} if queue else {},
        )

    troubles = admin.members.troubles
    assert troubles({"a": state(), "b": state()}) == []
    assert troubles({"a": state(), "b": state("paid")}) == ["members have 2 different subscriptions, and miss messages"]
    assert troubles({"a": BrokerError("gone")}) == ["a does not answer: gone"]
    assert troubles({"a": state(cached_count=2, last_consume_ms=now - 61_000)}) == [
        f"a has consumed nothing of {QUEUE} for 61 s, with 2 messages in memory"
    ]
    assert troubles({"a": state(cached_count=2, last_consume_ms=now - 59_000)}) == []
    assert troubles({"a": state(orderly="true", locked=False, last_pull_ms=1)}) == [
        f"a has not got the lock of {QUEUE}"
    ]
