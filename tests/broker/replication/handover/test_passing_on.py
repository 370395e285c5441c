"""What clients of other languages send to a replica that is not the master, or hands over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from tests.broker.headers import send_header
from tests.broker.replication.replica_sets import ReplicaSet, replica_set

from pyromq import Message
from pyromq.broker.replication.replica_server import ReplicaServer
from pyromq.client.producer.async_producer import AsyncProducer
from pyromq.errors import ResponseCode
from pyromq.remoting.bodies import HeartbeatBody, ProducerEntry, encode_body
from pyromq.remoting.codes import ONE_WAY
from pyromq.remoting.command import FrameSplitter, Response, decode_response, encode_request, frame_words
from pyromq.remoting.header import Header
from pyromq.remoting.headers import Heartbeat, QueryConsumerOffset, UpdateConsumerOffset

LONGEST_SECONDS = 1.0  # without a confirmation in a planned failover


class OtherClient:
    """A client of another language at one address, which it keeps. It connects again if the connection was closed."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._address = host, int(port)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._opaque = 0
        self._frames: list[Response] = []
        self.closed = 0  # how often the connection was closed by the broker

    def frame(self, header: Header, body: bytes = b"", flag: int = 0) -> bytes:
        self._opaque += 1
        ((_, text, _),) = FrameSplitter().split(encode_request(header, b"", opaque=self._opaque, flag=flag))
        text = text.replace(b'"language":"PYTHON"', b'"language":"JAVA"')
        return frame_words(0, len(text), len(body)) + text + body

    async def streams(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self._address)
        return self._streams

    async def tell(self, header: Header) -> None:
        _, writer = await self.streams()
        writer.write(self.frame(header, flag=ONE_WAY))

    async def ask_all(self, *headers: Header, body: bytes = b"") -> list[Response]:
        """Send requests at once and return the responses in the requests' order."""
        while True:
            reader, writer = await self.streams()
            first = self._opaque + 1
            writer.write(b"".join(self.frame(header, body) for header in headers))
            answers: dict[int, Response] = {}
            splitter = FrameSplitter()
            while len(answers) < len(headers):
                try:
                    data = await reader.read(1 << 16)
                except ConnectionResetError:
                    data = b""
                if not data:
                    break
                for frame in splitter.split(data):
                    response = decode_response(*frame)
                    assert isinstance(response, Response)
                    answers[response.opaque] = response
            else:
                return [answers[first + index] for index in range(len(headers))]
            self.closed += 1
            await self.close()

    async def ask(self, header: Header, body: bytes = b"") -> Response:
        return (await self.ask_all(header, body=body))[0]

    async def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            with suppress(OSError):
                await self._streams[1].wait_closed()
            self._streams = None


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[ReplicaSet]:
    async with replica_set(tmp_path) as found:
        yield found


@pytest.fixture
async def three(replicas: ReplicaSet) -> ReplicaSet:
    """Three replicas in sync, and the topic orders."""
    for number in (1, 2, 3):
        await replicas.start(number, pass_on_ms=1_500)
    await replicas.until(lambda: replicas.in_sync == [1, 2, 3])
    async with AsyncProducer("g", replicas.namesrv) as producer:
        await producer.send(Message("orders", b"first"))
    return replicas


def master_of(replicas: ReplicaSet) -> ReplicaServer:
    assert replicas.master is not None
    return replicas.master


def other_than(replicas: ReplicaSet, server: ReplicaServer) -> int:
    return next(number for number in replicas.servers if number != server.number)


@asynccontextmanager
async def at(address: str):
    client = OtherClient(address)
    try:
        yield client
    finally:
        await client.close()


async def bodies(replicas: ReplicaSet) -> list[bytes]:
    """The bodies in queue 0 of the topic orders at the master."""
    store = master_of(replicas).broker.store
    found = [store.message("orders", 0, offset) for offset in range(store.next_offset("orders", 0))]
    return [message.body for message in found if message is not None]


async def test_no_send_fails_in_a_planned_failover_and_each_connection_keeps_its_order(three: ReplicaSet) -> None:
    first = master_of(three)
    is_over = False
    gaps: list[float] = []
    confirmed: dict[int, list[bytes]] = {}

    async def send_on(number: int) -> None:
        async with at(first.broker.address) as client:
            mine = confirmed[number] = []
            last = time.monotonic()
            while not is_over:
                body = b"%d-%d" % (number, len(mine))
                response = await client.ask(send_header(), body)
                assert response.code == 0, response.remark
                gaps.append(time.monotonic() - last)
                last = time.monotonic()
                mine.append(body)

    senders = [asyncio.create_task(send_on(number)) for number in range(4)]
    await asyncio.sleep(0.3)
    await first.hand_over(other_than(three, first))
    await three.until(lambda: three.in_sync == [1, 2, 3])
    await asyncio.sleep(0.3)
    is_over = True
    async with asyncio.timeout(5):
        await asyncio.gather(*senders)
    assert master_of(three) is not first
    assert max(gaps) < LONGEST_SECONDS
    stored = await bodies(three)
    for number, mine in confirmed.items():
        own = [body for body in stored if body.startswith(b"%d-" % number)]
        assert list(dict.fromkeys(own)) == mine


async def test_our_producer_moves_in_a_planned_failover_without_a_failed_send(three: ReplicaSet) -> None:
    first = master_of(three)
    is_over = False
    gaps: list[float] = []

    async def send_on(producer: AsyncProducer) -> None:
        last = time.monotonic()
        while not is_over:
            await producer.send(Message("orders", b"x"))
            gaps.append(time.monotonic() - last)
            last = time.monotonic()

    async with AsyncProducer("g", three.namesrv) as producer:
        sender = asyncio.create_task(send_on(producer))
        await asyncio.sleep(0.3)
        await first.hand_over(other_than(three, first))
        await three.until(lambda: three.in_sync == [1, 2, 3])
        is_over = True
        await sender
    assert max(gaps) < LONGEST_SECONDS


async def test_a_follower_passes_on_what_other_clients_send_and_tells_ours_who_is_master(three: ReplicaSet) -> None:
    master = master_of(three)
    follower = three.servers[other_than(three, master)]
    async with at(follower.broker.address) as client:
        responses = await client.ask_all(*[send_header(properties=f"KEYS\x01{n}") for n in range(20)], body=b"other")
        assert {response.code for response in responses} == {0}
        offsets = [int(response.fields["queueOffset"]) for response in responses]
        assert offsets == sorted(offsets) and len(set(offsets)) == 20
        position = {"consumer_group": "c", "topic": "orders", "queue_id": 0}
        await client.tell(UpdateConsumerOffset(**position, commit_offset=3))
        asked = await client.ask(QueryConsumerOffset(**position))
        assert asked.fields["offset"] == "3"
        assert master.broker.offsets.find("c", "orders", 0) == 3
    async with at(follower.broker.address) as client:
        client.frame = as_ours(client)  # type: ignore[method-assign]
        refused = await client.ask(send_header())
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert master.broker.address in (refused.remark or "")


def as_ours(client: OtherClient) -> Callable[..., bytes]:
    def frame(header: Header, body: bytes = b"", flag: int = 0) -> bytes:
        client._opaque += 1
        return encode_request(header, body, opaque=client._opaque, flag=flag)

    return frame


async def test_a_replica_without_a_master_refuses_within_a_second(three: ReplicaSet) -> None:
    master = master_of(three)
    follower = three.servers[other_than(three, master)]
    for server in three.servers.values():
        server._passing.pass_to("127.0.0.1:1" if server is follower else None)
    async with at(follower.broker.address) as client:
        began = time.monotonic()
        response = await client.ask(send_header(), b"nowhere")
        assert response.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert 0.5 < time.monotonic() - began < 2.5


async def test_a_master_with_other_clients_stops_once_they_know_the_new_one(three: ReplicaSet) -> None:
    first = master_of(three)
    beat = HeartbeatBody(client_id="other", producers=[ProducerEntry("p")])
    async with at(first.broker.address) as client:
        assert (await client.ask(Heartbeat(), encode_body(beat))).code == 0
        stopping = asyncio.create_task(three.stop(first.number))
        await three.until(lambda: three.master is not None)
        for _ in range(5):
            assert (await client.ask(send_header(), b"late")).code == 0
        assert not stopping.done()
        await stopping
    assert (await bodies(three)).count(b"late") == 5
