"""Half messages: what is stored, what decisions do and are refused, what is listed and resumed."""

import asyncio
from dataclasses import replace

import pytest
from tests.broker.folders import killed
from tests.broker.headers import batch_header, pull_header, send_header
from tests.broker.transactions.transactions import COMMIT, ROLLBACK, UNKNOWN, numbers_done, queue
from tests.waiting import until

from pyromq.broker.broker import Broker
from pyromq.broker.confirmation import ReplicaRule
from pyromq.errors import StoreNotWritable
from pyromq.message import StoredMessage, SysFlag
from pyromq.names import HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC, TRANSACTION_GIVE_UP_TOPIC
from pyromq.record import BatchMember, decode_all, encode_batch
from pyromq.remoting.headers import (
    ListHalfMessages,
    ResumeHalfMessage,
)
from pyromq.store.store_config import FlushMode

# -- half messages


async def test_a_half_message_is_stored_as_upstream_does_and_nobody_sees_it(broker, producer):
    sent = await producer.send(more="\x02WAIT\x01true\x02TAGS\x01a")
    assert await producer.visible() == []
    (half,) = await producer.caller.messages(HALF_TOPIC)
    assert (sent.queue_id, sent.queue_offset, sent.message_id) == (1, 0, half.offset_message_id)
    assert (half.body, half.sys_flag, half.flag, half.queue_id) == (b"hello", 0, 7, 0)
    assert half.properties == {
        "TRAN_MSG": "true",
        "PGROUP": "p",
        "WAIT": "true",
        "TAGS": "a",
        "UNIQ_KEY": "0" * 32,
        "CLUSTER": "DefaultCluster",
        "REAL_TOPIC": "orders",
        "REAL_QID": "1",
    }


async def test_half_messages_may_be_switched_off(broker, producer):
    broker.config.reject_transactions = True
    response = await producer.send(code=16)
    assert response.remark == "the broker[127.0.0.1] sending transaction message is forbidden"


async def test_without_a_group_of_its_own_a_half_message_is_the_senders(producer, broker):
    await producer.caller.send("orders", properties="TRAN_MSG\x01true")
    (half,) = queue(broker, HALF_TOPIC)
    assert half.properties["PGROUP"] == "p"


async def test_a_half_message_that_leaves_no_room_for_checks_is_refused(producer):
    response = await producer.send(more="\x02n\x01" + "v" * 32_640, code=13)
    assert response.remark.startswith("the message is illegal")


async def test_a_batch_holds_no_half_messages(producer):
    header = batch_header()
    members = encode_batch([BatchMember(0, b"1", "TRAN_MSG\x01true")])
    response = await producer.caller.ask(header, members, code=13)
    assert "part of a transaction" in response.remark


async def test_the_copy_of_a_committed_message_that_is_retried_is_no_half_message(producer, broker):
    header = send_header(
        "TRAN_MSG\x01true\x02DELAY\x011",
        producer_group="CLIENT_INNER_PRODUCER",
        topic="%RETRY%g",
        default_topic_queue_count=1,
        reconsume_times=1,
    )
    await producer.caller.ask(header, b"again")
    assert broker.store.max_offset(HALF_TOPIC, 0) == 0
    assert broker.store.max_offset(SCHEDULE_TOPIC, 0) == 1


# -- decisions


async def test_a_commit_makes_the_message_visible(broker, producer):
    sent = await producer.send(more="\x02TAGS\x01a", sys_flag=SysFlag.HALF | SysFlag.COMPRESSED)
    await producer.end(sent, COMMIT)
    (message,) = await producer.caller.messages("orders", 1)
    (half,) = queue(broker, HALF_TOPIC)
    assert message.property_text == half.property_text
    assert (message.stored_body, message.flag, message.born_ms) == (half.stored_body, half.flag, half.born_ms)
    assert message.sys_flag == SysFlag.COMMIT | SysFlag.COMPRESSED
    assert message.prepared_offset == half.log_offset
    (entry,) = broker.store.entries("orders", 1, 0, 1)
    assert entry.tags_code == ord("a")


async def test_the_op_record_is_as_upstream_writes_it(broker, producer, clock):
    for decision in (COMMIT, ROLLBACK):
        await producer.end(await producer.send(), decision)
    for number, record in enumerate(queue(broker, OP_TOPIC)):
        assert (record.body, record.properties) == (b"%d" % number, {"TAGS": "d", "WAIT": "true"})
        assert (record.sys_flag, record.born_ms) == (0, clock.now_ms())


async def test_a_waiting_pull_is_answered_by_the_commit(producer):
    sent = await producer.send()
    pull = pull_header(queue_id=1, sys_flag=6, suspend_ms=15_000)
    waiting = producer.caller.channel.call_soon(pull, timeout=30)
    await producer.end(sent, COMMIT)
    assert [message.body for message in decode_all((await waiting).body)] == [b"hello"]


async def test_a_rolled_back_message_is_never_seen(producer):
    sent = await producer.send()
    await producer.end(sent, ROLLBACK)
    response = await producer.end(sent, COMMIT, code=1)
    assert "is decided already" in response.remark
    assert await producer.visible() == []


async def test_a_repeated_rollback_is_no_error(producer):
    sent = await producer.send()
    for _ in range(3):
        await producer.end(sent, ROLLBACK)


async def test_a_repeated_decision_waits_for_replicas_as_the_first_does(broker, producer):
    sent = await producer.send()
    broker.confirmation.require_replicas(ReplicaRule())
    asked = [asyncio.ensure_future(producer.end(sent, COMMIT)) for _ in range(2)]
    await until(lambda: len(broker.confirmation) == 2)
    broker.confirmation.replicated(broker.store.max_log_offset)
    await asyncio.gather(*asked)


async def test_a_repeated_commit_is_seen_once(producer):
    sent = await producer.send()
    for _ in range(3):
        await producer.end(sent, COMMIT)
    assert await producer.visible() == [b"hello"]
    await producer.end(sent, ROLLBACK, code=1)


async def test_an_open_decision_changes_nothing(broker, producer):
    sent = await producer.send()
    end = broker.store.max_log_offset
    for decision in (UNKNOWN, 4, 77):
        await producer.end(sent, decision)
    assert broker.store.max_log_offset == end
    await producer.end(sent, COMMIT)
    assert await producer.visible() == [b"hello"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"producer_group": "q"}, "The producer group wrong"),
        ({"half_queue_offset": 5}, "The transaction state table offset wrong"),
        ({"log_offset": 3}, "Find prepared transaction message failed"),
        ({"log_offset": 1 << 40}, "Find prepared transaction message failed"),
        ({"log_offset": -1}, "Find prepared transaction message failed"),
        ({"topic": "payments"}, "the half message at log offset 0 is for topic orders, not payments"),
    ],
)
async def test_a_decision_must_name_the_message_rightly(producer, changes, text):
    sent = await producer.send()
    for decision in (COMMIT, ROLLBACK):
        assert (await producer.end(sent, decision, code=1, **changes)).remark == text
    await producer.end(sent, COMMIT)
    assert await producer.visible() == [b"hello"]


@pytest.mark.parametrize(("topic", "named"), [("orders", "orders"), ("space%orders", "orders")])
async def test_the_topic_may_be_named_without_its_namespace(producer, topic, named):
    await producer.caller.create_topic(topic)
    await producer.end(await producer.send(topic=topic), COMMIT, topic=named)
    assert await producer.visible(topic=topic) == [b"hello"]


async def test_only_half_messages_can_be_decided_on(producer):
    plain = await producer.caller.send("orders", properties="PGROUP\x01p", queue_id=0)
    response = await producer.end(plain, COMMIT, code=1)
    assert response.remark == "the message at log offset 0 is not a half message; its topic is orders"


async def test_a_commit_that_cannot_be_stored_can_be_repeated(broker, producer, monkeypatch):
    sent = await producer.send()

    def refuse(messages):
        raise StoreNotWritable("the disk is full")

    with monkeypatch.context() as full:
        full.setattr(broker.store, "append_batch", refuse)
        await producer.end(sent, COMMIT, code=14)
    await producer.end(sent, COMMIT)
    assert await producer.visible() == [b"hello"]


async def test_the_largest_message_can_be_committed(broker, producer):
    body = bytes(900_000)  # of segments of 1 MiB
    await producer.end(await producer.send(body), COMMIT)
    assert await producer.visible() == [body]
    assert numbers_done(broker) == [0]


async def test_a_delay_begins_with_the_commit(producer, clock):
    sent = await producer.send(more="\x02DELAY\x011")
    await clock.advance(5)
    assert await producer.visible() == []
    await producer.end(sent, COMMIT)
    await clock.advance(0.75)
    assert await producer.visible() == []
    await clock.advance(0.25)
    assert await producer.visible() == [b"hello"]


async def test_with_synchronous_flushing_the_decision_is_on_disk_when_it_is_answered(config, clock, transactions_of):
    config = replace(config, store=replace(config.store, flush=FlushMode.SYNC))
    async with Broker(config, clock) as broker:
        producer = await transactions_of(broker)
        await producer.end(await producer.send(), COMMIT)
        assert broker.store.flushed_to == broker.store.max_log_offset


# -- listed, and resumed


async def test_undecided_ones_are_listed_a_page_at_a_time(producer):
    sent = [await producer.send(b"%d" % number, more="\x02KEYS\x01k") for number in range(4)]
    await producer.end(sent[1], ROLLBACK)

    first = await producer.caller.body(ListHalfMessages(count=2))
    second = await producer.caller.body(ListHalfMessages(count=2, after=first.next_after, producer_group="p"))
    foreign = await producer.caller.body(ListHalfMessages(count=2, producer_group="q"))

    assert [entry.half_queue_offset for entry in first.half_messages + second.half_messages] == [0, 2, 3]
    assert (first.next_after, second.next_after, foreign.half_messages) == (2, None, [])
    entry = second.half_messages[0]
    assert (entry.offset_message_id, entry.topic, entry.queue_id) == (sent[3].message_id, "orders", 1)
    assert (entry.keys, entry.size, entry.checks) == ("k", 1, 0)


async def test_one_that_says_not_where_it_goes_is_listed_all_the_same(broker, producer):
    broker.store.append(StoredMessage(HALF_TOPIC, b"?", "PGROUP\x01p"))
    (entry,) = (await producer.caller.body(ListHalfMessages(count=0))).half_messages
    assert (entry.topic, entry.queue_id, entry.message_id) == (None, None, None)


async def test_a_message_given_up_can_be_checked_again(broker, producer):
    broker.config.transaction_check_max = 1
    await producer.send()
    await producer.rounds(2)
    await producer.checked.next()
    (given_up,) = queue(broker, TRANSACTION_GIVE_UP_TOPIC)
    await producer.caller.ask(ResumeHalfMessage(message_id=given_up.offset_message_id))
    broker.config.transaction_check_max = 2
    await producer.rounds()
    header, body = await producer.checked.next()
    assert body.properties["TRANSACTION_CHECK_TIMES"] == "1"
    await producer.answer(header, COMMIT)
    assert await producer.visible() == [b"hello"]


async def test_a_message_that_still_waits_is_checked_again_as_one(config, clock, transactions_of):
    async with Broker(config, clock) as broker:
        producer = await transactions_of(broker)
        sent = await producer.send()
        await producer.caller.ask(ResumeHalfMessage(message_id=sent.message_id))
        assert len(broker.half_messages.undecided()) == 1
        await producer.end(sent, COMMIT)
        left = killed(config)
    async with Broker(left, clock) as broker:
        assert broker.half_messages.undecided() == []


async def test_what_is_decided_cannot_be_resumed(broker, producer):
    sent = await producer.send()
    await producer.end(sent, ROLLBACK)
    for message_id in (sent.message_id, "0" * 32):
        await producer.caller.ask(ResumeHalfMessage(message_id=message_id), code=1)
    await producer.caller.ask(ResumeHalfMessage(message_id="no id"), code=1)
