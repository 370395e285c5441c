"""RocketMQ's official Python client, in a process of its own: the example of docs/how-to/rocketmq-5-clients.md."""

import asyncio
import os
import sys
from importlib.util import find_spec

import pytest
from tests.documentation.test_pages import blocks
from tests.proxy.calls import message
from tests.proxy.test_sending import stored

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("rocketmq") is None, reason="rocketmq-python-client is not installed"),
]

PRODUCER = """
from rocketmq import ClientConfiguration, Credentials, Message, Producer, TransactionChecker, TransactionResolution

class Checker(TransactionChecker):
    def check(self, message):
        return TransactionResolution.COMMIT

producer = Producer(ClientConfiguration("127.0.0.1:8081", Credentials()), ("orders",), checker=Checker())
producer.startup()

def message(body, **fields):
    message = Message()
    message.topic, message.body, message.tag, message.keys = "orders", body, "paid", "k"
    for name, value in fields.items():
        setattr(message, name, value)
    return message

producer.send(message(b"normal"))
producer.send(message(b"fifo", message_group="customer-3"))
producer.send(message(b"delayed", delivery_timestamp=1_000_000_000))
producer.send_async(message(b"async")).result()
for end in ("commit", "rollback"):
    transaction = producer.begin_transaction()
    producer.send(message(end.encode()), transaction)
    getattr(transaction, end)()
producer.shutdown()
print("done")
"""


async def run(proxy, script, tmp_path):
    """Run a script against the proxy; return what it prints."""
    script = script.replace("127.0.0.1:8081", proxy.address)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "HOME": str(tmp_path)},  # the client writes its log below
    )
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


@pytest.fixture
async def topic(cluster):
    await (await cluster.admin()).create_topic("orders")


async def test_the_examples_of_the_page_send_and_receive(proxy, cluster, topic, tmp_path):
    sending, receiving = blocks("how-to/rocketmq-5-clients.md")

    out = await run(proxy, sending, tmp_path)

    assert "message_id:" in out
    assert [each.body for each in stored(cluster)] == [b"hello"]
    assert await run(proxy, receiving, tmp_path) == "b'hello'\n"


async def test_messages_of_all_types_arrive(proxy, cluster, topic, tmp_path):
    assert await run(proxy, PRODUCER, tmp_path) == "done\n"

    await cluster.clock.advance(1)
    bodies = {each.body for each in stored(cluster)}
    assert bodies == {b"normal", b"fifo", b"delayed", b"async", b"commit"}


CONSUMER = """
from rocketmq import ClientConfiguration, Credentials, SimpleConsumer

consumer = SimpleConsumer(ClientConfiguration("127.0.0.1:8081", Credentials()), "billing")
consumer.startup()
consumer.subscribe("orders")
found = []
while len(found) < 3:
    for message in consumer.receive(32, 15) or []:
        found.append(message.body.decode())
        consumer.ack(message)
consumer.shutdown()
print(sorted(found))
"""


async def test_a_simple_consumer_receives_and_acknowledges(proxy, cluster, topic, calls, tmp_path):
    await calls.send(*(message(body=b"%d" % number, message_id=f"01{number}") for number in range(3)))

    assert await run(proxy, CONSUMER, tmp_path) == "['0', '1', '2']\n"
