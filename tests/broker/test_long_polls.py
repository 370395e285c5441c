"""Parked pulls: who is woken, when they answer, what ends their patience."""

from concurrent.futures import Future

import pytest

from pyromq.broker import long_polls
from pyromq.broker.long_polls import LongPoll, LongPolls
from pyromq.errors import SystemBusy, TopicNotFound
from pyromq.message import StoredMessage
from pyromq.remoting.command import Reply


class HandClock:
    def __init__(self):
        self.seconds = 0.0

    def now_ms(self):
        return int(self.seconds * 1000)

    def monotonic(self):
        return self.seconds

    async def sleep(self, seconds):
        raise AssertionError("nothing here sleeps")


@pytest.fixture
def clock():
    return HandClock()


@pytest.fixture
def polls(clock):
    return LongPolls(clock)


def arrive(polls, tags_code):
    polls.arrived(StoredMessage("t", b"x"), tags_code)


def poll(*, topic="t", queue_id=0, accepts=None, resume=None):
    return LongPoll(topic, queue_id, 0, accepts, resume or (lambda: Reply(remark="read again")), Future())


def test_an_arrival_answers_the_polls_of_its_queue_only(polls):
    mine, other = polls.park(poll(), 15), polls.park(poll(queue_id=1), 15)
    arrive(polls, 0)
    assert mine.result(0).remark == "read again"
    assert not other.done()
    assert len(polls) == 1


def test_only_a_wanted_tag_wakes(polls):
    future = polls.park(poll(accepts={7}.__contains__), 15)
    arrive(polls, 8)
    assert not future.done()
    arrive(polls, 7)
    assert future.done()


def test_a_burst_is_answered_once_at_the_end_of_the_turn(polls):
    later = []
    polls.run_soon = later.append
    future = polls.park(poll(), 15)
    for _ in range(3):
        arrive(polls, 0)
    assert not future.done()
    assert len(later) == 1
    later[0]()
    assert future.done()


def test_patience_ends_at_the_deadline(polls, clock):
    short, long = polls.park(poll(), 1.0), polls.park(poll(), 2.0)
    clock.seconds = 1.0
    polls.expire()
    assert short.done()
    assert not long.done()


def test_what_resuming_raises_becomes_the_answer(polls):
    def gone():
        raise TopicNotFound("topic[t] not exist")

    future = polls.park(poll(resume=gone), 15)
    arrive(polls, 0)
    assert isinstance(future.exception(0), TopicNotFound)


def test_stopping_answers_everyone(polls):
    futures = [polls.park(poll(queue_id=n), 15) for n in range(3)]
    polls.answer_all()
    assert all(future.done() for future in futures)
    assert len(polls) == 0


def test_too_many_waiting_pulls_are_told_to_come_back(polls, monkeypatch):
    monkeypatch.setattr(long_polls, "MAX_PARKED", 2)
    polls.park(poll(), 15)
    polls.park(poll(), 15)
    with pytest.raises(SystemBusy, match="OVERLOAD"):
        polls.park(poll(), 15)
