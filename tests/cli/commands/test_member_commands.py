import asyncio
import json
from contextlib import suppress

import pytest
from tests.waiting import PATIENCE_SECONDS

from pyromq import Message, MQError


@pytest.fixture
def working(served):
    """A member of a group that consumes a topic, whose listener fails at `bad`."""

    def begin(topic, group):
        async def start():
            producer = await served.cluster.producer()
            sent = await producer.send(Message(topic, b"good"))
            consumer = await served.cluster.push_consumer(group)

            def work(messages):
                if messages[0].body == b"bad":
                    raise ValueError("cannot be read")

            consumer.subscribe(topic, work)
            admin = await served.cluster.admin()
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not await is_member(admin, consumer, topic):
                    await asyncio.sleep(0.005)
            return consumer, sent

        return served.do(start())

    return begin


async def is_member(admin, consumer, topic):
    """Whether the broker knows it, and that it consumes the topic."""
    with suppress(MQError):
        state = await admin.members.running(consumer.group, consumer.client_id)
        return topic in {queue.topic for queue in state.queues}
    return False


def test_members_are_listed_with_what_is_wrong(cli, working):
    consumer, _ = working("member-listed", "member-list")

    listed = cli("member", "list", "member-list", "-o", "json")

    (row,) = json.loads(listed.out)
    assert (row["client_id"], row["version"], listed.code, listed.err) == (consumer.client_id, "V4_9_8", 0, "")
    missing = cli("member", "list", "member-nobody")
    assert (missing.code, missing.err) == (1, "error: consumer group 'member-nobody' has no member online\n")


def test_a_member_is_shown_with_settings_rates_and_stacks(cli, working):
    consumer, _ = working("member-shown", "member-show")

    shown = json.loads(cli("member", "show", "member-show", consumer.client_id, "--stacks", "-o", "json").out)

    assert shown["settings"]["consumerGroup"] == "member-show"
    assert {row["topic"] for row in shown["subscriptions"]} == {"member-shown", "%RETRY%member-show"}
    assert "member-shown" in {row["topic"] for row in shown["rates"]}
    assert "MainThread" in shown["stacks"]
    assert "rates:" in cli("member", "show", "member-show", consumer.client_id).lines
    assert cli("member", "show", "member-show", "nobody").code == 1


def test_a_member_consumes_one_message_and_the_exit_code_tells_how_that_went(cli, served, working):
    consumer, sent = working("member-told", "member-tell")
    consume = ("member", "consume", "member-tell", consumer.client_id)

    done = cli(*consume, sent.message_id, "--topic", "member-told", "-o", "json")
    assert (done.code, json.loads(done.out)["result"]) == (0, "CR_SUCCESS")

    async def send_bad():
        return await (await served.cluster.producer()).send(Message("member-others", b"bad"))

    bad = served.do(send_bad())
    failed = cli(*consume, bad.offset_message_id, "-o", "json")
    assert failed.code == 1
    assert cli(*consume, "no id").code == 1


def test_members_offsets_and_producers_are_listed(cli, working):
    consumer, _ = working("member-far", "member-how")

    offsets = cli("member", "offsets", "member-how", "member-far", "-o", "json")
    assert {row["client_id"] for row in json.loads(offsets.out)} <= {consumer.client_id}
    assert cli("member", "offsets", "member-nobody", "member-far").code == 1
    rows = json.loads(cli("member", "producers", "-o", "json").out)
    assert "test-producer" in {row["group"] for row in rows}


def test_tracks_of_a_message_are_shown_by_group(cli, working):
    _, sent = working("member-tracked", "member-tracks")
    (row,) = json.loads(cli("message", "tracks", sent.message_id, "--topic", "member-tracked", "-o", "json").out)
    assert row["group"] == "member-tracks"
    assert row["state"] in ("CONSUMED", "NOT_CONSUME_YET")
