"""The first page, and what doctor finds."""

import socket
from dataclasses import replace

from tests.console.conftest import browsing

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
    assert "Broker broker-a does not answer since 20" in page
    assert "no answer" in page
    page = await browser.get("/topics")
    assert "Broker broker-a does not answer</b> since <time" in page


async def test_doctor_says_what_it_found(browser, cluster):
    page = await browser.get("/doctor?topic=nothing")
    assert f"answers at {cluster.broker.address}" in page
    assert "does not exist yet; the first message will create it" in page


async def test_doctor_says_who_has_not_answered_in_time(config):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and says nothing
        name = f"127.0.0.1:{silent.getsockname()[1]}"
        async with browsing(replace(config, namesrv=name, doctor_seconds=0.2)) as browser:
            page = await browser.get("/doctor")
    assert f"<b>name server {name}</b>: has not answered when the 0.2 s for all checks were over" in page


async def test_without_a_name_server_the_page_says_so(browser, cluster):
    await browser.get("/")
    await cluster.name_server.__aexit__(None, None, None)
    page = await browser.get("/", status=503)
    assert "No name server answers" in page or "No answer" in page
