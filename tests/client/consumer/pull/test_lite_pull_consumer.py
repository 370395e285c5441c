"""The async pull consumer at a real broker: positions, commits, waiting, filters."""

import asyncio
import time

import pytest
from tests.waiting import PATIENCE_SECONDS, until

from pyromq.client.client_config import ConsumeFrom, ConsumerConfig
from pyromq.client.consumer.pull.lite_pull_consumer import AsyncPullConsumer
from pyromq.client.consumer.pulling import PullStatus
from pyromq.errors import ConsumerNotOnline, IllegalName, NoPermission, NotRunning, TopicNotFound, UsageError
from pyromq.message import Message
from pyromq.record import decode_all


async def fill(cluster, count, topic="orders", **fields):
    """Store messages 0 ... count - 1 in one queue; return it."""
    producer = await cluster.producer()
    results = [await producer.send(Message(topic, b"%d" % n, **fields), ordering_key="k") for n in range(count)]
    return results[0].queue


async def reading(cluster, queue, group="readers", **config):
    consumer = await cluster.consumer(group, config=ConsumerConfig(**config))
    await consumer.assign([queue])
    return consumer


def bodies(messages):
    return [int(m.body) for m in messages]


async def test_messages_come_in_order_with_their_queue(cluster):
    queue = await fill(cluster, 3)
    consumer = await reading(cluster, queue)
    found = await consumer.poll()
    assert bodies(found) == [0, 1, 2]
    assert {m.queue for m in found} == {queue}
    assert consumer.position(queue) == 3


async def test_a_consumer_that_was_given_no_queues_says_so(cluster):
    async with AsyncPullConsumer("readers", cluster.namesrv) as consumer, asyncio.timeout(PATIENCE_SECONDS):
        with pytest.raises(UsageError, match="subscribe to a topic or assign some first"):
            await anext(consumer)
        with pytest.raises(UsageError, match="of group readers"):
            await consumer.poll()


async def test_who_assigned_no_queue_yet_waits_for_one(cluster):
    queue = await fill(cluster, 1)
    consumer = await cluster.consumer("readers", config=ConsumerConfig(consume_from=ConsumeFrom.FIRST))
    await consumer.assign([])
    assert await consumer.poll(0.01) == []
    waiting = asyncio.ensure_future(anext(consumer))
    await consumer.assign([queue])
    assert (await asyncio.wait_for(waiting, PATIENCE_SECONDS)).queue_offset == 0


async def test_polls_wait_for_a_message(cluster):
    queue = await fill(cluster, 1)
    consumer = await reading(cluster, queue)
    await consumer.poll()
    polling = asyncio.ensure_future(consumer.poll(5))
    await asyncio.sleep(0)
    await fill(cluster, 1)
    assert len(await polling) == 1


async def test_a_poll_without_messages_returns_nothing_at_its_timeout(cluster):
    queue = await fill(cluster, 1)
    consumer = await reading(cluster, queue)
    await consumer.poll()
    begin = time.monotonic()
    assert await consumer.poll(0.05) == []
    assert time.monotonic() - begin > 0.04


async def test_committed_messages_do_not_come_again(cluster):
    queue = await fill(cluster, 3)
    async with AsyncPullConsumer("g", cluster.namesrv, config=ConsumerConfig(auto_commit=False)) as first:
        await first.assign([queue])
        await first.poll()
        await first.commit()
        assert await first.committed(queue) == 3
    await fill(cluster, 1)
    second = await reading(cluster, queue, "g")
    assert [m.queue_offset for m in await second.poll()] == [3]


async def test_a_queue_made_anew_is_read_from_its_begin(cluster, caplog):
    queue = await fill(cluster, 3)
    consumer = await reading(cluster, queue)
    assert bodies(await consumer.poll()) == [0, 1, 2]
    await consumer.close()
    # The queue, not the offset, as a broker of 4.9 does.
    await asyncio.wrap_future(cluster.broker.store.delete_topic("orders"))
    producer = await cluster.producer("anew")
    await producer.send(Message("orders", b"7"), queue=queue)
    again = await reading(cluster, queue)
    assert bodies(await again.poll()) == [7]
    assert again.position(queue) == 1
    await again.commit()
    assert await again.committed(queue) == 1
    assert (
        "offset 3 of queue 3 of orders at broker-a is outside the queue, which has 0 to 1; continuing at 0"
        in caplog.text
    )


async def test_closing_commits_what_was_handed_out(cluster):
    queue = await fill(cluster, 3)
    async with AsyncPullConsumer("g", cluster.namesrv) as consumer:
        await consumer.assign([queue])
        async for message in consumer:
            if message.body == b"1":
                break
    other = await cluster.consumer("g")
    assert await other.committed(queue) == 2


async def test_a_pull_without_wanted_messages_commits_none_that_iteration_has_left(cluster):
    queue = await fill(cluster, 3, tags="a")
    async with AsyncPullConsumer("g", cluster.namesrv) as consumer:
        await consumer.assign([queue], tags="a")
        async for _ in consumer:
            break
        await fill(cluster, 5, tags="b")
        await cluster.clock.advance(20)  # the held pull ends behind these
        await until(lambda: consumer._assigned[queue].fetch_offset == 8)
    other = await cluster.consumer("g")
    assert await other.committed(queue) == 1


async def test_an_exception_leaves_the_latest_message_uncommitted(cluster):
    queue = await fill(cluster, 3)
    with pytest.raises(ZeroDivisionError):
        async with AsyncPullConsumer("g", cluster.namesrv) as consumer:
            await consumer.assign([queue])
            async for message in consumer:
                1 / (1 - int(message.body))
    other = await cluster.consumer("g")
    assert await other.committed(queue) == 1


async def test_without_auto_commit_nothing_is_committed(cluster):
    queue = await fill(cluster, 3)
    async with AsyncPullConsumer("g", cluster.namesrv, config=ConsumerConfig(auto_commit=False)) as consumer:
        await consumer.assign([queue])
        assert len(await consumer.poll()) == 3
    other = await cluster.consumer("g")
    assert await other.committed(queue) is None


async def test_polls_commit_what_earlier_polls_handed_out(cluster):
    queue = await fill(cluster, 3)
    consumer = await reading(cluster, queue, auto_commit_seconds=0.01)
    await consumer.poll()
    await asyncio.sleep(0.02)
    assert await consumer.committed(queue) is None
    await consumer.poll(0.01)
    assert await consumer.committed(queue) == 3


async def test_seeking_by_offset_begin_end_and_time(cluster):
    queue = await fill(cluster, 3)
    await cluster.clock.advance(10)
    await fill(cluster, 3)
    consumer = await reading(cluster, queue)
    await consumer.seek(queue, 2)
    assert [m.queue_offset for m in await consumer.poll()] == [2, 3, 4, 5]
    await consumer.seek_to_begin(queue)
    assert [m.queue_offset for m in await consumer.poll()] == [0, 1, 2, 3, 4, 5]
    await consumer.seek_to_end(queue)
    assert (consumer.position(queue), await consumer.poll(0.02)) == (6, [])
    await consumer.seek_to_time(queue, cluster.clock.now_ms())
    assert [m.queue_offset for m in await consumer.poll()] == [3, 4, 5]


@pytest.mark.parametrize("offset", [-1, 4])
async def test_seeking_outside_the_queue_is_refused(cluster, offset):
    queue = await fill(cluster, 3)
    consumer = await reading(cluster, queue)
    with pytest.raises(UsageError, match=f"offset {offset} .* is outside the queue: 0 to 3"):
        await consumer.seek(queue, offset)


async def test_a_paused_queue_hands_out_nothing_until_resumed(cluster):
    queue = await fill(cluster, 1)
    consumer = await reading(cluster, queue)
    consumer.pause([queue])
    assert await consumer.poll(0.05) == []
    consumer.resume([queue])
    assert bodies(await consumer.poll()) == [0]


async def test_a_paused_queue_keeps_what_iteration_has_left(cluster):
    queue = await fill(cluster, 3)
    consumer = await reading(cluster, queue)
    async for _ in consumer:
        break
    consumer.pause([queue])
    assert await consumer.poll(0.05) == []
    consumer.resume([queue])
    assert bodies(await consumer.poll()) == [1, 2]


async def test_only_messages_with_the_wanted_tags_come(cluster):
    queue = await fill(cluster, 1, tags="a")
    for tags in ("b", "Aa", "BB"):  # the last two have the same hash: the broker lets both through
        await fill(cluster, 1, tags=tags)
    consumer = await cluster.consumer()
    await consumer.assign([queue], tags="a || Aa")
    assert [m.tags for m in await consumer.poll()] == ["a", "Aa"]
    assert consumer.position(queue) == 4


async def test_queues_of_a_filter_that_matches_nothing_make_progress(cluster):
    queue = await fill(cluster, 5, tags="a")
    consumer = await cluster.consumer()
    await consumer.assign([queue], tags="b")
    await until(lambda: consumer.position(queue) == 5)
    assert await consumer.poll(0.01) == []


async def test_several_queues_take_turns(cluster):
    producer = await cluster.producer()
    for n in range(40):
        await producer.send(Message("orders", b"%d" % n))
    consumer = await cluster.consumer(config=ConsumerConfig(pull_count=2))
    await consumer.assign(await consumer.queues("orders"))
    seen = [(await consumer.poll())[0].queue_id for _ in range(8)]
    assert set(seen) == {0, 1, 2, 3}
    found = 16
    while found < 40:
        found += len(await consumer.poll())
    assert await consumer.poll(0.1) == []


async def test_pulling_ahead_is_bounded(cluster):
    queue = await fill(cluster, 20)
    consumer = await reading(cluster, queue, pull_count=2, buffered_messages=4)
    await consumer.poll()
    for _ in range(10):  # questions answered in order after whatever pulls are under way
        await consumer.max_offset(queue)
    assert consumer._assigned[queue].ready_count == 4
    assert [int(m.body) for _ in range(9) for m in await consumer.poll()] == list(range(2, 20))


@pytest.mark.parametrize(
    ("consume_from", "start"), [(None, 0), (ConsumeFrom.FIRST, 0), (ConsumeFrom.LAST, 3), (ConsumeFrom.TIME, 2)]
)
async def test_a_new_group_begins_in_a_young_queue_where_it_is_asked_to(cluster, consume_from, start):
    await fill(cluster, 2)
    await cluster.clock.advance(1.0)
    queue = await fill(cluster, 1)
    since = cluster.clock.now_ms() - 500
    consumer = await reading(cluster, queue, "new", consume_from=consume_from, consume_from_ms=since)
    assert consumer.position(queue) == start


async def test_a_time_within_a_millisecond_of_many_messages_is_their_first(cluster):
    await fill(cluster, 3)
    await cluster.clock.advance(1.0)
    queue = await fill(cluster, 40)
    now = cluster.clock.now_ms()
    at_once = await reading(cluster, queue, "a", consume_from=ConsumeFrom.TIME, consume_from_ms=now)
    later = await reading(cluster, queue, "b", consume_from=ConsumeFrom.TIME, consume_from_ms=now + 1)
    assert (at_once.position(queue), later.position(queue)) == (3, 43)


async def test_where_a_group_began_is_stored_at_once(cluster):
    """Else, after a crash of the first member, the next one would begin behind what came meanwhile."""
    queue = await fill(cluster, 3)
    config = ConsumerConfig(consume_from=ConsumeFrom.LAST)
    first = await cluster.consumer("new", config=config)
    await first.assign([queue])
    await fill(cluster, 2)  # and the first one stores nothing more
    second = await cluster.consumer("new", config=config)
    await second.assign([queue])
    assert second.position(queue) == 3


async def test_who_commits_by_itself_stores_nothing_by_beginning(cluster):
    queue = await fill(cluster, 3)
    consumer = await reading(cluster, queue, "new", consume_from=ConsumeFrom.LAST, auto_commit=False)
    assert await consumer.committed(queue) is None


async def test_assigning_again_keeps_queues_that_stay(cluster):
    queue = await fill(cluster, 3)
    consumer = await reading(cluster, queue)
    await consumer.poll()
    others = await consumer.queues("orders")
    await consumer.assign(others)
    assert consumer.position(queue) == 3
    assert consumer.assignment == others
    await consumer.assign([])
    assert consumer.assignment == []
    assert await consumer.committed(queue) == 3


async def test_a_queue_that_is_not_assigned_has_no_position(cluster):
    queue = await fill(cluster, 1)
    consumer = await cluster.consumer()
    with pytest.raises(UsageError, match="is not assigned"):
        consumer.position(queue)


async def test_one_direct_pull_brings_records_and_bounds(cluster):
    queue = await fill(cluster, 5)
    consumer = await cluster.consumer()
    result = await consumer.pull(queue, 1, 3)
    assert (result.status, result.next_offset, result.min_offset, result.max_offset) == (PullStatus.FOUND, 4, 0, 5)
    assert bodies(result.messages) == bodies(decode_all(result.raw)) == [1, 2, 3]


async def test_one_direct_pull_says_why_it_brings_nothing(cluster):
    queue = await fill(cluster, 5, tags="a")
    consumer = await cluster.consumer()
    assert (await consumer.pull(queue, 5)).status is PullStatus.NO_NEW_MESSAGE
    assert (await consumer.pull(queue, 0, tags="b")).status is PullStatus.NO_MATCH
    moved = await consumer.pull(queue, 99)
    assert (moved.status, moved.next_offset) == (PullStatus.OFFSET_MOVED, 5)


async def test_a_direct_pull_waits_at_the_broker(cluster):
    queue = await fill(cluster, 1)
    consumer = await cluster.consumer()
    pulling = asyncio.ensure_future(consumer.pull(queue, 1, wait_seconds=10))
    await asyncio.sleep(0.01)
    await fill(cluster, 1)
    assert (await pulling).status is PullStatus.FOUND


async def test_bounds_and_offset_by_time(cluster):
    queue = await fill(cluster, 2)
    await cluster.clock.advance(5)
    await fill(cluster, 1)
    consumer = await cluster.consumer()
    assert (await consumer.min_offset(queue), await consumer.max_offset(queue)) == (0, 3)
    assert await consumer.offset_by_time(queue, cluster.clock.now_ms()) == 2


async def test_a_no_of_the_broker_reaches_the_poll(cluster):
    queue = await fill(cluster, 1)
    consumer = await reading(cluster, queue, retry_seconds=0.01)
    await consumer.poll()
    await (await cluster.admin()).alter_topic("orders", permission="w")
    await consumer.seek_to_begin(queue)
    with pytest.raises(NoPermission):
        await consumer.poll()


async def test_an_unknown_topic_has_no_queues(cluster):
    consumer = await cluster.consumer()
    with pytest.raises(TopicNotFound, match="No topic route info"):
        await consumer.queues("nothing")


async def test_administrators_see_the_consumer_until_it_closes(cluster):
    queue = await fill(cluster, 1)
    admin = await cluster.admin()
    async with AsyncPullConsumer("g", cluster.namesrv) as consumer:
        await consumer.assign([queue], tags="a||b")
        seen = await admin.consumer_connection("g")
        assert seen.consume_type == "CONSUME_ACTIVELY"
        assert seen.subscriptions["orders"].tags == ["a", "b"]
        assert len(seen.connections) == 1
    with pytest.raises(ConsumerNotOnline):
        await admin.consumer_connection("g")


async def test_an_administrator_moves_a_running_consumer(cluster):
    queue = await fill(cluster, 3)
    consumer = await reading(cluster, queue, "g")
    await consumer.poll()
    await consumer.commit()
    for other in await consumer.queues("orders"):  # a reset needs a stored offset of every queue
        await (await cluster.admin()).commit_offset("g", other, 3 if other == queue else 0)
    moved = await (await cluster.admin()).reset_offset("g", "orders", 0)
    assert moved[queue] == 0
    assert bodies(await consumer.poll()) == [0, 1, 2]


@pytest.mark.parametrize("group", ["", "DEFAULT_CONSUMER", "a b"])
def test_an_illegal_group_is_refused(group):
    with pytest.raises(IllegalName):
        AsyncPullConsumer(group)


async def test_a_consumer_that_is_not_running_says_so(cluster):
    consumer = AsyncPullConsumer("g", cluster.namesrv)
    with pytest.raises(NotRunning):
        await consumer.poll()
    async with consumer:
        pass
    with pytest.raises(NotRunning):
        await consumer.queues("orders")


async def test_iteration_ends_when_the_consumer_is_closed(cluster):
    queue = await fill(cluster, 1)
    consumer = await reading(cluster, queue)

    async def count():
        return [int(m.body) async for m in consumer]

    counting = asyncio.ensure_future(count())
    while consumer.position(queue) != 1:
        await asyncio.sleep(0)
    await consumer.close()
    assert await counting == [0]


async def test_poll_after_iteration_goes_on_where_it_stopped(cluster):
    queue = await fill(cluster, 3)
    consumer = await reading(cluster, queue)
    async for _ in consumer:
        break
    assert bodies(await consumer.poll()) == [1, 2]


async def test_a_seek_drops_what_iteration_has_left(cluster):
    queue = await fill(cluster, 3)
    consumer = await reading(cluster, queue)
    assert (await anext(consumer)).body == b"0"
    await consumer.seek(queue, 0)
    assert (await anext(consumer)).body == b"0"


async def test_a_queue_that_is_no_longer_assigned_hands_out_nothing(cluster):
    queue = await fill(cluster, 3)
    consumer = await reading(cluster, queue)
    await anext(consumer)
    await consumer.assign([])
    assert consumer.next_buffered() is None
    assert await consumer.poll(0.05) == []


async def test_given_offsets_are_committed_whatever_was_handed_out(cluster):
    queue = await fill(cluster, 3)
    consumer = await reading(cluster, queue, auto_commit=False)
    other = queue._replace(queue_id=queue.queue_id ^ 1)
    producer = await cluster.producer()
    for _ in range(7):
        await producer.send(Message("orders", b"1"), queue=other)

    await consumer.commit({queue: 2, other: 7})

    assert (await consumer.committed(queue), await consumer.committed(other)) == (2, 7)


@pytest.mark.parametrize("offset", [-3, 4])
@pytest.mark.parametrize("assigned", [False, True])
async def test_offsets_that_no_queue_has_are_refused_and_nothing_is_committed(cluster, offset, assigned):
    queue = await fill(cluster, 3)
    other = queue._replace(queue_id=queue.queue_id ^ 1)
    consumer = await reading(cluster, queue if assigned else other, auto_commit=False)

    with pytest.raises(
        UsageError, match=rf"offset {offset} of .* cannot be committed: (it is neg|the queue ends at 3)"
    ):
        await consumer.commit({other: 0, queue: offset})
    assert await consumer.committed(queue) is None
    await consumer.commit({queue: 3})  # behind its last message
    assert await consumer.committed(queue) == 3


async def test_a_listener_is_told_the_queues_of_a_topic_when_they_change(cluster):
    admin = await cluster.admin()
    await admin.create_topic("orders", queues=2)
    consumer = await cluster.consumer(config=ConsumerConfig(route_refresh_seconds=0.01))
    told: asyncio.Queue = asyncio.Queue()

    queues = await consumer.watch_queues("orders", told.put_nowait)
    await admin.create_topic("orders", queues=3, replace=True)
    more = await asyncio.wait_for(told.get(), PATIENCE_SECONDS)

    assert ([q.queue_id for q in queues], [q.queue_id for q in more]) == ([0, 1], [0, 1, 2])


async def test_assigning_can_be_the_listener(cluster):
    admin = await cluster.admin()
    await admin.create_topic("orders", queues=1)
    consumer = await cluster.consumer(config=ConsumerConfig(route_refresh_seconds=0.01))
    await consumer.assign(await consumer.watch_queues("orders", consumer.assign))

    await admin.create_topic("orders", queues=2, replace=True)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(consumer.assignment) < 2:
            await asyncio.sleep(0.005)


async def test_of_assignments_at_the_same_time_the_later_one_holds(cluster):
    producer = await cluster.producer()
    sent = [await producer.send(Message("orders", b"1")) for _ in range(4)]
    queues = sorted(each.queue for each in sent)
    consumer = await cluster.consumer(config=ConsumerConfig(consume_from=ConsumeFrom.FIRST))
    await consumer.assign(queues)
    for _ in queues:
        assert await consumer.poll(PATIENCE_SECONDS)
    await asyncio.gather(consumer.assign(queues[:2]), consumer.assign(queues[1:3]))
    assert consumer.assignment == queues[1:3]


async def test_a_failing_listener_is_logged_and_told_the_next_change(cluster, caplog):
    admin = await cluster.admin()
    await admin.create_topic("orders", queues=1)
    consumer = await cluster.consumer(config=ConsumerConfig(route_refresh_seconds=0.01))
    told: asyncio.Queue = asyncio.Queue()

    async def listen(queues):
        told.put_nowait(len(queues))
        raise ValueError("on purpose")

    await consumer.watch_queues("orders", listen)
    for count in (2, 3):
        await admin.create_topic("orders", queues=count, replace=True)
        assert await asyncio.wait_for(told.get(), PATIENCE_SECONDS) == count
    assert "the listener for the queues of topic orders failed" in caplog.text


async def test_an_ended_watch_tells_nothing(cluster):
    admin = await cluster.admin()
    await admin.create_topic("orders", queues=1)
    consumer = await cluster.consumer(config=ConsumerConfig(route_refresh_seconds=0.01))
    told, later = [], asyncio.Queue()

    await consumer.watch_queues("orders", told.append)
    consumer.unwatch_queues("orders")
    await consumer.watch_queues(await other_topic(admin), later.put_nowait)
    await admin.create_topic("orders", queues=2, replace=True)
    await admin.create_topic("other", queues=2, replace=True)

    await asyncio.wait_for(later.get(), PATIENCE_SECONDS)
    assert told == []


async def other_topic(admin):
    await admin.create_topic("other", queues=1)
    return "other"


async def test_queues_of_an_unknown_topic_cannot_be_watched(cluster):
    consumer = await cluster.consumer()
    with pytest.raises(TopicNotFound):
        await consumer.watch_queues("nowhere", print)
