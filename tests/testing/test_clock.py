"""The clock that tests move: sleepers wake at their moments, in order, and nothing else passes."""

import asyncio

import pytest
from tests.waiting import PATIENCE_SECONDS

from pyromq.testing import FakeClock


@pytest.fixture
def clock():
    return FakeClock(now_ms=1_000_000)


@pytest.fixture
async def sleepers(clock):
    """Start tasks that note the clock's seconds each time they wake: `sleepers(name, *seconds)`."""
    begin = clock.monotonic()
    woken = []
    tasks = []

    async def sleep(name, *seconds):
        for each in seconds:
            await clock.sleep(each)
            woken.append((name, clock.monotonic() - begin))

    def start(name, *seconds):
        tasks.append(asyncio.ensure_future(sleep(name, *seconds)))
        return woken

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_time_passes_only_when_told(clock):
    assert (clock.now_ms(), clock.now_ms()) == (1_000_000, 1_000_000)
    begin = clock.monotonic()
    await clock.advance(1.5)
    assert clock.now_ms() == 1_001_500
    assert clock.monotonic() == begin + 1.5


async def test_sleepers_wake_at_their_moments_in_order(clock, sleepers):
    sleepers("late", 5)
    woken = sleepers("early", 2, 2)
    await clock.advance(0)
    await clock.advance(4.5)
    assert woken == [("early", 2), ("early", 4)]
    await clock.advance(0.5)
    assert woken[2:] == [("late", 5)]


async def test_those_of_one_moment_wake_in_the_order_they_lay_down(clock, sleepers):
    for name in "abc":
        woken = sleepers(name, 1)
    await clock.advance(0)
    await clock.advance(1)
    assert [name for name, _ in woken] == ["a", "b", "c"]


async def test_who_lies_down_meanwhile_is_woken_too(clock, sleepers):
    woken = sleepers("often", *[1] * 10)
    await clock.advance(0)
    await clock.advance(10)
    assert woken == [("often", number) for number in range(1, 11)]


async def test_a_task_that_was_just_started_sleeps_from_the_time_before(clock, sleepers):
    woken = sleepers("new", 1)
    await clock.advance(1)
    assert woken == [("new", 1)]


async def test_no_time_is_a_turn_of_the_loop(clock):
    for seconds in (0, -1):
        await asyncio.wait_for(clock.sleep(seconds), PATIENCE_SECONDS)


async def test_who_is_cancelled_is_not_woken(clock, sleepers):
    woken = sleepers("other", 2)
    cancelled = asyncio.ensure_future(clock.sleep(1))
    await clock.advance(0)
    cancelled.cancel()
    await clock.advance(3)
    assert cancelled.cancelled()
    assert woken == [("other", 2)]


async def test_an_operators_jump_moves_the_wall_clock_only(clock, sleepers):
    woken = sleepers("sleeper", 60)
    await clock.advance(0)
    begin = clock.monotonic()
    clock.jump(-3_600)
    assert clock.now_ms() == 1_000_000 - 3_600_000
    assert clock.monotonic() == begin
    await clock.advance(1)
    assert woken == []
    assert clock.now_ms() == 1_001_000 - 3_600_000
