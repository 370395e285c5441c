import json

from pyromq import Message


def test_topic_is_created_shown_changed_and_deleted(cli, served):
    assert cli("topic", "create", "topic-life", "--queues", "3").out == "topic topic-life is saved\n"
    cli("topic", "create", "topic-life", "--queues", "3", "--permission", "r")

    shown = json.loads(cli("topic", "show", "topic-life", "-o", "json").out)
    assert (shown["read_queues"], shown["permission"], shown["messages"]) == (3, "r", 0)
    assert cli("topic", "delete", "topic-life", "--yes").code == 0
    assert cli("topic", "show", "topic-life").code == 1


def test_deleting_asks_first(cli, served):
    cli("topic", "create", "topic-kept")

    assert cli("topic", "delete", "topic-kept", stdin=b"n\n").code == 130
    assert "topic-kept" in cli("topic", "list").lines
    assert cli("topic", "delete", "topic-kept", stdin=b"y\n").code == 0


def test_list_leaves_out_what_the_broker_made_for_itself(cli, served):
    cli("topic", "create", "topic-mine")
    names = cli("topic", "list").lines

    assert "topic-mine" in names
    assert not {"TBW102", "broker-a", "DefaultCluster", "DefaultCluster_REPLY_TOPIC"} & set(names)
    assert {"TBW102", "broker-a", "topic-mine"} <= set(cli("topic", "list", "--all").lines)


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
