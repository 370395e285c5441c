"""The dispatcher: marks become a table, every call gets one answer, whatever happens while it is made."""

import gc
import logging
import weakref
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from pyromq.errors import NoPermission, ResponseCode, TopicNotFound
from pyromq.remoting.codes import RequestCode
from pyromq.remoting.command import Call, FrameSplitter, Reply, decode_request, encode_request
from pyromq.remoting.dispatch import Dispatcher, answers, refusal
from pyromq.remoting.headers import MaxOffset, MinOffset, PullMessage, SendMessage, SendMessageV2


class Offsets:
    """Answers with the queue id as the code, so that a test sees which call an answer belongs to."""

    def __init__(self):
        self.answered = 0

    @answers(MaxOffset, MinOffset)
    def bound(self, header, call):
        self.answered += 1
        return Reply(code=header.queue_id)


class Failing:
    """Every answer goes wrong in a way of its own."""

    @answers(MaxOffset)
    def refuse(self, header, call):
        raise TopicNotFound(f"topic {header.topic} is unknown")

    @answers(MinOffset)
    def fail(self, header, call):
        raise ZeroDivisionError("a bug")


def request(header, opaque=1):
    (frame,) = FrameSplitter().split(encode_request(header, b"", opaque=opaque, flag=0))
    call = decode_request(*frame)
    call.peer = SimpleNamespace(address="127.0.0.1:7")
    return call


def maximum(queue_id):
    return request(MaxOffset(topic="t", queue_id=queue_id))


def minimum(queue_id):
    return request(MinOffset(topic="t", queue_id=queue_id))


def test_a_method_answers_what_it_is_marked_with():
    dispatcher = Dispatcher(Offsets())
    assert dispatcher.codes == {RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET}
    assert dispatcher.dispatch(maximum(3)) == Reply(code=3)
    assert dispatcher.dispatch(minimum(4)) == Reply(code=4)


def test_a_second_spelling_is_answered_by_the_same_method():
    class SendProcessor:
        @answers(SendMessage)
        def send(self, header, call):
            return Reply(remark=header.topic)

    assert {SendMessage.code, SendMessageV2.code} <= Dispatcher(SendProcessor()).codes


@pytest.mark.parametrize("names", [("first", "second"), ("second", "first")])
def test_a_second_spelling_may_have_a_method_of_its_own(names):
    plain, short = names  # methods are looked at by name: neither order may matter
    sending = type(
        "Sending",
        (),
        {
            plain: answers(SendMessage)(lambda self, header, call: Reply(remark="plain")),
            short: answers(SendMessageV2)(lambda self, header, call: Reply(remark="short")),
        },
    )
    dispatcher = Dispatcher(sending())
    for declared, remark in ((SendMessage, "plain"), (SendMessageV2, "short")):
        call = Call(declared.code, header=object())
        assert dispatcher.dispatch(call).remark == remark


def test_several_objects_answer_together_and_none_answers_nothing():
    class Pulling:
        @answers(PullMessage)
        def pull(self, header, call):
            return Reply()

    assert Dispatcher(Offsets(), Pulling()).codes == Dispatcher(Offsets()).codes | Dispatcher(Pulling()).codes
    assert Dispatcher().codes == frozenset()


def test_a_code_without_answer_is_refused_with_upstreams_text():
    reply = Dispatcher().dispatch(maximum(1))
    assert (reply.code, reply.remark) == (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, " request type 30 not supported")


def test_an_error_is_answered_with_its_code_and_text():
    reply = Dispatcher(Failing()).dispatch(maximum(1))
    assert (reply.code, reply.remark) == (ResponseCode.TOPIC_NOT_EXIST, "topic t is unknown")


def test_a_bug_is_logged_and_answered_as_a_system_error(caplog):
    reply = Dispatcher(Failing()).dispatch(minimum(1))
    assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, "ZeroDivisionError: a bug")
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info


def test_a_future_is_passed_on():
    future = Future()

    class Waiting:
        @answers(MaxOffset)
        def wait(self, header, call):
            return future

    assert Dispatcher(Waiting()).dispatch(maximum(1)) is future


class Refusing:
    """A guard that refuses one queue and keeps the queues that it judged."""

    reads_fields = False
    is_compiled = False

    def __init__(self, queue_id):
        self.judged = []
        self._queue_id = queue_id

    def judge(self, call):
        self.judged.append(call.header.queue_id)
        return NoPermission("not you") if call.header.queue_id == self._queue_id else None


def test_the_guard_sees_each_readable_call_first_and_may_refuse_it():
    guard = Refusing(2)
    dispatcher = Dispatcher(Offsets(), guard=guard)
    assert [dispatcher.dispatch(maximum(number)).code for number in (1, 2)] == [1, ResponseCode.NO_PERMISSION]
    assert dispatcher.dispatch(Call(9_999, peer=maximum(1).peer)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert guard.judged == [1, 2]


def test_a_call_that_cannot_be_read_is_refused_and_not_judged():
    offsets, guard = Offsets(), Refusing(1)
    unreadable = decode_request(0, b'{"code":30,"extFields":{"topic":"t"},"opaque":5}', b"")
    unreadable.peer = SimpleNamespace(address="127.0.0.1:7")
    reply = Dispatcher(offsets, guard=guard).dispatch(unreadable)
    assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, "the custom field <queueId> is null")
    assert (offsets.answered, guard.judged) == (0, [])


def test_a_guard_with_a_bug_lets_nothing_pass(caplog):
    class Broken(Refusing):
        def judge(self, call):
            raise ZeroDivisionError("a bug")

    dispatcher = Dispatcher(offsets := Offsets(), guard=Broken(1))
    assert dispatcher.dispatch(maximum(0)).remark == "ZeroDivisionError: a bug"
    assert offsets.answered == 0


def test_a_refusal_is_code_and_text():
    assert refusal(TopicNotFound("no t")) == Reply(code=17, remark="no t")


def test_a_request_that_cannot_be_read_leaves_nothing_for_the_collector():
    frame = encode_request(MaxOffset(topic="t", queue_id=1), b"", opaque=1, flag=0).replace(b"queueId", b"queueIx")
    logging.disable()  # a captured record keeps the error
    gc.disable()
    try:
        call = decode_request(*FrameSplitter().split(frame)[0])
        call.peer = Offsets()
        call.peer.address = "127.0.0.1:7"
        alive = weakref.ref(call.peer)
        assert "queueId" in Dispatcher(Offsets()).dispatch(call).remark
        del call
        assert alive() is None
    finally:
        gc.enable()
        logging.disable(logging.NOTSET)
