"""`pyromq receive` at a real broker."""

import json

from tests.undecodable import BOMB, send_three


def send(cli, topic, *bodies):
    cli("topic", "create", topic, "--queues", "1")
    for body in bodies:
        assert cli("send", topic, body).code == 0


def test_a_message_without_ack_comes_again_with_one_attempt_more(cli, served):
    send(cli, "receive-again", "hello")
    assert cli("receive", "receive-again", "-g", "again").lines == ["hello"]
    empty = cli("receive", "receive-again", "-g", "again", "--wait", "0")
    assert (empty.code, empty.err) == (1, "no message of receive-again for group again within 0 s\n")
    served.pass_time(31_000)
    again = json.loads(cli("receive", "receive-again", "-g", "again", "-o", "json", "--ack").out)
    assert (again["body"], again["reconsume_times"], again["topic"]) == ("hello", 1, "receive-again")
    assert again["receipt_handle"].split()[4] == "1"  # out of the retry topic
    served.pass_time(31_000)
    assert cli("receive", "receive-again", "-g", "again", "--wait", "0").code == 1


def test_ack_keeps_a_message_that_could_not_be_printed(cli, served):
    cli("topic", "create", "receive-bomb", "--queues", "1")
    served.do(send_three(served.namesrv, "receive-bomb", BOMB))
    shown = cli("receive", "receive-bomb", "-g", "curious", "-c", "3", "--ack")
    assert (shown.code, shown.lines) == (1, ["first", "last"])
    assert "it is not acknowledged" in shown.err
    served.pass_time(31_000)
    assert "body_error" in json.loads(cli("receive", "receive-bomb", "-g", "curious", "-o", "json", "--ack").out)
    served.pass_time(31_000)
    assert cli("receive", "receive-bomb", "-g", "curious", "--wait", "0").code == 1


def test_count_format_tags_and_groups(cli, served):
    send(cli, "receive-several", "1", "2", "3")
    assert cli("receive", "receive-several", "-g", "three", "-c", "3", "--ack", "-f", "%q:%v;").out == "0:1;0:2;0:3;"
    assert cli("receive", "receive-several", "-g", "other", "-c", "2").lines == ["1", "2"]
    assert cli("receive", "receive-several", "-g", "tagged", "--tags", "x", "--wait", "0s").code == 1


def test_wrong_words_are_named(cli, served):
    assert "Missing option '-g'" in cli("receive", "receive-none").err
    for text in ("0.5", "0", "1w"):
        refused = cli("receive", "receive-none", "-g", "g", "--invisible", text)
        assert f"{text} is out of range; write 1 to 43,200 seconds" in refused.err
    assert "'1 min' is not a duration; write 90s, 10m" in cli("receive", "x", "-g", "g", "--wait", "1 min").err
    assert cli("receive", "receive-none", "-g", "g").err.startswith("error: No topic route info")
    assert cli("receive", "receive-none", "-g", "g", "--sql", "a >").code == 2


def test_progress_counts_what_was_received_and_not_acknowledged(cli, served):
    send(cli, "flying", "a", "b", "c")
    cli("receive", "flying", "-g", "pilots", "-c", "2")
    (row,) = [each for each in json.loads(cli("group", "progress", "pilots", "-o", "json").out) if each["lag"]]
    assert (row["lag"], row["in_flight"]) == (3, 2)
    shown = json.loads(cli("group", "show", "pilots", "-o", "json").out)
    assert (shown["lag"], shown["in_flight"]) == (3, 2)
