"""A group as its brokers see it, and what becomes of members that subscribe differently."""

from pyromq.client.admin.cluster_groups import put_together
from pyromq.client.client_config import ConsumerConfig
from pyromq.client.consumer.push.push_consumer import AsyncConsumer
from pyromq.message import MessageQueue
from pyromq.remoting.bodies import ClientConnection, ConsumerConnection, LockHolder, Subscription, WireQueue


def answer(*members, locks=(), topic="orders"):
    return ConsumerConnection(
        connections=[ClientConnection(client_id=name, subscriptions=wanted) for name, wanted in members],
        subscriptions={topic: Subscription(topic=topic)},
        locks=[LockHolder(WireQueue(topic, broker, 0), client_id, 1500) for broker, client_id in locks],
    )


def test_answers_of_several_brokers_are_put_together():
    first = answer(("two", {"orders": "*"}), ("one", {"orders": "*"}), locks=[("b", "one")])
    second = answer(("one", {"more": "a"}), locks=[("a", "two")], topic="more")
    state = put_together("g", [first, second])
    assert [(each.client_id, each.subscriptions) for each in state.members] == [
        ("one", {"orders": "*", "more": "a"}),
        ("two", {"orders": "*"}),
    ]
    assert [(each.queue.topic, each.client_id, each.age_seconds) for each in state.locks] == [
        ("more", "two", 1.5),
        ("orders", "one", 1.5),
    ]
    assert state.subscriptions == {"orders": "*", "more": "*"}
    assert state.differences == {"more": {"a": ["one"], "": ["two"]}}


def test_a_broker_that_does_not_tell_leaves_it_open():
    state = put_together("g", [ConsumerConnection(connections=[ClientConnection(client_id="one")])])
    assert (state.locks, state.members[0].subscriptions, state.differences) == (None, None, {})


async def test_an_orderly_consumer_is_shown_with_its_locks(cluster, send, consuming, seen):
    await send(range(4))
    admin = await cluster.admin()
    async with consuming(seen, orderly=True) as consumer:
        await seen.wait(4)
        state = await admin.group_state("workers")
        assert {lock.client_id for lock in state.locks} == {consumer.client_id}
        assert MessageQueue("orders", "broker-a", 0) in {lock.queue for lock in state.locks}
        assert (state.consume_type, state.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert (await admin.group_state("workers")).locks == []


async def test_a_refused_consumer_says_why_and_gets_nothing(cluster, send, consuming, seen, new_seen, until, caplog):
    cluster.broker.config.refuse_different_subscriptions = True
    await send(range(4))
    other = new_seen()
    async with consuming(seen) as member:
        await seen.wait(4)
        newcomer = AsyncConsumer("workers", cluster.namesrv, config=ConsumerConfig())
        newcomer.subscribe("orders", other, tags="paid")
        async with newcomer:
            text = f'is refused, since members subscribe differently: orders: "*" by {member.client_id}; "paid" by '
            await until(lambda: any(text in m and m.startswith("no heartbeat to broker") for m in caplog.messages))
            await send(range(4, 8))
            await seen.wait(8)
            assert newcomer.assignment == [] and other.messages == []
