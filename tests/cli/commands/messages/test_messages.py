import json

from tests.undecodable import send_three


def test_message_is_found_by_either_id(cli, served):
    sent = json.loads(cli("send", "message-ids", "hello", "-o", "json").out)

    by_offset = cli("message", "show", sent["offset_message_id"])
    by_unique = cli("message", "show", sent["message_id"], "--topic", "message-ids")
    assert by_offset.lines[-1] == by_unique.lines[-1] == "body               hello"


def test_messages_are_found_by_key_newest_first(cli, served):
    for body in ("1", "2", "3"):
        cli("send", "message-keys", body, "--keys", "k")
        served.pass_time(1000)

    rows = json.loads(cli("message", "find", "message-keys", "--key", "k", "--count", "2", "-o", "json").out)
    assert [row["body"] for row in rows] == ["3", "2"]
    assert cli("message", "find", "message-keys", "--key", "k").lines[0].startswith("message_id ")


def test_a_key_that_no_message_has_is_an_exit_code_as_an_unknown_id_is(cli, served):
    offset_id = json.loads(cli("send", "message-none", "hello", "--keys", "k", "-o", "json").out)["offset_message_id"]
    unknown_id = offset_id[:-8] + "00FFFFFF"
    assert cli("message", "find", "message-none", "--key", "k").code == 0
    assert cli("message", "show", unknown_id).code == 1

    none = cli("message", "find", "message-none", "--key", "other")
    assert (none.code, none.out, none.err) == (1, "", "no message of message-none has key 'other'\n")
    none = cli("message", "find", "message-none", "--key", "other", "-o", "json")
    assert (none.code, json.loads(none.out), none.err) == (1, [], "")


def test_messages_are_found_by_time_of_storing(cli, served):
    for body in ("1", "2", "3"):
        cli("send", "message-times", body, "--keys", "k")
        served.pass_time(10_000)

    now = served.now_ms()
    chosen = ("--begin", str(now - 25_000), "--end", str(now - 15_000))
    rows = json.loads(cli("message", "find", "message-times", "--key", "k", *chosen, "-o", "json").out)
    assert [row["body"] for row in rows] == ["2"]


def test_id_that_is_none_is_one_line_of_error(cli, served):
    for wrong in ("hello", "7F00000100007CA7000000000000FFFF"):
        failed = cli("message", "show", wrong)
        assert failed.code == 1
        assert len(failed.err.splitlines()) == 1


def test_a_body_that_cannot_be_unpacked_is_shown_as_such(cli, served):
    offset_id = served.do(send_three(served.namesrv, "message-packed"))

    shown = cli("message", "show", offset_id)
    assert shown.code == 0
    assert any(line.startswith("body_error") and "unfolds to more than 16777216" in line for line in shown.lines)
    assert any(line.startswith("body_base64") for line in shown.lines)


def test_a_damaged_message_is_marked(cli, served):
    sent = json.loads(cli("send", "message-damaged", "before", "--keys", "k", "-o", "json").out)
    served.pass_time(1000)
    while not served.broker.store.index_step(1.0):
        pass
    path = next((served.broker.config.data / "commitlog").iterdir())
    with path.open("r+b") as file:
        file.seek(int(sent["offset_message_id"][-16:], 16) + 88)
        assert file.read(6) == b"before"
        file.seek(-6, 1)
        file.write(b"after!")

    shown = cli("message", "show", sent["offset_message_id"], "-o", "json")
    assert (shown.code, json.loads(shown.out)["damaged"]) == (1, True)
    (row,) = json.loads(cli("message", "find", "message-damaged", "--key", "k", "-o", "json").out)
    assert row["damaged"]


def test_the_life_of_a_message_is_shown(cli, served):
    sent = json.loads(cli("send", "traced-here", "hello", "-o", "json").out)
    shown = json.loads(cli("message", "trace", sent["message_id"], "--topic", "traced-here", "-o", "json").out)
    assert [(event["what"], event["who"]) for event in shown] == [("stored", "broker-a")]
    assert "stored" in cli("message", "trace", sent["message_id"], "--topic", "traced-here").out
    unknown = cli("message", "trace", sent["message_id"])
    assert unknown.code == 1
    assert "name its topic" in unknown.err
