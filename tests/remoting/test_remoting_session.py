"""One connection's state, without sockets: who asked gets the answer to what it asked, once, or an error in time."""

from concurrent.futures import Future

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.errors import ConnectionLost, DeadlineExceeded, ProtocolError, ResponseCode, TopicNotFound, Unavailable
from pyromq.message import pack_address
from pyromq.remoting.codes import ONE_WAY
from pyromq.remoting.command import (
    BINARY,
    JSON,
    Call,
    FrameSplitter,
    Reply,
    decode_request,
    encode_request,
    write_reply,
)
from pyromq.remoting.connection_limits import DEFAULT_CONNECTION_LIMITS, Budget
from pyromq.remoting.dispatch import Dispatcher, answers
from pyromq.remoting.header import Filled, HeaderTemplate
from pyromq.remoting.headers import ConsumerIdsChanged, EarliestStoreTime, MaxOffset, MinOffset, OffsetResponse
from pyromq.remoting.rejection_log import RejectionLog
from pyromq.remoting.remoting_session import PUSHED_BYTES, RemotingSession
from pyromq.testing import FakeClock


class Side:
    """A session, how often it asked to be written, and what its calls got."""

    def __init__(self, dispatcher, clock, *, initiator, serialization=JSON, **options):
        self.wakes = 0
        self.got = []
        self.soon = []
        self.session = RemotingSession(
            dispatcher,
            clock,
            address=("127.0.0.1", 1 if initiator else 2),
            wake=self.wake,
            run_soon=lambda *call: self.soon.append(call),
            initiator=initiator,
            serialization=serialization,
            **options,
        )

    def wake(self):
        self.wakes += 1

    def ask(self, header, body=b"", timeout=3.0):
        self.session.call(header, body, timeout=timeout, answered=self.got.append)

    def output(self):
        return b"".join(map(bytes, self.session.take_output()))

    def run_soon(self):
        """What the owner's thread does in its next turn."""
        calls, self.soon = self.soon, []
        for function, *arguments in calls:
            function(*arguments)


class Pair:
    """A client's side and a server's side; `carry` takes bytes from one to the other."""

    def __init__(
        self, *answerers, clock=None, serialization=JSON, at_client=(), guard=None, hooks=(), client_hooks=(), **options
    ):
        self.clock = clock or FakeClock()
        options |= {"serialization": serialization, "hooks": client_hooks}
        self.client = Side(Dispatcher(*at_client), self.clock, initiator=True, **options)
        self.server = Side(Dispatcher(*answerers, guard=guard), self.clock, initiator=False, hooks=hooks)

    def carry(self, *, times=1):
        for _ in range(times):
            self.server.session.receive(self.client.output())
            self.client.session.receive(self.server.output())

    @property
    def offsets(self):
        """What the client's calls got, as numbers."""
        return [result.header(OffsetResponse).offset for result in self.client.got]


class Offsets:
    """Says the queue id back; keeps what it was asked, and the futures of those it lets wait."""

    def __init__(self):
        self.asked = []
        self.waiting = []

    @answers(MaxOffset)
    def at_once(self, header, call):
        self.asked.append(header.queue_id)
        return Reply(OffsetResponse(offset=header.queue_id))

    @answers(MinOffset)
    def later(self, header, call):
        self.waiting.append(Future())
        return self.waiting[-1]


class Changes:
    """A client's answers."""

    def __init__(self):
        self.groups = []

    @answers(ConsumerIdsChanged)
    def changed(self, header, call):
        self.groups.append((header.consumer_group, call.peer.address))
        return Reply()


def maximum(number):
    return MaxOffset(topic="t", queue_id=number)


def minimum(number):
    return MinOffset(topic="t", queue_id=number)


def answer_to(opaque, offset=0):
    output = []
    write_reply(Reply(OffsetResponse(offset=offset)), Call(30, opaque), output)
    return b"".join(output)


# -- asking


@pytest.mark.parametrize("serialization", [JSON, BINARY], ids=["JSON", "binary"])
def test_a_call_gets_its_answer(serialization):
    pair = Pair(Offsets(), serialization=serialization)
    pair.client.ask(maximum(5))
    assert pair.client.session.waiting == 1
    pair.carry()
    assert pair.offsets == [5]
    assert pair.client.session.waiting == 0


def test_a_filled_header_is_asked_like_a_plain_one():
    pair = Pair(Offsets())
    pair.client.ask(Filled(HeaderTemplate(MaxOffset, ("queue_id",), topic="t"), (5,)))
    pair.carry()
    assert pair.offsets == [5]


@given(st.permutations(range(6)), st.data())
def test_answers_find_their_calls_in_any_order_and_pieces(order, data):
    """The n-th call is answered with n; answers may overtake each other and come in pieces."""
    pair = Pair()
    got = {}
    for number in range(6):
        pair.client.session.call(
            maximum(number), timeout=3.0, answered=lambda result, number=number: got.update({number: result})
        )
    requests = [decode_request(*frame) for frame in FrameSplitter().split(pair.client.output())]
    stream = b"".join(answer_to(requests[number].opaque, requests[number].header.queue_id) for number in order)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        pair.client.session.receive(stream[start:end])
    assert {number: result.header(OffsetResponse).offset for number, result in got.items()} == {
        number: number for number in range(6)
    }


def test_an_answer_nobody_waits_for_or_that_comes_twice_is_dropped():
    pair = Pair()
    pair.client.ask(maximum(1))
    (request,) = [decode_request(*frame) for frame in FrameSplitter().split(pair.client.output())]
    answer = answer_to(request.opaque, 1)
    pair.client.session.receive(answer_to(4711) + answer + answer)
    assert pair.offsets == [1]
    assert pair.client.output() == b""


def test_numbers_of_calls_stay_positive_beyond_the_last_int():
    pair = Pair(Offsets())
    pair.client.session.opaque = 0x7FFFFFFE  # a long life has gone by
    for number in range(3):
        pair.client.ask(maximum(number))
    opaques = [decode_request(*frame).opaque for frame in FrameSplitter().split(pair.client.output())]
    assert opaques == [0x7FFFFFFF, 0, 1]


def test_a_refusal_is_an_answer():
    class Refusing:
        @answers(MaxOffset)
        def refuse(self, header, call):
            raise TopicNotFound("no topic t")

    pair = Pair(Refusing())
    pair.client.ask(maximum(1))
    pair.carry()
    (response,) = pair.client.got
    with pytest.raises(TopicNotFound, match="no topic t"):
        response.check()


def test_a_one_way_request_is_done_and_not_answered():
    offsets = Offsets()
    pair = Pair(offsets)
    pair.client.session.notify(maximum(3))
    pair.client.session.notify(minimum(3))
    pair.carry()
    assert offsets.asked == [3]
    assert pair.client.session.waiting == 0
    offsets.waiting[0].set_result(Reply())
    pair.server.run_soon()
    assert pair.server.output() == b""


def test_a_one_way_request_that_fails_is_not_answered():
    pair = Pair()
    pair.client.session.notify(maximum(3))
    pair.server.session.receive(pair.client.output())
    assert pair.server.output() == b""


def test_asking_wakes_the_writer_once_and_answering_at_once_does_not():
    pair = Pair(Offsets())
    pair.client.ask(maximum(1))
    pair.client.session.notify(maximum(1))
    assert pair.client.wakes == 1
    pair.carry()
    pair.client.ask(maximum(1))
    assert pair.client.wakes == 2
    pair.carry()
    assert pair.server.wakes == 0


# -- deadlines


async def test_a_call_fails_at_its_deadline_and_not_before():
    pair = Pair()
    pair.client.ask(maximum(1), timeout=3.0)
    pair.client.ask(maximum(2), timeout=5.0)
    await pair.clock.advance(2.9)
    pair.client.session.expire()
    assert pair.client.got == []
    await pair.clock.advance(0.1)
    pair.client.session.expire()
    (error,) = pair.client.got
    assert isinstance(error, DeadlineExceeded)
    assert str(error) == "127.0.0.1:1 did not answer request 30 within 3 s"
    assert pair.client.session.waiting == 1


async def test_an_answer_after_the_deadline_is_dropped():
    pair = Pair(Offsets())
    pair.client.ask(maximum(1), timeout=1.0)
    await pair.clock.advance(1.0)
    pair.client.session.expire()
    pair.carry()
    assert [type(result) for result in pair.client.got] == [DeadlineExceeded]


async def test_an_operators_new_time_expires_nothing():
    pair = Pair()
    pair.client.ask(maximum(1), timeout=1.0)
    pair.clock.jump(3_600)
    pair.client.session.expire()
    assert pair.client.got == []


# -- bursts


def test_a_burst_is_answered_in_order():
    pair = Pair(Offsets())
    for number in range(5):
        pair.client.ask(maximum(number))
    pair.server.session.receive(pair.client.output())
    frames = FrameSplitter().split(pair.server.output())
    assert len(frames) == 5
    opaques = [decode_request(*frame).opaque for frame in frames]
    assert opaques == sorted(opaques)


@given(st.lists(st.sampled_from(["answered", "one-way", "parked"]), max_size=8))
def test_any_burst_answers_each_call_once_and_those_answered_at_once_in_order(kinds):
    offsets = Offsets()
    pair = Pair(offsets)
    for number, kind in enumerate(kinds):
        if kind == "one-way":
            pair.client.session.notify(maximum(number))
        else:
            pair.client.ask(maximum(number) if kind == "answered" else minimum(number))
    pair.carry()
    assert pair.offsets == [number for number, kind in enumerate(kinds) if kind == "answered"]
    assert offsets.asked == [number for number, kind in enumerate(kinds) if kind != "parked"]
    for future in offsets.waiting:
        future.set_result(Reply(OffsetResponse(offset=100)))
    pair.server.run_soon()
    pair.carry()
    assert pair.offsets[kinds.count("answered") :] == [100] * kinds.count("parked")
    assert pair.client.session.waiting == 0


def test_an_answer_and_a_request_in_one_piece_both_arrive():
    changes = Changes()
    pair = Pair(Offsets(), at_client=[changes])
    pair.client.ask(maximum(1))
    pair.server.session.notify(ConsumerIdsChanged(consumer_group="g"))
    pair.carry()
    assert pair.offsets == [1]
    assert changes.groups == [("g", "127.0.0.1:1")]


# -- answers that wait


def test_a_parked_answer_overtakes_nothing_and_comes_when_it_is_ready():
    offsets = Offsets()
    pair = Pair(offsets)
    pair.client.ask(minimum(1))
    pair.client.ask(maximum(2))
    pair.carry()
    assert pair.offsets == [2]
    assert pair.server.session.in_flight == 1
    offsets.waiting[0].set_result(Reply(OffsetResponse(offset=1)))
    assert (pair.server.session.in_flight, pair.server.wakes) == (1, 0)  # only the owner's thread touches the state
    pair.server.run_soon()
    assert (pair.server.session.in_flight, pair.server.wakes) == (0, 1)
    pair.carry()
    assert pair.offsets == [2, 1]


def test_a_parked_answer_may_be_an_error():
    offsets = Offsets()
    pair = Pair(offsets)
    pair.client.ask(minimum(1))
    pair.carry()
    offsets.waiting[0].set_exception(TopicNotFound("no topic t"))
    pair.server.run_soon()
    pair.carry()
    (response,) = pair.client.got
    assert (response.code, response.remark) == (ResponseCode.TOPIC_NOT_EXIST, "no topic t")


def test_a_bug_in_a_parked_answer_is_logged_and_answered(caplog):
    offsets = Offsets()
    pair = Pair(offsets)
    pair.client.ask(minimum(1))
    pair.carry()
    offsets.waiting[0].set_exception(ZeroDivisionError("a bug"))
    pair.server.run_soon()
    pair.carry()
    (response,) = pair.client.got
    assert (response.code, response.remark) == (ResponseCode.SYSTEM_ERROR, "ZeroDivisionError: a bug")
    (record,) = caplog.records
    assert record.getMessage() == "request 31 from 127.0.0.1:2 failed"
    assert record.exc_info[0] is ZeroDivisionError


def test_a_cancelled_answer_is_never_sent():
    offsets = Offsets()
    pair = Pair(offsets)
    pair.client.ask(minimum(1))
    pair.carry()
    offsets.waiting[0].cancel()
    pair.server.run_soon()
    assert pair.server.output() == b""
    assert pair.server.session.in_flight == 0


def test_a_parked_answer_after_the_end_goes_nowhere():
    offsets = Offsets()
    pair = Pair(offsets)
    pair.client.ask(minimum(1))
    pair.carry()
    pair.server.session.close("gone")
    offsets.waiting[0].set_result(Reply())
    pair.server.run_soon()
    assert pair.server.output() == b""
    assert pair.server.session.in_flight == 0


# -- the server asks


def test_a_server_asks_its_client_over_the_same_connection():
    changes = Changes()
    pair = Pair(Offsets(), at_client=[changes])
    pair.server.ask(ConsumerIdsChanged(consumer_group="g"))
    pair.client.ask(maximum(7))  # both sides number from one: the numbers meet
    pair.carry(times=2)
    assert changes.groups == [("g", "127.0.0.1:1")]
    assert [response.code for response in pair.server.got] == [0]
    assert pair.offsets == [7]


def test_a_client_that_does_not_know_the_question_says_so():
    pair = Pair()
    pair.server.ask(EarliestStoreTime(topic="t", queue_id=0))
    pair.carry(times=2)
    (response,) = pair.server.got
    assert response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


# -- the end


def test_the_end_fails_what_waits_and_tells_those_who_asked():
    pair = Pair()
    told = []
    pair.client.session.on_close += (told.append,)
    for number in range(2):
        pair.client.ask(maximum(number))
    pair.client.session.close("a spade")
    pair.client.session.close("again")
    assert [str(error) for error in pair.client.got] == ["connection to 127.0.0.1:1 broke: a spade"] * 2
    assert all(isinstance(error, ConnectionLost) for error in pair.client.got)
    assert told == [pair.client.session]
    assert pair.client.session.waiting == 0


def test_after_the_end_a_call_fails_at_once_and_a_notice_is_lost():
    pair = Pair()
    pair.client.session.close("gone")
    pair.client.ask(maximum(1))
    pair.client.session.notify(maximum(2))
    (error,) = pair.client.got
    assert isinstance(error, ConnectionLost)
    assert pair.client.output() == b""


def test_who_loses_an_answer_may_ask_again_at_once():
    pair = Pair()
    results = []

    def ask_again(result):
        results.append(result)
        if len(results) < 3:
            pair.client.session.call(maximum(1), timeout=1.0, answered=ask_again)

    pair.client.session.call(maximum(1), timeout=1.0, answered=ask_again)
    pair.client.session.close("gone")
    assert [type(result) for result in results] == [ConnectionLost] * 3


def test_requests_before_bytes_that_are_no_frame_are_answered():
    pair = Pair(Offsets())
    pair.client.ask(maximum(1))
    with pytest.raises(ProtocolError):
        pair.server.session.receive(pair.client.output() + b"GET / HTTP/1.1\r\n")
    pair.client.session.receive(pair.server.output())
    assert pair.offsets == [1]


# -- what it knows of its peer


async def test_it_remembers_when_it_last_heard_its_peer():
    pair = Pair(Offsets())
    started = pair.clock.monotonic()
    await pair.clock.advance(50)
    assert pair.server.session.last_heard == started
    pair.client.ask(maximum(1))
    pair.carry()
    assert pair.server.session.last_heard == started + 50


def test_addresses_are_written_as_they_are_dialled():
    def at(*address):
        return RemotingSession(Dispatcher(), FakeClock(), address=address, wake=list, run_soon=list)

    assert at("10.0.0.1", 9876).address == "10.0.0.1:9876"
    assert at("::1", 9876, 0, 0).address == "[::1]:9876"
    assert at("10.0.0.1", 9876).packed_address == pack_address("10.0.0.1", 9876)


def test_output_is_given_once():
    pair = Pair(Offsets())
    pair.client.ask(maximum(1))
    assert pair.client.output()
    assert pair.client.output() == b""


def test_a_request_that_asks_for_no_answer_is_marked_so():
    pair = Pair()
    pair.client.session.notify(maximum(1))
    (frame,) = FrameSplitter().split(pair.client.output())
    assert decode_request(*frame).flag == ONE_WAY
    assert encode_request(maximum(1), b"", opaque=1, flag=ONE_WAY)[8:] == frame[1]


class Writer:
    """A socket's buffer that a test fills."""

    def __init__(self):
        self.kept = 0

    def get_write_buffer_size(self):
        return self.kept


def test_a_client_that_does_not_read_is_sent_no_more_unasked():
    budget = Budget(DEFAULT_CONNECTION_LIMITS, RejectionLog(FakeClock()))
    writer = Writer()
    side = Side(Dispatcher(), FakeClock(), initiator=False, budget=budget, writer=writer)
    writer.kept = 1
    while side.session.takes_pushes:
        side.session.notify(ConsumerIdsChanged(consumer_group="g"), bytes(100_000))
    assert PUSHED_BYTES <= len(side.output()) < PUSHED_BYTES + 101_000
    side.session.notify(ConsumerIdsChanged(consumer_group="g"))
    side.ask(MaxOffset("t", 0))
    assert side.output() == b""
    assert [type(each) for each in side.got] == [Unavailable]
    writer.kept = 0
    side.session.notify(ConsumerIdsChanged(consumer_group="g"))
    side.ask(MaxOffset("t", 0))
    assert side.session.waiting == 1
