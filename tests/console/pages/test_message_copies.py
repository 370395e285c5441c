"""One page for a message and its copies: why it failed, what to do, and a way from each copy to the others."""

import asyncio
import re

import pytest
from tests.client.admin.messages.test_dead_letters import die
from tests.console.conftest import browsing
from tests.waiting import PATIENCE_SECONDS, until

from pyromq import AsyncConsumer, ConsumeFrom, ConsumerConfig
from pyromq.console.console_config import ConsoleConfig
from pyromq.message import Message, StoredMessage, encode_properties


@pytest.fixture
async def places(cluster):
    """The addresses of a message and of its dead letter in group billing."""
    await die(cluster, [Message("orders", b"no such <customer>", keys="k1")])
    admin = await cluster.admin()
    found = {}
    for name, topic in (("sent", "orders"), ("dead", "%DLQ%billing")):
        (message,) = await admin.query_by_key(topic, "k1")
        place = (message.broker_name, str(message.queue_id), str(message.queue_offset))
        found[name] = f"/message/{topic.replace('%', '%25')}/{'/'.join(place)}"
    return found


@pytest.mark.parametrize("name", ["sent", "dead"])
async def test_every_copy_says_why_the_message_failed(browser, places, name):
    page = await browser.get(places[name])
    verdict = page[page.index('class="verdict bad"') :].partition("</section>")[0]
    assert ">billing</a> gave up after 1 attempt" in verdict
    assert "GiveUp: no such &lt;customer&gt;" in verdict
    assert ">Redrive</button>" in verdict
    assert page.index("verdict") < page.index("<h2>Body")


@pytest.mark.parametrize(("name", "other"), [("sent", "dead"), ("dead", "sent")])
async def test_every_copy_leads_to_the_others(browser, places, name, other):
    page = await browser.get(places[name])
    assert f'href="{places[other]}"' in page
    copies = re.findall(r"<summary>([^<]+?) <span", page)
    assert copies == ["The message", "Dead letter of billing"]
    assert ("You see a copy" in page) is (name == "dead")


async def test_redriving_is_one_button_and_a_yes(browser, places):
    browser.form_at = "/send"
    page = await browser.get(places["sent"])
    form = page[page.index('data-confirm="Send this message to group billing again?"') :].partition("</form>")[0]
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', form))
    page = await browser.post("/dead-letters/billing/redrive", **fields)
    (run,) = re.findall(r"<h1>Redrive (\d+)", page)
    await until(lambda: browser.console.redrives.find(run).ended_ms is not None)
    page = await browser.get(places["dead"])
    assert "it is redriven and not consumed yet" in page
    assert ">Redrive again</button>" in page and 'name="again" value="yes"' in page


async def test_viewers_read_the_reason_and_have_no_button(browser, places):
    for name, role in (("root", "admin"), ("vera", "viewer")):
        browser.console.accounts.save(name, role=role, password="correct horse")
    await browser.sign_in("vera")
    page = await browser.get(places["sent"])
    assert "GiveUp: no such" in page and "An operator can redrive it." in page
    assert "<button" not in page[page.index("<h1>") : page.index("</main>")]


async def test_a_dead_letter_without_a_reason_says_where_to_look(browser, cluster):
    await (await cluster.admin()).create_topic("%DLQ%billing", 1)
    properties = {"UNIQ_KEY": "7F" * 16, "RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": "A" * 32}
    letter = StoredMessage("%DLQ%billing", b"x", encode_properties(properties), reconsume_times=17)
    letter.store_ms = cluster.clock.now_ms()
    cluster.broker.store.append(letter)
    page = await browser.get("/message/%25DLQ%25billing/broker-a/0/0")
    assert "gave up after 17 attempts" in page
    assert "Consumers of Java give none" in page
    assert "The message itself has expired." in page


async def test_a_search_shows_a_message_once_and_says_who_gave_it_up(browser, places):
    page = await browser.get("/messages?q=k1")
    assert re.findall(r'<th scope="row"><a href="([^"]+)"', page) == [places["sent"]]
    assert '<span class="badge bad">given up by billing</span>' in page


async def test_the_copies_in_a_named_topic_are_rows(browser, places):
    page = await browser.get("/messages?topic=%25DLQ%25billing")
    assert re.findall(r'<th scope="row"><a href="([^"]+)"', page) == [places["dead"]]


async def test_finding_the_key_of_one_message_opens_its_page(browser, places, cluster):
    assert "gave up after 1 attempt" in await browser.get("/find?q=k1")
    await (await cluster.producer()).send(Message("orders", b"another", keys="k1"))
    page = await browser.get("/find?q=k1")
    assert "<title>Messages" in page and page.count('<th scope="row"><a') == 2


async def test_a_message_that_waits_is_found_by_its_key_and_has_a_page(browser, cluster):
    await (await cluster.admin()).create_topic("orders", 1)
    producer = await cluster.producer()
    await producer.send(Message("orders", b"later", keys="k-level", delay_level=5))
    page = await browser.get("/find?q=k-level")
    assert "waiting for its delivery time" in page and ">later</pre>" in page
    sent = await producer.send(Message("orders", b"much later", keys="k-time", delay=3600))
    page = await browser.get(f"/find?q={sent.message_id}")
    assert "waits" in page and ">much later</pre>" in page
    assert "has expired" not in page, "it is not sent yet"


async def test_each_waiting_copy_can_be_opened(browser, cluster):
    failed = asyncio.Event()

    async def fail(messages):
        failed.set()
        raise ValueError("not now")

    await (await cluster.producer()).send(Message("orders", b"x", keys="k2"))
    consumer = AsyncConsumer("billing", cluster.namesrv, config=ConsumerConfig(consume_from=ConsumeFrom.FIRST))
    consumer.subscribe("orders", fail)
    async with consumer, asyncio.timeout(PATIENCE_SECONDS):
        await failed.wait()
        while "Waiting for attempt 2 of billing" not in (page := await browser.get("/find?q=k2")):
            pass
    assert re.search(r"failed to consume it once; attempt 2 comes at\s+<time ", page) and "ValueError: not now" in page
    assert "waits 10 s (level 3): ValueError: not now" in page
    (link,) = set(re.findall(r'href="(/message-by-id/\w+)"', page))
    page = await browser.get(link)
    assert "You see a copy: <b>waiting for attempt 2 of billing</b>" in page and "ValueError: not now" in page
    assert (await browser.client.get(f"{link}/body")).content == b"x"
    await browser.get("/message-by-id/" + "7F" * 16, status=404)
    await browser.get("/message-by-id/zz", status=404)


async def test_a_message_younger_than_the_snapshot_is_found_by_its_key(cluster, tmp_path):
    config = ConsoleConfig(cluster.namesrv, tmp_path / "console", snapshot_seconds=3600)
    async with browsing(config) as browser:
        await browser.get("/topics")
        await (await cluster.producer()).send(Message("orders", b"young", keys="k-young"))
        assert ">young</pre>" in await browser.get("/find?q=k-young")


async def test_a_message_that_no_member_acknowledged_says_so(browser, cluster):
    admin, producer = await cluster.admin(), await cluster.producer()
    await admin.create_topic("parcels", 1)
    await producer.send(Message("parcels", b"x"))
    worker = await cluster.simple_consumer("post", config=ConsumerConfig(consume_from=ConsumeFrom.FIRST))
    worker.subscribe("parcels")
    await worker.receive(1, wait_seconds=5, invisible_seconds=10)
    assert "1 is in flight" in await browser.get("/message/parcels/broker-a/0/0")
    await cluster.clock.advance(11)
    page = await browser.get("/message/parcels/broker-a/0/0")
    assert "received it once and did not acknowledge it; attempt 2 comes next" in page
