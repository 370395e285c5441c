"""Requests that the broker passes on to a group's members."""

import asyncio
from concurrent.futures import Future

import pytest
from tests.waiting import PATIENCE_SECONDS

from pyromq.errors import BrokerError
from pyromq.message import MessageQueue
from pyromq.record import decode
from pyromq.remoting.bodies import (
    ConsumeDirectlyResult,
    ConsumerRunning,
    ConsumerStatus,
    ResetOffsets,
    decode_body,
    encode_body,
)
from pyromq.remoting.command import Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import (
    ConsumeDirectly,
    ConsumerRunningState,
    ConsumerStatusOfClient,
    ConsumerStatusOfGroup,
    ResetClientOffset,
    ResetOffset,
    UpdateConsumerOffset,
)

QUEUES = [MessageQueue("orders", "broker-a", queue_id) for queue_id in range(2)]


class Consumer:
    """The answers of a group's member."""

    def __init__(self):
        self.resets = asyncio.Queue()

    @answers(ConsumerRunningState)
    def running(self, header, call):
        if header.stack_wanted:
            raise BrokerError("no stack today")
        return Reply(body=encode_body(ConsumerRunning(properties={"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY"})))

    @answers(ConsumeDirectly)
    def consume(self, header, call):
        remark = f"{header.broker_name}: {decode(call.body).body.decode()}"
        return Reply(body=encode_body(ConsumeDirectlyResult(result="CR_SUCCESS", remark=remark)))

    @answers(ConsumerStatusOfClient)
    def status(self, header, call):
        return Reply(body=encode_body(ConsumerStatus(queues={QUEUES[0]: 5})))

    @answers(ResetClientOffset)
    def reset(self, header, call):
        self.resets.put_nowait((header, decode_body(ResetOffsets, call.body).offsets))
        return Reply()


class Silent:
    """A member that never answers."""

    @answers(ConsumerRunningState, ConsumerStatusOfClient)
    def running(self, header, call):
        return Future()


@pytest.fixture
def consumer():
    return Consumer()


@pytest.fixture
async def member(broker, caller_to, consumer):
    member = await caller_to(broker, consumer)
    await member.beat("one", group="g")
    return member


def running(client_id="one", *, stack_wanted=False):
    return ConsumerRunningState(consumer_group="g", client_id=client_id, stack_wanted=stack_wanted)


async def test_a_members_state_is_asked_and_passed_on(caller, member):
    shown = await caller.body(running())
    assert shown.properties == {"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY"}


async def test_a_members_refusal_is_passed_on(caller, member):
    assert (await caller.ask(running(stack_wanted=True), code=1)).remark == "no stack today"


async def test_a_client_that_is_no_member_is_not_online(caller, member):
    refused = await caller.ask(running("nobody@nowhere"), code=1)
    assert refused.remark == "The Consumer <g> <nobody@nowhere> not online"


async def test_a_member_that_is_silent_for_ten_seconds_times_out(caller, broker, caller_to, clock):
    silent = await caller_to(broker, Silent())
    await silent.beat("one", group="g")
    asked = caller.channel.call_soon(running(), timeout=30)
    await caller.beat("other")  # by the time this is answered, the one before has been passed on
    await clock.advance(11)
    response = await asked
    assert (response.code, response.remark.startswith("consumer <g> <one> Timeout: ")) == (207, True)


async def test_a_stored_message_is_consumed_directly(caller, member):
    sent = await caller.send("orders", b"again, please")
    header = ConsumeDirectly(consumer_group="g", client_id="one", message_id=sent.message_id)
    result = await caller.body(header)
    assert (result.result, result.remark) == ("CR_SUCCESS", "broker-a: again, please")


async def commit(caller, *offsets):
    await caller.create_topic("orders", queues=2)
    for queue_id, offset in enumerate(offsets):
        header = UpdateConsumerOffset(consumer_group="g", topic="orders", queue_id=queue_id, commit_offset=offset)
        await caller.ask(header)


@pytest.mark.parametrize(("force", "expected"), [(True, [2, 0]), (False, [1, 0])])
async def test_members_are_told_new_offsets_and_only_force_goes_forward(caller, member, consumer, force, expected):
    await commit(caller, 1, 7)
    await caller.send("orders", queue_id=0)
    await caller.send("orders", queue_id=0)
    told = await caller.body(ResetOffset(topic="orders", group="g", timestamp=-1, force=force))
    header, offsets = await asyncio.wait_for(consumer.resets.get(), PATIENCE_SECONDS)
    assert offsets == told.offsets == dict(zip(QUEUES, expected, strict=True))
    assert (header.topic, header.group, header.force) == ("orders", "g", False)


async def test_members_that_have_stored_nothing_yet_can_be_moved(caller, member, consumer):
    await commit(caller)
    await caller.send("orders", queue_id=0)
    told = await caller.body(ResetOffset(topic="orders", group="g", timestamp=-1, force=True))
    _, offsets = await asyncio.wait_for(consumer.resets.get(), PATIENCE_SECONDS)
    assert offsets == told.offsets == {QUEUES[0]: 1, QUEUES[1]: 0}
    refused = await caller.ask(ResetOffset(topic="orders", group="g", timestamp=-1, force=False), code=1)
    assert refused.remark == "THe consumer group <g> not exist"


async def test_a_reset_needs_topic_offsets_and_members(caller):
    reset = ResetOffset(topic="orders", group="g", timestamp=0, force=True)
    assert "no topic in this broker" in (await caller.ask(reset, code=1)).remark
    await commit(caller, 1)
    assert (await caller.ask(reset, code=1)).remark == "THe consumer group <g> not exist"
    await commit(caller, 1, 1)
    await caller.ask(reset, code=206)


async def test_members_tell_their_own_offsets(caller, broker, caller_to, member, clock):
    silent = await caller_to(broker, Silent())
    await silent.beat("two", group="g")
    status = await caller.body(ConsumerStatusOfGroup(topic="orders", group="g", client_address="one"))
    assert status.clients == {"one": {QUEUES[0]: 5}}
    asked = caller.channel.call_soon(ConsumerStatusOfGroup(topic="orders", group="g"), timeout=30)
    await member.beat("one", group="g")
    await caller.beat("other")
    await clock.advance(6)
    assert set(decode_body(ConsumerStatus, (await asked).body).clients) == {"one"}


async def test_a_group_without_members_has_no_status(caller):
    refused = await caller.ask(ConsumerStatusOfGroup(topic="orders", group="g"), code=1)
    assert refused.remark == "No Any Consumer online in the consumer group: [g]"
