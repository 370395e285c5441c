import io
import json
import sys
from datetime import UTC, datetime

import click

from pyromq.cli.render import one_line, show_outcome, show_record, show_rows
from pyromq.client.admin.cluster_topics import permission_text
from pyromq.errors import from_response

NOON = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)


def test_table_aligns_numbers_right_and_text_left(capsys):
    show_rows([{"name": "a", "count": 7, "free": None}, {"name": "long", "count": 1000, "free": True}], "table")

    assert capsys.readouterr().out.splitlines() == [
        "name  count  free",
        "a         7  -",
        "long   1000  yes",
    ]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_table_too_wide_for_the_terminal_is_shown_row_by_row(monkeypatch):
    rows = [{"name": "a", "value": "x" * 30}, {"name": "b", "value": "y"}]
    outputs = []
    for columns in ("36", "35"):
        monkeypatch.setenv("COLUMNS", columns)
        monkeypatch.setattr(sys, "stdout", Terminal())
        show_rows(rows, "table")
        outputs.append([line.strip() for line in click.unstyle(sys.stdout.getvalue()).splitlines()])

    assert outputs[0] == ["name  value", "a     " + "x" * 30, "b     y"]
    assert outputs[1] == ["name   a", "value  " + "x" * 30, "", "name   b", "value  y"]


def test_what_messages_hold_neither_breaks_a_table_nor_rules_the_terminal(capsys):
    show_rows([{"key": "a\nb", "tag": "\x1b[2J"}, {"key": "日本", "tag": "é"}, {"key": "1234", "tag": "-"}], "table")

    assert capsys.readouterr().out.splitlines() == ["key   tag", "a\\nb  \\x1b[2J", "日本  é", "1234  -"]


def test_what_a_terminal_obeys_is_escaped_in_names_and_in_json_too(capsys):
    record = {"a\x1bb": "\x9b2J\u202ex\ud800\x7f\u00e9"}
    show_record(record, "table")
    assert capsys.readouterr().out == r"a\x1bb  \x9b2J\u202ex\ud800\x7f" + "\u00e9\n"
    show_record(record, "json")
    shown = capsys.readouterr().out
    assert shown == '{\n  "a\\u001bb": "\\u009b2J\\u202ex\\ud800\\u007f\u00e9"\n}\n'
    assert json.loads(shown) == record


def test_an_error_of_a_hostile_server_is_one_harmless_line():
    error = from_response(17, "no\x1b[2J route\nSee http://rocketmq.apache.org/docs/faq/ for further details.")
    assert one_line(error) == r"no\x1b[2J route; `pyromq topic list` lists existing topics"


def test_table_without_rows_says_so_beside_the_output(capsys):
    show_rows([], "table", empty="no topics")
    shown = capsys.readouterr()

    assert (shown.out, shown.err) == ("", "no topics\n")


def test_json_without_rows_is_an_empty_list(capsys):
    show_rows([], "json")

    assert json.loads(capsys.readouterr().out) == []


def test_record_is_lines_or_an_object(capsys):
    record = {"id": "x", "times": [NOON], "properties": {"a": "b"}, "tags": None}
    show_record({"addresses": {0: "host:1"}}, "table")
    assert capsys.readouterr().out == "addresses  0=host:1\n"

    show_record(record, "table")
    lines = capsys.readouterr().out.splitlines()
    show_record(record, "json")
    parsed = json.loads(capsys.readouterr().out)

    assert lines == ["id          x", "times       2026-01-31 12:00:00.123", "properties  a=b", "tags        -"]
    assert parsed == record | {"times": ["2026-01-31T12:00:00.123+00:00"]}


def test_an_outcome_is_a_line_or_an_object_and_its_error_is_told_beside_the_output(capsys):
    done, failed = {"id": "x", "error": None}, {"id": "y\n", "error": "it is gone"}
    for output in ("table", "json"):
        for outcome in (done, failed):
            show_outcome(outcome, output, done=f"{outcome['id']}  sent", refused=f"{outcome['id']} is not sent")
    shown = capsys.readouterr()
    assert shown.err.splitlines() == ["error: y\\n is not sent: it is gone"] * 2
    line, *objects = shown.out.splitlines()
    assert line == "x  sent"
    assert [json.loads(each) for each in objects] == [done, failed]


def test_permissions_have_a_text():
    assert [permission_text(bits) for bits in (0, 2, 4, 6)] == ["-", "w", "r", "rw"]
