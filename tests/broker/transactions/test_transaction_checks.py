"""Checks of half messages: who is asked when and how often, and what is given up."""

import asyncio
from dataclasses import replace

import pytest
from tests.broker.transactions.transactions import COMMIT, ROLLBACK, ROUND, numbers_done, queue

from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerConfig
from pyromq.broker.transactions.transaction_checks import READING_PAUSE
from pyromq.errors import ResponseCode
from pyromq.message import StoredMessage
from pyromq.names import HALF_TOPIC, TRANSACTION_GIVE_UP_TOPIC


async def test_a_producer_is_asked_about_what_it_left_open(broker, producer, clock):
    sent = await producer.send(more="\x02TAGS\x01a")
    await clock.advance(ROUND)
    header, body = await producer.checked.next()
    original, copy = queue(broker, HALF_TOPIC)
    assert copy.properties == {**original.properties, "TRANSACTION_CHECK_TIMES": "1"}
    assert (copy.body, copy.flag, copy.born_ms) == (b"hello", 7, original.born_ms)
    assert numbers_done(broker) == [sent.queue_offset]
    assert (header.half_queue_offset, header.log_offset) == (1, copy.log_offset)
    assert header.message_id == header.transaction_id == "0" * 32
    assert header.offset_message_id == copy.offset_message_id
    assert (body.topic, body.queue_id, body.body) == ("orders", 1, b"hello")
    assert (body.properties, body.log_offset) == (copy.properties, copy.log_offset)
    await producer.answer(header, COMMIT)
    assert await producer.visible() == [b"hello"]


async def test_a_producer_is_asked_about_a_confirmed_copy_only(broker, producer, clock):
    await producer.send()
    broker.store.bound_reads()
    broker.store.confirm(broker.store.max_log_offset)
    await clock.advance(ROUND)
    assert broker.store.next_offset(HALF_TOPIC, 0) == 2  # the copy is stored
    assert producer.checked.asked.empty()
    broker.store.confirm(broker.store.max_log_offset)
    header, _ = await producer.checked.next()
    assert header.half_queue_offset == 1


async def test_a_rollback_on_a_check_is_final(producer, clock):
    await producer.send()
    await clock.advance(ROUND)
    header, _ = await producer.checked.next()
    await producer.answer(header, ROLLBACK)
    await producer.rounds(2)
    assert producer.checked.asked.empty()
    assert await producer.visible() == []


async def test_a_late_decision_on_the_first_copy_counts_and_only_once(producer, clock):
    sent = await producer.send()
    await clock.advance(2 * ROUND)
    await producer.checked.next()
    header, _ = await producer.checked.next()
    await producer.end(sent, COMMIT)
    await producer.answer(header, COMMIT)
    await producer.answer(header, ROLLBACK, code=1)
    await clock.advance(ROUND)
    assert producer.checked.asked.empty()
    assert await producer.visible() == [b"hello"]


async def test_what_is_decided_is_not_asked_about(producer, clock):
    await producer.end(await producer.send(), COMMIT)
    await producer.end(await producer.send(), ROLLBACK)
    await producer.rounds(2)
    assert producer.checked.asked.empty()


@pytest.mark.parametrize(("age", "asked"), [(5.5, False), (6, False), (6.5, True)])
async def test_a_fresh_message_is_left_alone(producer, clock, age, asked):
    await clock.advance(ROUND - age)
    await producer.send()
    await clock.advance(age)
    assert producer.checked.asked.qsize() == asked


@pytest.mark.parametrize(("seconds", "rounds"), [("1", 1), ("10", 2), ("25", 4), ("-1", 1), ("soon", 1)])
async def test_a_message_may_have_its_own_immunity(broker, producer, seconds, rounds):
    await producer.send(more=f"\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x01{seconds}")
    for number in range(1, rounds + 1):
        await producer.rounds()
        assert producer.checked.asked.qsize() == (number == rounds)
    assert queue(broker, HALF_TOPIC)[-1].properties["TRANSACTION_CHECK_TIMES"] == "1"


async def test_a_producer_whose_clock_is_ahead_is_asked_in_the_next_round(producer, clock):
    clock.jump(3_600)
    await producer.send()
    clock.jump(-3_600)
    await clock.advance(ROUND)
    await producer.checked.next()


async def test_a_clock_set_back_makes_no_check_late_and_no_message_old(broker, producer, clock):
    """The age of a message from the future says nothing; of one sent since, it counts from the new time."""
    await producer.send(b"before")
    clock.jump(-3_600)
    await producer.send(b"after")
    await producer.rounds()
    asked = [(await producer.checked.next())[1].body for _ in range(2)]
    assert asked == [b"before", b"after"]
    clock.jump(80 * 3_600)  # set right again, and more
    clock.jump(-80 * 3_600)
    await producer.rounds()
    for _ in range(2):
        header, _ = await producer.checked.next()
        await producer.answer(header, COMMIT)
    assert await producer.visible() == [b"before", b"after"]
    assert broker.store.max_offset(TRANSACTION_GIVE_UP_TOPIC, 0) == 0


async def test_a_fresh_message_after_the_clock_was_set_back_is_left_alone(producer, clock):
    clock.jump(-3_600)
    await clock.advance(ROUND - 5)
    await producer.send()
    await clock.advance(5)
    assert producer.checked.asked.empty()


async def test_midnight_is_a_moment_like_any_other(producer, clock):
    day = 86_400
    clock.jump(day - clock.now_ms() / 1000 % day - 6.5)
    await producer.send()
    await producer.rounds()  # half a second after midnight
    header, _ = await producer.checked.next()
    await producer.answer(header, COMMIT)
    assert await producer.visible() == [b"hello"]


async def test_after_15_checks_a_message_is_given_up(broker, producer):
    sent = await producer.send()
    for number in range(1, 16):
        await producer.rounds()
        await producer.checked.next()
        assert queue(broker, HALF_TOPIC)[-1].properties["TRANSACTION_CHECK_TIMES"] == str(number)
    assert broker.store.max_offset(TRANSACTION_GIVE_UP_TOPIC, 0) == 0
    await producer.rounds(2)
    assert producer.checked.asked.empty()
    (given_up,) = await producer.caller.messages(TRANSACTION_GIVE_UP_TOPIC)
    assert given_up.properties["TRANSACTION_CHECK_TIMES"] == "15"
    assert (given_up.body, given_up.flag) == (b"hello", 7)
    await producer.end(sent, COMMIT, code=1)
    assert await producer.visible() == []


async def test_a_message_nobody_decides_on_is_given_up_when_it_is_too_old(broker, producer, clock):
    await producer.send()
    clock.jump(72 * 3_600)
    await clock.advance(ROUND)
    assert [message.body for message in queue(broker, TRANSACTION_GIVE_UP_TOPIC)] == [b"hello"]


async def test_the_number_of_checks_and_their_times_can_be_configured(config, clock, transactions_of):
    config = replace(config, transaction_check_max=2, transaction_check_interval_ms=5_000, transaction_timeout_ms=1_000)
    async with Broker(config, clock) as broker:
        producer = await transactions_of(broker)
        await producer.send()
        await clock.advance(15)
        assert producer.checked.asked.qsize() == 2
        assert broker.store.max_offset(TRANSACTION_GIVE_UP_TOPIC, 0) == 1


async def test_without_a_member_of_the_group_a_message_waits_and_no_check_counts(broker, transactions_of, clock):
    producer = await transactions_of(broker, member=False)
    await producer.send()
    await producer.rounds(16, member=False)
    assert broker.store.max_offset(HALF_TOPIC, 0) == 1
    await producer.caller.beat("other", producer="another group")
    await producer.caller.beat("producer", producer="p")
    await clock.advance(ROUND)
    header, _ = await producer.checked.next()
    await producer.answer(header, COMMIT)
    assert await producer.visible() == [b"hello"]


async def test_unless_configured_the_rounds_are_a_minute_apart(config, clock, transactions_of):
    async with Broker(BrokerConfig(config.data, port=0, store=config.store), clock) as broker:
        producer = await transactions_of(broker)
        await producer.send()
        await clock.advance(59.5)
        assert producer.checked.asked.empty()
        await clock.advance(0.5)
        await producer.checked.next()


async def test_any_member_of_the_group_may_be_asked(broker, transactions_of, clock):
    producers = [await transactions_of(broker) for _ in range(2)]
    for _ in range(10):
        await producers[0].send()
    await clock.advance(ROUND)
    for producer in producers:
        for _ in range(5):
            header, _ = await producer.checked.next()
            await producer.answer(header, COMMIT)
    assert len(await producers[0].visible()) == 10


async def test_a_round_of_many_leaves_others_their_turn(producer, clock):
    for number in range(230):
        await producer.send(b"%d" % number)
    await clock.advance(ROUND)
    await clock.advance(0)
    asked = [(await producer.checked.next())[1].body for _ in range(230)]
    assert asked == [b"%d" % number for number in range(230)]


async def test_a_damaged_half_message_does_not_keep_the_others_waiting(broker, producer, clock, caplog):
    text = "TRAN_MSG\x01true\x02PGROUP\x01p"
    broker.store.append(StoredMessage(HALF_TOPIC, b"damaged", text, born_ms=clock.now_ms()))
    await producer.send()
    await clock.advance(ROUND)
    assert (await producer.checked.next())[1].body == b"hello"
    assert "cannot be checked" in caplog.text


async def test_messages_without_a_unique_key_are_kept_apart(producer, clock):
    for _ in range(3):
        await producer.send(unique=False)
    await clock.advance(ROUND)
    for _ in range(3):
        header, _ = await producer.checked.next()
        await producer.answer(header, COMMIT)
    assert len(await producer.visible()) == 3


def damage(broker, at):
    """Flip a bit in the body, "first", of the message that begins there in the log."""
    segment = broker.store.log_tail.files.segments[0]
    segment.memory[bytes(segment.memory).index(b"first", at)] ^= 1


def log_offset(sent):
    return int(sent.message_id[-16:], 16)


def complaints(caplog):
    return [record.getMessage() for record in caplog.records if "half message at" in record.getMessage()]


async def test_a_message_that_was_damaged_meanwhile_costs_the_others_nothing(broker, producer, clock):
    sent = [await producer.send(body) for body in (b"first", b"second")]
    assert broker.half_messages.undecided() == [0, 1]
    damage(broker, log_offset(sent[0]))
    await producer.rounds(1)
    header, message = await producer.checked.next()
    assert message.body == b"second"
    await producer.answer(header, COMMIT)
    assert await producer.visible() == [b"second"]


async def test_a_message_that_was_damaged_meanwhile_is_settled_and_named_once(broker, producer, caplog):
    await producer.send(b"before")
    sent = await producer.send(b"first")
    broker.half_messages.settle(broker.half_messages.at(broker.half_messages.undecided()[0]))
    damage(broker, log_offset(sent))
    await producer.rounds(3)
    assert broker.half_messages.undecided() == []
    [complaint] = complaints(caplog)
    assert f"the half message at log offset {log_offset(sent)}, of group p, is lost: " in complaint
    assert numbers_done(broker) == [0, 1]
    broker.half_messages.note_progress(closed=True)
    assert broker.half_messages.log_needed_from == broker.store.max_log_offset


async def test_a_damaged_message_nobody_asks_about_is_settled_when_it_is_too_old(
    broker, transactions_of, clock, caplog
):
    producer = await transactions_of(broker, member=False)
    sent = await producer.send(b"first")
    assert broker.half_messages.undecided() == [0]
    damage(broker, log_offset(sent))
    clock.jump(72 * 3_600)
    await clock.advance(2 * ROUND)
    assert broker.half_messages.undecided() == []
    assert broker.store.max_offset(TRANSACTION_GIVE_UP_TOPIC, 0) == 0
    [complaint] = complaints(caplog)
    assert "is lost: " in complaint


@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
@pytest.mark.parametrize("rounds", [0, 1])
async def test_who_decides_on_a_damaged_message_is_told_of_the_damage(broker, producer, decision, rounds):
    sent = await producer.send(b"first")
    assert broker.half_messages.undecided() == [0]
    damage(broker, log_offset(sent))
    await producer.rounds(rounds)
    response = await producer.end(sent, decision, code=ResponseCode.SERVICE_NOT_AVAILABLE)
    assert f"byte {log_offset(sent)}: the record is damaged" in response.remark
    assert await producer.visible() == []


@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
async def test_who_decides_on_a_message_whose_latest_copy_was_damaged_is_told_it_is_over(broker, producer, decision):
    sent = await producer.send(b"first")
    await producer.rounds(1)
    header, _ = await producer.checked.next()
    damage(broker, header.log_offset)
    await producer.rounds(1)
    assert broker.half_messages.undecided() == []
    response = await producer.end(sent, decision, code=1)
    assert (
        response.remark
        == f"the half message at log offset {log_offset(sent)} is decided already, was given up, or is lost"
    )
    assert await producer.visible() == []


async def test_a_producer_that_does_not_read_is_asked_no_more(broker, producer, transactions_of, clock):
    """What it was asked waits in the broker, and that is at most a mebibyte and one message."""
    count, body = 60, bytes(250_000)  # more than the system keeps of a connection
    for _ in range(count):
        await producer.send(body)
    producer.caller.channel._connection._transport.pause_reading()
    await clock.advance(ROUND)
    (member,) = broker.connections.producers("p")
    await _in_time(clock, lambda: not member.session.takes_pushes)
    assert member.session.unsent_bytes < 2 << 20
    other = await transactions_of(broker)  # whose turn comes as before
    asked = broker.half_messages.undecided()
    await clock.advance(ROUND)
    await _in_time(clock, lambda: other.checked.asked.qsize() >= 3)
    assert len(broker.half_messages.undecided()) == count == len(asked)
    assert member.session.unsent_bytes < 2 << 20


async def test_a_producer_that_reads_is_asked_about_everything_in_one_round(producer, clock):
    for _ in range(10):
        await producer.send(bytes(500_000))
    await clock.advance(ROUND)
    await _in_time(clock, lambda: producer.checked.asked.qsize() == 10)


async def _in_time(clock, condition):
    """Let time pass within a round until that is so."""
    while not condition():
        await clock.advance(READING_PAUSE)
        await asyncio.sleep(0)
