import json

from pyromq import speedups


def test_all_is_well(cli, served):
    cli("topic", "create", "doctor-topic")
    checked = cli("doctor", "doctor-topic", "--namesrv", served.namesrv)

    assert (checked.code, checked.err) == (0, "")
    assert [line[:5] for line in checked.lines] == ["ok   "] * 3
    assert checked.lines[0].endswith("answers; 1 broker registered")


def test_name_servers_from_the_environment_are_said_to_be(cli, served):
    assert cli("doctor").err == f"name servers come from the environment variable NAMESRV_ADDR: {served.namesrv}\n"


def test_no_name_server(cli, unused_port):
    checked = cli("doctor", "--namesrv", f"127.0.0.1:{unused_port}")

    assert checked.code == 1
    assert checked.lines[0].startswith(f"WRONG  name server 127.0.0.1:{unused_port}: does not answer: ")
    assert "pyromq serve" in checked.lines[1]


def test_no_broker_registered(cli, served_with):
    namesrv = served_with(brokers=0).namesrv
    checked = cli("doctor", "--namesrv", namesrv)

    assert checked.code == 1
    assert checked.lines[0].endswith("answers; 0 brokers registered")
    assert checked.lines[1] == "WRONG  brokers: no broker is registered"
    assert f"`pyromq serve broker --namesrv {namesrv}`" in checked.lines[2]


def test_topic_absent_and_not_created_automatically(cli, served_with):
    namesrv = served_with(auto_create_topic=False).namesrv
    checked = cli("doctor", "nono", "--namesrv", namesrv)

    assert checked.code == 1
    assert checked.lines[2] == "WRONG  topic nono: does not exist, and no broker creates topics by itself"
    assert "`pyromq topic create nono`" in checked.lines[3]
    assert "autoCreateTopicEnable" in checked.lines[3]


def test_broker_advertises_an_address_that_cannot_be_reached(cli, served_with):
    served = served_with(advertised_host="127.0.0.77")
    checked = cli("doctor", "--namesrv", served.namesrv)

    assert checked.code == 1
    assert f"advertises {served.broker.address}, which cannot be reached from here" in checked.lines[1]
    assert "--broker-ip" in checked.lines[2]
    assert "brokerIP1" in checked.lines[2]


def test_json_tells_the_same(cli, served):
    findings = json.loads(cli("doctor", "-o", "json").out)

    assert [finding["ok"] for finding in findings] == [True, True]
    assert findings[0].keys() == {"check", "ok", "text", "advice"}
    assert findings[1]["text"] == f"answers at {served.broker.address}; hot path: {speedups.hot_path}"
