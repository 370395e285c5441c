"""How much a pull asks for and brings."""

import pytest

from pyromq.client.client_config import ConsumerConfig
from pyromq.client.consumer.pulling import BULK_BYTES, FEW, PullRequest
from pyromq.message import Message


async def fill(cluster, count):
    producer = await cluster.producer()
    queue = (await producer.queues("orders"))[0]
    await producer.send_batch([Message("orders", b"%d" % n) for n in range(count)], queue=queue)
    return queue


async def largest_calls(cluster, consuming, until, **settings):
    """Return how many messages the listener got at once, by a consumer of 300 of one queue."""
    sizes = []
    await fill(cluster, 300)
    async with consuming(lambda messages: sizes.append(len(messages)), batch=1000, **settings):
        await until(lambda: sum(sizes) == 300)
    return sizes


async def test_one_pull_brings_many_messages(cluster, consuming, until):
    assert await largest_calls(cluster, consuming, until) == [256, 44]


async def test_no_pull_brings_more_than_is_asked_for(cluster, consuming, until):
    assert max(await largest_calls(cluster, consuming, until, pull_count=32)) == 32


async def test_a_pull_consumer_gets_as_many(cluster):
    queue = await fill(cluster, 300)
    consumer = await cluster.consumer()
    await consumer.assign([queue])
    await consumer.seek_to_begin(queue)
    assert [len(await consumer.poll(5)) for _ in range(2)] == [256, 44]


@pytest.mark.parametrize(
    ("asked", "room", "count", "max_bytes"),
    [
        (256, 1000, 256, BULK_BYTES),
        (256, 100, 100, BULK_BYTES),
        (256, 10, FEW, None),  # what is fetched ahead exceeds its bound by no more than ever
        (32, 1000, 32, None),
        (1, 1000, 1, None),
    ],
)
def test_as_much_is_asked_for_as_there_is_room(asked, room, count, max_bytes):
    config = ConsumerConfig(pull_count=asked)
    request = PullRequest.ahead(config, "*", room=room, wait_seconds=1.0, broker_id=0)
    assert (request.max_count, request.max_bytes) == (count, max_bytes)
