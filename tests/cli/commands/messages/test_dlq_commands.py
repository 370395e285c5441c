"""`pyromq dlq` against a real cluster, with dead letters of real consumers."""

import asyncio
import json

import pytest
from tests.waiting import PATIENCE_SECONDS

from pyromq.client.consumer.push.listener import GiveUp
from pyromq.client.consumer.push.push_consumer import AsyncConsumer
from pyromq.message import Message


async def die(cluster, group, messages):
    """Let a member of the group give up on each message; the body is the reason."""
    producer, died, done = await cluster.producer(), 0, asyncio.Event()

    async def give_up(batch):
        nonlocal died
        died += 1
        if died == len(messages):
            done.set()
        raise GiveUp(batch[0].body.decode())

    results = [await producer.send(message) for message in messages]
    consumer = AsyncConsumer(group, cluster.namesrv)
    for topic in {message.topic for message in messages}:
        consumer.subscribe(topic, give_up)
    async with consumer:
        await asyncio.wait_for(done.wait(), PATIENCE_SECONDS)
    return [result.message_id for result in results]


@pytest.fixture
def group(request):
    return f"dlq-{abs(hash(request.node.name))}"


@pytest.fixture
def bury(served, group):
    """Make dead letters of the test's own group out of bodies and return their ids."""

    def make(*bodies, topic=group, **fields):
        messages = [Message(topic, body.encode(), **fields) for body in bodies]
        return served.do(die(served.cluster, group, messages))

    return make


def outcomes(done):
    return [json.loads(line)["outcome"] for line in done.lines]


def test_dead_letters_are_listed_with_topic_and_reason(cli, bury, group):
    ids = bury("no such customer", tags="paid")

    listed = cli("dlq", "list", group)

    assert listed.code == 0
    assert listed.lines[0].split() == [
        *("message_id", "died", "original_topic", "attempts", "tags", "keys", "reason"),
    ]
    assert listed.lines[1].startswith(ids[0])
    assert listed.lines[1].endswith("paid  -     GiveUp: no such customer")


def test_a_list_as_json_has_everything(cli, bury, group):
    (message_id,) = bury("hello", keys="7")

    (letter,) = json.loads(cli("dlq", "list", group, "-o", "json").out)

    assert (letter["message_id"], letter["group"], letter["original_topic"]) == (message_id, group, group)
    assert (letter["reason"], letter["body"], letter["keys"]) == ("GiveUp: hello", "hello", ["7"])


def test_a_long_list_is_cut_and_says_so(cli, bury, group):
    bury("1", "2", "3")

    listed = cli("dlq", "list", group, "--count", "2")

    assert len(listed.lines) == 3
    assert listed.err == "1 more; --count N shows up to N\n"


def test_groups_with_dead_letters_are_listed(cli, bury, group):
    bury("1", "2")

    rows = json.loads(cli("dlq", "list", "-o", "json").out)

    assert {"group": group, "dead_letters": 2} in rows


def test_choosing_messages_without_a_group_is_wrong_usage(cli, served):
    assert cli("dlq", "list", "--tag", "paid").code == 2


def test_a_group_without_dead_letters_is_no_error(cli, served):
    cli("group", "create", "group-healthy")
    listed = cli("dlq", "list", "group-healthy")
    assert (listed.code, listed.err) == (0, "group group-healthy has no such dead letter\n")


def test_a_redrive_of_a_misspelt_group_is_an_error(cli, served):
    cli("group", "create", "group-misspelt")
    done = cli("dlq", "redrive", "group-misspelled", "--all")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: group group-misspelled does not exist")


def test_options_choose_dead_letters(cli, bury, group):
    bury("timeout", tags="paid")
    bury("key missing", tags="sent", keys="7")

    for option, value in (("--tag", "sent"), ("--key", "7"), ("--reason", "KEY")):
        (letter,) = json.loads(cli("dlq", "list", group, option, value, "-o", "json").out)
        assert letter["body"] == "key missing"


def test_one_dead_letter_is_shown_with_what_was_done_about_it(cli, bury, group):
    (message_id,) = bury("hello")
    cli("dlq", "redrive", group, "--all")

    letter = json.loads(cli("dlq", "show", group, message_id, "-o", "json").out)

    assert (letter["reason"], letter["body"]) == ("GiveUp: hello", "hello")
    assert [sent["topic"] for sent in letter["redriven"]] == [f"%RETRY%{group}"]


def test_an_unknown_dead_letter_is_one_line_of_error(cli, bury, group):
    bury("hello")
    failed = cli("dlq", "show", group, "F" * 32)
    assert (failed.code, failed.err) == (1, f"error: group {group} has no dead letter {'F' * 32}\n")


def test_redriving_tells_the_outcome_of_each_message(cli, bury, group):
    first, second = bury("1", "2")

    done = cli("dlq", "redrive", group, "--all")

    assert done.code == 0
    assert {line.split()[0] for line in done.lines} == {first, second}
    assert all(f"sent to %RETRY%{group} at broker-a queue 0 offset" in line for line in done.lines)
    assert done.err == "2 sent\n"


def test_a_dry_run_then_a_few_then_the_rest(cli, bury, group):
    bury("1", "2", "3")

    dry = cli("dlq", "redrive", group, "--all", "--dry-run", "-o", "json")
    few = cli("dlq", "redrive", group, "--all", "--count", "1", "-o", "json")
    rest = cli("dlq", "redrive", group, "--all", "--rate", "1000", "-o", "json")

    assert outcomes(dry) == ["would be sent"] * 3
    assert outcomes(few) == ["sent"]
    assert sorted(outcomes(rest)) == ["redriven before", "sent", "sent"]
    assert rest.err in ("1 redriven before, 2 sent\n", "2 sent, 1 redriven before\n")


def test_redriving_to_the_original_topic(cli, bury, group):
    bury("1")
    (line,) = cli("dlq", "redrive", group, "--reason", "giveup", "--to-origin").lines
    assert f"sent to {group} at broker-a" in line


def test_a_message_that_cannot_be_sent_makes_the_exit_code_1(cli, bury, group):
    bury("1")
    failed = cli("dlq", "redrive", group, "--all", "--to", "dlq-nowhere", "-o", "json")
    assert (failed.code, outcomes(failed)) == (1, ["failed"])
    assert failed.err.splitlines()[0].startswith("error: ") and failed.err.endswith("\n1 failed\n")
    failed = cli("dlq", "redrive", group, "--all", "--to", "dlq-nowhere")
    assert (failed.code, failed.out) == (1, "")


def test_redriving_needs_a_choice(cli, served, group):
    refused = cli("dlq", "redrive", group)
    assert refused.code == 2
    assert "or give --all" in refused.err


def test_two_destinations_are_refused(cli, served, group):
    refused = cli("dlq", "redrive", group, "--all", "--to-origin", "--to", "x")
    assert (refused.code, refused.err) == (
        1,
        "error: copies go to their original topics or to one topic, not to both\n",
    )


def test_nothing_to_send_is_said(cli, served):
    cli("group", "create", "group-unharmed")
    done = cli("dlq", "redrive", "group-unharmed", "--all")
    assert (done.code, done.out, done.err) == (0, "", "no messages to send\n")


def test_listing_the_dead_letters_of_a_group_that_is_not_there_says_so(cli, served):
    failed = cli("dlq", "list", "group-typo")
    assert (failed.code, failed.out) == (1, "")
    assert failed.err.startswith("error: group group-typo does not exist")
