"""What a broker does by itself with messages on the disk only: done, and the loop has not waited for the disk."""

import asyncio
from dataclasses import replace

import pytest
from tests.broker.batches.test_batch_transaction_processor import Batches
from tests.broker.timers import timed
from tests.waiting import until

from pyromq.broker.broker import Broker
from pyromq.remoting.headers import ListTimers
from pyromq.store.log import commit_log

from .cold import WatchedDisk, forget, forget_log
from .test_cold_log import without_waiting

pytestmark = pytest.mark.on_disk

COUNT = 12
BODY = bytes(300_000)  # more than what comes from the disk along with a record's begin
BODIES = [b"%02d" % number + BODY for number in range(COUNT)]


@pytest.fixture
def config(config, monkeypatch):
    monkeypatch.setattr(commit_log, "RECENT_BYTES", 0)
    return replace(config, store=replace(config.store, segment_bytes=1 << 20, index_enabled=False))


@pytest.fixture
async def broker(config, clock):
    async with Broker(config, clock, disk=WatchedDisk()) as broker:
        yield broker
    assert not [name for name in broker.store.disk.waited_for if name.endswith(".records") or name.isdecimal()]


async def firsts(caller, queue_id=0):
    """What the bodies of a queue's messages begin with."""
    found = []
    while messages := await caller.messages("orders", queue_id, offset=len(found)):
        found += messages
    return [message.body[:2] for message in found]


async def park_at_level(broker, caller):
    await caller.create_topic("orders")
    await caller.send("orders", b"..")  # the queue is made
    for body in BODIES:
        await caller.send("orders", body, properties="DELAY\x013")
    forget_log(broker.store)


async def fill(broker, caller):
    """Have what was stored on disk only; where the log goes on is not beside it."""
    for _ in range(6):
        await caller.send("fillers", BODY)
    forget_log(broker.store)


async def all_delivered(broker, *, before=1):
    await until(lambda: broker.store.max_offset("orders", 0) == before + COUNT)


@pytest.mark.parametrize("restarted", [False, True])
async def test_messages_of_a_delay_level(config, clock, caller_to, restarted):
    async with Broker(config, clock) as broker:
        await park_at_level(broker, await caller_to(broker))
        if not restarted:
            await leaves_in_time(broker, clock)
    if restarted:
        async with Broker(config, clock) as broker:  # to whom the queues' entries are those of another
            await (await caller_to(broker)).send("orders", b"..")  # a queue is mapped by the first write after a start
            forget_log(broker.store)
            await leaves_in_time(broker, clock, before=2)
    async with Broker(config, clock) as broker:
        begin = [b".."] * (1 + restarted)
        assert await firsts(await caller_to(broker)) == [*begin, *(body[:2] for body in BODIES)]


async def leaves_in_time(broker, clock, *, before=1):
    with without_waiting():
        await clock.advance(9)
        assert broker.store.max_offset("orders", 0) == before
        await clock.advance(2)
        await all_delivered(broker, before=before)


async def test_half_messages_whose_producer_is_asked(config, clock, broker, producer):
    await producer.send(BODY)
    await producer.rounds(2)
    await producer.checked.next()
    broker.half_messages.undecided()  # looked at within the minute, as by every round
    await fill(broker, producer.caller)
    with without_waiting():
        await producer.rounds(1)
        header, message = await producer.checked.next()
    assert (header.half_queue_offset, message.body) == (2, BODY)


async def test_a_decided_run(config, clock, broker, caller):
    await caller.create_topic("orders")
    batches = Batches(caller, clock)
    await batches.run(["first"], name="before")
    await batches.commit({"a": 1}, name="before")
    await batches.run([BODY.decode()] * 3)
    await fill(broker, caller)
    with without_waiting():
        await batches.commit({"a": 3})
        await until(lambda: broker.store.max_offset("orders", 1) == 4)
    assert await firsts(caller, queue_id=1) == [b"fi", *[BODY[:2]] * 3]


@pytest.fixture
async def timers(config, clock, broker, caller):
    """A caller of a broker where messages wait for their time, copied to files that are on the disk only."""
    await caller.create_topic("orders")
    for number in range(COUNT):
        await timed(caller, clock, 100 + (number * 7) % COUNT, BODIES[number], key=f"K{number}")
    await caller.send("orders", b"..")  # the queue is made
    await copied(broker, clock)
    forget((config.data / "timers").iterdir())
    forget_log(broker.store)
    return caller


async def copied(broker, clock):
    """Let the messages that wait be copied to files."""
    files = broker.timers.index._files
    for _ in range(30):
        await clock.advance(1)
        await asyncio.wrap_future(broker.store.wait_flushed(broker.store.max_log_offset))
        await broker.saved()
    assert files.saved.buckets
    assert not files.saved.uncopied


async def test_messages_that_waited_for_their_time(timers, clock, broker):
    with without_waiting():
        await clock.advance(60)
        assert broker.store.max_offset("orders", 0) == 1
        await clock.advance(30)
        await all_delivered(broker)
    order = sorted(range(COUNT), key=lambda number: (number * 7) % COUNT)
    assert await firsts(timers) == [b"..", *(BODIES[number][:2] for number in order)]


async def test_messages_that_wait_are_listed(timers):
    with without_waiting():
        listed = await timers.body(ListTimers(topic="orders", count=100))
    assert sorted(each.message_id for each in listed.timers) == sorted(f"K{number}" for number in range(COUNT))


async def test_messages_that_wait_are_copied(config, clock, broker, caller):
    await caller.create_topic("orders")
    for number, body in enumerate(BODIES):
        await timed(caller, clock, 1000 + number, body)
    forget_log(broker.store)
    with without_waiting():
        await copied(broker, clock)
