"""A message whose body cannot be decompressed, between two others, in one queue."""

import zlib

from pyromq.client.producer.async_producer import AsyncProducer
from pyromq.message import Message, SysFlag
from pyromq.names import AUTO_CREATE_TOPIC
from pyromq.remoting.headers import SendMessageV2

BOMB = zlib.compress(bytes(20 << 20))


async def send_three(namesrv, topic, body=BOMB, sys_flag=SysFlag.COMPRESSED):
    """Store `first`, the body as it is given, and `last`; return the offset id of the second."""
    async with AsyncProducer("strangers", namesrv) as producer:
        first = await producer.send(Message(topic, b"first"), ordering_key="k")
        header = SendMessageV2(
            producer_group="strangers",
            topic=topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_count=4,
            queue_id=first.queue.queue_id,
            sys_flag=sys_flag,
            born_ms=1,
            flag=0,
            properties="KEYS\x01k",
            reconsume_times=0,
            unit_mode=False,
            batch=False,
        )
        address = (await producer._cluster.route(topic)).master(first.queue.broker_name)
        response = (await producer._cluster.ask(address, header, body, timeout=30)).check()
        await producer.send(Message(topic, b"last"), ordering_key="k")
        return response.fields["msgId"]
