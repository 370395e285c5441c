"""Reading a topic as new messages arrive, at a real broker."""

import asyncio
from itertools import islice

from tests.waiting import until

from pyromq import ConsumeFrom, ConsumerConfig, Message, PullConsumer
from pyromq.cli.commands.messages.topic_reader import TopicReader
from pyromq.clock import SystemClock
from pyromq.message import MessageQueue
from pyromq.testing import Cluster


async def test_queues_that_are_added_later_are_read():
    async with Cluster(2, clock=SystemClock()) as cluster, await cluster.admin() as admin:
        await admin.create_topic("orders", 1)
        producer = await cluster.producer()

        async def send(body, broker, queue_id):
            await producer.send(Message("orders", body), queue=MessageQueue("orders", broker, queue_id))

        await send(b"before", "broker-b", 0)
        await cluster.stop_broker(1)
        config = ConsumerConfig(
            auto_commit=False,
            consume_from=ConsumeFrom.TIME,
            consume_from_ms=cluster.clock.now_ms() + 1,
            route_refresh_seconds=0.3,
        )
        consumer = PullConsumer("tools", cluster.namesrv, config=config)

        def read():
            with consumer:
                messages = TopicReader(consumer, consumer.queues("orders"), {}, adds_queues=True).messages()
                return [message.body for message in islice(messages, 2)]

        reading = asyncio.ensure_future(asyncio.to_thread(read))
        await until(lambda: consumer.assignment)
        await cluster.start_broker(1)
        await send(b"returned", "broker-b", 0)
        await admin.create_topic("orders", 2, replace=True)
        await send(b"new", "broker-a", 1)
        assert sorted(await reading) == [b"new", b"returned"]
