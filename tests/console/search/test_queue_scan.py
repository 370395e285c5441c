"""What a search finds, in which order, and where its next page begins: as if each message had been compared."""

import asyncio
import json
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.waiting import REQUEST_SECONDS

from pyromq.client.consumer.queue_reader import AsyncQueueReader
from pyromq.clock import SystemClock
from pyromq.console.search import queue_scan as scanning
from pyromq.console.search.queue_scan import MATCH_ALL, Projection, QueueScan, narrowed
from pyromq.console.search.search import TextMatch
from pyromq.message import Message, encode_properties
from pyromq.record import decode_all
from pyromq.testing import BlockingCluster

TOPICS = {"orders": 3, "invoices": 2}  # with their queues
COUNT = 700
WORDS = ("alpha", "beta", "gamma", "überall", "needle", "\\u00fc", "a" * 40)
WINDOWS = 8, 100  # first, largest
WHOLE = Projection(lambda message: message, lambda message: len(message.stored_body))


def drawn_message(random, number):
    topic = random.choice(list(TOPICS))
    words = random.choices(WORDS, k=random.randrange(4))
    body = json.dumps({"number": number, "words": words}, ensure_ascii=random.random() < 0.5).encode()
    if random.random() < 0.1:
        body = random.randbytes(random.randrange(1, 60))
    elif random.random() < 0.1:
        body += b" packed" * 1000  # sent compressed
    properties = {"note": random.choice(WORDS)} if random.random() < 0.3 else {}
    return Message(topic, body, tags=random.choice(["x", None]), keys=f"k{number}", properties=properties)


@pytest.fixture(scope="module")
def cluster():
    with BlockingCluster(clock=SystemClock()) as cluster:
        admin = cluster.admin()
        for topic, queues in TOPICS.items():
            admin.create_topic(topic, queues)
        producer, random = cluster.producer(), Random(7)
        for number in range(COUNT):
            producer.send(drawn_message(random, number))
        yield cluster


@pytest.fixture(scope="module")
def stored(cluster):
    """All messages by queue, as they are read one by one, and their records back to back."""

    async def read():
        async with AsyncQueueReader("tests", cluster.namesrv, timeout=REQUEST_SECONDS) as reader:
            bounds = await reader.bounds(TOPICS)
            found = {queue: [] for queue in bounds}
            raw = b""
            for queue, (least, most) in bounds.items():
                for offset in range(least, most):
                    result = await reader.pull(queue, offset, 1)
                    found[queue] += decode_all(result.raw, broker_name=queue.broker_name)
                    raw += result.raw
            return bounds, found, raw

    return asyncio.run(read())


def holds(text, message):
    """The same as the page says, in the plainest way."""
    return (
        text.encode() in message.body
        or text in encode_properties(message.properties)
        or text.upper() in (message.message_id, message.offset_message_id)
    )


def expected_page(bounds, messages, accepts, *, limit, window):
    """Return a page, and the bounds of the next one: all queues are read equally deep until there is enough."""
    places = {queue: most for queue, (least, most) in bounds.items() if least < most}
    found = []
    while any(at > bounds[queue][0] for queue, at in places.items()) and len(found) < limit:
        for queue, at in places.items():
            begin = max(bounds[queue][0], at - window)
            found += [each for each in messages[queue] if begin <= each.queue_offset < at and accepts(each)]
            places[queue] = begin
        window = min(4 * window, WINDOWS[1])
    order = list(bounds)
    found.sort(key=lambda each: (-each.store_ms, -each.queue_offset, order.index(each.queue)))
    for each in found[limit:]:
        places[each.queue] = max(places[each.queue], each.queue_offset + 1)
    return found[:limit], {queue: (bounds[queue][0], at) for queue, at in places.items() if at > bounds[queue][0]}


async def scanned(namesrv, bounds, match, limit):
    async with AsyncQueueReader("tests", namesrv, verify_checksums=False, timeout=REQUEST_SECONDS) as reader:
        return await QueueScan(reader, bounds, match, keeping=WHOLE, limit=limit, seconds=REQUEST_SECONDS).run()


def place(message):
    return message.queue, message.queue_offset, message.stored_body, message.property_text


texts = (
    st.sampled_from(WORDS)
    | st.sampled_from(["number", '"number": 1', "packed", "nothing like it", "k1", "\x02", "{", "orders"])
    | st.integers(0, COUNT).map("k{}".format)
)


@st.composite
def queries(draw, raw):
    """Text: a word, a key, or what stands anywhere in the log, over the border of two records too."""
    begin = draw(st.integers(0, len(raw) - 40))
    cut = raw[begin : begin + draw(st.integers(1, 40))].decode(errors="ignore")
    return draw(texts | st.just(cut or "none")), draw(st.sampled_from([1, 3, 20, 100, 1000]))


@settings(max_examples=60)
@given(st.data())
def test_pages_have_all_messages_that_hold_a_text_each_once_and_newest_first(cluster, stored, data):
    bounds, messages, raw = stored
    text, limit = data.draw(queries(raw))
    every = [place(each) for of_queue in messages.values() for each in of_queue if holds(text, each)]
    shown = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(scanning, "FIRST_WINDOW", WINDOWS[0])
        patched.setattr(scanning, "LARGEST_WINDOW", WINDOWS[1])
        for _ in range(4):  # pages
            page, left = expected_page(bounds, messages, lambda each: holds(text, each), limit=limit, window=WINDOWS[0])
            found = asyncio.run(scanned(cluster.namesrv, bounds, TextMatch(text, match_case=True), limit))
            assert [place(each) for each in found.kept] == [place(each) for each in page]
            shown += [place(each) for each in found.kept]
            if not left:
                break
            bounds = narrowed(bounds, found.before)
            assert bounds == left
    assert len(set(shown)) == len(shown)
    assert set(shown) <= set(every)
    if not found.before:
        assert set(shown) == set(every)


@settings(max_examples=20)
@given(st.data())
def test_an_id_is_text_as_well(cluster, stored, data):
    bounds, messages, _ = stored
    message = data.draw(st.sampled_from([each for of_queue in messages.values() for each in of_queue]))
    text = data.draw(st.sampled_from([message.message_id, message.offset_message_id]))
    text = data.draw(st.sampled_from([text, text.lower()]))
    found = asyncio.run(scanned(cluster.namesrv, bounds, TextMatch(text), 20))
    assert [place(each) for each in found.kept] == [place(message)]


def test_of_everything_the_newest_of_all_queues_come_first(cluster, stored):
    bounds, messages, _ = stored
    page, _ = expected_page(bounds, messages, lambda each: True, limit=50, window=50)
    found = asyncio.run(scanned(cluster.namesrv, bounds, MATCH_ALL, 50))
    assert [place(each) for each in found.kept] == [place(each) for each in page]
    assert {each.topic for each in found.kept} == set(TOPICS)
    assert found.read == 50 * sum(TOPICS.values())


def test_when_the_time_is_up_before_anything_is_read_the_next_page_begins_where_this_one_did(cluster, stored):
    bounds, _, _ = stored

    async def without_time():
        async with AsyncQueueReader("tests", cluster.namesrv, verify_checksums=False) as reader:
            return await QueueScan(reader, bounds, TextMatch("k1"), keeping=WHOLE, limit=20, seconds=-1).run()

    found = asyncio.run(without_time())
    assert (found.kept, found.read, found.why) == ([], 0, "time")
    assert narrowed(bounds, found.before) == bounds
