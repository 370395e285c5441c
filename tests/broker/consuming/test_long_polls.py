"""Parked pulls: who is woken, when they answer, what ends their patience."""

import time
import weakref
from concurrent.futures import Future

import pytest
from tests.filter.wanting import Wanted

from pyromq.broker.consuming import long_polls
from pyromq.broker.consuming.long_polls import LongPoll, LongPolls
from pyromq.errors import SystemBusy, TopicNotFound
from pyromq.filter.tags import EVERYTHING
from pyromq.message import StoredMessage
from pyromq.remoting.command import Reply
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.exchange import Exchange


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
    return LongPolls(clock, {0: memoryview(b"old"), 100: memoryview(b"new")}.get)


def arrive(polls, tags_code, log_offset=0):
    polls.arrived(StoredMessage("t", b"x", log_offset=log_offset), tags_code)


def connection():
    return Exchange(Dispatcher(), HandClock(), address=("127.0.0.1", 1), wake=lambda: None, run_soon=lambda *_: None)


def poll(*, topic="t", queue_id=0, wanted=EVERYTHING, resume=None, peer=None):
    resume = resume or (lambda: Reply(remark="read again"))
    return LongPoll(topic, queue_id, wanted, resume, Future(), peer or connection())


def test_an_arrival_answers_the_polls_of_its_queue_only(polls):
    mine, other = polls.park(poll(), 15), polls.park(poll(queue_id=1), 15)
    arrive(polls, 0)
    assert mine.result(0).remark == "read again"
    assert not other.done()
    assert len(polls) == 1


def test_only_a_wanted_tag_wakes(polls):
    future = polls.park(poll(wanted=Wanted({7}.__contains__)), 15)
    arrive(polls, 8)
    assert not future.done()
    arrive(polls, 7)
    assert future.done()


def test_a_burst_is_answered_once_at_the_end_of_the_turn(clock):
    later = []
    polls = LongPolls(clock, {}.get, later.append)
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


def test_who_asks_for_more_patience_than_a_silent_connection_has_gets_less(polls, clock):
    future = polls.park(poll(), 300 * 365 * 86_400.0)
    clock.seconds = long_polls.LONGEST_SECONDS + 1
    polls.expire()
    assert future.done()


def test_those_that_end_together_are_answered_in_slices(clock):
    turns = []
    polls = LongPolls(clock, {}.get, turns.append)
    futures = [polls.park(poll(), 1.0) for _ in range(long_polls.SLICE + 1)]
    clock.seconds = 2.0
    polls.expire()
    turns.pop()()
    assert sum(future.done() for future in futures) == long_polls.SLICE
    turns.pop()()
    assert all(future.done() for future in futures)
    assert not turns


def test_those_that_wake_together_are_answered_in_slices(clock):
    turns = []
    polls = LongPolls(clock, {}.get, turns.append)
    futures = [polls.park(poll(), 15) for _ in range(long_polls.SLICE + 1)]
    arrive(polls, 0)
    turns.pop()()
    assert sum(future.done() for future in futures) == long_polls.SLICE
    turns.pop()()
    assert all(future.done() for future in futures)
    assert not turns


@pytest.mark.parametrize("end", ["arrival", "deadline", "close"])
def test_many_leave_one_queue_in_a_time_that_grows_with_their_number_only(polls, clock, end):
    peer = connection()
    for _ in range(20_000):
        polls.park(poll(peer=peer), 1.0)
    clock.seconds = 2.0
    began = time.process_time()
    if end == "arrival":
        arrive(polls, 0)
    elif end == "close":
        peer.close("gone")
    polls.expire()
    assert len(polls) == 0
    assert time.process_time() - began < 1.5  # each compared with each other: 4 s and more


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


@pytest.mark.parametrize("end", ["arrival", "deadline", "close"])
def test_who_is_answered_or_gone_leaves_at_once_and_counts_no_more(polls, clock, monkeypatch, end):
    monkeypatch.setattr(long_polls, "MAX_PARKED", 2)
    polls.park(poll(queue_id=1), 60)  # waits longest: whoever comes after it once stayed as long
    for _ in range(3):
        peer = connection()
        leaving = poll(peer=peer)
        polls.park(leaving, 1.0)
        if end == "arrival":
            arrive(polls, 0)
        elif end == "deadline":
            clock.seconds += 2
            polls.expire()
        else:
            peer.close("gone")
        resume = weakref.ref(leaving.resume)
        del leaving
        assert resume() is None
    assert len(polls) == 1


def test_who_is_gone_before_its_turn_is_not_answered(clock):
    later = []
    polls = LongPolls(clock, {}.get, later.append)
    peer = connection()
    future = polls.park(poll(peer=peer), 15)
    arrive(polls, 0)
    peer.close("gone")
    later[0]()
    assert not future.done()


def test_a_subscription_of_many_is_asked_once_about_an_arrival(polls):
    asked = []
    wanted = Wanted(asked.append)
    for _ in range(3):
        polls.park(poll(wanted=wanted), 15)
    arrive(polls, 7)
    assert asked == [7]


def test_an_arrival_wakes_those_who_want_its_record(polls):
    old = polls.park(poll(wanted=Wanted(accepts_record=lambda record: record == b"old")), 15)
    new = polls.park(poll(wanted=Wanted(accepts_record=lambda record: record == b"new")), 15)
    arrive(polls, 7, log_offset=100)
    assert (old.done(), new.done()) == (False, True)


def test_a_record_is_not_looked_at_where_its_code_is_not_wanted(polls):
    asked = []
    polls.park(poll(wanted=Wanted({7}.__contains__, asked.append)), 15)
    arrive(polls, 8)
    assert asked == []
