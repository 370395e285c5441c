"""Names of options: unknown ones are refused with the name that is meant."""

import pytest

from pyromq.errors import UsageError
from pyromq.spark.given_options import read_options, sink_options


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"startingOfsets": "latest"}, "option 'startingOfsets' is unknown; did you mean startingOffsets?"),
        ({"retries": "3"}, "failed requests are retried until deadlineMs"),
        ({"topic": "x"}, "option 'topic' does not exist for a read: topics to read are given by option subscribe"),
        ({"kafka.bootstrap.servers": "a:1"}, "give the name servers as option namesrvAddr"),
        ({"bootstrap_servers": "a:1"}, "give the name servers as option namesrvAddr"),
        ({"groupIdPrefix": "x"}, "that is option group"),
        ({"kafka.group.id": "x"}, "that is option group"),
        ({"kafka.fetch.min.bytes": "1"}, "kafka.* is for the client of Kafka, which is not used here"),
        ({"topicsPattern": "x.*"}, "that is option subscribePattern"),
        ({"delivery": "exactlyOnce"}, "option delivery is for a write, this is a read"),
        ({"acks": "all"}, "option acks is for a write, this is a read"),
        ({"tlsServrName": "x"}, "did you mean tlsServerName?"),
        ({"starting_offsets": "earliest"}, "did you mean startingOffsets?"),
        ({"namesrvAddr": "a:1", "endpoints": "b:1"}, "options namesrvAddr and endpoints"),
        ({"spark.executor.memory": "1g"}, "does not exist for a read: settings of Spark are given to the session"),
    ],
)
def test_a_name_that_is_no_option_of_a_read_is_told(given, text):
    with pytest.raises(UsageError) as caught:
        read_options({"subscribe": "x"} | given)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"topci": "orders"}, "option 'topci' is unknown; did you mean topic?"),
        ({"subscribe": "x"}, "option 'subscribe' does not exist for a write: the topic to write to is given by option"),
        ({"acks": "all"}, "a write waits until brokers have stored every row"),
        ({"kafka.acks": "all"}, "a write waits until brokers have stored every row"),
        ({"startingOffsets": "earliest"}, "option startingOffsets is for a read, this is a write"),
    ],
)
def test_a_name_that_is_no_option_of_a_write_is_told(given, text):
    with pytest.raises(UsageError) as caught:
        sink_options(given)
    assert text in str(caught.value)


def test_the_drivers_environment_names_the_name_servers_unless_an_option_does(monkeypatch):
    monkeypatch.setenv("NAMESRV_ADDR", "a:1")
    assert read_options({"subscribe": "t"}).namesrv == sink_options({}).namesrv == "a:1"
    for name in ("namesrvAddr", "namesrvaddr", "endpoints"):
        assert read_options({"subscribe": "t", name: "b:2"}).namesrv == sink_options({name: "b:2"}).namesrv == "b:2"
