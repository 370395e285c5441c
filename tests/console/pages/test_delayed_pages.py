"""Messages that wait for their time or in a level: counted, drawn, listed in order, cancelled."""

import re

import pytest
from tests.console.conftest import browsing

from pyromq.message import Message

MINUTE_MS = 60_000


@pytest.fixture
async def waiting(cluster):
    """Sixty reminders, one a minute, and one newsletter."""
    producer, now = await cluster.producer(), cluster.clock.now_ms()
    for number in range(60):
        await producer.send(Message("reminders", b"x", keys=f"k{number}", deliver_at=now + (number + 1) * MINUTE_MS))
    await producer.send(Message("newsletters", b"x", keys="news", deliver_at=now + MINUTE_MS))
    return now


def keys(page):
    return re.findall(r'<th scope="row" class="mono" title="[^"]*">([^<]+)</th>', page)


async def test_without_delayed_messages_the_pages_say_so(browser):
    page = await browser.get("/delayed")
    assert "No message is scheduled." in page and "No message waits in a delay level." in page
    assert "pyromq send orders --delay 10m hello" in await browser.get("/delayed/orders")


async def test_topics_are_listed_with_how_many_wait(browser, waiting):
    page = await browser.get("/delayed")
    assert "61 messages in all" in page
    assert '<a href="/delayed/reminders">reminders</a></th><td class="num">60</td>' in page
    assert "reminders" not in await browser.get("/delayed?filter=news")


async def test_a_topics_messages_are_drawn_and_come_in_order_of_delivery_in_pages(browser, waiting):
    page = await browser.get("/delayed/reminders")
    assert keys(page) == [f"k{number}" for number in range(50)]
    assert "Messages due each" in page and page.count("<rect class=column") > 5
    later = re.search(r'<a href="([^"]+)" rel="next">Later ones', page)[1].replace("&amp;", "&")
    assert keys(await browser.get(later)) == [f"k{number}" for number in range(50, 60)]
    begin = waiting + 59 * MINUTE_MS
    assert keys(await browser.get(f"/delayed/reminders?begin={begin}")) == ["k58", "k59"]


async def test_pages_go_on_among_messages_of_one_millisecond(browser, cluster):
    producer, due = await cluster.producer(), cluster.clock.now_ms() + MINUTE_MS
    for number in range(120):
        await producer.send(Message("reminders", b"x", keys=f"k{number}", deliver_at=due))
    url, found = "/delayed/reminders", []
    while url:
        page = await browser.get(url)
        found += keys(page)
        link = re.search(r'<a href="([^"]+)" rel="next">Later ones', page)
        url = link[1].replace("&amp;", "&") if link else ""
    assert sorted(found) == sorted(f"k{number}" for number in range(120))


async def test_a_message_is_cancelled_once(browser, waiting):
    page = await browser.get("/delayed/newsletters")
    handle = re.search(r'name="recall_handle" value="([^"]+)"', page)[1]
    url = "/delayed/newsletters/cancel"
    page = await browser.post(url, recall_handle=handle, back="/delayed/newsletters")
    assert "is cancelled: it is not delivered." in page
    assert "No message of this topic is scheduled." in page
    page = await browser.post(url, recall_handle=handle, back="/delayed/newsletters")
    assert "<b>Failed:</b>" in page and "<b>Done:</b>" not in page
    assert [entry.outcome for entry in browser.console.audit.recent()] == ["failed", "done"]


async def test_viewers_cancel_nothing(browser, waiting):
    for name, role in (("root", "admin"), ("vera", "viewer")):
        browser.console.accounts.save(name, role=role, password="correct horse")
    await browser.sign_in("vera")
    page = await browser.get("/delayed/newsletters")
    assert keys(page) == ["news"] and "recall_handle" not in page


async def test_levels_in_which_messages_wait_say_how_many_and_what_is_due_next(cluster, config):
    producer = await cluster.producer()
    for number in range(3):
        await producer.send(Message("orders", b"x", keys=f"k{number}", delay_level=5))
        await cluster.clock.advance(1)
    await producer.send(Message("orders", b"x", keys="late", delay_level=18))
    row = r'href="/delayed-levels/(\d+)">([^<]+)</a></th><td class="num">(\d+)</td>.*<td>([^<]+)</td>'
    async with browsing(config, clock=cluster.clock) as browser:
        page = await browser.get("/delayed")
        assert re.findall(row, page) == [("5", "1 min (level 5)", "3", "57 s"), ("18", "2 h (level 18)", "1", "2 h")]
        assert "The other 16 levels are empty." in page
        await cluster.clock.advance(58)
        assert re.findall(row, await browser.get("/delayed"))[0] == ("5", "1 min (level 5)", "1", "1 s")


async def test_a_levels_messages_come_in_order_of_delivery_with_where_they_go(browser, cluster):
    producer = await cluster.producer()
    for number in range(60):
        await producer.send(Message("orders", b"x", keys=f"k{number}", tags="t", delay_level=5))
    await producer.send(Message("%RETRY%billing", b"x", keys="again", delay_level=6))
    page = await browser.get("/delayed-levels/5")
    assert keys(page) == [f"k{number}" for number in range(50)]
    assert "the first 50 of 60" in page and '<a href="/topics/orders">orders</a>' in page
    assert "recall_handle" not in page and "messages of a level cannot be cancelled" in page
    assert 'a retry of</span> <a href="/groups/billing">' in await browser.get("/delayed-levels/6")
    assert "No message waits in this level." in await browser.get("/delayed-levels/7")
    assert "No broker has delay level 99" in await browser.get("/delayed-levels/99", status=400)
    assert "is not a whole number" in await browser.get("/delayed-levels/x", status=400)
