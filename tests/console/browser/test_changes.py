"""Changes that cannot be taken back, clicked: redriving, cancelling, deciding, deleting an account."""

import re

import pytest
from tests.console.browser.conftest import Page, serving
from tests.console.browser.shop import REASONS
from tests.waiting import wait_until

from pyromq import PullConsumer

pytestmark = pytest.mark.soak


ROWS = """
    return [...document.querySelectorAll("main table")]
        .filter((table) => !arguments[0] || table.caption?.textContent === arguments[0])
        .flatMap((table) => [...table.tBodies[0].rows])
        .map((row) => [...row.cells].map((cell) => cell.innerText.trim()));
"""


def rows(page, caption=""):
    """Return the texts of a table's rows, cell by cell."""
    return page.driver.execute_script(ROWS, caption)


def visible(namesrv, topic):
    """Return the keys that consumers of a topic can read."""
    with PullConsumer("looks", namesrv) as consumer:
        results = [consumer.pull(queue, 0, 1000) for queue in consumer.queues(topic)]
    return [message.keys[0] for result in results for message in result.messages if message.keys]


def test_dead_letters_are_redriven_after_a_dry_run_each_with_its_outcome(page, servers):
    page.open("/dead-letters")
    page.driver.find_element("link text", "accounting").click()
    page.driver.find_element("partial link text", "Redrive").click()
    page.driver.find_element("xpath", "//summary[starts-with(., 'Other ways')]").click()
    page.find("[name=to][value=topic]").click()
    page.fill(to_topic="shipments")
    page.press("Dry run")
    wait_until(lambda: f"Redrive {len(REASONS)} messages" in page.text)
    assert page.text.count("would be sent") == len(REASONS) + 1  # each, and their sum
    assert visible(servers[1], "shipments") == []

    page.press(f"Redrive {len(REASONS)} messages")
    page.confirm()
    wait_until(lambda: re.search(r"Redrive \d+", page.driver.title) and "done" in page.find("#state").text)
    outcomes = rows(page, "Outcomes by message")
    assert sorted(visible(servers[1], "shipments")) == sorted(row[0] for row in outcomes)
    assert [row[2] for row in outcomes] == ["sent"] * len(REASONS)
    assert page.serious() == []
    page.driver.find_element("link text", outcomes[0][3].removeprefix("shipments").strip()).click()
    wait_until(lambda: "Life of the message" in page.text)  # the copy

    page.open("/dead-letters/accounting/redrive?to=topic&to_topic=shipments")
    assert f"{len(REASONS)} redriven before" in page.text


def test_a_delayed_message_is_cancelled(page):
    page.open("/delayed")
    before = int(dict(rows(page, "Topics with delayed messages"))["reminders"])
    page.driver.find_element("link text", "reminders").click()
    key = rows(page, "What waits, in order of delivery")[0][2]
    page.find(f"[aria-label='Cancel {key}']").click()
    page.driver.switch_to.alert.dismiss()
    assert key in page.text
    page.find(f"[aria-label='Cancel {key}']").click()
    page.confirm()
    wait_until(lambda: "is cancelled: it is not delivered." in page.text)
    assert key not in [row[2] for row in rows(page, "What waits, in order of delivery")]
    page.open("/delayed")
    assert int(dict(rows(page, "Topics with delayed messages"))["reminders"]) == before - 1


@pytest.mark.parametrize(
    ("key", "button", "said"), [("cart-0", "Commit", "is committed"), ("cart-1", "Roll back", "is rolled back")]
)
def test_a_transaction_is_decided(page, servers, key, button, said):
    page.open("/transactions")
    page.driver.find_element("link text", key).click()
    page.press(button)
    page.confirm()
    wait_until(lambda: said in page.text)
    assert key not in [row[0] for row in rows(page, "Undecided half messages")]
    assert (key in visible(servers[1], "orders")) == (button == "Commit")


def test_a_batch_is_committed_and_another_rolled_back(page, servers):
    page.open("/transactions")
    page.driver.find_element("link text", "etl:2026-11-21").click()
    assert [row[2] for row in rows(page, "Attempts at this transaction")] == ["25", "25"]
    page.find("main [type=checkbox]").click()
    page.press("Commit")
    page.confirm()
    wait_until(lambda: "is committed: consumers see its 25 messages." in page.text)
    page.driver.find_element("link text", "etl:2026-11-22").click()
    page.press("Roll back all")
    page.confirm()
    wait_until(lambda: "is rolled back: consumers do not see its 25 messages." in page.text)
    assert "No batch is undecided." in page.text


def test_an_account_is_deleted_and_signed_out_with_it(chromium, tmp_path):
    def make(name, role):
        page.open("/accounts")
        page.find(f"select[name=role] option[value={role}]").click()
        page.fill(name=name, password="correct horse", password_again="correct horse")
        page.press("Save account")

    def sign_in(name):
        page.fill(name=name, password="correct horse")
        page.press("Sign in")

    with serving(tmp_path) as (_, base, _):
        chromium.delete_all_cookies()
        page = Page(chromium, base)
        make("anna", "admin")
        wait_until(lambda: chromium.title.startswith("Sign in"))
        sign_in("anna")
        wait_until(lambda: chromium.title.startswith("Overview"))
        make("olaf", "operator")
        wait_until(lambda: "olaf" in [row[0].split()[0] for row in rows(page)])
        mine = chromium.get_cookies()
        chromium.delete_all_cookies()
        page.open("/topics")
        sign_in("olaf")
        wait_until(lambda: chromium.title.startswith("Topics"))
        his = chromium.get_cookies()

        swap(chromium, mine)
        page.open("/accounts")
        page.driver.find_element("xpath", "//button[contains(., 'Delete') and contains(., 'olaf')]").click()
        page.confirm()
        wait_until(lambda: "olaf" not in [row[0].split()[0] for row in rows(page)])
        page.open("/audit")
        assert "delete account" in page.text

        swap(chromium, his)
        page.open("/topics")
        assert chromium.title.startswith("Sign in")
        sign_in("olaf")
        wait_until(lambda: "Wrong name or password." in page.text)


def swap(chromium, cookies):
    chromium.delete_all_cookies()
    for each in cookies:
        chromium.add_cookie(each)
