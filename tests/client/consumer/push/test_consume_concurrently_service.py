"""Consumption side by side: what becomes of a message that two want to send back at once."""

import asyncio

from pyromq.client.client_config import ConsumerConfig
from pyromq.client.consumer.push.consume_concurrently_service import ConsumeConcurrentlyService
from pyromq.client.consumer.push.listener import BoundListener
from pyromq.client.consumer.push.process_queue import ProcessQueue
from pyromq.message import MessageQueue, StoredMessage
from pyromq.testing import FakeClock


class SlowBroker:
    """In place of a broker: it takes messages back when a test says so."""

    def __init__(self):
        self.asked = []

    async def give_back(self, message, queue, delay_level, reason):
        self.asked.append(asyncio.get_running_loop().create_future())
        await self.asked[-1]


async def test_a_listener_that_fails_while_it_is_given_up_counts_once(until):
    clock, broker, fail = FakeClock(), SlowBroker(), asyncio.Event()

    async def listener(messages):
        await fail.wait()
        raise ValueError("no such order")

    config = ConsumerConfig(consume_timeout_seconds=1.0)
    listening = BoundListener.of(listener)
    consuming = ConsumeConcurrentlyService("workers", config, clock, listener=lambda topic: listening, send_back=broker)
    process_queue = ProcessQueue(MessageQueue("orders", "broker-a", 0), 0, clock.monotonic)
    consuming.deliver(process_queue, [StoredMessage("orders", b"1", queue_offset=0)], 1)
    await until(lambda: process_queue.running)
    await clock.advance(2.0)
    rescue = asyncio.create_task(consuming.rescue(process_queue))
    await until(lambda: broker.asked)
    fail.set()
    await until(lambda: len(broker.asked) == 2)
    for answer in broker.asked:
        answer.set_result(None)
    await rescue
    await until(lambda: not process_queue.requests)
    await consuming.stop()
    assert (process_queue.count, process_queue.size, process_queue.safe_offset) == (0, 0, 1)


async def test_a_revoked_queue_is_drained_when_its_failed_message_is_sent_back(until):
    clock, broker = FakeClock(), SlowBroker()

    def listener(messages):
        raise ValueError("no such order")

    listening = BoundListener.of(listener)
    consuming = ConsumeConcurrentlyService(
        "workers", ConsumerConfig(), clock, listener=lambda topic: listening, send_back=broker
    )
    process_queue = ProcessQueue(MessageQueue("orders", "broker-a", 0), 0, clock.monotonic)
    consuming.deliver(process_queue, [StoredMessage("orders", b"1", queue_offset=0)], 1)
    await until(lambda: broker.asked)
    drain = asyncio.create_task(process_queue.drain())
    await asyncio.sleep(0)
    assert not drain.done()
    broker.asked[0].set_result(None)
    await drain
    assert process_queue.safe_offset == 1
    await consuming.stop()
