"""Forms keep what was typed when they are refused: all of them, found on the pages of a shop."""

import pytest
from tests.console.forms import forms_of, typed_into

from pyromq.console.pages import PAGES
from pyromq.console.security.sessions import MAX_KEPT_FORMS, KeptForms, RefusedForm
from pyromq.message import Message
from pyromq.remoting.bodies import GroupConfig
from pyromq.testing import FakeClock

PASSWORDS = {"password", "password_again", "secret_key"}  # never sent back to a browser


@pytest.fixture
async def shop(cluster):
    """Something of everything that has a form."""
    admin = await cluster.admin()
    await admin.create_topic("orders", 1)
    await admin.create_group(GroupConfig(name="billing"))
    producer = await cluster.producer()
    await producer.send(Message("orders", b"1", keys="k1"))
    await producer.send(Message("%DLQ%billing", b"1"))
    (queue,) = await producer.queues("orders")
    await admin.commit_offset("billing", queue, 0)


# Forms whose fields a visitor fills: the page of each, and what the console or the broker refuses of it.
FORMS = {
    "/new-topic": ("/new-topic", {"queues": "0"}),
    "/topics/orders/alter": ("/topics/orders", {"read_queues": "-1"}),
    "/topics/orders/delete": ("/topics/orders", {"name": "order"}),
    "/new-group": ("/new-group", {"retries": "10001"}),
    "/groups/billing/alter": ("/groups/billing", {"retry_queues": "many"}),
    "/groups/billing/delete": ("/groups/billing", {"name": "Billing"}),
    "/send": ("/send", {"properties": "no sign"}),
    "/messages/save": ("/messages?topic=orders", {"name": "n" * 81}),
    "/accounts/save": ("/accounts", {"password": "one horse", "password_again": "another horse"}),
}
ALONE = {  # forms of a button and hidden fields: nothing is typed into them
    *("/messages/forget", "/accounts/delete", "/sign-out", "/delayed/{topic}/cancel", "/groups/{name}/reset"),
    *("/transactions/{id}", "/transactions-batch", "/brokers/{name}/change", "/brokers/{name}/failover"),
    *("/dead-letters/{group}/redrive", "/dead-letters/{group}/redrives/{run}/stop", "/sign-in"),
}


def test_every_change_of_the_console_is_tested_here():
    changes = {route.path for page in PAGES for route in page.ROUTES if "POST" in route.methods}
    named = {each.replace("orders", "{name}").replace("billing", "{name}") for each in FORMS}
    assert changes == named | ALONE


def form_of(page, action):
    (form,) = [each for each in forms_of(page) if each.action == action]
    return form


def shown(form):
    return {name: form.values.get(name) for name in form.kinds if name not in PASSWORDS}


@pytest.mark.parametrize("is_refused", [False, True], ids=["of another session", "refused"])
async def test_a_form_that_is_not_taken_keeps_what_was_typed_and_says_why(browser, shop, is_refused):
    for action, (path, wrong) in FORMS.items():
        form = form_of(await browser.get(path), action)
        typed = typed_into(form) | (wrong if is_refused else {"csrf": "of another session"})
        page = (await browser.client.post(action, data=typed)).text
        assert 'role="alert"' in page, action
        assert ("another session" in page) is not is_refused, action
        again = shown(form_of(page, action))
        assert again == {name: typed.get(name) for name in again}, action
        assert "typed into password" not in page, action
        assert shown(form_of(await browser.get(path), action)) == shown(form), action  # kept for one page


@pytest.mark.parametrize(
    ("action", "fields"),
    [
        ("/messages", {"topic": "orders", "q": "4711", "case": "yes", "by": "key", "since": "soon"}),
        ("/messages", {"topic": "nothing", "q": "n = ", "by": "sql"}),
        ("/groups/billing/reset", {"topic": "orders", "to": "time", "at": "soon"}),
        ("/groups/billing/reset", {"topic": "orders", "to": "offset", "offset": "many"}),
        ("/groups/billing/reset", {"topic": "nothing", "to": "end"}),
        ("/delayed/orders", {"begin": "soon"}),
        ("/dead-letters/billing", {"reason": "x", "key": "k", "since": "soon"}),
    ],
)
async def test_a_search_that_cannot_be_done_keeps_what_was_typed(browser, shop, action, fields):
    page = (await browser.client.get(action, params=fields)).text
    assert 'role="alert"' in page
    again = form_of(page, action).values
    assert {name: again.get(name) for name in fields} == fields


async def test_a_page_that_refreshes_in_another_tab_takes_nothing_away(browser, shop):
    form = form_of(await browser.get("/new-topic"), "/new-topic")
    typed = {**form.values, "name": "kept", "queues": "0"}
    answer = await browser.client.post("/new-topic", data=typed, follow_redirects=False)
    refreshed = (await browser.client.get("/topics", headers={"x-refresh": "1"})).text
    assert "Failed:" not in refreshed
    page = await browser.get(answer.headers["location"])
    assert "Failed:" in page and 'value="kept"' in page


SENT_BY_A_PAGE = {"sec-fetch-site": "same-origin"}


@pytest.fixture
async def signed_in(browser, shop):
    for name in ("anna", "berta"):
        browser.console.accounts.save(name, role="admin", password="correct horse")
    await browser.sign_in("anna")
    return browser


async def sent_too_late(browser, action, path, headers=SENT_BY_A_PAGE):
    """Type into a form, and send it when the session has ended. Return what was typed, and the page that comes."""
    typed = typed_into(form_of(await browser.get(path), action))
    browser.console.sessions.end_all_of("anna")
    return typed, (await browser.client.post(action, data=typed, headers=headers)).text


@pytest.mark.parametrize("action", FORMS)
async def test_a_form_sent_after_the_session_is_there_after_signing_in_and_nothing_is_changed(signed_in, action):
    topics = await (await signed_in.console.clients_of(None).admin()).topics()
    typed, page = await sent_too_late(signed_in, action, FORMS[action][0])
    assert "After signing in, the form is there as you typed it" in page
    page = await signed_in.sign_in("anna")
    again = shown(form_of(page, action))
    assert again == {name: typed.get(name) for name in again}
    assert page.count("your session had ended") >= 1 and "typed into password" not in page
    assert await (await signed_in.console.clients_of(None).admin()).topics() == topics
    page = await signed_in.get(FORMS[action][0])
    assert "your session had ended" not in page and shown(form_of(page, action)) != again  # kept for one page


async def test_a_form_is_shown_to_no_other_account_and_from_no_other_site(signed_in):
    await sent_too_late(signed_in, "/new-topic", "/new-topic")
    assert "typed into name" not in await signed_in.sign_in("berta") + await signed_in.get("/new-topic")
    await signed_in.sign_in("anna")
    assert "typed into name" not in await signed_in.get("/new-topic")  # it was taken
    for headers in ({}, {"sec-fetch-site": "none"}):
        _, page = await sent_too_late(signed_in, "/new-topic", "/new-topic", headers)
        assert "the form is there" not in page and "typed into name" not in await signed_in.sign_in("anna")


async def test_a_form_too_large_to_keep_is_said_to_be(signed_in):
    form = form_of(await signed_in.get("/send"), "/send")
    signed_in.console.sessions.end_all_of("anna")
    typed = {**typed_into(form), "body": "x" * 70_000}
    assert "too large to keep" in (await signed_in.client.post("/send", data=typed, headers=SENT_BY_A_PAGE)).text


async def test_kept_forms_are_few_and_are_forgotten():
    clock = FakeClock()
    kept = KeptForms(clock)
    keys = [kept.keep(RefusedForm("/new-topic", {"name": str(number)}, "")) for number in range(MAX_KEPT_FORMS + 1)]
    assert kept.find(keys[0]) is None and kept.find(keys[1]).fields == {"name": "1"}
    await clock.advance(901)
    assert kept.take(keys[2]) is None
