"""Messages that wait for their time are cancelled, counted and listed."""

from dataclasses import replace

import pytest
from tests.broker.timers import DAY, cancel, timed

from pyromq.broker.broker import Broker
from pyromq.broker.delays import timer_processors as recalling
from pyromq.remoting.headers import (
    CountTimers,
    ListTimers,
    RecallMessageResponse,
)
from pyromq.remoting.recall_handle import RecallHandle, decode_handle
from pyromq.store.store_config import FlushMode

# -- cancelling


async def test_a_cancelled_message_never_comes(orders, clock):
    handle = (await timed(orders, clock, 5, key="K1")).recall_handle
    await timed(orders, clock, 5, b"other", key="K2")
    assert decode_handle(handle) == RecallHandle("orders", "broker-a", clock.now_ms() + 5000, "K1")
    answer = (await cancel(orders, handle)).header(RecallMessageResponse)
    assert answer.message_id == "K1"
    await clock.advance(10)
    assert await orders.bodies() == [b"other"]


async def test_all_copies_of_a_message_sent_repeatedly_are_cancelled(orders, clock):
    handles = {(await timed(orders, clock, 5, key="K1")).recall_handle for _ in range(3)}
    await cancel(orders, *handles)
    await clock.advance(10)
    assert await orders.bodies() == []


async def test_a_unique_key_with_spaces_is_cancelled_and_no_other(orders, clock):
    await timed(orders, clock, 5, b"a", key="a")
    both = await timed(orders, clock, 5, b"a b", key="a b")
    await cancel(orders, both.recall_handle)
    await clock.advance(5)
    assert await orders.bodies() == [b"a"]


async def test_one_without_a_unique_key_has_no_handle(orders, clock):
    assert (await timed(orders, clock, 5)).recall_handle is None


@pytest.mark.parametrize("seconds", [5, 10 * DAY])
async def test_what_was_cancelled_cannot_be_cancelled_again(orders, clock, seconds):
    handle = (await timed(orders, clock, seconds, key="K1")).recall_handle
    await cancel(orders, handle)
    assert "or cancelled before" in (await cancel(orders, handle, code=604)).remark


async def test_what_was_delivered_cannot_be_cancelled(orders, clock):
    handle = (await timed(orders, clock, 5, key="K1")).recall_handle
    await clock.advance(5)
    assert "was delivered" in (await cancel(orders, handle, code=604)).remark


async def test_cancels_of_others_are_refused(orders, clock):
    await orders.create_topic("foreign")
    due = clock.now_ms() + 5000
    await timed(orders, clock, 5, key="K1")
    known = RecallHandle("orders", "broker-a", due, "K1")
    for handle in (
        known._replace(unique_key="K2"),
        known._replace(due_ms=due + 1),
        known._replace(broker_name="other"),
        known._replace(due_ms=due + 31 * DAY * 1000),
        known._replace(topic="foreign"),
    ):
        await cancel(orders, handle.encode(), code=604)
    await cancel(orders, known.encode(), topic="foreign", code=604)
    await cancel(orders, known._replace(topic="foreign").encode(), topic="foreign", code=604)
    await cancel(orders, known.encode(), topic="unknown", code=17)
    for nonsense in ("", "%%%", "djE=", "b3JkZXJz", "é"):
        await cancel(orders, nonsense, code=604)
    await cancel(orders, known.encode())


@pytest.mark.parametrize(("settings", "code"), [({"recall": False}, 16), ({"permission": 4}, 14)])
async def test_brokers_that_do_not_cancel(orders, broker, clock, settings, code):
    handle = (await timed(orders, clock, 5, key="K1")).recall_handle
    for name, value in settings.items():
        setattr(broker.config, name, value)
    await cancel(orders, handle, code=code)


async def test_with_synchronous_flush_send_and_cancel_wait_for_the_disk(config, clock, caller_to):
    config = replace(config, store=replace(config.store, flush=FlushMode.SYNC))
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await caller.create_topic("orders")
        handle = (await timed(caller, clock, 5, key="K1")).recall_handle
        await cancel(caller, handle)
        assert broker.store.flushed_to == broker.store.max_log_offset


# -- counting and listing


async def test_counts_by_topic(orders, clock):
    await orders.create_topic("payments")
    for seconds in (1, 5, 5, 10 * DAY):
        await timed(orders, clock, seconds, key=f"K{seconds}")
    await orders.send("payments", properties="TIMER_DELAY_SEC\x011000")
    counts = (await orders.body(CountTimers())).counts
    assert {topic: each.count for topic, each in counts.items()} == {"orders": 4, "payments": 1}
    await clock.advance(5)
    counts = (await orders.body(CountTimers())).counts
    assert {topic: each.count for topic, each in counts.items()} == {"orders": 1, "payments": 1}


async def test_lists_page_by_page_in_order_of_delivery(orders, clock):
    await orders.create_topic("payments")
    now = clock.now_ms()
    seconds = [7, 3, 5 * DAY, 3, 5000, 9, 20 * DAY]
    for number, each in enumerate(seconds):
        await timed(orders, clock, each, b"body", key=f"K{number}", queue_id=number % 4)
    await orders.send("payments", properties="TIMER_DELAY_SEC\x014")
    found, place = [], (0, -1)
    while place[0] is not None:
        page = await orders.body(ListTimers(topic="orders", count=2, begin_ms=place[0], after=place[1]))
        assert len(page.timers) <= 2
        found += page.timers
        place = (page.next_ms, page.next_after)
    assert [each.message_id for each in found] == ["K1", "K3", "K0", "K5", "K4", "K2", "K6"]
    assert [each.due_ms for each in found] == [now + each * 1000 for each in sorted(seconds)]
    assert (found[1].queue_id, found[1].size, found[1].sent_ms) == (3, 4, now)
    await cancel(orders, found[-1].recall_handle)
    page = await orders.body(ListTimers(topic="orders", count=100, begin_ms=now + DAY * 1000))
    assert [each.message_id for each in page.timers] == ["K2"]


async def test_a_page_ends_when_enough_was_looked_through(orders, clock, monkeypatch):
    monkeypatch.setattr(recalling, "LOOKED_THROUGH", 2)
    await orders.create_topic("payments")
    for hours in range(1, 8):
        await orders.send("payments", properties=f"TIMER_DELAY_SEC\x01{hours * 3600}")
    await timed(orders, clock, 8 * 3600, key="K1")
    pages, place = [], (0, -1)
    while place[0] is not None:
        page = await orders.body(ListTimers(topic="orders", count=9, begin_ms=place[0], after=place[1]))
        pages.append([each.message_id for each in page.timers])
        place = (page.next_ms, page.next_after)
    assert pages == [[], [], [], ["K1"]]


async def test_nothing_waits_in_an_unknown_topic(orders):
    page = await orders.body(ListTimers(topic="unknown", count=10))
    assert (page.timers, page.next_ms) == ([], None)


async def test_an_id_may_be_the_last_property(orders, clock):
    due = clock.now_ms() + 60_000
    sent = await orders.send("orders", properties=f"TIMER_DELIVER_MS\x01{due}\x02UNIQ_KEY\x01{'A' * 31}B")
    assert (await cancel(orders, sent.recall_handle)).header(RecallMessageResponse).message_id == "A" * 31 + "B"
