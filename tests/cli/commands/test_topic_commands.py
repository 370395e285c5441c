import json

import pytest

from pyromq import Message


def test_topic_is_created_shown_altered_and_deleted(cli, served):
    assert cli("topic", "create", "topic-life", "--queues", "3").out == "topic topic-life is created\n"
    altered = cli("topic", "alter", "topic-life", "--write-queues", "2", "--order")
    assert [line.split() for line in altered.lines] == [
        ["broker", "setting", "before", "now"],
        ["broker-a", "write_queues", "3", "2"],
        ["broker-a", "order", "no", "yes"],
    ]

    shown = json.loads(cli("topic", "show", "topic-life", "-o", "json").out)
    assert (shown["read_queues"], shown["write_queues"], shown["permission"], shown["messages"]) == (3, 2, "rw", 0)
    assert cli("topic", "delete", "topic-life", "--yes").code == 0
    assert cli("topic", "show", "topic-life").code == 1


def test_a_topic_is_deleted_in_one_cluster(cli, served):
    assert cli("topic", "create", "topic-placed").code == 0
    refused = cli("topic", "delete", "topic-placed", "--cluster", "other", "--yes")
    assert (refused.code, "cluster 'other' does not exist; there is DefaultCluster" in refused.err) == (1, True)
    deleted = cli("topic", "delete", "topic-placed", "--cluster", "DefaultCluster", "--yes")
    assert deleted.out == "topic topic-placed is deleted in cluster DefaultCluster\n"
    assert cli("topic", "show", "topic-placed").code == 1


def test_a_topic_has_the_type_that_it_was_given(cli, served):
    assert cli("topic", "create", "topic-typed", "--type", "fifo").code == 0
    assert json.loads(cli("topic", "show", "topic-typed", "-o", "json").out)["type"] == "fifo"
    altered = cli("topic", "alter", "topic-typed", "--type", "mixed")
    assert altered.lines[1].split() == ["broker-a", "type", "fifo", "mixed"]
    assert cli("topic", "create", "topic-capital", "--type", "FIFO").code == 0  # as RocketMQ's tools write it
    assert json.loads(cli("topic", "show", "topic-capital", "-o", "json").out)["type"] == "fifo"
    refused = cli("topic", "create", "topic-odd", "--type", "ordered")
    assert (refused.code, "'ordered' is not one of 'normal', 'fifo'" in refused.err) == (2, True)


def test_a_topic_shows_when_its_last_message_was_stored(cli, served):
    cli("topic", "create", "topic-write")
    assert json.loads(cli("topic", "show", "topic-write", "-o", "json").out)["last_write"] is None
    cli("send", "topic-write", "x")
    shown = json.loads(cli("topic", "show", "topic-write", "-o", "json").out)
    (listed,) = [each for each in json.loads(cli("topic", "list", "-o", "json").out) if each["topic"] == "topic-write"]
    assert shown["last_write"] == listed["last_write"] is not None


def test_creating_a_topic_that_exists_changes_nothing(cli, served):
    cli("topic", "create", "topic-twice", "--queues", "16")
    refused = cli("topic", "create", "topic-twice")

    assert (refused.code, refused.out) == (1, "")
    assert refused.err == (
        "error: topic topic-twice exists already: broker-a has 16 queues to read and 16 to write, permission rw; "
        "`pyromq topic alter` changes it\n"
    )
    assert json.loads(cli("topic", "show", "topic-twice", "-o", "json").out)["read_queues"] == 16


def test_altering_asks_before_messages_get_out_of_sight(cli, served):
    cli("topic", "create", "topic-hides", "--queues", "4")
    cli("send", "topic-hides", stdin=b"x\n" * 8)
    alter = ("topic", "alter", "topic-hides", "--queues", "1")

    kept = cli(*alter, stdin=b"n\n")
    assert (kept.code, kept.out) == (1, "")
    assert kept.err.startswith("6 messages of broker-a would be unreadable, in 3 queues\nchange it anyway?")
    assert kept.err.endswith("error: nothing is changed\n")
    assert json.loads(cli("topic", "show", "topic-hides", "-o", "json").out)["messages"] == 8
    assert cli(*alter, stdin=b"y\n").code == 0
    assert json.loads(cli("topic", "show", "topic-hides", "-o", "json").out)["messages"] == 2
    assert cli("topic", "alter", "topic-hides", "--queues", "4").code == 0
    assert json.loads(cli("topic", "show", "topic-hides", "-o", "json").out)["messages"] == 8


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--permission", "w"), "8 messages of broker-a would be unreadable, in 4 queues"),
        (("--write-queues", "6"), "messages sent to queue 4 of broker-a and above would be unreadable"),
    ],
)
def test_altering_asks_for_what_hides_in_other_ways(cli, served, options, reason):
    topic = f"topic-hides-{options[1]}"
    cli("topic", "create", topic, "--queues", "4")
    cli("send", topic, stdin=b"x\n" * 8)

    asked = cli("topic", "alter", topic, *options)
    assert (asked.code, asked.err.splitlines()[0]) == (1, reason)
    assert asked.err.endswith(
        "error: standard input ended without an answer, so nothing is changed; --yes does not ask\n"
    )
    assert cli("topic", "alter", topic, *options, "--yes").code == 0


def test_altering_needs_a_topic_and_a_setting(cli, served):
    missing = cli("topic", "alter", "topic-none", "--queues", "4").err
    assert missing.startswith("error: topic topic-none does not exist")
    refused = cli("topic", "alter", "topic-none")
    assert (refused.code, "give a setting: --queues" in refused.err) == (2, True)


def test_deleting_asks_first(cli, served):
    cli("topic", "create", "topic-kept")

    kept = cli("topic", "delete", "topic-kept", stdin=b"n\n")
    assert (kept.code, kept.err.endswith("error: nothing is changed\n")) == (1, True)
    assert "topic-kept" in listed(cli)
    assert cli("topic", "delete", "topic-kept", stdin=b"y\n").code == 0


def test_list_leaves_out_what_the_broker_made_for_itself(cli, served):
    cli("topic", "create", "topic-mine")
    names = listed(cli)

    assert "topic-mine" in names
    assert not {"TBW102", "broker-a", "DefaultCluster", "DefaultCluster_REPLY_TOPIC"} & names
    assert {"TBW102", "broker-a", "topic-mine"} <= listed(cli, "--all") == listed(cli, "--all", "--names")


def listed(cli, *options):
    """The names that `topic list` shows."""
    return {line.split()[0] for line in cli("topic", "list", *options).lines}


def test_list_is_an_overview(cli, served):
    cli("topic", "create", "topic-seen", "--queues", "3")
    cli("send", "topic-seen", stdin=b"1\n2\n")

    (row,) = [row for row in json.loads(cli("topic", "list", "-o", "json").out) if row["topic"] == "topic-seen"]
    assert (row["queues"], row["messages"], row["brokers"]) == (3, 2, ["broker-a"])
    assert row["last_write"].startswith("20")


def test_rates_of_a_topic_have_a_row_for_each_group(cli, served):
    cli("send", "topic-rated", stdin=b"1\n2\n3\n")
    cli("consume", "topic-rated", "--group", "topic-raters", "--from", "beginning", "--count", "3")

    (row,) = json.loads(cli("topic", "rates", "topic-rated", "-o", "json").out)
    assert (row["group"], row["lag"]) == ("topic-raters", 0)
    assert json.loads(cli("topic", "groups", "topic-rated", "-o", "json").out) == [{"group": "topic-raters"}]
    assert cli("topic", "rates", "topic-none").code == 1
    assert cli("topic", "rates", "--active").code == 0


def test_allocation_names_the_queues_of_each_member(cli, served):
    cli("topic", "create", "topic-shared", "--queues", "3")
    rows = json.loads(cli("topic", "allocate", "topic-shared", "b", "a", "-o", "json").out)
    assert [(row["client_id"], row["queue"]) for row in rows] == [("a", 0), ("a", 1), ("b", 2)]


def test_fixed_queues_of_an_order_topic_are_shown_set_and_deleted(cli, served):
    cli("topic", "create", "topic-fixed", "--queues", "2", "--order")
    order = ("topic", "order", "topic-fixed")

    assert cli(*order).lines[1].split() == ["fixed_queues", "broker-a:2"]
    assert json.loads(cli(*order, "--set", "broker-a:4", "-o", "json").out)["fixed_queues"] == "broker-a:4"
    assert json.loads(cli(*order, "--delete", "-o", "json").out)["fixed_queues"] is None
    assert cli(*order, "--set", "nonsense").code == 2
    assert cli(*order, "--set", "a:1", "--delete").code == 2


def test_route_names_brokers_and_addresses(cli, served):
    cli("topic", "create", "topic-route", "--queues", "2")
    (row,) = json.loads(cli("topic", "route", "topic-route", "-o", "json").out)

    assert row == {
        "broker": "broker-a",
        "addresses": {"0": served.broker.address},
        "read_queues": 2,
        "write_queues": 2,
        "permission": "rw",
    }


def test_stats_count_messages_of_each_queue(cli, served):
    cli("send", "topic-stats", stdin=b"1\n2\n3\n4\n5\n")
    rows = json.loads(cli("topic", "stats", "topic-stats", "-o", "json").out)

    assert sum(row["messages"] for row in rows) == 5
    assert all(row["last_stored"] for row in rows if row["messages"])


def test_unknown_cluster_is_told_with_those_there_are(cli, served):
    failed = cli("topic", "create", "topic-where", "--cluster", "nowhere")

    assert failed.code == 1
    assert failed.err == "error: cluster 'nowhere' does not exist; there is DefaultCluster\n"


def test_producers_of_a_topic_are_listed_with_their_clients(cli, served):
    async def connect():
        producer = await served.cluster.producer("topic-writers")
        await producer.send(Message("topic-written", b"1"))

    served.do(connect())
    (row,) = json.loads(cli("topic", "producers", "topic-written", "--group", "topic-writers", "-o", "json").out)
    assert row["address"].startswith("127.0.0.1:")


def test_deleting_a_topic_that_is_not_there_asks_nothing(cli, served):
    failed = cli("topic", "delete", "topic-typo", stdin=b"y\n")
    assert (failed.code, failed.out) == (1, "")
    assert "topic-typo" in failed.err and "delete topic" not in failed.err
