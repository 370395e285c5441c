"""What `hostile_proxy.py` has a stranger do to the gRPC port, each a row of its table: as much as it can send."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from itertools import count
from typing import TypeVar

import hpack

from loads.hostile_rows import Row, Stranger, send_all
from pyromq.proxy.proto import definition_pb2 as proto
from pyromq.proxy.proto import service_pb2 as service

TOPIC = "honest"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 2, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS = 1, 4
ROUNDS = 20  # connections of most rows
NUMBERS = count()
F = TypeVar("F", bound=Callable[[Stranger], None])
ROWS: list[Row] = []


def row(name: str, *, settle_seconds: float = 0.5) -> Callable[[F], F]:
    def add(act: F) -> F:
        ROWS.append(Row(name, act, settle_seconds=settle_seconds))
        return act

    return add


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def settings(*pairs: tuple[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in pairs))


def window(stream: int, size: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, size.to_bytes(4, "big"))


def block(method: str, *more: tuple[str, str], client_id: str = "stranger@1@0@a") -> bytes:
    """Return a header block that changes no table, so that it can be repeated."""
    fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", f"/apache.rocketmq.v2.MessagingService/{method}"),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("x-mq-client-id", client_id),
        *more,
    ]
    encoder = hpack.Encoder()
    return encoder.encode([hpack.NeverIndexedHeaderTuple(*each) for each in fields], huffman=False)


def grpc_message(message: bytes, *, compressed: bool = False) -> bytes:
    return struct.pack(">BI", compressed, len(message)) + message


def call(stream: int, header_block: bytes, message: bytes) -> bytes:
    """Return the frames of a unary call, whose message fits into frames of 16 KiB."""
    data = grpc_message(message)
    parts = [data[at : at + 16_384] for at in range(0, len(data), 16_384)]
    bodies = [frame(DATA, END_STREAM * (number == len(parts)), stream, each) for number, each in enumerate(parts, 1)]
    return frame(HEADERS, END_HEADERS, stream, header_block) + b"".join(bodies)


def streams(number: int) -> range:
    return range(1, 2 * number, 2)


def greeted(stranger: Stranger, *pairs: tuple[int, int]) -> socket.socket:
    connection = stranger.connect()
    connection.settimeout(5.0)
    connection.sendall(PREFACE + settings(*pairs))
    return connection


def flood(stranger: Stranger, data: bytes, connections: int = ROUNDS, *pairs: tuple[int, int]) -> None:
    """Send the same bytes over several connections in turns, as long as the server takes them. Answers stay unread."""
    open_ones = [(greeted(stranger, *pairs), memoryview(data)) for _ in range(stranger.many(connections))]
    for connection, _ in open_ones:
        connection.settimeout(2.0)
    while open_ones:
        left = []
        for connection, rest in open_ones:
            try:
                taken = connection.send(rest[: 1 << 16])
            except OSError:  # the server has closed the connection, or reads no more
                continue
            if taken < len(rest):
                left.append((connection, rest[taken:]))
        open_ones = left
    stranger.rest(1.0)


def settings_command(*topics: str) -> bytes:
    found = proto.Settings(client_type=proto.PRODUCER)
    found.publishing.topics.extend(proto.Resource(name=topic) for topic in topics)
    return service.TelemetryCommand(settings=found).SerializeToString()


def sent(body: bytes, copies: int = 1) -> bytes:
    message = proto.Message(topic=proto.Resource(name=TOPIC), body=body)
    message.system_properties.message_id = "01A"
    message.system_properties.message_type = proto.NORMAL
    return service.SendMessageRequest(messages=[message] * copies).SerializeToString()


def received(number: int, *, group: str = "strangers", expression: str = "*", kind: int = 1) -> bytes:
    request = service.ReceiveMessageRequest(group=proto.Resource(name=group), batch_size=32)
    request.message_queue.topic.name = TOPIC
    request.message_queue.broker.name = "broker-a"
    request.invisible_duration.FromSeconds(10)
    request.long_polling_timeout.FromSeconds(20)
    request.filter_expression.expression = expression
    request.filter_expression.type = kind  # type: ignore[assignment]
    request.attempt_id = str(number)
    return request.SerializeToString()


HEARTBEAT = service.HeartbeatRequest(client_type=proto.PRODUCER).SerializeToString()
BEAT = block("Heartbeat")


def calls(stranger: Stranger, number: int, header_block: bytes, message: bytes) -> bytes:
    return b"".join(call(stream, header_block, message) for stream in streams(stranger.many(number)))


# --- connections and frames


@row("1,000 connections at once")
def many_connections(stranger: Stranger) -> None:
    for _ in range(stranger.many(1000)):
        greeted(stranger)
    stranger.rest(1.0)


@row("connections opened and closed, 5,000 times")
def short_connections(stranger: Stranger) -> None:
    for _ in range(stranger.many(5000)):
        with socket.create_connection(("127.0.0.1", stranger.port)) as connection:
            send_all(connection, PREFACE + settings())


@row("requests of HTTP/1, 2,000")
def http1(stranger: Stranger) -> None:
    for _ in range(stranger.many(2000)):
        with socket.create_connection(("127.0.0.1", stranger.port)) as connection:
            send_all(connection, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n" + bytes(10_000))


@row("1,000 connections, the preface byte by byte")
def slow_prefaces(stranger: Stranger) -> None:
    connections = [stranger.connect() for _ in range(stranger.many(1000))]
    for at in range(stranger.many(10)):
        for connection in connections:
            send_all(connection, PREFACE[at : at + 1])
        stranger.rest(0.1)


@row("frames cut in the middle, 1,000 connections")
def half_frames(stranger: Stranger) -> None:
    for _ in range(stranger.many(1000)):
        send_all(greeted(stranger), frame(DATA, 0, 1, bytes(16_384))[:16_000])
    stranger.rest(1.0)


@row("bursts of 256 KiB over 500 connections")
def long_bursts(stranger: Stranger) -> None:
    data = b"".join(call(stream, BEAT, HEARTBEAT) for stream in streams(1300))[: 256 << 10]
    connections = [stranger.connect() for _ in range(stranger.many(500))]
    for connection in connections:
        connection.setblocking(False)
        send_all(connection, PREFACE + settings() + data)
    stranger.rest(3.0)


@row("pings, 20 x 200,000")
def pings(stranger: Stranger) -> None:
    flood(stranger, frame(PING, 0, 0, bytes(8)) * stranger.many(200_000))


@row("settings, 20 x 100,000")
def many_settings(stranger: Stranger) -> None:
    flood(stranger, settings() * stranger.many(100_000))


@row("settings that change 1,000 streams 2,700 times a frame")
def long_settings(stranger: Stranger) -> None:
    opened = b"".join(frame(HEADERS, END_HEADERS, stream, BEAT) for stream in streams(stranger.many(1000)))
    flood(stranger, opened + settings(*[(4, number % 2) for number in range(2700)]) * stranger.many(1000), 5)


@row("unknown frames and priorities, 20 x 100,000")
def noise(stranger: Stranger) -> None:
    flood(stranger, (frame(99, 0, 1) + frame(PRIORITY, 0, 1, bytes(5))) * stranger.many(100_000))


@row("empty DATA and one-byte DATA with padding, 20 x 50,000")
def empty_data(stranger: Stranger) -> None:
    opened = frame(HEADERS, END_HEADERS, 1, BEAT)
    flood(stranger, opened + (frame(DATA, 0, 1) + frame(DATA, 8, 1, bytes([250]) + bytes(251))) * stranger.many(50_000))


@row("windows opened by one byte, 1,000 answers waiting, 5 x 100,000")
def window_dribble(stranger: Stranger) -> None:
    data = calls(stranger, 1000, BEAT, HEARTBEAT) + b"".join(
        window(stream, 1) for _ in range(stranger.many(100)) for stream in streams(stranger.many(1000))
    )
    flood(stranger, data, 5, (4, 0))


@row("the connection's window opened by one byte, 1,000 answers waiting")
def connection_dribble(stranger: Stranger) -> None:
    opened = calls(stranger, 1000, BEAT, HEARTBEAT) + b"".join(window(stream, 100_000) for stream in streams(1000))
    flood(stranger, opened + window(0, 1) * stranger.many(100_000), 5, (4, 0))


# --- header blocks


@row("CONTINUATION without end, 20 x 100,000")
def continuations(stranger: Stranger) -> None:
    flood(stranger, frame(HEADERS, 0, 1, b"\x83") + frame(CONTINUATION, 0, 1, b"\x83") * stranger.many(100_000))


@row("CONTINUATION: 30 KiB kept on 1,000 connections")
def kept_continuations(stranger: Stranger) -> None:
    data = frame(HEADERS, 0, 1, bytes(15_000)) + frame(CONTINUATION, 0, 1, bytes(15_000))
    for _ in range(stranger.many(1000)):
        send_all(greeted(stranger), data)
    stranger.rest(1.0)


@row("header bombs: references to a field of 4,000 bytes")
def header_bombs(stranger: Stranger) -> None:
    encoder = hpack.Encoder()
    bomb = encoder.encode([("x", "y" * 4000)], huffman=False) + b"\xbe" * 15_000
    for _ in range(stranger.many(2000)):
        with socket.create_connection(("127.0.0.1", stranger.port)) as connection:
            first = frame(HEADERS, 0, 1, bomb[:16_000])
            send_all(connection, PREFACE + settings() + first + frame(CONTINUATION, END_HEADERS, 1, bomb[16_000:]))


@row("Huffman-coded fields of 15 KB, 20 x 1,000 calls")
def huffman(stranger: Stranger) -> None:
    fields = [hpack.NeverIndexedHeaderTuple(f"x-{number}", "e" * 1200) for number in range(11)]
    data = BEAT + hpack.Encoder().encode(fields, huffman=True)
    flood(stranger, calls(stranger, 1000, data, HEARTBEAT))


@row("calls with 300 fields each that stay open, 10 x 1,000")
def many_fields(stranger: Stranger) -> None:
    more = hpack.Encoder().encode([hpack.NeverIndexedHeaderTuple(f"f{n}", "v") for n in range(300)], huffman=False)
    opened = [frame(HEADERS, END_HEADERS, stream, BEAT + more) for stream in streams(stranger.many(1000))]
    flood(stranger, b"".join(opened), 10)


# --- calls


@row("10,000 idle streams over 10 connections")
def idle_streams(stranger: Stranger) -> None:
    flood(stranger, b"".join(frame(HEADERS, END_HEADERS, stream, BEAT) for stream in streams(stranger.many(1000))), 10)


@row("idle streams with fields of 15 KB, 10,000 over 10 connections")
def idle_large_streams(stranger: Stranger) -> None:
    data = block("SendMessage", ("x", "~" * 15_000))
    flood(stranger, b"".join(frame(HEADERS, END_HEADERS, stream, data) for stream in streams(stranger.many(1000))), 10)


@row("calls reset at once, 20 x 50,000")
def rapid_reset(stranger: Stranger) -> None:
    pairs = [
        frame(HEADERS, END_HEADERS, stream, BEAT) + frame(RST_STREAM, 0, stream, bytes(4))
        for stream in streams(stranger.many(50_000))
    ]
    flood(stranger, b"".join(pairs))


@row("calls that the server must reset, 20 x 50,000")
def made_resets(stranger: Stranger) -> None:
    pairs = [
        frame(HEADERS, END_HEADERS, stream, BEAT) + window(stream, (1 << 31) - 1)
        for stream in streams(stranger.many(50_000))
    ]
    flood(stranger, b"".join(pairs))


@row("answers that are not read, 20 x 20,000 calls")
def unread_answers(stranger: Stranger) -> None:
    flood(stranger, calls(stranger, 20_000, BEAT, HEARTBEAT))


@row("answers for a window of zero, 20 x 1,000 calls")
def zero_windows(stranger: Stranger) -> None:
    request = service.QueryRouteRequest(topic=proto.Resource(name=TOPIC))
    request.endpoints.addresses.extend([proto.Address(host="h" * 200, port=1)] * 64)
    flood(stranger, calls(stranger, 1000, block("QueryRoute"), request.SerializeToString()), ROUNDS, (4, 0))


@row("calls of unknown methods, 20 x 20,000")
def unknown_methods(stranger: Stranger) -> None:
    flood(stranger, calls(stranger, 20_000, block("M" * 500), b""))


@row("messages compressed by an unknown encoding, 20 x 10,000")
def compressed(stranger: Stranger) -> None:
    headers = block("SendMessage", ("grpc-encoding", "zstd"))
    data = grpc_message(bytes(100), compressed=True)
    flood(
        stranger,
        b"".join(
            frame(HEADERS, END_HEADERS, stream, headers) + frame(DATA, END_STREAM, stream, data)
            for stream in streams(stranger.many(10_000))
        ),
    )


@row("messages that are no protobuf, 20 x 20,000")
def no_protobuf(stranger: Stranger) -> None:
    flood(stranger, calls(stranger, 20_000, block("SendMessage"), b"\xff" * 50))


# --- messages


def cut_messages(stranger: Stranger, size: int, number: int) -> None:
    """Send the first 48 kB of so many messages of `size` bytes over each of 50 connections."""
    start = struct.pack(">BI", 0, size) + bytes(16_000)
    opened = [
        frame(HEADERS, END_HEADERS, stream, block("SendMessage"))
        + frame(DATA, 0, stream, start)
        + frame(DATA, 0, stream, bytes(16_000)) * 2
        for stream in streams(stranger.many(number))
    ]
    flood(stranger, b"".join(opened), 50)


@row("messages of 4 MB cut before their end, 50 x 100")
def incomplete_messages(stranger: Stranger) -> None:
    cut_messages(stranger, 4_000_000, 100)


@row("messages of 60 kB cut before their end, 50 x 1,000")
def incomplete_small_messages(stranger: Stranger) -> None:
    cut_messages(stranger, 60_000, 1000)


def sending_large(connection: socket.socket, message: bytes) -> Iterator[None]:
    """Send one large message as the server opens the window; a step for each 16 KiB."""
    data, allowed, buffer = grpc_message(message), 65_535, b""
    send_all(connection, frame(HEADERS, END_HEADERS, 1, block("SendMessage")))
    at = 0
    connection.settimeout(0.5)
    while at < len(data):
        size = min(16_384, len(data) - at, allowed - at)
        if size > 0:
            if not send_all(connection, frame(DATA, END_STREAM * (at + size == len(data)), 1, data[at : at + size])):
                return
            at += size
            yield
            continue
        try:
            more = connection.recv(1 << 16)
        except OSError:
            more = b""
        if not more:
            return
        buffer += more
        while len(buffer) >= 9 and len(buffer) >= 9 + (length := int.from_bytes(buffer[:3], "big")):
            if buffer[3] == WINDOW_UPDATE and buffer[5:9] == b"\0\0\0\1":
                allowed += int.from_bytes(buffer[9:13], "big")
            buffer = buffer[9 + length :]


def send_large(stranger: Stranger, message: bytes, connections: int) -> None:
    work = [sending_large(greeted(stranger), message) for _ in range(stranger.many(connections))]
    while work:
        work = [each for each in work if next(each, work) is not work]
    stranger.rest(1.0)


@row("messages of 4 MB, 30 connections at once")
def large_messages(stranger: Stranger) -> None:
    send_large(stranger, sent(bytes(int(4_000_000 * min(1.0, stranger.size)))), 30)


@row("a request of 15 MB: millions of empty messages, 4 connections")
def empty_messages(stranger: Stranger) -> None:
    send_large(stranger, b"\x0a\x00" * int(7_500_000 * min(1.0, stranger.size)), 4)


@row("a request of 15 MB: one message with millions of keys, 4 connections")
def empty_keys(stranger: Stranger) -> None:
    keys = proto.SystemProperties(keys=[""] * stranger.many(1_000_000))
    properties = keys.SerializeToString() * 7
    message = proto.Message(topic=proto.Resource(name=TOPIC))
    rest = proto.Message.FromString(message.SerializeToString())
    rest.system_properties.ParseFromString(properties)
    send_large(stranger, service.SendMessageRequest(messages=[rest]).SerializeToString(), 4)


@row("1,000 acknowledgements with 1,000 wrong handles each")
def many_entries(stranger: Stranger) -> None:
    request = service.AckMessageRequest(group=proto.Resource(name="strangers"), topic=proto.Resource(name=TOPIC))
    handle = "0 1700000000000 30000 3 0 broker-a 0 0 0"
    request.entries.extend([service.AckMessageEntry(message_id="01", receipt_handle=handle)] * 1000)
    flood(stranger, calls(stranger, 50, block("AckMessage"), request.SerializeToString()))


@row("sends of 128 small messages, 20 x 500")
def small_batches(stranger: Stranger) -> None:
    flood(stranger, calls(stranger, 500, block("SendMessage"), sent(b"x", 128)))


@row("128 messages with 128 user properties each, 20 x 20")
def many_properties(stranger: Stranger) -> None:
    message = proto.Message(topic=proto.Resource(name=TOPIC), body=b"x")
    message.system_properties.message_id = "01A"
    message.system_properties.message_type = proto.FIFO
    message.system_properties.message_group = "g"
    for number in range(120):
        message.user_properties[f"p{number}"] = "v"
    data = service.SendMessageRequest(messages=[message] * 40).SerializeToString()
    flood(stranger, calls(stranger, 20, block("SendMessage"), data))


@row("SQL expressions of 15 kB, 20 x 200")
def long_expressions(stranger: Stranger) -> None:
    expression = " OR ".join(f"(a{number} = 1 AND NOT b BETWEEN 1 AND 2)" for number in range(350))
    flood(stranger, calls(stranger, 200, block("ReceiveMessage"), received(0, expression=expression, kind=2)))


@row("receives that wait, 10 x 1,000, cancelled", settle_seconds=1.0)
def waiting_receives(stranger: Stranger) -> None:
    opened = calls(stranger, 1000, block("ReceiveMessage"), received(1))
    resets = b"".join(frame(RST_STREAM, 0, stream, bytes(4)) for stream in streams(stranger.many(1000)))
    flood(stranger, opened, 10)
    flood(stranger, opened + resets, 10)


@row("receives of large messages that are not read, 10 x 300", settle_seconds=1.0)
def unread_receives(stranger: Stranger) -> None:
    filler = greeted(stranger)
    for number in range(stranger.many(300)):
        send_all(filler, call(2 * number + 1, block("SendMessage"), sent(bytes(60_000))))
    stranger.rest(1.0)
    for number in range(stranger.many(10)):
        data = [
            call(stream, block("ReceiveMessage"), received(0, group=f"strangers-{number}"))
            for stream in streams(stranger.many(300))
        ]
        flood(stranger, b"".join(data), 1, (4, 0))


# --- clients


@row("settings over and over, 20 x 5,000 on one stream")
def telemetry_flood(stranger: Stranger) -> None:
    one = frame(DATA, 0, 1, grpc_message(settings_command(TOPIC)))
    flood(stranger, frame(HEADERS, END_HEADERS, 1, block("Telemetry")) + one * stranger.many(5000))


@row("compressed settings behind settings that are not taken, 200 clients")
def refused_settings(stranger: Stranger) -> None:
    opened = frame(HEADERS, END_HEADERS, 1, block("Telemetry"))
    one = frame(DATA, 0, 1, grpc_message(settings_command(TOPIC)))
    for _ in range(stranger.many(200)):
        connection = greeted(stranger, (4, 0))
        send_all(connection, opened + one)
        stranger.rest(0.005)
        send_all(connection, frame(DATA, 0, 1, grpc_message(b"x", compressed=True)))
    stranger.rest(2.0)


@row("settings of 300 kB twice, 200 clients")
def large_settings(stranger: Stranger) -> None:
    topics = [f"{'t' * 60}-{number}" for number in range(4000)]
    data = grpc_message(settings_command(*topics))
    for number in range(stranger.many(200)):
        parts = [frame(DATA, 0, 1, data[at : at + 16_384]) for at in range(0, len(data), 16_384)]
        opened = frame(HEADERS, END_HEADERS, 1, block("Telemetry", client_id=f"stranger@{number}"))
        connection = greeted(stranger)
        send_all(connection, opened)
        for _ in range(2):
            send_all(connection, b"".join(parts[:3]))
            stranger.rest(0.005)
            send_all(connection, b"".join(parts[3:]))
            stranger.rest(0.005)
    stranger.rest(2.0)


@row("30,000 clients")
def many_clients(stranger: Stranger) -> None:
    number = stranger.many(1500)
    for part in range(stranger.many(20)):
        data = [
            call(2 * at + 1, block("Heartbeat", client_id=f"{'c' * 200}-{part}-{at}"), HEARTBEAT)
            for at in range(number)
        ]
        flood(stranger, b"".join(data), 1)


@row("assignments of 20,000 groups and topics that do not exist")
def unknown_groups(stranger: Stranger) -> None:
    data = []
    for stream in streams(stranger.many(20_000)):
        request = service.QueryAssignmentRequest(topic=proto.Resource(name=TOPIC if stream % 4 == 1 else f"t{stream}"))
        request.group.name = f"group-{next(NUMBERS)}"
        request.endpoints.addresses.append(proto.Address(host="h", port=1))
        data.append(call(stream, block("QueryAssignment"), request.SerializeToString()))
    flood(stranger, b"".join(data), 1)
