"""Finding by a part of a name, text in either case, chosen columns, bodies in place, and what an empty result says."""

import re

import pytest

from pyromq.message import Message
from pyromq.remoting.bodies import GroupConfig


@pytest.fixture
async def sent(cluster):
    """Topics and groups of several teams; twelve orders in two queues, one of them compressed."""
    admin = await cluster.admin()
    for name in ("orders", "Team-A_orders", "payments", "repayments"):
        await admin.create_topic(name, 2)
    for name in ("orders-billing", "payments"):
        await admin.create_group(GroupConfig(name=name))
    producer = await cluster.producer()
    for number in range(12):
        body = b'{"Customer": {"Name": "M\xc3\xbcller-%d"}, "paid": true}' % number
        if number == 7:
            body += b" " * 10_000
        await producer.send(Message("orders", body, tags="New", keys=f"K{number}", properties={"region": "EU"}))


def keys(page):
    return re.findall(r'<th scope="row"><a href="/message/[^>]+>([^<]+)</a>', page)


def names(page):
    return re.findall(r'<th scope="row" class="grow"><a href="([^"]+)"', page)


@pytest.mark.parametrize("text", ["ORDERS", "orders", " Orders "])
async def test_the_name_of_one_thing_opens_its_page_in_either_case(browser, sent, text):
    assert "<title>orders" in await browser.get(f"/find?q={text}")


async def test_a_part_of_names_lists_them_the_best_first(browser, sent):
    page = await browser.get("/find?q=ORDER")
    assert names(page) == ["/topics/orders", "/groups/orders-billing", "/topics/Team-A_orders"]
    assert 'href="/messages?q=ORDER&amp;open=one"' in page
    assert names(await browser.get("/find?q=order+team")) == ["/topics/Team-A_orders"]


async def test_a_name_of_two_things_asks_which(browser, sent):
    page = await browser.get("/find?q=payments")
    assert names(page) == ["/topics/payments", "/groups/payments", "/topics/repayments"]


async def test_what_is_in_no_name_is_looked_for_in_messages(browser, sent):
    assert "<title>Message K7" in await browser.get("/find?q=K7")


async def test_suggestions_are_names_by_kind_and_similar_ones_if_none_has_the_text(browser, sent):
    async def suggested(query):
        return [(each["kind"], each["name"]) for each in (await browser.client.get(f"/find/names?{query}")).json()]

    assert await suggested("q=pay") == [("topic", "payments"), ("group", "payments"), ("topic", "repayments")]
    assert await suggested("q=pay&kind=topic") == [("topic", "payments"), ("topic", "repayments")]
    assert await suggested("q=oderrs&kind=topic") == [("topic", "orders")]
    assert await suggested("q=broker") == [("broker", "broker-a"), ("topic", "broker-a")]
    assert await suggested("q=") == []
    assert len(await suggested("q=e")) <= 12


@pytest.mark.parametrize("text", ["müller-7", "MÜLLER-7", "ller-7", "k7", "K7%22", "customer"])
@pytest.mark.parametrize("topic", ["", "orders"])
async def test_text_is_found_in_either_case(browser, sent, text, topic):
    expected = {"K7"} if "7" in text else {f"K{number}" for number in range(12)}
    text = text.replace("%22", "")
    assert set(keys(await browser.get(f"/messages?by=text&q={text}&topic={topic}"))) == expected


async def test_case_is_matched_if_it_is_asked_for(browser, sent):
    page = await browser.get("/messages?by=text&q=customer&case=yes&topic=orders")
    assert keys(page) == []
    assert "in this upper and lower case" in page and "In upper or lower case</a>" in page
    assert keys(await browser.get("/messages?by=text&q=M%C3%BCller-7&case=yes&topic=orders")) == ["K7"]


async def test_an_empty_result_says_what_was_searched_and_what_to_try(browser, sent):
    page = await browser.get("/messages?topic=orders&q=none&since=2020-01-01&until=2020-01-02+12:00")
    for each in (
        "Nothing is found",
        "<code>none</code> as text in body",
        "no key is equal",
        "topic orders",
        "<dd>2</dd>",
    ):
        assert each in page
    assert "from 2020-01-01 00:00:00 until 2020-01-02 12:00:00 (UTC)" in page and "0 messages" in page
    assert 'href="/messages?topic=orders&amp;q=none">At any time</a>' in page
    page = await browser.get("/messages?by=tag&q=new&topic=orders")
    assert "the tag <code>new</code>, whole and in this upper and lower case" in page and ">As text</a>" in page
    page = await browser.get("/messages?q=none")
    assert "topics that have messages: orders" in page and "12 messages" in page
    page = await browser.get("/messages?topic=payments")
    assert "Topic payments has no messages." in page and 'pyromq send payments "hello"' in page


async def test_a_topic_that_does_not_exist_is_said_beside_the_form_with_similar_names(browser, sent):
    page = await browser.get("/messages?topic=oderrs&q=K7&by=key", status=404)
    assert 'value="oderrs"' in page and 'value="K7"' in page
    assert 'Do you mean <a href="/messages?topic=orders&amp;q=K7&amp;by=key">orders</a>' in page


async def test_columns_are_chosen_and_kept(browser, sent):
    titles = r'<th scope="col"(?: class="wide-only")?>([^<]+)</th>'
    page = await browser.get("/messages?topic=orders")
    assert re.findall(titles, page) == ["Stored", "Key or id", "Tag", "Queue:offset", "Body"]
    query = "columns=key&columns=size&columns=attempts&fields=region+body_Customer_Name"
    await browser.get(f"/messages?topic=orders&{query}")
    page = await browser.get("/messages?topic=orders&limit=25")
    assert re.findall(titles, page) == ["Key or id", "Size", "Attempts", "region", "body_Customer_Name"]
    assert page.count(">EU</td>") == 12 and ">Müller-7</td>" in page
    assert re.findall(titles, await browser.get("/messages?q=K7")) == ["Topic", *re.findall(titles, page)]


async def test_a_cookie_of_another_makes_no_columns(browser, sent):
    for cookie in ("<script>", "%00", "x" * 3000, "key,body " + "y " * 300):
        browser.client.cookies.set("pyromq-columns", cookie)
        assert "<script>" not in re.search(r"<thead>.*?</thead>", await browser.get("/messages?topic=orders"))[0]


async def test_a_body_is_shown_in_place(browser, sent):
    page = await browser.get("/messages?topic=orders&q=K7")
    part = await browser.get(re.search(r'data-expand="([^"]+)"', page)[1])
    assert "<html" not in part and "&#34;Name&#34;: &#34;Müller-7&#34;" in part
    assert "region" in part and "Edit and send again" in part
    await browser.get("/message/orders/broker-a/0/99/inline", status=404)
