"""A follower answers reads, refuses writes, and becomes the master in place."""

import pytest
from tests.broker.headers import batch_header, pull_header, send_header

from pyromq.broker.broker import Broker
from pyromq.broker.role import BrokerRole
from pyromq.errors import StoreNotWritable, UsageError
from pyromq.message import StoredMessage
from pyromq.record import decode_all
from pyromq.remoting.bodies import GroupConfig, encode_body
from pyromq.remoting.header import request_headers
from pyromq.remoting.headers import (
    AllTopics,
    CreateTopic,
    DeleteGroup,
    DeleteTopic,
    EndTransaction,
    FindBatch,
    PullMessageResponse,
    QueryConsumerOffset,
    RecallMessage,
    SaveGroup,
    SendMessageBack,
    UpdateConsumerOffset,
)

MASTER = "10.0.0.1:10911"


@pytest.fixture
async def stored(config, clock, caller_to):
    """A folder with one message in topic orders."""
    async with Broker(config, clock) as master:
        caller = await caller_to(master)
        await caller.create_topic("orders")
        await caller.send("orders", b"kept")
        await caller.ask(SaveGroup(), encode_body(GroupConfig(name="c")))


@pytest.fixture
async def follower(config, clock, stored):
    async with Broker(config, clock, role=BrokerRole(1)) as follower:
        follower.role.follow(MASTER, None)
        yield follower


@pytest.fixture
async def caller(follower, caller_to):
    return await caller_to(follower)


WRITES = {
    14: [
        send_header(),
        batch_header(),
        SendMessageBack(group="c", offset=0, delay_level=0),
        FindBatch(transaction="x"),
    ],
    11: [
        RecallMessage(producer_group="p", topic="orders", recall_handle="x"),
        EndTransaction(producer_group="p", half_queue_offset=0, log_offset=0, decision=8, message_id="x"),
    ],
    1: [
        CreateTopic(topic="t", read_queues=1, write_queues=1, permission=6),
        DeleteTopic(topic="orders"),
        SaveGroup(),
        DeleteGroup(group="c"),
    ],
}


@pytest.mark.parametrize(
    ("code", "header"), [(code, header) for code, headers in WRITES.items() for header in headers], ids=repr
)
async def test_a_follower_refuses_writes_and_names_the_master(follower, caller, code, header):
    end = follower.store.max_log_offset

    response = await caller.ask(header, b"{}", code=code)

    assert response.remark.endswith(f"not the master: {MASTER}")
    assert follower.store.max_log_offset == end
    assert follower.topics.find("t") is None and follower.topics.find("orders") is not None


async def test_without_a_known_master_the_refusal_says_so(follower, caller):
    follower.role.follow(None, None)

    response = await caller.ask(send_header(), b"x", code=14)

    assert response.remark == "not the master: no master is known"


async def test_a_follower_serves_pulls_and_tables(caller):
    assert await caller.bodies("orders") == [b"kept"]
    assert "orders" in (await caller.body(AllTopics())).topics


async def test_a_follower_never_corrects_an_offset(caller):
    response = await caller.pull("orders", offset=7)

    assert (response.code, response.header(PullMessageResponse).next_offset) == (20, 7)


async def test_a_follower_corrects_offsets_if_it_is_told_to(follower, caller):
    follower.config.check_offsets_on_slave = True

    response = await caller.pull("orders", offset=7)

    assert (response.code, response.header(PullMessageResponse).next_offset) == (21, 1)
    assert follower.store.max_offset("OFFSET_MOVED_EVENT", 0) == 0  # a follower appends nothing


async def test_a_follower_stores_committed_offsets_but_not_those_of_pulls(caller):
    await caller.channel.call(pull_header(sys_flag=5, commit_offset=1), timeout=20)
    ask = QueryConsumerOffset(consumer_group="c", topic="orders", queue_id=1, zero_if_not_found=False)
    await caller.ask(ask, code=22)
    await caller.ask(UpdateConsumerOffset(consumer_group="c", topic="orders", queue_id=1, commit_offset=5))
    await caller.ask(ask)


async def test_a_follower_creates_neither_groups_nor_topics(follower, caller):
    await caller.beat("client", group="unknown")
    await caller.channel.call(pull_header(consumer_group="unknown"), timeout=20)

    assert "unknown" not in follower.groups
    assert follower.topics.find("%RETRY%unknown") is None


async def test_a_promoted_follower_takes_writes_under_a_new_version_of_its_topics(follower, caller, caller_to):
    waiting = caller.pull("orders", offset=1, suspend_ms=15_000)
    await caller.beat("client", group="c")
    before = follower.topics.version
    await follower.promote(epoch=3)

    await caller.send("orders", b"new")

    assert [message.body for message in decode_all((await waiting).body)] == [b"new"]
    assert await caller.bodies("orders") == [b"kept", b"new"]
    assert (follower.role.is_master, follower.role.broker_id, follower.role.epoch) == (True, 0, 3)
    assert follower.topics.version.counter == before.counter + 1
    with pytest.raises(UsageError, match="the master already"):
        await follower.promote()


async def test_no_part_of_a_follower_can_append(follower):
    with pytest.raises(StoreNotWritable, match="only what its master sends"):
        follower.store.append(StoredMessage("orders", b"x", ""))


async def test_offsets_behind_the_end_of_a_queue_are_lowered_by_a_promotion(follower):
    follower.offsets.commit("c", "orders", 0, 9)
    follower.offsets.commit("c", "orders", 1, 9)
    follower.offsets.commit("d", "orders", 0, 1)

    await follower.promote()

    found = [follower.offsets.find(*at) for at in (("c", "orders", 0), ("c", "orders", 1), ("d", "orders", 0))]
    assert found == [1, 0, 1]


async def test_a_master_that_steps_down_refuses_the_next_send(config, clock, caller_to):
    async with Broker(config, clock, role=BrokerRole(1, is_master=True, epoch=1)) as master:
        caller = await caller_to(master)
        await caller.create_topic("orders")
        for _ in range(3):
            await caller.send("orders")  # the compiled path knows the topic now

        master.role.step_down(MASTER, epoch=2)

        response = await caller.ask(send_header(), b"x", code=14)
        assert response.remark.endswith(f"not the master: {MASTER}")
        assert (master.role.broker_id, master.store.max_offset("orders", 0)) == (1, 3)


def test_a_broker_with_number_0_cannot_step_down():
    with pytest.raises(ValueError, match="number 0"):
        BrokerRole().step_down()


READS = {
    *("PullMessage", "LitePullMessage", "QueryConsumerOffset", "UpdateConsumerOffset", "MaxOffset", "MinOffset"),
    *("SearchOffset", "EarliestStoreTime", "ConsumerList", "LockQueues", "UnlockQueues", "Heartbeat"),
    *("UnregisterClient", "CheckClient", "AllTopics", "TopicSettings", "AllGroups", "AllConsumerOffsets"),
    *("AllDelayOffsets", "CorrectionOffsets", "BrokerSystemTopics", "BrokerSettings", "SaveBrokerSettings"),
    *("BrokerState", "BrokerStatistics", "BrokerFigures", "CleanQueues", "DeleteExpiredLog", "CloneGroupOffset"),
    *("ConsumerConnections", "ProducerConnections", "AllProducers", "ConsumerRunningState", "ConsumeDirectly"),
    *("ResetOffset", "ConsumerStatusOfGroup", "ConsumeTimeSpan", "QueryMessage", "ViewMessage", "QueueEntries"),
    *("TopicStatistics", "ConsumeStatistics", "BrokerConsumeStatistics", "TopicConsumers", "ListTimers"),
    *("CountTimers", "ListHalfMessages", "ListBatches", "SaveAccount", "DeleteAccount", "AccountsVersion"),
    *("SaveWhiteList", "ListAccounts", "PollingInfo", "QueryAssignment"),
}


def test_every_request_is_either_refused_by_followers_or_known_to_append_nothing(config, clock):
    """A new request must be entered here or in `WriteRefusals`."""
    dispatcher = Broker(config, clock, role=BrokerRole(1)).dispatcher
    names = {code: header.__name__ for code, header in request_headers().items()}
    own = {names[code] for code in dispatcher.codes}
    refused = {
        names[code]
        for code, answer in dispatcher._table.items()
        if type(getattr(answer, "__self__", None)).__name__ == "WriteRefusals"
    }
    assert own - refused == READS & own
    assert len(refused) > 15
