import json

from tests.undecodable import send_three

from pyromq import Message


def test_message_is_found_by_either_id(cli, served):
    sent = json.loads(cli("send", "message-ids", "hello", "-o", "json").out)

    for words in (
        [sent["offset_message_id"]],
        [sent["offset_message_id"].lower()],
        [sent["message_id"]],
        [f" {sent['message_id']} "],
        ["message-ids", sent["message_id"]],
        [sent["message_id"], "--topic", "message-ids"],
    ):
        assert cli("message", "show", *words).lines[-1] == "body               hello"
    for id_ in (sent["message_id"], sent["offset_message_id"]):
        (row,) = json.loads(cli("message", "find", "message-ids", "--id", id_, "-o", "json").out)
        assert row["message_id"] == sent["message_id"]
        assert "stored" in cli("message", "trace", id_).out
        assert cli("message", "tracks", id_).code == 0


def test_an_id_in_mixed_case_is_found_as_it_was_sent(cli, served):
    mixed = "7F0000010A2B" + "c0ffee0112345678abcd"
    served.do(_send(served.cluster, Message("message-mixed", b"of another client", message_id=mixed)))
    assert cli("message", "show", mixed).lines[-1] == "body               of another client"


async def _send(cluster, *messages):
    producer = await cluster.producer()
    return await (producer.send(messages[0]) if len(messages) == 1 else producer.send_batch(messages))


def test_ids_of_a_batch_are_taken_one_by_one(cli, served):
    batch = served.do(_send(served.cluster, Message("message-batch", b"1"), Message("message-batch", b"2")))
    joined = cli("message", "show", batch.message_id)
    assert joined.code == 1 and "give one of them" in joined.err
    bodies = [cli("message", "show", each).lines[-1].split()[1] for each in batch.message_id.split(",")]
    assert bodies == ["1", "2"]
    assert cli("message", "show", batch.offset_message_id.split(",")[1]).lines[-1] == "body               2"


def test_a_delayed_message_is_found_before_and_after_its_time(cli, served):
    sent = json.loads(cli("send", "message-late", "hello", "--delay", "20", "-o", "json").out)
    ids = [sent["message_id"], sent["recall_handle"], sent["offset_message_id"]]
    for id_ in ids:
        shown = cli("message", "show", id_)
        assert shown.lines[-1] == "body               hello"
        assert "internal" in shown.err
        assert "for its time" in cli("message", "trace", id_).out
    assert f"pyromq message show {ids[0]}" in cli("message", "find", "message-late", "--id", ids[0]).err
    served.pass_time(20_000)
    for id_ in ids[:2]:
        shown = cli("message", "show", id_, "-o", "json")
        assert (json.loads(shown.out)["topic"], shown.err) == ("message-late", "")


def test_an_id_that_is_nowhere_is_said_to_be(cli, served):
    cli("send", "message-nowhere", "hello")
    unknown = "7F0000010A2B" + "0" * 20
    failed = cli("message", "show", unknown)
    assert (failed.code, failed.out) == (1, "")
    assert failed.err == f"error: no message of any topic has id '{unknown}'\n"
    assert cli("message", "show", "message-nowhere", unknown).code == 1
    assert "message-nowhere" in cli("message", "show", "message-nowhare", unknown).err
    assert cli("message", "show", "").code == 2
    assert cli("message", "show", "a", "b", "c").code == 2
    assert cli("message", "find", "message-nowhere", "--id", unknown).code == 1
    assert cli("message", "find", "message-nowhere").code == 2


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


def test_a_body_that_cannot_be_decompressed_is_shown_as_such(cli, served):
    offset_id = served.do(send_three(served.namesrv, "message-packed"))

    shown = cli("message", "show", offset_id)
    assert shown.code == 0
    assert any(line.startswith("body_error") and "decompresses to more than 16777216" in line for line in shown.lines)
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
    assert unknown.lines == cli("message", "trace", sent["message_id"], "--topic", "traced-here").lines
