"""Every page in a real browser: nothing serious for axe, no complaint of the browser's, nothing too wide; changes."""

import re
import signal

import pytest
from selenium.webdriver.common.keys import Keys
from tests.console.browser.conftest import Page, name_of, serving, webdriver
from tests.waiting import wait_until

from pyromq import Admin

PAGES = (
    *("/", "/doctor", "/topics", "/topics?kind=system&sort=-messages", "/topics/orders", "/new-topic"),
    *("/messages", "/messages?topic=orders", "/messages?q=k7", "/send?topic=orders", "/message/orders/broker-a/1/0"),
    *("/message/%25DLQ%25accounting/broker-a/0/0", "/messages?q=invoice-4", "/dead-letters/accounting?pattern=GiveUp"),
    *("/messages?topic=orders&q=none", "/find?q=der"),
    *("/groups", "/groups/billing", "/groups/billing/reset?topic=orders&to=begin", "/new-group"),
    *("/dead-letters", "/dead-letters/billing", "/dead-letters/billing/redrive", "/delayed", "/delayed/reminders"),
    *("/dead-letters/accounting", "/dead-letters/accounting/redrive", "/delayed-levels/16", "/delayed-levels/1"),
    *("/brokers", "/brokers/broker-a", "/brokers/broker-a/settings"),
    "/brokers/broker-a/change?setting=transactionCheckMax&value=7",
    *("/transactions", "/transactions-batch?name=etl%3A2026-11-21", "/accounts", "/audit", "/topics/nothing"),
)


def check(page, path, **how):
    page.open(path, **how)
    assert "pyromq" in page.driver.title
    page.picture(name_of(path, **how))  # before axe scrolls what it looks at
    assert not page.is_too_wide, path
    if how.get("width") == 390:
        assert page.scrolling == [], path
    assert page.serious() == [], path
    expected = ["404"] if "nothing" in path else []
    complaints = page.complaints()
    assert len(complaints) == len(expected), complaints


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/", "/topics/orders", "/message/orders/broker-a/1/0", "/groups/billing"])
def test_a_page_is_well_made(page, path):
    check(page, path)


@pytest.mark.soak
@pytest.mark.parametrize("how", [{}, {"dark": True}, {"width": 390}], ids=["light", "dark", "narrow"])
@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_well_made(page, path, how):
    check(page, path, **how)


@pytest.mark.soak
def test_times_are_shown_and_asked_for_in_the_browsers_zone(page):
    page.driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "Asia/Tokyo"})
    try:
        page.open("/messages?topic=orders")
        wait_until(lambda: "Times in Asia/Tokyo" in page.text)
        # One script reads all rows: the page replaces them meanwhile.
        read_times = (
            "return [...document.querySelectorAll('#rows time')].map((each) => [each.innerText, each.dateTime])"
        )
        shown, time = page.driver.execute_script(read_times)[0]
        assert "+09:00" in time
        page.driver.execute_script(
            "document.querySelectorAll('form.search details').forEach((each) => each.open = true)"
        )
        page.fill(since=shown, until=shown)
        page.find("#until").send_keys("\n")
        wait_until(lambda: "until=2" in page.driver.current_url and "last=" not in page.driver.current_url)
        assert shown in [text for text, _ in page.driver.execute_script(read_times)]
        page.driver.execute_script(
            "document.querySelectorAll('form.search details').forEach((each) => each.open = true)"
        )
        page.press("last 15 min")
        wait_until(lambda: page.find("[name=last][value='15m']").get_attribute("aria-pressed") == "true")
        page.find("[data-zone-switch]").click()
        wait_until(lambda: "Times in UTC" in page.text)
        page.open("/")
        assert "Times in UTC" in page.text
    finally:
        page.driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": ""})


@pytest.mark.soak
def test_a_chart_says_its_values_at_the_pointer_and_its_range(page):
    page.open("/groups/billing?span=15m")
    assert page.find(".chart-range [aria-current]").text == "15 min"
    wait_until(lambda: page.driver.find_elements("css selector", ".reading"))
    reading = page.find(".reading")
    expected = reading.find_element("css selector", "title").get_attribute("textContent")
    webdriver.ActionChains(page.driver).move_to_element(reading).perform()
    wait_until(lambda: page.find(".chart-reading").text == expected)
    webdriver.ActionChains(page.driver).move_to_element(page.find("h1")).perform()
    wait_until(lambda: " to " in page.find(".chart-reading").text)


@pytest.mark.soak
def test_a_topic_is_created_filled_changed_and_deleted(page, servers):
    page.open("/topics")
    page.driver.find_element("link text", "New topic").click()
    page.fill(name="parcels", queues="2")
    page.press("Create topic")
    wait_until(lambda: "Topic parcels is created." in page.text)
    page.driver.find_element("link text", "Send").click()
    page.fill(body='{"parcel": 1}', keys="p1")
    page.press("Send")
    wait_until(lambda: "is stored in queue" in page.text)
    page.driver.find_element("link text", "Show it").click()
    wait_until(lambda: "Life of the message" in page.text)
    assert "parcel" in page.text
    page.driver.find_element("link text", "Edit and send again").click()
    page.fill(topic="orders", tag="copied")
    page.press("Send")
    wait_until(lambda: "is stored in queue" in page.text and "of orders" in page.text)
    page.open("/topics/parcels")
    page.driver.find_element("xpath", "//summary[.='Change settings']").click()
    page.fill(read_queues="3", write_queues="3")
    page.press("Save settings")
    wait_until(lambda: "Settings of topic parcels are changed." in page.text)
    page.driver.find_element("xpath", "//summary[.='Delete this topic']").click()
    button = page.driver.find_element("xpath", "//button[.='Delete topic']")
    assert not button.is_enabled()
    page.find("#delete-name").send_keys("parcels")
    wait_until(button.is_enabled)
    button.click()
    wait_until(lambda: "Topic parcels is deleted." in page.text)
    with Admin(servers[1]) as admin:
        assert "parcels" not in admin.topics()


@pytest.mark.soak
def test_a_reset_is_previewed_and_done(page):
    page.open("/groups/billing")
    page.driver.find_element("link text", "Reset offsets").click()
    page.find("[name=to][value=end]").click()
    page.press("Show what would happen")
    wait_until(lambda: re.search(r"The reset skips all \d+ unconsumed messages of orders\.", page.text))
    page.press("Reset 4 queues")
    page.confirm()
    wait_until(lambda: "The reset of billing skips all" in page.text)


@pytest.mark.soak
def test_new_messages_appear_while_one_follows(page, servers):
    page.open("/messages?topic=orders")
    page.press("Follow")
    wait_until(lambda: "Following" in page.text)
    with page_of_another(page, "/send?topic=orders"):
        page.fill(body="something new", keys="fresh-one")
        page.press("Send")
        wait_until(lambda: "is stored in queue" in page.text)
    wait_until(lambda: "fresh-one" in page.text)
    page.press("Stop")
    wait_until(lambda: "Stopped after" in page.text)


class page_of_another:
    """A second tab for a while."""

    def __init__(self, page, path):
        self.page, self.path = page, path

    def __enter__(self):
        self.first = self.page.driver.current_window_handle
        self.page.driver.switch_to.new_window("tab")
        self.page.driver.get(self.page.base + self.path)

    def __exit__(self, *failure):
        self.page.driver.close()
        self.page.driver.switch_to.window(self.first)


@pytest.mark.soak
def test_keys_and_the_switch_of_colours_work(page):
    page.open("/")
    page.find("body").send_keys("/")
    assert page.driver.switch_to.active_element.get_attribute("id") == "find"
    page.driver.switch_to.active_element.send_keys("orders\n")
    wait_until(lambda: page.driver.title.startswith("orders"))
    page.find("main").send_keys("gt")
    wait_until(lambda: page.driver.title.startswith("Topics"))
    switch = page.find("[data-theme-switch]")
    switch.click()
    switch.click()
    assert page.driver.execute_script("return document.documentElement.dataset.theme") == "dark"
    page.open("/")
    assert page.driver.execute_script("return document.documentElement.dataset.theme") == "dark"
    page.driver.execute_script("localStorage.clear()")


@pytest.mark.soak
def test_accounts_roles_and_wrong_passwords(chromium, tmp_path):
    with serving(tmp_path) as (_, base, _):
        chromium.delete_all_cookies()
        page = Page(chromium, base)
        for name, role in (("anna", "admin"), ("olaf", "operator"), ("vera", "viewer")):
            page.open("/accounts")
            page.find(f"select[name=role] option[value={role}]").click()
            page.fill(name=name, password="correct horse", password_again="correct horse")
            page.press("Save account")
            if role == "admin":
                wait_until(lambda: chromium.title.startswith("Sign in"))
                assert page.serious() == []
                page.fill(name="anna", password="wrong horse")
                page.press("Sign in")
                wait_until(lambda: "Wrong name or password." in page.text)
                page.fill(name="anna", password="correct horse")
                page.press("Sign in")
                wait_until(lambda: chromium.title.startswith("Overview"))
            else:  # the next page would come before it
                wait_until(lambda: f"Account {name} is saved" in page.text)  # noqa: B023
        for name, can_send, can_create in (("olaf", True, False), ("vera", False, False)):
            chromium.delete_all_cookies()
            page.open("/topics")
            page.fill(name=name, password="correct horse")
            page.press("Sign in")
            wait_until(lambda: chromium.title.startswith("Topics"))
            assert ("New topic" in page.text) is can_create
            page.open("/messages")
            assert ("Send a message" in page.text) is can_send
            page.open("/accounts")
            assert "This needs the role admin" in page.text


@pytest.mark.soak
def test_a_broker_that_dies_while_one_looks_is_shown_as_such(chromium, tmp_path):
    """The console is a process of its own here, which outlives the servers."""
    import subprocess
    import sys

    with serving(tmp_path / "servers") as (process, _, namesrv):
        command = [sys.executable, "-m", "pyromq", "console", "--port", "0", "-n", namesrv]
        console = subprocess.Popen(
            [*command, "--data", str(tmp_path / "console")],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            page = Page(chromium, console.stdout.readline().split()[1].rstrip("/"))
            page.open("/")
            assert "answers" in page.text
            process.send_signal(signal.SIGKILL)
            process.wait()
            wait_until(lambda: f"No name server answers at {namesrv} since 2" in page.text)
            wait_until(lambda: "Broker broker-a does not answer since 2" in page.text)
            page.open("/topics")
            assert "No name server answers since 2" in page.text
            assert "Broker broker-a does not answer since 2" in page.text
            assert namesrv in page.text
            console.send_signal(signal.SIGKILL)
            wait_until(lambda: "The console does not answer. What is shown is as of" in page.find("#offline").text)
        finally:
            console.terminate()
            console.wait(60)
            console.stdout.close()


@pytest.mark.soak
def test_why_a_message_failed_takes_its_key_and_redriving_it_a_button_and_a_yes(page):
    page.open("/dead-letters")
    wait_until(lambda: "accounting" in page.text)  # the console knows what the brokers have
    page.find("#find").send_keys("invoice-13", Keys.ENTER)
    wait_until(lambda: "gave up after 1 attempt" in page.text)
    reason = page.find(".verdict.bad .said")
    assert reason.text == "GiveUp: no such customer: 4712"
    assert reason.rect["y"] < 300  # in sight without scrolling
    page.press("Redrive")
    page.confirm()
    wait_until(lambda: "done" in page.find("#state").text)
    page.driver.find_element("link text", "invoice-13").click()
    wait_until(lambda: "redriven" in page.text)
