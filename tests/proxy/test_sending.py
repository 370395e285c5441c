"""SendMessage of all types, RecallMessage, and every field that a client may fill wrongly."""

import gzip
import zlib

import pytest
from tests.proxy.calls import message

from pyromq.message import Property, SysFlag
from pyromq.names import HALF_TOPIC
from pyromq.proxy.proto import definition_pb2 as proto
from pyromq.proxy.proto import service_pb2 as service


@pytest.fixture
async def topic(cluster):
    admin = await cluster.admin()
    await admin.create_topic("orders")
    return "orders"


def stored(cluster, topic="orders"):
    """Return all messages of a topic, in order of the log."""
    store = cluster.broker.store
    found = [
        store.message(topic, queue_id, offset)
        for queue_id in store.queue_ids(topic)
        for offset in range(store.max_offset(topic, queue_id))
    ]
    return sorted(found, key=lambda each: each.log_offset)


def timestamp(ms):
    return {"seconds": ms // 1000, "nanos": ms % 1000 * 1_000_000}


async def test_a_message_is_stored_with_the_properties_of_4_9(calls, cluster, topic):
    born = timestamp(cluster.clock.now_ms())
    sent = message(
        tag="paid", keys=["order-7", "eu"], user_properties={"colour": "blue"}, born_host="shop-3", born_timestamp=born
    )

    answer = await calls.send(sent)

    (entry,) = answer.entries
    assert (answer.status.code, entry.status.code) == (proto.OK, proto.OK)
    assert (entry.message_id, entry.transaction_id) == ("01A", "01A")
    (found,) = stored(cluster)
    assert found.body == b"hello"
    assert found.message_id == "01A"
    assert (found.tags, found.keys) == ("paid", ["order-7", "eu"])
    assert found.properties["colour"] == "blue"
    assert entry.offset == found.queue_offset


async def test_messages_of_a_group_go_to_one_queue_and_others_take_turns(calls, cluster, topic):
    for number in range(8):
        kind = {"message_type": proto.FIFO, "message_group": "customer-3"} if number % 2 else {}
        assert (await calls.send(message(**kind))).status.code == proto.OK

    ordered = {each.queue_id for each in stored(cluster) if Property.SHARDING_KEY in each.properties}
    others = [each.queue_id for each in stored(cluster) if Property.SHARDING_KEY not in each.properties]
    assert len(ordered) == 1
    assert len(set(others)) == 4


async def test_a_delayed_message_arrives_at_its_time_and_can_be_recalled(calls, cluster, topic):
    due = timestamp(cluster.clock.now_ms() + 5_000)
    first = await calls.send(message(message_type=proto.DELAY, delivery_timestamp=due))
    second = await calls.send(message(message_type=proto.DELAY, delivery_timestamp=due, message_id="01B"))
    handle = second.entries[0].recall_handle
    topic = proto.Resource(name="orders")

    recalled = await calls("RecallMessage", service.RecallMessageRequest(topic=topic, recall_handle=handle))
    again = await calls("RecallMessage", service.RecallMessageRequest(topic=topic, recall_handle=handle))

    assert first.status.code == proto.OK
    assert (recalled.status.code, recalled.message_id) == (proto.OK, "01B")
    assert again.status.code == proto.BAD_REQUEST
    assert stored(cluster) == []
    await cluster.clock.advance(6)
    assert [each.message_id for each in stored(cluster)] == ["01A"]


async def test_a_message_for_the_past_is_delivered_at_once(calls, cluster, topic):
    await calls.send(message(message_type=proto.DELAY, delivery_timestamp=timestamp(1)))

    await cluster.clock.advance(1)
    assert len(stored(cluster)) == 1


async def test_a_half_message_is_of_the_group_named_as_its_topic(calls, cluster, topic):
    answer = await calls.send(message(message_type=proto.TRANSACTION))

    (half,) = stored(cluster, HALF_TOPIC)
    assert half.properties[Property.PRODUCER_GROUP] == "orders"
    assert answer.entries[0].transaction_id == f"broker-a:{half.log_offset}:0"


async def test_several_messages_get_an_entry_each(calls, cluster, topic):
    answer = await calls.send(*(message(message_id=f"01{number}", body=b"%d" % number) for number in range(5)))

    assert [each.message_id for each in answer.entries] == ["010", "011", "012", "013", "014"]
    assert [each.offset for each in answer.entries] == [each.queue_offset for each in stored(cluster)]
    assert [each.body for each in stored(cluster)] == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_gzip_body_is_stored_as_consumers_of_4_9_read_it(calls, cluster, topic):
    await calls.send(message(body=gzip.compress(b"plain" * 100), body_encoding=proto.GZIP))

    (found,) = stored(cluster)
    assert found.sys_flag & SysFlag.COMPRESSED
    assert zlib.decompress(found.stored_body) == found.body == b"plain" * 100


async def test_a_large_body_arrives(calls, cluster, topic):
    body = bytes(range(256)) * (12 << 10)

    assert (await calls.send(message(body=body))).status.code == proto.OK
    assert stored(cluster)[0].body == body


BAD = {
    "no topic": (message(topic=""), proto.ILLEGAL_TOPIC, "blank"),
    "topic with a dot": (message(topic="a.b"), proto.ILLEGAL_TOPIC, "a.b"),
    "long topic": (message(topic="t" * 128), proto.ILLEGAL_TOPIC, "127"),
    "system topic": (message(topic="SCHEDULE_TOPIC_XXXX"), proto.ILLEGAL_TOPIC, "system topic"),
    "unknown topic": (message(topic="nowhere"), proto.TOPIC_NOT_FOUND, "pyromq topic create nowhere"),
    "no message id": (message(message_id=" "), proto.ILLEGAL_MESSAGE_ID, "message id"),
    "blank tag": (message(tag=" "), proto.ILLEGAL_MESSAGE_TAG, "tag"),
    "bar in tag": (message(tag="a|b"), proto.ILLEGAL_MESSAGE_TAG, "a|b"),
    "control character in key": (message(keys=["a\x01b"]), proto.ILLEGAL_MESSAGE_KEY, "key"),
    "blank key": (message(keys=[""]), proto.ILLEGAL_MESSAGE_KEY, "key"),
    "reserved property": (message(user_properties={"KEYS": "x"}), proto.ILLEGAL_MESSAGE_PROPERTY_KEY, "KEYS"),
    "separator in property": (message(user_properties={"a": "\x02"}), proto.ILLEGAL_MESSAGE_PROPERTY_KEY, "control"),
    "blank property": (message(user_properties={"a": ""}), proto.ILLEGAL_MESSAGE_PROPERTY_KEY, "blank"),
    "many properties": (
        message(user_properties={f"p{n}": "x" for n in range(129)}), proto.MESSAGE_PROPERTIES_TOO_LARGE, "128"
    ),
    "large properties": (message(user_properties={"p": "x" * 17_000}), proto.MESSAGE_PROPERTIES_TOO_LARGE, "16384"),
    "control character in born host": (message(born_host="a\x01"), proto.BAD_REQUEST, "born_host"),
    "no group": (message(message_type=proto.FIFO), proto.ILLEGAL_MESSAGE_GROUP, "message group"),
    "long group": (message(message_type=proto.FIFO, message_group="g" * 64), proto.ILLEGAL_MESSAGE_GROUP, "64"),
    "no time": (message(message_type=proto.DELAY), proto.ILLEGAL_DELIVERY_TIME, "needs a time"),
    "far time": (
        message(message_type=proto.DELAY, delivery_timestamp=timestamp(1 << 52)), proto.ILLEGAL_DELIVERY_TIME, ""
    ),
    "priority": (message(message_type=proto.PRIORITY), proto.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "not supported"),
    "no body": (message(body=b""), proto.MESSAGE_BODY_EMPTY, "no body"),
    "large body": (message(body=bytes((4 << 20) + 1)), proto.MESSAGE_BODY_TOO_LARGE, str((4 << 20) + 1)),
    "body at the broker's limit": (message(body=bytes(4 << 20)), proto.MESSAGE_BODY_TOO_LARGE, "the limit is"),
    "no gzip": (message(body_encoding=proto.GZIP), proto.MESSAGE_CORRUPTED, "gzip"),
    "cut gzip": (
        message(body=gzip.compress(b"x" * 99)[:-4], body_encoding=proto.GZIP), proto.MESSAGE_CORRUPTED, "incomplete"
    ),
    "bomb": (
        message(body=gzip.compress(bytes(17 << 20)), body_encoding=proto.GZIP), proto.MESSAGE_CORRUPTED, "16 MiB"
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", BAD)
async def test_a_message_with_a_fault_is_refused_and_not_stored(calls, cluster, topic, fault):
    sent, code, text = BAD[fault]

    answer = await calls.send(sent)

    assert proto.Code.Name(answer.status.code) == proto.Code.Name(code), answer.status.message
    assert text in answer.status.message
    await cluster.clock.advance(1)
    assert stored(cluster) == []


@pytest.mark.parametrize(
    "messages", [[], [message(), message(topic="other")], [message()] * 129], ids=["none", "two topics", "129"]
)
async def test_a_request_of_no_messages_or_of_two_topics_is_refused(calls, cluster, topic, messages):
    assert (await calls.send(*messages)).status.code == proto.MESSAGE_CORRUPTED
    assert stored(cluster) == []


async def test_a_topic_with_a_type_takes_only_messages_of_this_type(calls, cluster):
    admin = await cluster.admin()
    await admin.create_topic("orders", message_type="fifo")

    refused = await calls.send(message())
    taken = await calls.send(message(message_type=proto.FIFO, message_group="a"))

    assert refused.status.code == proto.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert "FIFO" in refused.status.message
    assert taken.status.code == proto.OK


async def test_a_broker_that_is_gone_is_a_status(calls, cluster, topic):
    await calls.send(message())
    await cluster.stop_broker()

    answer = await calls.send(
        message(message_id="01B"),
    )

    assert answer.status.code in (proto.HA_NOT_AVAILABLE, proto.PROXY_TIMEOUT)
    assert answer.entries[0].message_id == "01B"


@pytest.mark.parametrize("handle", ["", "rubbish", "djEgb3JkZXJzIGJyb2tlci1hIDEgWA=="])
async def test_a_wrong_recall_handle_is_refused(calls, cluster, topic, handle):
    request = service.RecallMessageRequest(topic=proto.Resource(name="orders"), recall_handle=handle)

    answer = await calls("RecallMessage", request)

    assert answer.status.code == proto.BAD_REQUEST
    assert answer.status.message
