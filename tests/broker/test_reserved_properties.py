"""Reserved properties that a client sets itself: the broker reads a message alike before a crash and after it."""

from collections import Counter

import pytest
from tests.broker.folders import killed
from tests.broker.headers import send_header

from pyromq.broker.broker import Broker
from pyromq.errors import ResponseCode
from pyromq.message import RESERVED_PROPERTIES, SysFlag
from pyromq.remoting.headers import RecallMessage
from pyromq.slow_work import run_blocking
from pyromq.testing import FakeClock

WAITS = ("", "DELAY\x012", "TIMER_DELAY_SEC\x015", "TRAN_MSG\x01true\x02PGROUP\x01p")
NAMES = sorted(
    {*RESERVED_PROPERTIES, "TRANSACTION_CHECK_TIMES", "CHECK_IMMUNITY_TIME_IN_SECONDS", "INNER_NUM"} - {"WAIT"}
)
VALUES = ("1", "orders", "true", "orders+K1", "")


def texts(number):
    """Yield properties with a reserved one before and behind those that let a message wait."""
    for name in NAMES:
        for value in VALUES:
            own = f"{name}\x01{value}"
            for wait in WAITS:
                for pairs in ((own, wait), (wait, own)):
                    number += 1
                    yield "\x02".join([f"UNIQ_KEY\x01K{number}", *(pair for pair in pairs if pair), "a\x01b"])


async def outcome(broker, clock):
    """Return what waits in a broker, and all messages of the topic once everything is due."""
    run_blocking(broker.timers.index.catch_up())
    waiting = dict(broker.timers.index.pending), len(broker.half_messages.undecided())
    for _ in range(3):
        await clock.advance(2)
    count = broker.store.max_offset("orders", 0)
    entries = broker.store.entries("orders", 0, 0, count)
    return waiting, Counter(broker.store.message_at(entry.log_offset).body for entry in entries)


async def test_a_message_with_a_reserved_property_waits_alike_before_and_after_a_crash(config, clock, caller_to):
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await caller.create_topic("orders", queues=1)
        for number, text in enumerate(texts(0)):
            await caller.channel.call(send_header(text), b"%d" % number, timeout=30)
        left, later = killed(config), FakeClock(clock.now_ms())
        before = await outcome(broker, clock)
    async with Broker(left, later) as broker:
        after = await outcome(broker, later)
    assert before[1] and before[0][0]
    assert after == before


@pytest.mark.parametrize("seconds", [5, -5])
async def test_a_cancel_that_a_client_sends_is_refused(orders, clock, seconds):
    due = clock.now_ms() + 5_000
    await orders.send("orders", properties=f"UNIQ_KEY\x01K\x02TIMER_DELIVER_MS\x01{due}")
    text = f"UNIQ_KEY\x01K\x02TIMER_DEL_UNIQKEY\x01orders+K\x02TIMER_DELIVER_MS\x01{clock.now_ms() + seconds * 1000}"
    refusal = await orders.ask(send_header(text), b"0", code=ResponseCode.MESSAGE_ILLEGAL)
    assert "TIMER_DEL_UNIQKEY" in refusal.remark
    assert "recall handle" in refusal.remark


async def test_the_last_unique_key_with_a_value_names_a_message_after_a_crash(config, clock, caller_to):
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await caller.create_topic("orders")
        sent = await caller.send("orders", properties="a\x01b\x02UNIQ_KEY\x01K\x02UNIQ_KEY\x01\x02TIMER_DELAY_SEC\x015")
        left = killed(config)
    async with Broker(left, clock) as broker:
        await (await caller_to(broker)).ask(RecallMessage(topic="orders", recall_handle=sent.recall_handle))


async def test_a_message_that_looks_like_a_delivered_copy_delivers_nothing(config, clock, caller_to):
    """It has the properties of a waiting message and, marked as half, stays where it was sent."""
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await caller.create_topic("orders")
        text = "REAL_TOPIC\x01orders\x02REAL_QID\x010\x02DELAY\x012"
        await caller.ask(send_header(text), b"hello")
        await caller.ask(send_header(text, sys_flag=SysFlag.HALF), b"hello")
        left, later = killed(config), FakeClock(clock.now_ms())
    async with Broker(left, later) as broker:
        await later.advance(6)
        assert broker.store.max_offset("orders", 0) == 1


async def test_a_message_that_says_it_is_committed_decides_no_half_message(config, clock, caller_to):
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await caller.create_topic("orders")
        half = await caller.send("orders", properties="TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01K")
        assert int(half.message_id[-16:], 16) == 0  # as in the record of any message that was never half
        await caller.ask(send_header("TAGS\x01a", sys_flag=SysFlag.COMMIT), b"hello")
        left = killed(config)
    async with Broker(left, clock) as broker:
        assert len(broker.half_messages.undecided()) == 1
