"""What a screen reader says of the main pages, by Chromium's accessibility tree: all has a name, in order."""

import re
from itertools import pairwise

import pytest

PAGES = (
    *("/", "/topics/orders", "/messages?topic=orders", "/message/%25DLQ%25accounting/broker-a/0/0"),
    *(
        "/groups/billing",
        "/groups/billing/reset?topic=orders&to=begin",
        "/dead-letters/accounting",
        "/send?topic=orders",
    ),
    *("/brokers/broker-a", "/doctor", "/transactions-batch?name=etl%3A2026-11-21", "/accounts"),
)
NAMED = {"link", "button", "table", "textbox", "searchbox", "combobox", "checkbox", "radio", "image", "rowheader"}


def read(driver):
    """Return (role, name, level) of each element that is read out, in the order of reading."""
    nodes = driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    for each in nodes:
        if not each.get("ignored"):
            properties = {known["name"]: known["value"].get("value") for known in each.get("properties", [])}
            name = each.get("name", {}).get("value", "").strip()
            yield each["role"]["value"], name, properties.get("level")


@pytest.mark.soak
@pytest.mark.parametrize("path", PAGES)
def test_all_that_is_read_has_a_name_that_says_what_it_is(page, path):
    page.open(path)
    found = list(read(page.driver))
    assert [each for each in found if each[0] in NAMED and not each[1]] == []
    assert [name for role, name, _ in found if role in ("link", "button") and re.fullmatch(r"[\d,. ]+", name)] == []
    levels = [level for role, _, level in found if role == "heading"]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    roles = [role for role, _, _ in found]
    assert roles.index("banner") < roles.index("navigation") < roles.index("main")
    tables = [name for role, name, _ in found if role == "table"]
    assert len(set(tables)) == len(tables), "each table has a name of its own"
