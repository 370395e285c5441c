"""The pictures of the documentation, of a shop that has traded for a while.

    .venv/bin/pytest -m soak tests/console/browser/test_pictures.py
    .venv/bin/python -m scripts.documentation.pictures

The first leaves them in `build/console-pictures` (or `PYROMQ_PICTURES`), the second makes them small, in
`docs/pictures`.
"""

import pytest
from tests.console.browser.conftest import Page, serving
from tests.console.browser.shop import open_shop, trade
from tests.waiting import wait_until

from pyromq import PullConsumer

POINTS = 9  # of a line in a chart: a sample comes every ten seconds


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_pictures_of_the_documentation_are_made(chromium, tmp_path):
    with serving(tmp_path) as (_, base, namesrv), open_shop(namesrv) as (_, producer), trade(producer):
        chromium.delete_all_cookies()
        page = Page(chromium, base)
        page.open("/", width=1180)
        for count in range(2, POINTS + 1):
            wait_until(lambda count=count: points(page) >= count)
        for name, path in (
            ("overview", "/"),
            ("message", life_of(namesrv, "invoices", "invoice-4")),
            ("group", "/groups/billing"),
            ("dead-letters", "/dead-letters/accounting"),
            ("topic", "/topics/payments"),
        ):
            page.open(path, width=1180)
            page.picture(f"docs-{name}", most=1000, scale=1.5)
            assert page.serious() == [], path


def points(page):
    """Return how many points the longest line of the page's charts has."""
    script = "return [...document.querySelectorAll('.chart .line')].map((each) => each.getAttribute('d'))"
    return max((each.count("L") + 1 for each in page.driver.execute_script(script)), default=0)


def life_of(namesrv, topic, key):
    """Return the address of the message with a key."""
    with PullConsumer("looks", namesrv) as consumer:
        for queue in consumer.queues(topic):
            for message in consumer.pull(queue, 0, 1000).messages:
                if key in message.keys:
                    return f"/message/{topic}/{message.broker_name}/{message.queue_id}/{message.queue_offset}"
    raise LookupError(key)
