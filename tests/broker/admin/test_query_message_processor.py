"""Messages by key and by log offset, and raw queue entries."""

import errno
import os
from dataclasses import replace

import pytest

from pyromq.broker import indexing as indexing_module
from pyromq.broker.admin import query_message_processor as message_queries
from pyromq.broker.broker import Broker
from pyromq.broker.indexing import BULK_BYTES, BULK_PAUSE_SECONDS, FAR_PAUSE_SECONDS, PAUSE_SECONDS, Indexing
from pyromq.broker.limits import BrokerLimits
from pyromq.message import StoredMessage
from pyromq.message_id import parse_offset_id
from pyromq.record import decode, decode_all
from pyromq.remoting.bodies import decode_body
from pyromq.remoting.headers import MaxOffset, QueryMessage, QueryMessageResponse, QueueEntries, ViewMessage
from pyromq.store.index.index_file import IndexFile
from pyromq.testing import FakeClock

FOREVER = (1 << 63) - 1


def by_key(key, *, max_count=64, begin_ms=0, end_ms=FOREVER, by_unique_key=False):
    return QueryMessage(
        topic="orders",
        key=key,
        max_count=max_count,
        begin_ms=begin_ms,
        end_ms=end_ms,
        by_unique_key=by_unique_key,
    )


async def bodies(caller, header):
    return [message.body for message in decode_all((await caller.ask(header)).body)]


async def test_messages_are_found_by_each_of_their_keys(caller):
    await caller.send("orders", b"1", properties="KEYS\x01a b\x02UNIQ_KEY\x01U1")
    await caller.send("orders", b"2", properties="KEYS\x01b")
    assert await bodies(caller, by_key("a")) == [b"1"]
    assert await bodies(caller, by_key("b")) == [b"1", b"2"]
    assert await bodies(caller, by_key("U1", by_unique_key=True)) == [b"1"]


async def test_the_answer_tells_how_far_the_index_goes(caller, clock):
    sent = await caller.send("orders", properties="KEYS\x01a")
    header = (await caller.ask(by_key("a"))).header(QueryMessageResponse)
    assert header.index_last_log_offset == parse_offset_id(sent.message_id).log_offset
    assert header.index_last_ms == clock.now_ms()


async def test_an_unknown_key_is_not_found(caller):
    response = await caller.ask(by_key("nosuch"), code=22)
    assert response.remark == "can not find message, maybe time range not correct"


@pytest.mark.parametrize(("query_bytes", "found"), [(1, 1), (900, 2), (5_000, 3)])
async def test_an_answer_has_the_newest_that_fit_and_says_how_many_do_not(config, clock, caller_to, query_bytes, found):
    async with Broker(replace(config, limits=BrokerLimits(query_bytes=query_bytes)), clock) as broker:
        caller = await caller_to(broker)
        sent = [letter * 200 for letter in (b"1", b"2", b"3")]
        for body in sent:
            await caller.send("orders", body, properties="KEYS\x01a")
        response = await caller.ask(by_key("a"))
    assert [message.body for message in decode_all(response.body)] == sent[-found:]
    left_out = f"{3 - found} older messages are omitted: maxQueryBytes is {query_bytes}"
    assert response.remark == (left_out if found < 3 else None)


async def test_only_messages_of_the_asked_time_are_found(caller, clock):
    await caller.send("orders", b"early", properties="KEYS\x01a")
    await clock.advance(100)
    await caller.send("orders", b"late", properties="KEYS\x01a")
    assert await bodies(caller, by_key("a", begin_ms=clock.now_ms() - 1000)) == [b"late"]
    assert await bodies(caller, by_key("a", end_ms=clock.now_ms() - 1000)) == [b"early"]


async def test_no_more_than_asked_and_never_more_than_64_are_found(caller):
    for number in range(70):
        await caller.send("orders", b"%d" % number, properties="KEYS\x01a")
    assert await bodies(caller, by_key("a", max_count=3)) == [b"67", b"68", b"69"]
    assert len(await bodies(caller, by_key("a", max_count=1000))) == 64
    assert len(await bodies(caller, by_key("a", by_unique_key=True, max_count=1))) == 32


class Ticking(FakeClock):
    """A clock on which every look takes the time of a slice of indexing, and of the pause behind it."""

    def monotonic(self):
        self._move_to(self._seconds + PAUSE_SECONDS)
        return super().monotonic()


@pytest.fixture
async def backlog(config, caller_to):
    """A broker with 3,000 messages that are not indexed, and two connections to it."""
    async with Broker(config, Ticking()) as broker:
        for number in range(3_000):
            broker.store.append(StoredMessage("orders", b"%d" % number, f"KEYS\x01k{number}"))
        yield broker, await caller_to(broker), await caller_to(broker)


async def test_while_a_query_waits_for_the_index_others_are_served(backlog):
    _, asking, other = backlog
    waiting = asking.channel.call_soon(by_key("k2999"), timeout=60)
    await other.ask(MaxOffset(topic="orders", queue_id=0))
    assert not waiting.done()
    assert [message.body for message in decode_all((await waiting).body)] == [b"2999"]


async def test_a_query_is_refused_where_the_index_has_no_room(backlog, monkeypatch):
    _, asking, _ = backlog

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(IndexFile, "reserve", full)
    response = await asking.ask(by_key("k2999"), code=14)
    assert "make room on that disk" in response.remark


async def test_who_stores_very_much_has_the_processor(backlog):
    """While much is stored between two steps the index waits longer; it has its time again when that ends."""
    store = backlog[0].store
    for _ in range(3_000):  # far more than four steps of either form do
        store.append(StoredMessage("orders", b"", "KEYS\x01k"))
    indexing = Indexing(store, Ticking())
    indexing.step()
    pauses = []
    for size in (100, BULK_BYTES, 100):
        store.append(StoredMessage("orders", bytes(size), "KEYS\x01k"))
        pauses.append(indexing.step())
    assert pauses == [PAUSE_SECONDS, BULK_PAUSE_SECONDS, PAUSE_SECONDS]


async def test_an_index_that_is_far_behind_has_a_share_however_much_is_stored(backlog, monkeypatch):
    store = backlog[0].store
    for _ in range(3_000):
        store.append(StoredMessage("orders", b"", "KEYS\x01k"))
    indexing = Indexing(store, Ticking())
    pauses = []
    for bound in (1 << 30, 10_000, 1 << 30):
        monkeypatch.setattr(indexing_module, "FAR_BYTES", bound)
        store.append(StoredMessage("orders", bytes(BULK_BYTES), "KEYS\x01k"))
        pauses.append(indexing.step())
    assert pauses == [BULK_PAUSE_SECONDS, FAR_PAUSE_SECONDS, BULK_PAUSE_SECONDS]


async def test_a_message_is_viewed_by_its_offset_id(caller, broker):
    await caller.send("orders", b"first")
    sent = await caller.send("orders", b"second")
    address, log_offset = parse_offset_id(sent.message_id)
    assert address == broker.address
    response = await caller.ask(ViewMessage(offset=log_offset))
    assert decode(response.body).body == b"second"


async def test_where_no_record_begins_there_is_no_message(caller):
    await caller.send("orders")
    for offset in (1, 268435455, -1):
        response = await caller.ask(ViewMessage(offset=offset), code=1)
        assert response.remark == f"can not find message by the offset, {offset}"


async def test_queue_entries_are_shown(caller):
    await caller.send("orders", properties="TAGS\x01TagA")
    await caller.send("orders", properties="TAGS\x01TagB")
    await caller.beat("one", group="g")
    shown = await caller.body(QueueEntries(topic="orders", queue_id=0, index=0, count=5, consumer_group="g"))
    assert (shown.min_index, shown.max_index) == (0, 2)
    assert [(entry.log_offset > 0, entry.tags_code) for entry in shown.entries] == [(False, 2598919), (True, 2598920)]
    assert [entry.accepted for entry in shown.entries] == [True, True]
    assert shown.subscription.topic == "orders"


async def test_of_very_many_entries_as_many_are_answered_as_one_answer_has(caller, monkeypatch):
    monkeypatch.setattr(message_queries, "MAX_ENTRIES", 3)
    monkeypatch.setattr(message_queries, "ENTRIES_AT_ONCE", 2)
    for number in range(5):
        await caller.send("orders", b"%d" % number)
    shown = await caller.body(QueueEntries(topic="orders", queue_id=0, index=1, count=1 << 30))
    assert len(shown.entries) == 3
    assert (shown.min_index, shown.max_index) == (0, 5)


async def test_entries_outside_of_the_queue_are_none(caller):
    await caller.send("orders")
    header = QueueEntries(topic="orders", queue_id=0, index=7, count=5)
    response = await caller.ask(header)
    assert "Index 7 of 0@orders is not exist!" in response.remark
    assert decode_body(header.reply_body, response.body).entries == []
    await caller.ask(QueueEntries(topic="orders", queue_id=9, index=0, count=1), code=1)
