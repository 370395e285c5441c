"""Pages over messages that strangers made: none fails, none hides the others, and none unpacks more than it shows."""

import json
import re
import zlib

import pytest
from tests.console.odd_messages import odd_messages

from pyromq.console.search import queue_scan as scanning
from pyromq.message import Message, StoredMessage
from pyromq.names import dead_letter_topic
from pyromq.sys_flag import SysFlag

LAST = "the-last-one"


@pytest.fixture
async def odd(cluster):
    """Odd messages between two plain ones, in a topic and in the dead letters of a group."""
    producer, admin = await cluster.producer(), await cluster.admin()
    for topic in ("orders", dead_letter_topic("billing")):
        await admin.create_topic(topic, 1)
        messages = odd_messages(topic, store_ms=cluster.clock.now_ms())
        for body in (b"first needle", None, b"last needle"):
            if body is None:
                for message in messages:
                    cluster.broker.store.append(message)
            else:
                plain = StoredMessage(topic, body, f"KEYS\x01{LAST}", store_ms=cluster.clock.now_ms())
                cluster.broker.store.append(plain)
    await producer.send(Message("orders", b"last of all needle", keys=LAST))
    return len(messages)


@pytest.mark.parametrize(
    "path",
    [
        "/messages?topic=orders&limit=100",
        "/messages?topic=orders&by=text&q=needle",
        "/messages?topic=orders&by=sql&q=KEYS = 'the-last-one'",
        "/messages?topic=orders&by=sql&q=body_a IS NULL AND KEYS IS NOT NULL",
        "/messages?q=needle",
        "/messages?topic=orders&by=key&q=the-last-one",
        "/messages/export?topic=orders",
        "/messages/export?topic=orders&format=csv",
        "/dead-letters/billing?limit=100",
        "/dead-letters/billing?key=the-last-one",
        "/dead-letters/billing/redrive",
        "/topics/orders",
    ],
)
async def test_no_message_hides_another(browser, odd, path):
    page = await browser.get(path)
    assert LAST in page or path.startswith("/topics")


async def test_each_of_them_has_a_page(browser, odd):
    browser.form_at = "/send"
    for offset in range(odd + 3):
        await browser.get(f"/message/orders/broker-a/0/{offset}")
        assert (await browser.client.get(f"/message/orders/broker-a/0/{offset}/body")).status_code == 200
        query = f"topic=orders&broker=broker-a&queue=0&offset={offset}"
        assert (await browser.client.get(f"/send?{query}")).status_code in (200, 400)  # a damaged one is not copied


async def test_exports_have_no_time_where_none_can_be(browser, odd):
    lines = [json.loads(line) for line in (await browser.get("/messages/export?topic=orders")).split("\n")[:-1]]
    assert len(lines) == odd + 3
    times = [each["born_time"] for each in lines if each.get("body") == "odd time"]
    assert times[0] == "1970-01-01T00:00:00.001+00:00"  # newest first
    assert times.count(None) == 4


async def test_a_list_unpacks_only_what_it_shows(browser, cluster, monkeypatch):
    await (await cluster.admin()).create_topic("orders", 1)
    body = zlib.compress(b"x" * (16 << 20))
    for _ in range(20):
        message = StoredMessage("orders", body, sys_flag=SysFlag.COMPRESSED, store_ms=cluster.clock.now_ms())
        cluster.broker.store.append(message)
    unpacked = []
    monkeypatch.setattr("pyromq.message.decompress", lambda *arguments: unpacked.append(arguments))  # a whole body
    assert (await browser.get("/messages?topic=orders")).count("xxxx…") == 20
    assert not unpacked


@pytest.mark.parametrize(
    ("path", "links"), [("/topics/none", ("/topics", "/new-topic")), ("/groups/none", ("/groups", "/new-group"))]
)
async def test_an_error_leads_to_pages_and_names_no_command(browser, path, links):
    page = (await browser.get(path, status=404)).partition('class="said"')[2]
    assert all(f'href="{link}"' in page for link in links)
    assert "pyromq " not in page and "--" not in page and "http" not in page


@pytest.mark.parametrize(
    "path",
    [
        f"/messages?topic=orders&queue={'9' * 5000}&limit={'9' * 5000}",
        f"/messages?topic=orders&before=orders:broker-a:0:{'9' * 5000}",
        f"/dead-letters/billing?limit={'9' * 5000}&since=0001-01-01T00:00",
        f"/message/orders/broker-a/0/{'9' * 5000}",
        f"/message/orders/broker-a/{2**31}/0",
        f"/send?topic=orders&broker=broker-a&queue=0&offset={2**64}",
        f"/dead-letters/billing/redrive?most=000000001{'0' * 5000}",
        "/messages/export?topic=%E2%82%AC%0D%0Ax&by=key&q=1",
        f"/topics?page={'9' * 5000}&rows=-1&sort=%00",
        "/topics?topic=a&topic=b&%FF=%FE",
    ],
)
async def test_odd_addresses_are_answered(browser, odd, path):
    assert (await browser.client.get(path)).status_code < 500


@pytest.mark.parametrize("most", [1, 2000, 6000, 10**9])
async def test_a_page_has_a_limit_of_bytes_and_the_next_one_the_rest(browser, cluster, monkeypatch, most):
    monkeypatch.setattr(scanning, "MAX_PAGE_BYTES", most)
    await (await cluster.admin()).create_topic("orders", 3)
    producer = await cluster.producer()
    for number in range(12):
        await producer.send(Message("orders", b"%02d" % number + b"." * 100))
        cluster.clock.jump(1)
    answer = await browser.client.get("/messages/export?topic=orders")
    found = [json.loads(line)["body"][:2] for line in answer.text.splitlines()]
    assert found == [f"{number:02d}" for number in range(11, 11 - len(found), -1)]
    assert 1 <= len(found) <= max(1, most // 450)  # a line has more bytes than that
    assert ("x-incomplete" in answer.headers) is (len(found) < 12)
    assert len(found) == 12 or most < 10**9

    found, url = [], "/messages?topic=orders&limit=20"
    while url:
        page = await browser.get(url)
        found += re.findall(r">(\d\d)\.{100}<", page)
        older = re.search(r'<a href="([^"]+)" rel="next">', page)
        url = older[1].replace("&amp;", "&") if older else None
    assert found == [f"{number:02d}" for number in range(11, -1, -1)]
