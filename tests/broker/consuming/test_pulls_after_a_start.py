"""Pulls of what an earlier process stored: compared with its entries, by the compiled way where there is one."""

from random import Random

import pytest
from tests.broker.headers import pull_header

from pyromq import speedups
from pyromq.broker.broker import Broker
from pyromq.errors import ResponseCode
from pyromq.record import decode_all
from pyromq.remoting.codes import PullFlag
from pyromq.remoting.headers import PullMessageResponse
from pyromq.store.queue.consume_queue import ENTRY_BYTES
from pyromq.store.queue.reading import Reading

COUNT = 60
QUEUE = "consumequeue/orders/0/" + "0" * 20


def bulk(offset, tags="*"):
    return pull_header(
        queue_offset=offset,
        max_count=2 * COUNT,
        sys_flag=int(PullFlag.SUBSCRIPTION),
        subscription=tags,
        max_bytes=1 << 20,
    )


async def pulled(caller, offset=0, tags="*"):
    """Return the bodies from an offset to the queue's end."""
    found = []
    while (response := await caller.channel.call(bulk(offset, tags), timeout=30)).code != ResponseCode.PULL_NOT_FOUND:
        found += [each.body for each in decode_all(response.body)]
        offset = response.header(PullMessageResponse).next_offset
    return found


@pytest.fixture
async def sent(config, clock, caller_to):
    """The bodies that a broker, stopped since, has stored in a queue; those of another one lie between them."""
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await caller.create_topic("orders", queues=2)
        for number in range(COUNT):
            await caller.send("orders", b"%d" % number, properties=f"TAGS\x01t{number % 2}")
            await caller.send("orders", b"another", queue_id=1)
    return [b"%d" % number for number in range(COUNT)]


@pytest.mark.skipif(not speedups.is_active, reason="the compiled parts are not active")
async def test_they_are_answered_without_the_plain_way(config, clock, caller_to, sent, monkeypatch):
    plain, asked = Reading.read, []

    def read(reading, topic, queue_id, offset, *limits, **wanted):
        asked.append(offset)
        return plain(reading, topic, queue_id, offset, *limits, **wanted)

    monkeypatch.setattr(Reading, "read", read)
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        assert await pulled(caller) == sent
        assert await pulled(caller, 50) == sent[50:]
        await caller.send("orders", b"new")
        assert await pulled(caller) == [*sent, b"new"]
        assert asked == [0, COUNT, COUNT, COUNT + 1]  # a group's first pull, and the queue's ends
        assert await pulled(caller, tags="t1") == sent[1::2]
        assert 0 in asked[4:]  # what is filtered by is compared as well, which the plain way does


@pytest.mark.parametrize("byte", range(12))
async def test_a_flipped_bit_of_an_entry_costs_nothing(config, clock, caller_to, sent, byte, caplog):
    path = config.data / QUEUE
    before = path.read_bytes()
    damaged = bytearray(before)
    damaged[31 * ENTRY_BYTES + byte] ^= 1 << byte % 7
    path.write_bytes(damaged)
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        assert await pulled(caller, 32) == sent[32:]
        assert await pulled(caller) == sent
    assert path.read_bytes() == before
    assert f"byte {31 * ENTRY_BYTES}: the damaged entry is rewritten" in caplog.text


@pytest.mark.parametrize("seed", range(20))
async def test_entries_of_others_are_given_to_nobody(config, clock, caller_to, sent, seed):
    """Entries that lead to sound records, only not to their own: exchanged, and moved to another queue's."""
    random = Random(seed)
    path = config.data / QUEUE
    content = bytearray(path.read_bytes())
    others = (config.data / "consumequeue" / "orders" / "1" / ("0" * 20)).read_bytes()
    for _ in range(3):
        to, source = random.randrange(COUNT - 2), random.randrange(COUNT - 2)
        entry = random.choice([bytes(content), others])[source * ENTRY_BYTES : (source + 1) * ENTRY_BYTES]
        content[to * ENTRY_BYTES : (to + 1) * ENTRY_BYTES] = entry
    path.write_bytes(content)
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        assert await pulled(caller) == sent
