"""Batch transactions: what runs store, what one commit does and refuses, and what no stop may change."""

import errno
from dataclasses import replace

import pytest
from tests.broker.folders import killed, moved_to, without_end

from pyromq.broker.batches import batch_publishing
from pyromq.broker.batches.batch_coordinator import GROUP
from pyromq.broker.batches.half_batches import ELSEWHERE_MS
from pyromq.broker.broker import Broker
from pyromq.broker.limits import BrokerLimits
from pyromq.broker.put_message import PutMessage
from pyromq.errors import ResponseCode, StoreNotWritable
from pyromq.message import SysFlag
from pyromq.names import HALF_RUN_TOPIC, LEDGER_TOPIC
from pyromq.net.tasks import Alarm
from pyromq.record import BatchMember, encode_batch
from pyromq.remoting.bodies import ATTEMPTS, BatchAttempt, BatchAttempts, decode_body, encode_body
from pyromq.remoting.connection_limits import ConnectionLimits
from pyromq.remoting.headers import (
    CommitBatch,
    FindBatch,
    HalfRunStored,
    ListBatches,
    RollBackBatch,
    SendHalfRun,
)
from pyromq.store.retention import DiskUse
from pyromq.store.store_config import FlushMode
from pyromq.testing.fake_clock import settle

TIMEOUT = 60  # seconds; connections are closed after 120
LEDGER = 86_400


class Batches:
    """One client that sends runs and decides on them."""

    def __init__(self, caller, clock):
        self.caller, self.clock = caller, clock
        self.numbers = iter(range(1_000_000))

    async def run(self, bodies, *, name="t", token="a", queue_id=1, number=None, code=0, text="", **changes):
        fields = {
            "producer_group": "p",
            "topic": "orders",
            "default_topic": "TBW102",
            "default_topic_queue_count": 4,
            "queue_id": queue_id,
            "transaction": name,
            "token": token,
            "number": next(self.numbers) if number is None else number,
            "born_ms": self.clock.now_ms(),
        }
        body = encode_batch([BatchMember(7, each.encode(), text) for each in bodies])
        response = await self.caller.ask(SendHalfRun(**(fields | changes)), body, code=code)
        return response if code else response.header(HalfRunStored)

    async def commit(self, winners, *, name="t", content=None, code=0):
        attempts = [BatchAttempt(token, messages) for token, messages in winners.items()]
        response = await self.caller.ask(
            CommitBatch(transaction=name, content=content), encode_body(BatchAttempts(attempts)), code=code
        )
        if code:
            return response
        await settle()
        return decode_body(CommitBatch.reply_body, response.body)

    async def roll_back(self, *tokens, name="t"):
        body = encode_body(BatchAttempts([BatchAttempt(token) for token in tokens]))
        await self.caller.ask(RollBackBatch(transaction=name), body)

    async def find(self, *, name="t", code=0):
        response = await self.caller.ask(FindBatch(transaction=name), code=code)
        return response if code else decode_body(FindBatch.reply_body, response.body)

    async def visible(self, queue_id=1):
        return [message.body.decode() for message in await self.messages(queue_id)]

    async def messages(self, queue_id=1):
        found, offset = [], 0
        while True:
            more = await self.caller.messages(queue_id=queue_id, offset=len(found))
            if not more:
                return found
            found += more
            offset += len(more)


@pytest.fixture
def config(config):
    return replace(config, half_run_timeout_ms=TIMEOUT * 1000, ledger_ms=LEDGER * 1000)


@pytest.fixture
def batches_of(caller_to, clock):
    async def connect(broker):
        return Batches(await caller_to(broker), clock)

    return connect


@pytest.fixture
async def batches(broker, batches_of):
    return await batches_of(broker)


# -- runs


async def test_nobody_sees_a_run(batches, broker):
    stored = await batches.run(["1", "2"])
    assert (stored.queue_id, stored.messages) == (1, 2)
    assert await batches.visible() == []
    record = broker.store.message_at(broker.store.entries(HALF_RUN_TOPIC, 0, 0, 1)[0].log_offset)
    assert record.properties == {
        "TRAN_NAME": "t",
        "TRAN_TOKEN": "a",
        "TRAN_RUN": "0",
        "TRAN_COUNT": "2",
        "REAL_TOPIC": "orders",
        "REAL_QID": "1",
        "PGROUP": "p",
    }


async def test_the_broker_chooses_the_queue_if_the_sender_does_not(batches):
    assert (await batches.run(["1"], queue_id=-1)).queue_id in range(4)


async def test_a_run_sent_again_is_stored_once(batches):
    await batches.run(["1"], number=0)
    await batches.run(["1"], number=0)
    await batches.commit({"a": 1})
    assert await batches.visible() == ["1"]


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"bodies": []}, ResponseCode.MESSAGE_ILLEGAL, "The run has 0 bytes"),
        ({"bodies": ["1", ""]}, ResponseCode.MESSAGE_ILLEGAL, "message 1 of the run has an empty body"),
        ({"bodies": ["1"], "text": "DELAY\x013"}, ResponseCode.MESSAGE_ILLEGAL, "message 0 of the run is delayed"),
        ({"bodies": ["1"], "text": "TIMER_DELAY_MS\x013"}, ResponseCode.MESSAGE_ILLEGAL, "message 0 of the run"),
        ({"bodies": ["1"], "text": "TRAN_MSG\x01true"}, ResponseCode.MESSAGE_ILLEGAL, "message 0 of the run"),
        ({"bodies": ["1"], "text": "x\x01" + 32_760 * "y"}, ResponseCode.MESSAGE_ILLEGAL, "message 0 of the run"),
        ({"bodies": ["1"], "name": ""}, ResponseCode.SYSTEM_ERROR, "transaction ''"),
        ({"bodies": ["1"], "name": "a\x01b"}, ResponseCode.SYSTEM_ERROR, "transaction 'a\\x01b'"),
        ({"bodies": ["1"], "token": 256 * "t"}, ResponseCode.SYSTEM_ERROR, "write 1 to 255 printable characters"),
        ({"bodies": ["1"], "number": -1}, ResponseCode.SYSTEM_ERROR, "field number is -1"),
        ({"bodies": ["1"], "queue_id": 99}, ResponseCode.SYSTEM_ERROR, "queueId[99]"),
        ({"bodies": ["1"], "topic": "%RETRY%g"}, ResponseCode.MESSAGE_ILLEGAL, "retry topic %RETRY%g"),
        ({"bodies": ["1"], "topic": LEDGER_TOPIC}, ResponseCode.NO_PERMISSION, LEDGER_TOPIC),
    ],
)
async def test_what_cannot_become_visible_is_refused(batches, changes, code, remark):
    response = await batches.run(changes.pop("bodies"), code=code, **changes)
    assert remark in response.remark


async def test_a_run_cut_short_is_refused(batches):
    header = SendHalfRun(
        producer_group="p", topic="orders", default_topic="TBW102", default_topic_queue_count=4, queue_id=0,
        transaction="t", token="a", number=0, born_ms=1,
    )  # fmt: skip
    body = encode_batch([BatchMember(0, b"hello", "")])[:-1]
    assert "cut short" in (await batches.caller.ask(header, body, code=ResponseCode.MESSAGE_ILLEGAL)).remark


async def test_runs_may_be_switched_off(batches, broker):
    broker.config.reject_transactions = True
    await batches.run(["1"], code=ResponseCode.NO_PERMISSION)


# -- decisions


async def test_a_commit_makes_all_runs_of_its_attempts_visible_in_order(batches):
    await batches.run(["1", "2"], token="a")
    await batches.run(["3"], token="b")
    await batches.run(["4"], token="a")
    decision = await batches.commit({"a": 3, "b": 1})
    assert decision.by_this
    assert await batches.visible() == ["1", "2", "3", "4"]
    assert (await batches.find()).visible


async def test_a_committed_message_is_what_was_sent(batches):
    await batches.run(["1"], text="TAGS\x01red\x02UNIQ_KEY\x01" + 32 * "A")
    await batches.commit({"a": 1})
    (message,) = await batches.messages()
    assert (message.topic, message.queue_id, message.queue_offset, message.flag) == ("orders", 1, 0, 7)
    assert message.properties == {"TAGS": "red", "UNIQ_KEY": 32 * "A", "CLUSTER": "DefaultCluster"}
    assert message.sys_flag & SysFlag.ROLLBACK == SysFlag.COMMIT


async def test_other_attempts_lose(batches):
    await batches.run(["lost"], token="a")
    await batches.run(["1"], token="b")
    await batches.commit({"b": 1})
    assert await batches.visible() == ["1"]


async def test_a_second_commit_is_told_the_first(batches):
    await batches.run(["1"], token="a")
    await batches.run(["2"], token="b")
    first = await batches.commit({"a": 1})
    second = await batches.commit({"b": 1})
    assert (second.attempts, second.decided_ms) == (first.attempts, first.decided_ms)
    assert (first.by_this, second.by_this) == (True, False)
    assert await batches.visible() == ["1"]


async def test_that_no_attempt_wins_is_a_decision(batches):
    await batches.run(["1"])
    await batches.commit({})
    decision = await batches.find()
    assert (decision.attempts, decision.visible) == ([], True)
    assert await batches.visible() == []


@pytest.mark.parametrize("winners", [{}, {"a": 0}])
async def test_a_name_under_which_nothing_was_sent_cannot_be_decided(batches, winners):
    response = await batches.commit(winners, code=ResponseCode.BATCH_INCOMPLETE)
    assert response.remark.startswith("transaction 't' cannot be committed: this broker has no messages of it")
    await batches.find(code=ResponseCode.QUERY_NOT_FOUND)
    await batches.run(["1"])
    await batches.commit({"a": 1})
    assert await batches.visible() == ["1"]


async def test_a_ledger_is_told_of_messages_elsewhere_by_a_run_without_any(batches, broker, config, clock, batches_of):
    stored = await batches.run([], queue_id=-1, topic="not-here")
    assert stored.messages == 0

    async def check(batches, _):
        await batches.commit({"a": 0})
        assert (await batches.find()).visible

    await restarted(killed(config), clock, batches_of, check)
    assert broker.topics.find("not-here") is None


async def test_what_a_transaction_holds_is_kept_with_the_decision(batches, config, clock, batches_of):
    await batches.run(["1"])
    assert (await batches.commit({"a": 1}, content="rows 1 to 1")).content == "rows 1 to 1"

    async def check(batches, _):
        assert (await batches.commit({}, content="rows 2 to 2")).content == "rows 1 to 1"

    await restarted(killed(config), clock, batches_of, check)


async def test_undecided_runs_and_decisions_have_limits(config, clock, batches_of):
    few = replace(moved_to(config, config.data / "few"), limits=BrokerLimits(undecided_runs=5, batch_decisions=4))
    async with Broker(few, clock) as broker:
        one, two = await batches_of(broker), await batches_of(broker)
        for name in "ab":
            await one.run(["1"], name=name)
        busy = await one.run(["1"], name="c", code=ResponseCode.SYSTEM_BUSY)
        assert busy.remark.startswith("connection ")
        assert " has 2 undecided runs of batch transactions" in busy.remark
        assert busy.remark.endswith("or raise maxUndecidedRuns (now 5)")
        await two.run(["1"], name="c")
        for name in "ab":
            await one.commit({"a": 1}, name=name)
            await one.run(["1"], name=name + name)  # there is room again
        busy = await one.commit({"a": 1}, name="aa", code=ResponseCode.SYSTEM_BUSY)
        assert busy.remark.endswith("or raise maxBatchDecisions (now 4)")
        assert (await one.commit({}, name="a")).attempts  # what is decided is told, whatever the limit is
        await one.roll_back("a", name="aa")
        await two.commit({"a": 1}, name="c")
        await two.run(["1"], name="d")
        clock.jump(LEDGER + 1)
        await clock.advance(120)
        await one.run(["1"], name="e")
        await one.commit({"a": 1}, name="e")


async def test_an_attempt_that_is_not_whole_is_not_committed(batches):
    await batches.run(["1"])
    response = await batches.commit({"a": 2}, code=ResponseCode.BATCH_INCOMPLETE)
    assert "has 1 message here, not the 2" in response.remark
    await batches.find(code=ResponseCode.QUERY_NOT_FOUND)
    await batches.commit({"a": 1})
    assert await batches.visible() == ["1"]


async def test_a_commit_that_leaves_messages_out_is_refused(batches):
    await batches.run(["1", "2"])
    await batches.commit({"a": 1}, code=ResponseCode.BATCH_INCOMPLETE)
    await batches.commit({"a": 2})
    assert await batches.visible() == ["1", "2"]


async def test_a_run_after_the_decision_is_refused(batches):
    await batches.run(["0"])
    await batches.commit({})
    response = await batches.run(["1"], code=ResponseCode.BATCH_DECIDED)
    assert response.remark == "transaction 't' is decided; attempt 'a' is too late"


async def test_an_attempt_rolled_back_is_gone(batches):
    await batches.run(["1"], token="a")
    await batches.run(["2"], token="b")
    await batches.roll_back("a", "unknown")
    await batches.commit({"a": 1}, code=ResponseCode.BATCH_INCOMPLETE)
    await batches.commit({"b": 1})
    assert await batches.visible() == ["2"]


async def test_rolling_back_what_is_decided_changes_nothing(batches):
    await batches.run(["1"])
    await batches.commit({"a": 1})
    await batches.roll_back("a")
    assert await batches.visible() == ["1"]
    await batches.find()


@pytest.mark.parametrize(
    ("attempts", "remark"),
    [
        ([BatchAttempt("a", 1), BatchAttempt("a", 1)], "an attempt is named twice"),
        ([BatchAttempt("a", -1)], "negative number of messages"),
        ([BatchAttempt("", 1)], "token ''"),
    ],
)
async def test_a_senseless_commit_is_refused(batches, attempts, remark):
    body = encode_body(BatchAttempts(attempts))
    assert remark in (await batches.caller.ask(CommitBatch(transaction="t"), body, code=1)).remark


@pytest.mark.parametrize("request_", [CommitBatch, RollBackBatch])
def test_a_job_of_ten_thousand_tasks_is_decided_by_one_request(request_):
    attempts = [BatchAttempt("x" * 100, 1000, {"broker-a": 1000}) for _ in range(10_000)]
    body = encode_body(BatchAttempts(attempts))
    assert ATTEMPTS.plain_bytes > len(body) > ConnectionLimits().request_bytes
    assert ConnectionLimits().frame_bytes(request_.code) > len(body)


async def test_a_commit_without_body_is_refused(batches):
    await batches.caller.ask(CommitBatch(transaction="t"), code=1)
    await batches.find(code=ResponseCode.QUERY_NOT_FOUND)


@pytest.fixture
def short_slices(monkeypatch):
    monkeypatch.setattr(batch_publishing, "SLICE", 100)
    monkeypatch.setattr(batch_publishing, "MADE_SLICE", 100)


async def test_many_messages_become_visible_in_slices(batches, broker, short_slices):
    bodies = [str(number) for number in range(201)]
    await batches.run(bodies)
    await batches.commit({"a": len(bodies)})
    assert await batches.visible() == bodies
    assert broker.store.max_offset(LEDGER_TOPIC, 1) == 3


async def test_a_slice_that_the_disk_held_up_is_not_left_out(batches, broker, clock, short_slices, monkeypatch):
    bodies = [str(number) for number in range(201)]
    await batches.run(bodies)
    failures = iter([False, True])
    put_batch = PutMessage.put_batch

    def put(self, *arguments, **named):
        if next(failures, False):
            raise OSError(errno.EMFILE, "Too many open files", "/orders/0")
        put_batch(self, *arguments, **named)

    monkeypatch.setattr(batch_publishing, "members_of", lambda batch, more: None)
    monkeypatch.setattr(PutMessage, "put_batch", put)
    broker.batches.commit("t", [BatchAttempt("a", len(bodies))])
    await settle()
    await clock.advance(2)
    assert await batches.visible() == bodies


async def test_where_flushing_is_synchronous_a_commit_is_on_disk(config, clock, batches_of):
    config = replace(config, store=replace(config.store, flush=FlushMode.SYNC))
    async with Broker(config, clock) as broker:
        batches = await batches_of(broker)
        await batches.run(["1"])
        end = broker.store.max_log_offset
        await batches.commit({"a": 1})
        assert broker.store.flushed_to > end


async def test_a_full_disk_holds_up_what_is_decided_and_loses_nothing(batches, broker, clock):
    await batches.run(["1", "2"])
    broker.batches.commit("t", [BatchAttempt("a", 2)])
    broker.store.log_tail.suspend("no room")
    await settle()
    assert not (await batches.find()).visible
    broker.store.log_tail.suspend("")
    await clock.advance(2)
    assert await batches.visible() == ["1", "2"]


async def test_what_is_undecided_is_listed(batches, clock):
    await batches.run(["1", "2"], token="a")
    await batches.run(["3"], token="b")
    await batches.run(["4"], name="u")
    await batches.commit({"a": 1}, name="u")
    await clock.advance(7)
    found = decode_body(ListBatches.reply_body, (await batches.caller.ask(ListBatches())).body)
    (batch,) = found.batches
    assert (batch.transaction, batch.silent_ms, found.count) == ("t", 7000, 1)
    assert [(attempt.token, attempt.messages) for attempt in batch.attempts] == [("a", 2), ("b", 1)]
    assert batch.ledger is None


async def test_one_that_is_undecided_is_told_with_the_broker_that_decides(batches):
    await batches.run(["1"])
    await batches.run(["2"], name="u", ledger="broker-z")
    for name, told in (("u", [("u", "broker-z")]), ("t", [("t", None)]), ("v", [])):
        answer = await batches.caller.ask(ListBatches(transaction=name))
        found = decode_body(ListBatches.reply_body, answer.body)
        assert ([(each.transaction, each.ledger) for each in found.batches], found.count) == (told, 2)


# -- time


async def test_what_nobody_decides_on_is_rolled_back(batches, broker, clock):
    await batches.run(["1"])
    await clock.advance(TIMEOUT / 2)
    await batches.run(["2"])  # news
    await clock.advance(TIMEOUT * 0.8)
    assert len(broker.batches._runs) == 1
    await clock.advance(TIMEOUT * 0.8)
    assert len(broker.batches._runs) == 0
    await batches.commit({"a": 2}, code=ResponseCode.BATCH_INCOMPLETE)


async def test_what_another_broker_decides_waits_longer(batches, broker, clock):
    await batches.run(["1"], ledger="broker-z")
    await batches.run(["2"], name="u", ledger=broker.config.name)
    await clock.advance(TIMEOUT * 1.6)
    await batches.commit({"a": 1}, name="u", code=ResponseCode.BATCH_INCOMPLETE)
    await batches.commit({"a": 1})
    assert await batches.visible() == ["1"]
    assert ELSEWHERE_MS > TIMEOUT * 1000


async def test_a_decision_is_forgotten_in_time(batches, broker, clock):
    await batches.run(["0"])
    await batches.commit({})
    clock.jump(LEDGER - 1)
    await clock.advance(0)
    await batches.find()
    clock.jump(2)
    await clock.advance(120)
    await batches.find(code=ResponseCode.QUERY_NOT_FOUND)


async def test_a_decision_is_kept_until_its_messages_are_visible(batches, broker, clock):
    await batches.run(["1", "2"])
    broker.batches.commit("t", [BatchAttempt("a", 2)])
    broker.store.log_tail.suspend("no room")
    free, broker.store.retention.measure = broker.store.retention.measure, lambda path: DiskUse(path, 99, 1)
    clock.jump(LEDGER + 1)
    await clock.advance(110)
    assert not (await batches.find()).visible
    broker.store.retention.measure = free
    await clock.advance(5)
    assert await batches.visible() == ["1", "2"]


async def test_a_clock_set_forward_rolls_nothing_back(batches, clock):
    await batches.run(["1"])
    clock.jump(10 * TIMEOUT)
    await clock.advance(TIMEOUT * 0.6)
    await batches.commit({"a": 1})
    assert await batches.visible() == ["1"]


# -- stops


async def restarted(config, clock, batches_of, check):
    async with Broker(config, clock) as broker:
        await settle()
        await check(await batches_of(broker), broker)


async def test_a_kill_before_the_commit_leaves_the_attempts_undecided(batches, config, clock, batches_of):
    await batches.run(["1"], number=0)

    async def check(batches, broker):
        assert await batches.visible() == []
        await batches.run(["1"], number=0)  # sent again: known
        await batches.commit({"a": 1})
        assert await batches.visible() == ["1"]

    await restarted(killed(config), clock, batches_of, check)


async def test_a_kill_after_the_commit_point_loses_and_repeats_nothing(
    batches, broker, config, clock, batches_of, short_slices
):
    bodies = [str(number) for number in range(300)]
    await batches.run(["lost"], token="b")
    await batches.run(bodies)
    broker.batches.alarm = Alarm(clock)  # one that nobody hears: killed before anything became visible
    broker.batches.commit("t", [BatchAttempt("a", len(bodies))])
    left = [killed(config, "0")]
    for slices in range(1, 4):
        broker.batches.step()
        left.append(killed(config, str(slices)))

    async def check(batches, broker):
        assert await batches.visible() == bodies
        decision = await batches.commit({"b": 1})
        assert ([attempt.token for attempt in decision.attempts], decision.by_this) == (["a"], False)
        await batches.run(["late"], token="b", code=ResponseCode.BATCH_DECIDED)

    for each in left:
        await restarted(each, clock, batches_of, check)


@pytest.mark.parametrize("kept", [4, 10])
async def test_messages_whose_note_a_crash_took_are_not_written_again(batches, broker, config, clock, batches_of, kept):
    await batches.run([str(number) for number in range(10)])
    await batches.run(["10", "11"])
    broker.batches.alarm = Alarm(clock)
    broker.batches.commit("t", [BatchAttempt("a", 12)])
    broker.batches.step()
    last = broker.store.entries("orders", 1, kept - 1, 1)[0]
    left = killed(config)
    without_end(left, last.log_offset + last.size)  # all of a slice that reached the log

    async def check(batches, broker):
        assert await batches.visible() == [str(number) for number in range(12)]

    await restarted(left, clock, batches_of, check)


async def test_messages_without_a_note_are_not_written_again_though_a_rollback_was_noted_since(
    batches, broker, config, clock, batches_of, monkeypatch
):
    await batches.run(["1", "2"])
    await batches.run(["other"], name="u")
    broker.batches.alarm = Alarm(clock)
    broker.batches.commit("t", [BatchAttempt("a", 2)])

    def refuse(self, record):
        raise StoreNotWritable("the disk is full")

    with monkeypatch.context() as full:
        full.setattr(PutMessage, "put_record", refuse)
        with pytest.raises(StoreNotWritable):
            broker.batches.step()
    assert await batches.visible() == ["1", "2"]
    await batches.roll_back("a", name="u")

    async def check(batches, broker):
        assert await batches.visible() == ["1", "2"]

    await restarted(killed(config), clock, batches_of, check)


async def test_clean_stops_keep_everything(config, clock, batches_of):
    async with Broker(config, clock) as broker:
        batches = await batches_of(broker)
        await batches.run(["1"])
        await batches.commit({"a": 1})
        await batches.run(["2"], name="u")

    async def check(batches, broker):
        assert await batches.visible() == ["1"]
        assert (await batches.find()).visible
        await batches.commit({"a": 1}, name="u")
        assert await batches.visible() == ["1", "2"]

    await restarted(config, clock, batches_of, check)


async def test_a_name_decided_anew_has_its_new_decision_after_a_kill(batches, config, clock, batches_of):
    await batches.run(["1"])
    await batches.commit({"a": 1})
    clock.jump(LEDGER + 1)
    await clock.advance(TIMEOUT * 0.6)
    await batches.run(["2"], token="b")
    await batches.commit({"b": 1})

    async def check(batches, broker):
        assert await batches.visible() == ["1", "2"]
        assert [attempt.token for attempt in (await batches.find()).attempts] == ["b"]
        await batches.run(["3"], name="u")
        await batches.commit({"a": 1}, name="u")  # the forgotten decision takes no room

    left = replace(killed(config), limits=BrokerLimits(batch_decisions=2))
    await restarted(left, clock, batches_of, check)


async def test_a_rollback_outlives_a_kill(batches, config, clock, batches_of):
    await batches.run(["1"])
    await batches.roll_back("a")
    await batches.run(["2"])  # the same token again

    async def check(batches, broker):
        await batches.commit({"a": 1})
        assert await batches.visible() == ["2"]

    await restarted(killed(config), clock, batches_of, check)


async def test_what_is_done_is_not_read_again_at_the_next_start(config, clock, batches_of):
    async with Broker(config, clock) as broker:
        batches = await batches_of(broker)
        for name in ("t", "u"):
            await batches.run(["1"], name=name)
            await batches.commit({"a": 1}, name=name)
    async with Broker(config, clock) as broker:
        assert broker.offsets.of_topic(GROUP, HALF_RUN_TOPIC) == {0: 2}
        assert broker.offsets.of_topic(GROUP, LEDGER_TOPIC) == {0: 0, 1: 2}
        clock.jump(LEDGER + 1)
    async with Broker(config, clock) as broker:
        await clock.advance(1)
    assert broker.offsets.of_topic(GROUP, LEDGER_TOPIC) == {0: 2, 1: 2}


async def test_messages_visible_before_later_decisions_are_not_written_again(config, clock, batches_of):
    """Notes are kept in order of the decisions, and their runs may have come in another order."""
    async with Broker(config, clock) as broker:
        batches = await batches_of(broker)
        for name in ("second", "open", "first"):
            await batches.run([name], name=name)
        for name in ("first", "second"):
            broker.batches.commit(name, [BatchAttempt("a", 1)])
        await settle()
        broker.batches.note_progress(closed=True)
        await batches.run(["third"], name="third")
        await batches.commit({"a": 1}, name="third")

    async def check(batches, broker):
        assert await batches.visible() == ["first", "second", "third"]

    await restarted(config, clock, batches_of, check)
