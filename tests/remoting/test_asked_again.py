"""Requests that are answered from the start again, because something was lacking: in the end, once, or refused."""

from concurrent.futures import Future

from tests.remoting.test_remoting_session import Offsets, Pair, maximum, minimum

from pyromq.errors import BrokerError, ResponseCode
from pyromq.remoting.command import Call, Reply, decode_request, encode_request
from pyromq.remoting.dispatch import MAX_RETRIES, RETRY, RetryWhenLoaded, answers
from pyromq.remoting.frame import FrameSplitter
from pyromq.remoting.headers import MaxOffset, MinOffset, OffsetResponse


class Unready(Offsets):
    """Lacks something for the first so many times."""

    def __init__(self, times):
        super().__init__()
        self.missing = [Future() for _ in range(times)]
        self.came = []

    @answers(MaxOffset)
    def at_once(self, header, call):
        self.asked.append(header.queue_id)
        if len(self.came) < len(self.missing):
            raise RetryWhenLoaded(lambda: self.missing[len(self.came)], BrokerError("lost for good"))
        return Reply(OffsetResponse(offset=header.queue_id))

    def come(self):
        self.came.append(True)
        self.missing[len(self.came) - 1].set_result(RETRY)


def test_a_call_is_answered_from_the_start_each_time_something_it_lacked_has_come():
    unready = Unready(2)
    pair = Pair(unready)
    pair.client.ask(maximum(5))
    pair.carry()
    for asked in (1, 2):
        assert (unready.asked, pair.client.got) == ([5] * asked, [])
        unready.come()
        pair.server.run_soon()
        pair.carry()
    assert (unready.asked, pair.offsets) == ([5, 5, 5], [5])
    assert pair.server.session.in_flight == 0


def test_an_answer_that_comes_later_may_follow():
    class Confirmed(Offsets):
        ready = Future()

        @answers(MinOffset)
        def later(self, header, call):
            if not self.ready.done():
                raise RetryWhenLoaded(lambda: self.ready, BrokerError("lost for good"))
            return super().later(header, call)

    confirmed = Confirmed()
    pair = Pair(confirmed)
    pair.client.ask(minimum(5))
    pair.carry()
    confirmed.ready.set_result(RETRY)
    pair.server.run_soon()
    confirmed.waiting[0].set_result(Reply(OffsetResponse(offset=7)))
    pair.server.run_soon()
    pair.carry()
    assert pair.offsets == [7]


def test_a_one_way_request_of_a_peer_that_is_gone_is_done_all_the_same():
    unready = Unready(2)
    pair = Pair(unready)
    pair.client.session.notify(maximum(5))
    pair.carry()
    pair.server.session.close("closed by peer")
    for _ in range(2):
        unready.come()
        pair.server.run_soon()
    assert unready.asked == [5, 5, 5]
    assert pair.server.output() == b""
    assert pair.server.session.in_flight == 0


def test_a_call_that_always_lacks_something_is_refused(caplog):
    unready = Unready(MAX_RETRIES + 1)
    pair = Pair(unready)
    pair.client.ask(maximum(5))
    pair.carry()
    for _ in range(MAX_RETRIES):
        assert pair.client.got == []
        unready.come()
        pair.server.run_soon()
        pair.carry()
    (response,) = pair.client.got
    assert (response.code, response.remark) == (ResponseCode.SYSTEM_ERROR, "lost for good")
    assert [record.getMessage() for record in caplog.records] == ["request 30 from 127.0.0.1:2 failed: lost for good"]


def test_nobody_says_how_often_its_call_was_asked():
    (frame,) = FrameSplitter().split(encode_request(maximum(5), b"", opaque=1, flag=0))
    serialization, header, body = frame
    call = decode_request(serialization, header.replace(b'"flag"', b'"#retries":-9,"flag"'), body)
    assert type(call) is not Call  # it was decoded the fast way
    assert call.retries == 0
