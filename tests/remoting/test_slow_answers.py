"""Coroutines as answers and as judgements of a guard: computed by the server's `compute`, in the end one reply."""

from concurrent.futures import Future

import pytest
from tests.net.test_slow_replies import a_call

from pyromq.errors import BrokerError, ProtocolError, ResponseCode
from pyromq.net.slow_replies import SlowReplies
from pyromq.remoting.command import Reply
from pyromq.remoting.dispatch import Dispatcher, answers
from pyromq.remoting.headers import MaxOffset
from pyromq.slow_work import completed
from pyromq.testing import FakeClock


class Waiting:
    """Answers a request after an event, with what that brings."""

    def __init__(self):
        self.event = Future()
        self.asked = 0

    @answers(MaxOffset)
    async def wait(self, header, call):
        self.asked += 1
        return await completed(self.event)


class SlowGuard:
    """Judges after an event."""

    reads_fields = is_compiled = False

    def __init__(self):
        self.event = Future()

    def judge(self, call):
        return completed_later(self.event)


async def completed_later(event):
    return await completed(event)


@pytest.fixture
def slow_replies():
    return SlowReplies(FakeClock())


def dispatched(answerer, slow_replies, guard=None):
    call = a_call()
    call.code, call.header = MaxOffset.code, MaxOffset(topic="t", queue_id=0)
    dispatcher = Dispatcher(answerer, guard=guard, compute=slow_replies.give)
    return dispatcher.dispatch(call)


def test_a_coroutine_is_answered_with_what_it_returns(slow_replies):
    waiting = Waiting()
    answered = dispatched(waiting, slow_replies)
    waiting.event.set_result(Reply(remark="done"))
    assert not answered.done()
    slow_replies.step()
    assert (answered.result().remark, waiting.asked) == ("done", 1)


def test_an_outcome_that_is_a_future_is_waited_for(slow_replies):
    waiting, safe = Waiting(), Future()
    answered = dispatched(waiting, slow_replies)
    waiting.event.set_result(safe)
    slow_replies.step()
    assert not answered.done()
    safe.set_exception(BrokerError("lost"))
    assert str(answered.exception()) == "lost"


def test_a_call_is_answered_after_a_slow_judgement(slow_replies):
    waiting, guard = Waiting(), SlowGuard()
    answered = dispatched(waiting, slow_replies, guard)
    waiting.event.set_result(Reply(remark="done"))
    assert waiting.asked == 0
    guard.event.set_result(None)
    slow_replies.step()
    assert answered.result().remark == "done"


def test_a_call_that_is_judged_guilty_later_reaches_no_method(slow_replies):
    waiting, guard = Waiting(), SlowGuard()
    answered = dispatched(waiting, slow_replies, guard)
    guard.event.set_result(BrokerError("forbidden"))
    slow_replies.step()
    assert (answered.result().remark, waiting.asked) == ("forbidden", 0)


def test_unfinished_replies_end_with_the_server(slow_replies):
    ended = []

    class Cleaning(Waiting):
        @answers(MaxOffset)
        async def wait(self, header, call):
            try:
                return await completed(self.event)
            finally:
                ended.append(True)

    first, second = Waiting(), Cleaning()
    dispatched(first, slow_replies)
    dispatched(second, slow_replies)
    second.event.set_result(Reply())
    first.event.set_result(Reply())
    slow_replies.close()
    assert (slow_replies.step(), ended, len(slow_replies)) == (None, [True], 0)


def test_a_server_without_a_driver_computes_at_once():
    class Quick(Waiting):
        @answers(MaxOffset)
        async def wait(self, header, call):
            raise ProtocolError("unreadable")

    call = a_call()
    call.code, call.header = MaxOffset.code, MaxOffset(topic="t", queue_id=0)
    assert Dispatcher(Quick()).dispatch(call).code == ResponseCode.SYSTEM_ERROR
