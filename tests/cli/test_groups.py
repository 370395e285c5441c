import json


def test_group_is_created_listed_and_deleted(cli, served):
    assert cli("group", "create", "group-life", "--retries", "3").code == 0

    rows = json.loads(cli("group", "list", "-o", "json").out)
    assert {"group": "group-life", "enabled": True, "attempts": 3} in rows
    assert cli("group", "delete", "group-life", "--yes").code == 0
    assert "group-life" not in cli("group", "list").out


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
    assert cli("group", "show", "group-members").lines[-1].startswith(shown["members"][0]["client_id"])


def test_group_without_members_has_none_online(cli, served):
    assert json.loads(cli("group", "show", "group-empty", "-o", "json").out)["online"] == 0


def test_progress_tells_what_is_left(cli, served):
    cli("send", "group-left", "--ordering-key", "k", stdin=b"1\n2\n3\n")
    queue = json.loads(cli("consume", "group-left", "--from", "beginning", "--count", "1", "-o", "json").out)["queue"]
    cli("offset", "set", "group-slow", "group-left", "broker-a", str(queue), "1")

    rows = json.loads(cli("group", "progress", "group-slow", "--topic", "group-left", "-o", "json").out)
    assert {row["queue"]: (row["consumer_offset"], row["lag"]) for row in rows}[queue] == (1, 2)
    assert cli("group", "progress", "group-idle").err == "group group-idle has consumed nothing\n"
