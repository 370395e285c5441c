"""Pulls of records that are on disk only: answered all the same, and nobody waits for them."""

import os
from dataclasses import replace

import pytest
from tests.broker.consuming.cold import forget

from pyromq.broker.broker import Broker
from pyromq.errors import ResponseCode
from pyromq.record import decode_all
from pyromq.store import disk as page_cache
from pyromq.store.disk import LOCAL_DISK
from pyromq.store.log import residency


@pytest.fixture
def config(config):
    return replace(config, store=replace(config.store, segment_bytes=1 << 20))


async def test_what_is_on_disk_only_comes_all_the_same(config, clock, caller_to, monkeypatch):
    monkeypatch.setattr(residency, "RECENT_BYTES", 0)
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


async def test_a_damaged_entry_among_what_is_on_disk_only_costs_one_more_pull(config, clock, caller_to, monkeypatch):
    monkeypatch.setattr(residency, "RECENT_BYTES", 0)
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await caller.create_topic("orders", queues=1)
        for number in range(10):
            await caller.send("orders", b"%d" % number)
    [path] = (config.data / "consumequeue" / "orders" / "0").iterdir()
    content = bytearray(path.read_bytes())
    content[4 * 20 + 7] ^= 1
    path.write_bytes(content)
    loaded = [False, False, False]  # as the store asks, then the broker; the broker at the second pull
    monkeypatch.setattr(LOCAL_DISK.__class__, "is_loaded", lambda disk, views: loaded.pop() if loaded else True)
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        response = await caller.pull()
        assert (response.code, response.fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "0")
        response = await caller.pull()
        assert [message.body for message in decode_all(response.body)] == [b"%d" % number for number in range(10)]


async def test_a_filter_of_records_sees_what_was_on_disk_only(config, clock, caller_to, monkeypatch):
    monkeypatch.setattr(residency, "RECENT_BYTES", 0)
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await caller.create_topic("orders", queues=1)
        for number in range(10):
            await caller.send("orders", b"%d" % number, properties=f"price\x01{number}")
    dear = "price IN ('3', '7')"
    loaded = []
    monkeypatch.setattr(LOCAL_DISK.__class__, "is_loaded", lambda disk, views: bool(loaded))
    monkeypatch.setattr(LOCAL_DISK.__class__, "load", lambda disk, views: loaded.extend(views))
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        response = await caller.pull(sql=dear)
        assert (response.code, response.fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "0")
        assert len(decode_all(b"".join(loaded))) == 10
        response = await caller.pull(sql=dear)
        assert [message.body for message in decode_all(response.body)] == [b"3", b"7"]


@pytest.mark.parametrize("old", [False, True], ids=["", "before Linux 5.14"])
@pytest.mark.parametrize("shared", [True, False], ids=["neighbours", "far apart"])
def test_pages_are_in_memory_once_they_are_loaded(tmp_path, monkeypatch, shared, old):
    if old:
        monkeypatch.setattr(page_cache, "_MADV_POPULATE_READ", 9999)
    path = tmp_path / "file"
    path.write_bytes(os.urandom(1 << 20) * (1 if shared else 40))
    descriptor = LOCAL_DISK.open(path)
    memory = LOCAL_DISK.map(descriptor, path.stat().st_size, scattered=False)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    LOCAL_DISK.close(descriptor)
    views = [memory[5000:9000], memory[-70_000:]]
    LOCAL_DISK.load(views)
    assert LOCAL_DISK.is_loaded(views)
