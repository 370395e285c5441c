"""The master's side of the HA stream, as a slave sees it in bytes. FakeClock; real sockets."""

import asyncio

import pytest
from tests.broker.consuming.cold import forget_log, waits_of_this_thread
from tests.broker.replication.ha.conftest import SEGMENT, fill, sockets

FAR = 1 << 40


def log_of(master, start, end):
    """Return the bytes of the master's log files from one log offset to another."""
    files = sorted((master.broker.config.data / "commitlog").iterdir())
    first = int(files[0].name)
    return b"".join(file.read_bytes() for file in files)[start - first : end - first]


async def test_a_slave_is_sent_nothing_before_its_first_report(master, orders, peer_of):
    await fill(orders, 10_000)
    peer = await peer_of(master.service)
    await master.turn(15)
    assert not peer._reader._buffer
    assert len(master.service.slaves) == 1


async def test_a_slave_gets_the_bytes_of_the_log_in_frames_of_the_batch_size(master, orders, peer_of):
    await fill(orders, 30_000)
    end = master.store.max_log_offset
    peer = await peer_of(master.service)
    peer.report(500)
    await master.turn()
    frames = [await peer.frame()]
    while sum(len(data) for _, data in frames) < end - 500:
        frames.append(await peer.frame())
    assert [len(data) for _, data in frames[:-1]] == [10_000] * (len(frames) - 1)
    assert [offset for offset, _ in frames] == list(range(500, end, 10_000))
    assert b"".join(data for _, data in frames) == log_of(master, 500, end)


async def test_an_empty_slave_begins_with_the_last_file(master, orders, peer_of):
    await fill(orders, 2 * SEGMENT + 10_000)
    end = master.store.max_log_offset
    peer = await peer_of(master.service)
    peer.report(0)
    await master.turn()
    begin = end - end % SEGMENT
    assert begin
    assert await peer.bytes_up_to(end) == (begin, log_of(master, begin, end))


async def test_blank_records_are_sent_and_no_frame_crosses_the_end_of_a_file(master, orders, peer_of):
    await fill(orders, 3 * SEGMENT)
    end = master.store.max_log_offset
    peer = await peer_of(master.service)
    peer.report(1)
    received, at = b"", 1
    while at < end:
        await master.turn(0.02)
        offset, data = await peer.frame()
        assert offset == at
        assert offset // SEGMENT == (offset + len(data) - 1) // SEGMENT
        received, at = received + data, at + len(data)
    assert received == log_of(master, 1, end)


async def test_new_records_are_sent_at_the_next_look_or_at_once_when_woken(master, orders, peer_of):
    peer = await peer_of(master.service)
    end = master.store.max_log_offset
    await fill(orders, 3_000)
    peer.report(end)
    await sockets()
    await peer.bytes_up_to(master.store.max_log_offset)
    await fill(orders, 3_000)
    await sockets()
    assert not peer._reader._buffer
    await master.turn()
    await peer.bytes_up_to(master.store.max_log_offset)
    await master.turn(1)
    await fill(orders, 3_000)
    assert master.service.has_replica(master.store.max_log_offset)
    await peer.bytes_up_to(master.store.max_log_offset)


async def test_reports_say_how_far_the_log_is_replicated(master, orders, peer_of):
    await fill(orders, 30_000)
    end = master.store.max_log_offset
    peer = await peer_of(master.service)
    peer.report(400)
    await master.turn()
    await peer.bytes_up_to(end)
    peer.report(1_000, 20_000)
    await sockets()
    peer.report(end)
    await sockets()
    assert master.replicated == [400, 20_000, end]
    assert [reported for _, reported in master.service.slaves] == [end]


@pytest.mark.parametrize("first", [True, False])
async def test_a_report_beyond_the_log_closes_the_connection_and_does_not_count(master, orders, peer_of, first, caplog):
    await fill(orders, 10_000)
    peer = await peer_of(master.service)
    if not first:
        peer.report(400)
        await master.turn()
    peer.report(FAR)
    await sockets()
    await peer.closed()
    assert master.replicated == ([] if first else [400])
    assert master.service.slaves == []
    assert not master.service.has_replica(master.store.max_log_offset)
    assert str(FAR) in caplog.text


async def test_what_one_slave_reported_does_not_outlast_its_connection(master, orders, peer_of):
    await fill(orders, 10_000)
    end = master.store.max_log_offset
    gone = await peer_of(master.service)
    gone.report(end)
    await sockets()
    gone.close()
    await sockets()
    assert not master.service.has_replica(end)
    other = await peer_of(master.service)
    other.report(400)
    await sockets()
    assert [reported for _, reported in master.service.slaves] == [400]


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 8])
async def test_a_peer_that_is_no_slave_is_closed(master, orders, peer_of, sent):
    peer = await peer_of(master.service)
    peer.write(sent)
    await sockets()
    assert await peer.closed() == b""
    assert master.service.slaves == []


async def test_a_heartbeat_names_the_next_log_offset(master, orders, peer_of):
    await fill(orders, 3_000)
    end = master.store.max_log_offset
    peer = await peer_of(master.service)
    peer.report(end)
    await master.turn(4.9)
    assert not peer._reader._buffer
    await master.turn(0.3)
    assert await peer.frame() == (end, b"")


async def test_a_silent_slave_is_closed_and_a_reporting_one_is_not(master, orders, peer_of):
    await fill(orders, 3_000)
    end = master.store.max_log_offset
    silent, lively = await peer_of(master.service), await peer_of(master.service)
    silent.report(end)
    for _ in range(5):
        lively.report(end)
        await master.turn(5)
    await silent.closed()
    assert len(master.service.slaves) == 1


async def test_a_slave_behind_the_first_byte_is_closed_and_told_of_once(master, orders, peer_of, caplog):
    await fill(orders, 3 * SEGMENT)
    await master.clock.advance(10)
    assert master.store.retention.expire_now(1)
    for _ in range(2):
        peer = await peer_of(master.service)
        peer.report(10)
        await sockets()
        await peer.closed()
    lines = [record.getMessage() for record in caplog.records if "storePathRootDir" in record.getMessage()]
    assert len(lines) == 1
    assert "log offset 10" in lines[0]
    assert str(master.store.min_log_offset) in lines[0]


async def test_a_slave_far_behind_is_no_replica(master, orders, peer_of):
    await fill(orders, 10_000)
    end = master.store.max_log_offset
    assert not master.service.has_replica(end)
    peer = await peer_of(master.service)
    assert master.service.has_replica(end)
    peer.report(400)
    await sockets()
    assert not master.service.has_replica(400 + (256 << 20))
    assert master.service.has_replica(399 + (256 << 20))


async def test_a_slave_that_does_not_read_takes_no_memory_and_is_sent_the_rest_later(master, orders, peer_of):
    body = 60_000
    for _ in range(200):
        await orders.send("orders", b"x" * body)
    end = master.store.max_log_offset
    begin = master.store.min_log_offset
    peer = await peer_of(master.service)
    peer._writer.transport.pause_reading()
    peer.report(begin or 1)
    for _ in range(30):
        await master.turn(0.01)
    (connection,) = master.service._connections.values()
    assert connection.sent_to < end
    assert all(isinstance(piece, memoryview | bytes) for piece in connection.unsent)
    peer._writer.transport.resume_reading()
    offset, data = await peer.bytes_up_to(end)
    assert data == log_of(master, offset, end)


async def test_a_peer_whose_address_is_not_allowed_gets_nothing(master, orders, peer_of, caplog):
    async def nobody(host):
        return False

    master.service._allows = nobody
    peer = await peer_of(master.service)
    peer.report(1)
    await peer.closed()
    assert "haAllowedPeers" in caplog.text


@pytest.mark.on_disk
async def test_bytes_that_are_not_in_memory_are_loaded_by_a_thread(master, orders, peer_of, monkeypatch):
    monkeypatch.setattr("pyromq.store.log.commit_log.RECENT_BYTES", 0)
    await fill(orders, 3 * SEGMENT)
    end = master.store.max_log_offset
    await asyncio.to_thread(master.store.wait_flushed(end).result, 10)
    forget_log(master.store)
    loads, fetch = [], master.service._fetch
    master.service._fetch = lambda pages, alarm: loads.append(pages) or fetch(pages, alarm)
    peer = await peer_of(master.service)
    peer.report(1)
    before = waits_of_this_thread()
    received, at = b"", 1
    while at < end:
        await master.turn(0.02)
        if peer._reader._buffer:
            offset, data = await peer.frame()
            assert offset == at
            received, at = received + data, at + len(data)
    assert waits_of_this_thread() == before
    assert loads
    assert received[: end - 1] == log_of(master, 1, end)


async def test_peers_beyond_the_limit_are_closed(master, orders, peer_of, monkeypatch):
    monkeypatch.setattr("pyromq.broker.replication.ha.ha_service.MAX_PEERS", 2)
    first, second, third = [await peer_of(master.service) for _ in range(3)]
    assert await third.closed() == b""
    assert len(master.service.slaves) == 2
    first.close()
    await sockets()
    await peer_of(master.service)
    assert len(master.service.slaves) == 2
    second.close()


async def test_a_master_that_stops_closes_its_slaves(master, orders, peer_of):
    peer = await peer_of(master.service)
    peer.report(1)
    await sockets()
    await master.service.stop()
    master.service.close()
    await peer.closed()
    with pytest.raises(ConnectionError):
        await peer_of(master.service)
