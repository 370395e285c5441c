"""What a broker tells about messages in flight: in the progress of groups, in figures and in metrics."""

from tests.broker.popping.test_pop_processor import after, send

from pyromq.metrics.endpoint import Scraping
from pyromq.remoting.headers import BrokerFigures, ConsumeStatistics

RETRIES = "%RETRY%g_orders"


async def progress(caller, topic="orders"):
    """Return the group's offset, next offset and messages in flight of queue 0."""
    queues = (await caller.body(ConsumeStatistics("g", topic))).queues
    return next(
        (each.consumer_offset, each.next_offset, each.in_flight) for at, each in queues.items() if at.queue_id == 0
    )


async def metrics(broker):
    """Return the broker's values by name and topic."""
    found = {}
    text = b"".join(await Scraping([broker.metrics()], 10_000).text()).decode()
    for line in text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            topic = name.partition('topic="')[2].partition('"')[0]
            found[name.partition("{")[0], topic] = float(value)
    return found


async def test_progress_has_the_messages_in_flight(orders, popper):
    await send(orders, "a", "b", "c", "d")
    _, second, _ = await popper.pop(3)
    await popper.ack(second)
    assert await progress(orders) == (0, 3, 2)


async def test_a_group_that_pulls_has_none(broker, orders):
    await send(orders, "a", "b")
    broker.offsets.commit("g", "orders", 0, 1)
    assert await progress(orders) == (1, None, None)


async def test_members_that_pop_need_not_subscribe_to_the_retry_topic(orders, popper, clock):
    await orders.beat("c1", group="g")
    await send(orders, "a")
    await popper.pop(invisible_ms=1_000)
    await after(clock, 1.1)
    await popper.pop()
    assert await progress(orders, RETRIES) == (0, 1, 1)


async def test_figures_have_the_messages_in_flight(orders, popper):
    await send(orders, "a", "b")
    await send(orders, "c", queue_id=1)
    await popper.pop()
    groups = (await orders.body(BrokerFigures())).groups
    assert [(at.topic, at.in_flight) for each in groups if each.name == "g" for at in each.topics] == [("orders", 3)]


async def test_metrics_have_the_messages_in_flight_and_the_size_of_the_journal(broker, orders, popper):
    assert (await metrics(broker))["pyromq_pop_journal_bytes", ""] == 0
    await send(orders, "a", "b", "c")
    await popper.pop(2)
    found = await metrics(broker)
    assert found["rocketmq_consumer_inflight_messages", "orders"] == 2
    assert found["rocketmq_consumer_ready_messages", "orders"] == 1
    assert found["pyromq_messages_in_flight", ""] == 2
    assert found["pyromq_pops_in_flight", ""] == 1
    files = [path.stat().st_size for path in (broker.config.data / "pops").iterdir()]
    assert found["pyromq_pop_journal_bytes", ""] == sum(files) > 100
