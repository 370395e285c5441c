"""What stands around calls: hooks at both sides, signed requests, guards that see the fields as they came."""

import pytest

from pyromq.errors import DeadlineExceeded, NoPermission, ResponseCode
from pyromq.remoting.command import BINARY, JSON, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.header import Filled, HeaderTemplate
from pyromq.remoting.headers import MaxOffset
from pyromq.remoting.hooks import RemotingOutcome

from .test_remoting_session import Offsets, Pair, maximum, minimum


class Watching:
    """Keeps what it is told, in order."""

    def __init__(self):
        self.told, self.incoming = [], []

    def before_request(self, request):
        request.state[self] = len(self.told)
        self.told.append(("before", request.code, request.header.queue_id, request.one_way))
        self.incoming.append(request.incoming)

    def after_response(self, request, outcome):
        self.told.append(("after", self.told[request.state[self]][2], outcome))


class Failing:
    def before_request(self, request):
        raise ZeroDivisionError("before")

    def after_response(self, request, outcome):
        raise ZeroDivisionError("after")


def done(number):
    return ("after", number, RemotingOutcome(0, None))


def test_hooks_see_every_call_at_both_sides():
    asking, answering = Watching(), Watching()
    pair = Pair(Offsets(), hooks=[answering], client_hooks=[asking])
    pair.client.ask(maximum(1))
    pair.carry()
    assert asking.told == answering.told == [("before", 30, 1, False), done(1)]
    assert (asking.incoming, answering.incoming) == ([False], [True])


def test_calls_of_a_burst_are_seen_one_by_one():
    answering = Watching()
    pair = Pair(Offsets(), hooks=[answering])
    for number in range(3):
        pair.client.ask(maximum(number))
    pair.carry()
    assert [told[0] for told in answering.told] == ["before", "after"] * 3


def test_an_answer_that_comes_later_is_told_when_it_comes():
    answering = Watching()
    pair = Pair(offsets := Offsets(), hooks=[answering])
    pair.client.ask(minimum(4))
    pair.carry()
    assert [told[0] for told in answering.told] == ["before"]
    offsets.waiting[0].set_exception(NoPermission("not you"))
    pair.server.run_soon()
    assert answering.told[1:] == [("after", 4, RemotingOutcome(ResponseCode.NO_PERMISSION, "not you"))]


async def test_a_call_nobody_answers_is_told_with_the_reason():
    asking = Watching()
    pair = Pair(Offsets(), client_hooks=[asking])
    pair.client.ask(maximum(1), timeout=3)
    await pair.clock.advance(4)
    pair.client.session.expire()
    (_, _, outcome) = asking.told[1]
    assert outcome.code is None
    assert "did not answer request 30 within 3 s" in outcome.remark
    assert isinstance(pair.client.got[0], DeadlineExceeded)


def test_a_one_way_request_is_seen_when_it_is_sent():
    asking = Watching()
    pair = Pair(Offsets(), client_hooks=[asking])
    pair.client.session.notify(maximum(1))
    assert asking.told == [("before", 30, 1, True)]


def test_what_a_hook_raises_is_logged_and_breaks_no_call(caplog):
    watching = Watching()
    pair = Pair(Offsets(), hooks=[Failing(), watching], client_hooks=[Failing()])
    pair.client.ask(maximum(5))
    pair.carry()
    assert pair.offsets == [5]
    assert len(watching.told) == 2
    assert caplog.text.count("its caller continues") == 4


class Naming:
    """Signs with the names of the fields and the length of the body."""

    def sign(self, fields, body):
        return {"Signature": f"{'+'.join(sorted(fields))}:{len(body)}"}


class Reading:
    """Refuses whom it does not find signed."""

    reads_fields = True
    is_compiled = False

    def judge(self, call):
        signature = f"queueId+topic:{len(call.body)}"
        return None if call.fields.get("Signature") == signature else NoPermission("unsigned")


@pytest.mark.parametrize("serialization", [JSON, BINARY])
@pytest.mark.parametrize("templated", [False, True])
def test_a_guard_reads_what_a_signer_wrote(serialization, templated):
    pair = Pair(Offsets(), guard=Reading(), signer=Naming(), serialization=serialization)
    template = HeaderTemplate(MaxOffset, ("queue_id",), topic="t")
    pair.client.ask(Filled(template, (3,)) if templated else maximum(3), b"body")
    pair.carry()
    assert pair.offsets == [3]


def test_a_guard_refuses_what_is_not_signed():
    pair = Pair(Offsets(), guard=Reading())
    pair.client.ask(maximum(3))
    pair.carry()
    assert [answer.code for answer in pair.client.got] == [ResponseCode.NO_PERMISSION]


def test_fields_are_not_kept_for_nobody():
    seen = []

    class Looking:
        @answers(MaxOffset)
        def look(self, header, call):
            seen.append(call.fields)
            return Reply()

    pair = Pair(Looking())
    pair.client.ask(maximum(1))
    pair.carry()
    assert seen == [None]
