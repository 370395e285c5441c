"""How fast a consumer says it is."""

import asyncio

from pyromq.client.consumer.consumer_status import ConsumptionRates, stacks
from pyromq.testing.fake_clock import FakeClock


def work(tally):
    """600 messages in ten pulls of 20 ms each; listeners take 5 ms a call, and three messages fail."""
    for _ in range(10):
        tally.pull(60, 0.02)
    tally.calls += 60
    tally.call_seconds += 0.3
    tally.consumed += 597
    tally.failed += 3


async def test_rates_are_those_of_the_last_minute():
    clock = FakeClock()
    rates = ConsumptionRates(clock)
    work(rates.tally("orders"))
    for _ in range(3):
        await clock.advance(10)
        rates.sample()

    found = rates.of("orders")

    assert (round(found.pull_rt), round(found.pull_tps), round(found.consume_rt)) == (20, 20, 5)
    assert (round(found.consume_ok_tps, 1), found.consume_failed_tps, found.consume_failed_count) == (19.9, 0.1, 3)


async def test_after_a_quiet_minute_only_the_hour_is_left():
    clock = FakeClock()
    rates = ConsumptionRates(clock)
    work(rates.tally("orders"))
    for _ in range(7):
        await clock.advance(10)
        rates.sample()

    found = rates.of("orders")

    assert (found.pull_rt, found.pull_tps, found.consume_ok_tps, found.consume_failed_tps) == (0, 0, 0, 0)
    assert (round(found.consume_rt), found.consume_failed_count) == (5, 3)


async def test_a_first_pull_is_no_burst():
    rates = ConsumptionRates(FakeClock())
    rates.tally("orders").pull(32, 0.001)

    assert rates.of("orders").pull_tps == 3.2
    assert rates.of("others").pull_tps == 0


async def test_stacks_name_threads_and_tasks_and_where_they_stand():
    waiting = asyncio.create_task(asyncio.Event().wait(), name="somebody who waits")
    await asyncio.sleep(0)
    text = stacks()
    waiting.cancel()

    assert "MainThread" in text
    assert any("somebody who waits" in line and "locks.py" in line for line in text.splitlines())
