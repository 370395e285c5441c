"""Messages sent back by consumers: where they go, how long they wait, when they are dead letters, what is refused."""

import pytest

from pyromq.broker.consuming.send_back_processor import MAX_REASON
from pyromq.broker.members.consumer_groups import max_tries
from pyromq.errors import MessageRefused, StoreNotWritable
from pyromq.message import StoredMessage, SysFlag
from pyromq.names import SCHEDULE_TOPIC
from pyromq.remoting.bodies import GroupConfig, TopicConfig
from pyromq.remoting.command import Call
from pyromq.remoting.headers import BrokerStatistics, SendMessageBack


def back(message, *, group="g", delay_level=0, **changes):
    return SendMessageBack(offset=message.log_offset, group=group, delay_level=delay_level, **changes)


@pytest.fixture
async def message(caller):
    """A message as a consumer has pulled it."""
    await caller.create_topic("orders")
    await caller.send("orders", b"hello", queue_id=2, properties="TAGS\x01a\x02n\x017")
    (message,) = await caller.messages("orders", 2)
    return message


def stored(broker, **changes):
    """A message in the store with fields that no producer can choose freely."""
    message = StoredMessage(**({"topic": "orders", "stored_body": b"x", "born_address": bytes(8)} | changes))
    broker.store.append(message)
    return message


# -- another try


async def test_the_message_comes_again_in_the_groups_retry_topic(caller, message, clock):
    await caller.ask(back(message))
    await clock.advance(9.999)
    assert await caller.messages("%RETRY%g") == []
    await clock.advance(0.001)
    (copy,) = await caller.messages("%RETRY%g")
    assert (copy.body, copy.reconsume_times, copy.flag) == (b"hello", 1, message.flag)
    assert (copy.born_ms, copy.born_address) == (message.born_ms, message.born_address)
    assert copy.properties == {
        "TAGS": "a",
        "n": "7",
        "CLUSTER": "DefaultCluster",
        "RETRY_TOPIC": "orders",
        "ORIGIN_MESSAGE_ID": message.offset_message_id,
        "WAIT": "false",
        "DELAY": "3",
        "REAL_TOPIC": "%RETRY%g",
        "REAL_QID": "0",
    }


@pytest.mark.parametrize(
    ("tried", "asked", "level"), [(0, 0, 3), (1, 0, 4), (14, 0, 17), (15, 0, 18), (3, 1, 1), (3, 18, 18), (3, 30, 18)]
)
async def test_each_try_waits_a_level_longer_unless_the_consumer_says_how_long(broker, caller, tried, asked, level):
    await caller.ask(back(stored(broker, reconsume_times=tried), delay_level=asked))
    (parked,) = await caller.messages(SCHEDULE_TOPIC, level - 1)
    assert (parked.properties["DELAY"], parked.reconsume_times) == (str(level), tried + 1)


async def test_a_second_retry_remembers_the_first_topic_and_id(caller, message, clock):
    await caller.ask(back(message, delay_level=1))
    await clock.advance(1)
    (first,) = await caller.messages("%RETRY%g")
    await caller.ask(back(first, delay_level=1))
    await clock.advance(1)
    _, second = await caller.messages("%RETRY%g")
    assert second.reconsume_times == 2
    assert second.original_topic == "orders"
    assert second.properties["ORIGIN_MESSAGE_ID"] == message.offset_message_id


async def test_retries_spread_over_the_groups_retry_queues(broker, caller, message, clock):
    broker.groups.put(GroupConfig(name="g", retry_queues=3))
    for _ in range(40):
        await caller.ask(back(message, delay_level=1))
    await clock.advance(1)
    found = [len(await caller.messages("%RETRY%g", queue_id)) for queue_id in range(3)]
    assert sum(found) == 40
    assert all(found)
    assert broker.topics.find("%RETRY%g").read_queues == 3


async def test_a_compressed_body_is_passed_on_as_it_is(broker, caller, clock):
    flags = SysFlag.COMPRESSED | SysFlag.ZLIB | SysFlag.COMMIT
    await caller.ask(back(stored(broker, stored_body=b"no zlib at all", sys_flag=flags), delay_level=1))
    await clock.advance(1)
    (copy,) = await caller.messages("%RETRY%g")
    assert (copy.stored_body, copy.sys_flag) == (b"no zlib at all", flags)


# -- the end


@pytest.mark.parametrize(("tried", "most", "dead"), [(15, None, False), (16, None, True), (2, 3, False), (3, 3, True)])
async def test_after_the_last_try_it_is_a_dead_letter(broker, caller, tried, most, dead):
    await caller.ask(back(stored(broker, reconsume_times=tried), max_reconsume_times=most))
    letters = await caller.messages("%DLQ%g")
    assert len(letters) == dead
    for letter in letters:
        assert (letter.reconsume_times, letter.properties["DELAY"]) == (tried + 1, "0")
        assert letter.properties["RETRY_TOPIC"] == "orders"


async def test_the_groups_own_limit_counts_where_the_consumer_names_none(broker, caller):
    broker.groups.put(GroupConfig(name="g", retry_max_times=1))
    await caller.ask(back(stored(broker, reconsume_times=1)))
    assert len(await caller.messages("%DLQ%g")) == 1


def test_the_limit_of_a_client_before_3_4_9_does_not_count():
    header = SendMessageBack(offset=0, group="g", delay_level=0, max_reconsume_times=1)
    group = GroupConfig(name="g", retry_max_times=5)
    assert max_tries(group, header, Call(code=36, version=120)) == 5
    assert max_tries(group, header, Call(code=36, version=121)) == 1


async def test_a_negative_level_means_dead_letter_at_once(caller, message):
    await caller.ask(back(message, delay_level=-1))
    assert [letter.body for letter in await caller.messages("%DLQ%g")] == [b"hello"]


# -- why


async def test_the_reason_is_kept_with_the_message(caller, message):
    await caller.ask(back(message, delay_level=-1, reason="ValueError: no such\x01order\x02 7 "))
    (letter,) = await caller.messages("%DLQ%g")
    assert letter.properties["RETRY_REASON"] == "ValueError: no such order  7"


async def test_a_later_reason_replaces_the_earlier_one_and_none_leaves_it(caller, message, clock):
    reasons = []
    current = message
    for reason in ("first", None, "third"):
        await caller.ask(back(current, delay_level=1, reason=reason))
        await clock.advance(1)
        current = (await caller.messages("%RETRY%g"))[-1]
        reasons.append(current.properties["RETRY_REASON"])
    assert reasons == ["first", "first", "third"]


async def test_a_long_reason_is_cut_and_left_out_where_there_is_no_room(broker, caller, message):
    await caller.ask(back(message, delay_level=-1, reason="x" * 5_000))
    await caller.ask(back(stored(broker, property_text="n\x01" + "v" * 32_000), delay_level=-1, reason="x"))
    cut, without = await caller.messages("%DLQ%g")
    assert cut.properties["RETRY_REASON"] == "x" * MAX_REASON
    assert "RETRY_REASON" not in without.properties


# -- refusals


async def test_an_unknown_group_that_may_not_be_created_is_refused(broker, caller, message):
    broker.config.auto_create_group = False
    response = await caller.ask(back(message), code=26)
    assert response.remark.startswith("subscription group not exist, g \nSee http://rocketmq.apache.org/docs/faq/")


async def test_a_broker_without_write_permission_refuses(broker, caller, message):
    broker.config.permission = 4
    response = await caller.ask(back(message), code=16)
    assert response.remark == "the broker[127.0.0.1] sending message is forbidden"


async def test_a_group_without_retry_queues_wants_no_retries(broker, caller, message):
    broker.groups.put(GroupConfig(name="g", retry_queues=0))
    end = broker.store.max_log_offset
    await caller.ask(back(message))
    assert broker.store.max_log_offset == end


async def test_a_retry_topic_that_may_not_be_written_refuses(broker, caller, message):
    broker.topics.put(TopicConfig(name="%RETRY%g", read_queues=1, write_queues=1, permission=4))
    response = await caller.ask(back(message), code=16)
    assert response.remark == "the topic[%RETRY%g] sending message is forbidden"


async def test_without_a_message_there_is_nothing_to_retry(caller, message):
    response = await caller.ask(SendMessageBack(offset=12_345, group="g", delay_level=0), code=1)
    assert response.remark == "look message by offset failed, 12345"


@pytest.mark.parametrize("error", [StoreNotWritable("the disk is full"), MessageRefused("too large")])
async def test_what_cannot_be_stored_is_refused_so_that_the_consumer_sends_a_copy(
    broker, caller, message, monkeypatch, error
):
    def refuse(message):
        raise error

    monkeypatch.setattr(broker.store, "append", refuse)
    response = await caller.ask(back(message), code=1)
    assert str(error) in response.remark


# -- counted


async def test_send_backs_are_counted_by_topic_and_group(broker, caller, message):
    await caller.ask(back(message))
    broker.statistics.sample()
    await caller.ask(BrokerStatistics(stats_name="SNDBCK_PUT_NUMS", stats_key="orders@g"))
