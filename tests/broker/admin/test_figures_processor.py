"""What every topic and group of a broker comes to, in one answer."""

import threading

import pytest

from pyromq.broker.broker import Broker
from pyromq.remoting.bodies import GroupConfig, encode_body
from pyromq.remoting.headers import BrokerFigures, SaveGroup, UpdateConsumerOffset
from pyromq.store.disk import LocalDisk
from pyromq.store.log import commit_log


async def figures(caller):
    found = await caller.body(BrokerFigures())
    return {each.name: each for each in found.topics}, {each.name: each for each in found.groups}


async def test_queues_of_a_topic_are_added_up(caller, clock):
    await caller.create_topic("orders", queues=2)
    for queue_id in (0, 1, 1):
        await caller.send("orders", queue_id=queue_id)
    topics, _ = await figures(caller)
    orders = topics["orders"]
    assert (orders.read_queues, orders.write_queues, orders.permission) == (2, 2, 6)
    assert (orders.messages, orders.sent, orders.last_store_ms) == (3, 3, clock.now_ms())
    assert topics["TBW102"].messages == 0


async def test_a_groups_lag_is_counted_in_messages_and_in_time(caller, clock):
    await caller.create_topic("orders", queues=2)
    await caller.ask(SaveGroup(), encode_body(GroupConfig(name="readers", consume_enabled=False)))
    await caller.send("orders", queue_id=0)
    await clock.advance(10)
    for queue_id in (0, 1):
        await caller.send("orders", queue_id=queue_id)
    await caller.ask(UpdateConsumerOffset(consumer_group="readers", topic="orders", queue_id=0, commit_offset=1))
    await clock.advance(5)
    _, groups = await figures(caller)
    readers = groups["readers"]
    (at,) = readers.topics
    assert (at.topic, at.consumed, at.lag, at.delay_ms) == ("orders", 1, 2, 5000)
    assert (readers.members, readers.enabled, readers.differs) == ([], False, False)


class ColdDisk(LocalDisk):
    """Has nothing in memory, and notes in which thread it is loaded, and how much each time."""

    def __init__(self):
        self.loads = []

    def is_resident(self, memory, position, size):
        return False

    def load(self, pieces):
        self.loads.append((threading.current_thread() is threading.main_thread(), len(pieces)))
        super().load(pieces)


@pytest.fixture
async def cold(config, clock, caller_to, monkeypatch):
    """A caller of a broker that has all its messages on disk only, and its disk."""
    monkeypatch.setattr(commit_log, "RECENT_BYTES", 0)
    disk = ColdDisk()
    async with Broker(config, clock, disk=disk) as broker:
        yield await caller_to(broker), disk


async def test_records_on_the_disk_are_read_by_a_thread_once(cold, clock):
    caller, disk = cold
    await caller.create_topic("orders", queues=2)
    for queue_id in (0, 1, 1):
        await caller.send("orders", queue_id=queue_id)
        await clock.advance(2)
    await caller.ask(UpdateConsumerOffset(consumer_group="readers", topic="orders", queue_id=1, commit_offset=1))
    for _ in range(2):
        topics, groups = await figures(caller)
        (at,) = groups["readers"].topics
        assert (at.lag, at.delay_ms) == (2, 6000)
        assert topics["orders"].last_store_ms == clock.now_ms() - 2000
    # The last of both queues for the topic, their entries first; for the group these are known.
    assert disk.loads == [(False, 2), (False, 2)]
