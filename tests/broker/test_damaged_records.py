"""Damaged records of messages that wait: none is delivered or committed as good, none stands in for another.

What is lost is told with its file and byte, and costs nothing else.
"""

import pytest
from tests.broker.batches.test_batch_transaction_processor import Batches
from tests.broker.transactions.transactions import COMMIT, ROLLBACK

from pyromq.broker.broker import Broker
from pyromq.broker.transactions.half_messages import GROUP
from pyromq.names import HALF_TOPIC, LEDGER_TOPIC, OP_TOPIC, SCHEDULE_TOPIC
from pyromq.store.offline.store_repair import StoreRepair
from pyromq.testing.fake_clock import settle

BODY_AT = 88  # in a record with IPv4 addresses


def damage(config, log_offset, *, at=BODY_AT):
    """Flip a bit of a record; return what names the place."""
    path = min((config.data / "commitlog").iterdir())
    with path.open("r+b") as file:
        file.seek(log_offset + at)
        byte = file.read(1)[0]
        file.seek(log_offset + at)
        file.write(bytes([byte ^ 0x10]))
    return f"{path} byte {log_offset}"


def repair(config):
    assert StoreRepair(config.store_config, lambda text: None).run().is_sound


def log_offset(broker, topic, offset=0, *, queue_id=0):
    return broker.store.entries(topic, queue_id, offset, 1)[0].log_offset


async def bury(broker, caller):
    """Put so much behind that a start does not look at what is there now."""
    for _ in range(6):
        await caller.send("other", bytes(200_000))


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("repaired", [True, False])
async def test_a_damaged_half_message_costs_itself(config, clock, transactions_of, caplog, number, repaired):
    async with Broker(config, clock) as broker:
        producer = await transactions_of(broker)
        sent = [await producer.send(b"body %d" % each) for each in range(3)]
        await bury(broker, producer.caller)
        lost = log_offset(broker, HALF_TOPIC, number)
    place = damage(config, lost)
    if repaired:
        repair(config)
    caplog.clear()
    async with Broker(config, clock) as broker:
        producer = await transactions_of(broker)
        for each in (0, 1, 2):
            await producer.end(sent[each], COMMIT, code=0 if each != number else 1 if repaired else 14)
        assert await producer.visible() == [b"body %d" % each for each in range(3) if each != number]
    assert repaired or f"queue {HALF_TOPIC} 0: message {number} is lost: {place}" in caplog.text


async def test_a_damaged_op_record_leaves_its_message_undecided_and_the_progress_right(config, clock, transactions_of):
    async with Broker(config, clock) as broker:
        producer = await transactions_of(broker)
        left_open = await producer.send(b"open")
        for number in range(3):
            await producer.end(await producer.send(b"body %d" % number), ROLLBACK)
        await bury(broker, producer.caller)
        lost = log_offset(broker, OP_TOPIC, 1)
    damage(config, lost)
    async with Broker(config, clock) as broker:
        producer = await transactions_of(broker)
        assert broker.half_messages.undecided() == [0, 2]
        assert broker.half_messages.op_count == 3
        await producer.end(left_open, COMMIT)
        broker.half_messages.note_progress(closed=True)
        assert broker.offsets.of_topic(GROUP, HALF_TOPIC) == {0: 2}
        assert broker.offsets.of_topic(GROUP, OP_TOPIC) == {0: 2}  # behind the one of message 1, and the lost one


@pytest.mark.parametrize("repaired", [True, False])
async def test_a_damaged_delayed_message_is_not_delivered_as_good(config, clock, caller_to, caplog, repaired):
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        for number in range(3):
            await caller.send("orders", b"body %d" % number, properties="DELAY\x013")
        await bury(broker, caller)
        lost = log_offset(broker, SCHEDULE_TOPIC, 1, queue_id=2)
    place = damage(config, lost)
    if repaired:
        repair(config)
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await clock.advance(11)
        assert await caller.bodies() == [b"body 0", b"body 2"]
    assert f"queue {SCHEDULE_TOPIC} 2: message 1 is lost" in caplog.text
    assert repaired or place in caplog.text


@pytest.mark.parametrize("repaired", [True, False])
async def test_a_damaged_decision_costs_itself(config, clock, caller_to, caplog, repaired):
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        batches = Batches(caller, clock)
        for name in ("one", "two"):
            await batches.run(["a"], name=name)
            await batches.commit({"a": 1}, name=name)
        await settle()
        await bury(broker, caller)
        lost = log_offset(broker, LEDGER_TOPIC)
    place = damage(config, lost)
    if repaired:
        repair(config)
    async with Broker(config, clock) as broker:
        assert [name for name in ("one", "two") if broker.batches.find(name) is not None] == ["two"]
    assert f"queue {LEDGER_TOPIC} 0: message 0 is lost" in caplog.text
    assert repaired or place in caplog.text
