import json
import re


def test_body_is_sent_and_its_place_shown(cli, served):
    sent = cli("send", "send-body", "hello", "--tags", "first")

    assert sent.code == 0
    assert sent.out.startswith("SEND_OK  ")
    assert " broker-a queue " in sent.out
    assert cli("consume", "send-body", "--from", "beginning", "--until", "now").out == "hello\n"


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


def test_lines_of_one_ordering_key_go_to_one_queue_in_order(cli, served):
    lines = b"".join(b"%d\n" % number for number in range(600))
    sent = cli("send", "send-order", "--ordering-key", "k", "-o", "json", stdin=lines)

    records = [json.loads(line) for line in sent.lines]
    assert len({record["queue"] for record in records}) == 1
    assert [record["queue_offset"] for record in records] == list(range(600))


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

    assert refused.code == 1
    assert refused.err.startswith("error: The specified topic contains illegal characters")
    assert len(refused.err.splitlines()) == 1


def test_failure_among_lines_tells_how_many_were_confirmed(cli, served):
    failed = cli("send", "send-fails", stdin=b"good\n" + b"x" * (5 << 20) + b"\nnever\n")

    assert failed.code == 1
    # The line behind the bad one may be on its way already.
    assert re.match("[12] messages were confirmed\nerror: the message body size over max value", failed.err)


def test_nobody_at_the_address_is_told_with_what_to_do(cli, unused_port):
    failed = cli("send", "t", "x", "--namesrv", f"127.0.0.1:{unused_port}")

    assert failed.code == 1
    assert failed.err.startswith(
        f"error: no name server answers at 127.0.0.1:{unused_port}; start one with `pyromq serve`"
    )
