"""Limits of connections, made small: who meets one is told, everybody else is served, and memory stays bounded.

Each holds with the compiled reactor's transports and with asyncio's.
"""

import asyncio
import contextlib
from concurrent.futures import Future

import pytest
from tests.net.sockets import open_narrow
from tests.waiting import PATIENCE_SECONDS

from pyromq import speedups
from pyromq.errors import ConnectionLost
from pyromq.net.server import Server
from pyromq.remoting.codes import ONE_WAY, RESPONSE
from pyromq.remoting.command import MAX_FRAME_BYTES, FrameSplitter, Reply, decode_response, encode_request, frame_words
from pyromq.remoting.connection_limits import ConnectionLimits
from pyromq.remoting.dispatch import Dispatcher, answers
from pyromq.remoting.headers import (
    EarliestStoreTime,
    Heartbeat,
    MaxOffset,
    MinOffset,
    OffsetResponse,
    SendMessage,
)
from pyromq.remoting.rejection_log import RejectionLog

LARGE = 256 << 10
MIB = 1 << 20
SEND = SendMessage(
    producer_group="g",
    topic="t",
    default_topic="d",
    default_topic_queue_count=4,
    queue_id=0,
    sys_flag=0,
    born_ms=0,
    flag=0,
)


class Answers:
    """Says the queue id back: at once, when the test says so, with a large body, or after a while of work."""

    def __init__(self, clock):
        self.asked = 0
        self.bodies = []
        self.waiting = []
        self.work_seconds = 0.0
        self._clock = clock

    @answers(MaxOffset)
    def at_once(self, header, call):
        self.asked += 1
        self._clock._move_to(self._clock.monotonic() + self.work_seconds)
        return Reply(OffsetResponse(offset=header.queue_id))

    @answers(MinOffset)
    def later(self, header, call):
        self.waiting.append(Future())
        return self.waiting[-1]

    @answers(EarliestStoreTime)
    def large(self, header, call):
        self.asked += 1
        return Reply(body=bytes(LARGE))

    @answers(Heartbeat, SendMessage)
    def take(self, header, call):
        self.bodies.append(len(call.body))
        return Reply()


class Peer:
    """A plain connection, and what came over it."""

    def __init__(self, reader, writer):
        self.reader = reader
        self.writer = writer
        self._splitter = FrameSplitter(1 << 30)
        self._ready = []

    def ask(self, *headers, body=b"", flag=0):
        self.writer.write(b"".join(encode_request(each, body, opaque=n, flag=flag) for n, each in enumerate(headers)))

    async def answers(self, count):
        while len(self._ready) < count:
            data = await asyncio.wait_for(self.reader.read(1 << 20), PATIENCE_SECONDS)
            assert data, f"closed after {len(self._ready)} answers"
            self._ready += [decode_response(*frame) for frame in self._splitter.split(data)]
        ready, self._ready = self._ready[:count], self._ready[count:]
        return ready

    async def is_closed(self):
        with contextlib.suppress(ConnectionError):
            while await asyncio.wait_for(self.reader.read(1 << 20), PATIENCE_SECONDS):
                pass
        return True

    async def is_served(self):
        self.ask(maximum(7))
        (answer,) = await self.answers(1)
        return answer.fields == {"offset": "7"}

    def stop_reading(self):
        self.writer.transport.pause_reading()

    def go_on_reading(self):
        self.writer.transport.resume_reading()


def maximum(number):
    return MaxOffset(topic="t", queue_id=number)


def minimum(number):
    return MinOffset(topic="t", queue_id=number)


def large(number):
    return EarliestStoreTime(topic="t", queue_id=number)


def begun(header, size):
    """Return the beginning of a request that is to have so many bytes of body."""
    frame = encode_request(header, b"", opaque=1, flag=0)
    return frame_words(0, len(frame) - 8, size) + frame[8:]


@pytest.fixture(params=["compiled", "plain"])
def transports(request, monkeypatch):
    if request.param == "plain":
        monkeypatch.setattr(speedups, "is_active", False)
    elif not speedups.is_active:
        pytest.skip("not built, or switched off")


@pytest.fixture
def answering(clock):
    return Answers(clock)


@pytest.fixture
def refusals(clock):
    return RejectionLog(clock)


@pytest.fixture
async def serve(transports, clock, answering, refusals):
    """Start a server with limits: `await serve(unread_bytes=1 << 20)`."""
    servers = []

    async def start(**limits):
        server = Server(Dispatcher(answering, refusals=refusals), clock, limits=ConnectionLimits(**limits))
        await server.start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        await server.close(drain_seconds=0)


@pytest.fixture
async def connect():
    """Connect to a server: `await connect(server)`."""
    peers = []

    async def open_peer(server):
        peers.append(Peer(*await open_narrow(server.port)))
        return peers[-1]

    yield open_peer
    for peer in peers:
        peer.writer.transport.abort()
    await asyncio.gather(*(peer.writer.wait_closed() for peer in peers), return_exceptions=True)


def unread_bytes(server):
    return sum(connection._transport.get_write_buffer_size() for connection in server._connections)


# -- the size of a request


async def test_a_request_that_is_too_large_is_refused_before_it_has_come_and_the_next_is_served(
    serve, connect, answering, refusals, until
):
    server = await serve(header_bytes=4096, request_bytes=10_000)
    peer = await connect(server)
    peer.writer.write(begun(Heartbeat(), 2 * MIB))
    (answer,) = await peer.answers(1)
    assert answer.code == 1
    assert answer.remark.startswith("request 34 has 2097")
    assert "the limit is 10000 (maxRequestBytes)" in answer.remark
    for _ in range(32):
        peer.writer.write(bytes(65_536))
        await peer.writer.drain()
        assert all(session.splitter.incomplete_bytes == 0 for session in server.sessions)
    assert await peer.is_served()
    assert answering.bodies == []
    assert refusals.counts == {"maxRequestBytes": 1}


async def test_a_request_with_a_message_may_be_larger(serve, connect, answering):
    server = await serve(header_bytes=4096, request_bytes=10_000, message_request_bytes=100_000)
    peer = await connect(server)
    peer.ask(SEND, body=bytes(90_000))
    peer.ask(SEND, body=bytes(100_000))
    assert sorted([answer.code for answer in await peer.answers(2)]) == [0, 13]  # the latter: MESSAGE_ILLEGAL
    assert answering.bodies == [90_000]
    assert await peer.is_served()


async def test_a_large_request_that_wants_no_answer_is_passed_over(serve, connect, answering):
    server = await serve(request_bytes=1 << 12)
    peer = await connect(server)
    peer.ask(Heartbeat(), body=bytes(300_000), flag=ONE_WAY)
    assert await peer.is_served()
    assert answering.bodies == []


async def test_a_header_that_is_too_large_ends_the_connection(serve, connect, caplog):
    server = await serve(header_bytes=4096)
    peer = await connect(server)
    peer.writer.write(frame_words(0, 100_000, 0))
    assert await peer.is_closed()
    assert "header of 100000 bytes; the limit is 4096 (maxHeaderBytes)" in caplog.text


@pytest.mark.parametrize("cut", [1, 5, 8, 50, 4000])
async def test_a_large_request_may_come_in_any_pieces(serve, connect, answering, cut):
    server = await serve(header_bytes=1024)
    peer = await connect(server)
    frame = encode_request(Heartbeat(), bytes(5000), opaque=1, flag=0)
    peer.writer.write(frame[:cut])
    await asyncio.sleep(0.01)
    peer.writer.write(frame[cut:])
    assert [answer.code for answer in await peer.answers(1)] == [0]
    assert answering.bodies == [5000]


# -- answers that nobody reads


async def test_a_burst_whose_answers_nobody_reads_is_not_worked_off(serve, connect, answering, until):
    server = await serve(unread_bytes=MIB)
    deaf, other = await connect(server), await connect(server)
    deaf.stop_reading()
    deaf.ask(*map(large, range(200)))
    await until(lambda: unread_bytes(server) > MIB)
    for _ in range(20):
        assert await other.is_served()
    assert unread_bytes(server) < 4 * MIB
    assert answering.asked - 20 < 100
    deaf.go_on_reading()
    assert [answer.opaque for answer in await deaf.answers(200)] == list(range(200))


async def test_parked_answers_wait_until_those_before_are_read(serve, connect, answering, until):
    server = await serve(unread_bytes=MIB)
    deaf = await connect(server)
    deaf.stop_reading()
    deaf.ask(*map(minimum, range(200)))
    await until(lambda: len(answering.waiting) == 200)
    body = [memoryview(bytes(LARGE))]
    for future in answering.waiting:
        future.set_result(Reply(body=body))
    await until(lambda: unread_bytes(server) > MIB)
    assert unread_bytes(server) < 4 * MIB
    deaf.go_on_reading()
    answers = await deaf.answers(200)
    assert sorted(answer.opaque for answer in answers) == list(range(200))
    assert {len(answer.body) for answer in answers} == {LARGE}


@pytest.mark.parametrize("count", [2, 8, 40])
async def test_who_has_read_parked_answers_is_served_on(serve, connect, answering, until, count):
    """Bodies that are views count as no bytes of the server: nothing but that some answers were behind told of them."""
    server = await serve()
    peer = await connect(server)
    for _ in range(5):
        peer.ask(*map(minimum, range(count)))
        await until(lambda: len(answering.waiting) == count)
        for future in answering.waiting:
            future.set_result(Reply(body=[memoryview(bytes(LARGE))]))
        answering.waiting.clear()
        assert len(await peer.answers(count)) == count
        assert await peer.is_served()


async def test_all_together_leave_only_so_much_unread(serve, connect, answering, until, refusals):
    server = await serve(unread_bytes=4 * MIB, all_unread_bytes=4 * MIB)
    for count in range(
        1, 64
    ):  # each is stopped at its share of what is left, which becomes nothing: the next is too much
        peer = await connect(server)
        peer.stop_reading()
        peer.ask(*map(large, range(100)))
        await until(
            lambda count=count: (
                refusals.counts["maxAllUnreadBytes"] or sum(each.is_output_full for each in server.sessions) == count
            )
        )
        if refusals.counts["maxAllUnreadBytes"]:
            break
    assert refusals.counts["maxAllUnreadBytes"]
    assert count > 3, "a connection may take only its share of the limit"
    assert unread_bytes(server) <= 8 * MIB
    honest = await connect(server)
    honest.ask(*map(large, range(3)))
    assert len(await honest.answers(3)) == 3


# -- requests that are not complete, or not answered


async def test_begun_requests_of_all_together_take_only_so_much(serve, connect, refusals, until):
    server = await serve(received_bytes=MIB, request_bytes=8 * MIB)
    peers = [await connect(server) for _ in range(10)]
    for peer in peers:
        peer.writer.write(begun(Heartbeat(), 4 * MIB) + bytes(300_000))
        await peer.writer.drain()
    await until(lambda: refusals.counts["maxReceivedBytes"] >= 5)
    assert sum(session.splitter.incomplete_bytes for session in server.sessions) <= MIB + 300_000
    assert len(server.sessions) == 10 - refusals.counts["maxReceivedBytes"]
    honest = await connect(server)
    honest.ask(Heartbeat(), body=bytes(700_000))
    assert [answer.code for answer in await honest.answers(1)] == [0]


async def test_a_request_without_progress_ends_its_connection(serve, connect, clock, until, refusals):
    server = await serve(frame_timeout_ms=20_000)
    stuck, slow, idle = [await connect(server) for _ in range(3)]
    frame = encode_request(maximum(1), b"", opaque=1, flag=0)
    stuck.writer.write(frame[:30])
    await until(lambda: any(connection.is_within_frame for connection in server._connections))
    for position in range(4):
        slow.writer.write(frame[position : position + 1])
        await asyncio.sleep(0.005)
        await until(lambda: any(connection.idle_since == clock.monotonic() for connection in server._connections))
        await clock.advance(10)
    assert await stuck.is_closed()
    assert refusals.counts == {"frameTimeoutMillis": 1}
    assert await idle.is_served()
    slow.writer.write(frame[4:])
    assert len(await slow.answers(1)) == 1


async def test_so_many_requests_of_one_connection_may_be_in_flight(serve, connect, answering, until, refusals):
    server = await serve(requests_in_flight=3)
    peer, other = await connect(server), await connect(server)
    peer.ask(*map(minimum, range(5)))
    refused = await peer.answers(2)
    assert [answer.code for answer in refused] == [2, 2]
    assert "the limit is 3 (maxRequestsInFlight)" in refused[0].remark
    assert await other.is_served()
    for future in answering.waiting:
        future.set_result(Reply())
    assert [answer.code for answer in await peer.answers(3)] == [0, 0, 0]
    peer.ask(minimum(0))
    await until(lambda: len(answering.waiting) == 4)
    assert refusals.counts == {"maxRequestsInFlight": 2}


async def test_requests_in_flight_of_a_connection_that_is_gone_do_not_count(serve, connect, answering, until):
    server = await serve(all_requests_in_flight=1000)
    for _ in range(2):
        peer = await connect(server)
        count = len(answering.waiting)
        peer.ask(*map(minimum, range(300)))
        refused = await peer.answers(200)
        assert {answer.code for answer in refused} == {2}
        assert len(answering.waiting) - count == 100
        assert server._shared.budget.in_flight.used == 100
        peer.writer.transport.abort()
        await until(lambda: not server.sessions)
        assert server._shared.budget.in_flight.used == 0
    for future in answering.waiting:
        future.set_result(Reply())


# -- connections


@pytest.mark.parametrize("setting", ["connections", "connections_per_address"])
async def test_so_many_connections_are_taken(serve, connect, refusals, setting, until):
    server = await serve(**{setting: 3})
    peers = [await connect(server) for _ in range(3)]
    assert [await peer.is_served() for peer in peers] == [True] * 3
    assert await (await connect(server)).is_closed()
    assert refusals.counts.total() == 1
    peers[0].writer.transport.abort()
    await until(lambda: len(server.sessions) == 2)
    assert await (await connect(server)).is_served()


# -- turns


async def test_a_burst_of_expensive_requests_is_answered_in_slices(serve, connect, answering):
    server = await serve()
    busy, others = await connect(server), [await connect(server) for _ in range(3)]
    for peer in (busy, *others):
        assert await peer.is_served()
    answering.work_seconds = 0.001
    busy.ask(*map(maximum, range(500)))
    await asyncio.sleep(0)
    for peer in others:
        peer.ask(maximum(1))
    before = answering.asked
    for peer in others:
        await peer.answers(1)
    assert answering.asked - before < 250
    assert [answer.opaque for answer in await busy.answers(500)] == list(range(500))


async def test_requests_of_a_burst_are_answered_before_what_is_no_frame_ends_it(serve, connect, answering):
    server = await serve()
    peer = await connect(server)
    answering.work_seconds = 0.001
    peer.writer.write(
        b"".join(encode_request(maximum(n), b"", opaque=n, flag=0) for n in range(100)) + frame_words(0, 2, 0) + b"{]"
    )
    assert [answer.opaque for answer in await peer.answers(100)] == list(range(100))
    assert await peer.is_closed()


# -- the other side


async def test_an_answer_larger_than_a_frame_may_be_is_told_to_who_asked(dial):
    async def answer(reader, writer):
        await reader.read(100)
        writer.write(frame_words(RESPONSE, 10, MAX_FRAME_BYTES))
        await reader.read()
        writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with listening:
        listening.port = listening.sockets[0].getsockname()[1]
        channel = await dial(listening)
        with pytest.raises(ConnectionLost, match=r"broke: frame of 16777230 bytes; the limit is 16777212"):
            await channel.call(maximum(1), timeout=30)
