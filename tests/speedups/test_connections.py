"""Peers that are slow, break off or come in thousands, at a broker with whatever transports it has."""

from __future__ import annotations

import asyncio
import json
import socket
import struct

import pytest
from tests.broker.headers import pull_header, send_header
from tests.net.sockets import open_narrow
from tests.waiting import PATIENCE_SECONDS, until

from pyromq.remoting.command import MAX_FRAME_BYTES, FrameSplitter, decode_response, encode_request, frame_words
from pyromq.remoting.headers import CreateTopic, MaxOffset
from pyromq.testing import Cluster

RESET = struct.pack("ii", 1, 0)
SEND = send_header("TAGS\x01a", topic="t")
PULL = pull_header(consumer_group="g", topic="t", subscription="*")


class Peer:
    """One plain connection, and what came over it."""

    def __init__(self, reader, writer):
        self.reader = reader
        self.writer = writer
        self._splitter = FrameSplitter(1 << 30)
        self._ready = []

    async def answers(self, count):
        """Return so many answers."""
        while len(self._ready) < count:
            data = await asyncio.wait_for(self.reader.read(1 << 20), PATIENCE_SECONDS)
            assert data, f"closed after {len(self._ready)} answers"
            self._ready += [decode_response(*frame) for frame in self._splitter.split(data)]
        ready, self._ready = self._ready[:count], self._ready[count:]
        return ready

    async def ask(self, header, body=b"", opaque=1):
        self.writer.write(encode_request(header, body, opaque=opaque, flag=0))
        (answer,) = await self.answers(1)
        return answer

    async def rest(self):
        """Return the answers that come until the broker closes."""
        data = await asyncio.wait_for(self.reader.read(), PATIENCE_SECONDS)
        return self._ready + [decode_response(*frame) for frame in self._splitter.split(data)]

    def reset(self):
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.writer.transport.abort()


@pytest.fixture
async def broker(tmp_path):
    async with Cluster(data=tmp_path) as cluster:
        yield cluster.broker


@pytest.fixture
async def connect(broker):
    """Connect to the broker, which has a topic "t" with one message: `await connect()`."""
    peers = []

    async def connect():
        peers.append(Peer(*await open_narrow(broker.port, limit=1 << 16)))
        return peers[-1]

    first = await connect()
    assert (await first.ask(CreateTopic(topic="t", read_queues=4, write_queues=4, permission=6))).code == 0
    assert (await first.ask(SEND, b"x" * 1000)).code == 0
    yield connect
    for peer in peers:
        peer.writer.close()


def sends(count, body=b"hello"):
    return b"".join(encode_request(SEND, body, opaque=opaque, flag=0) for opaque in range(count))


def pulls(count):
    return b"".join(encode_request(PULL, b"", opaque=opaque, flag=0) for opaque in range(count))


async def test_thousands_of_requests_in_one_write_are_answered_in_order(connect):
    peer = await connect()
    peer.writer.write(sends(4000))
    answers = await peer.answers(4000)
    assert [answer.opaque for answer in answers] == list(range(4000))
    assert [int(answer.fields["queueOffset"]) for answer in answers] == list(range(1, 4001))


async def test_requests_that_come_byte_by_byte_are_answered(connect):
    peer = await connect()
    for byte in sends(2) + pulls(1):
        peer.writer.write(bytes((byte,)))
        await asyncio.sleep(0)
    assert [answer.code for answer in await peer.answers(3)] == [0, 0, 0]


async def test_peer_that_stops_sending_gets_all_answers_before_the_end(connect):
    peer = await connect()
    peer.writer.write(sends(500))
    peer.writer.write_eof()
    assert [answer.opaque for answer in await peer.rest()] == list(range(500))


async def test_requests_before_bytes_that_are_no_frame_are_answered(connect):
    peer = await connect()
    peer.writer.write(sends(300) + frame_words(0, 2, 0) + b"{]" + sends(5))
    assert [answer.opaque for answer in await peer.rest()] == list(range(300))


async def test_four_bytes_of_a_frame_that_is_too_large_end_the_connection(connect):
    peer = await connect()
    peer.writer.write(struct.pack(">I", MAX_FRAME_BYTES))
    assert await peer.rest() == []


@pytest.mark.parametrize("size", [MAX_FRAME_BYTES, MAX_FRAME_BYTES - 1, 5 << 20])
async def test_large_frame_is_refused_by_an_answer_and_the_next_is_served(connect, size):
    header = json.loads(FrameSplitter().split(sends(1))[0][1])
    raw = json.dumps(header).encode()
    peer = await connect()
    peer.writer.write(frame_words(0, len(raw), size - 8 - len(raw)) + raw + bytes(size - 8 - len(raw)) + sends(2))
    assert [answer.code for answer in await peer.answers(3)] == [13, 0, 0]  # MESSAGE_ILLEGAL


async def test_frame_one_byte_larger_than_allowed_ends_the_connection(connect):
    peer = await connect()
    peer.writer.write(sends(1) + frame_words(0, 2, MAX_FRAME_BYTES - 9) + b"{}")
    assert len(await peer.rest()) == 1


@pytest.mark.slow
async def test_peer_that_reads_nothing_is_waited_for_while_others_are_served(connect, broker):
    for _ in range(31):
        await (await connect()).ask(SEND, bytes(4000))
    slow, other = await connect(), await connect()
    slow.writer.transport.pause_reading()
    slow.writer.write(pulls(1500))  # 190 MB of answers
    await asyncio.sleep(0.05)
    for _ in range(50):
        assert (await asyncio.wait_for(other.ask(MaxOffset(topic="t", queue_id=0)), PATIENCE_SECONDS)).code == 0
    slow.writer.transport.resume_reading()
    answers = await slow.answers(1500)
    assert [answer.opaque for answer in answers] == list(range(1500))
    assert len({answer.body for answer in answers}) == 1


async def test_peer_that_reads_nothing_and_goes_is_forgotten(connect, broker):
    for _ in range(31):
        await (await connect()).ask(SEND, bytes(4000))
    before = len(broker._server.sessions)
    for way in ("close", "reset"):
        slow = await connect()
        slow.writer.transport.pause_reading()
        slow.writer.write(pulls(500))
        await asyncio.sleep(0.02)
        slow.reset() if way == "reset" else slow.writer.transport.abort()
        await until(lambda: len(broker._server.sessions) == before)


@pytest.mark.parametrize("cut", [1, 7, 8, 9, 100, 5000])
async def test_connection_that_is_reset_within_a_frame_is_forgotten_and_told(connect, broker, caplog, cut):
    before = len(broker._server.sessions)
    peer = await connect()
    peer.writer.write(sends(3) + sends(1, bytes(100_000))[:cut])
    await peer.answers(3)
    peer.reset()
    await until(lambda: len(broker._server.sessions) == before)
    assert f"ended within a frame, after {cut} bytes" in caplog.text


@pytest.mark.slow
async def test_thousands_of_connections_come_and_go(connect, broker):
    before = len(broker._server.sessions)
    for number in range(40):
        peers = await asyncio.gather(*(connect() for _ in range(50)))
        for peer in peers:
            peer.writer.write(sends(3)[: None if number % 2 else -5])
        for each, peer in enumerate(peers):
            answers = await peer.answers(3 if number % 2 else 2)
            assert {answer.code for answer in answers} == {0}
            peer.reset() if each % 2 else peer.writer.close()
        await until(lambda: len(broker._server.sessions) == before)
