"""Parked pulls: who is woken, when they answer, what ends their patience."""

import gc
import time
import weakref
from functools import partial

import pytest
from tests.filter.wanting import Wanted

from pyromq.broker.consuming import long_polls
from pyromq.broker.consuming.long_polls import LongPoll, LongPolls
from pyromq.errors import SystemBusy, TopicNotFound
from pyromq.filter.filter import EVERYTHING, parse_tags, tag_hash
from pyromq.message import StoredMessage
from pyromq.remoting.command import Reply
from pyromq.remoting.dispatch import Dispatcher, Later
from pyromq.remoting.remoting_session import RemotingSession


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
def ticking():
    """A clock on which every look takes half a slice."""
    clock = HandClock()

    def monotonic():
        clock.seconds += long_polls.SLICE_SECONDS / 2
        return clock.seconds

    clock.monotonic = monotonic
    return clock


@pytest.fixture
def polls(clock):
    return LongPolls(clock, {0: memoryview(b"old"), 100: memoryview(b"new")}.get)


def arrive(polls, tags_code, log_offset=0):
    polls.arrived(StoredMessage("t", b"x", log_offset=log_offset), tags_code)


def connection():
    return RemotingSession(
        Dispatcher(), HandClock(), address=("127.0.0.1", 1), wake=lambda: None, run_soon=lambda *_: None
    )


def poll(*, topic="t", queue_id=0, wanted=EVERYTHING, resume=None, peer=None):
    resume = resume or (lambda: Reply(remark="read again"))
    return LongPoll(topic, queue_id, wanted, resume, Later(), peer or connection())


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


def test_those_whose_patience_ends_together_are_answered_in_the_order_in_which_they_came(polls, clock):
    answered = []
    for number in range(20):
        polls.park(poll(queue_id=number % 3, resume=partial(answered.append, number)), 1.0)
    clock.seconds = 1.0
    polls.expire()
    assert answered == list(range(20))


def test_who_asks_for_more_patience_than_a_silent_connection_has_gets_less(polls, clock):
    future = polls.park(poll(), 300 * 365 * 86_400.0)
    clock.seconds = long_polls.LONGEST_SECONDS + 1
    polls.expire()
    assert future.done()


@pytest.mark.parametrize("end", ["arrival", "deadline", "stop waiting"])
def test_those_that_end_together_are_answered_in_slices(ticking, end):
    turns = []
    polls = LongPolls(ticking, {}.get, turns.append)
    peer = connection()
    futures = [polls.park(poll(peer=peer), 1.0) for _ in range(9)]
    if end == "arrival":
        arrive(polls, 0)
    elif end == "deadline":
        ticking.seconds += 2.0
        polls.expire()
    else:
        peer.close("gone")
    done = []
    while turns:
        turns.pop()()
        done.append(sum(future.done() for future in futures))
    assert len(done) >= 4  # a slice ends when its time is over, which here is after two or three
    assert done[-1] == (0 if end == "stop waiting" else 9)
    assert not polls.parked


@pytest.mark.parametrize("end", ["arrival", "deadline", "close"])
def test_many_leave_one_queue_in_a_time_that_grows_with_their_number_only(polls, clock, end):
    peer = connection()
    for _ in range(9_000):
        polls.park(poll(peer=peer), 1.0)
    clock.seconds = 2.0
    began = time.process_time()
    if end == "arrival":
        arrive(polls, 0)
    elif end == "close":
        peer.close("gone")
    polls.expire()
    assert len(polls) == 0
    assert time.process_time() - began < 0.75  # each compared with each other: 1 s and more


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


def test_a_connection_gets_its_share_of_what_is_free_and_the_next_one_finds_room(clock):
    polls = LongPolls(clock, {}.get, most=100)
    greedy = connection()
    for _ in range(10):
        polls.park(poll(peer=greedy), 15)
    with pytest.raises(SystemBusy, match=r"\]10 pulls of this connection wait.*raise maxWaitingPulls \(now 100\)"):
        polls.park(poll(peer=greedy), 15)
    for other in (connection() for _ in range(50)):
        polls.park(poll(peer=other), 15)
    polls.park(poll(peer=connection()), 15)


def test_a_connection_that_closes_gives_its_share_back(clock):
    polls = LongPolls(clock, {}.get, most=100)
    for _ in range(30):
        leaving = connection()
        for _ in range(10):
            polls.park(poll(peer=leaving), 15)
        leaving.close("gone")
    later = connection()
    for _ in range(10):
        polls.park(poll(peer=later), 15)


def test_however_many_wait_each_connection_may_have_one(clock):
    polls = LongPolls(clock, {}.get, most=1)
    for _ in range(3):
        polls.park(poll(peer=connection()), 15)
    assert len(polls) == 3


def test_who_wants_many_tags_counts_as_several(clock):
    polls = LongPolls(clock, {}.get, most=100)
    peer, wanted = connection(), parse_tags(" || ".join(map(str, range(40))))
    polls.park(poll(peer=peer, wanted=wanted), 15)
    with pytest.raises(SystemBusy):
        polls.park(poll(peer=peer, wanted=wanted), 15)


@pytest.mark.parametrize("end", ["arrival", "deadline", "close"])
def test_who_is_answered_or_gone_leaves_at_once_and_counts_no_more(clock, end):
    polls = LongPolls(clock, {}.get, most=2)
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


def test_of_many_subscriptions_by_tags_only_those_that_fit_are_looked_at(polls):
    futures = [polls.park(poll(wanted=parse_tags(f"{number} || other")), 15) for number in range(100)]
    waiting = polls.parked["t", 0]
    assert waiting.that_accept(tag_hash("7")) == [parse_tags("7 || other")]
    arrive(polls, tag_hash("7"))
    assert [number for number, future in enumerate(futures) if future.done()] == [7]
    arrive(polls, tag_hash("other"))
    assert all(future.done() for future in futures)
    assert not waiting.by_code


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


@pytest.mark.usefixtures("no_collector")
def test_a_refused_poll_leaves_nothing_for_the_collector(polls):
    def gone():
        raise TopicNotFound("topic[t] not exist")

    class Kept:
        def __call__(self):
            return gone()

    resume = Kept()
    alive = weakref.ref(resume)
    future = polls.park(poll(resume=resume), 15)
    arrive(polls, 0)
    assert isinstance(future.exception(), TopicNotFound)
    del resume, future
    assert alive() is None


@pytest.fixture
def no_collector():
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("end", ["expire", "arrive"])
def test_each_is_freed_when_it_is_answered(clock, end):
    """All in one go would hold everybody up."""

    class Resume:
        def __call__(self):
            kept.append(sum(each() is not None for each in resumes))
            return Reply()

    kept, resumes, turns, peer = [], [], [], connection()
    polls = LongPolls(clock, {}.get, turns.append)
    for _ in range(5):
        resume = Resume()
        resumes.append(weakref.ref(resume))
        polls.park(poll(resume=resume, peer=peer), seconds=1)
        del resume
    if end == "arrive":
        arrive(polls, 0)
    else:
        clock.seconds = 2.0
        polls.expire()
    while turns:
        turns.pop()()
    assert kept == [5, 4, 3, 2, 1]
