import json

import pytest
from tests.waiting import wait_until


def test_group_is_created_listed_and_deleted(cli, served):
    assert cli("group", "create", "group-life", "--retries", "3").code == 0

    rows = json.loads(cli("group", "list", "-o", "json").out)
    assert {"group": "group-life", "members": 0, "lag": 0, "delay_seconds": 0.0} in rows
    assert cli("group", "delete", "group-life", "--yes").code == 0
    assert "group-life" not in cli("group", "list").out


def test_a_group_is_created_altered_and_deleted_in_one_cluster_or_at_one_broker(cli, served):
    place = ("--broker", "broker-a", "--cluster", "DefaultCluster")
    created = cli("group", "create", "group-placed", *place)
    assert created.out == "group group-placed is created in cluster DefaultCluster on broker broker-a\n"
    altered = cli("group", "alter", "group-placed", "--retries", "3", *place)
    assert altered.lines[1].split() == ["broker-a", "retries", "16", "3"]
    assert cli("group", "alter", "group-placed", *place).code == 2  # nothing to change
    deleted = cli("group", "delete", "group-placed", *place, stdin=b"y\n")
    assert "its offsets in cluster DefaultCluster on broker broker-a?" in deleted.err
    elsewhere = cli("group", "create", "group-placed", "--broker", "elsewhere")
    assert "broker 'elsewhere' is not registered; there is broker-a" in elsewhere.err


def test_creating_a_group_that_exists_changes_nothing_and_altering_only_what_is_given(cli, served):
    def settings():
        return next(each for each in served.do(read()) if each.name == "group-twice")

    async def read():
        return await (await served.cluster.admin()).groups()

    cli("group", "create", "group-twice", "--retries", "3", "--no-broadcast")

    refused = cli("group", "create", "group-twice")
    assert (refused.code, refused.out) == (1, "")
    told = "group group-twice exists already, at broker-a; `pyromq group alter` changes it"
    assert refused.err == f"error: {told}\n"
    assert (settings().retry_max_times, settings().broadcast_enabled) == (3, False)

    altered = cli("group", "alter", "group-twice", "--retries", "5", "--disabled")
    assert [line.split() for line in altered.lines[1:]] == [
        ["broker-a", "retries", "3", "5"],
        ["broker-a", "enabled", "yes", "no"],
    ]
    assert (settings().retry_max_times, settings().broadcast_enabled, settings().consume_enabled) == (5, False, False)
    assert (
        cli("group", "alter", "group-twice", "--retries", "5").err == "group group-twice has these settings already\n"
    )


def test_a_group_is_orderly_for_consumers_that_pop(cli, served):
    cli("group", "create", "group-in-order", "--orderly")

    assert [each["orderly"] for each in json.loads(cli("group", "settings", "group-in-order", "-o", "json").out)] == [
        True
    ]
    altered = cli("group", "alter", "group-in-order", "--no-orderly")
    assert altered.lines[1].split() == ["broker-a", "orderly", "yes", "no"]


@pytest.mark.parametrize(
    "command",
    [
        ("group", "show", "group-typo"),
        ("group", "progress", "group-typo"),
        ("group", "delete", "group-typo"),
        ("group", "alter", "group-typo", "--retries", "1"),
        ("offset", "set", "group-typo", "group-known", "broker-a", "0", "0"),
        ("offset", "reset", "group-typo", "group-known", "--to", "end"),
    ],
)
def test_an_unknown_group_is_refused_by_name(cli, served, command):
    cli("send", "group-known", "1")
    refused = cli(*command)

    assert (refused.code, refused.out) == (1, "")
    assert refused.err == "error: group group-typo does not exist; `pyromq group list` lists existing groups\n"
    assert "group-typo" not in cli("group", "list", "--all").out


def test_built_in_groups_are_shown_when_asked_for(cli, served):
    assert "TOOLS_CONSUMER" not in cli("group", "list").out
    assert "TOOLS_CONSUMER" in cli("group", "list", "--all").out


def test_members_and_subscriptions_are_shown(cli, served):
    cli("topic", "create", "group-topic")

    async def join():
        consumer = await served.cluster.consumer("group-members")
        await consumer.assign(await consumer.queues("group-topic"), tags="a || b")

    served.do(join())
    shown = json.loads(cli("group", "show", "group-members", "-o", "json").out)
    assert (shown["online"], shown["subscriptions"]) == (1, {"group-topic": "a || b"})
    lines = cli("group", "show", "group-members").lines
    assert lines[lines.index("members:") + 2].startswith(shown["members"][0]["client_id"])


def test_group_without_members_has_none_online(cli, served):
    cli("group", "create", "group-empty")
    shown = json.loads(cli("group", "show", "group-empty", "-o", "json").out)
    assert shown == {
        "group": "group-empty",
        "online": 0,
        "model": None,
        "type": None,
        "subscriptions": {},
        "lag": 0,
        "in_flight": 0,
        "members": [],
        "differences": [],
        "queues": [],
    }


def test_what_is_left_and_who_has_the_locks_is_shown_by_queue(cli, served):
    cli("send", "group-locks", stdin=b"1\n2\n3\n4\n")

    async def join():
        consumer = await served.cluster.consumer("group-owners")
        consumer.subscribe("group-locks")
        while len(await consumer.poll(0.1)) + len(consumer.assignment) < 5:  # the queues are ours
            pass
        await consumer.commit()
        return consumer.client_id

    member = served.do(join())
    served.pass_time(2500)
    cli("send", "group-locks", stdin=b"5\n6\n7\n8\n9\n")

    shown = json.loads(cli("group", "show", "group-owners", "-o", "json").out)
    assert {(row["lock_holder"], row["lock_seconds"] >= 2.5) for row in shown["queues"]} == {(member, True)}
    assert len(shown["queues"]) == 4
    assert shown["lag"] == sum(row["lag"] for row in shown["queues"]) >= 5
    assert shown["members"][0]["subscriptions"] == {"group-locks": "*"}
    assert any(line.endswith("2.5") and member in line for line in cli("group", "show", "group-owners").lines)


def test_members_that_subscribe_differently_are_shown_by_name(cli, served):
    async def join():
        members = []
        for tags in ("a", "b || c"):
            consumer = await served.cluster.consumer("group-differs")
            consumer.subscribe("group-differences", tags=tags)
            members.append(consumer.client_id)
        return members

    cli("topic", "create", "group-differences")
    one, two = served.do(join())

    def differences():
        shown = cli("group", "show", "group-differs", "-o", "json")
        return json.loads(shown.out)["differences"] if shown.code == 0 else []  # the broker has not heard of it yet

    wait_until(differences)
    assert differences() == [
        {"topic": "group-differences", "subscription": "a", "members": [one]},
        {"topic": "group-differences", "subscription": "b || c", "members": [two]},
    ]
    lines = cli("group", "show", "group-differs").lines
    at = lines.index("members subscribe differently and miss messages:")
    assert lines[at + 3].split("  ")[-1] == two


def test_progress_tells_what_is_left(cli, served):
    cli("send", "group-left", "--ordering-key", "k", stdin=b"1\n2\n3\n")
    queue = json.loads(cli("consume", "group-left", "--from", "beginning", "--count", "1", "-o", "json").out)["queue"]
    cli("group", "create", "group-slow")
    cli("offset", "set", "group-slow", "group-left", "broker-a", str(queue), "1")

    rows = json.loads(cli("group", "progress", "group-slow", "--topic", "group-left", "-o", "json").out)
    assert {row["queue"]: (row["consumer_offset"], row["lag"]) for row in rows}[queue] == (1, 2)
    cli("group", "create", "group-idle")
    assert cli("group", "progress", "group-idle").err == "group group-idle has consumed nothing\n"


def test_list_is_an_overview(cli, served):
    cli("topic", "create", "group-topic-seen", "--queues", "1")
    cli("send", "group-topic-seen", stdin=b"1\n2\n3\n")
    cli("consume", "group-topic-seen", "--group", "group-seen", "--from", "beginning", "--count", "1")
    cli("offset", "set", "group-seen", "group-topic-seen", "broker-a", "0", "1")

    (row,) = [row for row in json.loads(cli("group", "list", "-o", "json").out) if row["group"] == "group-seen"]
    assert (row["members"], row["lag"]) == (0, 2)
    assert row["delay_seconds"] >= 0


def test_settings_are_shown_by_broker(cli, served):
    cli("group", "create", "group-set", "--retries", "3")
    (row,) = json.loads(cli("group", "settings", "group-set", "-o", "json").out)
    assert (row["broker"], row["attempts"], row["enabled"]) == ("broker-a", 3, True)


def test_monitor_tells_of_groups_that_are_behind(cli, served):
    cli("topic", "create", "group-topic-watched", "--queues", "1")
    cli("send", "group-topic-watched", stdin=b"1\n2\n3\n")
    cli("consume", "group-topic-watched", "--group", "group-watched", "--from", "beginning", "--count", "3")
    watch = ("group", "monitor", "group-watched", "--rounds", "1", "-o", "json")

    quiet = cli(*watch, "--lag", "10")
    assert (quiet.code, quiet.out) == (0, "")
    cli("offset", "set", "group-watched", "group-topic-watched", "broker-a", "0", "0")
    behind = cli(*watch, "--lag", "2")
    assert (behind.code, json.loads(behind.out)["lag"]) == (1, 3)
    shown = cli("group", "monitor", "group-watched", "--rounds", "2", "--every", "0")
    assert (shown.code, len(shown.lines)) == (0, 2)
    assert shown.lines[0].split(" ", 1)[1].startswith("group-watched: 0 online, lag 3, delay")


def test_monitor_goes_on_while_brokers_are_away(cli, served_with):
    served = served_with()
    served.do(served.cluster.stop_broker())

    watched = cli("group", "monitor", "--rounds", "2", "--every", "0", "--namesrv", served.namesrv)

    assert (watched.code, watched.out, len(watched.err.splitlines())) == (1, "", 2)
    assert "no broker is registered" in watched.err
