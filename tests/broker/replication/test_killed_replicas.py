"""A replica that is killed, or loses power, at any write: its folder is never taken for more than it has.

The folder is reopened as it was before each write while a new replica is filled, and while it copies tables and records
of its master.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
from tests.broker.replication.replica_sets import ReplicaSet, replica_set
from tests.seed import seed_of_the_day

from pyromq import AsyncAdmin, AsyncProducer, Message
from pyromq.broker.config import BrokerConfig
from pyromq.broker.replication.cut_progress import lower_progress
from pyromq.broker.replication.identity import Identity
from pyromq.broker.replication.replica_server import ReplicaServer
from pyromq.broker.replication.set_record import Member, SetRecord, decode_value
from pyromq.clock import SystemClock
from pyromq.message import pack_address
from pyromq.remoting.bodies import FILE, ConsumerOffsetTable, TopicConfigTable, decode_body
from pyromq.store.epoch_file import EpochFile
from pyromq.store.json_file import JsonFile
from pyromq.store.message_store import MessageStore
from pyromq.store.store_config import FlushMode
from pyromq.testing import SimulatedDisk

STATE = "/pyromq/DefaultCluster/orders/state"
FOLDER = Path("/replica")


@dataclass(frozen=True)
class Moment:
    """The disk before one write, and what the set believed at that time. `topics` are confirmed by the set."""

    write: str
    disk: SimulatedDisk
    record: SetRecord
    confirmed: int
    topics: frozenset[str]


@dataclass(frozen=True)
class Found:
    """What a reopened folder says of itself."""

    member: Member
    promised: int
    end: int
    topics: frozenset[str]
    ahead: tuple[str, ...]  # consumer offsets behind the end of their queue


class Recording:
    """Replica 2 of a set on a simulated disk, with a moment for each write of the disk."""

    def __init__(self, replicas: ReplicaSet, flush: FlushMode) -> None:
        self.moments: list[Moment] = []
        self.topics: set[str] = set()
        self._replicas = replicas
        self._thread = threading.get_ident()
        self._master = replicas.servers[1].broker.store
        self.disk = SimulatedDisk(seed=seed_of_the_day())
        config = replicas.config(2, min_in_sync=1, flush=flush)
        self.config: BrokerConfig = replace(config, data=FOLDER, store=replace(config.store_config, root=FOLDER))

        self.disk.refuse = self._keep

    async def start(self, disk: SimulatedDisk) -> ReplicaServer:
        server = await ReplicaServer(self.config, self._replicas.registry, disk=disk).__aenter__()
        self._replicas.servers[2] = server
        self._flushing = asyncio.create_task(self._flush(server))
        return server

    def end(self) -> None:
        self.disk.refuse = lambda kind, path: None

    async def _flush(self, server: ReplicaServer) -> None:
        """Flush what waits for a flush: stores on a simulated disk have no thread that does."""
        while self._replicas.servers.get(2) in (None, server):
            await asyncio.sleep(0.002)
            if server.is_open:
                server.broker.store.flush_due()

    def _keep(self, kind: str, path: Path) -> None:
        state = self._replicas.registry._entries[STATE].value
        assert state is not None
        record = decode_value(SetRecord, state, STATE)
        confirmed = self._master.confirmed_end
        if threading.get_ident() != self._thread:  # it saves consumer offsets; the next write shows what it has written
            return
        try:
            disk = self.disk.after_kill()
        except RuntimeError:  # that thread is writing
            return
        self.moments.append(Moment(f"{kind} {path}", disk, record, confirmed, frozenset(self.topics)))

    def reopen(self, disk: SimulatedDisk, master: MessageStore) -> Found:
        """Open a folder as a start of the replica does. Compare its log with the master's, and offsets with its log."""
        config = self.config.store_config
        store = MessageStore(config, SystemClock(), store_address=pack_address("127.0.0.1", 1), disk=disk)
        store.lock()
        identity = Identity(FOLDER, disk)
        is_async = config.flush is FlushMode.ASYNC
        identity.load(crashed=store.crashed, lost_unflushed=store.lost_unflushed, flush_async=is_async)
        store.open()
        lower_progress(store, FOLDER)
        epochs = EpochFile(FOLDER, disk)
        epochs.load()
        end = store.max_log_offset
        assert log_of(store) == log_of(master, store.min_log_offset, end), "the log differs from the master's"
        tables = {
            name: JsonFile(FOLDER / "config" / f"{name}.json", disk).read(partial(decode_body, kind, bounds=FILE))
            for name, kind in (("topics", TopicConfigTable), ("consumerOffset", ConsumerOffsetTable))
        }
        ahead = [
            f"{key} is at {offset} of queue {queue_id}"
            for key, offsets in (tables["consumerOffset"] or ConsumerOffsetTable({})).offsets.items()
            for queue_id, offset in offsets.items()
            if queue_id in store.queue_ids(topic := key.partition("@")[0])
            and offset > store.max_offset(topic, queue_id)
        ]
        topics = tables["topics"].topics if tables["topics"] else {}
        member = Member(identity.number or 2, identity.incarnation)
        found = Found(member, epochs.promised, end, frozenset(topics), tuple(ahead))
        store.close()
        return found


def check(moment: Moment, found: Found) -> None:
    """A replica that the record still calls in sync may be elected: it must have all that was confirmed."""
    if not moment.record.is_in_sync(found.member):
        return
    assert found.end >= moment.confirmed, "in sync, without a confirmed record"
    assert found.promised >= moment.record.epoch, "in sync, without its promise"
    assert found.topics >= moment.topics, "in sync, without a confirmed topic"
    assert not found.ahead, "in sync, without messages that a group has consumed"


@contextmanager
def told(moment: Moment, how: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(f"{how} before {moment.write}, while {moment.record} and {moment.confirmed} confirmed")
        raise


async def use(replicas: ReplicaSet, producer: AsyncProducer, recording: Recording) -> None:
    """Change all tables of the master while it takes messages."""
    async with AsyncAdmin(replicas.namesrv) as admin:
        for number in range(3):
            topic = f"confirmed-{number}"
            await admin.create_topic(topic, queues=2)
            recording.topics.add(topic)
            for _ in range(5):
                sent = await producer.send(Message(topic, bytes(random.randbytes(3_000))))
            await admin.commit_offset("readers", sent.queue, sent.queue_offset + 1)
            recording.topics.discard(f"confirmed-{number - 1}")
            if number:
                await admin.delete_topic(f"confirmed-{number - 1}")
        await producer.send(Message("confirmed-0", b"again"))


async def check_rejoining(replicas: ReplicaSet, recording: Recording, disk: SimulatedDisk) -> None:
    """Start a replica on this disk, and wait until it has all that its master has, and no more."""
    await replicas.stop(2)
    server = await recording.start(disk)
    await replicas.until(lambda: replicas.in_sync == [1, 2])
    ours, theirs = replicas.servers[1].broker, server.broker
    await replicas.until(lambda: theirs.store.max_log_offset == ours.store.max_log_offset)
    await replicas.until(lambda: queues_of(theirs.store) == queues_of(ours.store))
    assert theirs.topics.table() == ours.topics.table()


def log_of(store: MessageStore, begin: int = -1, end: int = 1 << 40) -> bytes:
    """Return the bytes of a log from one log offset to another, by default all."""
    at, end, pieces = max(begin, store.min_log_offset), min(end, store.max_log_offset), []
    while at < end:
        pieces.append(bytes(store.views(at, end - at)))
        at += len(pieces[-1])
    return b"".join(pieces)


def queues_of(store: MessageStore) -> dict[tuple[str, int], list[int]]:
    """Return the log offsets of all records that are in a queue; 0 for records that were deleted from the log."""
    return {
        (topic, queue_id): [max(0, entry.log_offset - begin) for entry in store.entries(topic, queue_id, 0, 1 << 30)]
        for begin in [store.min_log_offset]
        for topic in store.topics()
        for queue_id in store.queue_ids(topic)
        if store.max_offset(topic, queue_id)  # a deleted topic may have an empty queue
    }


@pytest.mark.parametrize("every", [pytest.param(13, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("flush", [FlushMode.ASYNC, FlushMode.SYNC])
@pytest.mark.parametrize("is_expired", [False, True])
async def test_a_killed_replica_is_never_taken_for_more_than_it_has(
    tmp_path: Path, every: int, flush: FlushMode, is_expired: bool
) -> None:
    chance = random.Random(seed_of_the_day())
    async with replica_set(tmp_path) as replicas:
        master = await replicas.start(1, min_in_sync=1, flush=flush)
        await replicas.until(lambda: replicas.master_server is master)
        recording = Recording(replicas, flush)
        async with AsyncProducer("g", replicas.namesrv) as producer:
            for number in range(60):
                await producer.send(Message(f"old-{number % 3}", random.randbytes(40_000)))
            store = master.broker.store
            if is_expired:
                await replicas.until(lambda: store.retention.expire_now(age_ms=0) > 0)
                assert store.min_log_offset > 0
            await recording.start(recording.disk)
            await replicas.until(lambda: replicas.in_sync == [1, 2])
            await use(replicas, producer, recording)
        recording.end()
        moments = recording.moments
        assert len(moments) > 200
        assert any(moment.topics and len(moment.record.in_sync) == 2 for moment in moments)
        for moment in moments[chance.randrange(every) :: every]:
            with told(moment, "killed"):
                found = recording.reopen(moment.disk.after_kill(), store)
                check(moment, found)
                assert not found.ahead, "a kill loses no bytes of the log"
            with told(moment, "power lost"):
                check(moment, recording.reopen(moment.disk.after_power_cut(chance), store))
        for moment in chance.sample(moments, max(2, 20 // every)):
            with told(moment, "killed, and started again"):
                await check_rejoining(replicas, recording, moment.disk.after_kill())
            with told(moment, "power lost, and started again"):
                await check_rejoining(replicas, recording, moment.disk.after_power_cut(chance))
        moments.clear()  # half a gigabyte, which would wait for the collector
