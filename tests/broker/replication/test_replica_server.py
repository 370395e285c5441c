"""Replicas of a set as brokers in this process, with a registry in memory: started, stopped in order, started again."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import randbytes

import pytest
from tests.broker.replication.replica_sets import ReplicaSet, replica_set
from tests.waiting import PATIENCE_SECONDS

from pyromq import Message
from pyromq.broker.replication import record_view, set_lease
from pyromq.broker.replication.registry import Lease
from pyromq.broker.replication.replica_actions import BecomeMaster, StepDown
from pyromq.broker.replication.replica_server import ReplicaServer
from pyromq.broker.replication.replica_stream import PREAMBLE, VERSION, Hello, Refusal, StreamDecoder, encode_message
from pyromq.broker.replication.set_record import ReplicaInfo
from pyromq.broker.replication.set_registry import SetRegistry
from pyromq.client.admin.async_admin import AsyncAdmin
from pyromq.client.producer.async_producer import AsyncProducer
from pyromq.errors import RegistryRefused, ServiceNotAvailable, StoreNotWritable, UsageError
from pyromq.message import StoredMessage
from pyromq.platforms import platform
from pyromq.slow_work import FilePiece
from pyromq.store.disk import LocalDisk
from pyromq.store.log import commit_log
from pyromq.store.store_config import FlushMode


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[ReplicaSet]:
    async with replica_set(tmp_path) as found:
        yield found


async def sent(producer: AsyncProducer, count: int) -> None:
    for number in range(count):
        await producer.send(Message("orders", b"%d" % number))


async def test_a_set_of_three_elects_a_master_and_has_equal_logs(replicas: ReplicaSet) -> None:
    for number in (1, 2, 3):
        await replicas.start(number)
    await replicas.until(lambda: replicas.in_sync == [1, 2, 3])
    async with AsyncProducer("g", replicas.namesrv) as producer:
        await sent(producer, 100)
    end = replicas.servers[1].broker.store.max_log_offset
    await replicas.until(lambda: all(each.broker.store.confirmed_end == end for each in replicas.servers.values()))
    assert replicas.log(1) == replicas.log(2) == replicas.log(3)


async def test_a_master_that_stops_hands_over_and_comes_back_as_a_follower(replicas: ReplicaSet) -> None:
    for number in (1, 2, 3):
        await replicas.start(number)
    await replicas.until(lambda: replicas.in_sync == [1, 2, 3])
    first = replicas.master_server
    assert first is not None
    async with AsyncExitStack() as stack:
        producer = await stack.enter_async_context(AsyncProducer("g", replicas.namesrv))
        await sent(producer, 50)
        await replicas.stop(first.number)
        await sent(producer, 50)
        assert replicas.master_server is not None and replicas.master_server.number != first.number
        await replicas.start(first.number)
        await replicas.until(lambda: replicas.in_sync == [1, 2, 3])
        await sent(producer, 50)
    ends = {each.broker.store.max_log_offset for each in replicas.servers.values()}
    assert len(ends) == 1
    assert replicas.log(1) == replicas.log(2) == replicas.log(3)


async def test_a_master_that_must_step_down_before_it_is_promoted_follows_afterwards(replicas: ReplicaSet) -> None:
    server = await replicas.start(1)
    broker = server.broker
    server._do([BecomeMaster(1), StepDown(2, "replica 2 is master of epoch 2")])
    await replicas.until(lambda: server._changing is None)
    assert server.broker is not broker
    await replicas.until(lambda: replicas.master_server is server)


async def test_sends_are_refused_below_the_least_number_in_sync(replicas: ReplicaSet) -> None:
    server = await replicas.start(1)
    await replicas.until(lambda: replicas.master_server is server)
    async with AsyncProducer("g", replicas.namesrv) as producer:
        with pytest.raises(Exception, match="in sync: 1, asked for: 2"):
            await producer.send(Message("orders", b"1"), timeout=0.5)
    assert server.broker.store.max_log_offset == 0


async def test_replicas_of_other_file_sizes_and_taken_numbers_do_not_start(replicas: ReplicaSet) -> None:
    await replicas.start(1)
    with pytest.raises(UsageError, match="mappedFileSizeCommitLog is 2097152 here and 1048576 there"):
        await replicas.start(2, segment_bytes=2 << 20)
    other = ReplicaSet(replicas.folder / "other", replicas.namesrv)
    other.registry = replicas.registry
    with pytest.raises(UsageError, match="replica 1 of the set orders runs at"):
        await other.start(1, lease_ms=2_000)


async def test_a_folder_keeps_the_number_of_its_replica(replicas: ReplicaSet) -> None:
    await replicas.start(1)
    await replicas.stop(1)
    with pytest.raises(UsageError, match="is the data folder of replica 1, and replicaId"):
        await ReplicaServer(replicas.config(1, replica_id=2), replicas.registry).__aenter__()


async def test_a_registry_that_is_away_is_logged_once_and_when_it_is_back(
    replicas: ReplicaSet, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await replicas.start(1, lease_ms=2_000)
    replicas.registry.is_away = True
    keep, renewals = replicas.registry.keep, []

    async def counted(lease: int) -> Lease:
        renewals.append(lease)
        return await keep(lease)

    monkeypatch.setattr(replicas.registry, "keep", counted)
    await replicas.until(lambda: len(renewals) >= 3)
    replicas.registry.is_away = False
    await replicas.until(lambda: "the registry answers again" in caplog.text)
    assert caplog.text.count("the registry has not answered for") == 1


async def test_a_registry_that_refuses_is_logged_once_and_without_a_traceback(
    replicas: ReplicaSet, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = []

    async def refuse(*_: object, **__: object) -> None:
        refused.append(True)
        raise RegistryRefused("etcd at http://e1:2379 refuses: user name is empty")

    monkeypatch.setattr(set_lease, "_ENTER_SECONDS", 0.0)
    server = await replicas.start(1, lease_ms=2_000)
    for request in ("swap", "read_all"):  # etcd renews leases without an account
        monkeypatch.setattr(replicas.registry, request, refuse)
    await replicas.until(lambda: len(refused) >= 3 and server.registry_seconds(platform.boot_seconds()) > 1)
    monkeypatch.undo()
    assert caplog.text.count("the registry refuses requests; without the registry no replica can join") == 1
    assert "answers again" not in caplog.text
    assert "Traceback" not in caplog.text


async def test_a_replica_of_another_version_is_refused_by_both_versions_and_not_logged_each_time(
    replicas: ReplicaSet, caplog: pytest.LogCaptureFixture
) -> None:
    server = await replicas.start(1)
    host, port = server.ha_address.split(":")
    settings = server.replica.config.settings
    hello = Hello(2, "DefaultCluster", "orders", 9, 99, 0, False, (), 0, 0, False, settings)
    for _ in range(5):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(PREAMBLE + encode_message(hello))
        [refusal] = StreamDecoder().feed(await reader.read())
        assert isinstance(refusal, Refusal)
        assert "speaks version 2 of the replication stream, this replica reads 1: upgrade this" in refusal.text
        writer.close()
    assert caplog.text.count("speaks version 2") == 1


async def test_under_sync_flush_replicas_report_what_is_flushed(replicas: ReplicaSet) -> None:
    for number in (1, 2):
        await replicas.start(number, flush=FlushMode.SYNC)
    await replicas.until(lambda: replicas.in_sync == [1, 2])
    async with AsyncProducer("g", replicas.namesrv) as producer:
        await sent(producer, 20)
        for server in replicas.servers.values():
            assert server.broker.store.flushed_to == server.broker.store.max_log_offset


async def test_a_new_replica_begins_where_the_master_s_log_begins(replicas: ReplicaSet) -> None:
    first = await replicas.start(1, min_in_sync=1)
    await replicas.until(lambda: replicas.master_server is first)
    later = datetime.now(UTC) + timedelta(hours=1)
    async with AsyncProducer("g", replicas.namesrv) as producer:
        first_sent = await producer.send(Message("bills", b"1"))
        for _ in range(5):
            await producer.send_batch([Message("orders", randbytes(500_000)), Message("orders", randbytes(400_000))])
        await producer.send(Message("orders", b"later", deliver_at=later))
        for _ in range(3):
            await producer.send_batch([Message("orders", randbytes(500_000)), Message("orders", randbytes(400_000))])
        store = first.broker.store
        await replicas.until(lambda: store.retention.expire_now(age_ms=0) > 0)
        begin = store.min_log_offset
        assert 0 < begin < store.max_log_offset - (3 << 20), "the log is kept from the scheduled message on"
        second = await replicas.start(2, min_in_sync=1)
        await replicas.until(lambda: replicas.in_sync == [1, 2])
        await sent(producer, 5)
    assert second.broker.store.min_log_offset == begin
    bills = (first_sent.queue.topic, first_sent.queue.queue_id)
    assert second.broker.store.next_offset(*bills) == 1, "the offset of the message that is deleted is not given again"
    assert second.broker.timers.index.pending == {"orders": 1}
    await replicas.until(lambda: second.broker.store.max_log_offset == store.max_log_offset)
    await first.hand_over(2)
    await replicas.until(lambda: second.broker.role.is_master)
    assert not second.failed.done()


async def test_a_second_handover_right_after_the_first_is_refused_and_prevents_no_later_one(
    replicas: ReplicaSet,
) -> None:
    for number in (1, 2):
        await replicas.start(number)
    await replicas.until(lambda: replicas.in_sync == [1, 2])
    first = replicas.master_server
    assert first is not None
    second = replicas.servers[3 - first.number]

    def has_successor(server: ReplicaServer) -> bool:
        return server.replica.mastership is not None and server.replica.mastership.best_successor() is not None

    await first.hand_over(second.number)
    with pytest.raises(UsageError, match="not the master any more"):
        async with asyncio.timeout(1):
            await first.hand_over(second.number)
    await replicas.until(lambda: has_successor(second))
    await second.hand_over(first.number)
    await replicas.until(lambda: has_successor(first))
    await first.hand_over(second.number)


async def test_a_fault_in_the_tick_of_a_replica_ends_the_replica(
    replicas: ReplicaSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await replicas.start(1)

    def fail() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(server._links, "tick", fail)
    with pytest.raises(OSError, match="Too many open files"):
        async with asyncio.timeout(PATIENCE_SECONDS):
            await server.failed


async def test_a_replica_that_catches_up_with_a_log_that_retention_deletes_begins_again(replicas: ReplicaSet) -> None:
    first = await replicas.start(1, min_in_sync=1, catch_up_bytes=1 << 20)
    await replicas.until(lambda: replicas.master_server is first)
    async with AsyncProducer("g", replicas.namesrv) as producer:
        for _ in range(12):
            await producer.send_batch([Message("orders", randbytes(500_000)), Message("orders", randbytes(400_000))])
    store = first.broker.store
    second = await replicas.start(2, min_in_sync=1)
    await replicas.until(lambda: second.broker.store.written_end > 0)
    await replicas.until(lambda: store.retention.expire_now(age_ms=0) > 0)
    assert store.min_log_offset > second.broker.store.written_end
    await replicas.until(lambda: replicas.in_sync == [1, 2])
    assert second.broker.store.min_log_offset == store.min_log_offset


async def test_a_replica_waits_at_its_start_for_the_registry(replicas: ReplicaSet) -> None:
    replicas.registry.is_away = True
    starting = asyncio.create_task(replicas.start(1))
    await asyncio.sleep(0.3)
    assert not starting.done()
    replicas.registry.is_away = False
    assert (await starting).number == 1


async def test_a_follower_is_sent_what_the_master_has_on_disk_only(
    replicas: ReplicaSet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    master = await replicas.start(1, min_in_sync=1)
    await replicas.until(lambda: replicas.in_sync == [1])
    async with AsyncProducer("g", replicas.namesrv) as producer:
        await sent(producer, 20)
    loaded: list[FilePiece] = []

    def load(_: LocalDisk, pieces: list[FilePiece]) -> None:
        time.sleep(0.02)  # in another thread, as a disk does
        loaded.extend(pieces)

    monkeypatch.setattr(commit_log, "RECENT_BYTES", 0)
    monkeypatch.setattr(LocalDisk, "is_resident", lambda *_: bool(loaded))
    monkeypatch.setattr(LocalDisk, "load", load)
    follower = await replicas.start(2, min_in_sync=1)
    await replicas.until(lambda: replicas.in_sync == [1, 2])
    end = master.broker.store.max_log_offset
    await replicas.until(lambda: follower.broker.store.max_log_offset == end)
    assert loaded
    assert not [each for each in caplog.records if each.name == "concurrent.futures"]  # errors of callbacks


async def test_a_replica_that_connects_while_the_broker_restarts_gets_a_hello_first(replicas: ReplicaSet) -> None:
    for number in (1, 2):
        await replicas.start(number)
    await replicas.until(lambda: replicas.in_sync == [1, 2])
    old = replicas.master_server
    assert old is not None
    handing_over = asyncio.create_task(old.hand_over(3 - old.number))
    while old.is_open:
        await asyncio.sleep(0)
    host, port = old.ha_address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    hello = Hello(VERSION, "DefaultCluster", "orders", 9, 99, 0, False, (), 0, 0, False, old.replica.config.settings)
    writer.write(PREAMBLE + encode_message(hello))
    assert not old.is_open
    await handing_over
    stream, messages = StreamDecoder(), []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not messages:
            messages = stream.feed(await reader.read(1 << 16))
    assert isinstance(messages[0], Hello)
    writer.close()


async def test_a_registered_replica_is_known_to_the_others_before_it_has_joined(replicas: ReplicaSet) -> None:
    server = await replicas.start(1)
    await replicas.until(lambda: replicas.in_sync == [1])
    lease = await replicas.registry.lease(60)
    info = ReplicaInfo(9, 99, "127.0.0.1:1", "127.0.0.1:2", "0.1.0")
    await SetRegistry(replicas.registry, "DefaultCluster", "orders").register(info, lease.id)
    async with asyncio.timeout(record_view.READ_SECONDS / 2):  # the record is read without news as often as this
        await replicas.until(lambda: 9 in [peer.number for peer in server.replica.peers.all()])


async def test_a_master_that_hands_over_appends_nothing_itself_so_that_no_log_is_cut(
    replicas: ReplicaSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        await replicas.start(number)
    await replicas.until(lambda: replicas.in_sync == [1, 2])
    old = replicas.master_server
    assert old is not None
    swap, refusals = replicas.registry.swap, []

    async def deliver_meanwhile(key: str, *arguments: object, **more: object) -> object:
        if key.endswith("/state"):
            with pytest.raises(StoreNotWritable) as refused:
                old.broker.store.append(StoredMessage("orders", b"delayed", ""))
            refusals.append(str(refused.value))
        return await swap(key, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(replicas.registry, "swap", deliver_meanwhile)
    await old.hand_over(3 - old.number)
    await replicas.until(lambda: replicas.in_sync == [1, 2])
    monkeypatch.undo()
    assert refusals[0] == "the master hands over to another replica"
    assert not list(replicas.folder.glob("*/cut"))
    assert replicas.master_server is not old
    assert replicas.master_server is not None
    replicas.master_server.broker.store.append(StoredMessage("orders", b"delayed", ""))


async def test_a_master_without_registry_and_followers_stops_acting_as_master(replicas: ReplicaSet) -> None:
    for number in (1, 2):
        await replicas.start(number, min_in_sync=1, lease_ms=2_000)
    await replicas.until(lambda: replicas.in_sync == [1, 2])
    master = replicas.master_server
    assert master is not None
    async with AsyncProducer("g", replicas.namesrv) as producer, AsyncAdmin(replicas.namesrv) as admin:
        result = await producer.send(Message("orders", b"1"))
        replicas.registry.is_away = True
        other = replicas.servers.pop(3 - master.number)
        other.cut_connections()
        await other.abort()
        await replicas.until(lambda: bool(master.broker.role.fence))
        with pytest.raises(ServiceNotAvailable, match="no sign of the registry for 2 s, nor of all followers"):
            await producer.send(Message("orders", b"2"), timeout=0.5)
        with pytest.raises(ServiceNotAvailable, match="no sign of the registry"):
            await admin.commit_offset("g", result.queue, 1)
        replicas.registry.is_away = False
        await replicas.until(lambda: not master.broker.role.fence)
        await producer.send(Message("orders", b"3"), timeout=10.0)
