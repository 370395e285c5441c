"""Groups: the list, one group, its settings, and resetting offsets."""

import re

import pytest

from pyromq.errors import GroupNotFound
from pyromq.message import Message
from pyromq.remoting.bodies import GroupConfig


@pytest.fixture
async def admin(cluster):
    """Eight orders in two queues, ten seconds apart; a group that has consumed two of each queue."""
    admin = await cluster.admin()
    await admin.create_topic("orders", 2)
    await admin.create_group(GroupConfig(name="billing"))
    await admin.create_group(GroupConfig(name="audit"))
    producer = await cluster.producer()
    queues = await producer.queues("orders")
    for number in range(8):
        await producer.send(Message("orders", b"%d" % number), queue=queues[number % 2])
        await cluster.clock.advance(10)
    for queue in queues:
        await admin.commit_offset("billing", queue, 2)
    return admin


async def offsets(admin):
    return [each.consumer_offset for each in await admin.group_progress("billing", "orders")]


def names(page):
    return re.findall(r'<th scope="row"[^>]*><a href="/groups/[^>]+>([^<]+)</a>', page)


async def test_groups_are_listed_with_their_lag(browser, admin):
    assert names(await browser.get("/groups")) == ["audit", "billing"]
    assert names(await browser.get("/groups?show=behind")) == ["billing"]
    assert names(await browser.get("/groups?filter=orders")) == ["billing"]
    assert names(await browser.get("/groups?sort=-lag")) == ["billing", "audit"]
    assert '<span class="lag warm">4</span>' in await browser.get("/groups")


async def test_a_group_shows_queues_members_and_who_has_what(browser, admin, cluster):
    consumer = await cluster.push_consumer("billing")
    consumer.subscribe("orders", lambda messages: None)
    state = await admin.group_state("billing")
    while not state.members:
        state = await admin.group_state("billing")
    page = await browser.get("/groups/billing")
    assert state.members[0].client_id in page
    assert "orders <code>*</code>" in page
    await browser.get("/groups/nothing", status=404)


async def test_a_group_is_created_changed_and_deleted(browser, admin):
    assert "Group shipping is created." in await browser.post(
        "/new-group", name="shipping", retries="3", retry_queues="1"
    )
    await browser.post("/groups/shipping/alter", retries="5", retry_queues="2")
    config = (await admin.group_configs("shipping"))["broker-a"]
    assert (config.retry_max_times, config.retry_queues, config.consume_enabled) == (5, 2, False)
    assert "nothing was deleted" in await browser.post("/groups/shipping/delete", name="x")
    assert "Group shipping is deleted." in await browser.post("/groups/shipping/delete", name="shipping")
    with pytest.raises(GroupNotFound):
        await admin.alter_group("shipping", retries=1)


async def test_a_reset_is_shown_before_it_is_done(browser, admin):
    page = await browser.get("/groups/billing/reset?topic=orders&to=begin")
    assert page.count("2 come once more") == 2
    assert await offsets(admin) == [2, 2]
    page = await browser.post("/groups/billing/reset", topic="orders", to="begin")
    assert "goes on elsewhere in 2 queues of orders; nobody of it is online" in page
    assert await offsets(admin) == [0, 0]


@pytest.mark.parametrize(
    ("to", "at", "expected"), [("end", "", [4, 4]), ("offset", "3", [3, 3]), ("offset", "99", [4, 4])]
)
async def test_a_group_goes_on_at(browser, admin, to, at, expected):
    await browser.post("/groups/billing/reset", topic="orders", to=to, at=at)
    assert await offsets(admin) == expected


async def test_a_group_goes_on_at_a_time(browser, admin, cluster):
    since = cluster.clock.now_ms() - 30_000  # the last three were stored since then
    page = await browser.get(f"/groups/billing/reset?topic=orders&to=time&at={since}")
    assert "1 are passed over" in page or "passed over" in page
    await browser.post("/groups/billing/reset", topic="orders", to="time", at=str(since))
    assert sum(await offsets(admin)) == 5


async def test_what_is_no_place_is_said_so(browser, admin):
    page = await browser.get("/groups/billing/reset?topic=orders&to=time&at=soon", status=400)
    assert "is not a time" in page
    assert await offsets(admin) == [2, 2]
