"""What a message may be: refused before it is sent, with the field, its value, and what may stand there."""

import random
from datetime import timedelta

import pytest

from pyromq import IllegalMessage, Message, Producer, ProducerConfig, UsageError
from pyromq.message import SysFlag
from pyromq.store.store_config import StoreConfig
from pyromq.testing import Cluster


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"tags": ["new", "paid"]}, r"tags=\['new', 'paid'\] is list; a message has one tag, a string"),
        ({"tags": 5}, "tags=5 is int; a message has one tag, a string"),
        ({"tags": b"new"}, "tags=b'new' is bytes; "),
        ({"tags": "a || b"}, r"tags='a \|\| b': no subscription finds a tag with `\|\|`"),
        ({"tags": " new"}, "tags=' new': no subscription finds a tag with blanks around it"),
        ({"tags": " "}, "tags=' ': "),
        ({"keys": [5]}, "one of keys=5 is int"),
        ({"keys": ["k 2"]}, "key 'k 2' has a space, which separates keys"),
        ({"keys": ("a", "b ")}, "key 'b ' has a space, which separates keys"),
        ({"keys": 5}, "keys=5 is int"),
        ({"keys": None}, "keys=None is NoneType"),
        ({"keys": b"order-7"}, "keys=b'order-7' is bytes"),
        ({"properties": None}, "properties=None is NoneType"),
        ({"properties": [("a", "b")]}, "properties=.* is list"),
        ({"properties": {"a": 1}}, "property 'a'=1: name and value must be strings"),
        ({"flag": "7"}, "flag='7' is str"),
        ({"flag": 1 << 31}, "flag=2147483648 is out of range: -2147483648 to 2147483647"),
        ({"delay_level": 99}, "delay_level=99 is out of range: 1 to 18, or 0 for no delay"),
        ({"delay_level": -1}, "delay_level=-1 is out of range: 1 to 18, or 0 for no delay"),
        ({"delay_level": "3"}, "delay_level='3' is str"),
        ({"delay_level": True}, "delay_level=True is bool"),
        ({"delay": -5}, "delay=-5: .*negative"),
        ({"delay": timedelta(seconds=-5)}, r"delay=datetime.timedelta\(.*negative"),
        ({"wait_stored": "no"}, "wait_stored='no' is str"),
        ({"tags": "\ud800"}, r"property 'TAGS'='\\ud800' cannot be written as UTF-8"),
        ({"properties": {"a": "b", "name": "x\udcff"}}, r"property 'name'='x\\udcff' cannot be written as UTF-8"),
        ({"properties": {"\udcff": "x"}}, r"property '\\udcff'='x' cannot be written as UTF-8"),
        ({"message_id": 5}, "message_id=5 is int"),
        ({"body": None}, "a message body is bytes, not NoneType"),
        ({"topic": 5}, "topic=5 is int; a topic's name is a string"),
    ],
)
async def test_a_field_that_cannot_be_is_named_with_its_value(cluster, fields, text):
    producer = await cluster.producer()
    message = Message(**({"topic": "orders", "body": b"1"} | fields))
    for send in (producer.send, producer.send_soon, producer.request, producer.send_one_way):
        with pytest.raises(UsageError, match=text):
            await send(message)
    with pytest.raises(UsageError, match="delayed" if text.startswith("delay") else text):
        await producer.send_batch([message])
    assert producer.in_flight == 0


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        (Message("orders", b"1"), r"not Message\("),
        (5, "not 5"),
        ("orders", "number 0 is 'o'"),
        ([Message("orders", b"1"), "2"], "number 1 is '2'"),
        (iter(()), "at least one message"),
    ],
)
def test_what_is_no_batch_is_refused(served, messages, text):
    with Producer("p", served.namesrv) as producer, pytest.raises(IllegalMessage, match=text):
        producer.send_batch(messages)


def test_a_batch_may_be_made_by_a_generator(served):
    with Producer("p", served.namesrv) as producer:
        sent = producer.send_batch(Message("generated", b"%d" % n) for n in range(3))
        assert len(sent.message_id.split(",")) == 3


async def test_brokers_with_more_delay_levels_are_sent_to_with_a_setting(cluster):
    producer = await cluster.producer(config=ProducerConfig(delay_levels=20))
    await producer.send(Message("orders", b"1", delay_level=20))
    with pytest.raises(IllegalMessage, match="1 to 20"):
        await producer.send(Message("orders", b"1", delay_level=21))


async def test_keys_may_be_made_by_a_generator(cluster):
    producer = await cluster.producer()
    message = Message("orders", b"1", keys=(f"k{n}" for n in range(2)))
    admin = await cluster.admin()
    for _ in range(2):  # the second time it is a retry of the application
        result = await producer.send(message)
        assert (await admin.view(result.offset_message_id)).keys == ["k0", "k1"]


@pytest.mark.parametrize("size", [5000, (4 << 20) - 8])
async def test_a_body_that_compression_makes_longer_is_sent_as_it_is(tmp_path, size):
    body = random.Random(1).randbytes(size)
    async with Cluster(data=tmp_path, store=StoreConfig(tmp_path / "broker-a", segment_bytes=16 << 20)) as cluster:
        producer, admin = await cluster.producer(), await cluster.admin()
        result = await producer.send(Message("orders", body))
        found = await admin.view(result.offset_message_id)
    assert found.sys_flag & SysFlag.COMPRESSED == 0
    assert found.stored_body == found.body == body
