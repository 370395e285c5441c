"""Half messages over stops: what is open stays open, what is decided decided, whatever a crash leaves."""

import asyncio
import json
from dataclasses import replace

import pytest
from tests.broker.folders import killed, without_end
from tests.broker.headers import send_header
from tests.broker.transactions.transactions import COMMIT, ROLLBACK, ROUND, numbers_done, queue

from pyromq.broker.broker import Broker
from pyromq.broker.limits import BrokerLimits
from pyromq.broker.transactions.half_messages import GROUP, OPS_PER_HALF
from pyromq.message import StoredMessage
from pyromq.names import HALF_TOPIC, OP_TOPIC, TRANSACTION_GIVE_UP_TOPIC


async def test_what_is_open_stays_open_over_a_restart_and_what_is_decided_decided(config, clock, transactions_of):
    async with Broker(config, clock) as broker:
        producer = await transactions_of(broker)
        committed, rolled_back, left_open = [await producer.send(b"%d" % number) for number in range(3)]
        await producer.end(committed, COMMIT)
        await producer.end(rolled_back, ROLLBACK)
    async with Broker(config, clock) as broker:
        producer = await transactions_of(broker)
        await producer.end(committed, COMMIT, code=1)
        await producer.end(rolled_back, COMMIT, code=1)
        await clock.advance(ROUND)
        header, body = await producer.checked.next()
        assert body.body == b"2"
        assert producer.checked.asked.empty()
        await producer.end(left_open, COMMIT)
        await producer.answer(header, COMMIT)
        assert await producer.visible() == [b"0", b"2"]


async def test_checks_are_counted_over_restarts(config, clock, transactions_of):
    config = replace(config, transaction_check_max=3)
    for number in range(1, 5):
        async with Broker(config, clock) as broker:
            producer = await transactions_of(broker)
            if number == 1:
                await producer.send()
            await clock.advance(ROUND)
            if number < 4:
                _, body = await producer.checked.next()
                assert body.properties["TRANSACTION_CHECK_TIMES"] == str(number)
            assert broker.store.max_offset(TRANSACTION_GIVE_UP_TOPIC, 0) == (number == 4)


async def test_progress_is_kept_as_upstream_keeps_it(config, clock, transactions_of):
    async with Broker(config, clock) as broker:
        producer = await transactions_of(broker)
        for number in range(4):
            sent = await producer.send()
            if number != 2:
                await producer.end(sent, COMMIT)
    table = json.loads((config.data / "config/consumerOffset.json").read_bytes())["offsetTable"]
    assert table[f"{HALF_TOPIC}@{GROUP}"] == {"0": 2}
    assert table[f"{OP_TOPIC}@{GROUP}"] == {"0": 2}


async def test_progress_is_noted_only_when_the_decisions_are_on_disk(broker, producer):
    await producer.end(await producer.send(), COMMIT)
    broker.half_messages.note_progress()
    broker.half_messages.note_progress()
    assert broker.offsets.find(GROUP, HALF_TOPIC, 0) is None
    await asyncio.wrap_future(broker.store.wait_flushed(broker.store.max_log_offset))
    broker.half_messages.note_progress()
    assert broker.offsets.find(GROUP, HALF_TOPIC, 0) == 1


async def test_a_broker_without_transactions_notes_no_progress(config, clock):
    async with Broker(config, clock) as broker:
        await clock.advance(2 * ROUND)
        assert broker.offsets.table().offsets == {}


async def test_a_crash_forgets_no_decision(config, clock, transactions_of):
    async with Broker(config, clock) as broker:
        producer = await transactions_of(broker)
        sent = [await producer.send(b"%d" % number) for number in range(20)]
        for number in range(0, 20, 2):
            await producer.end(sent[number], COMMIT if number % 4 else ROLLBACK)
        left = killed(config)
    async with Broker(left, clock) as broker:
        producer = await transactions_of(broker)
        for each in sent:
            await producer.end(each, COMMIT, code=int(each.queue_offset % 2 == 0))
        seen = [int(body) for body in await producer.visible()]
    assert seen == [2, 6, 10, 14, 18, *range(1, 20, 2)]


@pytest.mark.parametrize("delay", ["", "\x02DELAY\x013"])
async def test_a_crash_between_message_and_op_record_does_not_show_it_twice(config, clock, transactions_of, delay):
    async with Broker(config, clock) as broker:
        producer = await transactions_of(broker)
        sent = await producer.send(more=delay)
        await producer.end(sent, COMMIT)
        left = killed(config)
        op_record = queue(broker, OP_TOPIC)[0].log_offset
    without_end(left, op_record)
    async with Broker(left, clock) as broker:
        assert numbers_done(broker) == [0]
        producer = await transactions_of(broker)
        await producer.end(sent, COMMIT, code=1)
        await clock.advance(2 * ROUND)
        assert producer.checked.asked.empty()
        assert await producer.visible() == [b"hello"]


async def test_a_crash_between_a_copy_and_its_op_record_leaves_one_transaction(config, clock, transactions_of):
    async with Broker(config, clock) as broker:
        producer = await transactions_of(broker)
        sent = await producer.send()
        await clock.advance(ROUND)
        await producer.checked.next()
        left = killed(config)
        op_record = queue(broker, OP_TOPIC)[0].log_offset
    without_end(left, op_record)
    async with Broker(left, clock) as broker:
        producer = await transactions_of(broker)
        await clock.advance(ROUND)
        header, body = await producer.checked.next()
        assert body.properties["TRANSACTION_CHECK_TIMES"] == "2"
        await producer.end(sent, COMMIT)
        await producer.answer(header, COMMIT)
        await clock.advance(ROUND)
        assert producer.checked.asked.empty()
        assert await producer.visible() == [b"hello"]


async def test_after_such_a_crash_the_decision_outlives_another_one(config, clock, transactions_of):
    """The first copy, of which nothing says that it is done with, does not come back for the second."""
    async with Broker(config, clock) as broker:
        producer = await transactions_of(broker)
        sent = await producer.send()
        await clock.advance(ROUND)
        left = killed(config)
        op_record = queue(broker, OP_TOPIC)[0].log_offset
    without_end(left, op_record)
    async with Broker(left, clock) as broker:
        producer = await transactions_of(broker)
        await producer.end(sent, COMMIT)
        assert broker.offsets.find(GROUP, HALF_TOPIC, 0) is None
        left = killed(left, "again")
    async with Broker(left, clock) as broker:
        assert broker.half_messages.undecided() == []


async def test_a_half_message_sent_twice_is_one_transaction_over_a_crash(config, clock, transactions_of):
    async with Broker(config, clock) as broker:
        producer = await transactions_of(broker)
        again = "\x02UNIQ_KEY\x01ABC"
        first = await producer.send(unique=False, more=again)
        await producer.send(unique=False, more=again)
        await producer.end(first, COMMIT)
        left = killed(config)
        last_op_record = queue(broker, OP_TOPIC)[-1].log_offset
    without_end(left, last_op_record)
    async with Broker(left, clock) as broker:
        assert broker.half_messages.undecided() == []
        assert await (await transactions_of(broker)).visible() == [b"hello"]


async def test_a_decision_on_the_latest_copy_settles_earlier_ones_without_op_records(config, clock, transactions_of):
    """RocketMQ's broker writes no op record for a message that a check has copied."""
    async with Broker(config, clock) as broker:
        producer = await transactions_of(broker)
        again = "\x02UNIQ_KEY\x01ABC"
        for _ in range(3):
            await producer.send(unique=False, more=again)
        assert broker.half_messages.undecided() == [2]
        broker.store.append(StoredMessage(OP_TOPIC, b"2", "TAGS\x01d"))
        assert broker.half_messages.undecided() == []
        left = killed(config)
    async with Broker(left, clock) as broker:
        assert broker.half_messages.undecided() == []


async def test_copies_that_a_crash_left_without_op_records_take_no_room_for_ever(config, clock, transactions_of):
    config.limits = BrokerLimits(half_messages=3)
    async with Broker(config, clock) as broker:
        producer = await transactions_of(broker)
        first, *_ = [await producer.send(unique=False, more="\x02UNIQ_KEY\x01ABC") for _ in range(3)]
        await producer.end(first, COMMIT)
        assert numbers_done(broker) == [0, 1, 2]
        left = killed(config)
        second_op_record = queue(broker, OP_TOPIC)[1].log_offset
    without_end(left, second_op_record)
    async with Broker(left, clock) as broker:
        producer = await transactions_of(broker)
        await producer.end(first, COMMIT)
        assert await producer.visible() == [b"hello"]
        for _ in range(3):
            await producer.send()


async def test_copies_that_a_decision_settles_without_op_records_leave_room(config, clock, transactions_of):
    config.limits = BrokerLimits(half_messages=3)
    async with Broker(config, clock) as broker:
        producer = await transactions_of(broker)
        for _ in range(3):
            await producer.send(unique=False, more="\x02UNIQ_KEY\x01ABC")
        broker.store.append(StoredMessage(OP_TOPIC, b"2", "TAGS\x01d"))
        for _ in range(3):
            await producer.send()


async def test_after_a_crash_a_message_with_the_flag_of_a_commit_decides_nothing(config, clock, transactions_of):
    async with Broker(config, clock) as broker:
        producer = await transactions_of(broker)
        sent = await producer.send()
        await producer.caller.ask(send_header(queue_id=1, sys_flag=COMMIT), b"x")  # a prepared offset of 0
        left = killed(config)
    assert int(sent.message_id[-16:], 16) == 0
    async with Broker(left, clock) as broker:
        assert broker.half_messages.undecided() == [0]


async def test_op_records_of_rocketmq_5_name_several_messages(config, clock, transactions_of):
    async with Broker(config, clock) as broker:
        producer = await transactions_of(broker)
        for number in range(4):
            await producer.send(b"%d" % number)
        broker.store.append(StoredMessage(OP_TOPIC, b"0,2,3,", "TAGS\x01d"))
        left = killed(config)
    async with Broker(left, clock) as broker:
        producer = await transactions_of(broker)
        await clock.advance(ROUND)
        assert (await producer.checked.next())[1].body == b"1"
        assert producer.checked.asked.empty()


async def test_no_more_messages_may_be_undecided_than_the_setting_says(config, clock, transactions_of):
    config.limits = BrokerLimits(half_messages=3)
    async with Broker(config, clock) as broker:
        producer = await transactions_of(broker)
        first, *_ = [await producer.send() for _ in range(3)]
        refused = await producer.send(code=2)
        assert "3 half messages of this broker" in refused.remark and "maxHalfMessages" in refused.remark
        await producer.rounds()  # copies count once
        assert len(broker.half_messages.undecided()) == 3
        await producer.end(first, COMMIT)
        await producer.send()
        await producer.send(code=2)
    config.limits = BrokerLimits(half_messages=1)
    async with Broker(config, clock) as broker:  # what was confirmed stays
        assert len(broker.half_messages.undecided()) == 3


@pytest.mark.parametrize("immune", ["", "\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x0186400"])
async def test_the_table_of_op_records_does_not_grow_behind_a_message_without_producer(
    config, clock, transactions_of, immune
):
    config.limits = replace(config.limits, half_messages=2)
    async with Broker(config, clock) as broker:
        producer = await transactions_of(broker)
        left_open = await producer.send(b"open", more=f"\x02PGROUP\x01absent{immune}")
        for _ in range(10):
            for _ in range(20):
                await producer.end(await producer.send(b"done"), COMMIT)
            await producer.rounds()
            broker.half_messages.note_progress()
            assert broker.half_messages.op_count <= 2 * OPS_PER_HALF
        assert producer.checked.asked.empty()
    async with Broker(config, clock) as broker:
        producer = await transactions_of(broker)
        await producer.end(left_open, COMMIT, producer_group="absent")
        assert [each.body for each in queue(broker, "orders", 1)].count(b"open") == 1
        assert len(broker.half_messages.undecided()) == 0
