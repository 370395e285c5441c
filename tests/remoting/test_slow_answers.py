"""Coroutines as answers, and methods and guards that lack pages: computed by the server's `compute`, one reply."""

from concurrent.futures import Future
from pathlib import Path

import pytest
from tests.net.test_slow_replies import a_call

from pyromq.errors import BrokerError, ProtocolError, ResponseCode
from pyromq.net.slow_replies import SlowReplies
from pyromq.remoting.command import Reply
from pyromq.remoting.dispatch import Dispatcher, answers
from pyromq.remoting.headers import MaxOffset
from pyromq.slow_work import FilePiece, NotInMemory, completed
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


class Pages:
    """Are resident once a test says so."""

    def __init__(self):
        self.are_resident = False
        self.loading = Future()
        self.asked = 0

    def need(self):
        self.asked += 1
        if not self.are_resident:
            raise NotInMemory([FilePiece(Path("file"), 5, 7)])

    def have_loaded(self):
        self.are_resident = True
        self.loading.set_result(None)


class ColdGuard:
    """Needs pages to judge."""

    reads_fields = is_compiled = False

    def __init__(self, pages, error=None):
        self.pages = pages
        self.error = error

    def judge(self, call):
        self.pages.need()
        return self.error


@pytest.fixture
def pages():
    return Pages()


@pytest.fixture
def slow_replies(pages):
    return SlowReplies(FakeClock(), lambda to_load: pages.loading)


def dispatched(answerer, slow_replies, guard=None):
    call = a_call()
    call.code, call.header = MaxOffset.code, MaxOffset(topic="t", queue_id=0)
    dispatcher = Dispatcher(answerer, guard=guard, compute=slow_replies.submit)
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


def test_a_method_that_lacks_pages_is_called_again_when_they_are_loaded(slow_replies, pages):
    class Cold:
        @answers(MaxOffset)
        def need(self, header, call):
            pages.need()
            return Reply(remark="done")

    answered = dispatched(Cold(), slow_replies)
    asked = pages.asked
    slow_replies.step()
    assert (answered.done(), pages.asked) == (False, asked)
    pages.have_loaded()
    slow_replies.step()
    assert (answered.result().remark, pages.asked) == ("done", asked + 1)


def test_a_method_whose_pages_cannot_be_loaded_is_answered_with_an_error(slow_replies, pages):
    class Cold:
        @answers(MaxOffset)
        def need(self, header, call):
            pages.need()

    pages.loading.set_result(None)
    answered = dispatched(Cold(), slow_replies)
    assert answered.code == ResponseCode.SYSTEM_ERROR
    assert all(fact in answered.remark for fact in ("file", "byte 5", "7 bytes"))


def test_a_call_is_answered_when_the_guards_pages_are_loaded(slow_replies, pages):
    waiting = Waiting()
    answered = dispatched(waiting, slow_replies, ColdGuard(pages))
    waiting.event.set_result(Reply(remark="done"))
    assert waiting.asked == 0
    pages.have_loaded()
    slow_replies.step()
    assert answered.result().remark == "done"


def test_a_call_that_is_judged_guilty_later_reaches_no_method(slow_replies, pages):
    waiting = Waiting()
    answered = dispatched(waiting, slow_replies, ColdGuard(pages, BrokerError("forbidden")))
    pages.have_loaded()
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
