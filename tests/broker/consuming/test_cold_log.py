"""Requests that speak of messages on the disk only: answered, and the loop has not waited for the disk."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from tests.broker.admin.test_member_call_processor import Consumer
from tests.broker.consuming.cold import forget_log, waits_of_this_thread

from pyromq.broker.broker import Broker
from pyromq.message import MessageQueue, SysFlag
from pyromq.names import HALF_TOPIC
from pyromq.record import decode, decode_all
from pyromq.remoting.bodies import ConsumerEntry, HeartbeatBody, Subscription, encode_body
from pyromq.remoting.headers import (
    BrokerState,
    BrokerStatistics,
    ConsumeDirectly,
    ConsumeStatistics,
    ConsumeTimeSpan,
    DeleteExpiredLog,
    DeleteExpiredLogResponse,
    EarliestStoreTime,
    EarliestStoreTimeResponse,
    EndTransaction,
    Heartbeat,
    ListHalfMessages,
    OffsetResponse,
    QueryConsumerOffset,
    QueryMessage,
    QueueEntries,
    ResetOffset,
    ResumeHalfMessage,
    SearchOffset,
    SendMessageBack,
    TopicStatistics,
    UpdateConsumerOffset,
    ViewMessage,
)
from pyromq.store.log import commit_log

pytestmark = pytest.mark.on_disk

QUEUES, MESSAGES = 2, 16
BODY = bytes(300_000)  # more than what comes from the disk along with a record's begin
HALF = "TRAN_MSG\x01true\x02PGROUP\x01p"


@pytest.fixture
def config(config):
    return replace(config, store=replace(config.store, segment_bytes=1 << 20))


@pytest.fixture
async def sent(config, clock, caller_to):
    """Offset ids of what was sent to a broker that is no more: one message a second, two queues in turn, a half one."""
    ids = []
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await caller.create_topic("orders", queues=QUEUES)
        for number in range(QUEUES * MESSAGES):
            text = f"KEYS\x01k{number}\x02price\x01{number}"
            ids.append((await caller.send("orders", BODY, queue_id=number % QUEUES, properties=text)).message_id)
            await clock.advance(1)
        ids.append((await caller.send("others", BODY, properties=HALF)).message_id)
        for _ in range(6):  # so that those are not beside where the log goes on
            await caller.send("fillers", BODY)
        await clock.advance(1)  # the index follows
    return ids


@pytest.fixture
async def cold(config, clock, sent, caller_to, monkeypatch):
    """A caller of a broker that was started anew, with none of these messages in memory; it is a consumer, too."""
    monkeypatch.setattr(commit_log, "RECENT_BYTES", 0)
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker, Consumer())
        subscription = Subscription(topic="orders", expression="price > 7", expression_type="SQL92", version=1)
        consumer = ConsumerEntry(group="g", subscriptions=[subscription])
        await caller.ask(Heartbeat(), encode_body(HeartbeatBody(client_id="one", consumers=[consumer])))
        for queue_id in range(QUEUES):
            commit = UpdateConsumerOffset(consumer_group="g", topic="orders", queue_id=queue_id, commit_offset=5)
            await caller.ask(commit)
        await write_once(caller)
        forget_log(broker.store)
        yield caller


async def write_once(caller):
    """Have all queues made that are written to below: files that are made count as waiting, too."""
    first = await caller.send("others")
    await caller.ask(SendMessageBack(offset=log_offset(first.message_id), group="g", delay_level=-1))
    half = await caller.send("others", properties=f"{HALF}\x02UNIQ_KEY\x01{1:032X}")
    await caller.ask(ResumeHalfMessage(message_id=half.message_id))
    await caller.ask(end_of(half.message_id, half.queue_offset))


@contextmanager
def without_waiting() -> Iterator[None]:
    """The loop, which is this thread's, reads nothing from the disk meanwhile."""
    before = waits_of_this_thread()
    yield
    assert waits_of_this_thread() == before


def queue(queue_id):
    return MessageQueue("orders", "broker-a", queue_id)


def log_offset(offset_id):
    return int(offset_id[-16:], 16)


def end_of(offset_id, half_queue_offset):
    return EndTransaction(
        producer_group="p",
        half_queue_offset=half_queue_offset,
        log_offset=log_offset(offset_id),
        decision=SysFlag.COMMIT,
        message_id="x",
    )


def stored_ms(clock, number, queue_id=0):
    """When a message of a queue was stored."""
    return clock.now_ms() - 1000 - (QUEUES * (MESSAGES - number) - queue_id) * 1000


# -- times


async def test_statistics_of_a_topic(cold, clock):
    with without_waiting():
        stats = await cold.body(TopicStatistics(topic="orders"))
    last_ms = [stats.queues[queue(each)].last_update_ms for each in range(QUEUES)]
    assert last_ms == [stored_ms(clock, MESSAGES - 1, each) for each in range(QUEUES)]


async def test_how_far_a_group_is(cold, clock):
    with without_waiting():
        stats = await cold.body(ConsumeStatistics(consumer_group="g"))
    last_ms = [stats.queues[queue(each)].last_ms for each in range(QUEUES)]
    assert last_ms == [stored_ms(clock, 4, each) for each in range(QUEUES)]


async def test_the_times_between_which_a_group_is(cold, clock):
    with without_waiting():
        spans = (await cold.body(ConsumeTimeSpan(topic="orders", group="g"))).spans
    assert [(each.min_ms, each.max_ms, each.consumed_ms) for each in spans] == [
        tuple(stored_ms(clock, number, queue_id) for number in (0, MESSAGES - 1, 4)) for queue_id in range(QUEUES)
    ]
    assert spans[0].delay_ms == clock.now_ms() - stored_ms(clock, 5)


async def test_the_state_of_the_broker(cold, clock):
    with without_waiting():
        state = (await cold.body(BrokerState())).table
    assert int(state["earliestMessageTimeStamp"]) == stored_ms(clock, 0)


async def test_whether_log_files_are_old_enough_to_go(cold):
    with without_waiting():
        response = await cold.ask(DeleteExpiredLog(older_than_hours=1))
    assert response.header(DeleteExpiredLogResponse).files == 0


async def test_how_long_a_message_waits_for_its_group(cold, clock):
    with without_waiting():
        fall = await cold.body(BrokerStatistics(stats_name="GROUP_GET_FALL_TIME", stats_key="0@orders@g"))
    assert fall.minute.sum == clock.now_ms() - stored_ms(clock, 5)


async def test_an_offset_by_time(cold, clock):
    asked = SearchOffset(topic="orders", queue_id=1, timestamp=stored_ms(clock, 9, 1))
    with without_waiting():
        response = await cold.ask(asked)
    assert response.header(OffsetResponse).offset == 9


async def test_the_time_of_a_queues_first_message(cold, clock):
    with without_waiting():
        response = await cold.ask(EarliestStoreTime(topic="orders", queue_id=1))
    assert response.header(EarliestStoreTimeResponse).timestamp == stored_ms(clock, 0, 1)


async def test_where_a_group_without_an_offset_begins(cold):
    with without_waiting():
        response = await cold.ask(QueryConsumerOffset(consumer_group="new", topic="orders", queue_id=0))
    assert response.header(OffsetResponse).offset == 0


async def test_a_reset_to_a_time(cold, clock):
    reset = ResetOffset(topic="orders", group="g", timestamp=stored_ms(clock, 3), force=True)
    with without_waiting():
        offsets = (await cold.body(reset)).offsets
    assert offsets[queue(0)] == 3


# -- single messages


async def test_a_message_by_its_place(cold, sent):
    with without_waiting():
        response = await cold.ask(ViewMessage(offset=log_offset(sent[7])))
    assert decode(response.body).properties["KEYS"] == "k7"


async def test_messages_by_their_key(cold):
    with without_waiting():
        response = await cold.ask(QueryMessage(topic="orders", key="k7", max_count=64, begin_ms=0, end_ms=1 << 60))
    assert [message.properties["KEYS"] for message in decode_all(response.body)] == ["k7"]


async def test_entries_of_a_queue(cold):
    with without_waiting():
        body = await cold.body(QueueEntries(topic="orders", queue_id=0, index=0, count=MESSAGES))
    assert len(body.entries) == MESSAGES


async def test_entries_of_a_queue_and_whether_a_filter_lets_them_pass(cold):
    asked = QueueEntries(topic="orders", queue_id=0, index=0, count=MESSAGES, consumer_group="g")
    with without_waiting():
        body = await cold.body(asked)
    assert [entry.accepted for entry in body.entries] == [QUEUES * number > 7 for number in range(MESSAGES)]


async def test_a_message_is_consumed_again(cold, sent):
    asked = ConsumeDirectly(consumer_group="g", client_id="one", message_id=sent[3])
    with without_waiting():
        result = await cold.body(asked)
    assert result.remark == f"broker-a: {BODY.decode()}"


async def test_a_message_is_sent_back(cold, sent):
    with without_waiting():
        await cold.ask(SendMessageBack(offset=log_offset(sent[3]), group="g", delay_level=-1))
    (dead,) = await cold.messages("%DLQ%g", offset=1)
    assert (dead.properties["KEYS"], dead.body) == ("k3", BODY)


async def test_a_transaction_is_committed(cold, sent):
    with without_waiting():
        await cold.ask(end_of(sent[-1], 0))
    (committed,) = await cold.messages("others", offset=2)
    assert committed.body == BODY


async def test_half_messages_are_listed(cold, sent):
    with without_waiting():
        listed = await cold.body(ListHalfMessages(count=10))
    assert [half.offset_message_id for half in listed.half_messages] == [sent[-1]]


async def test_a_half_message_is_to_be_checked_again(cold, sent):
    with without_waiting():
        await cold.ask(ResumeHalfMessage(message_id=sent[-1]))
    (copy,) = await cold.messages(HALF_TOPIC, offset=3)
    assert copy.body == BODY
