import json

from pyromq import speedups


def test_brokers_are_listed(cli, served):
    rows = json.loads(cli("cluster", "list", "-o", "json").out)

    assert rows == [{"cluster": "DefaultCluster", "broker": "broker-a", "id": 0, "address": served.broker.address}]


def test_broker_is_shown_by_name_by_address_or_with_all(cli, served):
    address = served.broker.address
    for arguments in (["broker-a"], [address], []):
        (record,) = json.loads(cli("cluster", "show", *arguments, "-o", "json").out)
        assert record["address"] == address
        assert record["brokerVersionDesc"] == "V4_9_8"
        assert record["pyromqHotPath"] == speedups.hot_path


def test_settings_have_the_names_of_settings_files(cli, served):
    shown = dict(line.split(maxsplit=1) for line in cli("cluster", "settings").lines)

    assert shown["brokerName"] == "broker-a"
    assert shown["autoCreateTopicEnable"] == "true"


def test_unknown_broker_is_told_with_those_there_are(cli, served):
    for command in ("show", "settings", "wipe", "unwipe"):
        failed = cli("cluster", command, "broker-z")
        assert (failed.code, failed.err) == (1, "error: broker 'broker-z' is not registered; registered: broker-a\n")


def test_wiped_broker_takes_no_messages_until_it_is_put_back(cli, served):
    cli("topic", "create", "cluster-wiped")

    assert "`pyromq cluster unwipe broker-a`" in cli("cluster", "wipe", "broker-a").out
    assert "WRONG  topic cluster-wiped" in cli("doctor", "cluster-wiped").out
    cli("cluster", "unwipe", "broker-a")
    assert cli("doctor", "cluster-wiped").code == 0


def test_name_servers_keep_values(cli, served):
    cli("cluster", "kv", "put", "colors", "sky", "blue")

    assert json.loads(cli("cluster", "kv", "list", "colors", "-o", "json").out) == [{"key": "sky", "value": "blue"}]
    cli("cluster", "kv", "delete", "colors", "sky")
    assert cli("cluster", "kv", "list", "colors").err == "namespace colors has no values\n"


def test_settings_of_a_broker_are_changed(cli, served):
    changed = cli("cluster", "set", "broker-a", "transactionCheckMax=9", "-o", "json")
    assert json.loads(changed.out) == [
        {"setting": "transactionCheckMax", "before": "15", "now": "9", "next_start": None}
    ]
    assert changed.err == ""

    refused = cli("cluster", "set", "broker-a", "transactionCheckMax=x")
    assert (refused.code, "transactionCheckMax" in refused.err) == (1, True)
    assert cli("cluster", "set", "broker-a", "nonsense").code == 2


def test_a_fixed_setting_is_said_to_count_from_the_next_start(cli, served):
    changed = cli("cluster", "set", "broker-a", "flushIntervalCommitLog=36", "-o", "json")
    (row,) = json.loads(changed.out)
    assert (changed.code, row["before"], row["now"], row["next_start"]) == (0, "500", "500", "36")
    assert changed.err == "flushIntervalCommitLog takes effect at the broker's next start\n"

    back = json.loads(cli("cluster", "set", "broker-a", "flushIntervalCommitLog=500", "-o", "json").out)
    assert back[0]["next_start"] is None
    for wrong in ("fileReservedTime=x", "fileReservedTime=-1", "noSuchSetting=1", "brokerName=other", "listenPort=1"):
        refused = cli("cluster", "set", "broker-a", "transactionCheckMax=4", wrong)
        assert (refused.code, refused.out) == (1, "")
        assert wrong.partition("=")[0] in refused.err
    assert json.loads(cli("cluster", "settings", "-o", "json").out)[0]["transactionCheckMax"] != "4"
    assert cli("cluster", "set", "broker-a", "a=1", "a=2").code == 2
    assert cli("cluster", "set", "broker-a", " =1").code == 2


def test_settings_that_a_server_passes_over_in_silence_are_an_error(cli, served):
    ignored = cli("cluster", "namesrv", "set", "noSuchSetting=1")
    assert (ignored.code, ignored.out) == (1, "")
    assert ignored.err == f"error: {served.namesrv}: noSuchSetting is not changed: the server has no such setting\n"


def test_settings_of_name_servers_are_shown_and_changed(cli, served):
    assert cli("cluster", "namesrv", "set", "orderMessageEnable=true").out.endswith("changed on every name server\n")
    (record,) = json.loads(cli("cluster", "namesrv", "settings", "-o", "json").out)
    assert (record["address"], record["orderMessageEnable"]) == (served.namesrv, "true")
    assert cli("cluster", "namesrv", "set", "listenPort=1").code == 1


def test_unused_queues_are_cleaned(cli, served):
    assert cli("cluster", "clean").out == f"{served.broker.address} has removed unused queues\n"


def test_statistics_are_shown_by_span(cli, served):
    cli("send", "cluster-counted", stdin=b"1\n")
    rows = json.loads(cli("cluster", "statistic", "TOPIC_PUT_NUMS", "cluster-counted", "-o", "json").out)
    assert [row["span"] for row in rows] == ["minute", "hour", "day"]
    assert (
        cli("cluster", "statistic", "TOPIC_PUT_NUMS", "nothing").err
        == "there is no counter TOPIC_PUT_NUMS of nothing\n"
    )


def test_lag_of_all_groups_is_shown_by_queue(cli, served):
    cli("topic", "create", "cluster-behind", "--queues", "1")
    cli("send", "cluster-behind", stdin=b"1\n2\n3\n")
    cli("consume", "cluster-behind", "--group", "cluster-readers", "--from", "beginning", "--count", "1")
    cli("offset", "set", "cluster-readers", "cluster-behind", "broker-a", "0", "1")

    rows = json.loads(cli("cluster", "lag", "--least", "2", "-o", "json").out)
    (row,) = [row for row in rows if row["group"] == "cluster-readers" and row["topic"] == "cluster-behind"]
    assert (row["lag"], row["consumer_offset"], row["broker_offset"]) == (2, 1, 3)


def test_round_trips_are_measured_to_brokers_and_topics(cli, served):
    (row,) = json.loads(cli("cluster", "rt", "--count", "5", "-o", "json").out)
    assert (row["topic"], row["confirmed"], row["failed"]) == ("broker-a", 5, 0)
    assert 0 < row["median_ms"] <= row["slowest_ms"]

    cli("topic", "create", "cluster-rt", "--queues", "2")
    rows = json.loads(cli("cluster", "rt", "cluster-rt", "--count", "4", "--each", "-o", "json").out)
    assert [row["queue"] for row in rows] == [0, 1, 0, 1]
    assert cli("cluster", "rt", "cluster-no-such").code == 1


def test_exports_are_json_on_the_terminal_or_in_a_file(cli, served, tmp_path):
    settings = json.loads(cli("export", "settings").out)
    assert settings["clusterScale"]["masterBrokerSize"] == 1
    cli("topic", "create", "cluster-exported")
    path = tmp_path / "metadata.json"
    assert cli("export", "metadata", "--cluster", "DefaultCluster", "--file", str(path)).out == ""
    assert "cluster-exported" in json.loads(path.read_text())["topicConfigTable"]
    environment = json.loads(cli("export", "metrics").out)["evaluateReport"]["broker-a"]["runtimeEnv"]
    assert int(environment["cpuNum"]) > 0 and int(environment["totalMemKBytes"]) > 0
    assert cli("export", "settings", "--cluster", "nowhere").code == 1


def test_the_file_of_an_export_is_checked_and_named(cli, served, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "it is empty" in cli("export", "settings", "--file", "").err
    assert "File '.' is a directory" in cli("export", "settings", "--file", ".").err
    assert json.loads(cli("export", "settings", "--file", "-").out)
    assert list(tmp_path.iterdir()) == []
    assert "No space left on device" in (refused := cli("export", "settings", "--file", "/dev/full").err)
    assert "/dev/full" in refused
