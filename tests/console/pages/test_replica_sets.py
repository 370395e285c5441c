"""A replica set on the page of its broker, and the planned failover there."""

import re

import pytest

from pyromq.testing import Cluster


@pytest.fixture
async def cluster():
    async with Cluster(replicas=3, min_in_sync=2) as cluster:
        yield cluster


async def test_the_page_of_a_broker_shows_its_replicas(browser, cluster):
    page = await browser.get("/brokers/broker-a")
    (replicas,) = cluster.sets
    assert "epoch 1, 3 in sync, 2 needed" in page
    part = page.partition("<h2>Replica set</h2>")[2].partition("</table>")[0]
    roles = dict(re.findall(r'<th scope="row">(\d) <span class="muted">(master|follower)<', part))
    assert roles == {str(each): "master" if each == replicas.master else "follower" for each in (1, 2, 3)}
    assert page.count(">in sync<") == 3
    assert page.count("Make master") == 2
    for number in replicas.servers:
        assert replicas.broker(number).address in page


async def test_a_replica_that_died_is_shown(browser, cluster):
    (replicas,) = cluster.sets
    master = replicas.master
    gone = master % 3 + 1
    await replicas.kill(gone)
    await replicas.until(lambda: gone not in replicas.in_sync)
    page = await browser.get("/brokers/broker-a")
    assert f"<b>Replica {gone} is not connected to the master:</b>" in page
    assert page.count(">not connected<") == 1
    overview = await browser.get("/")
    assert f"Replica set broker-a: 1 replica not in sync (number {gone})" in overview
    assert "accepts no messages" not in overview
    other = 6 - master - gone
    await replicas.kill(other)
    await replicas.until(lambda: other not in replicas.in_sync)
    overview = await browser.get("/")
    assert "Replica set broker-a: 2 replicas not in sync" in overview
    assert "Broker broker-a accepts no messages:" in overview and ">refuses sends<" in overview


async def test_a_planned_failover_is_made_and_noted(browser, cluster):
    (replicas,) = cluster.sets
    master = replicas.master
    target = master % 3 + 1
    browser.form_at = "/brokers/broker-a"
    page = await browser.post("/brokers/broker-a/failover", number=str(target), master=str(master))
    assert f"Replica {target} is the master of broker-a now, after 0." in page
    assert replicas.master == target
    (entry,) = browser.console.audit.recent()
    assert (entry.what, entry.outcome) == ("planned failover", "done")
    assert (entry.details["name"], entry.details["number"]) == ("broker-a", str(target))

    page = await browser.post("/brokers/broker-a/failover", number=str(master), master=str(master), back="/brokers")
    assert f"Nothing was changed: the master is now replica {target}, and no longer replica {master}" in page
    assert replicas.master == target


async def test_the_masters_reason_is_shown_if_it_cannot_hand_over(browser, cluster):
    browser.form_at = "/brokers/broker-a"
    master = cluster.sets[0].master
    page = await browser.post("/brokers/broker-a/failover", number="9", master=str(master), back="/brokers/broker-a")
    assert "Replica set broker-a has no replica 9; it has 1, 2, 3" in page
