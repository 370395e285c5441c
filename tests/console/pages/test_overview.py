"""The first page, and what doctor finds."""

from pyromq.message import Message


async def test_the_overview_tells_of_brokers_and_topics(browser, cluster):
    await (await cluster.producer()).send(Message("orders", b"1"))
    page = await browser.get("/")
    assert "Nothing to report." in page
    assert "broker-a" in page and cluster.broker.address in page
    assert '<a href="/topics/orders">orders</a>' in page


async def test_a_group_that_is_behind_without_members_is_a_warning(browser, cluster):
    await (await cluster.producer()).send(Message("orders", b"1"))
    admin = await cluster.admin()
    await admin.commit_offset("billing", (await admin.topic_status("orders"))[0].queue, 0)
    page = await browser.get("/")
    assert "Group billing is 1 message behind, and nobody of it is online" in page


async def test_a_broker_that_dies_is_shown_as_such_and_its_sums_are_not_made_up(browser, cluster):
    await (await cluster.producer()).send(Message("orders", b"1"))
    await browser.get("/")
    await cluster.stop_broker()
    page = await browser.get("/")
    assert "Broker broker-a:" in page
    assert "no answer" in page
    page = await browser.get("/topics")
    assert "Broker broker-a does not answer:" in page


async def test_doctor_says_what_it_found(browser, cluster):
    page = await browser.get("/doctor?topic=nothing")
    assert f"answers at {cluster.broker.address}" in page
    assert "does not exist yet; the first message will create it" in page


async def test_without_a_name_server_the_page_says_so(browser, cluster):
    await browser.get("/")
    await cluster.name_server.__aexit__(None, None, None)
    page = await browser.get("/", status=503)
    assert "No name server answers" in page or "No answer" in page
