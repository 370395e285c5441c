"""Undecided batch transactions: listed, shown attempt by attempt, committed, rolled back."""

import re

import pytest
from tests.console.conftest import browsing

from pyromq import AsyncBatchTransactions, Message
from pyromq.console.console_config import ConsoleConfig
from pyromq.remoting.bodies import BatchAttempt
from pyromq.testing import Cluster

PAGE = "/transactions-batch?name=etl%3A17"


@pytest.fixture
async def pair(tmp_path):
    """Two brokers, with a topic at both, and the console before them."""
    async with Cluster(brokers=2, auto_create_topic=False) as cluster:
        await (await cluster.admin()).create_topic("orders", 2)
        async with browsing(ConsoleConfig(cluster.namesrv, tmp_path / "console", snapshot_seconds=0.001)) as browser:
            cluster.browser = browser
            yield cluster


async def leave(cluster, *texts, name="etl:17", ledger=None):
    """Send an attempt that nobody decides on, and return its token."""
    async with (
        AsyncBatchTransactions("etl", cluster.namesrv, ledger=ledger) as batches,
        batches.attempt(name) as attempt,
    ):
        await attempt.send([Message("orders", text.encode()) for text in texts])
    return attempt.token


async def visible(cluster, topic="orders"):
    consumer = await cluster.consumer("reader")
    results = [await consumer.pull(queue, 0) for queue in await consumer.queues(topic)]
    return sorted(message.body.decode() for result in results for message in result.messages)


async def decide(browser, decision, *tokens, name="etl:17", seen=2):
    browser.form_at = "/new-topic"
    ticked = {f"token{number}": token for number, token in enumerate(tokens)}
    fields = {"name": name, "seen": str(seen), "decision": decision, "back": "/transactions", **ticked}
    return await browser.post("/transactions-batch", **fields)


async def test_what_is_undecided_is_listed_longest_silent_first(browser, cluster):
    assert "No batch is undecided." in await browser.get("/transactions")
    await leave(cluster, "1", "2", name="etl:<1>")
    await cluster.clock.advance(90)
    await leave(cluster, "3", name="etl:2")
    await leave(cluster, "4", "5", name="etl:2")
    page = await browser.get("/transactions")
    rows = re.findall(r'name=[^"]+">([^<]+)</a></th>\s+((?:<td.*</td>\s+)+)</tr>', page)
    assert [(name, re.findall(r"<td[^>]*>([^<]*)<", row)) for name, row in rows] == [
        ("etl:&lt;1&gt;", ["1 min 30 s", "1", "2", "broker-a"]),
        ("etl:2", ["0 ms", "2", "3", "broker-a"]),
    ]


async def test_one_is_shown_with_its_attempts(browser, cluster):
    first, second = await leave(cluster, "1", "2"), await leave(cluster, "3")
    page = await browser.get(PAGE)
    assert re.findall(r'class="mono">(\w+)</th>\s+<td class="num">(\d)</td>', page) == [(first, "2"), (second, "1")]
    assert "checked" not in page  # one of two that may be the same work once more
    assert "Batch transaction &#39;etl:18&#39; is not undecided" in await browser.get(
        "/transactions-batch?name=etl%3A18", status=404
    )


async def test_the_attempts_that_are_ticked_are_committed(browser, cluster):
    first, _ = await leave(cluster, "1"), await leave(cluster, "2")
    page = await decide(browser, "commit", first)
    assert "Batch transaction etl:17 is committed: consumers see its 1 message." in page
    assert "No batch is undecided." in page
    assert await visible(cluster) == ["1"]
    (entry,) = browser.console.audit.recent()
    assert (entry.what, entry.outcome, entry.details["name"]) == ("decide batch transaction", "done", "etl:17")


async def test_a_roll_back_forgets_all_and_the_name_may_be_used_again(browser, cluster):
    await leave(cluster, "1"), await leave(cluster, "2")
    assert "rolled back: consumers do not see its 2 messages." in await decide(browser, "rollback")
    assert await visible(cluster) == []
    token = await leave(cluster, "3")
    await decide(browser, "commit", token, seen=1)
    assert await visible(cluster) == ["3"]


async def test_nothing_is_decided_that_the_page_had_not_shown(browser, cluster):
    token = await leave(cluster, "1", "2")
    await leave(cluster, "3")
    for decision, tokens, seen, said in (
        ("commit", [token], 2, "brokers now hold 3 messages of"),
        ("commit", [], 3, "select the attempts to commit"),
        ("commit", ["f" * 32], 3, "select the attempts to commit"),
        ("maybe", [token], 3, "choose commit or rollback"),
    ):
        page = await decide(browser, decision, *tokens, seen=seen)
        assert "<b>Failed:</b>" in page and said in page
    assert await visible(cluster) == []
    assert "is not undecided" in await decide(browser, "commit", token, name="another")


async def leave_everywhere(pair, ledger):
    """Send one message to each queue of either broker, and return what is held."""
    async with (
        AsyncBatchTransactions("etl", pair.namesrv, ledger=ledger) as batches,
        batches.attempt("etl:17") as attempt,
    ):
        for queue in await batches.runs.queues("orders"):
            await attempt.send([Message("orders", str(queue.queue_id).encode())], queue=queue)
    return attempt.result


async def test_each_is_decided_at_its_own_ledger_with_what_all_brokers_hold(pair):
    result = await leave_everywhere(pair, "broker-b")
    page = await pair.browser.get(PAGE)
    assert '<b class="text">broker-b</b>' in page
    assert re.findall(r'class="pair">([\w-]+) <span class="muted">(\d)', page) == [("broker-a", "2"), ("broker-b", "2")]
    assert "is committed: consumers see its 4 messages." in await decide(pair.browser, "commit", result.token, seen=4)
    assert await visible(pair) == ["0", "0", "1", "1"]
    async with AsyncBatchTransactions("etl", pair.namesrv, ledger="broker-b") as batches:
        assert (await batches.lookup("etl:17")).messages == 4  # the ledger knows of those elsewhere, too


async def test_what_a_ledger_has_decided_is_not_rolled_back_at_who_was_not_told(pair):
    """Whoever committed died between the ledger and the other broker."""
    result = await leave_everywhere(pair, "broker-a")
    async with AsyncBatchTransactions("etl", pair.namesrv) as batches:
        await batches._commit_at("broker-a", "etl:17", [BatchAttempt(result.token, 2, {"broker-b": 2})])
    page = await decide(pair.browser, "rollback", seen=2)
    assert "<b>Failed:</b>" in page and "is decided at broker broker-a" in page
    page = await decide(pair.browser, "commit", result.token, seen=2)
    assert "was decided before" in page and "No batch is undecided." in page
    assert await visible(pair) == ["0", "0", "1", "1"]


async def test_viewers_decide_nothing(browser, cluster):
    await leave(cluster, "1")
    for name, role in (("root", "admin"), ("vera", "viewer")):
        browser.console.accounts.save(name, role=role, password="correct horse")
    await browser.sign_in("vera")
    page = await browser.get(PAGE)
    assert "Roll back" not in page and 'type="checkbox"' not in page
