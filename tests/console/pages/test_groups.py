"""Groups: the list, one group, its settings, and resetting offsets."""

import re

import pytest

from pyromq.console.pages.group_pages import OffsetMove, ResetPlan
from pyromq.errors import GroupNotFound
from pyromq.message import Message, MessageQueue
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


async def test_a_group_that_pops_shows_what_is_in_flight(browser, admin, cluster):
    assert "in flight" not in await browser.get("/groups/billing")
    worker = await cluster.simple_consumer("billing")
    worker.subscribe("orders")
    received = await worker.receive(3, wait_seconds=5)
    await worker.ack(received[0])
    page = await browser.get("/groups/billing")
    assert f"Of the lag in flight</span> <b>{len(received) - 1}</b>" in page
    assert sum(map(int, re.findall(r'<small class="muted">(\d+) in flight</small>', page))) == len(received) - 1


async def test_a_group_is_created_changed_and_deleted(browser, admin):
    assert "Group shipping is created." in await browser.post(
        "/new-group", name="shipping", retries="3", retry_queues="1"
    )
    await browser.post("/groups/shipping/alter", retries="5", retry_queues="2")
    config = (await admin.group_configs("shipping"))["broker-a"]
    assert (config.retry_max_times, config.retry_queues, config.consume_enabled) == (5, 2, False)
    assert "Nothing was deleted" in await browser.post("/groups/shipping/delete", name="x")
    assert "Group shipping is deleted." in await browser.post("/groups/shipping/delete", name="shipping")
    with pytest.raises(GroupNotFound):
        await admin.alter_group("shipping", retries=1)


async def test_a_reset_is_shown_before_it_is_done(browser, admin):
    page = await browser.get("/groups/billing/reset?topic=orders&to=begin")
    assert "The reset redelivers 4 messages of orders." in page and "8 messages are then left" in page
    assert 'data-confirm="Reset billing? The reset redelivers 4 messages of orders.' in page
    assert await offsets(admin) == [2, 2]
    page = await browser.post("/groups/billing/reset", topic="orders", to="begin")
    assert "The reset of billing redelivers 4 messages of orders, in 2 queues." in page
    assert await offsets(admin) == [0, 0]


async def test_a_reset_that_skips_everything_is_red(browser, admin):
    page = await browser.get("/groups/billing/reset?topic=orders&to=end")
    assert 'class="notice failed" role="status"><b>The reset skips all 4 unconsumed messages of orders.' in page
    assert "Nothing is then left to consume." in page
    assert 'class="notice note" role="status"' in await browser.get(
        "/groups/billing/reset?topic=orders&to=offset&offset=3"
    )


async def test_a_reset_that_changes_nothing_says_so(browser, admin):
    page = await browser.get("/groups/billing/reset?topic=orders&to=offset&offset=2")
    assert "The reset skips and redelivers nothing of orders." in page
    page = await browser.get("/groups/audit/reset?topic=orders&to=end")
    assert "The reset sets the first offsets of orders." in page


def test_only_stored_messages_count_as_skipped_and_redelivered():
    queue = MessageQueue("orders", "broker-a", 0)
    moves = [OffsetMove(queue, 5, 20, 10, 30), OffsetMove(queue, 40, 25, 10, 30), OffsetMove(queue, None, 25, 10, 30)]
    assert [(each.skipped, each.redelivered) for each in moves] == [(10, 0), (0, 5), (0, 0)]
    plan = ResetPlan([*moves, OffsetMove(queue, 0, 1_234_567, 0, 1_234_568)], "orders", "end", None)
    assert plan.effect == "skips 1,234,577 messages and redelivers 5 messages"
    assert plan.left == 10 + 5 + 5 + 1


@pytest.mark.parametrize(
    ("to", "offset", "expected"), [("end", "", [4, 4]), ("offset", "3", [3, 3]), ("offset", "99", [4, 4])]
)
async def test_a_group_goes_on_at(browser, admin, to, offset, expected):
    await browser.post("/groups/billing/reset", topic="orders", to=to, offset=offset)
    assert await offsets(admin) == expected


@pytest.mark.parametrize("by_button", [False, True])
async def test_a_group_goes_on_at_a_time(browser, admin, cluster, by_button):
    since = cluster.clock.now_ms() - 30_000  # the last three were stored since then
    browser.console.clock = cluster.clock
    fields = "to=end&last=30s" if by_button else f"to=time&at={since}"
    page = await browser.get(f"/groups/billing/reset?topic=orders&{fields}")
    assert "The reset skips 1 message of orders." in page
    assert f'name="at" value="{since}"' in page  # what is shown is what is done, however long somebody thinks
    await browser.post("/groups/billing/reset", topic="orders", to="time", at=str(since))
    assert sum(await offsets(admin)) == 5


async def test_members_that_are_online_are_notified(browser, admin, cluster):
    consumer = await cluster.push_consumer("billing")
    consumer.subscribe("orders", lambda messages: None)
    while not (await admin.group_state("billing")).members:
        pass
    page = await browser.get("/groups/billing/reset?topic=orders&to=end")
    assert "1 member is online" in page
    page = await browser.post("/groups/billing/reset", topic="orders", to="begin")
    assert "Its members were notified." in page
    page = await browser.post("/groups/billing/reset", topic="orders", to="offset", offset="1")
    assert "members of billing are online" in page


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("to=time&at=soon", "is not a time"),
        ("to=time", "the time is missing"),
        ("to=offset&offset=many", "is not an offset"),
        ("to=nowhere", "is unknown"),
    ],
)
async def test_what_is_no_place_is_said_so(browser, admin, query, said):
    page = await browser.get(f"/groups/billing/reset?topic=orders&{query}", status=400)
    assert said in page and 'value="orders"' in page
    assert await offsets(admin) == [2, 2]


async def test_a_topic_that_does_not_exist_is_said_beside_the_form(browser, admin):
    page = await browser.get("/groups/billing/reset?topic=nothing&to=end", status=404)
    assert "nothing" in page and 'name="topic"' in page
