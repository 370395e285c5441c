"""Transactions: what is stored, what decisions do and are refused, who is asked when, and what no stop may change."""

import asyncio
import json
import shutil
from dataclasses import replace

import pytest

from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerConfig
from pyromq.broker.half_messages import GROUP
from pyromq.errors import StoreNotWritable
from pyromq.message import StoredMessage, SysFlag
from pyromq.names import HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC, TRANSACTION_GIVE_UP_TOPIC
from pyromq.record import BatchMember, decode, decode_all, encode_batch
from pyromq.remoting.command import Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import (
    CheckTransaction,
    EndTransaction,
    ListHalfMessages,
    PullMessage,
    ResumeHalfMessage,
    SendBatchMessage,
    SendMessageResponse,
    SendMessageV2,
)
from pyromq.store.config import FlushMode

COMMIT, ROLLBACK, UNKNOWN = SysFlag.COMMIT, SysFlag.ROLLBACK, 0
ROUND = 7  # seconds; a minute would be so many ticks of the clock


class Checked:
    """A producer that notes what it is asked."""

    def __init__(self):
        self.asked = asyncio.Queue()

    @answers(CheckTransaction)
    def check(self, header, call):
        self.asked.put_nowait((header, decode(call.body)))
        return Reply()

    async def next(self):
        return await asyncio.wait_for(self.asked.get(), 5)


class Transactions:
    """One client that sends half messages and decides on them."""

    def __init__(self, caller, clock, checked):
        self.caller, self.clock, self.checked = caller, clock, checked
        self._numbers = iter(range(1_000_000))

    async def send(
        self, body=b"hello", *, more="", topic="orders", sys_flag=SysFlag.HALF, code=0, unique=True, queue_id=1
    ):
        text = f"TRAN_MSG\x01true\x02PGROUP\x01p{more}"
        if unique:
            text += f"\x02UNIQ_KEY\x01{next(self._numbers):032X}"
        header = SendMessageV2(
            producer_group="p",
            topic=topic,
            default_topic="TBW102",
            default_topic_queue_count=4,
            queue_id=queue_id,
            sys_flag=sys_flag,
            born_ms=self.clock.now_ms(),
            flag=7,
            properties=text,
        )
        response = await self.caller.ask(header, body, code=code)
        return response if code else response.header(SendMessageResponse)

    async def end(self, sent, decision, *, code=0, **changes):
        fields = {
            "producer_group": "p",
            "half_queue_offset": sent.queue_offset,
            "log_offset": int(sent.message_id[-16:], 16),
            "decision": decision,
            "message_id": "x",
        }
        return await self.caller.ask(EndTransaction(**(fields | changes)), code=code)

    async def answer(self, header, decision, *, code=0):
        """Decide as a producer does that was asked."""
        end = EndTransaction(
            producer_group="p",
            half_queue_offset=header.half_queue_offset,
            log_offset=header.log_offset,
            decision=decision,
            message_id=header.message_id or header.offset_message_id,
            from_check=True,
        )
        return await self.caller.ask(end, code=code)

    async def rounds(self, number=1, *, member=True):
        """Let so many rounds of checks pass; the producer stays connected."""
        for _ in range(number):
            await self.caller.beat("producer", producer="p" if member else None)
            await self.clock.advance(ROUND)

    async def visible(self, queue_id=1, *, topic="orders"):
        return [message.body for message in await pulled(self.caller, topic, queue_id)]


async def pulled(caller, topic, queue_id=0):
    pull = PullMessage(
        consumer_group="c",
        topic=topic,
        queue_id=queue_id,
        queue_offset=0,
        max_count=32,
        sys_flag=4,
        commit_offset=0,
        suspend_ms=0,
        subscription_version=0,
    )
    return decode_all((await caller.channel.call(pull, timeout=5)).body)


def queue(broker, topic, queue_id=0):
    entries = broker.store.entries(topic, queue_id, 0, 1_000)
    return [broker.store.message_at(entry.log_offset) for entry in entries]


def numbers_done(broker):
    return [int(record.stored_body) for record in queue(broker, OP_TOPIC)]


@pytest.fixture
def config(config):
    return replace(config, transaction_check_interval_ms=ROUND * 1_000)


@pytest.fixture
def transactions_of(caller_to, clock):
    """Connect a producer of group p to a broker."""

    async def connect(broker, *, member=True):
        checked = Checked()
        caller = await caller_to(broker, checked)
        if member:
            await caller.beat("producer", producer="p")
        return Transactions(caller, clock, checked)

    return connect


@pytest.fixture
async def producer(broker, transactions_of):
    return await transactions_of(broker)


def kill(config):
    """Return the settings of a broker on a copy of the folder as it is now: what SIGKILL leaves."""
    left = config.data.with_name(config.data.name + "-killed")
    shutil.copytree(config.data, left)
    return replace(config, data=left, store=replace(config.store, root=left))


def lose(config, log_offset):
    """Take what lies behind from the log, as a power cut may."""
    log = min((config.data / "commitlog").iterdir())
    with log.open("r+b") as file:
        file.seek(log_offset)
        file.write(bytes(1_000))
    (config.data / "abort").write_text("1 another boot\n")


# -- half messages


async def test_a_half_message_is_stored_as_upstream_does_and_nobody_sees_it(broker, producer):
    sent = await producer.send(more="\x02WAIT\x01true\x02TAGS\x01a")
    assert await producer.visible() == []
    (half,) = await pulled(producer.caller, HALF_TOPIC)
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
    header = SendBatchMessage(
        producer_group="p",
        topic="orders",
        default_topic="TBW102",
        default_topic_queue_count=4,
        queue_id=0,
        sys_flag=0,
        born_ms=1,
        flag=0,
        batch=True,
    )
    members = encode_batch([BatchMember(0, b"1", "TRAN_MSG\x01true")])
    response = await producer.caller.ask(header, members, code=13)
    assert "part of a transaction" in response.remark


async def test_the_copy_of_a_committed_message_that_is_retried_is_no_half_message(producer, broker):
    header = SendMessageV2(
        producer_group="CLIENT_INNER_PRODUCER",
        topic="%RETRY%g",
        default_topic="TBW102",
        default_topic_queue_count=1,
        queue_id=0,
        sys_flag=0,
        born_ms=1,
        flag=0,
        reconsume_times=1,
        properties="TRAN_MSG\x01true\x02DELAY\x011",
    )
    await producer.caller.ask(header, b"again")
    assert broker.store.max_offset(HALF_TOPIC, 0) == 0
    assert broker.store.max_offset(SCHEDULE_TOPIC, 0) == 1


# -- decisions


async def test_a_commit_makes_the_message_visible(broker, producer):
    sent = await producer.send(more="\x02TAGS\x01a", sys_flag=SysFlag.HALF | SysFlag.COMPRESSED)
    await producer.end(sent, COMMIT)
    (message,) = await pulled(producer.caller, "orders", 1)
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
    pull = PullMessage(
        consumer_group="c",
        topic="orders",
        queue_id=1,
        queue_offset=0,
        max_count=32,
        sys_flag=6,
        commit_offset=0,
        suspend_ms=15_000,
        subscription_version=0,
    )
    waiting = producer.caller.channel.call_soon(pull, timeout=5)
    await producer.end(sent, COMMIT)
    assert [message.body for message in decode_all((await waiting).body)] == [b"hello"]


async def test_a_rolled_back_message_is_never_seen(producer):
    sent = await producer.send()
    await producer.end(sent, ROLLBACK)
    response = await producer.end(sent, COMMIT, code=1)
    assert "is decided already" in response.remark
    assert await producer.visible() == []


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
        ({"topic": "payments"}, "the half message at 0 is for topic orders, not payments"),
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
    assert response.remark == "the message at 0 is no half message; its topic is orders"


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


# -- check-back


async def test_a_producer_is_asked_about_what_it_left_open(broker, producer, clock):
    sent = await producer.send(more="\x02TAGS\x01a")
    await clock.advance(ROUND)
    header, body = await producer.checked.next()
    original, copy = queue(broker, HALF_TOPIC)
    assert copy.properties == {**original.properties, "TRANSACTION_CHECK_TIMES": "1"}
    assert (copy.body, copy.flag, copy.born_ms) == (b"hello", 7, original.born_ms)
    assert numbers_done(broker) == [sent.queue_offset]
    assert (header.half_queue_offset, header.log_offset) == (1, copy.log_offset)
    assert header.message_id == header.transaction_id == "0" * 32
    assert header.offset_message_id == copy.offset_message_id
    assert (body.topic, body.queue_id, body.body) == ("orders", 1, b"hello")
    assert (body.properties, body.log_offset) == (copy.properties, copy.log_offset)
    await producer.answer(header, COMMIT)
    assert await producer.visible() == [b"hello"]


async def test_a_rollback_on_a_check_is_final(producer, clock):
    await producer.send()
    await clock.advance(ROUND)
    header, _ = await producer.checked.next()
    await producer.answer(header, ROLLBACK)
    await producer.rounds(2)
    assert producer.checked.asked.empty()
    assert await producer.visible() == []


async def test_a_late_decision_on_the_first_copy_counts_and_only_once(producer, clock):
    sent = await producer.send()
    await clock.advance(2 * ROUND)
    await producer.checked.next()
    header, _ = await producer.checked.next()
    await producer.end(sent, COMMIT)
    await producer.answer(header, COMMIT)
    await producer.answer(header, ROLLBACK, code=1)
    await clock.advance(ROUND)
    assert producer.checked.asked.empty()
    assert await producer.visible() == [b"hello"]


async def test_what_is_decided_is_not_asked_about(producer, clock):
    await producer.end(await producer.send(), COMMIT)
    await producer.end(await producer.send(), ROLLBACK)
    await producer.rounds(2)
    assert producer.checked.asked.empty()


@pytest.mark.parametrize(("age", "asked"), [(5.5, False), (6, False), (6.5, True)])
async def test_a_fresh_message_is_left_alone(producer, clock, age, asked):
    await clock.advance(ROUND - age)
    await producer.send()
    await clock.advance(age)
    assert producer.checked.asked.qsize() == asked


@pytest.mark.parametrize(("seconds", "rounds"), [("1", 1), ("10", 2), ("25", 4), ("-1", 1), ("soon", 1)])
async def test_a_message_may_have_its_own_immunity(broker, producer, seconds, rounds):
    await producer.send(more=f"\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x01{seconds}")
    for number in range(1, rounds + 1):
        await producer.rounds()
        assert producer.checked.asked.qsize() == (number == rounds)
    assert queue(broker, HALF_TOPIC)[-1].properties["TRANSACTION_CHECK_TIMES"] == "1"


async def test_a_producer_whose_clock_is_ahead_is_asked_in_the_next_round(producer, clock):
    clock.jump(3_600)
    await producer.send()
    clock.jump(-3_600)
    await clock.advance(ROUND)
    await producer.checked.next()


async def test_a_clock_set_back_makes_no_check_late_and_no_message_old(broker, producer, clock):
    """The age of a message from the future says nothing; of one sent since, it counts from the new time."""
    await producer.send(b"before")
    clock.jump(-3_600)
    await producer.send(b"after")
    await producer.rounds()
    asked = [(await producer.checked.next())[1].body for _ in range(2)]
    assert asked == [b"before", b"after"]
    clock.jump(80 * 3_600)  # set right again, and more
    clock.jump(-80 * 3_600)
    await producer.rounds()
    for _ in range(2):
        header, _ = await producer.checked.next()
        await producer.answer(header, COMMIT)
    assert await producer.visible() == [b"before", b"after"]
    assert broker.store.max_offset(TRANSACTION_GIVE_UP_TOPIC, 0) == 0


async def test_a_fresh_message_after_the_clock_was_set_back_is_left_alone(producer, clock):
    clock.jump(-3_600)
    await clock.advance(ROUND - 5)
    await producer.send()
    await clock.advance(5)
    assert producer.checked.asked.empty()


async def test_midnight_is_a_moment_like_any_other(producer, clock):
    day = 86_400
    clock.jump(day - clock.now_ms() / 1000 % day - 6.5)
    await producer.send()
    await producer.rounds()  # half a second after midnight
    header, _ = await producer.checked.next()
    await producer.answer(header, COMMIT)
    assert await producer.visible() == [b"hello"]


async def test_after_15_checks_a_message_is_given_up(broker, producer):
    sent = await producer.send()
    for number in range(1, 16):
        await producer.rounds()
        await producer.checked.next()
        assert queue(broker, HALF_TOPIC)[-1].properties["TRANSACTION_CHECK_TIMES"] == str(number)
    assert broker.store.max_offset(TRANSACTION_GIVE_UP_TOPIC, 0) == 0
    await producer.rounds(2)
    assert producer.checked.asked.empty()
    (given_up,) = await pulled(producer.caller, TRANSACTION_GIVE_UP_TOPIC)
    assert given_up.properties["TRANSACTION_CHECK_TIMES"] == "15"
    assert (given_up.body, given_up.flag) == (b"hello", 7)
    await producer.end(sent, COMMIT, code=1)
    assert await producer.visible() == []


async def test_a_message_nobody_decides_on_is_given_up_when_it_is_too_old(broker, producer, clock):
    await producer.send()
    clock.jump(72 * 3_600)
    await clock.advance(ROUND)
    assert [message.body for message in queue(broker, TRANSACTION_GIVE_UP_TOPIC)] == [b"hello"]


async def test_the_number_of_checks_and_their_times_can_be_configured(config, clock, transactions_of):
    config = replace(config, transaction_check_max=2, transaction_check_interval_ms=5_000, transaction_timeout_ms=1_000)
    async with Broker(config, clock) as broker:
        producer = await transactions_of(broker)
        await producer.send()
        await clock.advance(15)
        assert producer.checked.asked.qsize() == 2
        assert broker.store.max_offset(TRANSACTION_GIVE_UP_TOPIC, 0) == 1


async def test_without_a_member_of_the_group_a_message_waits_and_no_check_counts(broker, transactions_of, clock):
    producer = await transactions_of(broker, member=False)
    await producer.send()
    await producer.rounds(16, member=False)
    assert broker.store.max_offset(HALF_TOPIC, 0) == 1
    await producer.caller.beat("other", producer="another group")
    await producer.caller.beat("producer", producer="p")
    await clock.advance(ROUND)
    header, _ = await producer.checked.next()
    await producer.answer(header, COMMIT)
    assert await producer.visible() == [b"hello"]


async def test_unless_configured_the_rounds_are_a_minute_apart(config, clock, transactions_of):
    async with Broker(BrokerConfig(config.data, port=0, store=config.store), clock) as broker:
        producer = await transactions_of(broker)
        await producer.send()
        await clock.advance(59.5)
        assert producer.checked.asked.empty()
        await clock.advance(0.5)
        await producer.checked.next()


async def test_any_member_of_the_group_may_be_asked(broker, transactions_of, clock):
    producers = [await transactions_of(broker) for _ in range(2)]
    for _ in range(10):
        await producers[0].send()
    await clock.advance(ROUND)
    for producer in producers:
        for _ in range(5):
            header, _ = await producer.checked.next()
            await producer.answer(header, COMMIT)
    assert len(await producers[0].visible()) == 10


async def test_a_round_of_many_leaves_others_their_turn(producer, clock):
    for number in range(230):
        await producer.send(b"%d" % number)
    await clock.advance(ROUND)
    await clock.advance(0)
    asked = [(await producer.checked.next())[1].body for _ in range(230)]
    assert asked == [b"%d" % number for number in range(230)]


async def test_a_damaged_half_message_does_not_keep_the_others_waiting(broker, producer, clock, caplog):
    text = "TRAN_MSG\x01true\x02PGROUP\x01p"
    broker.store.append(StoredMessage(HALF_TOPIC, b"damaged", text, born_ms=clock.now_ms()))
    await producer.send()
    await clock.advance(ROUND)
    assert (await producer.checked.next())[1].body == b"hello"
    assert "cannot be checked" in caplog.text


async def test_messages_without_a_unique_key_are_kept_apart(producer, clock):
    for _ in range(3):
        await producer.send(unique=False)
    await clock.advance(ROUND)
    for _ in range(3):
        header, _ = await producer.checked.next()
        await producer.answer(header, COMMIT)
    assert len(await producer.visible()) == 3


# -- given up, and resumed


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


async def test_what_is_decided_cannot_be_resumed(broker, producer):
    sent = await producer.send()
    await producer.end(sent, ROLLBACK)
    for message_id in (sent.message_id, "0" * 32):
        await producer.caller.ask(ResumeHalfMessage(message_id=message_id), code=1)
    await producer.caller.ask(ResumeHalfMessage(message_id="no id"), code=1)


# -- stops


async def test_what_is_open_stays_open_over_a_restart_and_what_is_decided_decided(config, clock, transactions_of):
    async with Broker(config, clock) as broker:
        producer = await transactions_of(broker)
        committed, rolled_back, left_open = [await producer.send(b"%d" % number) for number in range(3)]
        await producer.end(committed, COMMIT)
        await producer.end(rolled_back, ROLLBACK)
    async with Broker(config, clock) as broker:
        producer = await transactions_of(broker)
        await producer.end(committed, COMMIT, code=1)
        await producer.end(rolled_back, COMMIT, code=1)
        await clock.advance(ROUND)
        header, body = await producer.checked.next()
        assert body.body == b"2"
        assert producer.checked.asked.empty()
        await producer.end(left_open, COMMIT)
        await producer.answer(header, COMMIT)
        assert await producer.visible() == [b"0", b"2"]


async def test_checks_are_counted_over_restarts(config, clock, transactions_of):
    config = replace(config, transaction_check_max=3)
    for number in range(1, 5):
        async with Broker(config, clock) as broker:
            producer = await transactions_of(broker)
            if number == 1:
                await producer.send()
            await clock.advance(ROUND)
            if number < 4:
                _, body = await producer.checked.next()
                assert body.properties["TRANSACTION_CHECK_TIMES"] == str(number)
            assert broker.store.max_offset(TRANSACTION_GIVE_UP_TOPIC, 0) == (number == 4)


async def test_progress_is_kept_as_upstream_keeps_it(config, clock, transactions_of):
    async with Broker(config, clock) as broker:
        producer = await transactions_of(broker)
        for number in range(4):
            sent = await producer.send()
            if number != 2:
                await producer.end(sent, COMMIT)
    table = json.loads((config.data / "config/consumerOffset.json").read_bytes())["offsetTable"]
    assert table[f"{HALF_TOPIC}@{GROUP}"] == {"0": 2}
    assert table[f"{OP_TOPIC}@{GROUP}"] == {"0": 2}


async def test_progress_is_noted_only_when_the_decisions_are_on_disk(broker, producer):
    await producer.end(await producer.send(), COMMIT)
    broker.half_messages.note_progress()
    broker.half_messages.note_progress()
    assert broker.offsets.find(GROUP, HALF_TOPIC, 0) is None
    await asyncio.wrap_future(broker.store.wait_flushed(broker.store.max_log_offset))
    broker.half_messages.note_progress()
    assert broker.offsets.find(GROUP, HALF_TOPIC, 0) == 1


async def test_a_broker_without_transactions_notes_no_progress(config, clock):
    async with Broker(config, clock) as broker:
        await clock.advance(2 * ROUND)
        assert broker.offsets.table().offsets == {}


async def test_a_crash_forgets_no_decision(config, clock, transactions_of):
    async with Broker(config, clock) as broker:
        producer = await transactions_of(broker)
        sent = [await producer.send(b"%d" % number) for number in range(20)]
        for number in range(0, 20, 2):
            await producer.end(sent[number], COMMIT if number % 4 else ROLLBACK)
        killed = kill(config)
    async with Broker(killed, clock) as broker:
        producer = await transactions_of(broker)
        for each in sent:
            await producer.end(each, COMMIT, code=int(each.queue_offset % 2 == 0))
        seen = [int(body) for body in await producer.visible()]
    assert seen == [2, 6, 10, 14, 18, *range(1, 20, 2)]


@pytest.mark.parametrize("delay", ["", "\x02DELAY\x013"])
async def test_a_crash_between_message_and_op_record_does_not_show_it_twice(config, clock, transactions_of, delay):
    async with Broker(config, clock) as broker:
        producer = await transactions_of(broker)
        sent = await producer.send(more=delay)
        await producer.end(sent, COMMIT)
        killed = kill(config)
        op_record = queue(broker, OP_TOPIC)[0].log_offset
    lose(killed, op_record)
    async with Broker(killed, clock) as broker:
        assert numbers_done(broker) == [0]
        producer = await transactions_of(broker)
        await producer.end(sent, COMMIT, code=1)
        await clock.advance(2 * ROUND)
        assert producer.checked.asked.empty()
        assert await producer.visible() == [b"hello"]


async def test_a_crash_between_a_copy_and_its_op_record_leaves_one_transaction(config, clock, transactions_of):
    async with Broker(config, clock) as broker:
        producer = await transactions_of(broker)
        sent = await producer.send()
        await clock.advance(ROUND)
        await producer.checked.next()
        killed = kill(config)
        op_record = queue(broker, OP_TOPIC)[0].log_offset
    lose(killed, op_record)
    async with Broker(killed, clock) as broker:
        producer = await transactions_of(broker)
        await clock.advance(ROUND)
        header, body = await producer.checked.next()
        assert body.properties["TRANSACTION_CHECK_TIMES"] == "2"
        await producer.end(sent, COMMIT)
        await producer.answer(header, COMMIT)
        await clock.advance(ROUND)
        assert producer.checked.asked.empty()
        assert await producer.visible() == [b"hello"]


async def test_op_records_of_rocketmq_5_name_several_messages(config, clock, transactions_of):
    async with Broker(config, clock) as broker:
        producer = await transactions_of(broker)
        for number in range(4):
            await producer.send(b"%d" % number)
        broker.store.append(StoredMessage(OP_TOPIC, b"0,2,3,", "TAGS\x01d"))
        killed = kill(config)
    async with Broker(killed, clock) as broker:
        producer = await transactions_of(broker)
        await clock.advance(ROUND)
        assert (await producer.checked.next())[1].body == b"1"
        assert producer.checked.asked.empty()


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
