"""Plays a load at a real broker in this process, over real sockets, and notes all that can be seen of it.

    python -m tests.speedups.play LOAD FOLDER HOST RESULT

LOAD is a file of `load.Load`; the broker's data lie in FOLDER, its port and its clients' are at HOST; RESULT is
written. Whether compiled parts are used says PYROMQ_PURE.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import socket
import struct
import sys
from pathlib import Path

import msgspec
from tests.speedups.drawn_requests import MESSAGE_LIMIT, START_MS
from tests.speedups.load import Advance, Burst, End, Load, Step

from pyromq import speedups
from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerConfig
from pyromq.broker.confirmation import ReplicaRule
from pyromq.broker.consuming.pull_processor import PullProcessor
from pyromq.remoting.command import FrameSplitter, encode_request, frame_words
from pyromq.remoting.header import Header
from pyromq.remoting.headers import (
    AllConsumerOffsets,
    AllGroups,
    AllTopics,
    BrokerConsumeStatistics,
    BrokerState,
    BrokerStatistics,
    MaxOffset,
)
from pyromq.store.store_config import FlushMode, StoreConfig
from pyromq.testing.fake_clock import FakeClock, settle

PORT = 10911
FIRST_CLIENT_PORT = 14_000  # below those of other tests (tests/processes.py), which may listen at every address
FENCE = 0x70000000  # opaques of our own questions begin here
WAIT_SECONDS = 30.0
STILL_SECONDS = 5.0  # for answers that may never come: a changed frame may ask for anything
RESET = struct.pack("ii", 1, 0)
STATISTICS = (
    "TOPIC_PUT_NUMS",
    "TOPIC_PUT_SIZE",
    "GROUP_GET_NUMS",
    "GROUP_GET_SIZE",
    "BROKER_PUT_NUMS",
    "BROKER_GET_NUMS",
)
# What is of the machine, or different because it must be.
OF_THE_MACHINE = (
    "pyromqHotPath",
    "commitLogDisk",
    "commitLogDirCapacity",
    "bootTimestamp",
    "runtime",
    "consumeQueueDisk",
    "remainHowMany",
)


class Seen(msgspec.Struct):
    """What came: by connection, in order, step and frame in hex, or how it ended; the log; the broker's figures."""

    is_compiled: bool
    frames: dict[str, list[tuple[int, str]]]
    log: list[str]
    figures: dict[str, str]


class Peer(asyncio.Protocol):
    """One connection to the broker."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.frames: list[str] = []
        self.opaques: set[int] = set()
        self.is_closed = False
        self.news = asyncio.Event()
        self.transport: asyncio.Transport
        self._splitter = FrameSplitter(1 << 30)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        for serialization, header, body in self._splitter.split(data):
            opaque = int.from_bytes(header[5:9], "big") if serialization else json.loads(header)["opaque"]
            self.opaques.add(opaque)
            self.frames.append((frame_words(serialization, len(header), len(body)) + header + body).hex())
        self.news.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.frames.append(f"closed, {self._splitter.incomplete_bytes} bytes over")
        self.is_closed = True
        self.news.set()

    async def has(self, opaque: int) -> bool:
        """Wait for an answer; return false if the connection ends before."""
        async with asyncio.timeout(WAIT_SECONDS):
            while opaque not in self.opaques and not self.is_closed:
                self.news.clear()
                await self.news.wait()
        return opaque in self.opaques


class Player:
    """Plays the steps of a load, one after the other, and collects what the broker answers."""

    def __init__(self, broker: Broker, clock: FakeClock, host: str, load: Load) -> None:
        self.seen: dict[str, list[tuple[int, str]]] = {}
        self._broker = broker
        self._clock = clock
        self._host = host
        self._answers_wait = load.is_flushed or load.is_replicated
        self._is_replicated = load.is_replicated
        self._reported = 0  # log end that the follower reports after the next step
        self._peers: dict[int, Peer] = {}
        self._all: list[Peer] = []
        self._fences = 0
        answerers = [answerer for part in broker._modules for answerer in part.answerers]
        self._long_polls = next(each for each in answerers if isinstance(each, PullProcessor))._long_polls

    async def play(self, number: int, step: Step) -> None:
        match step:
            case Advance(seconds):
                await self._clock.advance(seconds)
                await self._still()
            case Burst(connection, data, cuts):
                peer = await self._peer(connection)
                await self._write(peer, data, cuts)
                await self._still()
                await self.ask(MaxOffset(topic="fence", queue_id=0), peer)
            case End(connection, data, how):
                peer = await self._peer(connection)
                await self._write(peer, data, [])
                if self._answers_wait:  # what waits when a connection ends is not answered
                    await self._still()
                await self._end(peer, how)
                del self._peers[connection]
        await self._still()
        if self._is_replicated:
            await asyncio.wrap_future(self._broker.store.wait_flushed(self._reported))
            self._broker._state.confirmation.replicated(self._reported)
            self._reported = self._broker.store.max_log_offset
            await self._still()
        for peer in self._all:
            # Replies that wait for the disk or a follower come in any order with others.
            frames = sorted(peer.frames) if self._answers_wait else peer.frames
            self.seen[peer.name] += [(number, frame) for frame in frames]
            peer.frames.clear()
        self._all = [peer for peer in self._all if not peer.is_closed]

    async def ask(self, header: Header, peer: Peer) -> None:
        """Ask the broker one more, and wait for the answer: all that is to come has come before."""
        if peer.is_closed:
            return
        self._fences += 1
        opaque = FENCE + self._fences
        peer.transport.write(encode_request(header, b"", opaque=opaque, flag=0))
        await peer.has(opaque)
        await settle()

    async def _peer(self, connection: int) -> Peer:
        peer = self._peers.get(connection)
        if peer is None or peer.is_closed:
            number = len(self.seen)
            peer = Peer(f"{connection}-{number}")
            self.seen[peer.name] = []
            sock = socket.socket()
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # it was another client's, the other time
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            sock.bind((self._host, FIRST_CLIENT_PORT + number))
            loop = asyncio.get_running_loop()
            await loop.sock_connect(sock, (self._host, PORT))
            await loop.create_connection(lambda: peer, sock=sock)
            self._peers[connection] = peer
            self._all.append(peer)
            await settle()
        return peer

    async def _write(self, peer: Peer, data: bytes, cuts: list[int]) -> None:
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            if peer.is_closed:
                return
            peer.transport.write(data[start:end])
            while not peer.is_closed and peer.transport.get_write_buffer_size():
                await asyncio.sleep(0)
            await settle()

    async def _end(self, peer: Peer, how: str) -> None:
        if how == "half" and not peer.is_closed:
            peer.transport.write_eof()
            async with asyncio.timeout(WAIT_SECONDS):
                while not peer.is_closed:
                    peer.news.clear()
                    await peer.news.wait()
            return
        if how == "close":
            peer.transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0)
            )
        peer.transport.abort()

    async def _still(self) -> None:
        """Wait until nothing goes on but pulls that wait for messages."""
        await settle()
        for _ in range(int(STILL_SECONDS / 0.001)):
            parked = sum(session.in_flight for session in self._broker._server.sessions)
            waiting = len(self._broker._state.confirmation)
            held = waiting if self._is_replicated else 0
            if not self._broker.topics.unsaved and waiting == held and parked <= len(self._long_polls) + held:
                break
            await asyncio.sleep(0.001)
        await settle()

    async def figures(self, load: Load) -> dict[str, str]:
        """Return what the broker says of itself at the end."""
        self._broker._state.confirmation.replicated(self._broker.store.max_log_offset)
        await self._clock.advance(70.0)
        await self._still()
        peer = await self._peer(99)
        found: dict[str, str] = {}
        broker = self._broker
        names = sorted(broker.topics.table().topics)
        keys = [*names, *(f"{topic}@{group}" for topic in names for group in ("g", "h", "u")), "DefaultCluster"]
        questions: list[Header] = [
            AllConsumerOffsets(),
            AllTopics(),
            AllGroups(),
            BrokerConsumeStatistics(),
            BrokerState(),
        ]
        questions += [BrokerStatistics(stats_name=name, stats_key=key) for name in STATISTICS for key in keys]
        for question in questions:
            peer.frames.clear()
            await self.ask(question, peer)
            answer = bytes.fromhex(peer.frames[0])
            if isinstance(question, BrokerState):
                table = json.loads(answer[answer.index(b'{"table"') :])["table"]
                found |= {name: text for name, text in table.items() if not name.startswith(OF_THE_MACHINE)}
            else:
                ((_, header, body),) = FrameSplitter(1 << 30).split(answer)
                body = _without_threads(body) if isinstance(question, AllConsumerOffsets) else body
                found[repr(question)] = f"{json.loads(header)['code']} {body.decode()}"
        statistics = broker.statistics
        found["counted"] = f"{statistics.put_total.times} {statistics.failed_puts} {statistics.get_misses}"
        return found

    def leave(self) -> None:
        for peer in self._all:
            peer.transport.abort()


def _without_threads(body: bytes) -> bytes:
    """Return a table of offsets without its order, and without what threads enter: how far transactions are checked."""
    table = json.loads(body)["offsetTable"]
    return json.dumps({key: table[key] for key in sorted(table) if "CID_RMQ_SYS_TRANS" not in key}).encode()


class Lines(logging.Handler):
    """What the broker logs."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = f" {record.exc_info[1]!r}" if record.exc_info else ""
        self.lines.append(f"{record.levelname} {record.name} {record.getMessage()}{error}")


async def play(load: Load, folder: Path, host: str) -> Seen:
    """Play a load at a new broker; return what is seen when it has been left."""
    lines = Lines()
    logger = logging.getLogger("pyromq")
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    random.seed(load.seed)  # by which the broker chooses queues
    clock = FakeClock(START_MS)
    store = StoreConfig(
        folder,
        segment_bytes=1 << 20,
        consume_queue_entries=500,
        index_slots=1000,
        index_entries=10_000,
        max_message_bytes=MESSAGE_LIMIT,
        disk_refuse_percent=99,
        flush=FlushMode.SYNC if load.is_flushed else FlushMode.ASYNC,
    )
    config = BrokerConfig(
        folder,
        host=host,
        port=PORT,
        store=store,
        max_message_bytes=MESSAGE_LIMIT,
        auto_create_topic=not load.is_dense,  # answers that wait for its table could come in any order
    )
    async with Broker(config, clock) as broker:
        if load.is_replicated:
            broker.store.bound_reads()
            broker._state.confirmation.require_replicas(ReplicaRule(holds_all=True))
        player = Player(broker, clock, host, load)
        for number, step in enumerate(load.steps):
            await player.play(number, step)
        figures = await player.figures(load)
        player.leave()
        await settle()
    return Seen(speedups.is_active, player.seen, sorted(lines.lines), figures)


def main() -> None:
    load, folder, host, result = sys.argv[1:]
    decoded = msgspec.msgpack.decode(Path(load).read_bytes(), type=Load)
    seen = asyncio.run(play(decoded, Path(folder), host))
    Path(result).write_bytes(msgspec.json.encode(seen))


if __name__ == "__main__":
    main()
