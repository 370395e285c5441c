"""Finding, in a real browser: names while one types, keys, bodies in place, and names of 255 characters."""

import pytest
from selenium.webdriver.common.keys import Keys
from tests.waiting import wait_until

from pyromq import Admin, Message, Producer
from pyromq.remoting.bodies import GroupConfig

pytestmark = pytest.mark.soak

TOPIC, GROUP = ("topic-of-a-team-" * 8)[:127], ("group-of-a-team-" * 16)[:255]
FOCUSED = "return document.activeElement.textContent.trim()"
CUT = """
    return [...document.querySelectorAll("main .scroll")].filter((each) => each.scrollWidth > each.clientWidth + 1)
        .map((each) => each.innerText.slice(0, 200));
"""


@pytest.fixture(scope="module")
def long_names(servers):
    """The longest names that brokers allow, with a lag and a dead letter."""
    with Admin(servers[1]) as admin, Producer("p" * 255, servers[1]) as producer:
        admin.create_topic(TOPIC, 2)
        admin.create_group(GroupConfig(name=GROUP))
        message = Message(TOPIC, b'{"name": "' + b"n" * 300 + b'"}', keys="k" * 300, tags="t" * 120)
        queue = producer.send(message).queue
        admin.commit_offset(GROUP, queue, 0)
        producer.send(Message(TOPIC, b"1", keys="later", delay_level=18))
        yield


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/topics", f"/topics/{TOPIC}", f"/messages?topic={TOPIC}", "/messages?q=later", "/find?q=of-a-team"),
        *("/groups", f"/groups/{GROUP}", f"/groups/{GROUP}/reset?topic={TOPIC}&to=end", "/delayed-levels/18"),
    ],
    ids=lambda path: path.replace(TOPIC, "TOPIC").replace(GROUP, "GROUP"),
)
def test_a_long_name_pushes_nothing_off_the_screen(page, long_names, path):
    page.open(path)
    assert not page.is_too_wide
    assert page.driver.execute_script(CUT) == []
    assert page.serious() == []
    page.open(path, width=390)
    assert not page.is_too_wide


def test_names_are_suggested_while_one_types(page):
    page.open("/")
    field = page.find("#find")
    field.send_keys("RDER")
    wait_until(lambda: page.find("#find-names").is_displayed())
    assert "orders\ntopic" in page.find("#find-names").text
    assert page.serious() == []
    field.send_keys(Keys.ARROW_DOWN, Keys.ENTER)
    wait_until(lambda: page.driver.title.startswith("orders"))
    page.open("/messages")
    field = page.find("main [data-suggest=topic]")
    field.send_keys("invo")
    wait_until(lambda: page.find("#topic-names").is_displayed())
    field.send_keys(Keys.ARROW_DOWN, Keys.ENTER)
    assert field.get_attribute("value") == "invoices"
    field.send_keys(Keys.ENTER)
    wait_until(lambda: page.driver.title.startswith("Messages of invoices"))
    assert page.complaints() == []


def test_the_box_works_without_a_script(page):
    page.run_scripts(False)
    try:
        page.open("/")
        page.find("#find").send_keys("rder", Keys.ENTER)
        wait_until(lambda: "Names with rder" in page.text)
        page.driver.find_element("link text", "orders").click()
        wait_until(lambda: page.driver.title.startswith("orders"))
    finally:
        page.run_scripts(True)


def test_a_list_is_filtered_while_one_types(page):
    page.open("/topics")
    page.find("#filter").send_keys("invo")
    wait_until(lambda: "orders" not in page.find("#topics").text)
    assert "invoices" in page.find("#topics").text and "filter=invo" in page.driver.current_url
    field = page.driver.switch_to.active_element
    assert field.get_attribute("id") == "filter"
    field.send_keys(Keys.ARROW_DOWN)
    assert page.driver.execute_script(FOCUSED) == "invoices"
    page.driver.find_element("link text", "all").click()
    wait_until(lambda: "kind=all" in page.driver.current_url)
    assert "filter=invo" in page.driver.current_url


def test_rows_are_walked_opened_and_unfolded_by_keys(page):
    page.open("/messages?topic=orders")
    body = page.find("body")
    body.send_keys(Keys.ARROW_DOWN)
    first = page.driver.execute_script(FOCUSED)
    page.driver.switch_to.active_element.send_keys("j")
    second = page.driver.execute_script(FOCUSED)
    assert first != second
    page.driver.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    wait_until(lambda: '"customer": ' in page.find("tr.inside").text)
    assert page.serious() == []
    page.driver.switch_to.active_element.send_keys(Keys.ARROW_LEFT)
    assert not page.driver.execute_script("return document.querySelector('tr.inside')")
    page.driver.switch_to.active_element.send_keys("?")
    wait_until(lambda: page.find("#keys-dialog").is_displayed())
    assert page.serious() == []
    page.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    wait_until(lambda: not page.find("#keys-dialog").is_displayed())
    assert page.driver.execute_script(FOCUSED) == second
    page.driver.switch_to.active_element.send_keys(Keys.ENTER)
    wait_until(lambda: page.driver.title.startswith("Message "))


def test_chosen_columns_are_kept(page):
    page.open("/messages?topic=orders")
    page.driver.find_element("xpath", "//summary[.='Columns']").click()
    page.find("input[name=columns][value=tag]").click()
    page.find("#fields").send_keys("body_order")
    assert page.serious() == []
    page.press("Show")
    wait_until(lambda: "columns=" in page.driver.current_url)
    page.open("/messages?topic=orders")
    titles = page.find("table.messages thead").text
    assert "body_order" in titles and "Tag" not in titles


def test_a_refused_form_far_below_is_in_sight_with_its_reason(page):
    page.open("/groups/warehouse")
    page.driver.find_element("xpath", "//summary[.='Change settings']").click()
    page.driver.execute_script("document.querySelector('#retries').form.noValidate = true")
    page.fill(retries="99999")
    page.press("Save settings")
    wait_until(lambda: page.find("[data-refused]").is_displayed())
    top = page.driver.execute_script("return document.querySelector('[data-refused]').getBoundingClientRect().top")
    assert 0 <= top <= 900
    assert page.find("#retries").get_attribute("value") == "99999"
