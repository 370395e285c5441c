"""The list of brokers, one broker, and a change of one setting."""

import re

from pyromq.message import Message


async def setting(cluster, name):
    return (await (await cluster.admin()).broker_config(cluster.broker.address))[name]


async def confirm(browser, name, value):
    """Send the form that the page of a change ends with, as it is there."""
    browser.form_at = f"/brokers/broker-a/change?setting={name}&value={value}"
    page = await browser.get(browser.form_at)
    assert "nothing is changed yet" in page
    fields = dict(re.findall(r'name="(id|setting|before|value)" value="([^"]*)"', page))
    return await browser.post("/brokers/broker-a/change", back=browser.form_at, **fields)


async def test_brokers_are_listed_with_addresses_version_and_log(browser, cluster):
    await (await cluster.producer()).send(Message("orders", b"x" * 3000))
    page = await browser.get("/brokers")
    assert '<a href="/brokers/broker-a">broker-a</a>' in page and "answers" in page
    assert cluster.broker.address in page
    assert "V4_9_8" in page
    assert re.search(r'class="num">3\.\d KiB<', page)
    assert "No broker has" in await browser.get("/brokers?filter=zzz")


async def test_a_broker_shows_figures_and_what_its_queues_hold(browser, cluster):
    producer = await cluster.producer()
    for number in range(3):
        await producer.send(Message("orders", b"%d" % number))
    page = await browser.get("/brokers/broker-a")
    assert re.search(r'href="/topics/orders">orders</a></th><td class="num">\d</td><td class="num">3</td>', page)
    assert ">commitLogMaxOffset</th>" in page
    assert "0 <span" in page and "master" in page
    assert "Broker nowhere is not registered; registered brokers: broker-a" in await browser.get(
        "/brokers/nowhere", status=404
    )


async def test_settings_are_searched_by_name_and_value(browser, cluster):
    page = await browser.get("/brokers/broker-a/settings?filter=fileReserved")
    assert re.findall(r'<th scope="row" class="mono">([^<]+)</th>', page) == ["fileReservedTime"]
    assert "flushDiskType" in await browser.get("/brokers/broker-a/settings?filter=async_flush")
    page = await browser.get("/brokers/broker-a/settings?id=7", status=400)
    assert "Broker broker-a has no id" in page


async def test_a_setting_is_changed_after_it_was_shown_what_would_change(browser, cluster):
    page = await confirm(browser, "transactionCheckMax", "7")
    assert "transactionCheckMax of broker broker-a is &#39;7&#39; now; it was &#39;15&#39;." in page
    assert await setting(cluster, "transactionCheckMax") == "7"
    (entry,) = browser.console.audit.recent()
    assert (entry.what, entry.outcome, entry.details["name"]) == ("change setting", "done", "broker-a")
    assert (entry.details["setting"], entry.details["value"]) == ("transactionCheckMax", "7")


async def test_a_setting_that_waits_for_the_next_start_is_not_said_to_be_in_force(browser, cluster):
    page = await confirm(browser, "flushIntervalCommitLog", "48")
    assert "has taken &#39;48&#39; for flushIntervalCommitLog, and still says &#39;500&#39;" in page
    assert "from its next start on" in page


async def test_what_the_broker_refuses_changes_nothing_and_is_shown(browser, cluster):
    page = await confirm(browser, "transactionCheckMax", "soon")
    assert "transactionCheckMax" in page and "<b>Failed:</b>" in page
    assert await setting(cluster, "transactionCheckMax") == "15"
    (entry,) = browser.console.audit.recent()
    assert entry.outcome == "failed" and "transactionCheckMax" in entry.error


async def test_a_setting_that_another_has_changed_meanwhile_stays(browser, cluster):
    admin = await cluster.admin()
    await admin.servers.change_settings(cluster.broker.address, {"transactionCheckMax": "9"})
    browser.form_at = "/brokers/broker-a/change?setting=transactionCheckMax&value=7"
    page = await browser.post(
        "/brokers/broker-a/change", id="0", setting="transactionCheckMax", before="15", value="7", back=browser.form_at
    )
    assert "Nothing was changed: transactionCheckMax is now &#39;9&#39;, and no longer &#39;15&#39;" in page
    assert await setting(cluster, "transactionCheckMax") == "9"


async def test_a_setting_that_does_not_exist_is_said_to_be_none(browser, cluster):
    page = await browser.get("/brokers/broker-a/change?setting=nothing", status=404)
    assert "Broker broker-a has no setting &#39;nothing&#39;" in page


async def test_a_broker_that_died_is_named_with_what_is_known_of_it(browser, cluster):
    await browser.get("/brokers")
    await cluster.stop_broker()
    page = await browser.get("/brokers/broker-a")
    assert "Broker broker-a does not answer</b> since <time" in page
