"""`pyromq transaction` against a real cluster, with half messages whose producer is gone."""

import json

import pytest

from pyromq import AsyncBatchTransactions, AsyncTransactionProducer, Decision, Message


async def leave(cluster, group, messages):
    async with AsyncTransactionProducer(group, cluster.namesrv, check=lambda _: Decision.UNKNOWN) as producer:
        return [(await producer.send_half(message)).message_id for message in messages]


@pytest.fixture
def group(request):
    return f"transaction-{abs(hash(request.node.name))}"


@pytest.fixture
def leave_open(served, group):
    """Leave half messages of the test's own group and topic undecided, and return their ids."""

    def make(*bodies, **fields):
        return served.do(leave(served.cluster, group, [Message(group, body.encode(), **fields) for body in bodies]))

    return make


def listed(cli, group):
    return [half["message_id"] for half in json.loads(cli("transaction", "list", "--group", group, "-o", "json").out)]


def consumed(cli, topic):
    return cli("consume", topic, "--from", "beginning", "--until", "now").lines


def test_undecided_ones_are_listed(cli, leave_open, group):
    (message_id,) = leave_open("hello", tags="paid", keys="7")

    done = cli("transaction", "list", "--topic", group)

    assert done.code == 0
    assert done.lines[0].split() == ["message_id", "sent", "producer_group", "topic", "checks", "tags", "keys"]
    words = done.lines[1].split()
    assert (words[0], words[-5:]) == (message_id, [group, group, "0", "paid", "7"])


def test_a_list_is_cut_and_says_so(cli, leave_open, group):
    leave_open("1", "2", "3")
    done = cli("transaction", "list", "--group", group, "--count", "2")
    assert (len(done.lines), done.err) == (3, "1 more; --count N shows up to N\n")


def test_nothing_undecided_is_no_error(cli, served):
    done = cli("transaction", "list", "--group", "nobody")
    assert (done.code, done.err) == (0, "there are no such half messages\n")


def test_one_is_shown_with_its_body_and_where_it_would_go(cli, leave_open, group):
    (message_id,) = leave_open("hello")
    shown = json.loads(cli("transaction", "show", message_id, "-o", "json").out)
    assert (shown["message_id"], shown["topic"], shown["producer_group"]) == (message_id, group, group)
    assert (shown["body"], shown["checks"], shown["broker"]) == ("hello", 0, "broker-a")


def test_an_unknown_one_is_one_line_of_error(cli, served):
    failed = cli("transaction", "show", "F" * 32)
    assert (failed.code, len(failed.err.splitlines())) == (1, 1)
    assert failed.err.startswith(f"error: no undecided half message has id {'F' * 32}")


def test_committed_ones_are_consumed_and_rolled_back_ones_never(cli, leave_open, group):
    first, second, third = leave_open("1", "2", "3")

    committed = cli("transaction", "commit", first, third)
    rolled_back = cli("transaction", "rollback", second)

    assert (committed.code, committed.lines) == (0, [f"{first}  committed", f"{third}  committed"])
    assert (rolled_back.code, rolled_back.lines) == (0, [f"{second}  rolled back"])
    assert sorted(consumed(cli, group)) == ["1", "3"]
    assert listed(cli, group) == []


def test_one_that_cannot_be_decided_makes_the_exit_code_1_and_does_not_stop_the_others(cli, leave_open, group):
    (message_id,) = leave_open("1")

    done = cli("transaction", "rollback", "F" * 32, message_id, "-o", "json")

    assert done.code == 1
    assert [json.loads(line)["outcome"] for line in done.lines] == ["failed", "rolled back"]
    again = cli("transaction", "commit", message_id)
    assert (again.code, again.out) == (1, "")
    assert again.err.startswith(f"error: {message_id} is not committed: no undecided half message")
    assert listed(cli, group) == []


def test_deciding_needs_an_id(cli, served):
    assert cli("transaction", "commit").code == 2


async def attempt(cluster, name, *bodies, commit=False):
    async with AsyncBatchTransactions("cli", cluster.namesrv) as batches:
        async with batches.attempt(name) as attempt:
            await attempt.send([Message("batches", body) for body in bodies])
        if commit:
            await batches.commit(name, [attempt.result])


def test_undecided_batches_are_listed(cli, served, group):
    served.do(attempt(served.cluster, group, b"1", b"2"))
    found = json.loads(cli("transaction", "batches", "-o", "json").out)
    (batch,) = [each for each in found if each["transaction"] == group]
    assert (batch["broker"], batch["attempts"], batch["messages"]) == ("broker-a", 1, 2)


def test_a_decided_batch_is_shown(cli, served, group):
    served.do(attempt(served.cluster, group, b"1", b"2", commit=True))
    shown = json.loads(cli("transaction", "batch", group, "-o", "json").out)
    assert (shown["messages"], len(shown["tokens"])) == (2, 1)


def test_a_batch_that_is_not_decided_is_an_error(cli, served):
    done = cli("transaction", "batch", "nothing")
    assert done.code != 0
    assert "batch transaction 'nothing' is undecided" in done.err
