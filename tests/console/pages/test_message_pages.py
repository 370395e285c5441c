"""Finding messages: by id, key, tag, text, expression, time; following, exporting, sending, looking at one."""

import json
import re

import pytest

from pyromq.message import Message
from pyromq.names import TRACE_TOPIC


@pytest.fixture
async def sent(cluster):
    """Thirty orders in two queues, ten seconds apart; what the producer was told of each."""
    admin = await cluster.admin()
    await admin.create_topic("orders", 2)
    await admin.create_topic("copies", 1)
    producer = await cluster.producer()
    found = []
    for number in range(30):
        body = json.dumps({"order": number, "customer": {"name": f"customer-{number}"}, "paid": number % 2 == 0})
        message = Message(
            "orders", body.encode(), tags=f"t{number % 3}", keys=f"k{number}", properties={"n": str(number)}
        )
        found.append(await producer.send(message))
        cluster.clock.jump(10)  # nobody sleeps so long that it would matter
    return found


def keys(page):
    return re.findall(r'<th scope="row"><a href="/message/[^>]+>([^<]+)</a>', page)


async def test_a_topics_latest_messages_come_first_and_older_ones_behind_a_link(browser, sent):
    page = await browser.get("/messages?topic=orders&limit=25")
    assert keys(page) == [f"k{number}" for number in range(29, 4, -1)]
    older = re.search(r'<a href="([^"]+)" rel="next">Older messages', page)[1].replace("&amp;", "&")
    assert keys(await browser.get(older)) == [f"k{number}" for number in range(4, -1, -1)]


async def test_the_latest_are_those_of_all_queues(browser, cluster):
    await (await cluster.admin()).create_topic("wide", 8)
    producer = await cluster.producer()
    for number in range(40):
        await producer.send(Message("wide", b"1", keys=f"k{number}"))
        await cluster.clock.advance(1)
    assert keys(await browser.get("/messages?topic=wide&limit=25")) == [f"k{number}" for number in range(39, 14, -1)]


@pytest.mark.parametrize(
    "query",
    [
        "q={id}",
        "q={offset_id}",
        "q={id}&topic=orders&by=id",
        "q=k7",
        "q=k7&by=key&topic=orders",
        "q=customer-7%22",
        "q=customer-7%22&by=text&topic=orders",
        "by=sql&topic=orders&q=n+%3D+7",
        "by=sql&q=body_order+%3D+7",
        "by=sql&q=body_customer_name+%3D+%27customer-7%27+AND+n+BETWEEN+1+AND+10",
    ],
)
async def test_one_message_is_found_by(browser, sent, query):
    result = sent[7]
    page = await browser.get("/messages?" + query.format(id=result.message_id, offset_id=result.offset_message_id))
    assert keys(page) == ["k7"]


@pytest.mark.parametrize("query", ["q=k7", "q=k7&by=key", "q={id}", "q=customer-7%22&by=text", "by=sql&q=n+%3D+7"])
async def test_records_of_traces_are_found_where_their_topic_is_asked_for(browser, sent, cluster, query):
    record = Message(TRACE_TOPIC, b'customer-7"', keys=["k7", sent[7].message_id], properties={"n": "7"})
    await (await cluster.producer()).send(record)
    query = query.format(id=sent[7].message_id)
    assert keys(await browser.get(f"/messages?{query}")) == ["k7"]
    assert keys(await browser.get(f"/messages?{query}&topic={TRACE_TOPIC}")) == [f"k7 {sent[7].message_id}"]


async def test_messages_are_found_by_tag_and_time(browser, sent, cluster):
    assert keys(await browser.get("/messages?topic=orders&by=tag&q=t1")) == [f"k{n}" for n in range(28, 0, -3)]
    end = cluster.clock.now_ms()
    since, until = end - 10_000 * 20, end - 10_000 * 18
    assert keys(await browser.get(f"/messages?topic=orders&since={since}&until={until}")) == ["k12", "k11", "k10"]


async def test_compressed_bodies_are_searched_too(browser, sent, cluster):
    producer = await cluster.producer("packer")
    await producer.send(Message("orders", b"needle " + b"x" * 10_000, keys="packed"))
    assert keys(await browser.get("/messages?q=needle&by=text")) == ["packed"]


async def test_what_cannot_be_looked_for_is_said_beside_the_form(browser, sent):
    page = await browser.get("/messages?topic=orders&by=sql&q=n+%3D+", status=400)
    assert "SQL92 expression" in page
    page = await browser.get("/messages?topic=orders&since=yesterday", status=400)
    assert "is not a time" in page
    assert 'value="orders"' in page


async def test_nothing_found_is_no_error(browser, sent):
    page = await browser.get("/messages?topic=orders&q=nothing-like-it")
    assert "Nothing is found." in page
    assert "30 messages read" in page


async def test_the_box_above_leads_to_topics_groups_and_messages(browser, sent):
    assert "<title>orders" in await browser.get("/find?q=orders")
    assert "<title>Message k7" in await browser.get("/find?q=k7")


async def test_what_is_found_is_exported(browser, sent):
    lines = (await browser.get("/messages/export?topic=orders&format=jsonl&by=tag&q=t0")).splitlines()
    assert [json.loads(each)["keys"] for each in lines] == [[f"k{number}"] for number in range(27, -1, -3)]
    rows = (await browser.get("/messages/export?topic=orders&format=csv")).splitlines()
    assert rows[0].startswith("stored,topic,broker,queue,offset,id,keys")
    assert len(rows) == 31


async def test_a_cell_that_a_spreadsheet_would_calculate_is_text(browser, sent, cluster):
    await (await cluster.producer("attacker")).send(Message("copies", b"=1+1"))
    assert "'=1+1" in await browser.get("/messages/export?topic=copies&format=csv")


async def test_one_message_shows_body_properties_and_life(browser, sent, cluster):
    admin = await cluster.admin()
    queue = sent[7].queue
    await admin.commit_offset("billing", queue, sent[7].queue_offset + 1)
    page = await browser.get(f"/message/orders/{queue.broker_name}/{queue.queue_id}/{sent[7].queue_offset}")
    assert '<span class="json-name">name</span>: <span class="json-text">"customer-7"</span>' in page
    assert "passed by billing" in page
    assert sent[7].message_id in page
    assert (await browser.get(f"/message/orders/{queue.broker_name}/{queue.queue_id}/9999", status=404)).count(
        "no message"
    )


async def test_a_message_is_sent_and_another_ones_copy_changed(browser, sent, cluster):
    browser.form_at = "/send"
    page = await browser.post(
        "/send", topic="copies", body='{"a": 1}', form="text", tag="x", keys="k1 k2", properties="a=b"
    )
    assert "is stored in queue 0 of copies" in page
    admin = await cluster.admin()
    (stored,) = await admin.query_by_key("copies", "k2")
    assert (stored.body, stored.tags, stored.properties["a"]) == (b'{"a": 1}', "x", "b")
    at = sent[7].queue
    query = f"topic=orders&broker={at.broker_name}&queue={at.queue_id}&offset={sent[7].queue_offset}"
    page = await browser.get(f"/send?{query}")
    assert "customer-7" in page and 'value="k7"' in page and "n=7" in page


async def test_what_is_not_sent_is_said_with_what_was_typed(browser, sent, cluster):
    browser.form_at = "/send"
    page = await browser.post("/send", status=400, topic="copies", body="zz", form="hex", keys="kept")
    assert "Not sent:" in page and "not hexadecimal" in page and 'value="kept"' in page
    page = await browser.post("/send", status=400, topic="copies", body="1", form="text", properties="KEYS=1")
    assert "used by the system" in page
    assert {entry.outcome for entry in browser.console.audit.recent()} == {"failed"}


async def test_searches_are_saved_and_deleted(browser, sent):
    browser.form_at = "/send"
    page = await browser.post("/messages/save", name="unpaid", query="topic=orders&q=false", back="/messages")
    assert '<a href="/messages?topic=orders&amp;q=false">unpaid</a>' in page
    page = await browser.post("/messages/forget", name="unpaid", back="/messages")
    assert ">unpaid</a>" not in page


async def test_new_messages_are_followed(browser, sent, cluster):
    from starlette.requests import Request

    from pyromq.console.pages.search_pages import _events
    from pyromq.console.search.message_columns import MessageColumns
    from pyromq.console.search.query import Query
    from pyromq.console.view.request_context import RequestContext

    await browser.get("/")
    session = next(iter(browser.console.sessions._sessions.values()))
    reader = await browser.console.clients_of(None).reader()
    ends = {queue: most for queue, (_, most) in (await reader.bounds(["orders"])).items()}
    context = RequestContext(Request({"type": "http", "app": browser.app}), browser.console, session, None, {})
    events = _events(context, reader, Query(topic="orders", text="new", by="text"), ends, MessageColumns())
    assert b"retry" in await anext(events)
    producer = await cluster.producer("late")
    await producer.send(Message("orders", b"something old", keys="other"))
    await producer.send(Message("orders", b"something new", keys="late"))
    while b"event: rows" not in (event := await anext(events)):
        pass
    assert b"late" in event and b"other" not in event
    browser.console.sessions.end(session)  # signed out: it ends
    with pytest.raises(StopAsyncIteration):
        while True:
            await anext(events)
