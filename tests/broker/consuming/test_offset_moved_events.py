"""Messages in OFFSET_MOVED_EVENT: who pulls where nothing is."""

import msgspec
import pytest
from tests.broker.headers import pull_header

from pyromq.broker.consuming.pull_processor import OffsetMovedEvents
from pyromq.broker.put_message import PutMessage
from pyromq.broker.statistics import Statistics
from pyromq.message import decode_properties
from pyromq.store.message_store import MessageStore
from pyromq.store.store_config import StoreConfig

EVENTS = "OFFSET_MOVED_EVENT"


@pytest.fixture
async def events(broker, orders):
    """What the topic of events holds, in order."""

    def stored():
        entries = broker.store.entries(EVENTS, 0, 0, 100)
        return [broker.store.message_at(entry.log_offset) for entry in entries]

    for _ in range(3):
        await orders.send("orders", b"x", queue_id=0)
    return stored


async def test_a_pull_beyond_the_queue_is_told_as_upstream_tells_it(orders, events):
    assert (await orders.pull(offset=99)).code == 21

    (event,) = events()
    assert msgspec.json.decode(event.body) == {
        "consumerGroup": "c",
        "messageQueue": {"topic": "orders", "brokerName": "broker-a", "queueId": 0},
        "offsetRequest": 99,
        "offsetNew": 3,
    }
    properties = decode_properties(event.property_text)
    assert (properties["TAGS"], properties["KEYS"], event.queue_id) == ("c", "c", 0)


async def test_pulls_that_find_something_or_wait_tell_nothing(orders, events):
    await orders.pull(offset=1)
    await orders.pull(offset=3)
    assert events() == []


async def test_who_pulls_there_again_writes_one_a_second_and_queue(orders, events, clock):
    for _ in range(5):
        await orders.pull(offset=99)
    await orders.pull(queue_id=1, offset=99)
    assert len(events()) == 2
    await clock.advance(1)
    await orders.pull(offset=99)
    assert len(events()) == 3


def test_what_cannot_be_stored_is_a_line_in_the_log(tmp_path, clock, caplog):
    store = MessageStore(StoreConfig(tmp_path), clock, store_address=bytes(8))
    store.close()
    put_message = PutMessage(store, Statistics("c", clock))
    header = pull_header(consumer_group="g", queue_offset=99)

    OffsetMovedEvents(put_message, "broker-a", clock).tell(header, 3)

    assert "moved offset of group g in queue 0 of orders at broker-a" in caplog.text
