"""What is stored of the messages of RocketMQ 5's producers, and what its consumers see of stored ones."""

import pytest
from tests.proxy.calls import message

from pyromq.message import StoredMessage, encode_properties
from pyromq.proxy.grpc_refusal import GrpcRefusal
from pyromq.proxy.proto import definition_pb2 as proto
from pyromq.proxy.received_messages import fill_message
from pyromq.proxy.sent_messages import TopicTypes, sent_message

NOW_MS = 1_700_000_000_000


def delayed(seconds):
    sent = message(message_type=proto.DELAY)
    sent.system_properties.delivery_timestamp.FromMilliseconds(NOW_MS + round(seconds * 1000))
    return sent_message(sent, "orders", TopicTypes(has_timers=False), NOW_MS)


@pytest.mark.parametrize(
    ("seconds", "level"), [(-5, None), (0.2, "1"), (1, "1"), (1.001, "2"), (61, "6"), (3601, "18"), (7200, "18")]
)
def test_brokers_without_timers_delay_to_the_next_level(seconds, level):
    properties = delayed(seconds).properties

    assert properties.get("DELAY") == level
    assert "TIMER_DELIVER_MS" not in properties


def test_a_delay_behind_the_last_level_is_refused_by_brokers_without_timers():
    with pytest.raises(GrpcRefusal, match=r"7200001 ms: the brokers are of version 4.9 .* end at 7200 s") as refused:
        delayed(7200.001)
    assert refused.value.status == proto.ILLEGAL_DELIVERY_TIME


def test_properties_of_javas_brokers_and_proxies_are_not_the_users():
    properties = {
        **{"amount": "7", "TIMER_ENQUEUE_MS": "1", "TIMER_DEQUEUE_MS": "2", "BORN_TIMESTAMP": "3"},
        **{"__BORNHOST": "desk", "__CRC32#": "4"},
    }
    stored = StoredMessage("orders", b"x", encode_properties(properties))

    found = proto.Message()
    fill_message(found, stored, "orders")

    assert dict(found.user_properties) == {"amount": "7"}
    assert found.system_properties.born_host == "desk"
