"""Where flushing is synchronous, everything that an answer says is done is on the disk: one that forgets keeps it."""

from dataclasses import replace
from random import Random

import pytest
from tests.broker.transactions.transactions import COMMIT, ROLLBACK

from pyromq.broker.broker import Broker
from pyromq.record import BatchMember, encode_batch
from pyromq.remoting.bodies import BatchAttempt, BatchAttempts, encode_body
from pyromq.remoting.command import Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import (
    CommitBatch,
    EndTransaction,
    MaxOffset,
    PushReplyMessage,
    RecallMessage,
    ResumeHalfMessage,
    RollBackBatch,
    SendHalfRun,
    SendMessageBack,
    SendMessageResponse,
    SendReplyMessageV2,
)
from pyromq.store.store_config import FlushMode
from pyromq.testing import SimulatedDisk
from pyromq.testing.simulated_disk import Loss

from .headers import batch_header, send_header


class Requester:
    """Takes replies."""

    @answers(PushReplyMessage)
    def take(self, header, call):
        return Reply()


class Asking:
    """A client of a broker whose disk forgets what was not flushed, and flushes when it is told to."""

    def __init__(self, broker, caller):
        self.broker = broker
        self.caller = caller

    async def ask(self, header, body=b""):
        """Begin a request; its answer is to come."""
        waiting = self.caller.channel.call_soon(header, body, timeout=30)
        for _ in range(2):  # the second round trip comes behind all that the first request has led to
            await self.caller.ask(MaxOffset(topic="orders", queue_id=0))
        return waiting

    async def confirmed(self, header, body=b""):
        waiting = await self.ask(header, body)
        self.broker.store.flush_due()
        response = await waiting
        assert response.code == 0, response.remark
        return response.header(SendMessageResponse) if isinstance(header, type(send_header())) else response


@pytest.fixture
def disk():
    return SimulatedDisk()


@pytest.fixture
def synchronous(config):
    return replace(config, store=replace(config.store, flush=FlushMode.SYNC))


@pytest.fixture
async def asking(synchronous, clock, caller_to, disk):
    async with Broker(synchronous, clock, disk=disk) as broker:
        caller = await caller_to(broker, Requester())
        await caller.create_topic("orders")
        yield Asking(broker, caller)
        broker.store.flush_due()  # it would wait for whoever has no answer yet


# -- what stores something


async def one(asking):
    return send_header(), b"x"


async def delayed(asking):
    return send_header("DELAY\x011"), b"x"


async def timed(asking):
    due = asking.broker.timers._clock.now_ms() + 60_000
    return send_header(f"TIMER_DELIVER_MS\x01{due}"), b"x"


async def batch(asking):
    return batch_header(), _run(b"x")


async def send_back(asking, level=0):
    sent = await asking.confirmed(send_header(), b"x")
    return SendMessageBack(offset=int(sent.message_id[-16:], 16), group="g", delay_level=level), b""


async def dead_letter(asking):
    return await send_back(asking, level=-1)


async def reply(asking):
    await asking.caller.beat("requester", producer="p")
    fields = {name: getattr(send_header(), name) for name in send_header().__struct_fields__}
    fields |= {"topic": "DefaultCluster_REPLY_TOPIC", "properties": "REPLY_TO_CLIENT\x01requester\x02MSG_TYPE\x01reply"}
    return SendReplyMessageV2(**fields), b"pong"


async def cancel(asking):
    due = asking.broker.timers._clock.now_ms() + 60_000
    sent = await asking.confirmed(send_header(f"TIMER_DELIVER_MS\x01{due}\x02UNIQ_KEY\x01K"), b"x")
    return RecallMessage(topic="orders", recall_handle=sent.recall_handle), b""


async def half(asking):
    return send_header("TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01K", sys_flag=4), b"x"


async def commit(asking, decision=COMMIT):
    sent = await asking.confirmed(*await half(asking))
    at = int(sent.message_id[-16:], 16)
    return EndTransaction(
        producer_group="p", half_queue_offset=sent.queue_offset, log_offset=at, decision=decision, message_id="x"
    ), b""


async def roll_back(asking):
    return await commit(asking, ROLLBACK)


async def resume(asking):
    sent = await asking.confirmed(*await half(asking))
    return ResumeHalfMessage(message_id=sent.message_id), b""


async def half_run(asking):
    fields = {"producer_group": "p", "topic": "orders", "default_topic": "TBW102", "default_topic_queue_count": 4}
    return SendHalfRun(**fields, queue_id=0, born_ms=1, transaction="t", token="a", number=0), _run(b"x")


async def commit_batch(asking):
    await asking.confirmed(*await half_run(asking))
    return CommitBatch(transaction="t"), encode_body(BatchAttempts([BatchAttempt("a", 1)]))


async def roll_back_batch(asking):
    await asking.confirmed(*await half_run(asking))
    return RollBackBatch(transaction="t"), encode_body(BatchAttempts([BatchAttempt("a", 1)]))


def _run(body):
    return encode_batch([BatchMember(0, body, "")])


STORING = [
    one, delayed, timed, batch, send_back, dead_letter, reply, cancel,
    half, commit, roll_back, resume, half_run, commit_batch, roll_back_batch,
]  # fmt: skip


@pytest.mark.parametrize("storing", STORING)
async def test_an_answer_waits_for_the_disk_which_then_has_what_it_says(asking, disk, synchronous, clock, storing):
    header, body = await storing(asking)
    store = asking.broker.store
    before = store.max_log_offset
    waiting = await asking.ask(header, body)
    assert store.max_log_offset > before
    assert not waiting.done()
    store.flush_due()
    assert (await waiting).code == 0
    stored = store.max_log_offset

    async with Broker(synchronous, clock, disk=disk.after_power_cut(Random(0), Loss.ALL)) as again:
        assert again.store.max_log_offset >= stored


async def test_a_burst_waits_for_the_disk_which_then_has_it(asking, disk, synchronous, clock):
    burst = [asking.caller.channel.call_soon(send_header(), b"x", timeout=30) for _ in range(9)]
    await asking.ask(send_header(), b"x")
    assert not any(each.done() for each in burst)
    asking.broker.store.flush_due()
    assert {(await each).code for each in burst} == {0}
    async with Broker(synchronous, clock, disk=disk.after_power_cut(Random(0), Loss.ALL)) as again:
        assert again.store.max_offset("orders", 0) == 10


async def test_a_repeated_decision_is_confirmed_no_sooner_than_the_first(asking):
    end, _ = await commit(asking)
    first, second = await asking.ask(end), await asking.ask(end)
    assert not first.done()
    assert not second.done()
    asking.broker.store.flush_due()
    assert [(await first).code, (await second).code] == [0, 0]


# -- overload: one count of what waits, whatever it is


@pytest.mark.parametrize("storing", [each for each in STORING if each is not reply])
async def test_nothing_is_taken_while_the_disk_stands_still(asking, clock, storing):
    header, body = await storing(asking)
    await asking.ask(send_header(), b"x")
    await clock.advance(2)
    before = asking.broker.store.max_log_offset
    response = await asking.caller.ask(header, body, code=2)
    assert response.remark == "[REJECTREQUEST]system busy, start flow control for a while"
    assert asking.broker.store.max_log_offset == before


@pytest.mark.parametrize("storing", STORING)
async def test_whatever_waits_for_a_disk_that_stands_still_keeps_others_out(asking, clock, storing):
    waiting = await asking.ask(*await storing(asking))
    await clock.advance(2)
    await asking.caller.ask(send_header(), b"x", code=2)
    asking.broker.store.flush_due()
    assert (await waiting).code == 0
    await asking.confirmed(send_header(), b"x")


async def test_a_reply_is_handed_over_while_the_disk_stands_still_and_not_stored(asking, clock):
    header, body = await reply(asking)
    await asking.ask(send_header(), b"x")
    await clock.advance(2)
    before = asking.broker.store.max_log_offset
    response = await asking.caller.ask(header, body)
    assert response.fields["msgId"] == "0"
    assert asking.broker.store.max_log_offset == before
