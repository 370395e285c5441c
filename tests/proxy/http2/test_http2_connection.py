"""Our HTTP/2 against the library `h2` as the client, and against peers that break the protocol."""

import asyncio
import struct

import h2.events
import h2.exceptions
import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.proxy.http2.peer import HEADERS, Peer, connected, grpc_message, raw_frame, receive

from pyromq.proxy.http2 import frames
from pyromq.proxy.http2.frames import Http2Code
from pyromq.proxy.http2.grpc_status import GrpcCode
from pyromq.proxy.http2.header_blocks import MAX_HEADER_BYTES
from pyromq.proxy.http2.http2_connection import DEAD_ROUNDS, IDLE_SECONDS, MAX_NOISE, MAX_STREAMS, PING_ROUNDS
from pyromq.proxy.http2.shared_by_connections import MAX_WAITING

PREFACE = frames.PREFACE + raw_frame(4, 0, 0)
OPEN = raw_frame(1, 4, 1, hpack.Encoder().encode(HEADERS))


@pytest.fixture(autouse=True)
async def loop():
    """Let frames be written at the end of a turn of the event loop."""


def open_stream(peer: Peer) -> tuple[int, list[bytes]]:
    """Open a call with several messages; return its stream, and the list that its messages are added to."""
    number, received = peer.call(None, end=False), []

    def take(message):
        assert len(received) < 100, "messages without end"
        received.append(message)

    peer.exchange()
    peer.handler.streams[-1].received = take
    return number, received


async def test_a_call_is_answered():
    peer = Peer()

    number = peer.call(b"hello")
    peer.exchange()

    body, fields = peer.answer(number)
    assert body == grpc_message(b"hello")
    assert fields == {":status": "200", "content-type": "application/grpc", "grpc-status": "0"}
    assert len(peer.happened(h2.events.StreamEnded)) == 1
    assert peer.ours.streams == {}


@given(
    st.lists(st.binary(max_size=40_000), min_size=1, max_size=5),
    st.integers(1, 3000),
    st.sampled_from([None, 0, 1, 100, 65_535, 1 << 20]),
)
def test_any_calls_in_any_pieces_and_windows_are_answered(messages, piece, window):
    async def calls():
        peer = Peer(initial_window=window)
        numbers = [peer.call(message) for message in messages]
        peer.exchange(piece)
        if window is not None and window < 65_535:  # the client opens its windows later
            for number in numbers:
                if number not in {each.stream_id for each in peer.happened(h2.events.StreamEnded)}:
                    peer.client.increment_flow_control_window(1 << 20, number)
        peer.client.increment_flow_control_window(1 << 20)
        peer.exchange(piece)
        for number, message in zip(numbers, messages, strict=True):
            assert peer.answer(number)[0] == grpc_message(message)
        assert peer.ours.streams == {}

    asyncio.run(calls())


async def test_a_large_message_gets_its_window_when_there_is_memory():
    peer = Peer()

    number = peer.call(bytes(3 << 20))
    peer.exchange()
    peer.client.increment_flow_control_window(4 << 20)
    peer.client.increment_flow_control_window(4 << 20, number)
    peer.exchange()

    assert len(peer.answer(number)[0]) == (3 << 20) + 5
    assert peer.ours.shared.large.used == 0


@pytest.mark.parametrize("size", [20_000, 1 << 20])  # 20,000 bytes come in two frames, a large message needs memory
async def test_a_stream_gives_back_the_memory_of_each_message(size):
    peer = Peer()
    number, received = open_stream(peer)
    kept = peer.ours.kept

    for _ in range(30):  # large ones: together more than the limit
        peer.send(number, grpc_message(bytes(size)))
        peer.exchange()

    assert list(map(len, received)) == [size] * 30
    assert peer.ours.kept == kept
    assert peer.ours.shared.large.used == 0


async def test_answers_that_a_client_takes_late_are_no_longer_kept():
    peer = Peer(initial_window=1000)
    number, _ = open_stream(peer)
    kept = peer.ours.kept
    stream = peer.handler.streams[0]

    stream.send(bytes(50_000))
    peer.exchange()
    assert peer.ours.kept > kept + 40_000
    peer.client.increment_flow_control_window(60_000, number)
    peer.exchange()

    assert not stream.unsent
    assert peer.ours.kept == kept


REFUSED = {
    "compressed": (b"\1\0\0\0\1x", GrpcCode.UNIMPLEMENTED),
    "too large": (b"\0\xff\0\0\0x", GrpcCode.RESOURCE_EXHAUSTED),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_stream_ends_at_a_refused_message_even_if_its_answers_are_not_taken(name):
    message, code = REFUSED[name]
    peer = Peer(initial_window=0)
    number, received = open_stream(peer)
    peer.handler.streams[0].send(b"an answer")

    peer.send(number, grpc_message(b"first") + message + grpc_message(b"later"))
    peer.send(number, grpc_message(b"last"))
    peer.exchange()
    peer.client.increment_flow_control_window(1000, number)
    peer.exchange()
    peer.ours.connection_lost(None)

    assert received == [b"first"]
    assert peer.handler.ended == [number]
    assert peer.answer(number)[1]["grpc-status"] == str(int(code))


async def test_large_messages_that_find_no_memory_wait_or_are_refused():
    peer = Peer()
    memory, waiting = peer.ours.shared.large, peer.ours.shared.waiting
    memory.add(object(), memory.limit)
    start = b"\0" + (1 << 20).to_bytes(4, "big")
    numbers = [peer.call(None, end=False) for _ in range(MAX_WAITING + 1)]
    for number in numbers:
        peer.send(number, start)
    peer.exchange()

    assert len(waiting) == MAX_WAITING
    assert peer.answer(numbers[-1])[1]["grpc-status"] == str(int(GrpcCode.RESOURCE_EXHAUSTED))
    peer.ours.connection_lost(None)
    assert not waiting


async def test_a_message_over_the_limit_is_a_status():
    peer = Peer()

    number = peer.call(None, end=False)
    peer.send(number, b"\0" + (1 << 31).to_bytes(4, "big"))
    peer.exchange()

    assert peer.answer(number)[1]["grpc-status"] == str(int(GrpcCode.RESOURCE_EXHAUSTED))


async def test_a_compressed_message_is_unimplemented():
    peer = Peer()

    number = peer.call(None, end=False)
    peer.send(number, b"\1\0\0\0\1x", end=True)
    peer.exchange()

    assert peer.answer(number)[1]["grpc-status"] == str(int(GrpcCode.UNIMPLEMENTED))


@pytest.mark.parametrize("data", [b"\0\0\0", b"\0\0\0\0\5abc"])
async def test_a_cut_message_is_a_status(data):
    peer = Peer()

    number = peer.call(None, end=False)
    peer.send(number, data, end=True)
    peer.exchange()

    assert peer.answer(number)[1]["grpc-status"] == str(int(GrpcCode.INVALID_ARGUMENT))


async def test_a_message_that_does_not_arrive_is_given_up():
    peer = Peer()
    number = peer.call(None, end=False)
    peer.exchange()

    peer.ours.expire(peer.ours.clock.monotonic() + 31)
    peer.exchange()

    assert peer.answer(number)[1]["grpc-status"] == str(int(GrpcCode.DEADLINE_EXCEEDED))


async def test_the_messages_of_a_stream_have_time_from_their_own_beginning():
    peer = Peer()
    number, _ = open_stream(peer)
    clock = peer.ours.clock
    await clock.advance(1000)

    peer.send(number, grpc_message(b"hello")[:7])
    peer.exchange()
    peer.ours.expire(clock.monotonic() + 29)
    assert peer.ours.streams
    peer.ours.expire(clock.monotonic() + 31)
    peer.exchange()

    assert peer.answer(number)[1]["grpc-status"] == str(int(GrpcCode.DEADLINE_EXCEEDED))


async def test_streams_above_the_limit_are_refused_and_others_go_on():
    peer = Peer()
    peer.client.remote_settings[3] = 1 << 20  # the client disregards the limit
    peer.client.remote_settings.acknowledge()
    encoder, data = hpack.Encoder(), b""
    for number in range(MAX_STREAMS + 5):
        data += raw_frame(1, 4, 2 * number + 1, encoder.encode(HEADERS))

    receive(peer.ours, data)

    assert len(peer.ours.streams) == MAX_STREAMS
    assert peer.written().count(b"\0\0\4\3\0") == 5  # RST_STREAM


async def test_a_cancelled_call_ends():
    peer = Peer()
    peer.handler.answers = False
    number = peer.call(b"wait")
    peer.exchange()

    peer.client.reset_stream(number)
    peer.exchange()

    assert peer.handler.ended == [number]


async def test_a_lost_connection_ends_its_calls():
    peer = Peer()
    peer.handler.answers = False
    numbers = [peer.call(b"wait") for _ in range(3)]
    peer.exchange()

    peer.ours.connection_lost(None)

    assert peer.handler.ended == numbers


async def test_messages_wait_for_a_client_that_reads_none():
    peer = Peer(initial_window=0)
    peer.handler.answers = False
    number = peer.call(b"x")
    peer.exchange()
    stream = peer.handler.streams[0]

    stream.send(bytes(100_000))
    waiting = asyncio.ensure_future(stream.until_room())
    await asyncio.sleep(0)
    assert not waiting.done()
    peer.exchange()
    for _ in range(8):
        peer.client.increment_flow_control_window(20_000, number)
        peer.client.increment_flow_control_window(20_000)
        peer.exchange()

    assert await waiting
    stream.finish()
    peer.exchange()
    assert len(peer.answer(number)[0]) == 100_005


async def test_a_peer_that_reads_nothing_is_not_read():
    peer = Peer()

    peer.ours.pause_writing()
    assert not peer.pipe.is_read
    peer.ours.resume_writing()
    assert peer.pipe.is_read


async def test_much_work_in_progress_pauses_reading():
    peer = Peer()
    peer.handler.answers = False
    for _ in range(20):
        peer.call(bytes(60_000))
        peer.exchange()

    assert not peer.pipe.is_read
    for stream in peer.handler.streams:
        stream.reply(b"")
    assert peer.pipe.is_read


async def test_trailers_of_the_client_end_its_messages():
    peer = Peer()

    number = peer.call(b"hello", end=False)
    peer.client.send_headers(number, [("x-last", "1")], end_stream=True)
    peer.exchange()

    assert peer.answer(number)[0] == grpc_message(b"hello")


async def test_a_request_that_is_no_grpc_is_refused_and_the_connection_goes_on():
    peer = Peer()

    number = peer.call(None, headers=[(":method", "GET"), *HEADERS[1:]])
    other = peer.call(b"hello")
    peer.exchange()

    assert peer.answer(number)[1][":status"] == "405"
    assert peer.answer(other)[0] == grpc_message(b"hello")


async def test_a_status_text_of_any_characters_arrives():
    peer = Peer()
    peer.handler.answers = False
    number = peer.call(b"x")
    peer.exchange()

    peer.handler.streams[0].finish(GrpcCode.INTERNAL, "Thema ‘ä’\n% \x00")
    peer.exchange()

    assert peer.answer(number)[1]["grpc-message"] == "Thema %E2%80%98%C3%A4%E2%80%99%0A%25 %00"


async def test_ping_and_settings_are_acknowledged():
    peer = Peer()

    peer.client.ping(b"12345678")
    peer.exchange()

    assert len(peer.happened(h2.events.PingAckReceived)) == 1
    assert peer.happened(h2.events.SettingsAcknowledged)


async def test_an_idle_connection_is_told_to_leave():
    peer = Peer()

    peer.ours.expire(peer.ours.clock.monotonic() + IDLE_SECONDS + 1)
    peer.exchange()

    (left,) = peer.happened(h2.events.ConnectionTerminated)
    assert left.error_code == Http2Code.NO_ERROR
    assert peer.pipe.is_closed


async def test_a_peer_that_answers_no_ping_is_gone_and_its_calls_end():
    peer = Peer()
    open_stream(peer)
    now = peer.ours.clock.monotonic()

    for _ in range(PING_ROUNDS):
        peer.ours.expire(now)
    peer.exchange()
    assert len(peer.happened(h2.events.PingReceived)) == 1
    for _ in range(DEAD_ROUNDS - 1):
        peer.ours.expire(now)
    assert not peer.pipe.is_closed
    peer.ours.expire(now)
    assert peer.pipe.is_closed


async def test_an_idle_peer_without_calls_gets_no_ping():
    peer = Peer()

    for _ in range(DEAD_ROUNDS):
        peer.ours.expire(peer.ours.clock.monotonic())
    peer.exchange()

    assert not peer.happened(h2.events.PingReceived)
    assert not peer.pipe.is_closed


async def test_a_connection_that_leaves_lets_its_calls_end():
    peer = Peer()
    peer.handler.answers = False
    number = peer.call(b"x")
    peer.exchange()

    peer.ours.leave()
    assert not peer.pipe.is_closed
    assert b"\0\0\x08\7\0" in peer.written()  # GOAWAY, after which h2 reads nothing more
    assert peer.ours.streams.keys() == {number}
    peer.handler.streams[0].reply(b"last")

    assert grpc_message(b"last") in peer.written()
    assert peer.pipe.is_closed


async def test_a_connection_that_says_nothing_is_closed():
    connection, pipe, _ = connected()

    connection.expire(connection.clock.monotonic() + 11)

    assert pipe.is_closed


@pytest.mark.parametrize("method", [b"GET", b"POST", b"PUT"])
async def test_http1_is_answered_in_http1(method):
    connection, pipe, _ = connected()
    pipe.written = b""

    connection.data_received(method + b" / HTTP/1.1\r\nHost: a\r\n\r\n")

    assert pipe.written.startswith(b"HTTP/1.1 505 ")
    assert b"gRPC" in pipe.written
    assert pipe.is_closed


BROKEN = {
    "no preface": (b"\x00\x00\x00\x00", Http2Code.PROTOCOL_ERROR),
    "data first": (frames.PREFACE + raw_frame(0, 0, 1, b"x"), Http2Code.PROTOCOL_ERROR),
    "large frame": (PREFACE + b"\x00\x40\x01" + b"\0\0\0\0\0\1", Http2Code.FRAME_SIZE_ERROR),
    "even stream": (PREFACE + raw_frame(1, 4, 2, hpack.Encoder().encode(HEADERS)), Http2Code.PROTOCOL_ERROR),
    "data for no stream": (PREFACE + raw_frame(0, 0, 1, b"x"), Http2Code.PROTOCOL_ERROR),
    "data for the connection": (PREFACE + raw_frame(0, 0, 0, b"x"), Http2Code.PROTOCOL_ERROR),
    "no header block": (PREFACE + raw_frame(1, 4, 1, b"\xff" * 6), Http2Code.COMPRESSION_ERROR),
    "empty index": (PREFACE + raw_frame(1, 4, 1, b"\x80"), Http2Code.COMPRESSION_ERROR),
    "no path": (PREFACE + raw_frame(1, 5, 1, b"\x83"), Http2Code.PROTOCOL_ERROR),
    "headers in continuation": (
        PREFACE + raw_frame(1, 0, 1, b"\x83") + raw_frame(1, 4, 3, b"\x83"), Http2Code.PROTOCOL_ERROR
    ),
    "lonely continuation": (PREFACE + raw_frame(9, 4, 1, b"\x83"), Http2Code.PROTOCOL_ERROR),
    "continuation of another": (
        PREFACE + raw_frame(1, 0, 1, b"\x83") + raw_frame(9, 4, 3, b"\x83"), Http2Code.PROTOCOL_ERROR
    ),
    "continuations without end": (
        PREFACE + raw_frame(1, 0, 1) + raw_frame(9, 0, 1, b"\x83" * 10_000) * 4, Http2Code.ENHANCE_YOUR_CALM
    ),
    "empty continuations": (
        PREFACE + raw_frame(1, 0, 1) + raw_frame(9, 0, 1) * (MAX_NOISE + 1), Http2Code.ENHANCE_YOUR_CALM
    ),
    "huge headers": (
        PREFACE + raw_frame(1, 4, 1, hpack.Encoder().encode([*HEADERS, ("x", "~" * 12_000)], huffman=False)),
        None,
    ),
    "header bomb": (
        PREFACE
        + raw_frame(1, 0, 1, hpack.Encoder().encode([*HEADERS, ("x", "y" * 3000)], huffman=False))
        + raw_frame(9, 4, 1, b"\xbe" * 1000),
        Http2Code.ENHANCE_YOUR_CALM,
    ),
    "padding longer than the frame": (PREFACE + OPEN + raw_frame(0, 8, 1, b"\x09abc"), Http2Code.PROTOCOL_ERROR),
    "short priority": (PREFACE + raw_frame(2, 0, 1, b"abc"), Http2Code.FRAME_SIZE_ERROR),
    "short reset": (PREFACE + OPEN + raw_frame(3, 0, 1, b"abc"), Http2Code.FRAME_SIZE_ERROR),
    "reset of no stream": (PREFACE + raw_frame(3, 0, 1, b"\0\0\0\0"), Http2Code.PROTOCOL_ERROR),
    "settings of a stream": (PREFACE + raw_frame(4, 0, 1), Http2Code.PROTOCOL_ERROR),
    "half a setting": (PREFACE + raw_frame(4, 0, 0, b"abc"), Http2Code.FRAME_SIZE_ERROR),
    "window setting": (PREFACE + raw_frame(4, 0, 0, b"\0\4\xff\xff\xff\xff"), Http2Code.FLOW_CONTROL_ERROR),
    "frame size setting": (PREFACE + raw_frame(4, 0, 0, b"\0\5\0\0\0\1"), Http2Code.PROTOCOL_ERROR),
    "push setting": (PREFACE + raw_frame(4, 0, 0, b"\0\2\0\0\0\2"), Http2Code.PROTOCOL_ERROR),
    "push": (PREFACE + raw_frame(5, 4, 1, b"\0\0\0\2"), Http2Code.PROTOCOL_ERROR),
    "short ping": (PREFACE + raw_frame(6, 0, 0, b"abc"), Http2Code.FRAME_SIZE_ERROR),
    "window of nothing": (PREFACE + raw_frame(8, 0, 0, b"\0\0\0\0"), Http2Code.PROTOCOL_ERROR),
    "window too large": (PREFACE + raw_frame(8, 0, 0, b"\x7f\xff\xff\xff"), Http2Code.FLOW_CONTROL_ERROR),
    "pings": (PREFACE + raw_frame(6, 0, 0, bytes(8)) * (MAX_NOISE + 1), Http2Code.ENHANCE_YOUR_CALM),
    "settings": (PREFACE + raw_frame(4, 0, 0) * (MAX_NOISE + 1), Http2Code.ENHANCE_YOUR_CALM),
    "empty data": (PREFACE + OPEN + raw_frame(0, 0, 1) * (MAX_NOISE + 1), Http2Code.ENHANCE_YOUR_CALM),
    "unknown frames": (PREFACE + raw_frame(99, 0, 0) * (MAX_NOISE + 1), Http2Code.ENHANCE_YOUR_CALM),
    "headers of the connection": (PREFACE + raw_frame(1, 4, 0, b"\x83"), Http2Code.PROTOCOL_ERROR),
    "short priority of headers": (PREFACE + raw_frame(1, 0x24, 1, b"abc"), Http2Code.FRAME_SIZE_ERROR),
    "priority of the connection": (PREFACE + raw_frame(2, 0, 0, bytes(5)), Http2Code.PROTOCOL_ERROR),
    "reset of the connection": (PREFACE + raw_frame(3, 0, 0, bytes(4)), Http2Code.PROTOCOL_ERROR),
    "acknowledged settings": (PREFACE + raw_frame(4, 1, 0, bytes(6)), Http2Code.FRAME_SIZE_ERROR),
    "push for the connection": (PREFACE + raw_frame(5, 4, 0, b"\0\0\0\2"), Http2Code.PROTOCOL_ERROR),
    "ping of a stream": (PREFACE + OPEN + raw_frame(6, 0, 1, bytes(8)), Http2Code.PROTOCOL_ERROR),
    "goaway of a stream": (PREFACE + OPEN + raw_frame(7, 0, 1, bytes(8)), Http2Code.PROTOCOL_ERROR),
    "window of no stream": (PREFACE + OPEN + raw_frame(8, 0, 3, b"\0\0\0\1"), Http2Code.PROTOCOL_ERROR),
    "continuation of the connection": (PREFACE + raw_frame(9, 4, 0, b"\x83"), Http2Code.PROTOCOL_ERROR),
    "interrupted header block": (PREFACE + raw_frame(1, 0, 1) + raw_frame(99, 0, 1), Http2Code.PROTOCOL_ERROR),
    "opened twice": (PREFACE + OPEN + OPEN, Http2Code.PROTOCOL_ERROR),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
async def test_a_peer_that_breaks_the_protocol_is_told_and_closed(name):
    data, code = BROKEN[name]
    connection, pipe, _ = connected()
    pipe.written = b""

    receive(connection, data)

    if code is None:
        assert not pipe.is_closed
        return
    assert pipe.is_closed
    at = pipe.written.rindex(b"\x07\x00\x00\x00\x00\x00") + 6
    assert struct.unpack_from(">II", pipe.written, at)[1] == code
    connection.connection_lost(None)
    assert connection.streams == {}


async def test_streams_opened_and_reset_at_once_close_the_connection():
    connection, pipe, _ = connected()
    encoder = hpack.Encoder()
    data = PREFACE
    for number in range(1, 2 * MAX_NOISE + 5, 2):
        data += raw_frame(1, 4, number, encoder.encode(HEADERS)) + raw_frame(3, 0, number, bytes(4))

    receive(connection, data)

    assert pipe.is_closed


@given(st.binary(max_size=200), st.integers(0, 9), st.integers(0, 255), st.integers(0, 3))
def test_no_frame_raises(payload, kind, flags, stream):
    async def receive():
        connection, pipe, _ = connected()
        connection.data_received(PREFACE + OPEN + raw_frame(kind, flags, stream, payload))
        if not pipe.is_closed:
            connection.data_received(raw_frame(6, 0, 0, bytes(8)))
        connection.connection_lost(None)

    asyncio.run(receive())


def test_the_limit_of_header_fields_leaves_room_for_official_clients():
    assert MAX_HEADER_BYTES > 10 * 700
