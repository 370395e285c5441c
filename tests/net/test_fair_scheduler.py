"""Connections that are behind take turns, newcomers first every other time, and the loop goes on between."""

import asyncio

import pytest

from pyromq.net.connection import TURN_SECONDS, FairScheduler
from pyromq.testing import FakeClock


class Working:
    """Has so many pieces of work left, each of which takes a while."""

    def __init__(self, name, pieces, scheduler, *, clock, order, seconds=0.0):
        self.name, self.pieces, self.scheduler, self.clock = name, pieces, scheduler, clock
        self.order, self.seconds = order, seconds
        self.turns = 0

    def answer_pending(self, until):
        self.turns += 1
        while self.pieces and (self.clock.monotonic() < until or not self.seconds):
            self.pieces -= 1
            self.order.append(self.name)
            self.clock._move_to(self.clock.monotonic() + self.seconds)
            if not self.seconds:
                break
        if self.pieces:
            self.scheduler.add(self)


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def order():
    return []


@pytest.fixture
async def add(clock, order):
    """Put somebody with work into a scheduler: `add("a", 3)`."""
    scheduler = FairScheduler(clock)

    def put(name, pieces, seconds=0.0):
        scheduler.add(Working(name, pieces, scheduler, clock=clock, order=order, seconds=seconds))
        return scheduler

    return put


async def test_each_goes_on_in_turn_until_all_is_done(add, order):
    add("a", 3)
    scheduler = add("b", 2)
    assert not scheduler.is_empty and order == []
    await asyncio.sleep(0)
    assert scheduler.is_empty
    assert sorted(order) == ["a", "a", "a", "b", "b"]
    assert order[:2] in (["a", "b"], ["a", "a"])


async def test_the_loop_has_its_turn_when_a_turn_is_over(add, order, clock):
    scheduler = add("a", 100, TURN_SECONDS)
    for done in range(1, 6):
        await asyncio.sleep(0)
        assert len(order) == done
    assert not scheduler.is_empty


async def test_newcomers_have_every_other_slice(add, order):
    for number in range(50):
        add(f"old {number}", 1000, TURN_SECONDS / 2)
    for _ in range(100):
        await asyncio.sleep(0)
    order.clear()
    for number in range(3):
        add(f"new {number}", 1)
    for _ in range(4):
        await asyncio.sleep(0)
    kinds = [name.split()[0] for name in order]
    first = kinds.index("new")
    assert first <= 2
    assert kinds[first : first + 5] == ["new", "old", "new", "old", "new"]
