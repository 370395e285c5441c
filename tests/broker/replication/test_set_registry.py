"""Which changes of a set's keys a replica acts on at once."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.waiting import PATIENCE_SECONDS

from pyromq.broker.replication.registry import Changed, Missed, Versioned
from pyromq.broker.replication.set_record import Member, ReplicaInfo, SetRecord, SetSettings
from pyromq.broker.replication.set_registry import SetRegistry
from pyromq.errors import ProtocolError, UsageError
from pyromq.testing import MemoryRegistry

INFO = ReplicaInfo(2, 77, "10.0.0.2:10911", "10.0.0.2:10912", "1.0", end=100)
SETTINGS = SetSettings(1 << 20, 1, False)


async def seen(keys: SetRegistry, count: int) -> list[bool]:
    """Return for each of the first changes of the set's keys whether it is news to a replica that knows `INFO`."""
    changes = aiter(keys.watch(0))
    async with asyncio.timeout(PATIENCE_SECONDS):
        return [keys.is_news(await anext(changes), {INFO.number: INFO}) for _ in range(count)]


async def test_a_registration_is_news_if_it_begins_ends_or_is_of_another_process() -> None:
    registry = MemoryRegistry()
    keys = SetRegistry(registry, "c", "orders")
    lease = await registry.lease(60)
    await keys.register(msgspec.structs.replace(INFO, end=5_000, last_epoch=3), lease.id)
    await keys.register(msgspec.structs.replace(INFO, incarnation=78), lease.id)
    await keys.register(msgspec.structs.replace(INFO, incarnation=78, address="10.0.0.9:10911"), lease.id)
    await SetRegistry(registry, "c", "orders").register(msgspec.structs.replace(INFO, number=3), lease.id)
    await registry.release(lease.id)  # ends both registrations
    assert await seen(keys, 6) == [False, True, True, True, True, True]


async def test_the_record_is_news_and_numbers_and_settings_are_not() -> None:
    registry = MemoryRegistry()
    keys = SetRegistry(registry, "c", "orders")
    await keys.claim_number(4)
    await keys.swap(0, SetRecord(1, 1, (Member(1, 7),)))
    assert await seen(keys, 2) == [False, True]
    assert keys.is_news(Missed(9), {})


async def test_replicas_that_run_enter_their_settings_again_in_a_registry_that_was_emptied() -> None:
    registry = MemoryRegistry()
    keys = SetRegistry(registry, "c", "orders")
    lease = await registry.lease(60)
    await keys.agree(SETTINGS)
    await keys.register(INFO, lease.id)
    for key in list(registry._entries):
        registry._write(key, None)
    await keys.register(INFO, lease.id)
    with pytest.raises(UsageError, match="mappedFileSizeCommitLog is 4096 here and 1048576 there"):
        await SetRegistry(registry, "c", "orders").agree(SetSettings(4096, 1, False))
    with pytest.raises(UsageError, match="enableElectUncleanMaster is true here and false there"):
        await SetRegistry(registry, "c", "orders").agree(SetSettings(1 << 20, 1, True))


async def test_a_registration_that_cannot_be_read_is_named() -> None:
    keys = SetRegistry(MemoryRegistry(), "c", "orders")
    change = Changed("/pyromq/c/orders/replica/2", Versioned(b"?", 5))
    with pytest.raises(ProtocolError, match="/pyromq/c/orders/replica/2 is not a ReplicaInfo"):
        keys.is_news(change, {})
