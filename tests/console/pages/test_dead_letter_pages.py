"""Dead letters: groups that have some, those of one, and redriving them: dry run, rate, an outcome for each."""

import re

import pytest
from tests.client.admin.messages.test_dead_letters import die, receive
from tests.console.conftest import browsing
from tests.waiting import until

from pyromq.message import Message, StoredMessage
from pyromq.testing import FakeClock

AT = "/dead-letters/billing"


@pytest.fixture
async def died(cluster):
    """Group billing gave up on three messages of two topics."""
    first = await die(
        cluster,
        [Message("orders", b"no such customer", keys="k1"), Message("orders", b"no credit", keys="k2", tags="paid")],
    )
    await cluster.clock.advance(60)
    return first + await die(cluster, [Message("invoices", b"no <b>address</b>", keys="k3")])


def keys(page):
    return re.findall(r'<th scope="row"><a href="/message/[^>]+>([^<]+)</a>', page)


def fates(page):
    return re.findall(r'<span class="badge \w*">(sent|failed|would be sent|redriven before)</span>', page)


@pytest.fixture
def operator(browser):
    browser.form_at = f"{AT}/redrive"
    return browser


async def ended(browser, page):
    """Return the page of the redrive that was begun, once it has ended."""
    (run,) = re.findall(r"<h1>Redrive (\d+)", page)
    await until(lambda: browser.console.redrives.find(run).ended_ms is not None)
    return await browser.get(f"{AT}/redrives/{run}")


async def test_groups_with_dead_letters_are_listed(browser, died):
    page = await browser.get("/dead-letters")
    assert '<a href="/dead-letters/billing">billing</a>' in page
    assert '<td class="num">3</td>' in page
    assert "No group with dead letters has" in await browser.get("/dead-letters?filter=other")


async def test_without_dead_letters_the_pages_say_so(browser):
    assert "No group has dead letters." in await browser.get("/dead-letters")
    assert "Group nobody has no dead letters. No broker knows this group." in await browser.get("/dead-letters/nobody")


async def test_letters_are_shown_latest_first_with_reason_and_origin(browser, died):
    page = await browser.get(AT)
    assert keys(page) == ["k3", "k2", "k1"] or keys(page) == ["k3", "k1", "k2"]
    assert "GiveUp: no such customer" in page
    assert "no &lt;b&gt;address" in page and "<b>address" not in page
    assert '<a href="/topics/invoices" title="invoices">invoices</a>' in page


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("topic=invoices", ["k3"]),
        ("reason=CREDIT", ["k2"]),
        ("tag=paid", ["k2"]),
        ("key=k1", ["k1"]),
        ("topic=orders&reason=address", []),
    ],
)
async def test_letters_are_chosen_by(browser, died, query, found):
    assert keys(await browser.get(f"{AT}?{query}")) == found


async def test_letters_are_chosen_by_the_time_they_died(browser, died, cluster):
    before = cluster.clock.now_ms() - 30_000
    assert keys(await browser.get(f"{AT}?since={before}")) == ["k3"]
    assert sorted(keys(await browser.get(f"{AT}?until={before}"))) == ["k1", "k2"]
    assert "is not a time" in await browser.get(f"{AT}?since=yesterday", status=400)


async def test_many_letters_come_in_pages(browser, cluster):
    await die(cluster, [Message("orders", b"x", keys=f"k{number}") for number in range(30)])
    page = await browser.get(f"{AT}?limit=25")
    older = re.search(r'<a href="([^"]+)" rel="next">Older', page)[1].replace("&amp;", "&")
    assert len(keys(page)) == 25
    assert len(keys(await browser.get(older))) == 5


async def test_a_dry_run_tells_and_sends_nothing(operator, died, cluster):
    page = await operator.get(f"{AT}/redrive?topic=orders&to=origin")
    assert fates(page) == ["would be sent"] * 2
    assert "Redrive 2 messages" in page
    admin = await cluster.admin()
    assert sum(each.max_offset for each in await admin.topic_status("orders")) == 2
    assert operator.console.audit.recent() == []


async def test_a_redrive_tells_the_outcome_of_each_message(operator, died, cluster):
    page = await operator.post(f"{AT}/redrive", reason="credit", to="group", most="1000", rate="100")
    page = await ended(operator, page)
    assert fates(page) == ["sent"]
    assert '<span class="badge good">done</span>' in page
    (message,) = await receive(cluster)
    assert (message.body, message.reconsume_times) == (b"no credit", 0)
    assert fates(await operator.get(f"{AT}/redrive?reason=credit")) == ["redriven before"]
    outcomes = {entry.what: (entry.outcome, entry.details) for entry in operator.console.audit.recent()}
    assert outcomes["begin redrive"][0] == "done"
    assert outcomes["redrive"][0] == "done"
    assert outcomes["redrive"][1]["result"] == "1 sent"
    assert outcomes["redrive"][1]["reason"] == "credit"


async def test_one_letter_is_redriven_by_its_link(operator, died):
    page = await operator.get(f"{AT}?key=k1")
    link = re.search(r'<a href="([^"]+)" aria-label="Redrive k1">', page)[1].replace("&amp;", "&")
    page = await operator.get(link)
    assert keys(page) == ["k1"]
    assert "Redrive 1 message?" in page


async def test_what_cannot_be_sent_is_a_failure_and_no_green_tick(operator, died, cluster):
    admin = await cluster.admin()
    await admin.create_topic("closed", 1, permission="r")
    form = {"to": "topic", "to_topic": "closed", "most": "10", "rate": "100"}
    page = await ended(operator, await operator.post(f"{AT}/redrive", **form))
    assert fates(page) == ["failed"] * 3
    assert '<span class="badge bad">ended, with failures</span>' in page
    assert "badge good" not in page
    assert {entry.what: entry.outcome for entry in operator.console.audit.recent()}["redrive"] == "failed"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"to": "topic"}, "name the topic"),
        ({"rate": "fast"}, "is not a number"),
        ({"rate": "nan"}, "0.1 to 100,000"),
        ({"most": "0"}, "1 to 10,000"),
        ({"to": "everywhere"}, "copies go to the group"),
    ],
)
async def test_what_cannot_be_asked_is_said(operator, died, fields, said):
    form = {"to": "group", "most": "10", "rate": "100", **fields}
    assert said in await operator.post(f"{AT}/redrive", **form, back=AT)
    query = "&".join(f"{name}={value}" for name, value in form.items())
    assert said in await operator.get(f"{AT}/redrive?{query}", status=400)


async def test_a_redrive_is_as_slow_as_asked_and_is_stopped(config, died):
    clock = FakeClock()
    async with browsing(config, clock=clock) as operator:
        operator.form_at = f"{AT}/redrive"
        page = await operator.post(f"{AT}/redrive", to="group", most="10", rate="0.1")
        (run_id,) = re.findall(r"<h1>Redrive (\d+)", page)
        run = operator.console.redrives.find(run_id)
        await until(lambda: run.outcomes)
        page = await operator.post(f"{AT}/redrives/{run_id}/stop")
        assert f"Redrive {run_id} ends after the present message." in page
        assert fates(page) == ["sent"]
        while run.ended_ms is None:
            await clock.advance(10)
        page = await operator.get(f"{AT}/redrives/{run_id}")
        assert "It was stopped" in page
        assert fates(page) == ["sent"] * 2
        page = await operator.post(f"{AT}/redrives/{run_id}/stop", back=AT)
        assert "has already ended: 2 sent" in page


async def test_a_redrive_that_is_not_known_is_not_found(browser):
    assert "Redrive 77 is unknown" in await browser.get(f"{AT}/redrives/77", status=404)


async def test_viewers_see_dead_letters_and_redrive_none(browser, died):
    for name, role in (("root", "admin"), ("vera", "viewer")):
        browser.console.accounts.save(name, role=role, password="correct horse")
    await browser.sign_in("vera")
    page = await browser.get(AT)
    assert "k3" in keys(page) and "Redrive" not in page.replace("Redriven", "")
    await browser.get(f"{AT}/redrive", status=403)


def reasons(page):
    """Return the counts and patterns of the table of reasons."""
    table = page[page.index('class="letters reasons"') :].partition("</table>")[0]
    return re.findall(r'<b>([\d,]+)</b></td>\s*<th [^>]*><a href="[^"]*">([^<]+)</a>', table)


REASON = "GiveUp: no such customer: …"


def splits(page):
    """Return the table of reasons: left, redriven, reason."""
    table = page[page.index('class="letters reasons"') :].partition("</table>")[0]
    cells = re.findall(r'<b>([\d,]+)</b></td>\s*<th [^>]*><a [^>]*>([^<]+)</a></th>\s*<td class="num">([\d,]+)', table)
    return [(int(left), int(redriven), reason) for left, reason, redriven in cells]


@pytest.mark.parametrize("to", ["group", "origin", "topic"])
@pytest.mark.parametrize("restarted", [False, True])
async def test_the_counts_of_a_reason_tell_what_is_left_and_what_was_redriven(
    operator, many_died, to, restarted, cluster
):
    await (await cluster.admin()).create_topic("repairs", 1)
    assert splits(await operator.get(AT))[0] == (3, 0, REASON)
    form = {"to": to, "to_topic": "repairs", "rate": "1000", "pattern": REASON}
    for most, split in (("1", (2, 1, REASON)), ("2", (0, 3, REASON)), ("1", (0, 3, REASON))):
        await ended(operator, await operator.post(f"{AT}/redrive", most=most, **form))
        if restarted:
            operator.console.redrives._runs.clear()
        page = await operator.get(AT)
        assert split in splits(page)
        assert page.count(">redriven</a>") == split[1]


@pytest.fixture
async def many_died(cluster):
    bodies = [*(b"no such customer: %d" % number for number in range(4711, 4714)), b"HTTP 503 from bank", b""]
    await die(cluster, [Message("orders", body or b" ", keys=f"k{n}") for n, body in enumerate(bodies)])


async def test_reasons_that_differ_in_numbers_are_counted_together(browser, many_died):
    page = await browser.get(AT)
    assert reasons(page) == [("3", "GiveUp: no such customer: …"), ("1", "GiveUp"), ("1", "GiveUp: HTTP 503 from bank")]
    link = re.search(r'<a href="([^"]+)">GiveUp: no such customer: …</a>', page)[1].replace("&amp;", "&")
    page = await browser.get(link)
    assert sorted(keys(page)) == ["k0", "k1", "k2"]
    assert len(reasons(page)) == 3, "the other reasons stay in sight"
    assert '<tr aria-current="true">' in page


async def test_the_letters_of_one_reason_are_redriven_together_and_marked(operator, many_died):
    page = await operator.get(AT)
    link = re.search(r'<a href="([^"]+)" aria-label="Redrive 3 with reason [^"]+">', page)[1].replace("&amp;", "&")
    page = await operator.get(link)
    assert fates(page) == ["would be sent"] * 3
    form = page[page.index('data-confirm="Redrive 3 messages?"') :].partition("</form>")[0]
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', form))
    assert fates(await ended(operator, await operator.post(f"{AT}/redrive", **fields))) == ["sent"] * 3
    operator.console.redrives._runs.clear()  # as after a restart of the console: copies are found at the brokers
    page = await operator.get(AT)
    assert page.count(">redriven</a>") == 3
    assert splits(page) == [(1, 0, "GiveUp"), (1, 0, "GiveUp: HTTP 503 from bank"), (0, 3, REASON)]
    assert 'aria-label="Redrive 0' not in page
    copy = re.search(r'<a class="badge" href="([^"]+)"', page)[1].replace("&amp;", "&")
    assert "it is redriven and not consumed yet" in await operator.get(copy)


async def test_letters_without_a_reason_are_one_group(browser, cluster):
    await (await cluster.admin()).create_topic("%DLQ%billing", 1)
    for number in range(3):
        text = f"UNIQ_KEY\x01{number:032d}"
        cluster.broker.store.append(StoredMessage("%DLQ%billing", b"x", text, store_ms=cluster.clock.now_ms()))
    page = await browser.get(AT)
    assert reasons(page) == [("3", "no reason given")]
    assert page.count('<span class="muted">no reason given</span>') == 3
    assert len(re.findall(r'<th scope="row"><a href="/message', await browser.get(f"{AT}?pattern=(none)"))) == 3
    assert "No dead letter matches." in await browser.get(f"{AT}?pattern=other")


async def test_the_list_of_groups_shows_each_groups_last_reason(browser, died):
    assert "GiveUp: no &lt;b&gt;address&lt;/b&gt;" in await browser.get("/dead-letters")


async def test_filters_are_folded_until_they_are_used(browser, died):
    assert '<details class="card filters" >' in await browser.get(AT)
    assert '<details class="card filters" open>' in await browser.get(f"{AT}?key=k1")
    assert '<details class="card filters" open>' in await browser.get(f"{AT}?since=yesterday", status=400)
