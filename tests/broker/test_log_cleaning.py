"""Old messages go while a broker runs, but nothing that waits to be delivered or decided."""

import asyncio
from dataclasses import replace

import pytest
from tests.broker.headers import send_header
from tests.waiting import PATIENCE_SECONDS

from pyromq.broker.broker import Broker
from pyromq.errors import ResponseCode
from pyromq.remoting.headers import (
    CleanQueues,
    DeleteExpiredLog,
    DeleteExpiredLogResponse,
    DeleteTopic,
    MinOffset,
    OffsetResponse,
)
from pyromq.store.retention import DiskUse

SEGMENT = 1 << 16


@pytest.fixture
def config(config):
    # A delay of four days: longer than messages are kept.
    delays = (1_000, 4 * 86_400_000)
    return replace(config, store=replace(config.store, segment_bytes=SEGMENT, delay_levels_ms=delays))


def fill_disk(broker, percent):
    broker.store.retention.measure = lambda path: DiskUse(path, percent << 20, (100 - percent) << 20)


async def fill_log(caller, segments=4):
    for _ in range(segments):
        for _ in range(3):
            await caller.send("bulk", bytes(20_000))


async def pass_days(clock, broker, days):
    """Let days pass, the last one by the hour, with all of it on disk and all progress saved.

    As on a machine that sleeps in between: the wall clock jumps, or every tick of so many days would be played.
    """
    asyncio.get_running_loop().set_debug(False)  # which costs more than all the rest
    for hours in [24] * (days - 1) + [1] * 24:
        clock.jump(3600 * hours)
        await clock.advance(11)
        broker.store.wait_flushed(broker.store.max_log_offset).result(PATIENCE_SECONDS)
        await broker.saved()


@pytest.fixture
async def running(broker, caller):
    await caller.create_topic("orders")
    await caller.create_topic("bulk", queues=1)
    return broker, caller


async def test_messages_of_last_week_are_gone(running, clock, caller_to):
    broker, caller = running
    await fill_log(caller)
    await pass_days(clock, broker, 7)
    assert broker.store.min_log_offset == 4 * SEGMENT - SEGMENT
    again = await caller_to(broker)  # the first one was silent for too long
    answer = await again.ask(MinOffset(topic="bulk", queue_id=0))
    assert answer.header(OffsetResponse).offset > 0


async def delay_past_deletion(caller, broker, clock):
    """Deliver a delayed message to topic `orders`, which is deleted meanwhile."""
    await caller.send("orders", b"late", properties="DELAY\x011")
    await caller.ask(DeleteTopic(topic="orders"))
    await clock.advance(1.5)
    assert broker.store.max_offset("orders", 0) == 1


async def test_queues_of_deleted_topics_go_with_their_last_messages(running, clock):
    broker, caller = running
    await delay_past_deletion(caller, broker, clock)
    await fill_log(caller)
    broker.statistics.sample()
    await pass_days(clock, broker, 1)
    assert "orders" in broker.store.topics()
    await pass_days(clock, broker, 6)
    assert "orders" not in broker.store.topics()
    assert broker.statistics.puts_of("orders") is None
    assert not list((broker.config.data / "consumequeue").glob("orders/*"))


async def test_a_topic_without_messages_keeps_its_offsets(running, clock):
    broker, caller = running
    await caller.send("orders", b"old")
    await fill_log(caller)
    await pass_days(clock, broker, 7)
    assert broker.store.expired_ends()["orders"] == {0: 1}


@pytest.mark.parametrize(
    ("properties", "days"),
    [("DELAY\x012", 4), ("TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x010123456789", None)],
    ids=["delay level", "half message"],
)
async def test_what_waits_stays_and_holds_its_log_file(running, clock, properties, days):
    broker, caller = running
    await caller.send("orders", b"waits", properties=properties)
    await fill_log(caller)
    fill_disk(broker, 89)
    await pass_days(clock, broker, 1)
    if days:
        assert broker.store.min_log_offset == 0
        await pass_days(clock, broker, days)
        assert broker.store.max_offset("orders", 0) == 1
    else:  # the check has written it again, behind the others
        assert broker.half_messages.undecided() or broker.store.max_offset("TRANS_CHECK_MAX_TIME_TOPIC", 0)
    fill_disk(broker, 89)
    await pass_days(clock, broker, 1)
    assert broker.store.min_log_offset >= 3 * SEGMENT


async def test_a_half_message_that_nobody_is_asked_about_holds_its_log_file(config, clock, caller_to):
    config = replace(config, transaction_check_interval_ms=86_400_000)
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await caller.create_topic("orders")
        await caller.create_topic("bulk", queues=1)
        properties = "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x010123456789"
        await caller.send("orders", b"half", properties=properties)
        await fill_log(caller)
        fill_disk(broker, 95)
        clock.jump(3600)
        await clock.advance(11)
        assert broker.store.min_log_offset == 0
        assert len(broker.half_messages.undecided()) == 1


async def test_a_message_with_a_time_of_delivery_outlives_its_log_file(running, clock):
    broker, caller = running
    await caller.send("orders", b"later", properties=f"TIMER_DELAY_SEC\x01{10 * 86_400}")
    await fill_log(caller)
    fill_disk(broker, 89)
    await pass_days(clock, broker, 1)
    assert broker.store.min_log_offset == 3 * SEGMENT
    await pass_days(clock, broker, 10)
    assert broker.store.max_offset("orders", 0) == 1


async def test_a_full_disk_refuses_sends_and_takes_them_again_by_itself(running, clock):
    broker, caller = running
    await caller.send("orders")
    fill_disk(broker, 91)
    await clock.advance(1)
    refused = await caller_send_code(caller, ResponseCode.SERVICE_NOT_AVAILABLE)
    assert f"the disk of {broker.config.data}" in refused and "91 % full" in refused
    fill_disk(broker, 90)
    await clock.advance(1)
    await caller.send("orders")


async def caller_send_code(caller, code):
    return (await caller.ask(send_header(), b"x", code=code)).remark


async def test_what_is_due_on_a_full_disk_is_delivered_when_there_is_room(running, clock):
    broker, caller = running
    await caller.send("orders", properties="DELAY\x011")
    await caller.send("orders", properties="TIMER_DELAY_SEC\x012")
    fill_disk(broker, 91)
    await clock.advance(60)
    assert broker.store.max_offset("orders", 0) == 0
    fill_disk(broker, 50)
    await clock.advance(10)
    assert broker.store.max_offset("orders", 0) == 2


async def test_by_hand_an_age_may_be_given(running, clock):
    broker, caller = running
    await fill_log(caller)
    clock.jump(7200)
    answer = (await caller.ask(DeleteExpiredLog())).header(DeleteExpiredLogResponse)
    assert answer.files == 0
    answer = (await caller.ask(DeleteExpiredLog(older_than_hours=1))).header(DeleteExpiredLogResponse)
    assert answer.files == 3
    await caller.ask(CleanQueues())
    assert broker.store.min_log_offset == 3 * SEGMENT
    await caller.ask(DeleteExpiredLog(older_than_hours=-1), code=ResponseCode.SYSTEM_ERROR)


async def test_a_broker_starts_where_it_cannot_save_its_tables(config, clock, caller_to, caplog):
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await caller.create_topic("orders")
        await caller.send("orders", b"hello")
    (config.data / "config" / "topics.json.tmp").mkdir()  # as on a full disk: writing fails
    async with Broker(config, clock) as broker:
        assert broker.store.max_offset("orders", 0) == 1
        assert "topics.json" in caplog.text and "no data is lost" in caplog.text
