"""The queues of push consumers that ask the broker, and whether they pull or pop."""

import pytest

from pyromq.broker.broker import Broker
from pyromq.remoting.bodies import AssignmentQuery, MessageRequestMode, encode_body
from pyromq.remoting.headers import DeleteTopic, QueryAssignment, SetMessageRequestMode


async def assigned(caller, client_id="one", **fields):
    query = AssignmentQuery(**({"topic": "orders", "group": "g", "client_id": client_id, "strategy": "AVG"} | fields))
    answer = await caller.body(QueryAssignment(), encode_body(query))
    return [(each.queue.broker_name, each.queue.queue_id, each.mode) for each in answer.queues]


async def set_mode(caller, mode="POP", *, topic="orders", group="g", share=0, code=0):
    body = encode_body(MessageRequestMode(topic, group, mode, share))
    return await caller.ask(SetMessageRequestMode(), body, code=code)


async def test_members_that_pull_divide_the_queues(broker, orders, caller_to):
    await orders.beat("one", group="g")
    assert [queue_id for _, queue_id, _ in await assigned(orders)] == [0, 1, 2, 3]
    other = await caller_to(broker)
    await other.beat("two", group="g")
    assert await assigned(orders) == [("broker-a", 0, "PULL"), ("broker-a", 1, "PULL")]
    assert await assigned(orders, "two") == [("broker-a", 2, "PULL"), ("broker-a", 3, "PULL")]
    assert await assigned(orders, "stranger") == []
    assert len(await assigned(orders, "stranger", message_model="BROADCASTING")) == 4


async def test_members_that_pop_get_all_queues_of_each_broker(config, clock, caller_to):
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await caller.create_topic("orders")
        await set_mode(caller)
        assert await assigned(caller) == [("broker-a", -1, "POP")]
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        assert await assigned(caller) == [("broker-a", -1, "POP")]
        await set_mode(caller, "PULL")
        assert await assigned(caller) == []


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"mode": "PUSH"}, 1, "mode='PUSH' of group g: it must be PULL or POP"),
        ({"topic": "nowhere"}, 17, "nowhere"),
        ({"group": "a b"}, 26, "subscription group [a b] does not exist"),
        ({"share": -1}, 1, "popShareQueueNum=-1"),
        ({"share": 1 << 31}, 1, "popShareQueueNum=2147483648: it must be 0 (no limit) to 2147483647"),
    ],
)
async def test_a_mode_that_cannot_be_is_refused(orders, fields, code, text):
    assert text in (await set_mode(orders, **fields, code=code)).remark


async def test_the_mode_of_a_deleted_topic_is_deleted(broker, orders):
    await set_mode(orders)
    await orders.ask(DeleteTopic("orders"))
    await orders.create_topic("other")
    await set_mode(orders, topic="other")
    await orders.create_topic("orders")
    assert await assigned(orders) == []


async def test_a_strategy_that_the_broker_does_not_have_is_refused(orders):
    query = AssignmentQuery(topic="orders", group="g", client_id="one", strategy="CONSISTENT_HASH")
    response = await orders.ask(QueryAssignment(), encode_body(query), code=1)
    assert "this broker assigns queues by AVG only; set clientRebalance=true" in response.remark
