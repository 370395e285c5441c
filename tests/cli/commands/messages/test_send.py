import json
import os
import re
import signal
import subprocess
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest
from tests.cli.conftest import PYROMQ
from tests.waiting import PATIENCE_SECONDS, wait_until

from pyromq.cli.commands.messages.send import MessageLine, PendingSends
from pyromq.errors import UsageError

COUNTED = (
    r"(?P<confirmed>[\d,]+) messages? \w+ confirmed(, up to line (?P=confirmed))?"
    r"(; (?P<doubtful>[\d,]+) may be stored or not)?\n"
)


def test_body_is_sent_and_its_place_shown(cli, served):
    sent = cli("send", "send-body", "hello", "--tags", "first")

    assert sent.code == 0
    assert sent.out.startswith("SEND_OK  ")
    assert " broker-a queue " in sent.out
    assert cli("consume", "send-body", "--from", "beginning", "--until", "now").out == "hello\n"


def test_a_namespace_is_kept_to_and_administrators_name_it(cli, served, monkeypatch):
    cli("send", "send-names", "inside", "--namespace", "shop")
    cli("send", "send-names", "outside")

    assert cli("consume", "send-names", "--from", "beginning", "--until", "now").out == "outside\n"
    monkeypatch.setenv("PYROMQ_NAMESPACE", "shop")
    assert cli("consume", "send-names", "--from", "beginning", "--until", "now").out == "inside\n"
    assert cli("topic", "show", "shop%send-names").code == 0


def test_message_has_tag_keys_and_properties(cli, served):
    arguments = ("--tags", "new", "--keys", "a", "--keys", "b", "--property", "color=red=ish")
    sent = json.loads(cli("send", "send-all", "x", *arguments, "-o", "json").out)

    found = json.loads(cli("message", "show", sent["offset_message_id"], "-o", "json").out)
    assert (found["tags"], found["keys"], found["properties"]["color"]) == ("new", ["a", "b"], "red=ish")
    assert found["message_id"] == sent["message_id"]
    assert found["queue_offset"] == sent["queue_offset"] == 0


def test_each_line_of_input_is_a_message(cli, served):
    sent = cli("send", "send-lines", stdin="eins\r\n\nzwei\näöü".encode())

    assert (sent.out, sent.err) == ("sent 3 messages\n", "")
    assert cli("consume", "send-lines", "--from", "beginning", "--until", "now").lines == ["eins", "zwei", "äöü"]


def test_json_prints_one_object_for_each_line(cli, served):
    sent = cli("send", "send-json", "-o", "json", stdin=b"1\n2\n3\n")

    assert [json.loads(line)["status"] for line in sent.lines] == ["SEND_OK"] * 3


def test_json_has_each_confirmed_line_before_a_refused_one(cli, served):
    sent = cli("send", "send-json-refused", "--input", "json", "-o", "json", stdin=b'{"body": "1"}\n' * 40 + b"{\n")

    assert sent.code == 1
    assert [json.loads(line)["status"] for line in sent.lines] == ["SEND_OK"] * 40
    assert sent.err.startswith("40 messages were confirmed, up to line 40\nerror: line 41: ")


def test_lines_of_one_ordering_key_go_to_one_queue_in_order(cli, served):
    lines = b"".join(b"%d\n" % number for number in range(600))
    sent = cli("send", "send-order", "--ordering-key", "k", "-o", "json", stdin=lines)

    records = [json.loads(line) for line in sent.lines]
    assert len({record["queue"] for record in records}) == 1
    assert [record["queue_offset"] for record in records] == list(range(600))


def test_what_consume_prints_can_be_sent_again(cli, served):
    cli("send", "send-again", "x", "--keys", "k", "--property", "color=red")
    printed = cli("consume", "send-again", "--from", "beginning", "--until", "now", "-o", "json").out
    line = json.loads(printed)
    line["properties"] |= {"UNIQ_KEY": line["message_id"], "DELAY": "3"}
    assert cli("send", "send-again-to", "--input", "json", stdin=json.dumps(line).encode()).code == 0
    again = json.loads(cli("consume", "send-again-to", "--from", "beginning", "--until", "now", "-o", "json").out)
    assert (again["body"], again["keys"], again["properties"]["color"]) == ("x", ["k"], "red")
    assert "DELAY" not in again["properties"]
    assert again["message_id"] != line["message_id"]


def test_lines_of_json_have_their_own_ordering_keys(cli, served):
    lines = [{"body": f"{number}", "ordering_key": f"sensor-{number % 50}"} for number in range(200)]
    lines.append({"body": "200"})
    text = "\n".join(map(json.dumps, lines)).encode()
    sent = cli("send", "send-own-order", "--input", "json", "--ordering-key", "sensor-0", "-o", "json", stdin=text)

    queues = [json.loads(line)["queue"] for line in sent.lines]
    assert len(set(queues)) > 1
    assert queues == [queues[number % 50] for number in range(200)] + [queues[0]]


@pytest.mark.parametrize("field", ["key", "tag", "ordering_keys", "delay", "bodY", "body_error"])
def test_a_field_of_a_line_that_would_be_lost_is_refused(cli, served, field):
    line = json.dumps({"body": "x", field: "y"}).encode()
    refused = cli("send", "send-unknown", "--input", "json", stdin=line)

    assert (refused.code, refused.out) == (1, "")
    assert "line 1: the line is not a message in JSON, as `pyromq consume -o json` prints it: " in refused.err
    assert f"unknown field `{field}`" in refused.err


def test_a_damaged_message_is_not_sent_as_a_sound_one(cli, served):
    """As printed by `message show -o json`."""
    refused = cli("send", "send-damaged", "--input", "json", stdin=b'{"body": "x", "damaged": true}')
    assert (refused.code, refused.out) == (1, "")
    assert "the message is damaged" in refused.err
    assert cli("send", "send-damaged", "--input", "json", stdin=b'{"body": "x", "damaged": false}').code == 0


def test_each_command_that_prints_messages_prints_lines_that_can_be_sent():
    known = set(MessageLine.__struct_fields__)
    fields = [line.partition(": ") for line in (Path(__file__).parents[2] / "json_fields.txt").read_text().splitlines()]
    printing = {
        command: set(names.split()) for command, _, names in fields if {"body", "born_host"} <= {*names.split()}
    }

    assert {"consume", "receive", "dlq show", "message find", "store dump"} <= set(printing)
    assert {command: names - known for command, names in printing.items() if names - known} == {
        "dlq list": {"dead_letters"}
    }


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"no separator\n", "line 1: 'no separator' is not of the form key:value"),
        (b"\xff\x1b:value\n", r"line 1: key '\xff\x1b' is not UTF-8"),
    ],
)
def test_a_line_that_is_no_pair_is_quoted_as_text(cli, served, line, text):
    refused = cli("send", "send-pairs", "--input", "key:value", stdin=line)

    assert (refused.code, refused.out) == (1, "")
    assert text in refused.err


def test_file_is_one_message_byte_for_byte(cli, served, tmp_path):
    path = tmp_path / "picture"
    path.write_bytes(bytes(range(256)))

    assert cli("send", "send-file", "--file", str(path)).code == 0
    record = json.loads(cli("consume", "send-file", "--from", "beginning", "--until", "now", "-o", "json").out)
    assert record["body_base64"].startswith("AAECAwQF")
    assert "body" not in record


def test_wrong_options_are_shown_with_the_usage(cli, tmp_path):
    for arguments in (["t", "x", "--file", __file__], ["t", "x", "--property", "noequals"], []):
        refused = cli("send", *arguments)
        assert refused.code == 2
        assert refused.out == ""
        assert refused.err.startswith("Usage: pyromq send ")


def test_illegal_topic_is_one_line_of_error(cli, served):
    refused = cli("send", "bad topic", "x")

    assert refused.code == 2
    assert refused.err.startswith("error: The specified topic[bad topic] contains illegal characters")
    assert len(refused.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("before", "told"),
    [
        (b"", "0 messages were confirmed"),
        (b"good\n", "1 message was confirmed, up to line 1"),
        (b"good\n\ngood\n", "2 messages were confirmed, up to line 3"),
    ],
)
def test_failure_among_lines_tells_how_many_were_confirmed_and_where_to_go_on(cli, served, before, told):
    failed = cli("send", "send-fails", stdin=before + b"x" * (5 << 20) + b"\nnever\n")

    assert failed.code == 1
    first, second = failed.err.splitlines()
    # The line behind the bad one may be on its way already.
    assert first in (told, f"{told}, and 1 behind the first that was not")
    assert ": the message body size over max value" in second


def test_confirmed_messages_behind_one_that_failed_are_counted_by_themselves():
    answers = PendingSends()
    for line, outcome in enumerate((None, UsageError("no"), None), 1):
        future = Future()
        answers.add(line, future)
        future.set_exception(outcome) if outcome else future.set_result(None)

    told = "1 message was confirmed, up to line 1, and 1 behind the first that was not"
    assert answers.summary(wait=True) == told


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_what_is_on_its_way_and_counts_all_of_it(cli, served, start_process, number):
    topic = f"send-stopped-{number.name}"
    process = start_process("send", topic, "-n", served.namesrv, stdin=subprocess.PIPE)
    process.stdin.write("line\n" * 100)
    process.stdin.flush()
    wait_until(lambda: stored(cli, topic) == 100)

    process.send_signal(number)

    assert process.wait(PATIENCE_SECONDS) == 130
    assert process.stderr.read() == "100 messages were confirmed, up to line 100\n"


def test_ctrl_c_in_the_midst_of_sending_counts_what_is_stored(cli, served, start_process):
    process = start_process("send", "send-midst", "-n", served.namesrv, stdin=subprocess.PIPE)
    lines = threading.Thread(target=write_for_ever, args=(process.stdin,))
    lines.start()
    wait_until(lambda: stored(cli, "send-midst") > 200)

    process.send_signal(signal.SIGINT)

    assert process.wait(PATIENCE_SECONDS) == 130
    lines.join(PATIENCE_SECONDS)
    err = process.stderr.read()
    told = re.match(COUNTED, err)
    assert told, err
    confirmed, doubtful = (int((told[name] or "0").replace(",", "")) for name in ("confirmed", "doubtful"))
    assert confirmed <= stored(cli, "send-midst") <= confirmed + doubtful


def test_nothing_is_written_over_lines_being_typed(cli, served):
    terminal, typed = os.openpty()
    command = [*PYROMQ, "send", "send-typed", "-n", served.namesrv]
    with subprocess.Popen(command, stdin=typed, stdout=subprocess.PIPE, stderr=typed) as process:
        for number, line in enumerate((b"one\n", b"two\n"), 1):
            os.write(terminal, line)
            wait_until(lambda count=number: stored(cli, "send-typed") == count)
        os.write(terminal, b"\x04")  # Ctrl-D
        assert process.stdout.read() == b"sent 2 messages\n"
    shown = os.read(terminal, 10_000).decode()
    os.close(typed)
    os.close(terminal)

    assert "each line is a message; stop with Ctrl-D" in shown
    assert "\x1b" not in shown


def stored(cli, topic):
    shown = cli("topic", "show", topic, "-o", "json")
    return json.loads(shown.out)["messages"] if shown.code == 0 else 0


def write_for_ever(pipe):
    try:
        while True:
            pipe.write("line\n")
    except BrokenPipeError:
        pass


def test_nobody_at_the_address_is_told_with_what_to_do(cli, unused_port):
    failed = cli("send", "t", "x", "--namesrv", f"127.0.0.1:{unused_port}")

    assert failed.code == 1
    assert failed.err.startswith(f"error: no name server answers at 127.0.0.1:{unused_port} (")
    assert failed.err.endswith("; `pyromq serve` starts one, --namesrv names another\n")
    assert "Spark" not in failed.err


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--tags", "a || b"), "no subscription finds a tag with `||` in it"),
        (("--tags", " a"), "no subscription finds a tag with blanks around it"),
        (("--delay-level", "99"), "99 is out of range; write 1 to 18"),
        (("--delay-level", "-1"), "-1 is out of range; write 1 to 18"),
        (("--delay-level", "0"), "0 is out of range; write 1 to 18"),
        (("--delay", "-5s"), "'-5s' is not a duration; write 90s, 10m, 1.5h, 2d or 1w"),
        (("--delay=-5",), "'-5' is not a duration; write 90s, 10m, 1.5h, 2d or 1w"),
    ],
)
def test_what_nobody_could_find_or_no_broker_delays_is_wrong_usage(cli, options, text):
    refused = cli("send", "orders", "x", *options)

    assert (refused.code, refused.out) == (2, "")
    assert text in refused.err


def test_a_broker_is_no_name_server(cli, served):
    failed = cli("send", "send-nowhere", "x", "-n", f"127.0.0.1:{served.broker.port}")
    assert failed.code == 1
    assert f"127.0.0.1:{served.broker.port} is not a name server" in failed.err
