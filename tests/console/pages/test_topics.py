"""The list of topics, one topic, and changes of it."""

import re
from dataclasses import replace

import pytest
from tests.console.conftest import browsing

from pyromq.message import Message


def names(page):
    return re.findall(r'<th scope="row"[^>]*><a href="/topics/[^>]+>([^<]+)</a>', page)


@pytest.fixture
async def admin(cluster):
    admin = await cluster.admin()
    for name in ("orders", "invoices", "returns"):
        await admin.create_topic(name, 2)
    producer = await cluster.producer()
    for name, count in (("orders", 3), ("returns", 5)):
        for number in range(count):
            await producer.send(Message(name, b"%d" % number))
    return admin


async def test_topics_are_listed_filtered_and_sorted_as_the_address_says(browser, admin):
    assert names(await browser.get("/topics")) == ["invoices", "orders", "returns"]
    assert names(await browser.get("/topics?filter=R")) == ["orders", "returns"]
    assert names(await browser.get("/topics?sort=-messages")) == ["returns", "orders", "invoices"]
    assert names(await browser.get("/topics?rows=2&page=2")) == ["returns"]
    assert names(await browser.get("/topics?rows=2&page=99")) == ["returns"]
    assert "TBW102" in names(await browser.get("/topics?kind=system"))


async def test_a_topic_shows_its_queues_groups_and_settings(browser, admin):
    for status in await admin.topic_status("orders"):
        await admin.commit_offset("readers", status.queue, 1)
    page = await browser.get("/topics/orders")
    assert "readers" in page
    assert page.count('title="broker-a">broker-a</th><td class="num">') == 2
    assert 'name="read_queues" type="number" min="0" max="65535" value="2"' in page


async def test_what_does_not_exist_is_said_to_be_so(browser, admin):
    page = await browser.get("/topics/nothing", status=404)
    assert "Topic nothing does not exist" in page


async def test_a_topic_is_created_changed_and_deleted(browser, admin):
    page = await browser.post("/new-topic", name="shipments", queues="4", permission="rw")
    assert "Topic shipments is created." in page
    assert (await admin.topic_config("shipments")).read_queues == 4
    page = await browser.post("/topics/shipments/alter", read_queues="6", write_queues="4", permission="r")
    config = await admin.topic_config("shipments")
    assert (config.read_queues, config.write_queues, config.permission & 6) == (6, 4, 4)
    page = await browser.post("/topics/shipments/delete", name="shipments")
    assert "Topic shipments is deleted." in page
    assert "shipments" not in await admin.topics()


async def test_the_type_of_a_topic_is_shown_and_changed(browser, admin):
    await browser.post("/new-topic", name="steps", queues="1", permission="rw", message_type="fifo")
    page = await browser.get("/topics/steps")
    assert "<td>no</td><td>fifo</td>" in page
    assert "<option selected>fifo</option>" in page
    await browser.post("/topics/steps/alter", read_queues="1", write_queues="1", permission="rw", message_type="mixed")
    assert (await admin.topic_config("steps")).message_type == "mixed"
    assert "<td>no</td><td>any</td>" in await browser.get("/topics/orders")


async def test_a_change_is_seen_at_once_however_young_the_snapshot_is(config, admin):
    async with browsing(replace(config, snapshot_seconds=3600)) as browser:
        assert names(await browser.get("/topics")) == ["invoices", "orders", "returns"]
        page = await browser.post("/topics/orders/delete", name="orders")
        assert "Topic orders is deleted." in page
        assert names(await browser.get("/topics")) == ["invoices", "returns"]


async def test_a_topic_is_deleted_only_with_its_name_typed(browser, admin):
    page = await browser.post("/topics/orders/delete", name="order", back="/topics/orders")
    assert "Nothing was deleted: type the topic" in page
    assert "orders" in await admin.topics()


async def test_what_the_broker_refuses_is_shown_as_it_says_it(browser, admin):
    page = await browser.post("/new-topic", name="orders", queues="4", permission="rw", back="/new-topic")
    assert "Topic orders exists already" in page
    assert "Done" not in page
    (entry,) = browser.console.audit.recent()
    assert (entry.what, entry.outcome, entry.details["name"]) == ("create topic", "failed", "orders")


async def test_names_that_mean_something_in_html_are_only_names(browser, admin):
    page = await browser.get("/topics?filter=<script>alert(1)</script>")
    assert "<script>alert" not in page
