"""Who may decide on batch transactions: the account that began one, and accounts with PUB on all its topics."""

import pytest
from tests.broker.folders import killed

from pyromq.broker.broker import Broker
from pyromq.errors import ResponseCode
from pyromq.names import TRACE_TOPIC
from pyromq.record import BatchMember, encode_batch
from pyromq.remoting.bodies import BatchAttempt, BatchAttempts, encode_body
from pyromq.remoting.headers import CommitBatch, FindBatch, ListBatches, RollBackBatch, SendHalfRun

from .asking import secret_of

TOPICS = {"owner-1": "[orders=PUB]", "half-12": "[bills=PUB]", "whole-1": "[orders=PUB, bills=PUB]", "bare-12": "[]"}
DENIED = ResponseCode.SYSTEM_ERROR


@pytest.fixture
def acl_file(acl_file):
    more = "".join(
        f"- {{accessKey: {name}, secretKey: {secret_of(name)}, topicPerms: {rights}}}\n"
        for name, rights in TOPICS.items()
    )
    acl_file.write_text("globalWhiteRemoteAddresses: [10.9.9.9]\n" + acl_file.read_text().lstrip() + more)
    return acl_file


def run(topic="orders", *, token="a", number=0, name="etl:17"):
    fields = {"producer_group": "p", "default_topic": "TBW102", "default_topic_queue_count": 4, "queue_id": 0}
    return SendHalfRun(topic=topic, transaction=name, token=token, number=number, born_ms=1, **fields)


BODY = encode_batch([BatchMember(7, b"1", "")])


def attempts(*tokens):
    return encode_body(BatchAttempts([BatchAttempt(token, 1) for token in tokens]))


async def listed(caller):
    found = await caller.body(ListBatches())
    assert found.count == len(found.batches)
    return [batch.transaction for batch in found.batches]


@pytest.fixture
async def begun(account):
    """A transaction of `owner-1`."""
    owner = await account("owner-1")
    for topic in ("orders", "bills"):
        await (await account("admin-1")).create_topic(topic)
    await owner.ask(run(), BODY)
    return owner


@pytest.mark.parametrize("name", ["half-12", "bare-12", "reader-1"])
async def test_an_account_without_the_right_decides_and_learns_nothing(account, begun, name):
    other = await account(name)
    for header in (CommitBatch(transaction="etl:17"), RollBackBatch(transaction="etl:17")):
        for body in (attempts("a"), attempts()):
            refused = await other.ask(header, body, code=DENIED)
            assert f"account {name} needs PUB on topic orders" in refused.remark
    assert await listed(other) == []
    assert await listed(begun) == ["etl:17"]
    await begun.ask(CommitBatch(transaction="etl:17"), attempts("a"))
    await other.ask(CommitBatch(transaction="etl:17"), attempts())  # decided: the answer is what counts


@pytest.mark.parametrize("name", ["writer-1", "whole-1", "admin-1"])
async def test_an_account_with_the_rights_may_decide(account, begun, name):
    other = await account(name)
    assert await listed(other) == ["etl:17"]
    await other.ask(CommitBatch(transaction="etl:17"), attempts("a"))


async def test_all_topics_of_a_transaction_count_for_others(account, begun):
    await (await account("whole-1")).ask(run("bills", token="b"), BODY)
    for name in ("writer-1", "half-12"):
        other = await account(name)
        await other.ask(CommitBatch(transaction="etl:17"), attempts("a"), code=DENIED)
        assert await listed(other) == []
    await begun.ask(RollBackBatch(transaction="etl:17"), attempts("a", "b"))


async def test_nobody_joins_a_transaction_without_its_rights(account, begun):
    refused = await (await account("half-12")).ask(run("bills", token="b"), BODY, code=DENIED)
    assert "account half-12 needs PUB on topic orders" in refused.remark
    trace = run(TRACE_TOPIC, name="etl:18")
    await (await account("bare-12")).ask(trace, BODY, code=ResponseCode.MESSAGE_ILLEGAL)


async def test_a_name_that_was_never_begun_cannot_be_decided_by_anybody(account):
    for name in ("bare-12", "admin-1"):
        caller = await account(name)
        await caller.ask(CommitBatch(transaction="etl:18"), attempts(), code=ResponseCode.BATCH_INCOMPLETE)
        await caller.ask(RollBackBatch(transaction="etl:18"), attempts("a"))
        await caller.ask(FindBatch(transaction="etl:18"), code=ResponseCode.QUERY_NOT_FOUND)


async def test_the_account_that_began_is_known_after_a_restart(account, account_at, guarded, config, clock, acl_file):
    await (await account("admin-1")).create_topic("orders")
    await (await account("owner-1")).ask(run(), BODY)
    await (await account("whole-1")).ask(run(token="b"), BODY)
    acl_file.write_text(acl_file.read_text().replace("owner-1}, topicPerms: [orders=PUB]", "owner-1}"))
    left = killed(config)
    async with Broker(left, clock) as broker:
        await (await account_at(broker, "half-12")).ask(CommitBatch(transaction="etl:17"), attempts("a"), code=DENIED)
        await (await account_at(broker, "owner-1")).ask(CommitBatch(transaction="etl:17"), attempts("a"))
