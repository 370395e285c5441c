"""One zone on all pages: that of the cookie, in tables, fields and answers to forms."""

import re

import pytest

from pyromq import Message


@pytest.fixture
async def shown(browser, cluster):
    """The browser of a viewer in Kolkata, and the time of a message as the viewer sees it."""
    sent = await (await cluster.producer()).send(Message("orders", b"x", keys="k1", properties={"n": "1"}))
    assert sent
    browser.client.cookies.set("pyromq-zone", "Asia/Kolkata")
    page = await browser.get("/messages?topic=orders")
    (time,) = re.findall(r'<time datetime="([^"]+)"[^>]*>([^<]+)</time></td>', page)
    return time


async def test_a_time_may_be_copied_from_a_table_to_a_field(browser, shown):
    iso, text = shown
    assert iso.endswith("+05:30") and iso[:23].replace("T", " ") == text
    page = await browser.get(f"/messages?topic=orders&since={text}&until={text}")
    assert ">k1</a>" in page
    assert f'name="since" value="{text.removesuffix(".000")}"' in page
    assert 'data-zone="Asia/Kolkata"' in page and "Times in <b>Asia/Kolkata</b>" in page


async def test_the_same_address_finds_the_same_in_another_zone(browser, shown):
    _, text = shown
    address = f"/messages?topic=orders&since={text}&until={text}&zone=Asia/Kolkata"
    browser.client.cookies.set("pyromq-zone", "America/New_York")
    page = await browser.get(address)
    assert ">k1</a>" in page
    assert text.removesuffix(".000") not in page  # the field shows the time in New York
    page = await browser.get(f"/messages?topic=orders&since={text}&until={text}")
    assert ">k1</a>" not in page


@pytest.mark.parametrize("cookie", ["", "Nowhere/Land", "../../etc/passwd", "<script>", "America", "x" * 3000])
async def test_a_strange_cookie_is_utc(browser, cookie):
    browser.client.cookies.set("pyromq-zone", cookie)
    assert 'data-zone="UTC"' in await browser.get("/")


async def test_a_refused_time_is_kept_and_explained(browser):
    page = await browser.get("/messages?topic=orders&since=noonish", status=400)
    assert 'value="noonish"' in page
    assert "is not a time: write 2026-11-22 17:00, 17:00 for today, or -15m for 15 minutes ago" in page
    page = await browser.get("/messages?topic=orders&since=12:00&until=11:00", status=400)
    assert "before it begins" in page


@pytest.mark.parametrize("last", ["15m", "1h", "1d"])
async def test_the_last_minutes_are_a_range_whatever_the_fields_say(browser, last):
    page = await browser.get(f"/messages?topic=TBW102&since=2020-01-01&until=2020-01-02&last={last}")
    assert f'value="{last}" aria-pressed="true"' in page
    assert re.search(r'name="since" value="20\d\d-', page) and 'value="2020-01-0' not in page
    assert 'name="until" value=""' in page
    assert "-1w" in await browser.get("/messages?topic=TBW102&last=1w", status=400)
