"""Answers in slices: who gets a turn when, and what becomes of errors."""

from concurrent.futures import Future
from functools import partial

import pytest

from pyromq.errors import BrokerError
from pyromq.net import slow_replies as slow_replies
from pyromq.net.slow_replies import MAX_UNSENT_BYTES, SLICE_SECONDS, UNSENT_SECONDS, SlowReplies, in_pieces
from pyromq.remoting.bodies import TopicConfig, TopicConfigTable, encode_body
from pyromq.remoting.command import Call, Reply, encode_request
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.dispatch import answers as answers_request
from pyromq.remoting.headers import TopicNames
from pyromq.remoting.remoting_session import RemotingSession
from pyromq.slow_work import Turns, completed, loaded, run_blocking, yield_slice
from pyromq.testing import FakeClock


class Ticking(FakeClock):
    """A clock on which every look takes half a slice."""

    def monotonic(self):
        self._move_to(self._seconds + SLICE_SECONDS / 2)
        return super().monotonic()


async def counting(turns, name, steps, outcome=None):
    """An answer that notes each of its steps."""
    for _ in range(steps):
        turns.append(name)
        await yield_slice()
    if isinstance(outcome, Exception):
        raise outcome
    return Reply(remark=name)


class Large:
    """Answers with a larger body than a connection may leave unsent."""

    @answers_request(TopicNames)
    def names(self, header, call):
        return Reply(body=bytes(MAX_UNSENT_BYTES + 1))


def a_call(writer=None, dispatcher=None):
    """A request over a connection of its own."""
    peer = RemotingSession(
        dispatcher or Dispatcher(),
        FakeClock(),
        address=("127.0.0.1", 1),
        wake=lambda: None,
        run_soon=lambda *_: None,
        writer=writer,
    )
    return Call(code=1, peer=peer)


def give(answers, work, call=None):
    return answers.submit(work, call or a_call())


def work_off(answers):
    while answers.step() is not None:
        pass


@pytest.fixture
def answers():
    return SlowReplies(Ticking())


def test_what_a_slice_suffices_for_is_answered_at_once(answers):
    assert give(answers, counting([], "short", 1)).remark == "short"
    assert answers.step() is None


def test_a_slice_ends_the_work_for_now(answers):
    turns = []
    answered = give(answers, counting(turns, "long", 5))
    assert turns == ["long"] * 2
    assert answers.step() == 0
    assert turns == ["long"] * 4
    assert not answered.done()
    assert answers.step() is None
    assert answered.result().remark == "long"


def test_answers_are_worked_out_in_turns_and_none_begins_before_its_own(answers):
    turns = []
    first, second = (give(answers, counting(turns, name, 4)) for name in ("first", "second"))
    assert turns == ["first"] * 2
    work_off(answers)
    assert turns == ["first"] * 4 + ["second"] * 4
    assert first.result().remark == "first"
    assert second.result().remark == "second"


def test_a_short_one_overtakes_a_long_one(answers):
    turns = []
    long, short = give(answers, counting(turns, "long", 100)), give(answers, counting(turns, "short", 1))
    while not short.done():
        answers.step()
    assert not long.done()


def test_errors_are_answers(answers):
    with pytest.raises(BrokerError):
        give(answers, counting([], "short", 0, BrokerError("no")))
    refused = give(answers, counting([], "long", 5, BrokerError("no")))
    other = give(answers, counting([], "other", 5))
    work_off(answers)
    assert str(refused.exception()) == "no"
    assert other.result().remark == "other"


def test_what_waits_for_a_future_takes_no_turns_and_goes_on_behind_it(answers):
    awaited = Future()

    async def waiting():
        return Reply(remark=await completed(awaited))

    answered = give(answers, waiting())
    turns = []
    other = give(answers, counting(turns, "other", 5))
    work_off(answers)
    assert other.result().remark == "other"
    assert not answered.done()
    awaited.set_result("awaited")
    assert answers.alarm.seconds_left <= 0
    assert answers.step() is None
    assert answered.result().remark == "awaited"


def test_pages_are_loaded_by_a_thread_before_the_work_goes_on():
    loading, asked = Future(), []

    def load(pages):
        asked.append(pages)
        return loading

    async def reading():
        await loaded(["page"])
        return Reply(remark="read")

    slow_replies = SlowReplies(Ticking(), load)
    answered = give(slow_replies, reading())
    assert (asked, answered.done(), slow_replies.step()) == ([["page"]], False, None)
    loading.set_result(None)
    work_off(slow_replies)
    assert answered.result().remark == "read"


def test_a_body_in_pieces_is_the_body(answers):
    table = TopicConfigTable(topics={name: TopicConfig(name=name) for name in ("one", "two", "three")})
    answered = give(answers, in_pieces(table))
    work_off(answers)
    assert answered.result().body == encode_body(table)


def test_many_short_ones_that_come_at_once_are_not_all_answered_at_once(answers):
    outcomes = [give(answers, counting([], str(number), 1)) for number in range(10)]
    assert isinstance(outcomes[0], Reply)
    assert isinstance(outcomes[9], Future)
    work_off(answers)
    assert outcomes[9].result().remark == "9"


def test_connections_take_turns_however_much_one_of_them_asks(answers):
    turns, greedy = [], a_call()
    for number in range(5):
        give(answers, counting(turns, f"greedy {number}", 4), greedy)
    modest = give(answers, counting(turns, "modest", 4))
    while not modest.done():
        answers.step()
    assert "greedy 1" not in turns[:6]
    assert "greedy 2" not in turns
    work_off(answers)


def test_who_leaves_answers_unread_gets_no_further_one(answers):
    class Unread:
        def get_write_buffer_size(self):
            return unread[0]

    unread = [0]
    call = a_call(Unread())
    first, second = (give(answers, counting([], name, 4), call) for name in ("first", "second"))
    while not first.done():
        answers.step()
    unread[0] = MAX_UNSENT_BYTES + 1
    other = give(answers, counting([], "other", 4))
    while not other.done():
        answers.step()
    assert answers.step() == UNSENT_SECONDS
    assert not second.done()
    unread[0] = 0
    work_off(answers)
    assert second.done()


def test_who_leaves_answers_unread_keeps_nobody_waiting_for_a_turn(answers):
    class Unread:
        def get_write_buffer_size(self):
            return unread[0]

    unread, turns = [0], Turns()
    held = give(answers, turns.run(partial(counting, [], "held", 4)), a_call(Unread()))
    unread[0] = MAX_UNSENT_BYTES + 1
    other = give(answers, turns.run(partial(counting, [], "other", 4)))
    for _ in range(30):
        answers.step()
    assert held.done()
    assert other.done()


def test_a_connection_that_closed_with_unsent_answers_blocks_nothing(answers):
    call = a_call(dispatcher=Dispatcher(Large()))
    call.peer.receive(encode_request(TopicNames(), b"", opaque=1, flag=0))
    assert call.peer.unsent_bytes > MAX_UNSENT_BYTES
    give(answers, counting([], "first", 4))
    late = give(answers, counting([], "late", 4), call)
    call.peer.close("gone")
    assert call.peer.unsent_bytes == 0
    for _ in range(30):
        answers.step()
    assert late.done()
    assert answers.step() is None


def test_a_fault_is_an_answer(answers):
    give(answers, counting([], "long", 5))
    answered = give(answers, counting([], "faulty", 5, ValueError("ours")))
    work_off(answers)
    assert isinstance(answered.exception(), ValueError)


def test_an_answer_longer_than_a_frame_is_refused(answers, monkeypatch):
    monkeypatch.setattr(slow_replies, "MAX_BYTES", 100)
    table = TopicConfigTable(topics={name: TopicConfig(name=name) for name in ("one", "two", "three")})
    answered = give(answers, in_pieces(table))
    work_off(answers)
    assert "request less" in str(answered.exception())


async def noted(events, name, error=None):
    events.append(f"{name} begins")
    await yield_slice()
    events.append(f"{name} ends")
    if error is not None:
        raise error
    return name


def test_work_of_one_name_waits_for_earlier_work_and_others_do_not():
    turns, events = Turns(), []
    works = {name: turns.run(partial(noted, events, name), name[0]) for name in ("a1", "a2", "b1")}
    assert [work.send(None) for work in works.values()][0::2] == [None, None]
    assert events == ["a1 begins", "b1 begins"]
    for name in ("a1", "a2", "b1"):
        assert run_blocking(works[name]) == name
    assert events[2:] == ["a1 ends", "a2 begins", "a2 ends", "b1 ends"]


def test_failed_or_closed_work_ends_its_turn():
    turns, events = Turns(), []
    failing = turns.run(partial(noted, events, "a1", ValueError("no")), "a")
    closed = turns.run(partial(noted, events, "a2"), "a")
    last = turns.run(partial(noted, events, "a3"), "a")
    for work in failing, closed, last:
        work.send(None)
    with pytest.raises(ValueError, match="no"):
        run_blocking(failing)
    closed.close()
    assert run_blocking(last) == "a3"


def test_waiting_work_may_be_closed_before_the_work_it_waits_for():
    turns, events = Turns(), []
    first, second = (turns.run(partial(noted, events, name), "a") for name in ("a1", "a2"))
    for work in first, second:
        work.send(None)
    second.close()
    assert run_blocking(first) == "a1"
