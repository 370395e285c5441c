"""Pulls of records that are on disk only: answered all the same, and nobody waits for them."""

import os
from dataclasses import replace

import pytest
from tests.broker.consuming.cold import forget

from pyromq.broker.broker import Broker
from pyromq.record import decode_all
from pyromq.slow_work import FilePiece
from pyromq.store.disk import LOCAL_DISK, LocalDisk
from pyromq.store.log import commit_log

pytestmark = pytest.mark.on_disk


@pytest.fixture
def config(config):
    return replace(config, store=replace(config.store, segment_bytes=1 << 20))


async def test_what_is_on_disk_only_comes_all_the_same(config, clock, caller_to, monkeypatch):
    monkeypatch.setattr(commit_log, "RECENT_BYTES", 0)
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await caller.create_topic("orders", queues=1)
        for number in range(200):
            await caller.send("orders", b"%04d" % number * 1000)
    forget((config.data / "commitlog").iterdir())
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        found = []
        while len(found) < 200:
            response = await caller.pull(offset=len(found))
            found += [message.body[:4] for message in decode_all(response.body)]
        assert found == [b"%04d" % number for number in range(200)]


async def test_a_damaged_entry_among_what_is_on_disk_only_is_rewritten(config, clock, caller_to, monkeypatch):
    monkeypatch.setattr(commit_log, "RECENT_BYTES", 0)
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await caller.create_topic("orders", queues=1)
        for number in range(10):
            await caller.send("orders", b"%d" % number)
    [path] = (config.data / "consumequeue" / "orders" / "0").iterdir()
    content = bytearray(path.read_bytes())
    content[4 * 20 + 7] ^= 1
    path.write_bytes(content)
    loaded = loads_of(monkeypatch)
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        loaded.clear()
        response = await caller.pull()
        assert [message.body for message in decode_all(response.body)] == [b"%d" % number for number in range(10)]
        assert loaded


async def test_a_filter_of_records_sees_what_was_on_disk_only(config, clock, caller_to, monkeypatch):
    monkeypatch.setattr(commit_log, "RECENT_BYTES", 0)
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await caller.create_topic("orders", queues=1)
        for number in range(10):
            await caller.send("orders", b"%d" % number, properties=f"price\x01{number}")
    loaded = loads_of(monkeypatch)
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        loaded.clear()
        response = await caller.pull(sql="price IN ('3', '7')")
        assert [message.body for message in decode_all(response.body)] == [b"3", b"7"]
        assert loaded


def loads_of(monkeypatch):
    """Pieces that were loaded, for a test to look at and to clear: before there are any, nothing is in memory."""
    loaded = []
    monkeypatch.setattr(LocalDisk, "is_resident", lambda *_: bool(loaded))
    monkeypatch.setattr(LocalDisk, "load", lambda disk, pieces: loaded.extend(pieces))
    return loaded


@pytest.mark.parametrize("shared", [True, False], ids=["neighbours", "far apart"])
def test_pages_are_in_memory_once_they_are_loaded(tmp_path, shared):
    path = tmp_path / "file"
    path.write_bytes(os.urandom(1 << 20) * (1 if shared else 40))
    descriptor = LOCAL_DISK.open(path)
    size = path.stat().st_size
    memory = LOCAL_DISK.map(descriptor, size, scattered=False)
    LOCAL_DISK.close(descriptor)
    forget([path])
    LOCAL_DISK.load([FilePiece(path, 5000, 4000), FilePiece(path, size - 70_000, 70_000)])
    assert LOCAL_DISK.is_resident(memory, 5000, 4000)
    assert LOCAL_DISK.is_resident(memory, size - 70_000, 70_000)
