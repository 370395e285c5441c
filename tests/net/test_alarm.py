"""The alarm: runs its action when the time has come, earlier where somebody says so, and again after a failure."""

import asyncio

import pytest

from pyromq.errors import StoreNotWritable
from pyromq.net.tasks import Alarm
from pyromq.testing import FakeClock


class Action:
    """Notes when it ran; answers with the next of the given waits, with the last for ever."""

    def __init__(self, clock, *waits):
        self.clock, self.waits, self.ran = clock, list(waits), []

    def act(self):
        self.ran.append(self.clock.monotonic() - 1_000)
        wait = self.waits.pop(0) if len(self.waits) > 1 else self.waits[0]
        if isinstance(wait, Exception):
            raise wait
        return wait


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
async def start(clock):
    tasks = []

    async def begin(*waits, first_after=0.0):
        action = Action(clock, *waits)
        alarm = Alarm(clock)
        tasks.append(asyncio.create_task(alarm.run(action.act, first_after=first_after)))
        await clock.advance(0)
        return action, alarm

    yield begin
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_the_action_runs_at_once_and_then_when_it_wanted_to(start, clock):
    action, _ = await start(0.5, 0, 2, None)
    await clock.advance(10)
    assert action.ran == [0, 0.5, 0.5, 2.5]


async def test_the_first_time_may_be_later(start, clock):
    action, alarm = await start(2, first_after=5)
    assert alarm.seconds_left == 5
    await clock.advance(8)
    assert action.ran == [5, 7]


async def test_without_anything_to_do_it_waits_to_be_told(start, clock):
    action, alarm = await start(None)
    await clock.advance(10_000)
    assert action.ran == [0]
    alarm.schedule_within(3)
    await clock.advance(0)
    await clock.advance(3)
    assert action.ran == [0, 10_003]


async def test_it_can_be_made_to_ring_earlier_but_not_later(start, clock):
    action, alarm = await start(10, None)
    await clock.advance(1)
    alarm.schedule_within(1)
    alarm.schedule_within(20)
    await clock.advance(0)
    await clock.advance(30)
    assert action.ran == [0, 2]


@pytest.mark.parametrize("error", [StoreNotWritable("the disk is full"), ValueError("a mistake")])
async def test_a_failure_is_logged_and_the_action_runs_again(start, clock, error, caplog):
    action, _ = await start(error, None)
    assert str(error) in caplog.text
    await clock.advance(5)
    assert action.ran == [0, 1]
