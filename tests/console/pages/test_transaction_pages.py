"""Undecided half messages: listed, shown, committed, rolled back."""

import re

import pytest

from pyromq import AsyncTransactionProducer, Decision, Message


@pytest.fixture
async def sent(cluster):
    """Three half messages of two producer groups that are gone."""
    found = []
    for group, topic, key in (("p", "orders", "k1"), ("p", "orders", "k2"), ("q", "invoices", "k3")):
        async with AsyncTransactionProducer(group, cluster.namesrv, check=lambda _: Decision.UNKNOWN) as producer:
            found.append(await producer.send_half(Message(topic, b'{"key": "<%s>"}' % key.encode(), keys=key)))
        await cluster.clock.advance(1)
    return found


async def visible(cluster, topic="orders"):
    consumer = await cluster.consumer("reader")
    results = [await consumer.pull(queue, 0) for queue in await consumer.queues(topic)]
    return [message.keys[0] for result in results for message in result.messages]


def keys(page):
    return re.findall(r'<th scope="row"><a href="/transactions/[^>]+>([^<]+)</a>', page)


async def test_without_half_messages_the_page_says_so(browser):
    assert "No half message is undecided." in await browser.get("/transactions")


async def test_what_is_undecided_is_listed_oldest_first(browser, sent):
    assert keys(await browser.get("/transactions")) == ["k1", "k2", "k3"]
    assert keys(await browser.get("/transactions?sort=-sent")) == ["k3", "k2", "k1"]
    assert keys(await browser.get("/transactions?group=q")) == ["k3"]
    assert keys(await browser.get("/transactions?topic=orders&rows=1&page=2")) == ["k2"]
    assert keys(await browser.get("/transactions?filter=k2")) == ["k2"]


async def test_one_is_shown_with_its_body(browser, sent):
    page = await browser.get(f"/transactions/{sent[0].message_id}")
    assert "&lt;k1&gt;" in page
    assert '<a href="/topics/orders">orders</a>' in page
    assert "No undecided half message has id" in await browser.get("/transactions/" + "0" * 32, status=404)


@pytest.mark.parametrize(("decision", "said", "seen"), [("commit", "committed", ["k1"]), ("rollback", "rolled", [])])
async def test_one_is_decided(browser, sent, cluster, decision, said, seen):
    url = f"/transactions/{sent[0].offset_message_id}"
    browser.form_at = url
    page = await browser.post(url, decision=decision)
    assert f"Half message {sent[0].message_id} is {said}" in page
    assert keys(page) == ["k2", "k3"]
    assert await visible(cluster) == seen
    (entry,) = browser.console.audit.recent()
    assert (entry.what, entry.outcome, entry.details["decision"]) == ("decide transaction", "done", decision)


async def test_what_was_decided_before_is_no_success(browser, sent):
    url = f"/transactions/{sent[0].offset_message_id}"
    browser.form_at = f"/transactions/{sent[1].message_id}"
    await browser.post(url, decision="rollback")
    page = await browser.post(url, decision="commit", back="/transactions")
    assert "<b>Failed:</b>" in page and "<b>Done:</b>" not in page
    assert "Nothing was decided" in await browser.post(url, decision="maybe", back="/transactions")


async def test_viewers_decide_nothing(browser, sent):
    for name, role in (("root", "admin"), ("vera", "viewer")):
        browser.console.accounts.save(name, role=role, password="correct horse")
    await browser.sign_in("vera")
    page = await browser.get(f"/transactions/{sent[0].message_id}")
    assert "Decide for its producer" not in page
