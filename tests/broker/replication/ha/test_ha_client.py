"""The slave's side of the HA stream: a store that follows a real broker, and masters that are only bytes."""

import asyncio
import struct
from dataclasses import replace

import pytest
from tests.broker.replication.ha.conftest import SEGMENT, fill, sockets

from pyromq.broker.replication.ha.ha_client import HaClient, Master
from pyromq.broker.replication.ha.ha_config import HaConfig
from pyromq.broker.role import request_address
from pyromq.message import pack_address
from pyromq.store.message_store import MessageStore

ADDRESS = pack_address("127.0.0.1", 0)


def log_files(folder):
    """Return the log files by name, without those that were only made in advance."""
    contents = {file.name: file.read_bytes() for file in (folder / "commitlog").iterdir()}
    return {name: content for name, content in contents.items() if any(content)}


@pytest.fixture
async def false_master():
    """Serve bytes as a master would: `await false_master(master, frames, answers)`.

    After the first report the frames are sent; with `beats`, also one after each later report.
    """
    servers, writers = [], []

    async def serve(master, *frames, beats=None):
        async def answer(reader, writer):
            writers.append(writer)
            while await reader.read(8):
                for offset, data in frames:
                    writer.write(struct.pack(">qi", offset, len(data)) + data)
                if beats is None:
                    await reader.read()
                    return
                writer.write(struct.pack(">qi", beats, 0))

        servers.append(await asyncio.start_server(answer, "127.0.0.1", 0))
        return Master(f"127.0.0.1:{servers[-1].sockets[0].getsockname()[1]}", master.broker.address)

    yield serve
    for each in (*writers, *servers):
        each.close()
    await sockets()


@pytest.fixture
def slave_config(config, tmp_path):
    return replace(config.store, root=tmp_path / "slave")


@pytest.fixture
def slave(slave_config, clock):
    store = MessageStore(slave_config, clock, store_address=ADDRESS)
    store.open()
    yield store
    store.close()


def master_of(master):
    return Master(f"127.0.0.1:{master.service.port}", master.broker.address)


@pytest.fixture
async def client(slave, clock):
    client = HaClient(slave, clock, HaConfig())
    yield client
    await client.stop()


async def test_log_files_of_master_and_slave_are_equal(master, orders, slave, client):
    client.follow(master_of(master))
    await master.until(lambda: client.connection is not None)
    await fill(orders, 3 * SEGMENT)
    await orders.send("orders", b"last", queue_id=3, properties="DELAY\x013\x02KEYS\x01k")
    end = master.store.max_log_offset
    await master.until(lambda: slave.max_log_offset == end)
    assert log_files(slave.config.root) == log_files(master.broker.config.data)
    assert slave.max_offset("orders", 0) == master.store.max_offset("orders", 0)
    assert [message for message in (slave.message("orders", 0, 5),) if message.body == b"x" * 3_000]
    await master.until(lambda: end in master.replicated)
    assert client.fault == ""


async def test_an_empty_slave_begins_with_the_last_file(master, orders, slave, client):
    await fill(orders, 2 * SEGMENT + 10_000)
    end = master.store.max_log_offset
    client.follow(master_of(master))
    await master.until(lambda: slave.max_log_offset == end)
    assert slave.min_log_offset == end - end % SEGMENT
    (name,) = log_files(slave.config.root)
    assert log_files(slave.config.root)[name] == log_files(master.broker.config.data)[name]


async def test_a_slave_goes_on_after_a_broken_connection(master, orders, slave, client):
    client.follow(master_of(master))
    await master.until(lambda: client.connection is not None)
    for _ in range(3):
        await fill(orders, 30_000)
        await master.turn()
        for connection in list(master.service._connections.values()):
            master.service._close(connection)
    end = master.store.max_log_offset
    await master.until(lambda: slave.max_log_offset == end)
    assert log_files(slave.config.root) == log_files(master.broker.config.data)


async def test_a_slave_that_was_closed_goes_on_where_it_ended(master, orders, slave, slave_config, clock):
    first = HaClient(slave, clock, HaConfig())
    first.follow(master_of(master))
    await master.until(lambda: first.connection is not None)
    await fill(orders, SEGMENT)
    end = master.store.max_log_offset
    await master.until(lambda: slave.max_log_offset == end)
    await first.stop()
    slave.close()
    await fill(orders, SEGMENT)
    store = MessageStore(slave_config, clock, store_address=ADDRESS)
    store.open()
    again = HaClient(store, clock, HaConfig())
    again.follow(master_of(master))
    end = master.store.max_log_offset
    await master.until(lambda: store.max_log_offset == end)
    await again.stop()
    store.close()
    assert log_files(slave.config.root) == log_files(master.broker.config.data)


async def copy_of(master, slave, client):
    """Let the slave catch up, then stop following."""
    client.follow(master_of(master))
    await master.until(lambda: client.connection is not None)
    await master.until(lambda: slave.max_log_offset == master.store.max_log_offset)
    await client.stop()
    await master.turn()


async def refused(master, client):
    client.follow(master_of(master))
    await master.until(lambda: client.fault)
    return client.fault


async def test_a_slave_with_another_file_size_does_not_follow(master, orders, slave_config, clock, caplog):
    other = MessageStore(replace(slave_config, segment_bytes=SEGMENT * 2), clock, store_address=ADDRESS)
    other.open()
    client = HaClient(other, clock, HaConfig())
    assert "mappedFileSizeCommitLog" in await refused(master, client)
    assert str(SEGMENT * 2) in caplog.text
    await client.stop()
    other.close()


async def test_a_slave_whose_last_record_differs_does_not_follow(master, orders, slave, client, caplog):
    await fill(orders, 3_000)
    data = bytearray((master.broker.config.data / "commitlog" / ("0" * 20)).read_bytes()[: master.store.max_log_offset])
    at = 56  # the store time of the first record
    data[at : at + 8] = struct.pack(">q", struct.unpack_from(">q", data, at)[0] + 1)
    slave.append_bytes(0, data)
    assert slave.max_log_offset == master.store.max_log_offset
    await fill(orders, 3_000)
    assert "differ" in await refused(master, client)
    await master.turn(60)
    assert slave.max_log_offset == len(data)
    assert master.service.slaves == []
    assert caplog.text.count("is not followed") == 1
    assert str(slave.config.root) in client.fault


async def test_a_slave_ahead_of_its_master_does_not_follow(master, orders, slave, client):
    await fill(orders, 3_000)
    end = master.store.max_log_offset
    data = bytearray((master.broker.config.data / "commitlog" / ("0" * 20)).read_bytes()[:end])
    slave.append_bytes(0, data)
    data[28:36] = struct.pack(">q", end)
    data[20:28] = struct.pack(">q", 1)
    slave.append_bytes(end, data)
    assert slave.max_log_offset == 2 * end
    fault = await refused(master, client)
    assert str(end) in fault
    assert str(2 * end) in fault
    assert master.service.slaves == []


async def test_a_slave_behind_its_masters_first_byte_says_so(master, orders, slave, client):
    await copy_of(master, slave, client)
    await fill(orders, 1_000)
    await copy_of(master, slave, client)
    await fill(orders, 3 * SEGMENT)
    await master.clock.advance(10)
    assert master.store.retention.expire_now(1)
    fault = await refused(master, client)
    assert str(slave.max_log_offset) in fault
    assert str(master.store.min_log_offset) in fault


async def test_a_following_slave_that_falls_behind_the_first_byte_says_so(
    orders, master, slave, client, clock, false_master
):
    """A Java master sends such a slave heartbeats for ever."""
    await fill(orders, 1_000)
    await copy_of(master, slave, client)
    client.follow(await false_master(master, beats=slave.max_log_offset))
    await master.until(lambda: client.connection is not None and client.connection.is_idle)
    await fill(orders, 3 * SEGMENT)
    await clock.advance(10)
    assert master.store.retention.expire_now(1)
    await master.until(lambda: client.fault)
    assert str(master.store.min_log_offset) in client.fault


async def test_a_silent_master_is_left(master, orders, slave, client, clock, false_master):
    client.follow(await false_master(master))
    await master.until(lambda: client.connection is not None)
    await clock.advance(19)
    assert client.fault == ""
    await clock.advance(3)
    await sockets()
    assert "haHousekeepingInterval" in client.fault


@pytest.mark.parametrize(
    ("frames", "named"),
    [
        ([(0, b"no record, but long enough to be looked at")], "damaged"),
        ([(0, b"x" * 7), (12, b"x")], "12"),
        ([(12, b"x")], "12"),
        ([(SEGMENT - 1, b"xx")], "crosses"),
        ([(-1, b"")], "4.9"),
    ],
)
async def test_bytes_that_do_not_belong_there_end_the_connection(
    master, orders, slave, client, false_master, frames, named
):
    client.follow(await false_master(master, *frames))
    await master.until(lambda: client.fault)
    assert named in client.fault
    assert slave.max_log_offset == 0


async def test_half_a_record_of_a_former_master_is_dropped(master, orders, slave, client):
    await fill(orders, 3_000)
    data = (master.broker.config.data / "commitlog" / ("0" * 20)).read_bytes()[: master.store.max_log_offset]
    slave.append_bytes(0, data)
    slave.append_bytes(len(data), data[:100])
    await fill(orders, 30_000)
    client.follow(master_of(master))
    await master.until(lambda: slave.max_log_offset == master.store.max_log_offset)
    assert log_files(slave.config.root) == log_files(master.broker.config.data)


async def test_a_slave_follows_another_master_at_once(master, orders, slave, client, false_master):
    client.follow(await false_master(master))
    await master.until(lambda: client.connection is not None)
    client.follow(master_of(master))
    await fill(orders, 3_000)
    await master.until(lambda: slave.max_log_offset == master.store.max_log_offset)


async def test_a_master_that_is_down_is_tried_again(master, orders, slave, client, caplog):
    await fill(orders, 3_000)
    await master.service.stop()
    master.service.close()
    client.follow(master_of(master))
    await master.until(lambda: client.fault)
    await master.turn(60)
    assert caplog.text.count("is not followed") == 1
    await master.service.start("127.0.0.1", master.service.port)
    await master.until(lambda: slave.max_log_offset == master.store.max_log_offset)
    assert client.fault == ""


def test_the_address_for_requests_is_one_port_below():
    assert request_address("10.0.0.1:10912") == "10.0.0.1:10911"
