import json


def test_brokers_are_listed(cli, served):
    rows = json.loads(cli("cluster", "list", "-o", "json").out)

    assert rows == [{"cluster": "DefaultCluster", "broker": "broker-a", "id": 0, "address": served.broker.address}]


def test_broker_is_shown_by_name_by_address_or_with_all(cli, served):
    address = served.broker.address
    for arguments in (["broker-a"], [address], []):
        (record,) = json.loads(cli("cluster", "show", *arguments, "-o", "json").out)
        assert record["address"] == address
        assert record["brokerVersionDesc"] == "V4_9_8"


def test_settings_have_the_names_of_settings_files(cli, served):
    shown = dict(line.split(maxsplit=1) for line in cli("cluster", "settings").lines)

    assert shown["brokerName"] == "broker-a"
    assert shown["autoCreateTopicEnable"] == "true"


def test_unknown_broker_is_told_with_those_there_are(cli, served):
    for command in ("show", "settings", "wipe", "unwipe"):
        failed = cli("cluster", command, "broker-z")
        assert (failed.code, failed.err) == (1, "error: broker 'broker-z' is not registered; there is broker-a\n")


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
