"""Queue locks: who gets them, who keeps them, when they may be taken over."""

import pytest

from pyromq.broker.queue_locks import QueueLocks
from pyromq.message import MessageQueue
from pyromq.testing import FakeClock

FIRST, SECOND = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-a", 1)


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def locks(clock):
    return QueueLocks(clock)


def test_a_free_queue_is_granted_and_then_refused_to_others(locks):
    assert locks.lock("g", "me", [FIRST, SECOND]) == [FIRST, SECOND]
    assert locks.lock("g", "you", [FIRST]) == []
    assert locks.lock("g", "me", [FIRST]) == [FIRST]


def test_groups_do_not_disturb_each_other(locks):
    locks.lock("g", "me", [FIRST])
    assert locks.lock("other", "you", [FIRST]) == [FIRST]


async def test_a_silent_owner_loses_its_lock_after_more_than_a_minute(locks, clock):
    locks.lock("g", "me", [FIRST])
    await clock.advance(60)
    assert locks.lock("g", "you", [FIRST]) == []
    await clock.advance(0.001)
    assert locks.lock("g", "you", [FIRST]) == [FIRST]


async def test_asking_again_keeps_the_lock(locks, clock):
    locks.lock("g", "me", [FIRST])
    await clock.advance(50)
    locks.lock("g", "me", [FIRST])
    await clock.advance(50)
    assert locks.lock("g", "you", [FIRST]) == []


def test_only_the_owner_unlocks(locks):
    locks.lock("g", "me", [FIRST])
    locks.unlock("g", "you", [FIRST])
    assert locks.lock("g", "you", [FIRST]) == []
    locks.unlock("g", "me", [FIRST, SECOND])
    assert locks.lock("g", "you", [FIRST]) == [FIRST]
