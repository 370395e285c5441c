"""The first page, and what doctor finds."""

import socket
from dataclasses import replace

import pytest
from tests.console.conftest import browsing

from pyromq.console.cluster.cluster_snapshot import BrokerView, ClusterSnapshot, ConsumedTopic, GroupView
from pyromq.console.pages.overview_pages import groups_behind, problems_of
from pyromq.message import Message


async def test_the_overview_tells_of_brokers_and_topics(config, cluster):
    await (await cluster.producer()).send(Message("orders", b"1"))
    async with browsing(config, clock=cluster.clock) as browser:
        page = await browser.get("/")
    assert "Nothing to report." in page
    assert "broker-a" in page and cluster.broker.address in page
    assert '<a href="/topics/orders" title="orders">orders</a>' in page


async def test_a_group_that_is_behind_without_members_is_a_warning(browser, cluster):
    await (await cluster.producer()).send(Message("orders", b"1"))
    admin = await cluster.admin()
    await admin.commit_offset("billing", (await admin.topic_status("orders"))[0].queue, 0)
    page = await browser.get("/")
    assert "Group billing is 1 message behind" in page and "; no member is online" in page
    assert '<span class="badge warn">no member online</span>' in page


@pytest.mark.parametrize(("seconds", "said"), [(-3600, "1 h ahead of"), (90_061, "1 d 1 h behind"), (50, None)])
def test_a_clock_that_is_wrong_is_a_warning(seconds, said):
    age = ((24 + 2) * 60 + 3) * 60 + 4
    runtime = {"bootTimestamp": "5000", "runtime": "[ 1 days, 2 hours, 3 minutes, 4 seconds ]"}
    broker = BrokerView("broker-a", "DefaultCluster", {0: "127.0.0.1:1"}, runtime)
    found = problems_of(ClusterSnapshot(5000 + (age + seconds) * 1000, {"broker-a": broker}))
    assert [f"its clock is {said} the console's" in each.text for each in found] == ([True] if said else [])


def group(name, lag, delay_seconds=0.0, members=("m",), *, is_system=False):
    topics = {"orders": ConsumedTopic(0, lag, int(delay_seconds * 1000))}
    return GroupView(name, is_system, members=set(members), topics=topics)


def test_groups_are_told_worst_first_also_with_members_and_none_of_the_system():
    groups = [
        group("fresh", 12, 0.4),  # has members, and is only a moment behind
        group("many", 35_341, 20),
        group("left", 3, 7, members=()),
        group("old", 5, 4000),
        group("done", 0, members=()),
        group("CID_RMQ_SYS_TRANS", 9_999_999, 9999, members=(), is_system=True),
    ]
    snapshot = ClusterSnapshot(1, {}, {}, {each.name: each for each in groups})
    assert [each.name for each in groups_behind(snapshot)] == ["old", "many", "left", "fresh"]
    assert [(each.kind, each.text) for each in problems_of(snapshot)] == [
        ("bad", "Group old is 5 messages behind, the oldest waits for 1 h 6 min; 1 member online"),
        ("warn", "Group many is 35,341 messages behind, the oldest waits for 20 s; 1 member online"),
        ("warn", "Group left is 3 messages behind, the oldest waits for 7 s; no member is online"),
    ]


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


async def test_without_a_name_server_from_the_beginning_the_page_says_so(browser, cluster):
    await cluster.name_server.__aexit__(None, None, None)
    page = await browser.get("/", status=503)
    assert "No name server answers" in page or "No answer" in page
