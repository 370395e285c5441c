"""Batch transactions at real brokers: many messages, one decision, whatever is repeated, cut or killed."""

import asyncio
from contextlib import suppress

import pytest

from pyromq import (
    AsyncBatchTransactions,
    BatchTransactions,
    ConnectionConfig,
    Message,
    MessageQueue,
    ProducerConfig,
    UsageError,
)
from pyromq.client.producer.batch_transactions import RUN_BYTES, AttemptResult
from pyromq.errors import BatchDecided, BatchIncomplete, IllegalMessage, NotRunning, Unavailable
from pyromq.remoting.headers import CommitBatch, SendHalfRun
from pyromq.testing import Cluster
from pyromq.testing.fake_clock import settle


@pytest.fixture
async def cluster():
    async with Cluster() as cluster:
        yield cluster


@pytest.fixture
async def batches(cluster):
    async with AsyncBatchTransactions("etl", cluster.namesrv) as batches:
        yield batches


async def bodies(cluster, topic="orders"):
    """Return what can be seen, queue by queue."""
    await settle()
    found = []
    for broker in cluster.brokers:
        for queue_id in broker.store.queue_ids(topic):
            entries = broker.store.entries(topic, queue_id, 0, 100_000)
            found += [broker.store.message_at(entry.log_offset).body.decode() for entry in entries]
    return found


def messages(*texts):
    return [Message("orders", text.encode()) for text in texts]


async def attempt_of(batches, *texts, name="t", **choice):
    async with batches.attempt(name) as attempt:
        await attempt.send(messages(*texts), **choice)
    return attempt.result


async def test_attempts_become_visible_by_one_commit(cluster, batches):
    first, second = await attempt_of(batches, "1", "2"), await attempt_of(batches, "3")
    assert (await batches.lookup("t"), await bodies(cluster)) == (None, [])
    outcome = await batches.commit("t", [first, second])
    assert (outcome.tokens, outcome.messages, outcome.by_this) == ({first.token, second.token}, 3, True)
    assert sorted(await bodies(cluster)) == ["1", "2", "3"]
    assert (await batches.lookup("t")).visible


async def test_who_commits_second_is_told_what_counts(cluster, batches):
    first, second = await attempt_of(batches, "1"), await attempt_of(batches, "2")
    await batches.commit("t", [first])
    outcome = await batches.commit("t", [second])
    assert (outcome.tokens, outcome.by_this) == ({first.token}, False)
    assert await bodies(cluster) == ["1"]
    with pytest.raises(BatchDecided, match="is too late"):
        await attempt_of(batches, "3")


async def test_a_block_that_raises_leaves_an_attempt_that_does_not_count(cluster, batches):
    with pytest.raises(ZeroDivisionError):
        async with batches.attempt("t") as attempt:
            await attempt.send(messages("1"))
            raise ZeroDivisionError
    assert attempt.result is None
    await batches.commit("t", [await attempt_of(batches, "2")])
    assert await bodies(cluster) == ["2"]


async def test_a_rolled_back_attempt_cannot_win(batches):
    result = await attempt_of(batches, "1")
    await batches.rollback("t", [result])
    with pytest.raises(BatchIncomplete, match="has 0 messages here, not the 1"):
        await batches.commit("t", [result])


async def test_many_messages_of_one_queue_keep_their_order(cluster, batches):
    texts = [f"{number:06} " + 1000 * "x" for number in range(3 * RUN_BYTES // 1000)]
    result = await attempt_of(batches, *texts, ordering_key="k")
    await batches.commit("t", [result])
    while not (await batches.lookup("t")).visible:
        await settle()
    assert await bodies(cluster) == texts


async def test_a_queue_may_be_chosen(cluster, batches):
    queue = MessageQueue("orders", "broker-a", 3)
    result = await attempt_of(batches, "1", queue=queue)
    await batches.commit("t", [result])
    await settle()
    assert cluster.broker.store.max_offset("orders", 3) == 1
    with pytest.raises(UsageError, match="one of queue and ordering_key"):
        await attempt_of(batches, "1", queue=queue, ordering_key="k", name="u")


@pytest.mark.parametrize("error", [None, RuntimeError("ours")], ids=["finished", "given up"])
async def test_an_attempt_that_is_over_takes_nothing_more(batches, error):
    with suppress(RuntimeError):
        async with batches.attempt("t") as attempt:
            await attempt.send([Message("orders", b"1")])
            if error is not None:
                raise error
    with pytest.raises(UsageError, match="the attempt at 't' is over; begin another one"):
        await attempt.send([Message("orders", b"2")])
    if error is not None:
        with pytest.raises(UsageError, match="has no result and cannot win 't'"):
            await batches.commit("t", [attempt.result])


async def test_what_cannot_be_sent_is_refused(batches):
    for wrong in (Message("paid", b"alone"), [b"no message"], None):
        with pytest.raises(IllegalMessage, match="a batch"):
            async with batches.attempt("s") as attempt:
                await attempt.send(wrong)
    with pytest.raises(IllegalMessage, match="cannot be sent in a batch"):
        async with batches.attempt("t") as attempt:
            await attempt.send([Message("orders", b"1", delay_level=3)])
    with pytest.raises(UsageError, match="an attempt at 't' cannot win 'u'"):
        await batches.commit("u", [AttemptResult("t", "a", {})])


async def test_two_brokers_show_their_parts_of_one_decision():
    async with Cluster(brokers=2) as cluster, AsyncBatchTransactions("etl", cluster.namesrv) as batches:
        results = [await attempt_of(batches, str(number)) for number in range(16)]
        assert {name for result in results for name in result.messages} == {"broker-a", "broker-b"}
        outcome = await batches.commit("t", results)
        assert outcome.messages == 16
        assert sorted(await bodies(cluster), key=int) == [str(number) for number in range(16)]


async def commit_at_ledger_only(cluster, results):
    """Commit while the second broker is away, and start it again."""
    await cluster.stop_broker(1)
    async with AsyncBatchTransactions("etl", cluster.namesrv, timeout=0.5) as hasty:
        while cluster.brokers[0].batches.find("t") is None:  # the ledger may answer too late for such a timeout
            with pytest.raises(Unavailable):
                await hasty.commit("t", results)
    await cluster.start_broker(1)


async def test_a_commit_that_did_not_reach_every_broker_is_finished_by_the_next():
    async with Cluster(brokers=2) as cluster, AsyncBatchTransactions("etl", cluster.namesrv) as batches:
        await commit_at_ledger_only(cluster, [await attempt_of(batches, str(number)) for number in range(16)])
        outcome = await batches.commit("t", [])  # a repeated job may know nothing of the first attempts
        assert (outcome.by_this, outcome.messages) == (False, 16)
        assert len(await bodies(cluster)) == 16


async def test_a_rollback_after_a_commit_that_did_not_reach_every_broker_changes_nothing():
    async with Cluster(brokers=2) as cluster, AsyncBatchTransactions("etl", cluster.namesrv) as batches:
        results = [await attempt_of(batches, str(number)) for number in range(16)]
        await commit_at_ledger_only(cluster, results)
        await batches.rollback("t", results)
        await batches.commit("t", results)
        assert len(await bodies(cluster)) == 16


async def test_the_ledger_knows_names_whose_messages_are_all_elsewhere():
    elsewhere = MessageQueue("orders", "broker-b", 0)
    async with Cluster(brokers=2) as cluster, AsyncBatchTransactions("etl", cluster.namesrv) as batches:
        invented = AttemptResult("t", "invented", {"broker-b": 1})
        with pytest.raises(BatchIncomplete, match="'t' cannot be committed: this broker has no messages of it"):
            await batches.commit("t", [invented])
        lost, result = [await attempt_of(batches, text, queue=elsewhere) for text in ("lost", "1")]
        assert {each.broker_name: each.messages for each in await batches.undecided("t")} == {
            "broker-a": {lost.token: 0, result.token: 0},
            "broker-b": {lost.token: 1, result.token: 1},
        }
        await batches.rollback("t", [lost])
        outcome = await batches.commit("t", [result], content="one")
        assert (outcome.messages, await bodies(cluster)) == (1, ["1"])
        assert {broker.batches.find("t").content for broker in cluster.brokers} == {"one"}
        assert await batches.undecided() == []


async def test_the_ledger_may_be_named():
    async with Cluster(brokers=2) as cluster:
        async with AsyncBatchTransactions("etl", cluster.namesrv, ledger="broker-b") as batches:
            result = await attempt_of(batches, "1")
            await batches.commit("t", [result])
        assert cluster.brokers[1].batches.find("t") is not None
        with pytest.raises(UsageError, match="no broker 'broker-z' is registered"):
            async with AsyncBatchTransactions("etl", cluster.namesrv, ledger="broker-z"):
                pass


async def test_the_ledger_stays_the_same_while_its_broker_is_away():
    async with Cluster(brokers=2) as cluster:
        async with AsyncBatchTransactions("etl", cluster.namesrv) as batches:
            result = await attempt_of(batches, "1", queue=MessageQueue("orders", "broker-a", 0))
            await batches.commit("t", [result])
        await cluster.stop_broker(0)
        async with AsyncBatchTransactions("etl", cluster.namesrv, timeout=0.2) as batches:
            with pytest.raises(Unavailable, match=r"broker 'broker-a' is not registered.*ledger"):
                await batches.commit("u", [AttemptResult("u", "token", {"broker-b": 1})])
            with pytest.raises(Unavailable, match=r"broker 'broker-a' is not registered.*ledger"):
                await batches.lookup("t")  # whether "t" is decided is not known
            assert {queue.broker_name for queue in await batches.runs.queues("orders")} == {"broker-b"}
        await cluster.start_broker(0)
        async with AsyncBatchTransactions("etl", cluster.namesrv) as batches:
            assert (await batches.lookup("t")).tokens == {result.token}


@pytest.mark.parametrize("away", [0, 1], ids=["ledger", "other broker"])
async def test_messages_of_a_broker_that_is_away_are_not_visible(away):
    async with Cluster(brokers=2) as cluster, AsyncBatchTransactions("etl", cluster.namesrv) as batches:
        async with batches.attempt("t") as attempt:
            for broker in ("broker-a", "broker-b"):
                await attempt.send(messages(broker), queue=MessageQueue("orders", broker, 0))
        await batches.commit("t", [attempt.result])
        await cluster.stop_broker(away)
        assert not (await batches.lookup("t")).visible
        await cluster.start_broker(away)
        assert (await batches.lookup("t")).visible


async def test_runs_whose_answers_are_lost_count_once():
    async with (
        Cluster(linked=True) as cluster,
        AsyncBatchTransactions("etl", cluster.namesrv) as batches,
        batches.attempt("t") as attempt,
    ):
        await attempt.send(messages("0"), ordering_key="k")
        (link,) = cluster.links
        link.answers.pause()
        await attempt.send(messages("1", "2"), ordering_key="k")
        while cluster.broker.batches._runs.first_needed(-1) < 0:
            await asyncio.sleep(0)
        link.answers.resume()
        link.cut()
        result = await attempt.finish()
        await batches.commit("t", [result])
        assert await bodies(cluster) == ["0", "1", "2"]


@pytest.mark.parametrize("moment", ["before the commit", "after the commit"])
async def test_a_killed_broker_goes_on_where_it_was(moment, cluster, batches):
    result = await attempt_of(batches, "1", "2", "3")
    if moment == "after the commit":
        await batches.commit("t", [result])
    await cluster.kill_broker()
    await cluster.start_broker()
    outcome = await batches.commit("t", [result])
    assert outcome.by_this == (moment == "before the commit")
    assert await bodies(cluster) == ["1", "2", "3"]


async def test_a_closed_client_says_so(cluster):
    batches = AsyncBatchTransactions("etl", cluster.namesrv)
    await batches.start()
    await batches.close()
    with pytest.raises(NotRunning):
        await batches.lookup("t")


async def test_an_attempt_whose_client_is_closed_is_not_whole():
    async with Cluster(linked=True) as cluster:
        batches = AsyncBatchTransactions("etl", cluster.namesrv)
        await batches.start()
        attempt = batches.attempt("t")
        await attempt.send(messages("0"))
        cluster.links[0].answers.pause()
        await attempt.send(messages("1", "2"))
        finishing = asyncio.create_task(attempt.finish())
        await asyncio.sleep(0)
        await batches.close()
        with pytest.raises(Unavailable, match="messages were not acknowledged"):
            await finishing


async def test_the_blocking_client_does_the_same(cluster):
    def work():
        with BatchTransactions("etl", cluster.namesrv) as batches:
            with batches.attempt("t") as attempt:
                attempt.send(messages("1", "2"))
            first = batches.commit("t", [attempt.result])
            again = batches.commit("t", [])
            batches.rollback("t", [attempt.result])
            return first, again, batches.lookup("t"), batches.lookup("u")

    first, again, found, other = await asyncio.to_thread(work)
    assert (first.by_this, again.by_this, found.tokens, other) == (True, False, first.tokens, None)
    assert await bodies(cluster) == ["1", "2"]


async def test_connections_are_made_as_the_settings_say(cluster):
    class Noting:
        def before_request(self, request):
            codes.add(request.code)

        def after_response(self, request, outcome):
            pass

    codes = set()
    config = ProducerConfig(connections=ConnectionConfig(hooks=(Noting(),)))
    async with AsyncBatchTransactions("etl", cluster.namesrv, config=config) as batches:
        async with batches.attempt("etl:1") as attempt:
            await attempt.send(messages("a"))
        await batches.commit("etl:1", [attempt.result])
    assert codes >= {SendHalfRun.code, CommitBatch.code}
