"""What `consume -f` prints, and that what `consume` prints can be sent again."""

import json

import pytest

from pyromq.cli.commands.messages.consume import FIELDS, parse_format
from pyromq.errors import UsageError
from pyromq.message import StoredMessage

MESSAGE = StoredMessage(
    "orders",
    b"\x00body",
    "KEYS\x01a b\x02TAGS\x01paid\x02UNIQ_KEY\x01ID\x02region\x01EU",
    queue_id=3,
    queue_offset=7,
    store_ms=1_700_000_000_123,
    broker_name="broker-a",
    reconsume_times=2,
)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        (r"%k %v\n", b"a b \x00body\n"),
        ("%t/%b/%q@%o", b"orders/broker-a/3@7"),
        (r"%g\t%i\t%r\0\x41\\", b"paid\tID\t2\0A\\"),
        ("%{region}%{absent}100%%", b"EU100%"),
        ("%S", b"5"),
        ("", b""),
    ],
)
def test_fields_and_escapes(text, printed):
    assert parse_format(text)(MESSAGE) == printed


def test_times_have_their_offset_from_utc():
    assert b"2023-11-1" in parse_format("%T")(MESSAGE)
    assert parse_format("%T")(StoredMessage("orders", b"")) == b""


@pytest.mark.parametrize(
    ("text", "said"),
    [("%z", "%z in format"), ("100%", "'%' in format"), (r"\q", "is unknown"), ("\\", "is not a field")],
)
def test_what_is_no_format_is_told_what_there_is(text, said):
    with pytest.raises(UsageError, match=said):
        parse_format(text)


def test_every_field_is_in_the_help(cli):
    told = cli("consume", "--help").out
    assert all(f"%{letter}" in told for letter in FIELDS)


def test_what_consume_prints_can_be_sent_again(cli, served):
    own = b'{"x": "1", "UNIQ_KEY": "no", "MIN_OFFSET": "0"}'
    lines = b'{"body": "one", "tags": "t", "keys": ["a", "b"], "properties": ' + own + b"}\n"
    lines += b'{"body_base64": "AP8="}\n\n{"body": {"id": 3}}\n'
    assert cli("send", "again", "--input", "json", stdin=lines).out == "sent 3 messages\n"
    printed = cli("consume", "again", "--from", "beginning", "--count", "3", "-o", "json").out
    assert cli("send", "copied", "--input", "json", stdin=printed.encode()).code == 0
    copied = cli("consume", "copied", "--from", "beginning", "--count", "3", "-o", "json")
    copies = {copy.get("body"): copy for copy in map(json.loads, copied.lines)}
    assert copies.keys() == {None, "one", '{"id":3}'}
    assert copies[None]["body_base64"] == "AP8="
    one = copies["one"]
    assert (one["tags"], one["keys"], one["properties"]["x"]) == ("t", ["a", "b"], "1")
    assert one["message_id"] != "no"


def test_keys_and_values(cli, served):
    assert cli("send", "pairs", "--input", "key:value", stdin=b"a:1:2\nb:3\n").code == 0
    out = cli("consume", "pairs", "--from", "beginning", "--count", "2", "-f", r"%k=%v;").out
    assert sorted(out.split(";")) == ["", "a=1:2", "b=3"]


def test_a_file_of_lines_and_the_whole_of_standard_input(cli, served, tmp_path):
    file = tmp_path / "lines"
    file.write_text("a:1\nb:2\n")
    assert cli("send", "filed", "--input", "key:value", "--file", str(file)).out == "sent 2 messages\n"
    assert cli("send", "whole", "--file", "-", stdin=b"one\ntwo\n").code == 0
    assert cli("consume", "whole", "--from", "beginning", "--count", "1", "-f", "%v").out == "one\ntwo\n"


@pytest.mark.parametrize(
    ("kind", "line", "said"),
    [
        ("json", b"no JSON", "line 2: the line is not a message in JSON, as `pyromq consume -o json` prints it"),
        (
            "json",
            b'{"tags": "a"}',
            "prints it: give one of `body` and `body_base64`",
        ),
        (
            "json",
            b'{"body": "a", "keys": 5}',
            "line 2: the line is not a message in JSON, as `pyromq consume -o json` prints it: Expected",
        ),
        ("json", b"\xff\xfe", "line 2: the line is not a message in JSON"),
        ("json", b"[" * 100_000, "line 2: the line is not a message in JSON"),
        ("key:value", b"no colon", "line 2: 'no colon' is not of the form key:value"),
    ],
)
def test_a_line_that_is_something_else_ends_it_and_is_named(cli, served, kind, line, said):
    first = b'{"body": "first"}\n' if kind == "json" else b"k:first\n"
    outcome = cli("send", "wrong-lines", "--input", kind, stdin=first + line + b"\n")
    assert outcome.code == 1
    assert said in outcome.err
    assert "1 message was confirmed, up to line 1" in outcome.err
