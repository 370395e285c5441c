"""What `hostile.py` has a stranger do, each a row of its table: one client, as much as it can send."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from loads.plain_send import plain_send
from pyromq.remoting.bodies import (
    BrokerRegistration,
    ConsumerEntry,
    HeartbeatBody,
    ProducerEntry,
    Subscription,
    TopicConfig,
    TopicConfigTable,
    encode_body,
)
from pyromq.remoting.command import encode_request
from pyromq.remoting.header import Header
from pyromq.remoting.headers import (
    Heartbeat,
    PullMessage,
    QueryMessage,
    RegisterBroker,
)

TOPIC = "honest"
ANSWER_SECONDS = 120.0
SUSPEND_AND_SUBSCRIPTION = 6  # flags of a pull
LARGE = 4_000_000
CONNECTIONS = 20


@dataclass(slots=True)
class Stranger:
    """Opens connections to one server, which stay until it leaves. `size` is 1 for whole rows, less for short ones."""

    port: int
    namesrv_port: int
    size: float = 1.0
    _held: ExitStack = field(default_factory=ExitStack)

    def connect(self, *, name_server: bool = False) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.namesrv_port if name_server else self.port))
        connection.settimeout(ANSWER_SECONDS)
        return self._held.enter_context(connection)

    def many(self, count: int) -> int:
        return max(2, int(count * self.size))

    def rest(self, seconds: float) -> None:
        """Let the server go on with it, for a short row a tenth of a second."""
        time.sleep(seconds if self.size >= 1 else 0.1)

    def leave(self) -> None:
        self._held.close()


@dataclass(frozen=True, slots=True)
class Row:
    """`act` returns when the server has done what it will do about it. `settle_seconds`: what follows then.

    `meets` is the limit, or the reason, that a server tells of where its limits are small.
    """

    name: str
    act: Callable[[Stranger], None]
    meets: str = ""
    settle_seconds: float = 0.5


def frame(header: Header, body: bytes = b"", opaque: int = 1) -> bytes:
    return encode_request(header, body, opaque=opaque, flag=0)


def send_all(connection: socket.socket, data: bytes) -> bool:
    """Send, if the server takes it; false where it closes the connection instead."""
    try:
        connection.sendall(data)
    except OSError:
        return False
    return True


def read_answers(connection: socket.socket, count: int, *, seconds: float = ANSWER_SECONDS) -> int:
    """Read so many answers, fewer where the connection ends or nothing comes any more; return how many bytes."""
    connection.settimeout(seconds)
    read, missing, buffer = 0, count, b""
    while missing:
        try:
            data = connection.recv(1 << 20)
        except OSError:
            break
        if not data:
            break
        read += len(data)
        buffer += data
        while missing and len(buffer) >= 4 and len(buffer) >= 4 + (size := struct.unpack_from(">i", buffer)[0]):
            buffer = buffer[4 + size :]
            missing -= 1
    return read


def pull(
    *, suspend_ms: int = 0, offset: int = 1 << 40, subscription: str = "*", topic: str = TOPIC, group: str = "strange"
) -> PullMessage:
    return PullMessage(
        consumer_group=group,
        topic=topic,
        queue_id=0,
        queue_offset=offset,
        max_count=32,
        sys_flag=SUSPEND_AND_SUBSCRIPTION,
        commit_offset=0,
        suspend_ms=suspend_ms,
        subscription_version=0,
        subscription=subscription,
        expression_type="TAG",
    )


def send(topic: str, body: bytes, *, properties: str = "", queue_id: int = 0) -> bytes:
    return frame(plain_send(topic, queue_id, properties=properties), body)


# --- long polls


def _end_of(stranger: Stranger, topic: str) -> None:
    """Make the topic with one message a queue."""
    connection = stranger.connect()
    connection.sendall(b"".join(send(topic, b"x", queue_id=queue) for queue in range(4)))
    read_answers(connection, 4)


def polls_that_expire(stranger: Stranger) -> None:
    _end_of(stranger, "polled")
    count = stranger.many(100_000) // CONNECTIONS
    poll = frame(pull(suspend_ms=4_000, offset=1, topic="polled"))
    opened = [stranger.connect() for _ in range(CONNECTIONS)]
    for connection in opened:
        threading.Thread(target=read_answers, args=(connection, count), daemon=True).start()
        connection.sendall(poll * count)
    stranger.rest(6)


def polls_that_wake(stranger: Stranger) -> None:
    _end_of(stranger, "woken")
    count = stranger.many(100_000) // CONNECTIONS
    poll = frame(pull(suspend_ms=60_000, offset=1, topic="woken"))
    opened = [stranger.connect() for _ in range(CONNECTIONS)]
    readers = [threading.Thread(target=read_answers, args=(each, count), daemon=True) for each in opened]
    for connection, reader in zip(opened, readers, strict=True):
        reader.start()
        connection.sendall(poll * count)
    stranger.rest(0.5)
    _end_of(stranger, "woken")
    for reader in readers:
        reader.join()


def polls_left_behind(stranger: Stranger) -> None:
    _end_of(stranger, "left")
    connection = stranger.connect()
    count = stranger.many(100_000)
    threading.Thread(target=read_answers, args=(connection, count), daemon=True).start()
    connection.sendall(frame(pull(suspend_ms=60_000, offset=1, topic="left")) * count)
    stranger.rest(1)


# --- queries


def key_queries(stranger: Stranger) -> None:
    connection = stranger.connect()
    body = bytes(LARGE)
    for _ in range(stranger.many(64)):
        connection.sendall(send("large", body, properties="KEYS\1same\2"))
        read_answers(connection, 1)
    query = QueryMessage(topic="large", key="same", max_count=64, begin_ms=0, end_ms=1 << 60)
    questions = [stranger.connect()]
    for each in questions:
        each.sendall(frame(query) * 60)
    stranger.rest(8)


# --- registrations and heartbeats


def registrations(stranger: Stranger) -> None:
    connection = stranger.connect(name_server=True)
    for broker in range(4):
        topics = {
            name: TopicConfig(name=name)
            for name in (f"t-{broker}-{number:06}" for number in range(stranger.many(80_000)))
        }
        body = encode_body(BrokerRegistration(topics=TopicConfigTable(topics=topics)))
        header = RegisterBroker(
            broker_name=f"b{broker}", broker_address=f"10.0.0.{broker}:10911", cluster="c", ha_address="", broker_id=0
        )
        if not send_all(connection, frame(header, body)):
            connection = stranger.connect(name_server=True)
            continue
        read_answers(connection, 1)


def heartbeat_of_groups(stranger: Stranger) -> None:
    connection = stranger.connect()
    consumers = [
        ConsumerEntry(group=f"new-{number:05}", subscriptions=[Subscription(topic=TOPIC, version=1)])
        for number in range(stranger.many(2_000))
    ]
    beat = HeartbeatBody(client_id="strange", consumers=consumers, producers=[ProducerEntry(group="p")])
    connection.sendall(frame(Heartbeat(), encode_body(beat)))
    read_answers(connection, 1)


def heartbeat_of_references(stranger: Stranger) -> None:
    """Each element is ten references to the one before."""
    connection = stranger.connect()
    levels = ['"x0":{"groupName":"g","subscriptionDataSet":[{"topic":"t"}]}']
    for level in range(1, 10):
        references = ",".join([f'{{"$ref":"$.x{level - 1}"}}'] * 10)
        levels.append(f'"x{level}":[{references}]')
    references = ",".join(['{"$ref":"$.x0"}'] * stranger.many(40_000))
    body = f'{{"clientID":"strange",{",".join(levels)},"consumerDataSet":[{references}],"producerDataSet":[]}}'
    if send_all(connection, frame(Heartbeat(), body.encode())):
        read_answers(connection, 1)


def nearly_json(stranger: Stranger) -> None:
    connection = stranger.connect()
    body = b"{clientID:1,x:[" + b"{1:2}," * (stranger.many(16_000_000) // 6) + b"{}]}"
    if send_all(connection, frame(Heartbeat(), body)):
        read_answers(connection, 1)
    connection = stranger.connect()
    body = b'{1:2,"clientID":"' + b"\\u0041" * (stranger.many(16_000_000) // 6) + b'"}'
    if send_all(connection, frame(Heartbeat(), body)):
        read_answers(connection, 1)


# --- pulls


def unread_answers(stranger: Stranger) -> None:
    connection = stranger.connect()
    for _ in range(16):
        connection.sendall(send("bulk", bytes(250_000)))
        read_answers(connection, 1)
    reader = stranger.connect()
    reader.settimeout(3)
    request = frame(pull(offset=0, topic="bulk"))
    send_all(reader, request * stranger.many(20_000))
    stranger.rest(2)


def long_expressions(stranger: Stranger) -> None:
    _end_of(stranger, "long")
    connection = stranger.connect()
    for number in range(30):
        expression = " || ".join(f"{number}-{tag:06}" for tag in range(stranger.many(75_000)))
        if not send_all(connection, frame(pull(subscription=expression, offset=0, topic="long"))):
            connection = stranger.connect()
            continue
        read_answers(connection, 1)


# --- frames


def partial_frames(stranger: Stranger) -> None:
    for _ in range(60):
        connection = stranger.connect()
        connection.settimeout(2)
        send_all(connection, struct.pack(">ii", 16_000_000, 100) + bytes(stranger.many(15_900_000)))


def unreadable_requests(stranger: Stranger) -> None:
    connection = stranger.connect()
    request = frame(pull(), b"").replace(b'"queueOffset":', b'"queueOffsex":')
    threading.Thread(target=read_answers, args=(connection, 1 << 30), daemon=True).start()
    end = time.monotonic() + 3 * stranger.size
    while time.monotonic() < end and send_all(connection, request * 100):
        pass


ROWS = [
    Row("a heartbeat with references that multiply", heartbeat_of_references),
    Row("16 MB of nearly-JSON, and a text of 16 MB", nearly_json, "cannot be read"),
    Row(
        "100,000 long polls of 20 connections that expire together",
        polls_that_expire,
        "maxWaitingPulls",
    ),
    Row("100,000 long polls that one message wakes", polls_that_wake, "maxWaitingPulls"),
    Row("100,000 long polls of one connection, left behind", polls_left_behind, "maxWaitingPulls"),
    Row("9 kB of key queries for 64 messages of 4 MB", key_queries),
    Row("registrations of 80,000 topics at the name server", registrations, "maxRegisteredTopics"),
    Row("a heartbeat with 2,000 new groups", heartbeat_of_groups, "maxGroups", settle_seconds=3),
    Row("pulls whose answers nobody reads", unread_answers),
    Row("30 pulls with tag expressions of 0.9 MB", long_expressions, "maxSubscriptionLength"),
    Row("60 frames of 16 MB of which only a part comes", partial_frames),
    Row("requests that cannot be read", unreadable_requests, "cannot be read"),
]
