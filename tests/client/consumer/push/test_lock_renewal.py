"""Locks kept by asking again: what an answer is worth when the connection breaks, or breaks again, meanwhile."""

import asyncio
import math

import pytest

from pyromq.client.consumer.push.process_queue import ProcessQueue
from pyromq.client.consumer.push.push_assignment import GRACE_SECONDS, VALID_SECONDS, LockRenewal
from pyromq.message import MessageQueue
from pyromq.testing import FakeClock

QUEUE = MessageQueue("orders", "broker-a", 0)


class Answers:
    """In place of brokers: requests that are answered when a test says so."""

    def __init__(self):
        self.asked = []
        self.timeouts = []
        self.master = "10.0.0.1:10911"

    def address(self, queue):
        return self.master

    async def lock(self, queues, *, timeout=1.0):
        self.asked.append(asyncio.get_running_loop().create_future())
        self.timeouts.append(timeout)
        return {queue: held for held in [await self.asked[-1]] for queue in queues}


class Scene:
    def __init__(self):
        self.clock = FakeClock()
        self.answers = Answers()
        self.assigned = ProcessQueue(QUEUE, 0, self.clock.monotonic)
        self.assigned.allowed_until = self.clock.monotonic() + 1.0
        self.lost = []
        self.renewal = LockRenewal(
            self.answers, {QUEUE: self.assigned}, self.clock, go_on=lambda assigned: None, lose=self.lost.append
        )

    @property
    def is_allowed(self):
        return self.assigned.allowed_until > self.clock.monotonic()


async def started(work):
    task = asyncio.create_task(work)
    await asyncio.sleep(0)
    return task


async def test_an_answer_makes_the_lock_valid_for_longer():
    scene = Scene()
    task = await started(scene.renewal.renew())
    scene.answers.asked[0].set_result(True)
    await task
    assert scene.assigned.allowed_until == scene.clock.monotonic() + VALID_SECONDS


async def test_where_no_lock_is_needed_no_answer_ends_the_consumption():
    scene = Scene()
    scene.assigned.allowed_until = math.inf  # of a concurrent consumer
    task = await started(scene.renewal.renew())
    scene.answers.asked[0].set_result(True)
    await task
    await scene.clock.advance(2 * VALID_SECONDS)
    assert scene.is_allowed


async def test_a_lock_belongs_to_the_master_that_granted_it_last():
    scene = Scene()
    scene.answers.master = "10.0.0.2:10911"
    again = await started(scene.renewal.lock_again([scene.assigned]))
    scene.answers.asked[0].set_result(True)
    await again
    assert scene.assigned.lock_address == "10.0.0.2:10911"


async def test_a_renewal_from_before_the_break_counts_for_nothing():
    scene = Scene()
    renewal = await started(scene.renewal.renew())
    again = await started(scene.renewal.lock_again([scene.assigned]))
    scene.answers.asked[0].set_result(True)  # tied to the connection that is gone
    await renewal
    assert not scene.is_allowed
    scene.answers.asked[1].set_result(True)
    await again
    assert scene.is_allowed


async def test_of_two_breaks_the_answer_after_the_second_counts():
    scene = Scene()
    first = await started(scene.renewal.lock_again([scene.assigned]))
    second = await started(scene.renewal.lock_again([scene.assigned]))
    scene.answers.asked[0].set_result(True)
    await first
    assert not scene.is_allowed
    assert not scene.lost
    scene.answers.asked[1].set_result(False)
    await second
    assert scene.lost == [scene.assigned]


async def test_a_broker_that_is_silent_is_not_waited_for_longer_than_it_keeps_the_lock():
    scene = Scene()
    again = await started(scene.renewal.lock_again([scene.assigned]))
    assert scene.answers.timeouts == [pytest.approx(GRACE_SECONDS)]
    await scene.clock.advance(GRACE_SECONDS + 0.01)
    scene.answers.asked[0].set_result(True)
    await again
    assert scene.lost == [scene.assigned]
